"""How much there is of everything: endpoints, slices, hints, and Services by what governs them.

Every gauge is a sum over Services. A plan is only taken note of; what it adds to the sums is worked
out when somebody looks, or when many plans wait, so that a sync does not pay for it. Gauges count
both families of a dual-stack Service.
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
from keepclose.routing.strategy import Strategy, Verdict
from keepclose.slices.service_planner import ServicePlan

# Plans hold slices, so they are not kept for ever where nobody looks.
_MOST_WAITING: Final = 32


class _Held(msgspec.Struct, frozen=True):
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
        self._waiting: dict[NamespacedName, ServicePlan] = {}
        self._held: dict[NamespacedName, _Held] = {}
        self._endpoints = self._slices = self._desired = 0
        self._distributions: Tally[str] = Tally()
        self._hinted: Tally[str] = Tally()

    def note(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Take what a Service is now."""
        self._waiting[key] = plan
        if len(self._waiting) > _MOST_WAITING:
            self._catch_up()

    def forget(self, key: NamespacedName) -> None:
        """Count a Service no more."""
        self._waiting.pop(key, None)
        self._release(key)

    def collect(self) -> Iterator[Metric]:
        """Return the gauges as they are now."""
        self._catch_up()
        for name, text, value in (
            ("endpoints_desired", "Endpoints that should be in slices.", self._endpoints),
            ("num_endpoint_slices", "Slices that there are.", self._slices),
            (
                "desired_endpoint_slices",
                "Slices that there would be with perfect packing.",
                self._desired,
            ),
        ):
            yield GaugeMetricFamily(self._prefix + name, text, value=value)
        # NB: a label that once existed stays, at 0.
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

    def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for key, plan in waiting.items():
            self._hold(key, plan)

    def _hold(self, key: NamespacedName, plan: ServicePlan) -> None:
        before = self._release(key)
        slices = plan.slices
        # A slice that did not change is the same object, and is not counted through again.
        known = {} if before is None else before.counts
        counts = {id(one): known.get(id(one)) or (one, _count_hinted(one)) for one in slices}
        held = self._held[key] = _Held(
            endpoints=sum(len(one.endpoints) for one in slices),
            slices=len(slices),
            desired_slices=desired_slices(slices, self._max_endpoints),
            strategy=plan.strategy.label,
            hinted=sum(hinted for _, hinted in counts.values()),
            counts=counts,
            distribution=distribution_in_effect(plan.strategy),
        )
        self._add(held, 1)

    def _release(self, key: NamespacedName) -> _Held | None:
        held = self._held.pop(key, None)
        if held is not None:
            self._add(held, -1)
        return held

    def _add(self, held: _Held, sign: int) -> None:
        self._endpoints += sign * held.endpoints
        self._slices += sign * held.slices
        self._desired += sign * held.desired_slices
        self._hinted[held.strategy] += sign * held.hinted
        if held.distribution:
            self._distributions[held.distribution] += sign


def distribution_in_effect(strategy: Strategy) -> str:
    """Return the trafficDistribution value that governs, or "" where none does."""
    if strategy.distribution is not Verdict.GOVERNS:
        return ""
    return strategy.value


def desired_slices(slices: Iterable[EndpointSlice], max_endpoints: int) -> int:
    """Return how many slices would do if they were packed anew; at least one."""
    sizes: dict[tuple[object, ...], int] = {}
    for one in slices:
        key = (one.address_type, one.ports)
        sizes[key] = sizes.get(key, 0) + len(one.endpoints)
    return max(1, sum(-(-size // max_endpoints) for size in sizes.values()))


def _count_hinted(one: EndpointSlice) -> int:
    return sum(
        1
        for endpoint in one.endpoints
        if endpoint.hints is not None and (endpoint.hints.for_zones or endpoint.hints.for_nodes)
    )
