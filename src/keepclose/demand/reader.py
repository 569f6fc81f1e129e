"""Reads a source of demand again and again, beside the syncs of a program, and counts for metrics.

A reading that fails changes nothing: the shares stay until they are stale. Failures are logged once
each. Once the last reading is stale, the wait between attempts grows. Whatever a source answers,
the loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from keepclose.demand.sources import DemandReadError, DemandReading, DemandSource
from keepclose.demand.store import DemandStore
from keepclose.kube.clock import Clock
from keepclose.model.meta import NamespacedName
from keepclose.routing.demand import DemandBasis

READ_WITHIN_S: Final = 60.0
"""For one reading of a source, with all its agents."""
START_WITHIN_S: Final = 10.0
"""How long the first syncs of a program wait for the first reading."""
DEMAND_PAUSE_S: Final = 60.0
"""After a defect in the loop; syncs go on meanwhile."""
_MOST_PERIODS: Final = 8.0
"""The longest wait between attempts, in periods."""
_AT_ONCE: Final = 200
"""How many Services are decided before other work gets its turn."""
_log = structlog.get_logger(__name__)


class DemandReader:
    """The loop that keeps the demand of one program up to date."""

    def __init__(
        self, source: DemandSource, store: DemandStore, *, clock: Clock, period_s: float
    ) -> None:
        self._source = source
        self.store = store
        self._clock = clock
        self._period_s = period_s
        self._first = asyncio.Event()
        self._failures = 0
        self._said: tuple[str, ...] = ()
        self.readings = 0
        self.errors = 0

    async def run(self, on_changed: Callable[[NamespacedName], None]) -> None:
        """Read until cancelled; call `on_changed` for each Service to sync again."""
        wait_s = 0.0
        while True:
            if wait_s <= 0.0:
                reading = await self._read()
                if reading is not None:
                    self.store.receive(reading)
                wait_s = self._period_s * self._count_periods()
            # NB: also between attempts, because shares become stale with time.
            await self._advance(on_changed)
            self._first.set()
            await self._clock.sleep(self._period_s)
            wait_s -= self._period_s

    async def wait_for_first(self) -> None:
        """Return after the first reading, or when it takes too long.

        Without it, the first syncs after a restart would hint by CPU, and the next ones back.
        """
        with suppress(TimeoutError):
            await self._clock.wait_for(self._first.wait(), START_WITHIN_S)

    def _count_periods(self) -> float:
        """Return the periods until the next reading."""
        # NB: an outage that ends before the last reading is stale must change no shares, so its end
        # must be seen by then.
        if not self.store.is_stale:
            return 1.0
        return min(2.0 ** min(self._failures, 10), _MOST_PERIODS)

    async def _advance(self, on_changed: Callable[[NamespacedName], None]) -> None:
        keys = self.store.keys
        for start in range(0, len(keys), _AT_ONCE):
            changed = self.store.advance(keys[start : start + _AT_ONCE])
            for key in changed:
                on_changed(key)
            await asyncio.sleep(0)

    async def _read(self) -> DemandReading | None:
        try:
            reading = await self._clock.wait_for(self._source.read(), READ_WITHIN_S)
        except TimeoutError:
            self._fail(f"the source takes longer than {READ_WITHIN_S:.0f} s")
        except DemandReadError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - answers are untrusted, and syncs need no reading
            self._fail(f"{type(error).__name__}: {error}"[:500])
        else:
            if self._failures:
                _log.info("demand is read again")
            self._failures = 0
            self.readings += 1
            self._say(reading.notes)
            return reading
        return None

    def _fail(self, message: str) -> None:
        self._failures += 1
        self.errors += 1
        self._say((message,))

    def _say(self, messages: tuple[str, ...]) -> None:
        """Log what was not logged for the reading before."""
        for message in messages:
            if message not in self._said:
                _log.warning("demand not read completely", error=message)
        self._said = messages


class DemandMetrics(Collector):
    """The metrics of measured demand; they are computed when they are read."""

    def __init__(self, registry: CollectorRegistry, reader: DemandReader) -> None:
        self._reader = reader
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the metrics of now."""
        reader = self._reader
        counts = reader.store.count_by_basis()
        services = GaugeMetricFamily(
            "keepclose_demand_services",
            "Services of heuristics by the source of their traffic shares: measured, cpu, or stale "
            "where CPU counts because the measurement is too old.",
            labels=("source",),
        )
        for basis in DemandBasis:
            services.add_metric((basis.value,), counts[basis])
        yield services
        yield GaugeMetricFamily(
            "keepclose_demand_age_seconds",
            "Time since the last reading of demand was measured, infinite before the first.",
            value=reader.store.age_s,
        )
        yield CounterMetricFamily(
            "keepclose_demand_readings", "Readings of demand.", value=reader.readings
        )
        yield CounterMetricFamily(
            "keepclose_demand_read_errors",
            "Readings of demand that failed.",
            value=reader.errors,
        )
        yield CounterMetricFamily(
            "keepclose_demand_share_changes",
            "Changes of the measured shares of a Service, each of which queues it.",
            value=reader.store.changes,
        )
