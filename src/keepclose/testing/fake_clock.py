"""A clock that moves only when a test says so: hours of waiting take no time, in the same order.

Sleepers wake one by one in the order in which they are due, those due at the same moment in the
order in which they went to sleep, and before the next one wakes all that follows from the last has
happened. Nothing here sleeps; a test that waits for real time is told so instead of hanging.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")
_MAX_TURNS: Final = 20_000


class FakeClock:
    """Stands in for a Clock; both of its times are moved by hand."""

    def __init__(self, *, now: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._now = now
        self._monotonic = monotonic
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timers_made = 0

    def now(self) -> float:
        """Return the wall clock's time."""
        return self._now

    def monotonic(self) -> float:
        """Return the time that never goes back."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was moved that far; 0 and less only let others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            await self._add_timer(seconds)

    async def wait_for(self, awaitable: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109
        """Return what the awaitable gives, or cancel it and raise TimeoutError."""
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
        """How many waits have not ended yet."""
        return sum(not timer.done() for _, _, timer in self._timers)

    @property
    def next_due_in(self) -> float | None:
        """Seconds until the first sleeper wakes, None when nobody sleeps."""
        self._drop_dead_timers()
        return self._timers[0][0] - self._monotonic if self._timers else None

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, either way, as setting the time of a machine does."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Let the time pass, waking sleepers on the way and letting everything happen that can."""
        await self.run_until_idle()
        end = self._monotonic + seconds
        while await self._wake_next(end):
            pass
        self._move_to(end)
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Return when nothing can happen any more before the clock moves."""
        # NB: no public call tells whether other callbacks are ready; while this one runs, those
        # that are stand here. Loops in C have no such list, so tests need asyncio's own.
        ready = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009
        for _ in range(_MAX_TURNS):
            await asyncio.sleep(0)
            if not ready:
                return
        raise AssertionError("something runs on and on without waiting for the clock")

    async def run_until(self, condition: Callable[[], bool], *, within: float = 3600.0) -> None:
        """Move from sleeper to sleeper until the condition holds; fail when time runs out."""
        end = self._monotonic + within
        await self.run_until_idle()
        while not condition():
            if not await self._wake_next(end):
                raise AssertionError(f"did not come true within {within} s")

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
    """Cancel and wait for the end, whatever it is."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
