"""Runs the controllers of Deployments, ReplicaSets and DaemonSets, the scheduler and the pod GC.

Level-based: a key names what to sync, and the caches have its state. A crash at any point is safe:
the next process lists everything again and goes on. A failed key is requeued with backoff.
Pods are deleted here with their grace period; the kubelets end them.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.work_queue import WorkQueue
from keepclose.lab.workloads.caches import WAITING, WorkKey, WorkloadCaches, WorkloadEventHandlers
from keepclose.lab.workloads.daemonsets import DaemonSetSync
from keepclose.lab.workloads.deployments import DeploymentSync
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.pod_writes import PodCollector, PodWriter
from keepclose.lab.workloads.replicasets import ReplicaSetSync
from keepclose.lab.workloads.scheduler import Binder
from keepclose.runtime.program import run_parts
from keepclose.runtime.workers import Workers

_COMPONENT: Final = "keepclose-lab"
WORKERS: Final = 4
_FIRST_RETRY_S: Final = 0.02
_LAST_RETRY_S: Final = 30.0
_log = structlog.get_logger(__name__)


class WorkloadController:
    """The controllers of a cluster's workloads; run it once.

    The client must not retry requests by itself: the queue decides on delays.
    """

    def __init__(
        self,
        client: Client,
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
        self.caches = WorkloadCaches()
        self.reflectors = self.caches.reflectors(client, clock=clock)
        self.queue: WorkQueue[WorkKey] = WorkQueue(
            clock, first_delay_s=_FIRST_RETRY_S, cap_delay_s=_LAST_RETRY_S
        )
        # NB: these subscribe before the event handlers, so that an expectation is met before the
        # key of its owner is queued.
        expectations = Expectations(clock, self.caches.pods)
        writer = PodWriter(client, expectations, recorder=self._recorder)
        self._replica_sets = ReplicaSetSync(
            client,
            self.caches,
            expectations=expectations,
            writer=writer,
            clock=clock,
            random=random,
        )
        self._daemon_sets = DaemonSetSync(
            client,
            self.caches,
            expectations=expectations,
            writer=writer,
            clock=clock,
            random=random,
        )
        self._deployments = DeploymentSync(
            client, self.caches, clock=clock, recorder=self._recorder
        )
        self.binder = Binder(
            client, self.caches, expectations=expectations, clock=clock, recorder=self._recorder
        )
        self._pod_collector = PodCollector(client, self.caches, clock=clock)
        WorkloadEventHandlers(self.caches, self.queue).subscribe()
        self.synced = asyncio.Event()
        """Set once all caches have synced and the workers run."""

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty and no key is worked on; keys may still be due later."""
        return not (self.queue.depth or self.queue.running)

    async def run(self) -> None:
        """Run until cancelled; only unusable settings end it earlier."""
        reflectors = [reflector.run() for reflector in self.reflectors]
        await run_parts((*reflectors, self._recorder.run(), self._work()))

    async def _work(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()
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
