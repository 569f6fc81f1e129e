"""A node proxy whose API server is gone for an hour, on a clock that does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.errors import ConnectionRefused
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import Service
from keepclose.model.workload import NodeAddress
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.settings import ProxySettings
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.recording_writer import RecordingWriter
from keepclose.testing.scripted_streams import FakeResponse
from support.builders import node
from support.proxies import FakeCounters, FakeFlows

OUTAGE_S: Final = 3600


class Outage(NamedTuple):
    """The addresses that the node uses before and after the outage, and what it wrote in it."""

    before: set[str]
    after: set[str]
    written: list[str]


class _Link:
    """The connection to the server, which can be cut."""

    def __init__(self, server: FakeCluster) -> None:
        self._server = server
        self._is_cut = False

    def cut(self) -> None:
        """Break all watches and refuse every request."""
        self._is_cut = True
        for watch in self._server.watches:
            watch.cut()

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Pass a request on, unless the link is cut."""
        if self._is_cut:
            raise ConnectionRefused("fake", "connection refused")
        # The server knows no selectors; all that it has would be selected.
        query = tuple(one for one in request.query if not one[0].endswith("Selector"))
        return await self._server.send(replace(request, query=query))

    async def close(self) -> None:
        """Do nothing."""


async def outlast_outage(
    service: Service, slices: Iterable[EndpointSlice], *, zone: str, gates: FeatureGates
) -> Outage:
    """Run the proxy of node n1, take its API server away for an hour, and return what it did."""
    clock = FakeClock()
    server = FakeCluster(clock, history=2000)
    own = node("n1", zone)
    address = NodeAddress("InternalIP", "192.168.100.1")
    server.put(NODES, replace(own, status=replace(own.status, addresses=(address,))))
    server.put(SERVICES, service)
    for endpoint_slice in slices:
        server.put(ENDPOINT_SLICES, endpoint_slice)
    link, writer = _Link(server), RecordingWriter()
    settings = ProxySettings(
        node_name="n1",
        families=("IPv4",),
        gates=gates,
        acknowledges=False,
        full_sync_s=1e6,
        later_s=0.5,
    )
    async with Client(link, clock=clock, retries=Retries(max_elapsed=0.0)) as client:
        proxy = NodeProxy(
            client,
            settings,
            writer=writer,
            clock=clock,
            counts=FakeCounters(),
            flows={"IPv4": FakeFlows()},
        )
        task = asyncio.create_task(proxy.run())
        try:
            await clock.advance(5)
            before = _used(proxy)
            writer.applied.clear()
            link.cut()
            await clock.advance(OUTAGE_S)
            return Outage(before, _used(proxy), list(writer.applied))
        finally:
            task.cancel()
            await clock.run_until(task.done)


def _used(proxy: NodeProxy) -> set[str]:
    """Return the addresses to which the node leads connections to the Service."""
    [state] = proxy.families["IPv4"].states.services.values()
    [port] = state.ports.values()
    return {endpoint.address for endpoint in port.selection.internal.endpoints}
