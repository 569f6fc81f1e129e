"""The caches that kubelets and workload controllers share: indexes, and one watch of each kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.connection import make_credentials
from keepclose.kube.transport.aiohttp_transport import AioTransport
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest, Response
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import DEPLOYMENTS
from keepclose.lab.kubelet.kubelets import Kubelets
from keepclose.lab.kubelet.pod_networks import AddressesOnly
from keepclose.lab.workloads.controller import WorkloadController
from keepclose.model.meta import NamespacedName
from keepclose.runtime.program import run_parts
from keepclose.testing.api_server import PATIENCE, Served, serving
from support.controllers import CLOCK, World, world
from support.lab.labobjects import LABELS, a_node, a_pod, template

WEB = NamespacedName("default", "web")
KINDS = {"nodes", "pods", "replicasets", "deployments", "daemonsets"}


class CountingTransport:
    """A transport that counts watches by resource, and delays those of one resource."""

    def __init__(self, transport: AioTransport) -> None:
        self._transport = transport
        self.watches: Counter[str] = Counter()
        self.delayed = ""
        self.go_on = asyncio.Event()

    async def send(self, request: ApiRequest) -> Response:
        """Count a watch and pass the request on."""
        resource = request.path.rpartition("/")[2]
        if request.streaming:
            self.watches[resource] += 1
        if resource == self.delayed:
            await self.go_on.wait()
        return await self._transport.send(request)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


class Bed:
    """The caches with kubelets and workload controllers over them."""

    def __init__(self, cluster: World, client: Client, transport: CountingTransport) -> None:
        self.cluster, self.transport = cluster, transport
        self.caches = LabCaches()
        self.kubelets = Kubelets(
            client, AddressesOnly(("n1", "n2")), self.caches, clock=CLOCK, nodes=("n1", "n2")
        )
        self.workloads = WorkloadController(client, self.caches, clock=CLOCK)
        self.parts = (
            self.caches.run(client, clock=CLOCK),
            self.kubelets.run(),
            self.workloads.run(),
        )

    async def until_synced(self) -> None:
        """Return when kubelets and workload controllers work."""
        async with asyncio.timeout(PATIENCE):
            await self.kubelets.synced.wait()
            await self.workloads.synced.wait()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve for one test."""
    async with serving(tmp_path / "data") as served:
        yield served


@asynccontextmanager
async def running(api: Served, *, delayed: str = "") -> AsyncIterator[Bed]:
    """Run both over the same caches, under the role that a lab has."""
    settings = load_connection_settings(api.server.settings.data_dir / "lab.kubeconfig", env={})
    credentials = make_credentials(settings, clock=CLOCK)
    aio = AioTransport(settings.server, credentials=credentials, clock=CLOCK)
    transport = CountingTransport(aio)
    transport.delayed = delayed
    retries = Retries(max_elapsed=0.0)
    async with world(api) as cluster, Client(transport, clock=CLOCK, retries=retries) as client:
        bed = Bed(cluster, client, transport)
        task = asyncio.create_task(run_parts(bed.parts))
        try:
            yield bed
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()


async def test_each_kind_is_watched_once(api: Served) -> None:
    """Kubelets and workload controllers make a rollout ready over one watch for each kind."""
    async with running(api) as bed:
        await bed.until_synced()
        for name in ("n1", "n2"):
            await bed.cluster.add_node(name, "zone-a")
        deployment = {
            "metadata": {"name": "web"},
            "spec": {"replicas": 3, "selector": {"matchLabels": LABELS}, "template": template()},
        }
        await bed.cluster.client.create(DEPLOYMENTS, deployment, namespace="default")

        def is_done() -> bool:
            stored = bed.caches.deployments.get(WEB)
            return stored is not None and stored.status.available_replicas == 3

        async with asyncio.timeout(3 * PATIENCE):
            # NB: only the cache shows it, and it has handlers and no events.
            while not is_done():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert bed.transport.watches == dict.fromkeys(KINDS, 1)
        assert all(bed.kubelets.place_of(pod.key) for pod in bed.caches.pods.all())


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_nothing_is_done_before_all_caches_have_synced(api: Served, kind: str) -> None:
    """While one kind is not listed, neither kubelets nor workload controllers begin."""
    async with running(api, delayed=kind) as bed:
        async with asyncio.timeout(PATIENCE):
            # NB: as above.
            while set(bed.transport.watches) != KINDS:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        for part in (bed.caches, bed.kubelets, bed.workloads):
            assert not part.synced.is_set()
        bed.transport.go_on.set()
        await bed.until_synced()
        assert bed.caches.synced.is_set()


def test_pods_are_indexed_by_owner_node_and_state() -> None:
    """Each index follows the changes of a pod."""
    caches = LabCaches()
    orphan, owned = a_pod("orphan"), a_pod("owned", "n1", owner="rs")
    for pod in (orphan, owned, a_pod("running", "n1", owner="rs", ready=True)):
        caches.pods.put(pod)
    assert [pod.metadata.name for pod in caches.orphan_pods("default")] == ["orphan"]
    assert {pod.metadata.name for pod in caches.pods_of("rs")} == {"owned", "running"}
    assert {pod.metadata.name for pod in caches.pods_on("n1")} == {"owned", "running"}
    assert [pod.metadata.name for pod in caches.waiting_pods()] == ["orphan"]
    assert {pod.metadata.name for pod in caches.pending_pods()} == {"orphan", "owned"}
    bound = replace(orphan, spec=replace(orphan.spec, node_name="n2"))
    caches.pods.put(bound)
    assert (caches.waiting_pods(), caches.pods_on("n2")) == ([], [bound])
    caches.pods.delete(owned.key)
    assert [pod.metadata.name for pod in caches.pods_on("n1")] == ["running"]


async def test_subscribers_that_come_late_see_all_objects() -> None:
    """Components may be created over caches that have objects already."""
    caches = LabCaches()
    caches.nodes.put(a_node("n1"))
    caches.pods.put(a_pod("web", "n1", owner="rs"))
    client = Client(_Unused(), clock=CLOCK)
    kubelets = Kubelets(client, AddressesOnly(("n1",)), caches, clock=CLOCK, nodes=("n1",))
    workloads = WorkloadController(client, caches, clock=CLOCK)
    assert (kubelets.queue.depth, workloads.queue.depth) == (1, 1)


class _Unused:
    async def send(self, request: ApiRequest) -> Response:
        raise AssertionError(request)

    async def close(self) -> None:
        """Do nothing."""
