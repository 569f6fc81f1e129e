"""Keys that wait to be worked on: each at most once in line, and never with two workers at once.

A key says only what to look at; the worker looks at the present state of it, so ten changes of one
object cost one visit. A key that is added while it is worked on is visited once more afterwards.
Failures come back after an exponential delay per key and an overall rate, as in the queues of the
EndpointSlice controller. There is no background task: those who wait for work watch the time.
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
_MOST_DOUBLINGS: Final = 60


def _ignore(_seconds: float) -> None:
    """Observe nothing."""


class WorkQueue(Generic[_K]):
    """A queue of keys for any number of workers in one event loop.

    Adding to a queue that was shut down does nothing.
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
        self._line: deque[_K] = deque()
        self._wanted: dict[_K, float] = {}
        self._running: dict[_K, float] = {}
        self._delayed: list[tuple[float, int, _K]] = []
        self._due: dict[_K, float] = {}
        self._delays_made = 0
        self._failures: dict[_K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._drained = asyncio.Event()
        self._is_shut_down = False
        self.adds = 0
        """Keys that came into the line, repeats not counted."""
        self.retries = 0
        """Keys that came back because their work failed."""

    @property
    def depth(self) -> int:
        """How many keys stand in line."""
        self._move_due()
        return len(self._line)

    @property
    def delayed(self) -> int:
        """How many keys wait for their time."""
        self._move_due()
        return len(self._due)

    @property
    def running(self) -> int:
        """How many keys are being worked on."""
        return len(self._running)

    @property
    def longest_running_s(self) -> float:
        """For how long the slowest worker has been at its key; 0 when all are idle."""
        now = self._clock.monotonic()
        return now - min(self._running.values(), default=now)

    @property
    def unfinished_s(self) -> float:
        """The time that all keys now worked on have taken together."""
        now = self._clock.monotonic()
        return sum(now - started for started in self._running.values())

    def observe(
        self, *, on_latency: Callable[[float], None], on_work: Callable[[float], None]
    ) -> None:
        """Tell from now on how long keys stood in line, and how long their work took."""
        self._on_latency, self._on_work = on_latency, on_work

    def add(self, key: _K) -> None:
        """Put the key in line, unless it stands there already."""
        self._move_due()
        self._want(key, self._clock.monotonic())

    def add_after(self, key: _K, delay_s: float) -> None:
        """Put the key in line later; of several times for one key the earliest counts.

        A visit before that time does not replace this one.
        """
        if self._is_shut_down:
            return
        now = self._clock.monotonic()
        if delay_s <= 0:
            self._want(key, now)
            return
        due = now + delay_s
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._delays_made += 1
        heapq.heappush(self._delayed, (due, self._delays_made, key))
        # One of those who wait must learn that it may have to wake earlier.
        self._wake_one()

    def retry(self, key: _K, *, at_least_s: float = 0.0) -> float:
        """Put a key back whose work failed; return after how many seconds it comes.

        That is the largest of the key's own delay, doubled by each failure until `forget`, of what
        the overall rate allows, and of what the caller was asked to wait.
        """
        self.retries += not self._is_shut_down
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        doubled = self._first_delay_s * 2.0 ** min(failures, _MOST_DOUBLINGS)
        delay_s = max(min(self._cap_delay_s, doubled), self._bucket.reserve(), at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: _K) -> None:
        """Start the key's delays anew; for one whose work succeeded or was given up."""
        self._failures.pop(key, None)

    def failures(self, key: _K) -> int:
        """Return how often the key was retried since it was last forgotten."""
        return self._failures.get(key, 0)

    async def get(self) -> _K | None:
        """Return the next key, which the caller hands back with `done`; wait until there is one.

        None means that the queue was shut down and nothing is left in line.
        """
        while True:
            self._move_due()
            if self._line:
                return self._start(self._line.popleft())
            if self._is_shut_down:
                return None
            await self._wait()

    def done(self, key: _K) -> None:
        """Say that the work on a key has ended, well or not; a key not being worked on is fine."""
        started = self._running.pop(key, None)
        if started is None:
            return
        self._on_work(self._clock.monotonic() - started)
        if key in self._wanted:
            self._line.append(key)
            self._wake_one()
        self._note_drained()

    def shut_down(self) -> None:
        """Take nothing more in, drop what is delayed, and still hand out what stands in line."""
        self._move_due()
        self._is_shut_down = True
        self._delayed.clear()
        self._due.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._note_drained()

    async def drain(self) -> None:
        """Shut down and return once the workers have finished what stood in line."""
        self.shut_down()
        await self._drained.wait()

    def _want(self, key: _K, since: float) -> None:
        if self._is_shut_down or key in self._wanted:
            return
        self.adds += 1
        self._wanted[key] = since
        if key not in self._running:
            self._line.append(key)
            self._wake_one()

    def _start(self, key: _K) -> _K:
        now = self._clock.monotonic()
        self._on_latency(now - self._wanted.pop(key))
        self._running[key] = now
        return key

    def _move_due(self) -> None:
        """Put in line what is due; it has stood there since it was due."""
        now = self._clock.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            # An entry that an earlier time replaced stays in the heap until it comes up.
            if self._due.get(key) == due:
                del self._due[key]
                self._want(key, due)

    async def _wait(self) -> None:
        """Return when there may be work: somebody added a key, or one is due."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        timeout = self._delayed[0][0] - self._clock.monotonic() if self._delayed else None
        try:
            await self._clock.wait_for(waiter, timeout)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # The call that woke this one must not be lost with it.
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

    def _note_drained(self) -> None:
        if self._is_shut_down and not self._line and not self._running:
            self._drained.set()
