"""A cluster for tests of traffic: real namespaces, real proxies, and pods that plainly answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from keepclose.kube.requests import PODS
from keepclose.lab.access import LabView
from keepclose.lab.kubelet.kubelets import Kubelets
from keepclose.lab.network.underlay import Underlay
from keepclose.lab.traffic.connections import Inside
from keepclose.lab.traffic.report import TrafficReport
from keepclose.lab.traffic.run import handle_traffic
from keepclose.model.gates import FeatureGates
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.nft.select_writer import WriterSettings, choose_writer
from keepclose.testing.api_server import Served, serving
from support.proxies import ProxyCluster, cluster_of
from support.underlays import underlay_or_skip

PORT = 8080
JsonObject = dict[str, Any]


class HttpPod(asyncio.Protocol):
    """Answers a request with who it is, in the pieces it is given, and closes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, _data: bytes) -> None:
        """Answer."""
        loop = asyncio.get_running_loop()
        for number, piece in enumerate(self._pieces):
            loop.call_later(0.02 * number, self._transport.write, piece)
        loop.call_later(0.02 * len(self._pieces), self._transport.close)


class UdpPod(asyncio.DatagramProtocol):
    """Answers a datagram with who it is."""

    def __init__(self, who: str, ports: list[int]) -> None:
        self._who, self._ports = who, ports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, _data: bytes, addr: tuple[Any, ...]) -> None:
        """Answer."""
        self._ports.append(addr[1])
        self._transport.sendto(f"{self._who} {addr[0]}\n".encode(), addr)


def http_answer(pod: str, node: str, zone: str) -> bytes:
    """Return what a pod says over HTTP."""
    body = f"{pod} {node} {zone}\n"
    return (
        f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nX-Pod: {pod}\r\nX-Node: {node}\r\n"
        f"X-Zone: {zone}\r\nConnection: close\r\n\r\n{body}"
    ).encode()


class Listeners:
    """All that listens for a test."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.udp_ports: list[int] = []
        """From which ports datagrams came."""

    async def serve(self, inside: Inside, *pieces: bytes, host: str = "::") -> None:
        """Answer over TCP with these pieces."""
        one = inside.do(lambda: _listening(host, socket.SOCK_STREAM))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: HttpPod(pieces), sock=one, backlog=512)
        self._stack.callback(server.close)

    async def serve_udp(self, inside: Inside, who: str, host: str = "::") -> None:
        """Answer over UDP with a name and place."""
        one = inside.do(lambda: _listening(host, socket.SOCK_DGRAM))
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: UdpPod(who, self.udp_ports), sock=one
        )
        self._stack.callback(transport.close)

    async def close(self) -> None:
        """Stop all, and let the loop see it."""
        self._stack.close()
        await asyncio.sleep(0.05)


def _listening(host: str, kind: socket.SocketKind) -> socket.socket:
    one = socket.socket(socket.AF_INET6, kind | socket.SOCK_NONBLOCK)
    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    one.bind((host, PORT))
    if kind == socket.SOCK_STREAM:
        one.listen(512)
    return one


class TrafficBed:
    """A cluster with a Service `web`, whose pods are in the namespaces of the underlay."""

    def __init__(self, underlay: Underlay, cluster: ProxyCluster, listeners: Listeners) -> None:
        self.underlay, self.cluster, self.listeners = underlay, cluster, listeners
        self.proxies: dict[str, NodeProxy] = {}
        self.api: Served
        """The server, in this process."""
        self.told: list[JsonObject] = []
        self.on_tell: Callable[[JsonObject], object] = lambda _news: None
        self.lab = LabView(
            client=cluster.client,
            kubelets=cast("Kubelets", None),
            gates=FeatureGates(),
            underlay=underlay,
            no_packets="",
            relays={},
        )

    async def add_pod(self, name: str, node: str, zone: str) -> JsonObject:
        """Run a pod and return the endpoint that it is, without hints."""
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        body = {"metadata": {"name": name}, "spec": spec}
        made = await self.cluster.client.create(PODS, body, namespace="default")
        uid = made.metadata.uid
        (place,) = await asyncio.to_thread(self.underlay.add_pods, [(node, uid)])
        await self.listeners.serve(place.namespace, http_answer(name, node, zone))
        await self.listeners.serve_udp(place.namespace, f"{name} {node} {zone}")
        return {
            "addresses": [place.addresses[0]],
            "conditions": {"ready": True},
            "nodeName": node,
            "zone": zone,
            "targetRef": {"kind": "Pod", "namespace": "default", "name": name, "uid": uid},
        }

    async def settle(self) -> None:
        """Return when all proxies have written what they know."""
        for proxy in self.proxies.values():
            await self.cluster.settle(proxy)

    async def send(self, service: str = "web", **params: Any) -> TrafficReport:
        """Send traffic and return the report.

        One run of a million in which all is well is called wrong because of its shares; whoever
        sees that looks again, and so does this.
        """
        report = await self._send(service, params)
        if any(" %, expected " in row.fault for row in report.rows):
            report = await self._send(service, params)
        return report

    async def _send(self, service: str, params: JsonObject) -> TrafficReport:
        def tell(news: JsonObject) -> None:
            self.told.append(news)
            self.on_tell(news)

        document = await handle_traffic(self.lab, {"service": service, **params}, tell)
        # As it comes over the socket.
        return msgspec.json.decode(msgspec.json.encode(document), type=TrafficReport)


@contextlib.asynccontextmanager
async def traffic_bed(
    directory: Path,
    zones: dict[str, str],
    *,
    gates: FeatureGates = FeatureGates(),  # noqa: B008 - frozen
    proxies: Mapping[str, JsonObject] | None = None,
) -> AsyncIterator[TrafficBed]:
    """Make a cluster of these nodes with their zones, and proxies on them, or skip the test.

    The API server and the proxies have these gates; `proxies` are other settings by node.
    """
    with underlay_or_skip(*zones) as underlay:
        async with serving(directory, gates=gates) as api, cluster_of(api) as cluster:
            listeners = Listeners()
            bed = TrafficBed(underlay, cluster, listeners)
            bed.api = api
            bed.lab = bed.lab._replace(gates=gates)
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(listeners.close)
                for name, zone in zones.items():
                    place = underlay.nodes[name]
                    await cluster.add_node(
                        name,
                        zone or None,
                        addresses=(place.addresses.address, place.addresses.address6),
                        pod_cidrs=(place.addresses.pod_cidr, place.addresses.pod_cidr6),
                    )
                    settings = WriterSettings(namespace=place.namespace.path)
                    chosen = await choose_writer(settings)
                    stack.push_async_callback(chosen.writer.close)
                    # NB: these proxies run outside their nodes, so they do not see the addresses.
                    proxied = cluster.proxied(
                        name,
                        writer=chosen.writer,
                        counts_connections=False,
                        node_port_addresses=("all",),
                        **{"gates": gates, **(proxies or {}).get(name, {})},
                    )
                    bed.proxies[name] = await stack.enter_async_context(proxied)
                yield bed
