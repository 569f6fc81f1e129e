"""The clock of tests: time passes by hand, in order, and completely."""

from __future__ import annotations

import asyncio

import pytest

from keepclose.testing.fake_clock import FakeClock


async def test_sleepers_wake_in_the_order_in_which_they_are_due() -> None:
    """Due time comes first, then who went to sleep first, each at its own time."""
    clock = FakeClock(monotonic=0.0)
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    for name, seconds in (("late", 5.0), ("first", 2.0), ("second", 2.0), ("now", 0.0)):
        asyncio.ensure_future(sleep(name, seconds))  # noqa: RUF006 - ends before the test
    await clock.advance(4.0)

    assert woken == [("now", 0.0), ("first", 2.0), ("second", 2.0)]
    assert clock.sleepers == 1
    assert clock.next_due_in == 1.0

    await clock.advance(1.0)

    assert woken[-1] == ("late", 5.0)
    assert clock.next_due_in is None


async def test_what_follows_from_a_wake_happens_before_the_next() -> None:
    """Somebody who sleeps again and again wakes in between others, at exact times."""
    clock = FakeClock(monotonic=0.0)
    woken: list[tuple[str, float]] = []

    async def tick(name: str, period: float) -> None:
        while True:
            await clock.sleep(period)
            woken.append((name, clock.monotonic()))

    tasks = [asyncio.ensure_future(tick("a", 2.0)), asyncio.ensure_future(tick("b", 3.0))]
    await clock.advance(6.0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert woken == [("a", 2.0), ("b", 3.0), ("a", 4.0), ("b", 6.0), ("a", 6.0)]


async def test_both_times_pass_but_only_the_wall_clock_jumps() -> None:
    """A jump changes the wall clock alone and wakes nobody."""
    clock = FakeClock(now=100.0, monotonic=5.0)
    sleeper = asyncio.ensure_future(clock.sleep(10.0))

    await clock.advance(1.0)
    clock.jump(-50.0)
    await clock.run_until_idle()

    assert (clock.now(), clock.monotonic()) == (51.0, 6.0)
    assert not sleeper.done()
    await clock.advance(9.0)
    assert sleeper.done()


async def test_wait_for_gives_the_result_or_cancels() -> None:
    """What is there in time comes through; what is not is cancelled and raises TimeoutError."""
    clock = FakeClock()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer() -> str:
        await clock.sleep(1.0)
        return "answer"

    in_time = asyncio.ensure_future(clock.wait_for(answer(), 2.0))
    too_late = asyncio.ensure_future(clock.wait_for(never, 2.0))
    patient = asyncio.ensure_future(clock.wait_for(answer(), None))
    await clock.advance(2.0)

    assert in_time.result() == "answer"
    assert patient.result() == "answer"
    with pytest.raises(TimeoutError):
        too_late.result()
    assert never.cancelled()
    assert clock.sleepers == 0


async def test_wait_for_lets_errors_and_cancelling_through() -> None:
    """An error is the caller's, and cancelling reaches the one waited for."""
    clock = FakeClock()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await clock.wait_for(fail(), 1.0)
    waiting = asyncio.ensure_future(clock.wait_for(never, 1.0))
    await clock.run_until_idle()
    waiting.cancel()
    await clock.run_until_idle()

    assert waiting.cancelled()
    assert never.cancelled()


async def test_run_until_moves_only_as_far_as_needed() -> None:
    """The clock stops at the wake that made the condition true, or says that it never did."""
    clock = FakeClock(monotonic=0.0)
    sleepers = [asyncio.ensure_future(clock.sleep(float(n))) for n in (1, 2, 3)]

    await clock.run_until(sleepers[1].done)

    assert clock.monotonic() == 2.0
    with pytest.raises(AssertionError, match="did not hold within 10"):
        await clock.run_until(lambda: False, within=10.0)
    assert sleepers[2].done()


async def test_running_in_circles_is_told() -> None:
    """A task that never waits fails the test instead of hanging it."""
    clock = FakeClock()

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - that is the mistake to be told
            await asyncio.sleep(0)

    task = asyncio.ensure_future(spin())
    with pytest.raises(AssertionError, match="without waiting for the clock"):
        await clock.run_until_idle()
    task.cancel()
    await asyncio.wait((task,))
