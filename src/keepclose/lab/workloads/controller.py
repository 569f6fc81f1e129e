"""The controllers of workloads as a whole: Deployments, ReplicaSets, DaemonSets, and the scheduler.

Pods of nodes that are gone are deleted here too, as kube-controller-manager does.

Level-based: a key says what to look at, and the caches say how it is. Crash it at any point:
whoever starts next reads everything anew and goes on. What fails comes back after a growing delay.
Pods are asked to end here, and ended by whoever runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Final

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ApiError, Conflict, KubeError
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.work_queue import WorkQueue
from keepclose.lab.workloads.caches import WAITING, WorkKey, WorkloadCaches, WorkloadNews
from keepclose.lab.workloads.daemonsets import DaemonSetSync
from keepclose.lab.workloads.deployments import DeploymentSync
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.pod_writes import PodCollector, PodWriter
from keepclose.lab.workloads.replicasets import ReplicaSetSync
from keepclose.lab.workloads.scheduler import Binder

_COMPONENT: Final = "keepclose-lab"
WORKERS: Final = 4
_FIRST_RETRY_S: Final = 0.02
_LAST_RETRY_S: Final = 30.0
_log = structlog.get_logger(__name__)


class WorkloadController:
    """Keeps the pods of a cluster's workloads; run it once.

    Give it a client that does not repeat requests by itself: delays are the queue's.
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
        random = random or Random()  # noqa: S311 - names of pods are no secret
        self.caches = WorkloadCaches()
        self.reflectors = self.caches.reflectors(client, clock=clock)
        self.queue: WorkQueue[WorkKey] = WorkQueue(
            clock, first_delay_s=_FIRST_RETRY_S, cap_delay_s=_LAST_RETRY_S
        )
        # NB: before the news, so that a key never comes to a view that still expects its pod.
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
        WorkloadNews(self.caches, self.queue).subscribe()
        self.synced = asyncio.Event()
        """Set once all caches have been complete and the workers run."""

    @property
    def is_idle(self) -> bool:
        """Whether no key stands in line or is worked on; some may wait for their time."""
        return not (self.queue.depth or self.queue.running)

    async def run(self) -> None:
        """Run until cancelled; only settings that cannot work end it by themselves."""
        background: list[Coroutine[Any, Any, Any]] = [one.run() for one in self.reflectors]
        background += [self._recorder.run(), self._work_all()]
        tasks = [asyncio.create_task(one) for one in background]
        try:
            # NB: none of them ends but by an error.
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work_all(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()
        self.synced.set()
        await asyncio.gather(*(self._work() for _ in range(self._workers)))

    async def _work(self) -> None:
        while (key := await self.queue.get()) is not None:
            try:
                await self._visit(key)
            finally:
                self.queue.done(key)

    async def _visit(self, key: WorkKey) -> None:
        try:
            again_s = await self._sync(key)
        except Conflict:
            # Somebody was faster; what they wrote is on its way to the cache.
            self.queue.retry(key)
        except KubeError as error:
            after_s = error.retry_after if isinstance(error, ApiError) else None
            self.queue.retry(key, at_least_s=after_s or 0.0)
            _log.warning("sync failed", key=str(key.name), kind=key.kind, error=str(error))
        except Exception:  # noqa: BLE001 - whatever it is, it is told, and the key comes back
            _log.exception("sync failed", key=str(key.name), kind=key.kind)
            self.queue.retry(key)
        else:
            self.queue.forget(key)
            if again_s is not None:
                self.queue.add_after(key, again_s)

    async def _sync(self, key: WorkKey) -> float | None:
        """Look at one key; return when to look again though nothing changed."""
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
