"""What the API server has of workloads, as last seen, found by owner and by what waits.

Each kind has one reflector and one cache. An object counts for the owner that controls it, by uid:
one of the same name that came later owns nothing of the former.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from keepclose.kube.cache import Cache, Index, Named
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import NODES
from keepclose.kube.watch.reflector import Reflector
from keepclose.lab.workloads.pods import PODS, WorkloadPod, controller_of
from keepclose.lab.workloads.types import (
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    DaemonSet,
    Deployment,
    ReplicaSet,
)
from keepclose.model.workload import Node

_OWNER: Final = "owner"
_ORPHAN: Final = "orphan"
_NAMESPACE: Final = "namespace"
_WAITING: Final = "waiting"
_PENDING: Final = "pending"
_NODE: Final = "node"


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
            Reflector(client, PODS, self.pods, clock=clock),
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
        """Return the pods of a namespace that nobody controls."""
        return self.pods.by_index(_ORPHAN, namespace)

    def orphan_replica_sets(self, namespace: str) -> list[ReplicaSet]:
        """Return the ReplicaSets of a namespace that nobody controls."""
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
        """Return the pods that no kubelet runs yet, with a node or without."""
        return self.pods.by_index(_PENDING, key=True)


def _namespace_of(one: Named) -> Iterable[str]:
    return (one.metadata.namespace,)


def _owner_of(one: Named) -> Iterable[str]:
    owner = controller_of(one.metadata)
    return (owner.uid,) if owner else ()


def _orphan_in(one: Named) -> Iterable[str]:
    return () if controller_of(one.metadata) else (one.metadata.namespace,)
