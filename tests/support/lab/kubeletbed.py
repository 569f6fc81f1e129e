"""Kubelets in this process beside a real API server, under the role that a lab has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.connection import make_credentials
from keepclose.kube.requests import EVENTS
from keepclose.kube.transport.aiohttp_transport import AioTransport
from keepclose.kube.transport.retries import Retries
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.kubelet.kubelets import Kubelets
from keepclose.lab.kubelet.pod_networks import AddressesOnly, PodNetwork
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.runtime.program import run_parts
from keepclose.testing.api_server import PATIENCE, Served
from support.controllers import CLOCK, World, world
from support.wires import Wire, written

NODES = ("n1", "n2", "n3")
OF_POD = ("initContainers", "hostNetwork", "readinessGates", "restartPolicy")


class KubeletBed:
    """What tests look at."""

    def __init__(self, cluster: World, kubelets: Kubelets, wire: Wire) -> None:
        self.cluster, self.kubelets, self.wire = cluster, kubelets, wire
        self.client = cluster.client

    async def add_pod(self, name: str = "web", node: str = "n1", **parts: Any) -> None:
        """Create a pod on a node; parts of the spec, or of its only container."""
        spec = {key: parts.pop(key) for key in OF_POD if key in parts}
        container = {"name": "main", "image": "example.dev/web:1", **parts}
        body = {
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": node, "containers": [container], **spec},
        }
        await self.client.create(LAB_PODS, body, namespace="default")

    async def delete(self, name: str = "web", grace: int | None = None) -> None:
        """Ask a pod to end."""
        await self.client.delete(LAB_PODS, name, namespace="default", grace_period=grace)

    def pod(self, name: str = "web") -> WorkloadPod | None:
        """Return a pod as the kubelets see it."""
        return self.kubelets.caches.pods.get(NamespacedName("default", name))

    async def until(self, is_so: Callable[[WorkloadPod], bool], name: str = "web") -> WorkloadPod:
        """Return the pod when it is so."""
        async with asyncio.timeout(PATIENCE):
            # NB: only the cache tells, and it has handlers and no events.
            while (pod := self.pod(name)) is None or not is_so(pod):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return pod

    async def until_ready(self, name: str = "web") -> WorkloadPod:
        """Return the pod when it is ready."""
        return await self.until(is_ready, name)

    async def until_gone(self, name: str = "web") -> None:
        """Return when the pod is in the API no more, and nothing is left of it here."""
        key = NamespacedName("default", name)
        async with asyncio.timeout(PATIENCE):
            while self.pod(name) or self.kubelets.place_of(key):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)

    async def until_zone(self, node: str, zone: str) -> None:
        """Return when the kubelets have seen the zone."""
        async with asyncio.timeout(PATIENCE):
            while self.kubelets.zone_of(node) != zone:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)

    async def rest(self) -> None:
        """Return when the kubelets have seen all and have nothing to do before time moves."""
        async with asyncio.timeout(PATIENCE):
            while True:
                page = await self.client.list_all(LAB_PODS)
                there = {one.key: one.metadata.resource_version for one in page.items}
                cached = self.kubelets.caches.pods.snapshot().items()
                here = {key: one.metadata.resource_version for key, one in cached}
                if there == here and self.kubelets.is_idle:
                    return
                await asyncio.sleep(0.005)

    async def until_told(self, reason: str, *, events: int = 1) -> list[tuple[str, str, int]]:
        """Return type, message and count of the events of that reason once there are so many."""
        async with asyncio.timeout(PATIENCE):
            while True:
                page = await self.client.list_all(EVENTS, namespace="default")
                found = [one for one in page.items if one.reason == reason]
                if len(found) >= events:
                    return [(one.type, one.message, one.count) for one in found]
                await asyncio.sleep(0.01)

    def written_statuses(self) -> list[dict[str, Any]]:
        """Return the statuses that were written, as patches, and forget them."""
        patches: list[dict[str, Any]] = [
            written(one) for one in self.wire.writes if one.method == "PATCH"
        ]
        self.wire.writes.clear()
        return [one["status"] for one in patches]


def is_ready(pod: WorkloadPod) -> bool:
    """Return whether a pod reports that it is ready."""
    return status_of(pod, "Ready") == "True"


def status_of(pod: WorkloadPod, condition: str) -> str:
    """Return the status of a condition, "" when it is not there."""
    found = pod.status.condition(condition)
    return found.status if found else ""


@asynccontextmanager
async def kubelets_of(
    api: Served,
    network: PodNetwork | None = None,
    *,
    clock: Clock = CLOCK,
    nodes: tuple[str, ...] = NODES,
) -> AsyncIterator[KubeletBed]:
    """Run the kubelets of the nodes for the time of the block."""
    settings = load_connection_settings(api.server.settings.data_dir / "lab.kubeconfig", env={})
    credentials = make_credentials(settings, clock=CLOCK)
    wire = Wire(AioTransport(settings.server, credentials=credentials, clock=CLOCK))
    retries = Retries(max_elapsed=0.0)
    async with world(api) as cluster, Client(wire, clock=CLOCK, retries=retries) as client:
        caches = LabCaches()
        network = network or AddressesOnly(nodes)
        kubelets = Kubelets(client, network, caches, clock=clock, nodes=nodes)
        parts = (caches.run(client, clock=clock), kubelets.run())
        task = asyncio.create_task(run_parts(parts))
        try:
            async with asyncio.timeout(PATIENCE):
                await kubelets.synced.wait()
            yield KubeletBed(cluster, kubelets, wire)
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
