"""The latest changes of one store, oldest first, bounded by number, by bytes and by age.

Watches resume from here, and lists of a past version are made by undoing what came after. A
change that has been let go is never asked for again: `floor` is the version of the last one, and
nothing older can be answered for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from keepclose.apiserver.storage.entries import Entry, StoredChange
from keepclose.apiserver.storage.errors import Closed, Overflow, RevisionCompacted, StoreClosed

# The version of a store into which nothing was written yet.
FIRST_VERSION: Final = 1
# So many of the latest changes keep their line for watchers, as long as the objects in them have no
# more bytes; older ones are rarely asked for, and the line is a second copy of the object.
FRAMES_KEPT: Final = 1024
FRAME_BYTES_KEPT: Final = 8 << 20
__all__ = ["Closed", "Overflow", "Subscribers", "Subscription"]

# So many bytes of objects may wait for a watcher; about what a history holds.
PENDING_BYTES: Final = 64 << 20


WOKEN_AT_ONCE: Final = 16
"""Readers that are woken in one turn of the event loop; each sends what it gets at once."""


class History:
    """What happened to the objects of one store."""

    __slots__ = ("_changes", "_framed", "_framed_size", "floor", "size")

    def __init__(self, floor: int = FIRST_VERSION) -> None:
        """Begin without changes; those up to the floor are not known."""
        self._changes: deque[StoredChange] = deque()
        # Those of the latest changes that may keep their line, and the bytes of their objects.
        self._framed: deque[StoredChange] = deque()
        self._framed_size = 0
        self.floor = floor
        # The bytes of all changes.
        self.size = 0

    def append(self, change: StoredChange) -> None:
        """Add the newest change."""
        self._changes.append(change)
        size = change.entry.size
        self.size += size
        framed = self._framed
        framed.append(change)
        self._framed_size += size
        while len(framed) > FRAMES_KEPT or self._framed_size > FRAME_BYTES_KEPT:
            older = framed.popleft()
            self._framed_size -= older.size
            older.forget_frame()

    def trim(self, *, keep: int, size: int, since: float) -> Iterator[StoredChange]:
        """Let go of the oldest changes beyond number and bytes, or made before the time."""
        changes = self._changes
        while changes and (len(changes) > keep or self.size > size or changes[0].time < since):
            yield self.drop_oldest()

    def drop_oldest(self) -> StoredChange:
        """Let go of the oldest change, which must be there, and return it."""
        dropped = self._changes.popleft()
        self.floor = dropped.version
        self.size -= dropped.size
        return dropped

    def after(self, version: int, namespace: str = "") -> list[StoredChange]:
        """Return what happened after the version, oldest first, in one namespace or ("") in all."""
        if version < self.floor:
            raise RevisionCompacted(version, self.floor)
        newer: list[StoredChange] = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            if namespace in ("", change.entry.namespace):
                newer.append(change)
        newer.reverse()
        return newer

    def states_at(self, version: int, namespace: str = "") -> dict[tuple[str, str], Entry | None]:
        """Return, for every object that has changed since the version, what it was then."""
        return {
            (change.entry.namespace, change.entry.name): change.previous
            for change in reversed(self.after(version, namespace))
        }


class Subscription:
    """The changes of a store, of one namespace or of all, from some version on."""

    __slots__ = (
        "_end",
        "_limit",
        "_pending",
        "_size",
        "_subscribers",
        "_uncounted",
        "_waiter",
        "is_queued",
        "namespace",
    )

    def __init__(
        self, subscribers: Subscribers, backlog: list[StoredChange], *, namespace: str, limit: int
    ) -> None:
        """Begin with the backlog."""
        self._subscribers = subscribers
        self._pending = backlog
        self._limit = limit
        self._uncounted = len(backlog)
        # The bytes of pending changes that came one by one.
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._end: StoreClosed | None = None
        self.namespace = namespace
        # Whether its reader is among those yet to be woken.
        self.is_queued = False

    @property
    def pending(self) -> int:
        """How many changes wait for the reader."""
        return len(self._pending)

    async def next(self) -> list[StoredChange]:
        """Return all pending changes, at least one, waiting for it if there is none.

        A reader that was too slow gets Overflow, once; after that and after `close` it gets
        Closed. A call that is cancelled loses nothing.
        """
        while not self._pending:
            if self._end is not None:
                end, self._end = self._end, Closed("the subscription has ended")
                raise end
            if self._waiter is not None:
                raise RuntimeError("a subscription has one reader at a time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> list[StoredChange]:
        """Return what is pending without waiting; it may be nothing."""
        taken, self._pending = self._pending, []
        return taken

    def close(self) -> None:
        """End the subscription and drop what is pending; a second time does nothing."""
        self._finish(Closed("the subscription was closed"))

    def offer(self, changes: Sequence[StoredChange]) -> None:
        """Add changes for the reader, or give the reader up."""
        if not self._pending:
            self._uncounted = self._size = 0
        if len(self._pending) - self._uncounted >= self._limit:
            self._finish(Overflow(f"more than {self._limit} changes were left waiting"))
        elif self._size > PENDING_BYTES:
            self._finish(Overflow(f"more than {PENDING_BYTES} bytes were left waiting"))
        else:
            self._pending += changes
            self._uncounted += len(changes) - 1
            self._size += changes[0].size
            if self._waiter is not None:
                self._subscribers.wake_later(self)

    def _finish(self, end: StoreClosed) -> None:
        if self._end is None:
            self._end = end
            self._pending = []
            self._subscribers.remove(self)
            self.wake()

    def wake(self) -> bool:
        """Have the reader look again; return whether there is one that slept."""
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_result(None)
        return True


class Subscribers:
    """Everybody who watches one store."""

    __slots__ = ("_by_namespace", "_is_waking", "_sleepers", "_woken")

    def __init__(self) -> None:
        """Begin with nobody."""
        # NB: a dict rather than a set, so that watchers are served in the order of their coming.
        self._by_namespace: dict[str, dict[Subscription, None]] = {}
        # Those whose readers are yet to be woken.
        self._sleepers: deque[Subscription] = deque()
        self._woken = 0
        self._is_waking = False

    def __len__(self) -> int:
        return sum(len(some) for some in self._by_namespace.values())

    def add(self, backlog: list[StoredChange], *, namespace: str, limit: int) -> Subscription:
        """Return a new subscription that begins with the backlog."""
        made = Subscription(self, backlog, namespace=namespace, limit=limit)
        self._by_namespace.setdefault(namespace, {})[made] = None
        return made

    def remove(self, subscription: Subscription) -> None:
        """Send nothing more to the subscription."""
        some = self._by_namespace[subscription.namespace]
        del some[subscription]
        if not some:
            del self._by_namespace[subscription.namespace]

    def publish(self, changes: Sequence[StoredChange]) -> None:
        """Offer the changes, which became visible at one moment, to all whom they concern."""
        if not self._by_namespace:
            return
        lots: dict[str, list[StoredChange]] = {}
        for change in changes:
            if change.entry.namespace:
                lots.setdefault(change.entry.namespace, []).append(change)
        for namespace, lot in (("", changes), *lots.items()):
            for one in list(self._by_namespace.get(namespace, ())):
                one.offer(lot)

    def wake_later(self, subscription: Subscription) -> None:
        """Wake the reader in this turn of the loop, or in one of the next if many are woken."""
        if self._woken < WOKEN_AT_ONCE:
            self._woken += subscription.wake()
        elif not subscription.is_queued:
            subscription.is_queued = True
            self._sleepers.append(subscription)
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        self._woken = 0
        while self._sleepers and self._woken < WOKEN_AT_ONCE:
            subscription = self._sleepers.popleft()
            subscription.is_queued = False
            self._woken += subscription.wake()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)
        else:
            self._is_waking = False

    def close(self) -> None:
        """End all subscriptions."""
        for some in list(self._by_namespace.values()):
            for one in list(some):
                one.close()
