"""Event handlers of the caches: they turn changes of objects into keys in the queue.

`slices.changes` and `reconcile.caches` decide which Services a change affects; this module
finds the candidates, marks what each planner must read again, and queues. A change that queues
nothing is still marked, so that the next sync sees current state.

An index by selector finds the Services that may select a pod without a look at all of them. Each
Service is filed under the pair of its selector that has the fewest other Services; a pod can be
selected only by Services filed under one of its labels, or by those with an empty selector.

Latencies run from the event of a changed pod to the answer to the last write of its sync. Of
several pods of a Service the oldest change counts. A sync without writes ends the measurement
silently; a failed one continues it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from keepclose.controller.own_writes import OwnWrites
from keepclose.controller.service_planners import ServicePlanners
from keepclose.kube.clock import Clock
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.contention import Contention
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.conditions import has_ours
from keepclose.slices.changes import (
    has_same_spec,
    is_managed_by,
    service_of,
    services_for_pod_change,
)
from keepclose.slices.node_changes import node_change

_Pair = tuple[str, str, str]
_EMPTY_SELECTOR = ("", "")
_log = structlog.get_logger(__name__)


class PodLatencies:
    """Since when each Service has had a changed pod that no sync has handled."""

    def __init__(self, clock: Clock, *, on_reached: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_reached = on_reached
        self._since: dict[NamespacedName, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def record(self, services: Iterable[NamespacedName]) -> None:
        """Record that a pod of these Services changed just now."""
        now = self._clock.monotonic()
        for key in services:
            self._since.setdefault(key, now)

    def take(self, service: NamespacedName) -> float | None:
        """Return and reset the time of the oldest pending change; None when there is none."""
        return self._since.pop(service, None)

    def end(self, service: NamespacedName, since: float, *, written: int, is_good: bool) -> None:
        """Record the result of the sync that took the time."""
        if not is_good:
            # NB: overwrites the time of changes that came meanwhile, which are newer.
            self._since[service] = since
        elif written:
            self._on_reached(self._clock.monotonic() - since)

    def forget(self, service: NamespacedName) -> None:
        """Drop a Service that is gone."""
        self._since.pop(service, None)


class SelectorIndex:
    """The Services that have a selector, indexed by one pair of it."""

    def __init__(self) -> None:
        self._buckets: dict[_Pair, dict[NamespacedName, Service]] = {}
        self._filed: dict[NamespacedName, _Pair] = {}

    def __len__(self) -> int:
        return len(self._filed)

    def change(self, old: Service | None, new: Service | None) -> None:
        """Index a Service that was created, changed or deleted."""
        if old is not None:
            self._remove(old.key)
        if new is None or new.spec.selector is None:
            return
        pair = self._choose(new.metadata.namespace, new.spec.selector)
        self._filed[new.key] = pair
        self._buckets.setdefault(pair, {})[new.key] = new

    def services(self, namespace: str, labels: Mapping[str, str]) -> list[Service]:
        """Return the Services of the namespace that select a pod with these labels."""
        buckets = self._buckets
        selecting: list[Service] = []
        for key, value in (*labels.items(), _EMPTY_SELECTOR):
            bucket = buckets.get((namespace, key, value))
            if bucket is not None:
                selecting += [
                    service
                    for service in bucket.values()
                    if matches(service.spec.selector or {}, labels)
                ]
        return selecting

    def _choose(self, namespace: str, selector: Mapping[str, str]) -> _Pair:
        pairs = [(namespace, key, value) for key, value in selector.items()]
        if not pairs:
            return (namespace, *_EMPTY_SELECTOR)
        return min(pairs, key=lambda pair: (len(self._buckets.get(pair, ())), pair))

    def _remove(self, key: NamespacedName) -> None:
        pair = self._filed.pop(key, None)
        if pair is None:
            return
        bucket = self._buckets[pair]
        del bucket[key]
        if not bucket:
            del self._buckets[pair]


class EventHandlers:
    """The handlers that one controller subscribes to its caches."""

    def __init__(
        self,
        caches: Caches,
        queue: WorkQueue[NamespacedName],
        planners: ServicePlanners,
        contention: Contention,
        latencies: PodLatencies,
        *,
        settings: ControllerSettings,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._managed_by = settings.plan.managed_by
        self._queue = queue
        self._planners = planners
        self._contention = contention
        self._latencies = latencies
        self.own_writes = OwnWrites(
            caches.slices,
            managed_by=self._managed_by,
            on_foreign=self._on_foreign_write,
            on_awaited=queue.add,
        )
        self.selector_index = SelectorIndex()

    def subscribe(self) -> None:
        """Receive the present content of the caches and every later change."""
        self._caches.services.subscribe(self.on_service)
        self._caches.pods.subscribe(self.on_pod)
        self._caches.nodes.subscribe(self.on_node)
        self._caches.slices.subscribe(self.on_slice)

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """Queue a Service, unless only status changed that this controller does not write.

        A change of its own conditions counts with the gate off too: the sync removes them then.
        """
        if old is not None and new is not None and has_same_spec(old, new):
            conditions = new.status.conditions
            if old.status.conditions != conditions and (
                self._settings.writes_conditions
                or has_ours(conditions, prefix=self._settings.plan.condition_prefix)
            ):
                self._queue.add(new.key)
            # NB: the index must hold the present version of every Service.
            self.selector_index.change(old, new)
            return
        self.selector_index.change(old, new)
        service = old if new is None else new
        if service is not None:
            self._queue.add(service.key)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Queue the Services whose endpoints the change affects."""
        candidates: dict[NamespacedName, Service] = {}
        labels: dict[str, str] | None = None
        for pod in (old, new):
            if pod is not None and pod.metadata.labels != labels:
                labels = pod.metadata.labels
                for service in self.selector_index.services(pod.metadata.namespace, labels):
                    candidates[service.key] = service
        if not candidates:
            return
        pod = old if new is None else new
        if pod is not None:
            for key in candidates:
                self._planners.mark_pod(key, pod.key)
        keys = services_for_pod_change(candidates.values(), old=old, new=new)
        self._latencies.record(keys)
        self._queue_all(keys, self._settings.batch_s)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Queue the Services with pods on a node whose zone changed, and those that use shares."""
        node = old if new is None else new
        change = node_change(old, new)
        if node is None or change.is_nothing:
            return
        self._planners.nodes.invalidate()
        if change.moved:
            keys: set[NamespacedName] = set()
            for pod in self._caches.pods_on(node.name):
                meta = pod.metadata
                services = self.selector_index.services(meta.namespace, meta.labels)
                keys.update(service.key for service in services)
            self._queue_all(keys, 0.0)
        if change.shares:
            self._queue_all(self._planners.by_shares, 0.0)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Queue the Services of a slice that another client wrote."""
        for endpoint_slice in (old, new):
            if endpoint_slice is not None and is_managed_by(endpoint_slice, self._managed_by):
                key = service_of(endpoint_slice)
                if key is None:
                    _log.warning(
                        "EndpointSlice has no Service label",
                        slice=str(endpoint_slice.metadata.key),
                    )
                    continue
                self._planners.mark_slice(key, endpoint_slice.metadata.name)
        self.own_writes.on_slice(old, new)

    def _on_foreign_write(self, key: NamespacedName) -> None:
        self._contention.record_foreign_write(key)
        self._queue.add_after(key, self._settings.slice_batch_s)

    def _queue_all(self, keys: Iterable[NamespacedName], delay_s: float) -> None:
        for key in keys:
            self._queue.add_after(key, delay_s)
