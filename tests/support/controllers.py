"""A controller in this process beside any API server, and a hand that changes the cluster.

    async with serving(tmp_path) as api, world(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        await cluster.add_service("web", trafficDistribution="PreferClose")
        async with cluster.controlled() as controller:
            await cluster.settle(controller)

`opened` does the same for a server that is known by its kubeconfig alone. What the controller
writes goes through a wire that counts writes and can make them fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from keepclose.controller.controller import Controller
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect, make_credentials
from keepclose.kube.errors import NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import (
    ENDPOINT_SLICES,
    ENDPOINTS,
    EVENTS,
    NODES,
    PODS,
    SERVICES,
    Kind,
)
from keepclose.kube.transport.aiohttp_transport import AioTransport
from keepclose.kube.transport.retries import Retries
from keepclose.kube.watch.list_decoding import Page
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Condition, ObjectMeta, OwnerReference
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import Pod
from keepclose.reconcile.settings import CONTROLLER_COMPONENT, ControllerSettings
from keepclose.slices.settings import ClusterNodes
from keepclose.testing.api_server import PATIENCE, Served
from support.crowds import do_all
from support.wires import Wire

CLOCK: Final = SystemClock()
QUICK: Final = ControllerSettings(slice_delay_s=0.01, retry_delay_s=0.01)
LONG_GRACE_S: Final = 36_000
"""So long that no pod ends by itself while a test runs."""
_ONCE: Final = Retries(max_elapsed=0.0)
_OWN_SERVICE: Final = "kubernetes"
"""The Service of the API server itself, which comes back when it is deleted."""


class World:
    """A cluster that a test changes as kubelets and users would."""

    def __init__(self, client: Client, *, controller: Path, namespace: str = "default") -> None:
        self.client = client
        self.namespace = namespace
        self.wire: Wire
        """What the last controller writes through."""
        self.api: Served
        """The server, where it runs in this process."""
        self._controller = controller

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
        owner: OwnerReference | None = None,
    ) -> None:
        """Add a running pod, on its own or that of a controller of pods."""
        owners = [] if owner is None else [msgspec.to_builtins(owner)]
        await self.client.create(
            PODS,
            {
                "metadata": {"name": name, "labels": {"app": app}, "ownerReferences": owners},
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
            namespace=self.namespace,
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
            PODS, name, {"status": status}, namespace=self.namespace, subresource="status"
        )

    async def end_pod(self, name: str, *, grace: int = LONG_GRACE_S) -> None:
        """Ask a pod to end; it goes on as it is for the time of the grace."""
        await self.client.delete(PODS, name, namespace=self.namespace, grace_period=grace)

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
        return await self.client.create(SERVICES, body, namespace=self.namespace)

    async def change(self, kind: Kind[Any], name: str, patch: dict[str, Any]) -> None:
        """Change an object by a merge patch."""
        namespace = self.namespace if kind.namespaced else ""
        await self.client.patch(kind, name, patch, namespace=namespace)

    async def remove(self, kind: Kind[Any], name: str) -> None:
        """Delete an object."""
        namespace = self.namespace if kind.namespaced else ""
        await self.client.delete(kind, name, namespace=namespace, grace_period=0)

    async def slices(self, service: str = "web") -> list[EndpointSlice]:
        """Return the slices of a Service, by name."""
        page = await self.client.list_all(ENDPOINT_SLICES, namespace=self.namespace)
        found = [one for one in page.items if one.service_key.name == service]
        return sorted(found, key=lambda one: one.metadata.name)

    async def conditions(self, service: str = "web") -> tuple[Condition, ...]:
        """Return the status conditions of a Service."""
        found = await self.client.get(SERVICES, service, namespace=self.namespace)
        return found.status.conditions

    async def events(self) -> list[tuple[str, str, str, int]]:
        """Return type, reason, message and count of our events in the namespace, oldest first."""
        page = await self.client.list_all(EVENTS, namespace=self.namespace)
        found = [one for one in page.items if one.source.component == CONTROLLER_COMPONENT]
        found.sort(key=lambda one: one.metadata.name)
        return [(one.type, one.reason, one.message, one.count) for one in found]

    async def selected(self, service: Service) -> list[Pod]:
        """Return the pods that a Service selects, by name."""
        page = await self.client.list_all(PODS, namespace=self.namespace)
        selector = service.spec.selector or {}
        found = [pod for pod in page.items if matches(selector, pod.metadata.labels)]
        return sorted(found, key=lambda pod: pod.metadata.name)

    async def cluster(self) -> ClusterNodes:
        """Return the nodes as a plan sees them."""
        return ClusterNodes.of((await self.client.list_all(NODES)).items)

    async def clear(self) -> None:
        """Remove whatever tests left anywhere, as nobody may who does not own the whole cluster.

        Namespaces stay: not every API server has somebody beside it who would empty them.
        """
        for kind in (SERVICES, PODS, ENDPOINTS, ENDPOINT_SLICES, NODES):
            page: Page[Any] = await self.client.list_all(kind)
            await do_all(
                self._delete(kind, one.metadata)
                for one in page.items
                if not one.metadata.name.startswith(_OWN_SERVICE)
            )

    async def _delete(self, kind: Kind[Any], meta: ObjectMeta) -> None:
        if meta.finalizers:
            patch = {"metadata": {"finalizers": None}}
            await self.client.patch(kind, meta.name, patch, namespace=meta.namespace)
        with suppress(NotFound):  # The garbage collector was faster.
            await self.client.delete(kind, meta.name, namespace=meta.namespace, grace_period=0)

    @asynccontextmanager
    async def controlled(
        self, settings: ControllerSettings | None = None, **parts: Any
    ) -> AsyncIterator[Controller]:
        """Run a controller under its own role for the time of the block."""
        connection = load_connection_settings(self._controller, env={})
        credentials = make_credentials(connection, clock=CLOCK)
        self.wire = Wire(AioTransport(connection.server, credentials=credentials, clock=CLOCK))
        async with Client(self.wire, clock=CLOCK, retries=_ONCE) as client:
            controller = Controller(
                client,
                settings or QUICK,
                clock=CLOCK,
                recorder=EventRecorder(client, component=CONTROLLER_COMPONENT, clock=CLOCK),
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
async def opened(
    kubeconfig: Path, *, controller: Path | None = None, namespace: str = "default"
) -> AsyncIterator[World]:
    """Open the hand that changes a cluster, as the administrator.

    Controllers go by the same kubeconfig unless they have one of their own.
    """
    async with connect(load_connection_settings(kubeconfig, env={}), clock=CLOCK) as client:
        yield World(client, controller=controller or kubeconfig, namespace=namespace)


@asynccontextmanager
async def world(api: Served) -> AsyncIterator[World]:
    """Open the hand that changes the cluster of a server in this process."""
    directory = api.server.settings.data_dir
    controller = directory / "controller.kubeconfig"
    async with opened(directory / "kubeconfig", controller=controller) as found:
        found.api = api
        yield found
