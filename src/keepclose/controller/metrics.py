"""What a controller counts, under the names, labels and buckets that dashboards already know.

The names are those of kube-controller-manager's EndpointSlice controller, the draft-only ones of
KEP-2004 and KEP-2433 among them; ours begin with `keepclose_`. What there is of everything, and
what queues and mirroring count, stands in modules of its own and on the same page. Nothing here
blocks or raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from keepclose.controller.service_gauges import ServiceGauges, distribution_in_effect
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.contention import Contention
from keepclose.routing.strategy import StrategyName
from keepclose.runtime.metrics_text import QueueMetrics, render_metrics
from keepclose.runtime.workers import Result
from keepclose.slices.mirroring import MAX_PER_SUBSET, Mirrored
from keepclose.slices.service_planner import ServicePlan

MIRRORING_PREFIX: Final = "endpoint_slice_mirroring_controller_"
_DOUBLING: Final = tuple(float(2**power) for power in range(1, 16))
_DURATIONS: Final = tuple(0.001 * 2**power for power in range(15))
METRIC_PREFIX: Final = "endpoint_slice_controller_"
_DEFAULT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_REACH: Final = (0.001, 0.0025, *_DEFAULT, 30.0, 60.0)
# Kubernetes names these without the ending that Prometheus wants for counters.
_BARE: Final = (METRIC_PREFIX + "changes", METRIC_PREFIX + "syncs", MIRRORING_PREFIX + "changes")


class _Held(NamedTuple):
    endpoints: int
    slices: int
    desired: int


_NOTHING: Final = _Held(0, 0, 0)


class MirroringMetrics:
    """The counters of mirroring; a MirroringObserver."""

    def __init__(self, registry: CollectorRegistry, *, max_per_subset: int) -> None:
        self._registry = registry
        self._max_per_subset = max_per_subset
        self._held: dict[NamespacedName, _Held] = {}
        self._sums = [0, 0, 0]
        self._added = self._histogram("endpoints_added_per_sync", "Endpoints added in a sync.")
        self._updated = self._histogram(
            "endpoints_updated_per_sync", "Endpoints changed in a sync."
        )
        self._removed = self._histogram(
            "endpoints_removed_per_sync", "Endpoints removed in a sync."
        )
        self._skipped = self._histogram(
            "addresses_skipped_per_sync", "Addresses left out of a sync, invalid or too many."
        )
        self._seconds = self._histogram(
            "endpoints_sync_duration", "Time of a sync, in seconds.", _DURATIONS
        )
        self._gauges = (
            self._gauge("endpoints_desired", "Endpoints that should be in mirrored slices."),
            self._gauge("num_endpoint_slices", "Mirrored slices that there are."),
            self._gauge(
                "desired_endpoint_slices",
                "Mirrored slices that there would be with perfect packing.",
            ),
        )
        self._changes = Counter(
            MIRRORING_PREFIX + "changes",
            "Writes of mirrored slices.",
            ("operation",),
            registry=registry,
        )

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Note the end of a sync and how long it took."""
        del key, result
        self._seconds.observe(seconds)

    def mirrored(self, key: NamespacedName, mirrored: Mirrored) -> None:
        """Note what mirroring asks for, before it is written."""
        if not mirrored.is_mirroring:
            self._hold(key, _NOTHING)
            return
        plan = mirrored.plan
        self._skipped.observe(mirrored.skipped)
        self._added.observe(plan.added)
        self._updated.observe(mirrored.updated)
        self._removed.observe(plan.removed)
        self._hold(key, self._count((*plan.create, *plan.update, *plan.unchanged)))

    def written(self, operation: str) -> None:
        """Note that the server took a write."""
        self._changes.labels(operation).inc()

    def _count(self, slices: Iterable[EndpointSlice]) -> _Held:
        sizes = [len(one.endpoints) for one in slices]
        # NB: a slice here is one address family and set of ports, all of it.
        desired = sum(-(-size // self._max_per_subset) for size in sizes)
        return _Held(sum(sizes), len(sizes), desired)

    def _hold(self, key: NamespacedName, held: _Held) -> None:
        before = self._held.pop(key, _NOTHING)
        if held != _NOTHING:
            self._held[key] = held
        for place, gauge in enumerate(self._gauges):
            self._sums[place] += held[place] - before[place]
            gauge.set(self._sums[place])

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _DOUBLING) -> Histogram:
        return Histogram(MIRRORING_PREFIX + name, text, buckets=buckets, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(MIRRORING_PREFIX + name, text, registry=self._registry)


class ControllerMetrics:
    """The counters of one controller, in a registry of their own; an Observer."""

    def __init__(self, *, max_endpoints: int, max_per_subset: int = MAX_PER_SUBSET) -> None:
        self.registry = CollectorRegistry()
        self.queues = QueueMetrics(self.registry)
        self.mirroring = MirroringMetrics(self.registry, max_per_subset=max_per_subset)
        self._gauges = ServiceGauges(METRIC_PREFIX, max_endpoints=max_endpoints)
        self.registry.register(self._gauges)
        self._open: dict[NamespacedName, ServicePlan] = {}
        self._added = self._histogram(
            METRIC_PREFIX + "endpoints_added_per_sync",
            "Endpoints added in a sync, by address type.",
            _DOUBLING,
        )
        self._removed = self._histogram(
            METRIC_PREFIX + "endpoints_removed_per_sync",
            "Endpoints removed in a sync, by address type.",
            _DOUBLING,
        )
        self._reallocated = self._histogram(
            METRIC_PREFIX + "reallocated_endpoints_per_sync",
            "Endpoints that a sync moved from one zone to another.",
            _DOUBLING,
        )
        self._changed = self._histogram(
            METRIC_PREFIX + "endpointslices_changed_per_sync",
            "Slices created, updated and deleted in a sync.",
            _DEFAULT,
            ("topology", "traffic_distribution"),
        )
        self._approached = self._histogram(
            METRIC_PREFIX + "changes_endpointslices_per_sync",
            "Slices changed in a sync of a subsetted Service.",
            _DEFAULT,
            ("approach",),
        )
        self._changes = self._counter(
            METRIC_PREFIX + "changes", "Writes of slices.", ("operation",)
        )
        self._syncs = self._counter(METRIC_PREFIX + "syncs", "Syncs of Services.", ("result",))
        self._seconds = self._histogram("keepclose_sync_seconds", "Time of a sync.", _DEFAULT)
        self._reached = self._histogram(
            "keepclose_pod_change_to_write_seconds",
            "Time from the first news of a changed pod to the answer to the write of its slice.",
            _REACH,
        )
        self._decisions = self._counter(
            "keepclose_decisions",
            "Plans by the mechanism that governs and by reason.",
            ("strategy", "reason"),
        )
        self._rehinted = self._counter(
            "keepclose_hint_changes",
            "Endpoints in slices that got other hints, by the mechanism that governs.",
            ("strategy",),
        )

        self._failures = self._counter(
            "keepclose_heuristic_failures",
            "Plans without hints because a custom heuristic failed, by its name and by cause.",
            ("heuristic", "cause"),
        )

        self._contended = self._counter(
            "keepclose_contended_syncs",
            "Syncs that left slices alone because another controller undoes what is written.",
            (),
        )
        self._contended_services = Gauge(
            "keepclose_contended_services",
            "Services whose slices another controller keeps changing.",
            registry=self.registry,
        )

    def contended(self, key: NamespacedName) -> None:
        """Note that writes of a Service are put off because another controller undoes them."""
        del key
        self._contended.inc()

    def watch_contention(self, contention: Contention) -> None:
        """Show how many Services are fought about."""
        self._contended_services.set_function(lambda: contention.services)

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Note a plan, before it is written."""
        self._open[key] = plan
        for one in plan.plans.values():
            self._added.observe(one.added)
            self._removed.observe(one.removed)
        label = plan.strategy.label
        for reason in plan.reasons:
            self._decisions.labels(label, reason.code.value).inc()
        if plan.failure is not None:
            self._failures.labels(label, plan.failure.cause.value).inc()
        self._gauges.note(key, plan)

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
        strategy = plan.strategy
        auto = "Auto" if strategy.name is StrategyName.AUTO else "Disabled"
        changed = self._changed.labels(auto, distribution_in_effect(strategy))
        for one in plan.plans.values():
            # NB: slices that a Service gets no more because it goes count as if they were written.
            writes = len(one.create) + len(one.update) + len(one.delete) + one.withheld
            changed.observe(writes)
            if one.rehinted:
                self._rehinted.labels(strategy.label).inc(one.rehinted)
            if strategy.name is StrategyName.SUBSETTING:
                self._approached.labels(strategy.approach.value).observe(writes)
                self._reallocated.observe(one.reallocated)

    def reached(self, seconds: float) -> None:
        """Note how long a change of a pod took until it was written."""
        self._reached.observe(seconds)

    def forgotten(self, key: NamespacedName) -> None:
        """Note that a Service is gone."""
        self._open.pop(key, None)
        self._gauges.forget(key)

    def watch_queue(self, name: str, queue: WorkQueue[NamespacedName]) -> None:
        """Show a queue."""
        self.queues.watch(name, queue)

    def page(self) -> bytes:
        """Return everything in the text format."""
        return render_metrics(self.registry, bare=_BARE)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)
