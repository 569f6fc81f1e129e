"""The demand of the Services that ask for it, and the shares that follow from it.

A Service is tracked from the first time that its shares are asked for, so that others cost nothing.
The state is in memory alone: after a restart the first reading counts at once. Nothing here reads a
source or waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import NamedTuple

from keepclose.demand.sources import DemandReading
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.routing.demand import (
    DemandBasis,
    DemandDecision,
    DemandSample,
    DemandSettings,
    DemandState,
    decide_demand,
    read_demand_request,
)
from keepclose.routing.traffic_shares import Shares


class _Planned(NamedTuple):
    """What the shares of a Service come from, the measured ones, and why, as its condition says."""

    basis: DemandBasis
    shares: Mapping[str, float]
    why: str


class _Tracked(NamedTuple):
    state: DemandState
    basis: DemandBasis
    shares: Shares
    by_cpu: Shares
    """The shares by CPU of the last decision, to see whether it still holds."""
    reported: _Planned
    """What the last `advance` knew.

    Shares are also asked for by explanations and reviews of slices, after which the Service still
    needs a sync.
    """


class DemandStore:
    """The demand of all Services that ask for shares."""

    def __init__(
        self,
        settings: DemandSettings,
        *,
        source: str,
        by_cpu: Callable[[], Shares],
        now: Callable[[], float],
    ) -> None:
        """Take the settings; `by_cpu` returns the shares of the nodes, `now` a steady time."""
        self._settings = settings
        self._source = source
        self._by_cpu = by_cpu
        self._now = now
        self._tracked: dict[NamespacedName, _Tracked] = {}
        self._reading = DemandReading({})
        self._received_at = -inf
        self.changes = 0
        """How often measured shares, or what shares come from, changed in `advance`."""

    def __len__(self) -> int:
        return len(self._tracked)

    @property
    def keys(self) -> list[NamespacedName]:
        """The tracked Services."""
        return list(self._tracked)

    @property
    def age_s(self) -> float:
        """How long ago the last reading was measured; infinite before the first."""
        return self._now() - self._received_at + self._reading.age_s

    @property
    def is_stale(self) -> bool:
        """Whether the last reading is too old to plan with, or there was none."""
        return self.age_s > self._settings.stale_after_s

    def count_by_basis(self) -> Counter[DemandBasis]:
        """Return how many tracked Services have shares from which basis."""
        return Counter(tracked.basis for tracked in self._tracked.values())

    def shares_of(self, service: Service) -> Shares:
        """Return the shares to plan a Service with, and track it; by CPU if it says so."""
        is_measured, reasons = read_demand_request(service.metadata.annotations)
        if is_measured:
            shares = self._measured_shares(service.key)
            if not reasons:
                return shares
            return Shares(shares.by_zone, (*shares.reasons, *reasons), shares.basis)
        self.forget(service.key)
        by_cpu = self._by_cpu()
        return Shares(by_cpu.by_zone, (*reasons, *by_cpu.reasons), by_cpu.basis)

    def forget(self, key: NamespacedName) -> None:
        """Stop tracking a Service; an unknown one is ignored."""
        self._tracked.pop(key, None)

    def receive(self, reading: DemandReading) -> None:
        """Take a reading for the next `advance`."""
        self._reading = reading
        self._received_at = self._now()

    def advance(self, keys: Iterable[NamespacedName]) -> list[NamespacedName]:
        """Decide the shares of some Services again; return those whose shares or reason changed."""
        changed = []
        by_cpu = self._by_cpu()
        for key in keys:
            tracked = self._tracked.get(key)
            if tracked is None:
                continue
            decision = self._decide(tracked.state, self._sample_of(key), by_cpu)
            now = self._track(key, decision, by_cpu)
            if now != tracked.reported:
                changed.append(key)
                self.changes += now[:2] != tracked.reported[:2]
        return changed

    def _measured_shares(self, key: NamespacedName) -> Shares:
        by_cpu = self._by_cpu()
        tracked = self._tracked.get(key)
        if tracked is not None and tracked.by_cpu is by_cpu:
            # NB: the next `advance` sees what is stale, and names the Services that it changes.
            return tracked.shares
        state = DemandState() if tracked is None else tracked.state
        decision = self._decide(state, None if tracked else self._sample_of(key), by_cpu)
        self._track(key, decision, by_cpu, reported=tracked and tracked.reported)
        return decision.shares

    def _track(
        self,
        key: NamespacedName,
        decision: DemandDecision,
        by_cpu: Shares,
        *,
        reported: _Planned | None = None,
    ) -> _Planned:
        """Store a decision and what is reported of it, by default all; return what it decided."""
        why = decision.shares.reasons[0].message
        now = _Planned(decision.basis, decision.state.planned, why)
        self._tracked[key] = _Tracked(
            decision.state, decision.basis, decision.shares, by_cpu, reported or now
        )
        return now

    def _sample_of(self, key: NamespacedName) -> DemandSample | None:
        error = self._reading.rejected.get(key)
        if error is not None:
            return DemandSample(self._received_at, {}, age_s=self._reading.age_s, error=error)
        rates = self._reading.rates.get(key)
        if rates is None:
            return None
        reading = self._reading
        return DemandSample(
            self._received_at, rates, age_s=reading.age_s, period_s=reading.period_s
        )

    def _decide(
        self, state: DemandState, sample: DemandSample | None, by_cpu: Shares
    ) -> DemandDecision:
        return decide_demand(
            state,
            sample,
            now=self._now(),
            by_cpu=by_cpu,
            settings=self._settings,
            source=self._source,
        )
