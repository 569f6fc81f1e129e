"""Gauges of the controller: endpoints, slices, hints, and Services by traffic distribution.

Every gauge is a sum over Services. A sync only stores its plan; the sums are computed on a scrape,
or when many plans are stored, so that a sync does not pay for them. Gauges count both address
families of a dual-stack Service.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.routing.strategy import DistributionVerdict, Strategy
from keepclose.slices.service_planner import ServicePlan

# Plans hold slices in memory, so they are not stored without limit where nothing scrapes.
_MAX_STORED: Final = 32


class _Contribution(msgspec.Struct, frozen=True):
    """What one Service adds to the gauges."""

    endpoints: int
    slices: int
    desired_slices: int
    strategy: str
    hinted: int
    distribution: str
    # Endpoints with hints by slice; the slice is kept so that its id stays its own.
    counts: dict[int, tuple[EndpointSlice, int]]


class ServiceGauges(Collector):
    """The gauges of one controller."""

    def __init__(self, prefix: str, *, max_endpoints: int) -> None:
        self._prefix = prefix
        self._max_endpoints = max_endpoints
        self._stored: dict[NamespacedName, ServicePlan] = {}
        self._contributions: dict[NamespacedName, _Contribution] = {}
        self._endpoints = self._slices = self._desired = 0
        self._distributions: Tally[str] = Tally()
        self._hinted: Tally[str] = Tally()

    def record(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Store the newest plan of a Service."""
        self._stored[key] = plan
        if len(self._stored) > _MAX_STORED:
            self._update_sums()

    def forget(self, key: NamespacedName) -> None:
        """Stop counting a Service."""
        self._stored.pop(key, None)
        self._subtract(key)

    def collect(self) -> Iterator[Metric]:
        """Return the gauges as they are now."""
        self._update_sums()
        for name, text, value in (
            ("endpoints_desired", "Endpoints that should be in slices.", self._endpoints),
            ("num_endpoint_slices", "Slices that exist.", self._slices),
            (
                "desired_endpoint_slices",
                "Slices that would exist with perfect packing.",
                self._desired,
            ),
        ):
            yield GaugeMetricFamily(self._prefix + name, text, value=value)
        # NB: a label value that once existed stays, at 0.
        yield self._by(
            "services_count_by_traffic_distribution",
            "Services by the value that is in effect.",
            "traffic_distribution",
            self._distributions,
        )
        yield self._by(
            "endpoints_with_hints", "Endpoints with hints, by mechanism.", "result", self._hinted
        )

    def _by(self, name: str, text: str, label: str, numbers: Tally[str]) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, text, labels=(label,))
        for value, number in numbers.items():
            family.add_metric((value,), number)
        return family

    def _update_sums(self) -> None:
        stored, self._stored = self._stored, {}
        for key, plan in stored.items():
            self._set_contribution(key, plan)

    def _set_contribution(self, key: NamespacedName, plan: ServicePlan) -> None:
        before = self._subtract(key)
        slices = plan.slices
        # A slice that did not change is the same object, so its count is reused.
        old_counts = {} if before is None else before.counts
        counts = {
            id(endpoint_slice): old_counts.get(id(endpoint_slice))
            or (endpoint_slice, _count_hinted(endpoint_slice))
            for endpoint_slice in slices
        }
        contribution = self._contributions[key] = _Contribution(
            endpoints=sum(len(endpoint_slice.endpoints) for endpoint_slice in slices),
            slices=len(slices),
            desired_slices=desired_slices(slices, self._max_endpoints),
            strategy=plan.strategy.label,
            hinted=sum(hinted for _, hinted in counts.values()),
            counts=counts,
            distribution=distribution_in_effect(plan.strategy),
        )
        self._add(contribution, 1)

    def _subtract(self, key: NamespacedName) -> _Contribution | None:
        contribution = self._contributions.pop(key, None)
        if contribution is not None:
            self._add(contribution, -1)
        return contribution

    def _add(self, contribution: _Contribution, sign: int) -> None:
        self._endpoints += sign * contribution.endpoints
        self._slices += sign * contribution.slices
        self._desired += sign * contribution.desired_slices
        self._hinted[contribution.strategy] += sign * contribution.hinted
        if contribution.distribution:
            self._distributions[contribution.distribution] += sign


def distribution_in_effect(strategy: Strategy) -> str:
    """Return the trafficDistribution value in effect, "" where none is."""
    if strategy.distribution is not DistributionVerdict.GOVERNS:
        return ""
    return strategy.value


def desired_slices(slices: Iterable[EndpointSlice], max_endpoints: int) -> int:
    """Return how many slices perfect packing would need; at least one."""
    sizes: dict[tuple[object, ...], int] = {}
    for endpoint_slice in slices:
        key = (endpoint_slice.address_type, endpoint_slice.ports)
        sizes[key] = sizes.get(key, 0) + len(endpoint_slice.endpoints)
    return max(1, sum(-(-size // max_endpoints) for size in sizes.values()))


def _count_hinted(endpoint_slice: EndpointSlice) -> int:
    return sum(
        1
        for endpoint in endpoint_slice.endpoints
        if endpoint.hints is not None and (endpoint.hints.for_zones or endpoint.hints.for_nodes)
    )
