"""The metrics of the controller, under the names, labels and buckets that dashboards already know.

The names are those of kube-controller-manager's EndpointSlice and EndpointSliceMirroring
controllers, with those that only drafts of KEP-2004 and KEP-2433 have; additional ones begin with
`keepclose_`. The gauges of mirroring are sums over the Endpoints objects that are mirrored now; an
object that is no longer mirrored is subtracted. Nothing here blocks or raises.
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
from keepclose.reconcile.instrumentation import MirroringObserver, Observer
from keepclose.routing.strategy import StrategyName
from keepclose.runtime.metrics_text import QueueMetrics, render_metrics
from keepclose.runtime.workers import Result
from keepclose.slices.mirroring import MAX_PER_SUBSET, MirrorPlan
from keepclose.slices.service_planner import ServicePlan

METRIC_PREFIX: Final = "endpoint_slice_controller_"
MIRRORING_PREFIX: Final = "endpoint_slice_mirroring_controller_"
_COUNT_BUCKETS: Final = tuple(float(2**power) for power in range(1, 16))
_MIRRORING_SECONDS_BUCKETS: Final = tuple(0.001 * 2**power for power in range(15))
_DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LATENCY_BUCKETS: Final = (0.001, 0.0025, *_DEFAULT_BUCKETS, 30.0, 60.0)
# Kubernetes names these counters without the suffix that Prometheus recommends.
_BARE: Final = (METRIC_PREFIX + "changes", METRIC_PREFIX + "syncs", MIRRORING_PREFIX + "changes")


class _Contribution(NamedTuple):
    """What one Endpoints object adds to the gauges of mirroring."""

    endpoints: int
    slices: int
    desired: int


_NOTHING: Final = _Contribution(0, 0, 0)


class MirroringMetrics(MirroringObserver):
    """The metrics of mirroring."""

    def __init__(self, registry: CollectorRegistry, *, max_per_subset: int) -> None:
        self._registry = registry
        self._max_per_subset = max_per_subset
        self._contributions: dict[NamespacedName, _Contribution] = {}
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
            "endpoints_sync_duration", "Time of a sync, in seconds.", _MIRRORING_SECONDS_BUCKETS
        )
        self._gauges = (
            self._gauge("endpoints_desired", "Endpoints that should be in mirrored slices."),
            self._gauge("num_endpoint_slices", "Mirrored slices that exist."),
            self._gauge(
                "desired_endpoint_slices",
                "Mirrored slices that would exist with perfect packing.",
            ),
        )
        self._changes = Counter(
            MIRRORING_PREFIX + "changes",
            "Writes of mirrored slices.",
            ("operation",),
            registry=registry,
        )

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Record the end of a sync and its duration."""
        del key, result
        self._seconds.observe(seconds)

    def mirrored(self, key: NamespacedName, mirrored: MirrorPlan) -> None:
        """Record the plan of a mirroring sync, before it is written."""
        if not mirrored.is_mirroring:
            self._set_contribution(key, _NOTHING)
            return
        plan = mirrored.plan
        self._skipped.observe(mirrored.skipped)
        self._added.observe(plan.added)
        self._updated.observe(mirrored.updated)
        self._removed.observe(plan.removed)
        slices = (*plan.create, *plan.update, *plan.unchanged)
        self._set_contribution(key, self._contribution_of(slices))

    def written(self, operation: str) -> None:
        """Record that the API server accepted a write."""
        self._changes.labels(operation).inc()

    def _contribution_of(self, slices: Iterable[EndpointSlice]) -> _Contribution:
        sizes = [len(endpoint_slice.endpoints) for endpoint_slice in slices]
        # NB: a mirrored slice holds all endpoints of an address family and set of ports.
        desired = sum(-(-size // self._max_per_subset) for size in sizes)
        return _Contribution(sum(sizes), len(sizes), desired)

    def _set_contribution(self, key: NamespacedName, contribution: _Contribution) -> None:
        before = self._contributions.pop(key, _NOTHING)
        if contribution != _NOTHING:
            self._contributions[key] = contribution
        for index, gauge in enumerate(self._gauges):
            self._sums[index] += contribution[index] - before[index]
            gauge.set(self._sums[index])

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...] = _COUNT_BUCKETS
    ) -> Histogram:
        return Histogram(MIRRORING_PREFIX + name, text, buckets=buckets, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(MIRRORING_PREFIX + name, text, registry=self._registry)


class ControllerMetrics(Observer):
    """The metrics of one controller, in a registry of their own."""

    def __init__(self, *, max_endpoints: int, max_per_subset: int = MAX_PER_SUBSET) -> None:
        self.registry = CollectorRegistry()
        self.queues = QueueMetrics(self.registry)
        self.mirroring = MirroringMetrics(self.registry, max_per_subset=max_per_subset)
        self._gauges = ServiceGauges(METRIC_PREFIX, max_endpoints=max_endpoints)
        self.registry.register(self._gauges)
        self._unfinished: dict[NamespacedName, ServicePlan] = {}
        """The plans of syncs that have not ended."""
        self._added = self._histogram(
            METRIC_PREFIX + "endpoints_added_per_sync",
            "Endpoints added in a sync, by address type.",
            _COUNT_BUCKETS,
        )
        self._removed = self._histogram(
            METRIC_PREFIX + "endpoints_removed_per_sync",
            "Endpoints removed in a sync, by address type.",
            _COUNT_BUCKETS,
        )
        self._reallocated = self._histogram(
            METRIC_PREFIX + "reallocated_endpoints_per_sync",
            "Endpoints that a sync moved from one zone to another.",
            _COUNT_BUCKETS,
        )
        self._changed = self._histogram(
            METRIC_PREFIX + "endpointslices_changed_per_sync",
            "Slices created, updated and deleted in a sync.",
            _DEFAULT_BUCKETS,
            ("topology", "traffic_distribution"),
        )
        self._approached = self._histogram(
            METRIC_PREFIX + "changes_endpointslices_per_sync",
            "Slices changed in a sync of a subsetted Service.",
            _DEFAULT_BUCKETS,
            ("approach",),
        )
        self._changes = self._counter(
            METRIC_PREFIX + "changes", "Writes of slices.", ("operation",)
        )
        self._syncs = self._counter(METRIC_PREFIX + "syncs", "Syncs of Services.", ("result",))
        self._seconds = self._histogram(
            "keepclose_sync_seconds", "Time of a sync.", _DEFAULT_BUCKETS
        )
        self._reached = self._histogram(
            "keepclose_pod_change_to_write_seconds",
            "Time from the event of a changed pod to the answer to the write of its slice.",
            _LATENCY_BUCKETS,
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
        """Record that writes of a Service are deferred because another controller reverts them."""
        del key
        self._contended.inc()

    def watch_contention(self, contention: Contention) -> None:
        """Export the number of contended Services."""
        self._contended_services.set_function(lambda: contention.services)

    def planned(self, key: NamespacedName, plan: ServicePlan) -> None:
        """Record a plan, before it is written."""
        self._unfinished[key] = plan
        for slice_plan in plan.plans.values():
            self._added.observe(slice_plan.added)
            self._removed.observe(slice_plan.removed)
        label = plan.strategy.label
        for reason in plan.reasons:
            self._decisions.labels(label, reason.code.value).inc()
        if plan.failure is not None:
            self._failures.labels(label, plan.failure.cause.value).inc()
        self._gauges.record(key, plan)

    def written(self, operation: str) -> None:
        """Record that the API server accepted a write."""
        self._changes.labels(operation).inc()

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Record the end of a sync; its changes count when every write succeeded."""
        self._syncs.labels(result.value).inc()
        self._seconds.observe(seconds)
        plan = self._unfinished.pop(key, None)
        if plan is None or result is not Result.SUCCESS:
            return
        strategy = plan.strategy
        auto = "Auto" if strategy.name is StrategyName.AUTO else "Disabled"
        changed = self._changed.labels(auto, distribution_in_effect(strategy))
        for slice_plan in plan.plans.values():
            # NB: slices withheld from a Service that is being deleted count as written.
            writes = (
                len(slice_plan.create)
                + len(slice_plan.update)
                + len(slice_plan.delete)
                + slice_plan.withheld
            )
            changed.observe(writes)
            if slice_plan.rehinted:
                self._rehinted.labels(strategy.label).inc(slice_plan.rehinted)
            if strategy.name is StrategyName.SUBSETTING:
                self._approached.labels(strategy.approach.value).observe(writes)
                self._reallocated.observe(slice_plan.reallocated)

    def reached(self, seconds: float) -> None:
        """Record the time from the change of a pod to its write."""
        self._reached.observe(seconds)

    def forgotten(self, key: NamespacedName) -> None:
        """Record that a Service was deleted."""
        self._unfinished.pop(key, None)
        self._gauges.forget(key)

    def watch_queue(self, name: str, queue: WorkQueue[NamespacedName]) -> None:
        """Export the metrics of a queue."""
        self.queues.watch(name, queue)

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return render_metrics(self.registry, bare=_BARE)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)
