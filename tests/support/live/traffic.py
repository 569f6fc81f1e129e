"""Slices followed as the proxies of all nodes follow them, at every event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from keepclose.kube.cache import Cache
from keepclose.kube.requests import ENDPOINT_SLICES, NODES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import Service
from keepclose.model.well_known import FOR_ZONE_LABEL, SERVICE_NAME_LABEL
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from keepclose.testing.api_server import PATIENCE
from support.controllers import CLOCK, World


class Traffic:
    """Follows slices as the proxies of all nodes do; notes each node that would lose traffic."""

    def __init__(self, service: Service, nodes: list[NodeView], gates: FeatureGates) -> None:
        self.cache: Cache[EndpointSlice] = Cache()
        self.events = 0
        self.flaws: list[str] = []
        self.served: set[str] = set()
        self.retired: set[str] = set()
        """Addresses that may go, because their pods were deleted."""
        self.moved = 0
        """How often an endpoint changed from the slices of one zone to those of another."""
        self._homes: dict[str, str] = {}
        self._news = asyncio.Event()
        (self._port,) = routed_ports(service, "IPv4", gates=gates)
        self._nodes = nodes
        self._gates = gates

    def see(self, _old: EndpointSlice | None, _new: EndpointSlice | None) -> None:
        """Ask for every node where its traffic goes now."""
        self.events += 1
        found = collect_endpoints(self.cache.all(), "IPv4", gates=self._gates)
        endpoints = found.get(self._port.key, ())
        any_ready = any(one.ready for one in endpoints)
        for node in self._nodes:
            used = select(self._port, endpoints, node=node, gates=self._gates).internal.endpoints
            if not used:
                self.flaws.append(f"event {self.events}: {node.name} has no endpoint")
            if any(not (one.ready if any_ready else one.serving) for one in used):
                self.flaws.append(f"event {self.events}: {node.name} has a useless endpoint")
        now = {one.address for one in endpoints}
        if lost := self.served - now - self.retired:
            self.flaws.append(f"event {self.events}: lost {sorted(lost)}")
        self.served = now
        self._count_moves()
        self._news.set()

    def _count_moves(self) -> None:
        groups: dict[str, set[str]] = {}
        for piece in self.cache.all():
            for one in piece.endpoints:
                group = piece.metadata.labels.get(FOR_ZONE_LABEL, "")
                groups.setdefault(one.addresses[0], set()).add(group)
        for address, found in groups.items():
            home = self._homes.get(address)
            # NB: one that moves is in both for a while.
            if home not in found:
                self.moved += home is not None
                self._homes[address] = min(found)

    async def catch_up(self, slices: Iterable[EndpointSlice]) -> None:
        """Return when nothing is left to see that led to these slices."""
        want = {one.metadata.key: one for one in slices}
        async with asyncio.timeout(PATIENCE):
            while self.cache.snapshot() != want:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def followed(cluster: World, service: Service, gates: FeatureGates) -> AsyncIterator[Traffic]:
    """Follow the slices for the time of the block, from the first complete state on."""
    nodes = [NodeView.of(one) for one in (await cluster.client.list_all(NODES)).items]
    traffic = Traffic(service, nodes, gates)
    reflector = Reflector(
        cluster.client,
        ENDPOINT_SLICES,
        traffic.cache,
        clock=CLOCK,
        namespace=cluster.namespace,
        label_selector=f"{SERVICE_NAME_LABEL}={service.metadata.name}",
    )
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        traffic.cache.subscribe(traffic.see)
        yield traffic
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def reached(
    cluster: World,
    service: Service,
    gates: FeatureGates = FeatureGates(),  # noqa: B008 - frozen
) -> dict[str, set[str]]:
    """Return the addresses that each node leads new connections to."""
    (port,) = routed_ports(service, "IPv4", gates=gates)
    found = collect_endpoints(await cluster.slices(service.metadata.name), "IPv4", gates=gates)
    nodes = [NodeView.of(one) for one in (await cluster.client.list_all(NODES)).items]
    return {
        node.name: {
            one.address
            for one in select(
                port, found.get(port.key, ()), node=node, gates=gates
            ).internal.endpoints
        }
        for node in nodes
    }
