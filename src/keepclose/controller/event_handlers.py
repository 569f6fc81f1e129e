"""From changes in the caches to keys in the queue.

Which Services a change concerns is said by `slices.changes` and `nodes`; this module only finds the
candidates, notes for each state what to look at again, and queues. A change that queues nothing is
noted all the same, so that the next sync sees the present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from keepclose.controller.own_writes import SliceNews
from keepclose.controller.service_planners import States
from keepclose.kube.clock import Clock
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.contention import Contention
from keepclose.reconcile.node_changes import NodeFacts, node_change
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.conditions import has_ours
from keepclose.slices.changes import (
    has_same_spec,
    is_managed_by,
    service_of,
    services_for_pod_change,
)
from keepclose.slices.trackers import SliceTracker

_Pair = tuple[str, str, str]
_EVERYTHING = ("", "")
_log = structlog.get_logger(__name__)


class PodLatencies:
    """Since when each Service has had a changed pod that no sync has looked at."""

    def __init__(self, clock: Clock, *, on_reached: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_reached = on_reached
        self._since: dict[NamespacedName, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def note(self, services: Iterable[NamespacedName]) -> None:
        """Note that a pod of these Services changed just now."""
        now = self._clock.monotonic()
        for key in services:
            self._since.setdefault(key, now)

    def take(self, service: NamespacedName) -> float | None:
        """Return since when pods have waited, and wait for the next; None when none has."""
        return self._since.pop(service, None)

    def end(self, service: NamespacedName, since: float, *, written: int, is_good: bool) -> None:
        """Say how the sync went that took the time."""
        if not is_good:
            # NB: what changed meanwhile is younger.
            self._since[service] = since
        elif written:
            self._on_reached(self._clock.monotonic() - since)

    def forget(self, service: NamespacedName) -> None:
        """Drop a Service that is gone."""
        self._since.pop(service, None)


class Matching:
    """All Services that have a selector, filed by it."""

    def __init__(self) -> None:
        self._buckets: dict[_Pair, dict[NamespacedName, Service]] = {}
        self._filed: dict[NamespacedName, _Pair] = {}

    def __len__(self) -> int:
        return len(self._filed)

    def change(self, old: Service | None, new: Service | None) -> None:
        """Take a Service that came, changed or went, as caches tell it."""
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
        found: list[Service] = []
        for key, value in (*labels.items(), _EVERYTHING):
            bucket = buckets.get((namespace, key, value))
            if bucket is not None:
                found += [
                    one for one in bucket.values() if matches(one.spec.selector or {}, labels)
                ]
        return found

    def _choose(self, namespace: str, selector: Mapping[str, str]) -> _Pair:
        pairs = [(namespace, key, value) for key, value in selector.items()]
        if not pairs:
            return (namespace, *_EVERYTHING)
        return min(pairs, key=lambda pair: (len(self._buckets.get(pair, ())), pair))

    def _remove(self, key: NamespacedName) -> None:
        pair = self._filed.pop(key, None)
        if pair is None:
            return
        bucket = self._buckets[pair]
        del bucket[key]
        if not bucket:
            del self._buckets[pair]


class Subscriptions:
    """Listens to the caches of one controller."""

    def __init__(
        self,
        caches: Caches,
        *,
        settings: ControllerSettings,
        queue: WorkQueue[NamespacedName],
        states: States,
        nodes: NodeFacts,
        tracker: SliceTracker,
        contention: Contention,
        latencies: PodLatencies | None = None,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._managed_by = settings.plan.managed_by
        self._queue = queue
        self._states = states
        self._nodes = nodes
        self._contention = contention
        self._latencies = latencies
        self.news = SliceNews(caches.slices, tracker, managed_by=self._managed_by)
        self.matching = Matching()
        self.by_shares: set[NamespacedName] = set()
        """Services to sync when the shares of the traffic change; syncs keep this up to date."""
        self.awaiting: set[NamespacedName] = set()
        """Services whose sync waits for the cache of slices to catch up."""

    def subscribe(self) -> None:
        """Hear of every change from now on, and of all that is in the caches already."""
        self._caches.services.subscribe(self.hear_service)
        self._caches.pods.subscribe(self.hear_pod)
        self._caches.nodes.subscribe(self.hear_node)
        self._caches.slices.subscribe(self.hear_slice)

    def hear_service(self, old: Service | None, new: Service | None) -> None:
        """Queue a Service, unless only parts of its status changed that are none of ours.

        Conditions of ours are looked at with the gate off too: they are to go then.
        """
        if old is not None and new is not None and has_same_spec(old, new):
            conditions = new.status.conditions
            if old.status.conditions != conditions and (
                self._settings.writes_conditions
                or has_ours(conditions, prefix=self._settings.plan.condition_prefix)
            ):
                self._queue.add(new.key)
            # NB: the candidates found later must be the present version all the same.
            self.matching.change(old, new)
            return
        self.matching.change(old, new)
        one = old if new is None else new
        if one is not None:
            self._queue.add(one.key)

    def hear_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Queue the Services that gain, lose or show the pod."""
        candidates: dict[NamespacedName, Service] = {}
        labels: dict[str, str] | None = None
        for pod in (old, new):
            if pod is not None and pod.metadata.labels != labels:
                labels = pod.metadata.labels
                for one in self.matching.services(pod.metadata.namespace, labels):
                    candidates[one.key] = one
        if not candidates:
            return
        pod = old if new is None else new
        if pod is not None:
            for key in candidates:
                self._states.note_pod(key, pod.key)
        keys = services_for_pod_change(candidates.values(), old=old, new=new)
        if self._latencies is not None:
            self._latencies.note(keys)
        self._queue_all(keys, self._settings.batch_s)

    def hear_node(self, old: Node | None, new: Node | None) -> None:
        """Queue the Services with pods on a node that moved, and those that depend on shares."""
        node = old if new is None else new
        change = node_change(old, new)
        if node is None or change.is_nothing:
            return
        self._nodes.invalidate()
        if change.moved:
            keys: set[NamespacedName] = set()
            for pod in self._caches.pods_on(node.name):
                meta = pod.metadata
                found = self.matching.services(meta.namespace, meta.labels)
                keys.update(one.key for one in found)
            self._queue_all(keys, 0.0)
        if change.shares:
            self._queue_all(self.by_shares, 0.0)

    def hear_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Queue the Services of a slice that somebody else wrote."""
        for piece in (old, new):
            if piece is not None and is_managed_by(piece, self._managed_by):
                key = service_of(piece)
                if key is None:
                    _log.warning("slice without a Service", slice=str(piece.metadata.key))
                    continue
                self._states.note_slice(key, piece.metadata.name)
                if key in self.awaiting:
                    self.awaiting.discard(key)
                    self._queue.add(key)
        keys = self.news.services(old, new)
        for key in keys:
            self._contention.note_foreign(key)
        self._queue_all(keys, self._settings.slice_batch_s)

    def end_writes(self, key: NamespacedName) -> None:
        """Note that the writes of a Service are answered; queue it if others wrote meanwhile."""
        if self.news.end_writes(key):
            self._contention.note_foreign(key)
            self._queue.add_after(key, self._settings.slice_batch_s)

    def _queue_all(self, keys: Iterable[NamespacedName], delay_s: float) -> None:
        for key in keys:
            self._queue.add_after(key, delay_s)
