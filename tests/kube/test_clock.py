"""Tests of the machine's clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from keepclose.kube.clock import Clock, SystemClock


async def test_the_clock_reads_the_machine_s_times() -> None:
    """Wall and monotonic time are those of the machine."""
    clock: Clock = SystemClock()
    assert abs(clock.now() - time.time()) < 5
    assert abs(clock.monotonic() - time.monotonic()) < 5


async def test_sleeping_takes_at_least_that_long() -> None:
    """A sleep ends after its time, and one of a negative time at once."""
    clock = SystemClock()
    started = time.monotonic()
    await clock.sleep(-5)
    await clock.sleep(0.01)
    assert 0.009 < time.monotonic() - started < 4


async def test_waiting_gives_the_result() -> None:
    """What the awaitable returns is returned, with a limit and without."""
    clock = SystemClock()

    async def answer() -> int:
        return 42

    assert await clock.wait_for(answer(), 5) == 42
    assert await clock.wait_for(answer(), None) == 42


async def test_waiting_too_long_cancels_and_raises() -> None:
    """When the time is over the awaitable is cancelled and TimeoutError raised."""
    ended: list[str] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        await SystemClock().wait_for(never(), 0.01)
    assert ended == ["cancelled"]
