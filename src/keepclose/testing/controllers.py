"""A controller beside a real API server in this process, and a hand that changes the cluster.

    async with serving(tmp_path) as api, world(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        await cluster.add_service("web", trafficDistribution="PreferClose")
        async with cluster.controlled() as controller:
            await cluster.settle(controller)

Everything between the two goes through a wire that counts writes and can make them fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

from keepclose.controller.controller import Controller
from keepclose.controller.settings import COMPONENT, ControllerSettings
from keepclose.kube.aiotransport import AioTransport
from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect, make_credentials
from keepclose.kube.errors import ConnectionLost
from keepclose.kube.incluster import load_settings
from keepclose.kube.kinds import ENDPOINT_SLICES, ENDPOINTS, NODES, PODS, SERVICES, Kind
from keepclose.kube.recorder import EventRecorder
from keepclose.kube.retries import Retries
from keepclose.kube.transport import Request, Response, Transport
from keepclose.model.endpointslice import EndpointSlice
from keepclose.model.selectors import matches
from keepclose.model.service import Service
from keepclose.model.wellknown import ZONE_LABEL
from keepclose.model.workload import Pod
from keepclose.slices.settings import Cluster
from keepclose.testing.apiservers import PATIENCE, Served

CLOCK: Final = SystemClock()
NAMESPACE: Final = "default"
_ONCE: Final = Retries(max_elapsed=0.0)


class Wire:
    """A transport that counts what is written and loses some of it on the way."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.writes: list[Request] = []
        """The writes of slices and Services, those that failed too."""
        self.failing = 0.0
        """The part of the writes that fail, one half before they are served, one half after."""
        self.refused = ""
        """The method whose requests get no further at all."""
        self.random = Random(7)  # noqa: S311 - tests want the same every time

    async def send(self, request: Request) -> Response:
        """Pass a request on, or do not."""
        if request.method == "GET" or "/events" in request.path or "/leases" in request.path:
            return await self._transport.send(request)
        self.writes.append(request)
        dice = self.random.random()
        if dice < self.failing / 2 or request.method == self.refused:
            raise ConnectionLost("wire", "cut before the request was served")
        response = await self._transport.send(request)
        if dice < self.failing:
            await response.close()
            raise ConnectionLost("wire", "cut before the answer came")
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


class World:
    """A cluster that a test changes as kubelets and users would."""

    def __init__(self, api: Served, client: Client) -> None:
        self.api = api
        self.client = client
        self.wire: Wire
        self._directory = api.server.settings.data_dir

    async def add_node(self, name: str, zone: str | None, *, cpu: str = "4") -> None:
        """Add a ready node."""
        labels = {} if zone is None else {ZONE_LABEL: zone}
        await self.client.create(
            NODES,
            {
                "metadata": {"name": name, "labels": labels},
                "status": {
                    "allocatable": {"cpu": cpu},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    async def label_node(self, name: str, zone: str | None) -> None:
        """Move a node to another zone, or to none."""
        patch = {"metadata": {"labels": {ZONE_LABEL: zone}}}
        await self.client.patch(NODES, name, patch)

    async def add_pod(
        self,
        name: str,
        node: str,
        *,
        ip: str,
        app: str = "web",
        ready: bool = True,
    ) -> None:
        """Add a running pod."""
        await self.client.create(
            PODS,
            {
                "metadata": {"name": name, "labels": {"app": app}},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [
                        {
                            "name": "main",
                            "image": "example.dev/web",
                            "ports": [{"name": "http", "containerPort": 8080}],
                        }
                    ],
                },
            },
            namespace=NAMESPACE,
        )
        await self.set_pod(name, ip=ip, ready=ready)

    async def set_pod(self, name: str, *, ip: str, ready: bool = True) -> None:
        """Report the state of a pod."""
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        await self.client.patch(
            PODS, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )

    async def add_service(
        self, name: str = "web", *, annotations: dict[str, str] | None = None, **spec: Any
    ) -> Service:
        """Add a Service over app=web with the port http 80 -> 8080; spec as the API writes it."""
        wanted = {
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            **spec,
        }
        body = {"metadata": {"name": name, "annotations": annotations or {}}, "spec": wanted}
        return await self.client.create(SERVICES, body, namespace=NAMESPACE)

    async def change(self, kind: Kind[Any], name: str, patch: dict[str, Any]) -> None:
        """Change an object by a merge patch."""
        namespace = NAMESPACE if kind.namespaced else ""
        await self.client.patch(kind, name, patch, namespace=namespace)

    async def remove(self, kind: Kind[Any], name: str) -> None:
        """Delete an object."""
        namespace = NAMESPACE if kind.namespaced else ""
        await self.client.delete(kind, name, namespace=namespace, grace_period=0)

    async def slices(self, service: str = "web") -> list[EndpointSlice]:
        """Return the slices of a Service, by name."""
        page = await self.client.list_all(ENDPOINT_SLICES, namespace=NAMESPACE)
        found = [one for one in page.items if one.service_key.name == service]
        return sorted(found, key=lambda one: one.metadata.name)

    async def selected(self, service: Service) -> list[Pod]:
        """Return the pods that a Service selects, by name."""
        page = await self.client.list_all(PODS, namespace=NAMESPACE)
        selector = service.spec.selector or {}
        found = [pod for pod in page.items if matches(selector, pod.metadata.labels)]
        return sorted(found, key=lambda pod: pod.metadata.name)

    async def cluster(self) -> Cluster:
        """Return the nodes as a plan sees them."""
        return Cluster.of((await self.client.list_all(NODES)).items)

    @asynccontextmanager
    async def controlled(
        self, settings: ControllerSettings | None = None, **parts: Any
    ) -> AsyncIterator[Controller]:
        """Run a controller under its own role for the time of the block."""
        connection = load_settings(self._directory / "controller.kubeconfig", env={})
        credentials = make_credentials(connection, clock=CLOCK)
        self.wire = Wire(AioTransport(connection.server, credentials=credentials, clock=CLOCK))
        async with Client(self.wire, clock=CLOCK, retries=_ONCE) as client:
            controller = Controller(
                client,
                settings or ControllerSettings(slice_delay_s=0.01, retry_delay_s=0.01),
                clock=CLOCK,
                recorder=EventRecorder(client, component=COMPONENT, clock=CLOCK),
                **parts,
            )
            task = asyncio.create_task(controller.run())
            try:
                await asyncio.wait(
                    (task, asyncio.ensure_future(controller.synced.wait())),
                    timeout=PATIENCE,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                yield controller
            finally:
                task.cancel()
                await asyncio.wait((task,))
                if not task.cancelled():
                    task.result()

    async def settle(self, controller: Controller) -> None:
        """Return when the controller has seen everything and has nothing left to do."""
        async with asyncio.timeout(3 * PATIENCE):
            # NB: no event tells that nothing more will happen.
            while not (controller.is_idle and await self._has_seen_all(controller)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _has_seen_all(self, controller: Controller) -> bool:
        caches = controller.caches
        pairs: tuple[tuple[Kind[Any], Cache[Any]], ...] = (
            (SERVICES, caches.services),
            (PODS, caches.pods),
            (NODES, caches.nodes),
            (ENDPOINT_SLICES, caches.slices),
            (ENDPOINTS, caches.endpoints),
        )
        for kind, cache in pairs:
            page = await self.client.list_all(kind)
            there = {one.metadata.key: one.metadata.resource_version for one in page.items}
            here = {key: one.metadata.resource_version for key, one in cache.snapshot().items()}
            if there != here:
                return False
        return controller.is_idle


@asynccontextmanager
async def world(api: Served) -> AsyncIterator[World]:
    """Open the hand that changes the cluster, as the administrator."""
    connection = load_settings(api.server.settings.data_dir / "kubeconfig", env={})
    async with connect(connection, clock=CLOCK) as client:
        yield World(api, client)
