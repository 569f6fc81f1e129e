"""What a controller counts, under the names, labels and buckets that dashboards already know.

The names are those of kube-controller-manager's EndpointSlice controller, the draft-only ones of
KEP-2004 and KEP-2433 among them; ours begin with `keepclose_`. Gauges are kept by Service and
address type, so that a dual-stack Service counts with both. Nothing here blocks or raises.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from keepclose.controller.observation import Result
from keepclose.model.endpointslice import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.routing.strategy import Strategy, StrategyName, Verdict
from keepclose.slices.packing import SlicePlan
from keepclose.slices.servicestate import ServicePlan

PREFIX: Final = "endpoint_slice_controller_"
_DOUBLING: Final = tuple(float(2**power) for power in range(1, 16))
_DEFAULT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Held(msgspec.Struct, frozen=True):
    """What one Service adds to the gauges."""

    endpoints: int
    slices: int
    desired_slices: int
    hinted: dict[str, int]
    distribution: str
    # Endpoints with hints by slice; the slice is kept so that its id stays its own.
    counts: dict[int, tuple[EndpointSlice, int]]


class Metrics:
    """The counters of one controller, in a registry of their own; an Observer."""

    def __init__(self, *, max_endpoints: int) -> None:
        self.registry = CollectorRegistry()
        self._max_endpoints = max_endpoints
        self._held: dict[NamespacedName, _Held] = {}
        self._open: dict[NamespacedName, ServicePlan] = {}
        self._sums = {"endpoints": 0, "slices": 0, "desired_slices": 0}
        self._distributions: Tally[str] = Tally()
        self._hinted: Tally[str] = Tally()
        self._added = self._histogram("endpoints_added_per_sync", _DOUBLING)
        self._removed = self._histogram("endpoints_removed_per_sync", _DOUBLING)
        self._reallocated = self._histogram("reallocated_endpoints_per_sync", _DOUBLING)
        self._changed = self._histogram(
            "endpointslices_changed_per_sync", _DEFAULT, ("topology", "traffic_distribution")
        )
        self._approached = self._histogram(
            "changes_endpointslices_per_sync", _DEFAULT, ("approach",)
        )
        self._endpoints = self._gauge("endpoints_desired")
        self._slices = self._gauge("num_endpoint_slices")
        self._desired = self._gauge("desired_endpoint_slices")
        self._with_hints = self._gauge("endpoints_with_hints", ("result",))
        self._by_distribution = self._gauge(
            "services_count_by_traffic_distribution", ("traffic_distribution",)
        )
        self._changes = self._counter("changes", ("operation",))
        self._syncs = self._counter("syncs", ("result",))
        self._seconds = Histogram(
            "keepclose_sync_seconds", "Time of a sync.", buckets=_DEFAULT, registry=self.registry
        )
        self._decisions = Counter(
            "keepclose_decisions",
            "Plans by the mechanism that governs and by reason.",
            ("strategy", "reason"),
            registry=self.registry,
        )

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Note a plan, before it is written."""
        self._open[key] = plan
        for one in plan.plans.values():
            self._added.observe(one.added)
            self._removed.observe(one.removed)
        label = plan.strategy.label
        for reason in plan.reasons:
            self._decisions.labels(label, reason.code.value).inc()
        self._hold(key, plan)

    def written(self, operation: str) -> None:
        """Note that the server took a write."""
        self._changes.labels(operation).inc()

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Note the end of a sync; what it changed counts when everything was written."""
        self._syncs.labels(result.value).inc()
        self._seconds.observe(seconds)
        plan = self._open.pop(key, None)
        if plan is None or result is not Result.SUCCESS:
            return
        auto = "Auto" if plan.strategy.name is StrategyName.AUTO else "Disabled"
        distribution = distribution_in_effect(plan.strategy)
        for one in plan.plans.values():
            writes = len(one.create) + len(one.update) + len(one.delete)
            self._changed.labels(auto, distribution).observe(writes)
            if plan.strategy.name is StrategyName.SUBSETTING:
                self._approached.labels(plan.strategy.approach.value).observe(writes)
                self._reallocated.observe(_moved(one))

    def forgotten(self, key: NamespacedName) -> None:
        """Note that a Service is gone."""
        self._open.pop(key, None)
        self._release(key)
        self._show()

    def page(self) -> bytes:
        """Return everything in the text format."""
        return generate_latest(self.registry)

    def _hold(self, key: NamespacedName, plan: ServicePlan) -> None:
        before = self._held.get(key)
        self._release(key)
        slices = plan.slices
        # A slice that did not change is the same object, and is not counted through again.
        known = {} if before is None else before.counts
        counts = {id(one): known.get(id(one)) or (one, _count_hinted(one)) for one in slices}
        held = _Held(
            endpoints=sum(len(one.endpoints) for one in slices),
            slices=len(slices),
            desired_slices=desired_slices(slices, self._max_endpoints),
            hinted={plan.strategy.label: sum(hinted for _, hinted in counts.values())},
            counts=counts,
            distribution=distribution_in_effect(plan.strategy),
        )
        self._held[key] = held
        self._sums["endpoints"] += held.endpoints
        self._sums["slices"] += held.slices
        self._sums["desired_slices"] += held.desired_slices
        self._hinted.update(held.hinted)
        if held.distribution:
            self._distributions[held.distribution] += 1
        self._show()

    def _release(self, key: NamespacedName) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        self._sums["endpoints"] -= held.endpoints
        self._sums["slices"] -= held.slices
        self._sums["desired_slices"] -= held.desired_slices
        self._hinted.subtract(held.hinted)
        if held.distribution:
            self._distributions[held.distribution] -= 1

    def _show(self) -> None:
        self._endpoints.set(self._sums["endpoints"])
        self._slices.set(self._sums["slices"])
        self._desired.set(self._sums["desired_slices"])
        # NB: a value that once existed stays, at 0.
        for value, number in self._distributions.items():
            self._by_distribution.labels(value).set(number)
        for value, number in self._hinted.items():
            self._with_hints.labels(value).set(number)

    def _histogram(
        self, name: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        text = _HELP[name]
        return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(PREFIX + name, _HELP[name], labels, registry=self.registry)

    def _counter(self, name: str, labels: tuple[str, ...]) -> Counter:
        return Counter(PREFIX + name, _HELP[name], labels, registry=self.registry)


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


def _moved(plan: SlicePlan) -> int:
    """Return how many endpoints come to other slices: those that are added beyond the new."""
    return min(plan.added, plan.removed)


_HELP: Final = {
    "endpoints_added_per_sync": "Endpoints added in a sync, by address type.",
    "endpoints_removed_per_sync": "Endpoints removed in a sync, by address type.",
    "reallocated_endpoints_per_sync": "Endpoints that a sync moved to other subsets.",
    "endpointslices_changed_per_sync": "Slices created, updated and deleted in a sync.",
    "changes_endpointslices_per_sync": "Slices changed in a sync of a subsetted Service.",
    "endpoints_desired": "Endpoints that should be in slices.",
    "num_endpoint_slices": "Slices that there are.",
    "desired_endpoint_slices": "Slices that there would be with perfect packing.",
    "endpoints_with_hints": "Endpoints with hints, by mechanism.",
    "services_count_by_traffic_distribution": "Services by the value that is in effect.",
    "changes": "Writes of slices.",
    "syncs": "Syncs of Services.",
}
