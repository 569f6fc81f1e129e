"""All stores in memory: current objects, latest history, owners and watchers.

Changes come here when they are durable, a whole transaction at a time, and become visible in one
step: readers see all of them, and then watchers are told. Nothing here can refuse a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from keepclose.apiserver.storage.collection import Collection
from keepclose.apiserver.storage.entries import DELETED, Change, Entry
from keepclose.apiserver.storage.history import FIRST_VERSION, History
from keepclose.apiserver.storage.recovery import Recovered
from keepclose.apiserver.storage.subscriptions import Subscribers

# Store, namespace and name.
Key = tuple[str, str, str]
_size_of = attrgetter("size")


class Part:
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
        self.parts: dict[str, Part] = {}
        self._owned: dict[str, dict[Key, None]] = {}
        # The bytes of all objects, with what holds them.
        self.size = 0

    def restore(self, recovered: Recovered) -> None:
        """Take over what a log held."""
        self.version, self._base = recovered.version, recovered.base
        for store, floor in recovered.floors.items():
            self.parts[store] = Part(floor)
        for store, objects in recovered.objects.items():
            part = self.part(store)
            for entry in objects.values():
                part.objects.put(entry)
                self.size += entry.size
                self._own(store, entry)
        for change in recovered.changes:
            self.part(change.store).history.append(change)

    def part(self, store: str) -> Part:
        """Return what belongs to the name, begun empty when nothing did."""
        part = self.parts.get(store)
        if part is None:
            part = self.parts[store] = Part(self._base)
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

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes of one transaction visible and tell the watchers."""
        lots: dict[str, list[Change]] = {}
        for change in changes:
            self._apply(change)
            lots.setdefault(change.store, []).append(change)
        self.version = changes[-1].version
        for store, lot in lots.items():
            self.parts[store].subscribers.publish(lot)

    def trim(self, *, keep: int, size: int, since: float) -> Iterator[Change]:
        """Let go of history beyond the bounds of one store, and return it."""
        for part in self.parts.values():
            yield from part.history.trim(keep=keep, size=size, since=since)

    def trim_largest(self, size: int) -> Iterator[Change]:
        """Let go of the oldest changes of the largest histories, until all have no more bytes."""
        histories = [part.history for part in self.parts.values()]
        total = sum(history.size for history in histories)
        while total > size:
            dropped = max(histories, key=_size_of).drop_oldest()
            total -= dropped.size
            yield dropped

    def _apply(self, change: Change) -> None:
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
