"""One ServiceState per Service, told of changes when it is asked for a plan.

Between syncs only the names of changed pods and slices are noted; a sync looks them up in the
caches, so that a state is never newer or older than what it was made from, and one change costs the
same however large the Service is. A state can be dropped at any time: it is made again from the
caches.
"""

from __future__ import annotations

from typing import NamedTuple

from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.workload import Pod
from keepclose.reconcile.caches import Caches
from keepclose.slices.changes import has_same_spec, is_managed_by
from keepclose.slices.service_planner import ServicePlanner
from keepclose.slices.settings import Cluster, Settings


class Refreshed(NamedTuple):
    """A state that is up to date, and which pods made it so.

    `is_new` says that `changed` holds all pods, and not only those noted since the last time.
    """

    state: ServicePlanner
    changed: list[Pod]
    gone: list[str]
    is_new: bool


class _Entry:
    __slots__ = ("cluster", "pods", "service", "slices", "state")

    def __init__(self, service: Service, state: ServicePlanner, cluster: Cluster) -> None:
        self.service = service
        self.state = state
        self.cluster = cluster
        self.pods: dict[NamespacedName, None] = {}
        self.slices: dict[str, None] = {}


class States:
    """The states of all Services that have been synced."""

    def __init__(self, caches: Caches, settings: Settings) -> None:
        self._caches = caches
        self._settings = settings
        self._entries: dict[NamespacedName, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note_pod(self, key: NamespacedName, source: NamespacedName) -> None:
        """Note that a pod may look different to a Service; one without a state needs no note."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.pods[source] = None

    def note_slice(self, key: NamespacedName, name: str) -> None:
        """Note that a slice of a Service was written or is gone."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.slices[name] = None

    def drop(self, key: NamespacedName) -> None:
        """Forget a state; the next sync makes it anew."""
        self._entries.pop(key, None)

    def refresh(self, service: Service, cluster: Cluster) -> Refreshed:
        """Return the state of a Service as the caches are now."""
        entry = self._entries.get(service.key)
        if entry is None or _selects_otherwise(entry.service, service):
            return self._make(service, cluster)
        if entry.service is not service:
            if not has_same_spec(entry.service, service):
                entry.state.set_service(service)
            entry.service = service
        if entry.cluster is not cluster:
            entry.state.set_cluster(cluster)
            entry.cluster = cluster
        self._take_slices(entry)
        changed, gone = self._take_pods(entry)
        return Refreshed(entry.state, changed, gone, is_new=False)

    def _make(self, service: Service, cluster: Cluster) -> Refreshed:
        state = ServicePlanner(service, cluster=cluster, settings=self._settings)
        slices = self._caches.slices_of(service.key, self._settings.managed_by)
        for piece in sorted(slices, key=lambda one: one.metadata.name):
            state.observe(piece)
        # NB: in the order of names, so that two controllers that start anew pack alike.
        pods = sorted(self._caches.selected(service), key=lambda pod: pod.metadata.name)
        for pod in pods:
            state.set_pod(pod)
        self._entries[service.key] = _Entry(service, state, cluster)
        return Refreshed(state, pods, [], is_new=True)

    def _take_slices(self, entry: _Entry) -> None:
        names, entry.slices = entry.slices, {}
        namespace, managed_by = entry.service.metadata.namespace, self._settings.managed_by
        for name in names:
            piece = self._caches.slices.get(NamespacedName(namespace, name))
            if (
                piece is not None
                and piece.service_key == entry.service.key
                and is_managed_by(piece, managed_by)
            ):
                entry.state.observe(piece)
            else:
                entry.state.forget(name)

    def _take_pods(self, entry: _Entry) -> tuple[list[Pod], list[str]]:
        sources, entry.pods = entry.pods, {}
        selector = entry.service.spec.selector or {}
        changed: list[Pod] = []
        gone: list[str] = []
        for source in sources:
            pod = self._caches.pods.get(source)
            if pod is not None and matches(selector, pod.metadata.labels):
                entry.state.set_pod(pod)
                changed.append(pod)
            else:
                entry.state.drop_pod(source)
                gone.append(source.name)
        return changed, gone


def _selects_otherwise(old: Service, new: Service) -> bool:
    return old.metadata.uid != new.metadata.uid or old.spec.selector != new.spec.selector
