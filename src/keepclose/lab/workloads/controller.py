"""Runs the controllers of Deployments, ReplicaSets and DaemonSets, the scheduler and the pod GC.

Level-based: a key names what to sync, and the caches have its state. A crash at any point is safe:
the next process lists everything again and goes on. A failed key is requeued with backoff.
Pods are deleted here with their grace period; the kubelets end them.

A change of a pod concerns its controller, or the workloads that may adopt it. A change of a node
concerns every DaemonSet, but only if it affects scheduling, because nodes report all the time. All
pods without a node share one key.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final, NamedTuple

import structlog

from keepclose.kube.cache import Named
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.work_queue import WorkQueue
from keepclose.lab.caches import LabCaches
from keepclose.lab.workloads.daemonsets import DaemonSetSync
from keepclose.lab.workloads.deployments import DeploymentSync
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.pods import PodCollector, PodWriter
from keepclose.lab.workloads.replicasets import ReplicaSetSync
from keepclose.lab.workloads.scheduler import Binder
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import DaemonSet, Deployment, ReplicaSet, workload_owner_of
from keepclose.runtime.program import run_parts
from keepclose.runtime.workers import Workers

_DEPLOYMENT: Final = "Deployment"
_REPLICA_SET: Final = "ReplicaSet"
_DAEMON_SET: Final = "DaemonSet"
_NODE: Final = "Node"
_POD_OWNERS: Final = (_REPLICA_SET, _DAEMON_SET)
_COMPONENT: Final = "keepclose-lab"
WORKERS: Final = 4
_FIRST_RETRY_S: Final = 0.02
_LAST_RETRY_S: Final = 30.0
_log = structlog.get_logger(__name__)


class WorkKey(NamedTuple):
    """What to sync: a workload by its kind, all waiting pods, or the pods of a node."""

    kind: str
    name: NamespacedName

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


WAITING: Final = WorkKey("Pod", NamespacedName("", ""))


class WorkloadEventHandlers:
    """Adds the keys of all workloads that a change of a cache concerns to the queue."""

    def __init__(self, caches: LabCaches, queue: WorkQueue[WorkKey]) -> None:
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
                self._queue.add(WorkKey(_NODE, node))

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
            self._queue.add(WorkKey(_NODE, old.metadata.key))

    def _requeue_waiting_pods(self) -> None:
        if self._caches.waiting_pods():
            self._queue.add(WAITING)

    def _add_owners(self, old: Named | None, new: Named | None, kinds: tuple[str, ...]) -> None:
        for item in (old, new):
            owner = workload_owner_of(item.metadata) if item is not None else None
            if item is not None and owner is not None and owner.kind in kinds:
                key = NamespacedName(item.metadata.namespace, owner.name)
                self._queue.add(WorkKey(owner.kind, key))


class WorkloadController:
    """The controllers of a cluster's workloads; run it once, beside the caches.

    The client must not retry requests by itself: the queue decides on delays.
    """

    def __init__(
        self,
        client: Client,
        caches: LabCaches,
        *,
        clock: Clock,
        recorder: EventRecorder | None = None,
        random: Random | None = None,
        workers: int = WORKERS,
    ) -> None:
        self._recorder = recorder or EventRecorder(client, component=_COMPONENT, clock=clock)
        self._workers = workers
        self._clock = clock
        random = random or Random()  # noqa: S311 - names of pods are no secret
        self.caches = caches
        self.queue: WorkQueue[WorkKey] = WorkQueue(
            clock, first_delay_s=_FIRST_RETRY_S, cap_delay_s=_LAST_RETRY_S
        )
        # NB: these subscribe before the event handlers, so that an expectation is met before the
        # key of its owner is queued.
        expectations = Expectations(clock, caches.pods)
        writer = PodWriter(client, expectations, recorder=self._recorder)
        self._replica_sets = ReplicaSetSync(
            client,
            caches,
            expectations=expectations,
            writer=writer,
            clock=clock,
            random=random,
        )
        self._daemon_sets = DaemonSetSync(
            client,
            caches,
            expectations=expectations,
            writer=writer,
            clock=clock,
            random=random,
        )
        self._deployments = DeploymentSync(client, caches, clock=clock, recorder=self._recorder)
        self.binder = Binder(
            client, caches, expectations=expectations, clock=clock, recorder=self._recorder
        )
        self._pod_collector = PodCollector(client, caches, clock=clock)
        WorkloadEventHandlers(caches, self.queue).subscribe()
        self.synced = asyncio.Event()
        """Set once the caches have synced and the workers run."""

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty and no key is worked on; keys may still be due later."""
        return not (self.queue.depth or self.queue.running)

    async def run(self) -> None:
        """Run until cancelled; only unusable settings end it earlier."""
        await run_parts((self._recorder.run(), self._work()))

    async def _work(self) -> None:
        await self.caches.synced.wait()
        self.synced.set()
        await Workers(self.queue, self._sync, number=self._workers, clock=self._clock).run()

    async def _sync(self, key: WorkKey) -> float | None:
        """Sync one key; return the seconds after which to sync it again without a change."""
        if key == WAITING:
            await self.binder.sync()
            return None
        match key.kind:
            case "Deployment":
                return await self._deployments.sync(key.name)
            case "ReplicaSet":
                return await self._replica_sets.sync(key.name)
            case "DaemonSet":
                return await self._daemon_sets.sync(key.name)
            case "Node":
                return await self._pod_collector.sync(key.name)
        return None


def _scheduling_fields(node: Node) -> tuple[object, ...]:
    return (node.metadata.labels, node.spec.taints, node.spec.unschedulable, node.is_ready)
