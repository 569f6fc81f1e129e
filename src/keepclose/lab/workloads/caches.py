"""The caches of the workload controllers, and the handlers that turn their changes into keys.

Each kind has one reflector and one cache. An object belongs to the owner that controls it, by uid:
a later owner of the same name owns nothing of the former.

A key only names what to sync. A change of a pod concerns its controller, or the workloads that may
adopt it. A change of a node concerns every DaemonSet, but only if it affects scheduling, because
nodes report all the time. All pods without a node share one key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from keepclose.kube.cache import Cache, Index, Named
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import NODES
from keepclose.kube.watch.reflector import Reflector
from keepclose.kube.work_queue import WorkQueue
from keepclose.lab.workloads.pods import WORKLOAD_PODS, WorkloadPod, workload_owner_of
from keepclose.lab.workloads.types import (
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    DaemonSet,
    Deployment,
    ReplicaSet,
)
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node

_OWNER: Final = "owner"
_ORPHAN: Final = "orphan"
_NAMESPACE: Final = "namespace"
_WAITING: Final = "waiting"
_PENDING: Final = "pending"
_NODE: Final = "node"
_DEPLOYMENT: Final = "Deployment"
_REPLICA_SET: Final = "ReplicaSet"
_DAEMON_SET: Final = "DaemonSet"
NODE_INDEX: Final = "Node"
_POD_OWNERS: Final = (_REPLICA_SET, _DAEMON_SET)


class WorkloadCaches:
    """The caches of the workload controller, and the reflectors that fill them."""

    def __init__(self) -> None:
        self.nodes: Cache[Node] = Cache()
        self.deployments: Cache[Deployment] = Cache((Index(_NAMESPACE, _namespace_of),))
        self.replica_sets: Cache[ReplicaSet] = Cache(
            (
                Index(_NAMESPACE, _namespace_of),
                Index(_OWNER, _owner_of),
                Index(_ORPHAN, _orphan_in),
            )
        )
        self.daemon_sets: Cache[DaemonSet] = Cache((Index(_NAMESPACE, _namespace_of),))
        self.pods: Cache[WorkloadPod] = Cache(
            (
                Index(_OWNER, _owner_of),
                Index(_ORPHAN, _orphan_in),
                Index(_WAITING, lambda pod: (True,) if pod.awaits_node else ()),
                Index(_PENDING, lambda pod: (True,) if pod.is_pending else ()),
                Index(_NODE, lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()),
            )
        )

    def reflectors(self, client: Client, *, clock: Clock) -> tuple[Reflector[Any], ...]:
        """Return the reflectors that keep the caches up to date once they run."""
        return (
            Reflector(client, NODES, self.nodes, clock=clock),
            Reflector(client, WORKLOAD_PODS, self.pods, clock=clock),
            Reflector(client, REPLICA_SETS, self.replica_sets, clock=clock),
            Reflector(client, DEPLOYMENTS, self.deployments, clock=clock),
            Reflector(client, DAEMON_SETS, self.daemon_sets, clock=clock),
        )

    def pods_of(self, uid: str) -> list[WorkloadPod]:
        """Return the pods that an owner controls."""
        return self.pods.by_index(_OWNER, uid)

    def replica_sets_of(self, uid: str) -> list[ReplicaSet]:
        """Return the ReplicaSets that a Deployment controls."""
        return self.replica_sets.by_index(_OWNER, uid)

    def orphan_pods(self, namespace: str) -> list[WorkloadPod]:
        """Return the pods of a namespace without a controller."""
        return self.pods.by_index(_ORPHAN, namespace)

    def orphan_replica_sets(self, namespace: str) -> list[ReplicaSet]:
        """Return the ReplicaSets of a namespace without a controller."""
        return self.replica_sets.by_index(_ORPHAN, namespace)

    def deployments_in(self, namespace: str) -> list[Deployment]:
        """Return the Deployments of a namespace."""
        return self.deployments.by_index(_NAMESPACE, namespace)

    def pod_owners_in(self, namespace: str) -> list[ReplicaSet | DaemonSet]:
        """Return the workloads of a namespace that control pods."""
        return [
            *self.replica_sets.by_index(_NAMESPACE, namespace),
            *self.daemon_sets.by_index(_NAMESPACE, namespace),
        ]

    def pods_on(self, node: str) -> list[WorkloadPod]:
        """Return the pods that are bound to a node, which need not exist."""
        return self.pods.by_index(_NODE, node)

    def waiting_pods(self) -> list[WorkloadPod]:
        """Return the pods that wait for a node."""
        return self.pods.by_index(_WAITING, key=True)

    def pending_pods(self) -> list[WorkloadPod]:
        """Return the active pods that no kubelet runs yet, with a node or without."""
        return self.pods.by_index(_PENDING, key=True)


class WorkKey(NamedTuple):
    """What to sync: a workload by its kind, all waiting pods, or the pods of a node."""

    kind: str
    name: NamespacedName

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


WAITING: Final = WorkKey("Pod", NamespacedName("", ""))


class WorkloadEventHandlers:
    """Adds the keys of all workloads that a change of a cache concerns to the queue."""

    def __init__(self, caches: WorkloadCaches, queue: WorkQueue[WorkKey]) -> None:
        self._caches, self._queue = caches, queue

    def subscribe(self) -> None:
        """Subscribe to all caches."""
        self._caches.nodes.subscribe(self._on_node)
        self._caches.pods.subscribe(self._on_pod)
        self._caches.replica_sets.subscribe(self._on_replica_set)
        self._caches.deployments.subscribe(self._on_deployment)
        self._caches.daemon_sets.subscribe(self._on_daemon_set)

    def _on_deployment(self, old: Deployment | None, new: Deployment | None) -> None:
        del old
        if new is not None:
            self._queue.add(WorkKey(_DEPLOYMENT, new.metadata.key))

    def _on_daemon_set(self, old: DaemonSet | None, new: DaemonSet | None) -> None:
        del old
        if new is not None:
            self._queue.add(WorkKey(_DAEMON_SET, new.metadata.key))

    def _on_replica_set(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        if new is not None:
            self._queue.add(WorkKey(_REPLICA_SET, new.metadata.key))
            if workload_owner_of(new.metadata) is None:
                for deployment in self._caches.deployments_in(new.metadata.namespace):
                    if deployment.spec.selector and deployment.spec.selector.matches(
                        new.metadata.labels
                    ):
                        self._queue.add(WorkKey(_DEPLOYMENT, deployment.metadata.key))
        self._add_owners(old, new, (_DEPLOYMENT,))

    def _on_pod(self, old: WorkloadPod | None, new: WorkloadPod | None) -> None:
        self._add_owners(old, new, _POD_OWNERS)
        if new is not None and new.controller is None:
            for owner in self._caches.pod_owners_in(new.metadata.namespace):
                if owner.spec.selector and owner.spec.selector.matches(new.metadata.labels):
                    self._queue.add(WorkKey(owner.kind, owner.metadata.key))
        self._requeue_waiting_pods()
        if new is not None and new.spec.node_name:
            node = NamespacedName("", new.spec.node_name)
            if node not in self._caches.nodes:
                self._queue.add(WorkKey(NODE_INDEX, node))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if (
            old is not None
            and new is not None
            and _scheduling_fields(old) == _scheduling_fields(new)
        ):
            return
        for key in self._caches.daemon_sets:
            self._queue.add(WorkKey(_DAEMON_SET, key))
        self._requeue_waiting_pods()
        if old is not None and new is None:
            self._queue.add(WorkKey(NODE_INDEX, old.metadata.key))

    def _requeue_waiting_pods(self) -> None:
        if self._caches.waiting_pods():
            self._queue.add(WAITING)

    def _add_owners(self, old: Named | None, new: Named | None, kinds: tuple[str, ...]) -> None:
        for item in (old, new):
            owner = workload_owner_of(item.metadata) if item is not None else None
            if item is not None and owner is not None and owner.kind in kinds:
                key = NamespacedName(item.metadata.namespace, owner.name)
                self._queue.add(WorkKey(owner.kind, key))


def _namespace_of(item: Named) -> Iterable[str]:
    return (item.metadata.namespace,)


def _owner_of(item: Named) -> Iterable[str]:
    owner = workload_owner_of(item.metadata)
    return (owner.uid,) if owner else ()


def _orphan_in(item: Named) -> Iterable[str]:
    return () if workload_owner_of(item.metadata) else (item.metadata.namespace,)


def _scheduling_fields(node: Node) -> tuple[object, ...]:
    return (node.metadata.labels, node.spec.taints, node.spec.unschedulable, node.is_ready)
