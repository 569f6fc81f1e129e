"""What has fallen silent is ended."""

from __future__ import annotations

import asyncio

import pytest

from keepclose.kube.watch.stream import Watchdog
from keepclose.testing.fake_clock import FakeClock


async def read(clock: FakeClock, dog: Watchdog, pauses: list[float]) -> None:
    """Hear something after each pause, then end."""
    for pause in pauses:
        await clock.sleep(pause)
        dog.reset()


@pytest.mark.parametrize(
    ("pauses", "want_ended", "want_at"),
    [
        pytest.param([69.0, 69.0, 69.0], True, 207.0, id="life before the limit goes on for long"),
        pytest.param([69.0, 71.0], False, 139.0, id="silence ends 70 s after the last sign"),
        pytest.param([100.0], False, 70.0, id="silence from the start ends after 70 s"),
        pytest.param([], True, 0.0, id="a reading that ends at once is no silence"),
    ],
)
async def test_silence_is_counted_from_the_last_sign(
    pauses: list[float], want_ended: bool, want_at: float
) -> None:
    """The guard ends exactly when patience does, or when the reading does."""
    clock = FakeClock(monotonic=0.0)
    dog = Watchdog(clock)
    guarding = asyncio.ensure_future(dog.guard(read(clock, dog, pauses), lambda: 70.0))

    await clock.run_until(guarding.done)

    assert guarding.result() is want_ended
    assert clock.monotonic() == want_at
    assert clock.sleepers == 0


async def test_errors_come_through() -> None:
    """What the reading raises is raised."""
    clock = FakeClock()

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Watchdog(clock).guard(fail(), lambda: 70.0)


async def test_cancelling_ends_the_reading() -> None:
    """When the guard is cancelled, the reading has ended before the guard has."""
    clock = FakeClock()
    has_ended = False

    async def hang() -> None:
        nonlocal has_ended
        try:
            await clock.sleep(1000.0)
        finally:
            await asyncio.sleep(0)
            has_ended = True

    guarding = asyncio.ensure_future(Watchdog(clock).guard(hang(), lambda: 70.0))
    await clock.run_until_idle()
    guarding.cancel()
    await asyncio.wait((guarding,))

    assert guarding.cancelled()
    assert has_ended


async def test_an_error_while_being_ended_is_swallowed() -> None:
    """A reading that fails because it was ended for its silence still counts as silent."""
    clock = FakeClock()

    async def stumble() -> None:
        try:
            await clock.sleep(1000.0)
        finally:
            raise ValueError("while closing")

    guarding = asyncio.ensure_future(Watchdog(clock).guard(stumble(), lambda: 70.0))
    await clock.advance(70.0)

    assert guarding.result() is False
