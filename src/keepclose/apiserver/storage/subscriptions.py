"""Watchers of one store: each has its own queue of shared changes.

Changes are handed over when they are stored and never copied; a watcher costs the memory of its
queue. A reader that lets more changes wait than its limit is given up, because it would otherwise
hold ever more old versions in memory. What arrives at once is not held against a reader, who had
no chance to take it: a large transaction counts as one change, the backlog at the beginning as
none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from keepclose.apiserver.storage.entries import Change
from keepclose.apiserver.storage.errors import Closed, Ended, Overflow

__all__ = ["Closed", "Overflow", "Subscribers", "Subscription"]


class Subscription:
    """The changes of a store, of one namespace or of all, from some version on."""

    __slots__ = ("_end", "_limit", "_pending", "_subscribers", "_uncounted", "_waiter", "namespace")

    def __init__(
        self, subscribers: Subscribers, backlog: list[Change], *, namespace: str, limit: int
    ) -> None:
        """Begin with the backlog."""
        self._subscribers = subscribers
        self._pending = backlog
        self._limit = limit
        self._uncounted = len(backlog)
        self._waiter: asyncio.Future[None] | None = None
        self._end: Ended | None = None
        self.namespace = namespace

    @property
    def pending(self) -> int:
        """How many changes wait for the reader."""
        return len(self._pending)

    async def next(self) -> list[Change]:
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

    def take(self) -> list[Change]:
        """Return what is pending without waiting; it may be nothing."""
        taken, self._pending = self._pending, []
        return taken

    def close(self) -> None:
        """End the subscription and drop what is pending; a second time does nothing."""
        self._finish(Closed("the subscription was closed"))

    def offer(self, changes: Sequence[Change]) -> None:
        """Add changes for the reader, or give the reader up."""
        if not self._pending:
            self._uncounted = 0
        if len(self._pending) - self._uncounted >= self._limit:
            self._finish(Overflow(f"more than {self._limit} changes were left waiting"))
        else:
            self._pending += changes
            self._uncounted += len(changes) - 1
            self._wake()

    def _finish(self, end: Ended) -> None:
        if self._end is None:
            self._end = end
            self._pending = []
            self._subscribers.remove(self)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Subscribers:
    """Everybody who watches one store."""

    __slots__ = ("_by_namespace",)

    def __init__(self) -> None:
        """Begin with nobody."""
        # NB: a dict rather than a set, so that watchers are served in the order of their coming.
        self._by_namespace: dict[str, dict[Subscription, None]] = {}

    def __len__(self) -> int:
        return sum(len(some) for some in self._by_namespace.values())

    def add(self, backlog: list[Change], *, namespace: str, limit: int) -> Subscription:
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

    def publish(self, changes: Sequence[Change]) -> None:
        """Offer the changes, which became visible at one moment, to all whom they concern."""
        if not self._by_namespace:
            return
        lots: dict[str, list[Change]] = {}
        for change in changes:
            if change.entry.namespace:
                lots.setdefault(change.entry.namespace, []).append(change)
        for namespace, lot in (("", changes), *lots.items()):
            for one in list(self._by_namespace.get(namespace, ())):
                one.offer(lot)

    def close(self) -> None:
        """End all subscriptions."""
        for some in list(self._by_namespace.values()):
            for one in list(some):
                one.close()
