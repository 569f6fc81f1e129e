"""All stores in memory: current objects, latest history, owners and watchers.

Changes arrive when they are durable, a whole transaction at a time, and become visible in one step:
first to readers, then to watchers. The state never rejects a change.

Each namespace is a map from name to entry in the order of names. A name past the last one is
appended; any other marks the map, which is sorted when it is next listed. So an insertion costs the
same with ten objects as with 150,000, and a list needs no sorting as long as no object was added.
Python's sort detects runs that are in order, which leaves little work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter

from keepclose.apiserver.storage.entries import DELETED, Entry, StoredChange
from keepclose.apiserver.storage.history import FIRST_VERSION, History, Subscribers
from keepclose.apiserver.storage.recovery import Recovered

# Store, namespace and name.
Key = tuple[str, str, str]

_name_of = itemgetter(0)
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
        """Add the object or replace its former version; return whether it is new.

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
        """Remove the object of this name."""
        del self._by_name[name]

    def by_name(self) -> dict[str, Entry]:
        """Return the objects in the order of their names, as a map that callers must not change."""
        if not self._sorted:
            self._by_name = dict(sorted(self._by_name.items(), key=_name_of))
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
        objects = self._namespaces.get(namespace)
        return None if objects is None else objects.get(name)

    def put(self, entry: Entry) -> None:
        """Add the object or replace its former version."""
        objects = self._namespaces.get(entry.namespace)
        if objects is None:
            objects = self._namespaces[entry.namespace] = _Namespace()
        self._size += objects.put(entry)

    def remove(self, namespace: str, name: str) -> None:
        """Remove the object of this name, which must exist."""
        objects = self._namespaces[namespace]
        objects.remove(name)
        self._size -= 1
        if not len(objects):
            del self._namespaces[namespace]

    def count(self, namespace: str) -> int:
        """Return how many objects there are, in one namespace or ("") in all."""
        if not namespace:
            return self._size
        objects = self._namespaces.get(namespace)
        return 0 if objects is None else len(objects)

    def entries(self, namespace: str) -> list[Entry]:
        """Return the objects by namespace and name, of one namespace or ("") of all."""
        if namespace:
            objects = self._namespaces.get(namespace)
            return [] if objects is None else list(objects.by_name().values())
        listed: list[Entry] = []
        for name in sorted(self._namespaces):
            listed += self._namespaces[name].by_name().values()
        return listed

    def entries_with(
        self, states: Mapping[tuple[str, str], Entry | None], namespace: str
    ) -> list[Entry]:
        """Return the objects with the given states in place of the current; None is an absence."""
        if not states:
            return self.entries(namespace)
        changed_states: dict[str, dict[str, Entry | None]] = {}
        for (where, name), entry in states.items():
            if namespace in ("", where):
                changed_states.setdefault(where, {})[name] = entry
        namespaces = {namespace} if namespace else {*self._namespaces, *changed_states}
        listed: list[Entry] = []
        for current_namespace in sorted(namespaces):
            objects = self._namespaces.get(current_namespace)
            current = {} if objects is None else objects.by_name()
            if current_namespace not in changed_states:
                listed += current.values()
                continue
            mixed = {**current, **changed_states[current_namespace]}
            if len(mixed) > len(current):
                mixed = dict(sorted(mixed.items(), key=_name_of))
            listed += [entry for entry in mixed.values() if entry is not None]
        return listed


class _Part:
    """The objects, the history and the watchers of one store."""

    __slots__ = ("history", "objects", "subscribers")

    def __init__(self, floor: int = FIRST_VERSION) -> None:
        """Begin empty, with a history that starts after the floor."""
        self.objects = Collection()
        self.history = History(floor)
        self.subscribers = Subscribers()


class State:
    """All stores as readers and watchers see them."""

    __slots__ = ("_base", "_owned", "parts", "size", "version")

    def __init__(self) -> None:
        """Begin empty."""
        self.version = self._base = FIRST_VERSION
        self.parts: dict[str, _Part] = {}
        self._owned: dict[str, dict[Key, None]] = {}
        # The bytes of all objects, overhead included.
        self.size = 0

    def restore(self, recovered: Recovered) -> None:
        """Take over the objects and the history of a log."""
        self.version, self._base = recovered.version, recovered.base
        for store, floor in recovered.floors.items():
            self.parts[store] = _Part(floor)
        for store, objects in recovered.objects.items():
            part = self.part(store)
            for entry in objects.values():
                part.objects.put(entry)
                self.size += entry.size
                self._index_owners(store, entry)
        for change in recovered.changes:
            self.part(change.store).history.append(change)

    def part(self, store: str) -> _Part:
        """Return the part of a store; an unknown store gets an empty one."""
        part = self.parts.get(store)
        if part is None:
            part = self.parts[store] = _Part(self._base)
        return part

    def get(self, store: str, namespace: str, name: str) -> Entry | None:
        """Return the object, or None."""
        part = self.parts.get(store)
        return None if part is None else part.objects.get(namespace, name)

    def owned_by(self, uid: str) -> list[Key]:
        """Return the objects that name this uid as an owner, in the order in which they did so.

        NB: not sorted by name, which would take long for a hundred thousand objects.
        """
        return list(self._owned.get(uid, ()))

    def apply(self, changes: Sequence[StoredChange]) -> None:
        """Make the changes of one transaction visible and publish them to the watchers."""
        by_store: dict[str, list[StoredChange]] = {}
        for change in changes:
            self._apply(change)
            by_store.setdefault(change.store, []).append(change)
        self.version = changes[-1].version
        for store, store_changes in by_store.items():
            self.parts[store].subscribers.publish(store_changes)

    def trim(self, *, keep: int, size: int, since: float) -> Iterator[StoredChange]:
        """Drop and yield the changes of each store beyond its bounds."""
        for part in self.parts.values():
            yield from part.history.trim(keep=keep, size=size, since=since)

    def trim_largest(self, size: int) -> Iterator[StoredChange]:
        """Drop the oldest changes of the largest histories until all fit the size; yield them."""
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
                self._unindex_owners(change.store, previous)
        if change.type == DELETED:
            part.objects.remove(entry.namespace, entry.name)
        else:
            part.objects.put(entry)
            self.size += entry.size
            self._index_owners(change.store, entry)
        part.history.append(change)

    def _index_owners(self, store: str, entry: Entry) -> None:
        for uid in entry.owners:
            self._owned.setdefault(uid, {})[store, entry.namespace, entry.name] = None

    def _unindex_owners(self, store: str, entry: Entry) -> None:
        for uid in set(entry.owners):
            owned = self._owned[uid]
            del owned[store, entry.namespace, entry.name]
            if not owned:
                del self._owned[uid]
