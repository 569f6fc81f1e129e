"""The current objects of one store, ready to be listed in order.

Each namespace is a map from name to entry that is kept in the order of names: a name past the
last one is appended, any other marks the map, which is put in order when it is next listed. So an
insertion costs the same with ten objects as with 150,000, and a list needs no sorting as long as
nothing was added. Python's sort finds what is in order already, which leaves little to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from keepclose.apiserver.storage.entries import Entry

_name = itemgetter(0)


class Namespace:
    """The objects of one namespace."""

    __slots__ = ("_by_name", "_last", "_sorted")

    def __init__(self) -> None:
        """Begin empty."""
        self._by_name: dict[str, Entry] = {}
        self._last = ""
        self._sorted = True

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Entry | None:
        """Return the object of this name."""
        return self._by_name.get(name)

    def put(self, entry: Entry) -> bool:
        """Add the object, or put it in the place of its former version; return whether it is new.

        NB: a name past the last one is always new, since the last one only grows.
        """
        name = entry.name
        if name > self._last:
            self._last = name
        elif name in self._by_name:
            self._by_name[name] = entry
            return False
        else:
            self._sorted = False
        self._by_name[name] = entry
        return True

    def remove(self, name: str) -> None:
        """Drop the object of this name."""
        del self._by_name[name]

    def by_name(self) -> dict[str, Entry]:
        """Return the objects in the order of their names, as a map that must not be changed."""
        if not self._sorted:
            self._by_name = dict(sorted(self._by_name.items(), key=_name))
            self._sorted = True
        return self._by_name


class Collection:
    """The current objects of one store, of all namespaces."""

    __slots__ = ("_namespaces", "_size")

    def __init__(self) -> None:
        """Begin empty."""
        self._namespaces: dict[str, Namespace] = {}
        self._size = 0

    def get(self, namespace: str, name: str) -> Entry | None:
        """Return the object of this name."""
        found = self._namespaces.get(namespace)
        return None if found is None else found.get(name)

    def put(self, entry: Entry) -> None:
        """Add the object, or put it in the place of its former version."""
        found = self._namespaces.get(entry.namespace)
        if found is None:
            found = self._namespaces[entry.namespace] = Namespace()
        self._size += found.put(entry)

    def remove(self, namespace: str, name: str) -> None:
        """Drop the object of this name, which must be there."""
        found = self._namespaces[namespace]
        found.remove(name)
        self._size -= 1
        if not len(found):
            del self._namespaces[namespace]

    def count(self, namespace: str) -> int:
        """Return how many objects there are, in one namespace or ("") in all."""
        if not namespace:
            return self._size
        found = self._namespaces.get(namespace)
        return 0 if found is None else len(found)

    def entries(self, namespace: str) -> list[Entry]:
        """Return the objects by namespace and name, of one namespace or ("") of all."""
        if namespace:
            found = self._namespaces.get(namespace)
            return [] if found is None else list(found.by_name().values())
        listed: list[Entry] = []
        for one in sorted(self._namespaces):
            listed += self._namespaces[one].by_name().values()
        return listed

    def entries_with(
        self, others: Mapping[tuple[str, str], Entry | None], namespace: str
    ) -> list[Entry]:
        """Return the list with other states of some objects; None stands for absence."""
        if not others:
            return self.entries(namespace)
        changed: dict[str, dict[str, Entry | None]] = {}
        for (where, name), entry in others.items():
            if namespace in ("", where):
                changed.setdefault(where, {})[name] = entry
        names = {namespace} if namespace else {*self._namespaces, *changed}
        listed: list[Entry] = []
        for one in sorted(names):
            found = self._namespaces.get(one)
            current = {} if found is None else found.by_name()
            if one not in changed:
                listed += current.values()
                continue
            mixed = {**current, **changed[one]}
            if len(mixed) > len(current):
                mixed = dict(sorted(mixed.items(), key=_name))
            listed += [entry for entry in mixed.values() if entry is not None]
        return listed
