"""A node proxy beside a real API server in this process, writing to whatever a test hands it.

    async with serving(tmp_path) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        async with cluster.proxied("n1", writer=RecordingWriter()) as proxy:
            await cluster.settle(proxy)

Slices are written by the test itself, so that it says exactly what the proxy sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES, Kind
from keepclose.kube.transport.retries import Retries
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.well_known import HEADLESS_LABEL, SERVICE_NAME_LABEL, ZONE_LABEL
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.conntrack import CleanUp, ConntrackError, Frontends
from keepclose.proxy.counters.kernel_counters import CounterReader, ElementCount, ElementCounts
from keepclose.proxy.nft.element_messages import encode_key
from keepclose.proxy.nft.writer import NftFamily, NftWriter
from keepclose.proxy.settings import ProxySettings
from keepclose.ruleset.tables import ElementKey
from keepclose.testing.api_server import PATIENCE, Served

CLOCK: Final = SystemClock()
NAMESPACE: Final = "default"
_ONCE: Final = Retries(max_elapsed=0.0)


class FakeFlows:
    """Stands in for the kernel's table of flows; notes what it is asked to clean."""

    def __init__(self) -> None:
        self.cleaned: list[Frontends] = []
        self.failing = False

    async def clean(self, frontends: Frontends) -> CleanUp:
        """Note what would be kept, or fail as told."""
        if self.failing:
            raise ConntrackError("told to fail")
        self.cleaned.append(frontends)
        return CleanUp(examined=3, deleted=1, seconds=0.25)

    async def close(self) -> None:
        """Do nothing."""


class FakeCounters:
    """Stands in for the kernel's counters."""

    def __init__(self) -> None:
        self.elements: dict[str, ElementCounts] = {}
        """Of IPv4, by set or map."""
        self.reads = 0

    def lead(self, address: str, port: int, connections: list[int]) -> None:
        """Have so many connections led to each endpoint of a plain TCP port."""
        self.elements["tcp-counted-endpoints"] = {
            encode_key((address, "tcp", str(port), str(number)), "ip"): ElementCount(b"", count)
            for number, count in enumerate(connections)
        }

    async def read_elements(
        self,
        family: NftFamily,
        table: str,
        container: str,
        keys: Sequence[ElementKey] | None = None,
    ) -> ElementCounts:
        """Return what a test says that elements count."""
        del table, keys
        self.reads += 1
        return self.elements.get(container, {}) if family == "ip" else {}

    async def close(self) -> None:
        """Do nothing."""


class ProxyCluster:
    """A cluster that a test changes as users, kubelets and controllers would."""

    def __init__(self, api: Served, client: Client) -> None:
        self.api = api
        self.client = client
        self.flows: dict[str, FakeFlows] = {}
        """The flows of the last proxy, by family."""

    async def add_node(
        self,
        name: str,
        zone: str | None,
        *,
        addresses: Iterable[str] = ("192.168.100.1",),
        pod_cidrs: Iterable[str] = (),
    ) -> None:
        """Add a node."""
        labels = {} if zone is None else {ZONE_LABEL: zone}
        ranges = list(pod_cidrs)
        spec = {"podCIDR": ranges[0], "podCIDRs": ranges} if ranges else {}
        status = {"addresses": [{"type": "InternalIP", "address": one} for one in addresses]}
        node = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}
        await self.client.create(NODES, node)

    async def label_node(self, name: str, zone: str | None) -> None:
        """Move a node to another zone, or to none."""
        await self.client.patch(NODES, name, {"metadata": {"labels": {ZONE_LABEL: zone}}})

    async def add_service(
        self, name: str = "web", *, metadata: dict[str, Any] | None = None, **spec: Any
    ) -> Service:
        """Add a Service with the port http 80; spec as the API writes it."""
        wanted = {"ports": [{"name": "http", "port": 80, "targetPort": 8080}], **spec}
        body = {"metadata": {"name": name, **(metadata or {})}, "spec": wanted}
        return await self.client.create(SERVICES, body, namespace=NAMESPACE)

    async def set_endpoints(
        self,
        *endpoints: dict[str, Any],
        service: str = "web",
        name: str = "",
        address_type: str = "IPv4",
        ports: Iterable[dict[str, Any]] = ({"name": "http", "port": 8080, "protocol": "TCP"},),
    ) -> EndpointSlice:
        """Make a slice of a Service hold exactly these endpoints, as the API writes them."""
        name = name or f"{service}-{address_type.lower()}"
        body = {
            "metadata": {
                "name": name,
                "labels": {SERVICE_NAME_LABEL: service},
            },
            "addressType": address_type,
            "endpoints": list(endpoints),
            "ports": list(ports),
        }
        try:
            return await self.client.patch(ENDPOINT_SLICES, name, body, namespace=NAMESPACE)
        except NotFound:
            return await self.client.create(ENDPOINT_SLICES, body, namespace=NAMESPACE)

    async def change_service(self, name: str, patch: dict[str, Any]) -> None:
        """Change a Service by a merge patch."""
        await self.client.patch(SERVICES, name, patch, namespace=NAMESPACE)

    async def remove(self, kind: Kind[Any], name: str) -> None:
        """Delete an object."""
        namespace = NAMESPACE if kind.namespaced else ""
        await self.client.delete(kind, name, namespace=namespace, grace_period=0)

    @asynccontextmanager
    async def proxied(
        self,
        node: str,
        *,
        writer: NftWriter,
        clock: Clock = CLOCK,
        role: str = "kubeconfig",
        counts: CounterReader | None = None,
        **settings: Any,
    ) -> AsyncIterator[NodeProxy]:
        """Run a proxy for the time of the block; it need not have written anything yet.

        Flows of the machine's own connections are never touched.
        """
        wanted = msgspec.structs.replace(
            ProxySettings(node_name=node, min_sync_s=0.0, acknowledges=False, node_wait_s=0.0),
            **settings,
        )
        connection = load_connection_settings(self.api.server.settings.data_dir / role, env={})
        async with connect(connection, clock=CLOCK, retries=_ONCE) as client:
            self.flows = {family: FakeFlows() for family in wanted.families}
            proxy = NodeProxy(
                client,
                wanted,
                writer=writer,
                clock=clock,
                counts=counts or FakeCounters(),
                flows=self.flows,
            )
            task = asyncio.create_task(proxy.run())
            try:
                yield proxy
            finally:
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    task.result()

    async def settle(self, proxy: NodeProxy) -> None:
        """Return when the proxy has seen everything and has written it."""
        async with asyncio.timeout(3 * PATIENCE):
            # NB: no event tells that nothing more will happen.
            while not (proxy.is_idle and await self._has_seen_all(proxy)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _has_seen_all(self, proxy: NodeProxy) -> bool:
        caches = proxy.caches
        name = proxy.settings.node_name
        services = [
            one
            for one in (await self.client.list_all(SERVICES)).items
            if not one.is_headless
            and "service.kubernetes.io/service-proxy-name" not in one.metadata.labels
        ]
        slices = [
            one
            for one in (await self.client.list_all(ENDPOINT_SLICES)).items
            if HEADLESS_LABEL not in one.metadata.labels
        ]
        nodes = [one for one in (await self.client.list_all(NODES)).items if one.name == name]
        return (
            _is_same(services, caches.services)
            and _is_same(slices, caches.slices)
            and _is_same(nodes, caches.nodes)
            and proxy.is_idle
        )


def _is_same(there: list[Any], cache: Cache[Any]) -> bool:
    want = {one.metadata.key: one.metadata.resource_version for one in there}
    return want == {key: one.metadata.resource_version for key, one in cache.snapshot().items()}


def hinted(address: str, zone: str, node: str = "", **conditions: bool) -> dict[str, Any]:
    """Return a ready endpoint that is for its own zone, as the API writes it."""
    return {
        "addresses": [address],
        "zone": zone,
        **({"nodeName": node} if node else {}),
        "conditions": {"ready": True, **conditions},
        "hints": {"forZones": [{"name": zone}]},
    }


def plain(address: str, zone: str = "", node: str = "", **conditions: bool) -> dict[str, Any]:
    """Return a ready endpoint without hints, as the API writes it."""
    return {
        "addresses": [address],
        **({"zone": zone} if zone else {}),
        **({"nodeName": node} if node else {}),
        "conditions": {"ready": True, **conditions},
    }


@asynccontextmanager
async def cluster_of(api: Served) -> AsyncIterator[ProxyCluster]:
    """Open the hand that changes the cluster, as the administrator."""
    connection = load_connection_settings(api.server.settings.data_dir / "kubeconfig", env={})
    async with connect(connection, clock=CLOCK) as client:
        yield ProxyCluster(api, client)
