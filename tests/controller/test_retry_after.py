"""How hints that are removed again and again are set more and more rarely."""

from __future__ import annotations

from keepclose.model.meta import NamespacedName
from keepclose.reconcile.contention import MAX_S, ReapplyBackoff
from keepclose.testing.fake_clock import FakeClock

KEY = NamespacedName("default", "web")
OTHER = NamespacedName("default", "other")


async def test_each_loss_doubles_the_wait() -> None:
    """The waits grow to five minutes, for the Service alone that lost its hints."""
    clock = FakeClock()
    backoff = ReapplyBackoff(clock)
    waits = []
    for _ in range(11):
        waits.append(backoff.record_loss(KEY))
        assert backoff.left(KEY) == waits[-1]
        await clock.advance(waits[-1])
        assert backoff.left(KEY) == 0
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, MAX_S, MAX_S]
    assert backoff.left(OTHER) == 0


async def test_losses_during_a_wait_count_once() -> None:
    """Several slices of a Service that lose their hints at once are one loss."""
    clock = FakeClock()
    backoff = ReapplyBackoff(clock)
    assert [backoff.record_loss(KEY), backoff.record_loss(KEY)] == [1, 1]
    await clock.advance(0.25)
    assert backoff.record_loss(KEY) == 0.75


async def test_peace_forgets() -> None:
    """After a minute without a loss, or twice the last wait, the waits begin anew."""
    clock = FakeClock()
    backoff = ReapplyBackoff(clock)
    backoff.record_loss(KEY)
    await clock.advance(2)
    assert backoff.record_loss(KEY) == 2
    await clock.advance(2 + 60)
    assert backoff.record_loss(KEY) == 1
    backoff.forget(KEY)
    assert backoff.left(KEY) == 0
