"""The latest changes of one store, and the watchers that receive them.

The history is bounded by number, by bytes and by age. Watches resume from it, and a list at a past
version undoes the changes after that version. `floor` is the version of the newest change that was
dropped; a request for an older version cannot be answered.

Each watcher has its own queue of shared changes. Changes are queued when they are stored and are
never copied, so a watcher costs the memory of its queue. A reader whose queue exceeds its limit of
changes or bytes is dropped, because it would hold ever more old versions in memory. Changes that
arrive together do not count against a reader, which had no chance to take them: a transaction
counts as one change, and the backlog at the beginning as none. Readers are woken a few per turn of
the event loop: thousands of watchers of the same objects must not delay other clients.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from keepclose.apiserver.storage.entries import Entry, StoredChange
from keepclose.apiserver.storage.errors import (
    Closed,
    Overflow,
    RevisionCompacted,
    SubscriptionEnded,
)

__all__ = ["Closed", "Overflow", "Subscribers", "Subscription"]

# The version of a store without any write.
FIRST_VERSION: Final = 1
# How many of the latest changes, and how many bytes of their objects, keep the encoded line for
# watchers. Older changes are rarely requested, and the line is a second copy of the object.
FRAMES_KEPT: Final = 1024
FRAME_BYTES_KEPT: Final = 8 << 20
# How many bytes of objects may wait for a watcher; about as many as a history holds.
PENDING_BYTES: Final = 64 << 20
# How many readers are woken in one turn of the event loop; each sends its changes at once.
WOKEN_AT_ONCE: Final = 16


class History:
    """The latest changes of one store, oldest first."""

    __slots__ = ("_changes", "_framed", "_framed_size", "floor", "size")

    def __init__(self, floor: int = FIRST_VERSION) -> None:
        """Begin without changes; those up to the floor were dropped."""
        self._changes: deque[StoredChange] = deque()
        # The latest changes that may keep their line, and the bytes of their objects.
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
        """Drop the oldest changes beyond number and bytes, or before the time; yield them."""
        changes = self._changes
        while changes and (len(changes) > keep or self.size > size or changes[0].time < since):
            yield self.drop_oldest()

    def drop_oldest(self) -> StoredChange:
        """Drop the oldest change, which must exist, and return it."""
        dropped = self._changes.popleft()
        self.floor = dropped.version
        self.size -= dropped.size
        return dropped

    def after(self, version: int, namespace: str = "") -> list[StoredChange]:
        """Return the changes after the version, oldest first, of one namespace or ("") of all.

        Raises RevisionCompacted.
        """
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
        """Return the state at the version, or None, of every object that has changed since."""
        return {
            (change.entry.namespace, change.entry.name): change.previous
            for change in reversed(self.after(version, namespace))
        }


class Subscription:
    """The queue of one watcher: changes of one namespace or of all, from a version on."""

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
        # The bytes of the pending changes that count against the reader.
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._end: SubscriptionEnded | None = None
        self.namespace = namespace
        # Whether the reader waits in the queue of `Subscribers` to be woken.
        self.is_queued = False

    @property
    def pending(self) -> int:
        """How many changes wait for the reader."""
        return len(self._pending)

    async def next(self) -> list[StoredChange]:
        """Wait for at least one pending change and return all of them.

        Raises Overflow, once, when the reader was too slow, and Closed after that and after
        `close`. Cancelling the call loses no change.
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
        """Return the pending changes without waiting; there may be none."""
        taken, self._pending = self._pending, []
        return taken

    def close(self) -> None:
        """End the subscription and drop the pending changes. Idempotent."""
        self._finish(Closed("the subscription was closed"))

    def offer(self, changes: Sequence[StoredChange]) -> None:
        """Queue changes for the reader, or drop a reader that is too slow."""
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

    def _finish(self, end: SubscriptionEnded) -> None:
        if self._end is None:
            self._end = end
            self._pending = []
            self._subscribers.remove(self)
            self.wake()

    def wake(self) -> bool:
        """Wake the reader; return whether one was asleep."""
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_result(None)
        return True


class Subscribers:
    """The watchers of one store."""

    __slots__ = ("_by_namespace", "_is_waking", "_sleepers", "_woken")

    def __init__(self) -> None:
        """Begin without watchers."""
        # NB: a dict rather than a set, so that watchers are served in the order of arrival.
        self._by_namespace: dict[str, dict[Subscription, None]] = {}
        # Subscriptions whose readers are still to be woken.
        self._sleepers: deque[Subscription] = deque()
        self._woken = 0
        self._is_waking = False

    def __len__(self) -> int:
        return sum(len(subscriptions) for subscriptions in self._by_namespace.values())

    def add(self, backlog: list[StoredChange], *, namespace: str, limit: int) -> Subscription:
        """Return a new subscription that begins with the backlog."""
        subscription = Subscription(self, backlog, namespace=namespace, limit=limit)
        self._by_namespace.setdefault(namespace, {})[subscription] = None
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Queue no more changes for the subscription."""
        subscriptions = self._by_namespace[subscription.namespace]
        del subscriptions[subscription]
        if not subscriptions:
            del self._by_namespace[subscription.namespace]

    def publish(self, changes: Sequence[StoredChange]) -> None:
        """Offer the changes of one transaction to all watchers of their namespaces."""
        if not self._by_namespace:
            return
        by_namespace: dict[str, list[StoredChange]] = {}
        for change in changes:
            if change.entry.namespace:
                by_namespace.setdefault(change.entry.namespace, []).append(change)
        for namespace, namespace_changes in (("", changes), *by_namespace.items()):
            for subscription in list(self._by_namespace.get(namespace, ())):
                subscription.offer(namespace_changes)

    def wake_later(self, subscription: Subscription) -> None:
        """Wake the reader in this turn of the loop, or in a later one when many are woken."""
        if self._woken < WOKEN_AT_ONCE:
            self._woken += subscription.wake()
        elif not subscription.is_queued:
            subscription.is_queued = True
            self._sleepers.append(subscription)
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_batch)

    def _wake_batch(self) -> None:
        self._woken = 0
        while self._sleepers and self._woken < WOKEN_AT_ONCE:
            subscription = self._sleepers.popleft()
            subscription.is_queued = False
            self._woken += subscription.wake()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_batch)
        else:
            self._is_waking = False

    def close(self) -> None:
        """End all subscriptions."""
        for subscriptions in list(self._by_namespace.values()):
            for subscription in list(subscriptions):
                subscription.close()
