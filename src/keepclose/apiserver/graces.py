"""The end of grace periods: a pod whose time to stop is over goes, whoever is there to confirm it.

In a cluster the kubelet of a pod's node deletes the pod once its containers have stopped. Here
there may be no kubelet at all, so the server itself takes a pod away when its deletionTimestamp,
which is the end of the grace period, has come. Deletions take the path of any client with no grace
left, so that finalizers hold. It follows the changes of pods and looks at all of them but once, at
start.

A deletionTimestamp is a time of the wall clock, which may be set back: by itself it would then hold
the pod for as long as the clock was wrong. So a pod goes at that time, or when its grace period has
passed since the server learned of it, by the clock that never goes back, whichever is first.
"""

from __future__ import annotations

import datetime as dt
import heapq
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import structlog

from keepclose.apiserver.failures import Failure
from keepclose.apiserver.following import follow_deadlines
from keepclose.apiserver.storage.entries import DELETED, Change, Entry
from keepclose.apiserver.storage.store import Store

PODS: Final = "pods"
# A deletionTimestamp has whole seconds, so the period may end so much later than it says.
_TRUNCATED_SECONDS: Final = 1.0
# So many that no longer count may stay queued beside as many as do.
_FEW: Final = 64
# The loop goes on after so much work.
_TURN_SECONDS: Final = 0.005

log = structlog.get_logger(__name__)


# A clock, and by that clock when each pod ends, with its deletionTimestamp, namespace and name.
_Queue = tuple[Callable[[], float], list[tuple[float, float, str, str]]]


class _Period(NamedTuple):
    """The end of a grace period, in seconds since 1970, and how long it was."""

    end: float
    seconds: float


class EndPath(Protocol):
    """Deletes an object without any grace, if it still has the uid."""

    def __call__(self, store: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete the object; raises a Failure when that cannot be."""
        ...


class Graces:
    """The pods that are given time to end, by when that time is over."""

    def __init__(
        self,
        store: Store,
        delete: EndPath,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold what is needed; nothing happens before `run`."""
        self._store = store
        self._delete = delete
        # When each ends by either clock, earliest first. What was put in may have changed since.
        self._queues: tuple[_Queue, _Queue] = ((clock, []), (monotonic, []))
        # The deletionTimestamp that counts, by namespace and name; none for a pod that was ended.
        self._ends: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Follow the pods until the store is closed."""
        await follow_deadlines(
            self._store, PODS, resume=self.resume, handle=self._handle, end_due=self.end_due
        )

    def resume(self) -> Iterator[None]:
        """Take note of every stored pod that is on its way out, by steps."""
        self._ends.clear()
        for _clock, queued in self._queues:
            queued.clear()
        for entry in self._store.entries(PODS):
            self.note(entry)
            yield

    def note(self, entry: Entry) -> None:
        """Take note of a pod, if it is given time to end."""
        period = _period_of(entry)
        # NB: a pod may be written often while it ends, and counts once.
        if period is None or self._ends.get((entry.namespace, entry.name)) == period.end:
            return
        self._ends[entry.namespace, entry.name] = period.end
        (_, by_wall), (monotonic, by_monotonic) = self._queues
        heapq.heappush(by_wall, (period.end, period.end, entry.namespace, entry.name))
        latest = monotonic() + period.seconds + _TRUNCATED_SECONDS
        heapq.heappush(by_monotonic, (latest, period.end, entry.namespace, entry.name))

    def forget(self, entry: Entry) -> None:
        """Take note that a pod is gone: its period may have been one of years."""
        self._ends.pop((entry.namespace, entry.name), None)
        for _clock, queued in self._queues:
            if len(queued) > 2 * len(self._ends) + _FEW:
                queued[:] = [one for one in queued if self._ends.get(one[2:]) == one[1]]
                heapq.heapify(queued)

    def end_due(self) -> float | None:
        """Delete pods whose time is over; return in how many seconds the next one's is.

        Thousands may be due at once, so that after a few milliseconds the rest is left for the next
        call, and 0 or less is returned.
        """
        stop = time.perf_counter() + _TURN_SECONDS
        for queue in self._queues:
            while (left := self._next_of(queue)) is not None and left <= 0:
                _at, end, namespace, name = heapq.heappop(queue[1])
                del self._ends[namespace, name]
                entry = self._store.get(PODS, namespace, name)
                period = None if entry is None else _period_of(entry)
                # NB: a name may have come again since.
                if entry is not None and period is not None and period.end == end:
                    self._end(entry)
                if time.perf_counter() > stop:
                    break
        waits = [left for queue in self._queues if (left := self._next_of(queue)) is not None]
        return min(waits, default=None)

    def _handle(self, change: Change) -> None:
        if change.type != DELETED:
            self.note(change.entry)
        else:
            self.forget(change.entry)

    def _next_of(self, queue: _Queue) -> float | None:
        """Return in how many seconds the next pod of a queue ends; drops what no longer counts."""
        clock, queued = queue
        while queued:
            at, end, namespace, name = queued[0]
            # NB: a shortened period is queued twice, and one that ended by the other clock once.
            if self._ends.get((namespace, name)) == end:
                return at - clock()
            heapq.heappop(queued)
        return None

    def _end(self, entry: Entry) -> None:
        try:
            self._delete(PODS, entry.namespace, entry.name, uid=entry.uid)
        except Failure as failure:
            log.warning("not ended", pod=f"{entry.namespace}/{entry.name}", why=failure.message)


def _period_of(entry: Entry) -> _Period | None:
    """Return the grace period of a pod; None when it has none."""
    # Most pods are not decoded for this; the words may stand elsewhere in some.
    if b'"deletionTimestamp"' not in entry.data:
        return None
    metadata: dict[str, Any] = msgspec.json.decode(entry.data)["metadata"]
    end, seconds = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    if not end or not seconds:
        return None
    return _Period(dt.datetime.fromisoformat(end).timestamp(), float(seconds))
