"""Which workloads to look at again when something changed.

A key only says what to look at. Changes of a pod concern its controller, or whoever may adopt it;
changes of a node concern every DaemonSet, but only if they are about what decides on places, since
nodes report all the time. Pods that wait for a node are all looked at together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keepclose.kube.cache import Named
from keepclose.kube.work_queue import WorkQueue
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.pods import WorkloadPod, controller_of
from keepclose.lab.workloads.types import DaemonSet, Deployment, ReplicaSet
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node

DEPLOYMENT: Final = "Deployment"
REPLICA_SET: Final = "ReplicaSet"
DAEMON_SET: Final = "DaemonSet"
NODE: Final = "Node"
_POD_OWNERS: Final = (REPLICA_SET, DAEMON_SET)


class WorkKey(NamedTuple):
    """A workload by its kind; the waiting pods together are one too, and the pods of a node."""

    kind: str
    name: NamespacedName


WAITING: Final = WorkKey("Pod", NamespacedName("", ""))


class WorkloadNews:
    """Turns changes of the caches into keys of the queue."""

    def __init__(self, caches: WorkloadCaches, queue: WorkQueue[WorkKey]) -> None:
        self._caches, self._queue = caches, queue

    def subscribe(self) -> None:
        """Follow the caches from now on."""
        self._caches.nodes.subscribe(self._node_changed)
        self._caches.pods.subscribe(self._pod_changed)
        self._caches.replica_sets.subscribe(self._replica_set_changed)
        self._caches.deployments.subscribe(self._deployment_changed)
        self._caches.daemon_sets.subscribe(self._daemon_set_changed)

    def _deployment_changed(self, old: Deployment | None, new: Deployment | None) -> None:
        del old
        if new is not None:
            self._queue.add(WorkKey(DEPLOYMENT, new.metadata.key))

    def _daemon_set_changed(self, old: DaemonSet | None, new: DaemonSet | None) -> None:
        del old
        if new is not None:
            self._queue.add(WorkKey(DAEMON_SET, new.metadata.key))

    def _replica_set_changed(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        if new is not None:
            self._queue.add(WorkKey(REPLICA_SET, new.metadata.key))
            if controller_of(new.metadata) is None:
                for one in self._caches.deployments_in(new.metadata.namespace):
                    if one.spec.selector and one.spec.selector.matches(new.metadata.labels):
                        self._queue.add(WorkKey(DEPLOYMENT, one.metadata.key))
        self._add_owners(old, new, (DEPLOYMENT,))

    def _pod_changed(self, old: WorkloadPod | None, new: WorkloadPod | None) -> None:
        self._add_owners(old, new, _POD_OWNERS)
        if new is not None and new.controller is None:
            for one in self._caches.pod_owners_in(new.metadata.namespace):
                if one.spec.selector and one.spec.selector.matches(new.metadata.labels):
                    self._queue.add(WorkKey(one.kind, one.metadata.key))
        self._look_for_places()
        if new is not None and new.spec.node_name:
            node = NamespacedName("", new.spec.node_name)
            if node not in self._caches.nodes:
                self._queue.add(WorkKey(NODE, node))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _decisive(old) == _decisive(new):
            return
        for key in self._caches.daemon_sets:
            self._queue.add(WorkKey(DAEMON_SET, key))
        self._look_for_places()
        if old is not None and new is None:
            self._queue.add(WorkKey(NODE, old.metadata.key))

    def _look_for_places(self) -> None:
        if self._caches.waiting_pods():
            self._queue.add(WAITING)

    def _add_owners(self, old: Named | None, new: Named | None, kinds: tuple[str, ...]) -> None:
        for one in (old, new):
            owner = controller_of(one.metadata) if one is not None else None
            if one is not None and owner is not None and owner.kind in kinds:
                key = NamespacedName(one.metadata.namespace, owner.name)
                self._queue.add(WorkKey(owner.kind, key))


def _decisive(node: Node) -> tuple[object, ...]:
    return (node.metadata.labels, node.spec.taints, node.spec.unschedulable, node.is_ready)
