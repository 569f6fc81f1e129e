"""A work queue of keys: each key is queued at most once, and never has two workers at once.

A key only names an object; the worker reads its present state, so ten changes of one object cost
one sync. A key that is added while a worker has it is synced once more afterwards. Failed keys are
requeued after an exponential delay per key and an overall rate limit, as in the queues of the
EndpointSlice controller. There is no background task: waiting workers watch the time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from keepclose.kube.clock import Clock
from keepclose.kube.transport.retries import TokenBucket

_K = TypeVar("_K", bound=Hashable)
_MAX_DOUBLINGS: Final = 60


def _ignore(_seconds: float) -> None:
    """Do nothing."""


class WorkQueue(Generic[_K]):
    """A queue of keys for any number of workers in one event loop.

    A queue that was shut down ignores new keys.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        first_delay_s: float = 1.0,
        cap_delay_s: float = 1000.0,
        retries_per_s: float = 10.0,
        retries_burst: int = 100,
        on_latency: Callable[[float], None] = _ignore,
        on_work: Callable[[float], None] = _ignore,
    ) -> None:
        self._clock = clock
        self._first_delay_s, self._cap_delay_s = first_delay_s, cap_delay_s
        self._bucket = TokenBucket(clock, rate=retries_per_s, burst=retries_burst)
        self._on_latency, self._on_work = on_latency, on_work
        self._queue: deque[_K] = deque()
        self._queued_since: dict[_K, float] = {}
        self._running: dict[_K, float] = {}
        self._delayed: list[tuple[float, int, _K]] = []
        self._due: dict[_K, float] = {}
        self._delay_count = 0
        self._failures: dict[_K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._drained = asyncio.Event()
        self._is_shut_down = False
        self.adds = 0
        """Keys that were queued, repeats not counted."""
        self.retries = 0
        """Keys that were requeued because their work failed."""

    @property
    def depth(self) -> int:
        """The number of queued keys."""
        self._move_due()
        return len(self._queue)

    @property
    def delayed(self) -> int:
        """The number of delayed keys."""
        self._move_due()
        return len(self._due)

    @property
    def running(self) -> int:
        """The number of keys that a worker has."""
        return len(self._running)

    @property
    def longest_running_s(self) -> float:
        """How long the slowest worker has had its key; 0 when all are idle."""
        now = self._clock.monotonic()
        return now - min(self._running.values(), default=now)

    @property
    def unfinished_s(self) -> float:
        """The total time that workers have had their present keys."""
        now = self._clock.monotonic()
        return sum(now - started for started in self._running.values())

    def observe(
        self, *, on_latency: Callable[[float], None], on_work: Callable[[float], None]
    ) -> None:
        """Report how long keys were queued, and how long their work took, from now on."""
        self._on_latency, self._on_work = on_latency, on_work

    def add(self, key: _K) -> None:
        """Queue the key, unless it is queued already."""
        self._move_due()
        self._enqueue(key, self._clock.monotonic())

    def add_after(self, key: _K, delay_s: float) -> None:
        """Queue the key after a delay; of several delays of one key the earliest counts.

        Work on the key before that time does not replace it.
        """
        if self._is_shut_down:
            return
        now = self._clock.monotonic()
        if delay_s <= 0:
            self._enqueue(key, now)
            return
        due = now + delay_s
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._delay_count += 1
        heapq.heappush(self._delayed, (due, self._delay_count, key))
        # A waiting worker must compute its timeout again.
        self._wake_one()

    def retry(self, key: _K, *, at_least_s: float = 0.0) -> float:
        """Requeue a key whose work failed; return the delay in seconds.

        That is the largest of the key's own delay, doubled by each failure until `forget`, the
        delay of the overall rate limit, and `at_least_s`.
        """
        self.retries += not self._is_shut_down
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        doubled = self._first_delay_s * 2.0 ** min(failures, _MAX_DOUBLINGS)
        delay_s = max(min(self._cap_delay_s, doubled), self._bucket.reserve(), at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: _K) -> None:
        """Reset the delay of a key whose work succeeded or was given up."""
        self._failures.pop(key, None)

    def failures(self, key: _K) -> int:
        """Return how often the key was retried since it was last forgotten."""
        return self._failures.get(key, 0)

    async def get(self) -> _K | None:
        """Wait for the next key and return it; the caller must call `done` with it.

        None means that the queue was shut down and is empty.
        """
        while True:
            self._move_due()
            if self._queue:
                return self._start(self._queue.popleft())
            if self._is_shut_down:
                return None
            await self._wait()

    def done(self, key: _K) -> None:
        """End the work on a key, successful or not; a key that no worker has is ignored."""
        started = self._running.pop(key, None)
        if started is None:
            return
        self._on_work(self._clock.monotonic() - started)
        if key in self._queued_since:
            self._queue.append(key)
            self._wake_one()
        self._check_drained()

    def shut_down(self) -> None:
        """Ignore new keys, drop delayed ones, and still return queued ones."""
        self._move_due()
        self._is_shut_down = True
        self._delayed.clear()
        self._due.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._check_drained()

    async def drain(self) -> None:
        """Shut down and wait until the workers have finished the queued keys."""
        self.shut_down()
        await self._drained.wait()

    def _enqueue(self, key: _K, since: float) -> None:
        if self._is_shut_down or key in self._queued_since:
            return
        self.adds += 1
        self._queued_since[key] = since
        if key not in self._running:
            self._queue.append(key)
            self._wake_one()

    def _start(self, key: _K) -> _K:
        now = self._clock.monotonic()
        self._on_latency(now - self._queued_since.pop(key))
        self._running[key] = now
        return key

    def _move_due(self) -> None:
        """Queue delayed keys that are due; they count as queued since then."""
        now = self._clock.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            # An entry that an earlier time replaced stays in the heap until it is due.
            if self._due.get(key) == due:
                del self._due[key]
                self._enqueue(key, due)

    async def _wait(self) -> None:
        """Return when there may be work: a key was added, or a delayed one is due."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        timeout = self._delayed[0][0] - self._clock.monotonic() if self._delayed else None
        try:
            await self._clock.wait_for(waiter, timeout)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # The wake-up of a cancelled worker must go to another one.
            if waiter.done() and not waiter.cancelled():
                self._wake_one()
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _check_drained(self) -> None:
        if self._is_shut_down and not self._queue and not self._running:
            self._drained.set()
