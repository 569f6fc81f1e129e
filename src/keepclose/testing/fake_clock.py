"""A clock that only a test advances: hours of waiting take no time, and the order stays the same.

Sleepers wake one after the other in the order of their deadlines, with equal deadlines in the order
of their calls. Before the next sleeper wakes, the event loop runs until it is idle. Nothing here
sleeps; a test that waits for real time fails instead of hanging.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")
_MAX_TURNS: Final = 20_000


class FakeClock:
    """A Clock whose times the test sets."""

    def __init__(self, *, now: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._now = now
        self._monotonic = monotonic
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timers_made = 0

    def now(self) -> float:
        """Return the wall clock time, in seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Return the monotonic time, in seconds."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was advanced that far; 0 or less only yields to other tasks."""
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            await self._add_timer(seconds)

    async def wait_for(self, awaitable: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109
        """Return the result of the awaitable, or cancel it and raise TimeoutError."""
        if timeout is None:
            return await awaitable
        task = asyncio.ensure_future(awaitable)
        timer = self._add_timer(max(0.0, timeout))
        try:
            await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            await _cancel(task)
            raise TimeoutError
        except asyncio.CancelledError:
            await _cancel(task)
            raise
        finally:
            timer.cancel()

    @property
    def sleepers(self) -> int:
        """The number of waits that have not ended."""
        return sum(not timer.done() for _, _, timer in self._timers)

    @property
    def next_due_in(self) -> float | None:
        """Seconds until the first sleeper wakes, None without a sleeper."""
        self._drop_dead_timers()
        return self._timers[0][0] - self._monotonic if self._timers else None

    def jump(self, seconds: float) -> None:
        """Change the wall clock only, in either direction, as an administrator may."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Advance both times, wake sleepers on the way, and return when the loop is idle."""
        await self.run_until_idle()
        end = self._monotonic + seconds
        while await self._wake_next(end):
            pass
        self._move_to(end)
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Return when the event loop has nothing to run before the clock advances."""
        # NB: asyncio has no public call for this, so its private list of ready callbacks is read.
        # uvloop has no such list, so tests need asyncio's own loop.
        ready = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009
        for _ in range(_MAX_TURNS):
            await asyncio.sleep(0)
            if not ready:
                return
        raise AssertionError("a task runs on and on without waiting for the clock")

    async def run_until(self, condition: Callable[[], bool], *, within: float = 3600.0) -> None:
        """Advance from sleeper to sleeper until the condition holds; fail when time is up."""
        end = self._monotonic + within
        await self.run_until_idle()
        while not condition():
            if not await self._wake_next(end):
                raise AssertionError(f"the condition did not hold within {within} s")

    async def _wake_next(self, end: float) -> bool:
        self._drop_dead_timers()
        if not self._timers or self._timers[0][0] > end:
            return False
        due, _, timer = heapq.heappop(self._timers)
        self._move_to(due)
        timer.set_result(None)
        await self.run_until_idle()
        return True

    def _drop_dead_timers(self) -> None:
        while self._timers and self._timers[0][2].done():
            heapq.heappop(self._timers)

    def _add_timer(self, seconds: float) -> asyncio.Future[None]:
        timer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timers_made += 1
        heapq.heappush(self._timers, (self._monotonic + seconds, self._timers_made, timer))
        return timer

    def _move_to(self, monotonic: float) -> None:
        self._now += monotonic - self._monotonic
        self._monotonic = monotonic


async def _cancel(task: asyncio.Future[T]) -> None:
    """Cancel a task and wait for its end; its error is dropped."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
