"""The controllers of workloads in this process, with a stand-in for the kubelets.

    async with serving(tmp_path) as api, workloads(api) as lab:
        await lab.cluster.add_node("n1", "zone-a")
        await lab.client.create(DEPLOYMENTS, manifest, namespace="default")
        await lab.until(lambda: ...)

No containers run: a pod with a node is said to run and to be ready at once, unless a test holds it
back, and is gone as soon as it was asked to go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import make_credentials
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.transport.aiohttp_transport import AioTransport
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import Transport
from keepclose.kube.watch.reflector import Reflector
from keepclose.kube.work_queue import WorkQueue
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.workloads.controller import WorkloadController
from keepclose.model.meta import NamespacedName
from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.testing.api_server import PATIENCE, Served
from support.controllers import World, opened
from support.wires import Wire

CLOCK: Final = SystemClock()
_ONCE: Final = Retries(max_elapsed=0.0)


def _always(_pod: WorkloadPod) -> bool:
    """Say yes."""
    return True


class StubKubelet:
    """Reports pods as running and ready, and ends those that were asked to go."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.pods: Cache[WorkloadPod] = Cache()
        self._reflector = Reflector(client, LAB_PODS, self.pods, clock=CLOCK)
        self._queue: WorkQueue[NamespacedName] = WorkQueue(CLOCK, first_delay_s=0.01)
        self.makes_ready: Callable[[WorkloadPod], bool] = _always
        """Which pods get ready."""
        self.lets_end: Callable[[WorkloadPod], bool] = _always
        """Which pods end when they were asked to."""
        self._addresses = 0

    def look_again(self) -> None:
        """Judge all pods anew, after a test changed its mind."""
        for key in self.pods:
            self._queue.add(key)

    async def run(self) -> None:
        """Play all kubelets until cancelled."""
        self.pods.subscribe(lambda _, new: self._queue.add(new.key) if new else None)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        while (key := await self._queue.get()) is not None:
            try:
                with suppress(NotFound, Conflict):
                    await self._visit(self.pods.get(key))
            finally:
                self._queue.done(key)

    async def _visit(self, pod: WorkloadPod | None) -> None:
        if pod is None or not pod.spec.node_name:
            return
        meta = pod.metadata
        if pod.is_terminating:
            if self.lets_end(pod):
                await self._client.delete(
                    LAB_PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
                )
            return
        ready = self.makes_ready(pod)
        if pod.status.phase == "Running" and pod.is_ready is ready:
            return
        self._addresses += 1
        address = f"10.64.{self._addresses // 250}.{self._addresses % 250 + 1}"
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": format_event_time(CLOCK.now()),
        }
        status: dict[str, Any] = {"phase": "Running", "conditions": [condition]}
        if pod.status.phase != "Running":
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        await self._client.patch(
            LAB_PODS,
            meta.name,
            {"status": status},
            namespace=meta.namespace,
            subresource="status",
        )


class Lab:
    """A cluster whose workloads are tended."""

    def __init__(
        self, cluster: World, controller: WorkloadController, kubelet: StubKubelet, wire: Wire
    ) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.controller = controller
        self.kubelet = kubelet
        self.wire = wire
        """What the controller writes through."""

    @property
    def pods(self) -> list[WorkloadPod]:
        """The pods that are there, as the controller sees them, by name."""
        found = self.controller.caches.pods.all()
        return sorted(found, key=lambda pod: pod.metadata.name)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return when it is so, which follows from what the controller has seen."""
        async with asyncio.timeout(3 * PATIENCE):
            # NB: many caches change together; no single event tells that it is so.
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def tending(kubeconfig: Path, cluster: World) -> AsyncIterator[Lab]:
    """Run the controllers of workloads and the stand-in for kubelets for the time of the block."""
    settings = load_connection_settings(kubeconfig, env={})
    credentials = make_credentials(settings, clock=CLOCK)
    transport: Transport = AioTransport(settings.server, credentials=credentials, clock=CLOCK)
    wire = Wire(transport)
    async with Client(wire, clock=CLOCK, retries=_ONCE) as client:
        caches = LabCaches()
        controller = WorkloadController(client, caches, clock=CLOCK)
        kubelet = StubKubelet(cluster.client)
        parts = (caches.run(client, clock=CLOCK), controller.run(), kubelet.run())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            async with asyncio.timeout(PATIENCE):
                await controller.synced.wait()
            yield Lab(cluster, controller, kubelet, wire)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()


@asynccontextmanager
async def workloads(api: Served) -> AsyncIterator[Lab]:
    """Tend the workloads of a server in this process."""
    directory = api.server.settings.data_dir
    async with opened(directory / "kubeconfig") as cluster:
        cluster.api = api
        # What the controllers do is all that their role may do.
        async with tending(directory / "lab.kubeconfig", cluster) as lab:
            yield lab
