"""The end of grace periods: a pod whose time to stop is over goes, whoever is there to confirm it.

In a cluster the kubelet of a pod's node deletes the pod once its containers have stopped. Here
there may be no kubelet at all, so the server itself takes a pod away when its deletionTimestamp,
which is the end of the grace period, has come. Deletions take the path of any client with no grace
left, so that finalizers hold. It follows the changes of pods and looks at all of them but once, at
start.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import heapq
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
import structlog

from keepclose.apiserver.failures import Failure
from keepclose.apiserver.storage.entries import DELETED, Entry
from keepclose.apiserver.storage.errors import Closed, Overflow
from keepclose.apiserver.storage.store import Store

PODS: Final = "pods"

log = structlog.get_logger(__name__)


class EndPath(Protocol):
    """Deletes an object without any grace, if it still has the uid."""

    def __call__(self, store: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete the object; raises a Failure when that cannot be."""
        ...


class Graces:
    """The pods that are given time to end, by when that time is over."""

    def __init__(
        self, store: Store, delete: EndPath, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Hold what is needed; nothing happens before `run`."""
        self._store = store
        self._delete = delete
        self._clock = clock
        # When each ends, earliest first. What was put in may have changed since; see `end_due`.
        self._ends: list[tuple[float, str, str]] = []

    async def run(self) -> None:
        """Follow the pods until the store is closed."""
        subscription = self._store.subscribe(PODS, since=None)
        try:
            self.resume()
            while True:
                try:
                    async with asyncio.timeout(self.end_due()):
                        changes = await subscription.next()
                except TimeoutError:
                    continue
                except Overflow:
                    subscription = self._store.subscribe(PODS, since=None)
                    self.resume()
                    continue
                for change in changes:
                    if change.type != DELETED:
                        self.note(change.entry)
        except Closed:
            return
        finally:
            subscription.close()

    def resume(self) -> None:
        """Take note of every stored pod that is on its way out."""
        self._ends.clear()
        for entry in self._store.entries(PODS):
            self.note(entry)

    def note(self, entry: Entry) -> None:
        """Take note of a pod, if it is given time to end."""
        end = _end_of(entry)
        if end is not None:
            heapq.heappush(self._ends, (end, entry.namespace, entry.name))

    def end_due(self) -> float | None:
        """Delete every pod whose time is over; return in how many seconds the next one's is."""
        while self._ends:
            end, namespace, name = self._ends[0]
            left = end - self._clock()
            if left > 0:
                return left
            heapq.heappop(self._ends)
            entry = self._store.get(PODS, namespace, name)
            # NB: a shortened period is in the queue twice, and so may be a name that came again.
            if entry is not None and _end_of(entry) == end:
                self._end(entry)
        return None

    def _end(self, entry: Entry) -> None:
        try:
            self._delete(PODS, entry.namespace, entry.name, uid=entry.uid)
        except Failure as failure:
            log.warning("not ended", pod=f"{entry.namespace}/{entry.name}", why=failure.message)


def _end_of(entry: Entry) -> float | None:
    """Return when the grace period of a pod ends, in seconds since 1970; None when it has none."""
    # Most pods are not decoded for this; the words may stand elsewhere in some.
    if b'"deletionTimestamp"' not in entry.data:
        return None
    metadata: dict[str, Any] = msgspec.json.decode(entry.data)["metadata"]
    end = metadata.get("deletionTimestamp")
    if not end or not metadata.get("deletionGracePeriodSeconds"):
        return None
    return dt.datetime.fromisoformat(end).timestamp()
