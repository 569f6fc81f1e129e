"""Builds a cluster, keeps it running and tears it down: programs, network, kubelets, workloads.

Parts are started in the order of their dependencies, and at once if they have none. They are torn
down in reverse, whatever failed in between. The namespaces belong to this process, and its programs
are killed with it: nothing can outlive it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import structlog

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import SERVICES
from keepclose.kube.transport.retries import Retries
from keepclose.lab.access import LabView
from keepclose.lab.caches import LabCaches
from keepclose.lab.cluster.control import ControlServer
from keepclose.lab.cluster.data_dir import ClusterDirectory, ClusterState
from keepclose.lab.cluster.fork_server import ForkServer
from keepclose.lab.cluster.handlers import make_handlers
from keepclose.lab.cluster.process_keeper import Components, ProcessKeeper
from keepclose.lab.cluster.programs import ClusterLayout
from keepclose.lab.cluster.readiness import Applier, ApplyError, Workloads, until_routed
from keepclose.lab.kubelet.kubelets import Kubelets
from keepclose.lab.kubelet.node_registration import LabNode, register_nodes
from keepclose.lab.kubelet.pod_networks import AddressesOnly, PodNetwork, UnderlayNetwork
from keepclose.lab.network.addresses import node_addresses
from keepclose.lab.network.underlay import Underlay
from keepclose.lab.workloads.controller import WorkloadController
from keepclose.model.gates import FeatureGates
from keepclose.model.well_known import KUBERNETES_SERVICE
from keepclose.runtime.program import Parts
from keepclose.system.threads import open_in_thread

_ONCE = Retries(max_elapsed=0.0)
_log = structlog.get_logger(__name__)


class ClusterSettings(msgspec.Struct, frozen=True):
    """The settings of a cluster."""

    home: ClusterDirectory
    layout: ClusterLayout
    gates: FeatureGates
    port: int = 6443
    objects: tuple[dict[str, Any], ...] = ()
    """What to apply once the cluster runs."""
    locate: Callable[[int, str], str] | None = None
    """Returns the position of an object, by its index, or of its field in the manifests."""
    only_into_empty: bool = False
    """Whether to apply nothing if an earlier run of the cluster left Services."""
    counts_flows: bool = False
    """Whether each node has a flow agent."""
    measures_demand: bool = False
    """Whether the controller plans with the demand that flow agents measure."""
    no_packets: str = ""
    """Why the machine cannot have the network, or ""."""


class StartStep(NamedTuple):
    """A part that was started, a line about it, and how long it took."""

    what: str
    text: str
    seconds: float
    is_well: bool | None = True
    """None while it is unknown."""


class Supervisor:
    """Runs one cluster, once."""

    def __init__(
        self,
        settings: ClusterSettings,
        fork_server: ForkServer,
        report: Callable[[StartStep], None],
    ) -> None:
        self._settings, self._fork_server, self._report = settings, fork_server, report
        self._clock = SystemClock()

    async def run(self, on_ready: Callable[[ClusterState], None]) -> None:
        """Build the cluster, report when it is ready, and run until cancelled.

        Raises ProgramError, NetworkError, ApplyError, KubeError and OSError if it cannot be built;
        everything is torn down then.
        """
        async with AsyncExitStack() as stack:
            self._stack = stack
            self._parts = Parts(are_endless=True)
            settings, home = self._settings, self._settings.home
            keeper = ProcessKeeper(self._fork_server, home.logs)
            stack.push_async_callback(keeper.stop_all)
            components = Components(
                home,
                keeper,
                settings.layout,
                settings.gates,
                counts_flows=settings.counts_flows,
                measures_demand=settings.measures_demand,
            )
            began = time.monotonic()
            underlay, url = await self._start_base(components)
            self._report(StartStep("API server", url, time.monotonic() - began))
            admin = await stack.enter_async_context(self._connect(home.kubeconfig))
            kubelets = await self._start_lab(underlay)
            await self._register(admin)
            began = time.monotonic()
            view = LabView(
                admin, kubelets, settings.gates, underlay, settings.no_packets, components.relays
            )
            ready = await components.start_rest(underlay)
            metrics = f"metrics at {ready.pages}/metrics"
            self._report(StartStep("controller", metrics, time.monotonic() - began))
            self._report(StartStep(self._describe_network(), "", time.monotonic() - began))
            control = ControlServer(home.socket, make_handlers(view, components))
            stack.push_async_callback(control.stop)
            await control.start()
            await self._parts.until(self._apply_objects(admin, view))
            state = ClusterState(
                os.getpid(),
                url,
                str(home.kubeconfig),
                settings.layout.by_zone,
                not settings.no_packets,
            )
            home.write_state(state)
            on_ready(state)
            await self._parts.until(keeper.lost)

    async def _start_base(self, components: Components) -> tuple[Underlay | None, str]:
        """Start the parts without dependencies: the API server and the network."""
        async with asyncio.TaskGroup() as group:
            server = group.create_task(components.start_apiserver(self._settings.port))
            network = group.create_task(self._make_underlay())
        return network.result(), server.result()

    async def _make_underlay(self) -> Underlay | None:
        if self._settings.no_packets:
            return None
        underlay = Underlay()
        self._stack.callback(underlay.close)

        def make() -> Underlay:
            underlay.open()
            underlay.add_nodes(list(self._settings.layout.nodes))
            return underlay

        # NB: a thread that starts late would open the network after it was closed.
        return await open_in_thread(make, Underlay.close)

    async def _start_lab(self, underlay: Underlay | None) -> Kubelets:
        """Start kubelets, workload controllers and the scheduler."""
        client = await self._stack.enter_async_context(
            self._connect(self._settings.home.lab_kubeconfig)
        )
        network = self._pod_network(underlay)
        caches = LabCaches()
        kubelets = Kubelets(
            client, network, caches, clock=self._clock, nodes=tuple(self._settings.layout.nodes)
        )
        workloads = WorkloadController(client, caches, clock=self._clock)
        self._stack.push_async_callback(self._parts.stop)
        self._parts.start(caches.run(client, clock=self._clock))
        self._parts.start(kubelets.run())
        self._parts.start(workloads.run())
        await self._parts.until(kubelets.synced.wait())
        await self._parts.until(workloads.synced.wait())
        return kubelets

    def _pod_network(self, underlay: Underlay | None) -> PodNetwork:
        if underlay is None:
            return AddressesOnly(self._settings.layout.nodes)
        return UnderlayNetwork(underlay)

    async def _register(self, admin: Client) -> None:
        nodes = self._settings.layout.nodes.items()
        await register_nodes(
            admin,
            [
                LabNode(name, zone, node_addresses(number))
                for number, (name, zone) in enumerate(nodes, 1)
            ],
        )

    async def _apply_objects(self, admin: Client, view: LabView) -> None:
        """Apply the objects, and wait until pods are ready and every node reaches the Services."""
        if not self._settings.objects:
            return
        if self._settings.only_into_empty and await _has_services(admin):
            return
        began = time.monotonic()
        applier = Applier(admin)
        for index, obj in enumerate(self._settings.objects):
            try:
                await applier.apply(obj)
            except ApplyError as error:
                if self._settings.locate is None:
                    raise
                where = self._settings.locate(index, error.field)
                raise ApplyError(str(error), field=error.field, place=where) from error
        workloads = Workloads.of(self._settings.objects)

        def report(name: str, text: str, is_well: bool | None) -> None:
            self._report(StartStep(name, text, time.monotonic() - began, is_well=is_well))

        await workloads.until_ready(admin, report)
        await until_routed(view, self._settings.objects)

    def _describe_network(self) -> str:
        layout = self._settings.layout
        packets = "no packets" if self._settings.no_packets else "real packets (nftables)"
        zones, nodes = _count(layout.zones, "zone"), _count(len(layout.nodes), "node")
        flows = ", flows" if self._settings.counts_flows and not self._settings.no_packets else ""
        return f"{zones}, {nodes}, {packets}{flows}"

    def _connect(self, kubeconfig: os.PathLike[str]) -> Client:
        return connect(load_connection_settings(kubeconfig), clock=self._clock, retries=_ONCE)


async def _has_services(client: Client) -> bool:
    """Return whether there are Services besides the one that every cluster has."""
    services = (await client.list_all(SERVICES)).items
    return any(service.key != KUBERNETES_SERVICE for service in services)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
