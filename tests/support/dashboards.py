"""A dashboard over the real API server, in this process, and a browser's requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from keepclose.cli.dashboard.serving import DashboardOptions, serve_dashboard
from keepclose.cli.options import AGENT_NAMESPACE, ChosenCluster
from keepclose.heuristics.discovery import find_heuristics
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.model.json_values import JsonObject
from keepclose.runtime.pages import ListenAddress
from keepclose.runtime.program import Parts
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, Reply, Served, serving
from support.builders import node, service

ZONES = ("zone-a", "zone-b", "zone-c")
SERVICE_PATH = "/api/v1/namespaces/default/services"
SLICE_PATH = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


class Dashboard(NamedTuple):
    """A running dashboard and its API server."""

    api: Served
    url: str
    """With the token of this run."""
    session: aiohttp.ClientSession

    @property
    def root(self) -> str:
        """The address without the token."""
        return self.url.partition("/#")[0]

    @property
    def token(self) -> str:
        """The token of this run."""
        return self.url.partition("#token=")[2]

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: object = None,
        **query: str,
    ) -> Reply:
        """Send a request with the token, or with other headers."""
        own = {"Authorization": f"Bearer {self.token}", "Origin": self.root}
        async with self.session.request(
            method,
            self.root + path,
            params=query,
            headers=own if headers is None else headers,
            data=None if body is None else msgspec.json.encode(body),
        ) as response:
            return Reply(response.status, response.headers, [], await response.read())

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Messages]:
        """Follow the changes for the time of the block."""
        own = {"Authorization": f"Bearer {self.token}"}
        async with self.session.get(f"{self.root}/api/stream", headers=own) as response:
            assert response.status == 200, await response.text()
            yield Messages(response)


class Messages:
    """The messages of a stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> JsonObject:
        """Return the next message; comments are skipped."""
        async with asyncio.timeout(PATIENCE):
            while line := await self._response.content.readline():
                if line.startswith(b"data: "):
                    message: JsonObject = msgspec.json.decode(line[6:])
                    return message
        raise EOFError

    async def until(self, topic: str, name: str) -> Any:
        """Return the next value of a topic."""
        while True:
            values = (await self.next()).get(topic, {})
            if name in values:
                return values[name]


def service_object(name: str = "web", **spec: Any) -> JsonObject:
    """Return a Service over app=web without allocated addresses, which the server gives it."""
    made = service(name, **spec)
    value: JsonObject = msgspec.to_builtins(made)
    for field in ("clusterIP", "clusterIPs", "ipFamilies"):
        value["spec"].pop(field, None)
    value["metadata"].pop("uid", None)
    return value


def slice_object(name: str, zones: Mapping[str, str], *, of: str = "web") -> JsonObject:
    """Return a slice with an endpoint for each address, by the zone that it is in and hinted for.

    A zone with a ! at its end has no hint.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/service-name": of,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True},
                "nodeName": f"{zone.rstrip('!')}-1",
                "zone": zone.rstrip("!"),
                "targetRef": {"kind": "Pod", "namespace": "default", "name": f"pod-{address}"},
                **({} if zone.endswith("!") else {"hints": {"forZones": [{"name": zone}]}}),
            }
            for address, zone in zones.items()
        ],
    }


async def create_zones(api: Served, zones: tuple[str, ...] = ZONES) -> None:
    """Create two ready nodes in each zone."""
    for zone in zones:
        for number in (1, 2):
            made = msgspec.to_builtins(node(f"{zone}-{number}", zone))
            await api.create("/api/v1/nodes", made)
            path = f"/api/v1/nodes/{zone}-{number}/status"
            await api.call(
                "PATCH",
                path,
                {"status": made["status"]},
                type="application/merge-patch+json",
            )


@asynccontextmanager
async def dashboard(api: Served, *, allows_writes: bool = False) -> AsyncIterator[Dashboard]:
    """Serve the dashboard of an API server for the time of the block."""
    connection = load_connection_settings(api.server.kubeconfig)
    options = DashboardOptions(
        ChosenCluster(api.url, connection),
        PlannerSettings(heuristics=find_heuristics()),
        ListenAddress("127.0.0.1", 0),
        AGENT_NAMESPACE,
        allows_writes,
    )
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    parts = Parts((serve_dashboard(options, clock=SystemClock(), on_ready=url.set_result),))
    try:
        async with asyncio.timeout(PATIENCE):
            shown = await parts.until(url)
        async with aiohttp.ClientSession(read_bufsize=2**20) as session:
            yield Dashboard(api, shown, session)
    finally:
        await parts.stop()


@asynccontextmanager
async def served_dashboard(
    folder: Path, *, allows_writes: bool = False
) -> AsyncIterator[Dashboard]:
    """Serve three zones with the Service default/web, and the dashboard, for the block."""
    async with serving(folder) as api:
        await create_zones(api)
        await api.create(SERVICE_PATH, service_object(traffic_distribution="PreferSameZone"))
        zones = {"10.0.0.1": "zone-a", "10.0.0.2": "zone-b", "10.0.0.3": "zone-c"}
        await api.create(SLICE_PATH, slice_object("web-1", zones))
        async with dashboard(api, allows_writes=allows_writes) as made:
            yield made
