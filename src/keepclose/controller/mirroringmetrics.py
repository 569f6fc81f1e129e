"""What mirroring counts, under the names and buckets of Kubernetes' mirroring controller.

Gauges are sums over the Endpoints objects that are mirrored now; one that is not mirrored any more
takes its part away. Nothing here blocks or raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.instrumentation import Result
from keepclose.slices.mirroring import Mirrored

MIRRORING_PREFIX: Final = "endpoint_slice_mirroring_controller_"
DOUBLING: Final = tuple(float(2**power) for power in range(1, 16))
_DURATIONS: Final = tuple(0.001 * 2**power for power in range(15))


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

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = DOUBLING) -> Histogram:
        return Histogram(MIRRORING_PREFIX + name, text, buckets=buckets, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(MIRRORING_PREFIX + name, text, registry=self._registry)
