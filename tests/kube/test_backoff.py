"""Delays between attempts, and rates."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.kube.transport.retries import Backoff, TokenBucket
from keepclose.testing.fake_clock import FakeClock


class Extreme(Random):
    """Always draws the same end of what it is offered."""

    def __init__(self, part: float) -> None:
        super().__init__(0)
        self.part = part

    def uniform(self, a: float, b: float) -> float:
        """Return the chosen part of the way from a to b."""
        return a + self.part * (b - a)


@pytest.mark.parametrize(
    ("part", "want_delays"),
    [
        pytest.param(0.0, [0.8] * 8, id="the shortest delay is always 0.8 s"),
        pytest.param(
            1.0,
            [1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0],
            id="the longest delay doubles up to 30 s",
        ),
    ],
)
def test_the_window_of_delays(part: float, want_delays: list[float]) -> None:
    """Delays are drawn from a window that starts at 0.8 s and whose end doubles up to 30 s."""
    backoff = Backoff(FakeClock(), random=Extreme(part))

    delays = [backoff.next_delay() for _ in want_delays]

    assert delays == pytest.approx(want_delays)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(), failures=st.integers(1, 2000))
def test_no_delay_leaves_the_bounds(seed: int, failures: int) -> None:
    """However many failures there were, the next delay is between 0.8 and 30 s."""
    backoff = Backoff(FakeClock(), random=Random(seed))
    backoff.failures = failures

    assert 0.8 <= backoff.next_delay() <= 30.0


def test_delays_use_the_whole_window() -> None:
    """With full jitter, delays late in a row come from all parts of the window."""
    backoff = Backoff(FakeClock(), random=Random(1))
    backoff.failures = 20

    delays = [backoff.next_delay() for _ in range(400)]

    assert min(delays) < 2.0
    assert max(delays) > 28.0
    assert 14.0 < sum(delays) / len(delays) < 17.0


def test_a_server_that_names_a_time_is_obeyed() -> None:
    """The wait is never shorter than asked for, nor than the delay that is due anyway."""
    backoff = Backoff(FakeClock(), random=Extreme(1.0))

    assert backoff.next_delay(retry_after=120.0) == 120.0
    assert backoff.next_delay(retry_after=1.0) == 3.2
    assert backoff.next_delay(retry_after=0.0) == 6.4


@pytest.mark.parametrize(
    ("signs", "want_failures"),
    [
        pytest.param([0.0, 60.0], 1, id="a healthy minute starts the delays anew"),
        pytest.param([0.0, 59.0], 4, id="less than a minute does not"),
        pytest.param([0.0], 4, id="one sign of life is no minute"),
        pytest.param([], 4, id="silence is not health"),
        pytest.param([100.0, 159.0], 4, id="the minute begins with the first sign of life"),
        pytest.param([0.0, 30.0, 600.0], 1, id="ten minutes are a minute too"),
    ],
)
async def test_a_healthy_minute_is_forgiving(signs: list[float], want_failures: int) -> None:
    """Only a minute between the first and the last sign of life wipes out earlier failures."""
    clock = FakeClock(monotonic=0.0)
    backoff = Backoff(clock, random=Random(0))
    for _ in range(3):
        backoff.next_delay()

    for sign in signs:
        await clock.advance(sign - clock.monotonic())
        backoff.note_life()
    await clock.advance(1000.0)
    backoff.next_delay()

    assert backoff.failures == want_failures


async def test_health_does_not_add_up_over_failures() -> None:
    """Two half minutes with a failure between them are no healthy minute."""
    clock = FakeClock()
    backoff = Backoff(clock, random=Random(0))

    for _ in range(4):
        backoff.note_life()
        await clock.advance(40.0)
        backoff.note_life()
        backoff.next_delay()

    assert backoff.failures == 4


async def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    """Tokens are there at once up to the burst, then one by one, and never more than the burst."""
    clock = FakeClock()
    bucket = TokenBucket(clock, rate=0.5, burst=3)

    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    await clock.advance(1.0)
    assert not bucket.take()
    await clock.advance(1.0)
    assert [bucket.take(), bucket.take()] == [True, False]
    await clock.advance(1000.0)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


async def test_reserved_tokens_queue_up() -> None:
    """Each reservation beyond the burst is due one period after the one before."""
    clock = FakeClock()
    bucket = TokenBucket(clock, rate=10.0, burst=2)

    assert [bucket.reserve() for _ in range(4)] == pytest.approx([0.0, 0.0, 0.1, 0.2])
    await clock.advance(0.1)
    assert bucket.reserve() == pytest.approx(0.2)
