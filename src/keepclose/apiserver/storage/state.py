"""All stores in memory: current objects, latest history, owners and watchers.

Changes come here when they are durable, a whole transaction at a time, and become visible in one
step: readers see all of them, and then watchers are told. Nothing here can refuse a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter

from keepclose.apiserver.storage.entries import DELETED, Entry, StoredChange
from keepclose.apiserver.storage.history import FIRST_VERSION, History, Subscribers
from keepclose.apiserver.storage.recovery import Recovered

_name = itemgetter(0)
# Store, namespace and name.
Key = tuple[str, str, str]
_size_of = attrgetter("size")


class _Namespace:
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
        self._namespaces: dict[str, _Namespace] = {}
        self._size = 0

    def get(self, namespace: str, name: str) -> Entry | None:
        """Return the object of this name."""
        found = self._namespaces.get(namespace)
        return None if found is None else found.get(name)

    def put(self, entry: Entry) -> None:
        """Add the object, or put it in the place of its former version."""
        found = self._namespaces.get(entry.namespace)
        if found is None:
            found = self._namespaces[entry.namespace] = _Namespace()
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


class _Part:
    """All that belongs to one name of a store."""

    __slots__ = ("history", "objects", "subscribers")

    def __init__(self, floor: int = FIRST_VERSION) -> None:
        """Begin empty, with a history that is not known up to the floor."""
        self.objects = Collection()
        self.history = History(floor)
        self.subscribers = Subscribers()


class State:
    """What readers and watchers see."""

    __slots__ = ("_base", "_owned", "parts", "size", "version")

    def __init__(self) -> None:
        """Begin empty."""
        self.version = self._base = FIRST_VERSION
        self.parts: dict[str, _Part] = {}
        self._owned: dict[str, dict[Key, None]] = {}
        # The bytes of all objects, with what holds them.
        self.size = 0

    def restore(self, recovered: Recovered) -> None:
        """Take over what a log held."""
        self.version, self._base = recovered.version, recovered.base
        for store, floor in recovered.floors.items():
            self.parts[store] = _Part(floor)
        for store, objects in recovered.objects.items():
            part = self.part(store)
            for entry in objects.values():
                part.objects.put(entry)
                self.size += entry.size
                self._own(store, entry)
        for change in recovered.changes:
            self.part(change.store).history.append(change)

    def part(self, store: str) -> _Part:
        """Return what belongs to the name, begun empty when nothing did."""
        part = self.parts.get(store)
        if part is None:
            part = self.parts[store] = _Part(self._base)
        return part

    def get(self, store: str, namespace: str, name: str) -> Entry | None:
        """Return the object, or None."""
        part = self.parts.get(store)
        return None if part is None else part.objects.get(namespace, name)

    def owned_by(self, uid: str) -> list[Key]:
        """Return the objects that name this uid as an owner, those first that have done so longer.

        NB: they are not sorted, which would take long of a hundred thousand.
        """
        return list(self._owned.get(uid, ()))

    def apply(self, changes: Sequence[StoredChange]) -> None:
        """Make the changes of one transaction visible and tell the watchers."""
        lots: dict[str, list[StoredChange]] = {}
        for change in changes:
            self._apply(change)
            lots.setdefault(change.store, []).append(change)
        self.version = changes[-1].version
        for store, lot in lots.items():
            self.parts[store].subscribers.publish(lot)

    def trim(self, *, keep: int, size: int, since: float) -> Iterator[StoredChange]:
        """Let go of history beyond the bounds of one store, and return it."""
        for part in self.parts.values():
            yield from part.history.trim(keep=keep, size=size, since=since)

    def trim_largest(self, size: int) -> Iterator[StoredChange]:
        """Let go of the oldest changes of the largest histories, until all have no more bytes."""
        histories = [part.history for part in self.parts.values()]
        total = sum(history.size for history in histories)
        while total > size:
            dropped = max(histories, key=_size_of).drop_oldest()
            total -= dropped.size
            yield dropped

    def _apply(self, change: StoredChange) -> None:
        part, entry, previous = self.part(change.store), change.entry, change.previous
        if previous is not None:
            self.size -= previous.size
            if previous.owners:
                self._disown(change.store, previous)
        if change.type == DELETED:
            part.objects.remove(entry.namespace, entry.name)
        else:
            part.objects.put(entry)
            self.size += entry.size
            self._own(change.store, entry)
        part.history.append(change)

    def _own(self, store: str, entry: Entry) -> None:
        for uid in entry.owners:
            self._owned.setdefault(uid, {})[store, entry.namespace, entry.name] = None

    def _disown(self, store: str, entry: Entry) -> None:
        for uid in set(entry.owners):
            owned = self._owned[uid]
            del owned[store, entry.namespace, entry.name]
            if not owned:
                del self._owned[uid]
