"""How long pods wait until their change is in a slice."""

from __future__ import annotations

import pytest

from keepclose.controller.event_handlers import PodLatencies
from keepclose.model.meta import NamespacedName
from keepclose.testing.fake_clock import FakeClock

WEB, API = NamespacedName("default", "web"), NamespacedName("default", "api")


class Watched:
    """Latencies on a clock that is moved by hand, and what was told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[float] = []
        self.latencies = PodLatencies(self.clock, on_reached=self.told.append)

    async def sync(self, service: NamespacedName, *, written: int = 1, good: bool = True) -> None:
        """Take a Service up, write for half a second, and end."""
        since = self.latencies.take(service)
        await self.clock.advance(0.5)
        if since is not None:
            self.latencies.end(service, since, written=written, is_good=good)


@pytest.fixture
def watched() -> Watched:
    """Return latencies that are empty."""
    return Watched()


async def test_the_pod_that_waited_longest_counts(watched: Watched) -> None:
    """From the first news to the answered write, once a sync."""
    watched.latencies.record([WEB, API])
    await watched.clock.advance(2)
    watched.latencies.record([WEB])
    await watched.clock.advance(1)
    await watched.sync(WEB)
    await watched.sync(WEB)
    assert watched.told == pytest.approx([3.5])
    await watched.sync(API)
    assert watched.told == pytest.approx([3.5, 4.5])
    assert len(watched.latencies) == 0


async def test_a_sync_without_a_write_tells_nothing(watched: Watched) -> None:
    """A change that no slice shows ends there."""
    watched.latencies.record([WEB])
    await watched.sync(WEB, written=0)
    await watched.sync(WEB)
    assert watched.told == []


async def test_a_failed_sync_goes_on_with_the_time(watched: Watched) -> None:
    """The wait ends with the write that succeeds; news meanwhile does not shorten it."""
    watched.latencies.record([WEB])
    since = watched.latencies.take(WEB)
    assert since is not None
    await watched.clock.advance(1)
    watched.latencies.record([WEB])
    watched.latencies.end(WEB, since, written=1, is_good=False)
    await watched.clock.advance(1)
    await watched.sync(WEB)
    assert watched.told == pytest.approx([2.5])


async def test_a_service_that_is_gone_is_forgotten(watched: Watched) -> None:
    """Nothing is kept for it."""
    watched.latencies.record([WEB])
    watched.latencies.forget(WEB)
    watched.latencies.forget(API)
    assert watched.latencies.take(WEB) is None
