"""The caches of the lab: one reflector and one cache for each kind, shared by all its components.

Kubelets, workload controllers and the scheduler run in one process, read the same caches and
subscribe to them. An object belongs to the owner that controls it, by uid: a later owner of the
same name owns nothing of the former.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from keepclose.kube.cache import Cache, Index, Named
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import NODES
from keepclose.kube.watch.reflector import Reflector
from keepclose.lab.kinds import DAEMON_SETS, DEPLOYMENTS, LAB_PODS, REPLICA_SETS
from keepclose.model.workload import Node
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import DaemonSet, Deployment, ReplicaSet, workload_owner_of
from keepclose.runtime.program import run_parts

_OWNER: Final = "owner"
_ORPHAN: Final = "orphan"
_NAMESPACE: Final = "namespace"
_WAITING: Final = "waiting"
_PENDING: Final = "pending"
_NODE: Final = "node"


class LabCaches:
    """All objects that the lab watches; run it once."""

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
        self.synced = asyncio.Event()
        """Set once all caches have synced."""

    async def run(self, client: Client, *, clock: Clock) -> None:
        """Keep the caches up to date until cancelled; only unusable settings end it earlier."""
        reflectors: tuple[Reflector[Any], ...] = (
            Reflector(client, NODES, self.nodes, clock=clock),
            Reflector(client, LAB_PODS, self.pods, clock=clock),
            Reflector(client, REPLICA_SETS, self.replica_sets, clock=clock),
            Reflector(client, DEPLOYMENTS, self.deployments, clock=clock),
            Reflector(client, DAEMON_SETS, self.daemon_sets, clock=clock),
        )

        async def report_synced() -> None:
            for reflector in reflectors:
                await reflector.synced.wait()
            self.synced.set()

        await run_parts((*(reflector.run() for reflector in reflectors), report_synced()))

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


def _namespace_of(item: Named) -> Iterable[str]:
    return (item.metadata.namespace,)


def _owner_of(item: Named) -> Iterable[str]:
    owner = workload_owner_of(item.metadata)
    return (owner.uid,) if owner else ()


def _orphan_in(item: Named) -> Iterable[str]:
    return () if workload_owner_of(item.metadata) else (item.metadata.namespace,)
