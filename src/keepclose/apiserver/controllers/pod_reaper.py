"""Deletes terminating pods when their grace period ends, also without a kubelet.

In a cluster the kubelet deletes a pod once its containers have stopped. Here there may be no
kubelet, so the server deletes a pod when its deletionTimestamp, which is the end of the grace
period, has come. Deletes take the path of any client with a grace period of 0, so that finalizers
hold. The reaper follows the changes of pods and reads all of them only at start and after an
overflow of changes.

A deletionTimestamp is a time of the wall clock, which may be set back and would then hold the pod
for as long. So a pod is deleted at that time, or when its grace period has passed on the monotonic
clock since the server saw the deletionTimestamp, whichever is first.
"""

from __future__ import annotations

import datetime as dt
import heapq
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import structlog

from keepclose.apiserver.controllers.store_follower import follow_deadlines
from keepclose.apiserver.status_errors import StatusError
from keepclose.apiserver.storage.entries import DELETED, Entry, StoredChange
from keepclose.apiserver.storage.store import Store

POD_STORE: Final = "pods"
# A deletionTimestamp has whole seconds, so a period may end up to this much later.
_TRUNCATED_SECONDS: Final = 1.0
# How many stale items may stay queued beyond the number of terminating pods.
_STALE_ITEMS: Final = 64
# After this much work the reaper yields to the event loop.
_TURN_SECONDS: Final = 0.005

_log = structlog.get_logger(__name__)

# A clock, and the deadline of each pod by it, with its deletionTimestamp, namespace and name.
_Queue = tuple[Callable[[], float], list[tuple[float, float, str, str]]]


class _GracePeriod(NamedTuple):
    """The end of a grace period, in seconds since 1970, and how long it was."""

    end: float
    seconds: float


class DeleteWithoutGrace(Protocol):
    """Deletes an object with a grace period of 0, if it still has the uid."""

    def __call__(self, store: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete the object. Raises StatusError."""
        ...


class PodReaper:
    """The terminating pods in the order of their deadlines, and their deletion."""

    def __init__(
        self,
        store: Store,
        delete: DeleteWithoutGrace,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold the store and the path of deletes; `run` does the work."""
        self._store = store
        self._delete = delete
        # The deadlines by either clock, earliest first. Items may be stale.
        self._queues: tuple[_Queue, _Queue] = ((clock, []), (monotonic, []))
        # The current deletionTimestamp by namespace and name; absent for a deleted pod.
        self._ends: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Follow the pods until the store is closed."""
        await follow_deadlines(
            self._store,
            POD_STORE,
            resume=self.resume,
            handle=self._on_change,
            end_due=self.delete_due,
        )

    def resume(self) -> Iterator[None]:
        """Track all stored pods that are terminating, in steps."""
        self._ends.clear()
        for _clock, queued in self._queues:
            queued.clear()
        for entry in self._store.entries(POD_STORE):
            self.track(entry)
            yield

    def track(self, entry: Entry) -> None:
        """Track a pod, if it has a grace period."""
        period = _grace_period_of(entry)
        # NB: a terminating pod may be written often, and is queued once.
        if period is None or self._ends.get((entry.namespace, entry.name)) == period.end:
            return
        self._ends[entry.namespace, entry.name] = period.end
        (_, by_wall), (monotonic, by_monotonic) = self._queues
        heapq.heappush(by_wall, (period.end, period.end, entry.namespace, entry.name))
        latest = monotonic() + period.seconds + _TRUNCATED_SECONDS
        heapq.heappush(by_monotonic, (latest, period.end, entry.namespace, entry.name))

    def untrack(self, entry: Entry) -> None:
        """Stop tracking a deleted pod, whose period may have been one of years."""
        self._ends.pop((entry.namespace, entry.name), None)
        for _clock, queued in self._queues:
            if len(queued) > 2 * len(self._ends) + _STALE_ITEMS:
                queued[:] = [item for item in queued if self._ends.get(item[2:]) == item[1]]
                heapq.heapify(queued)

    def delete_due(self) -> float | None:
        """Delete the pods that are due; return the seconds to the next deadline, None without one.

        Thousands may be due at once. After a few milliseconds the rest is left to the next call,
        and 0 or less is returned.
        """
        stop = time.perf_counter() + _TURN_SECONDS
        for queue in self._queues:
            while (left := self._next_deadline(queue)) is not None and left <= 0:
                _at, end, namespace, name = heapq.heappop(queue[1])
                del self._ends[namespace, name]
                entry = self._store.get(POD_STORE, namespace, name)
                period = None if entry is None else _grace_period_of(entry)
                # NB: a new pod may have the name.
                if entry is not None and period is not None and period.end == end:
                    self._delete_pod(entry)
                if time.perf_counter() > stop:
                    break
        waits = [left for queue in self._queues if (left := self._next_deadline(queue)) is not None]
        return min(waits, default=None)

    def _on_change(self, change: StoredChange) -> None:
        if change.type != DELETED:
            self.track(change.entry)
        else:
            self.untrack(change.entry)

    def _next_deadline(self, queue: _Queue) -> float | None:
        """Return the seconds to the next deadline of a queue, and drop stale items."""
        clock, queued = queue
        while queued:
            at, end, namespace, name = queued[0]
            # NB: a shortened period leaves a stale item, and so does a deadline of the other clock.
            if self._ends.get((namespace, name)) == end:
                return at - clock()
            heapq.heappop(queued)
        return None

    def _delete_pod(self, entry: Entry) -> None:
        try:
            self._delete(POD_STORE, entry.namespace, entry.name, uid=entry.uid)
        except StatusError as failure:
            pod = f"{entry.namespace}/{entry.name}"
            _log.warning("deleting pod after its grace period failed", pod=pod, why=failure.message)


def _grace_period_of(entry: Entry) -> _GracePeriod | None:
    """Return the grace period of a terminating pod, or None."""
    # Most pods need not be decoded; some contain the word in another field.
    if b'"deletionTimestamp"' not in entry.data:
        return None
    metadata: dict[str, Any] = msgspec.json.decode(entry.data)["metadata"]
    end, seconds = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    if not end or not seconds:
        return None
    return _GracePeriod(dt.datetime.fromisoformat(end).timestamp(), float(seconds))
