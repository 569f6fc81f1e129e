"""A node with a client pod and a server pod, whose connections the node's kernel tracks.

    with flow_bed() as bed:
        bed.server.listen(bed.SERVER, 8080)

The node translates the address of the Service web (10.96.0.1, port 80) to the server, for TCP, UDP
and SCTP, and for IPv6 as well. The API server is in memory.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from msgspec.structs import replace

from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowKind
from keepclose.flows.agent import FlowAgent
from keepclose.flows.settings import FlowSettings
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.kube.transport.transport import ApiRequest
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.scripted_streams import FakeResponse
from support.netns import Namespace, ip_batches, namespaces_or_skip

CLIENT, SERVER, GATEWAY, SERVICE = "10.244.1.5", "10.244.2.6", "10.244.1.1", "10.96.0.1"
CLIENT6, SERVER6, GATEWAY6, SERVICE6 = "fd00:1::5", "fd00:2::6", "fd00:1::1", "fd00:96::1"
WEB: Final = FlowKey(FlowKind.SERVICE, "default", "web", "http", "TCP", "zone-a", "zone-b")
"""The flow of the client's connections to the Service, over TCP."""
_RULES: Final = f"""
table inet nat {{
    chain prerouting {{
        type nat hook prerouting priority dstnat
        ip daddr {SERVICE} tcp dport 80 dnat ip to {SERVER}:8080
        ip daddr {SERVICE} udp dport 53 dnat ip to {SERVER}:5353
        ip daddr {SERVICE} sctp dport 3868 dnat ip to {SERVER}:3869
        ip6 daddr {SERVICE6} tcp dport 80 dnat ip6 to [{SERVER6}]:8080
    }}
}}
"""


class _Unselective(FakeCluster):
    """Answers as if no request had a selector; the agent sees pods of other nodes too."""

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Answer one request."""
        query = tuple(pair for pair in request.query if pair[0] != "fieldSelector")
        return await super().send(replace(request, query=query))


class FlowBed:
    """Three network namespaces, and a cluster that names their addresses."""

    def __init__(self, node: Namespace, client: Namespace, server: Namespace) -> None:
        self.node, self.client, self.server = node, client, server
        self.cluster = _Unselective(FakeClock())
        self.cluster.put(NODES, _node("n1", "zone-a", ("10.244.1.0/24", "fd00:1::/64")))
        self.cluster.put(NODES, _node("n2", "zone-b", ("10.244.2.0/24", "fd00:2::/64")))
        self.cluster.put(PODS, pod("client", "n1", CLIENT, CLIENT6))
        self.cluster.put(SERVICES, _service())
        for family, address in (("IPv4", SERVER), ("IPv6", SERVER6)):
            self.cluster.put(ENDPOINT_SLICES, _slice(family, address))

    def listen(self, port: int = 8080) -> socket.socket:
        """Return a TCP socket of both families on which the server listens."""

        def make() -> socket.socket:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )

        return self.server.do(make)

    def connect(self, address: str, port: int) -> socket.socket:
        """Return a TCP socket of the client, connected."""
        return self.client.do(lambda: socket.create_connection((address, port), timeout=60))

    def settings(self, **changes: Any) -> FlowSettings:
        """Return settings for node n1."""
        wanted: dict[str, Any] = {
            "node_name": "n1",
            "cluster_ranges": ("10.244.0.0/16", "10.96.0.0/16", "fd00::/16"),
            "walk_s": 3600.0,
            "name_wait_s": 0.0,
            "start_wait_s": 60.0,
        }
        return FlowSettings(**{**wanted, **changes})

    @asynccontextmanager
    async def agent(
        self, *, clock: Clock | None = None, **changes: Any
    ) -> AsyncIterator[FlowAgent]:
        """Run an agent on the node; it counts when the block begins."""
        clock = clock or SystemClock()
        async with Client(self.cluster, clock=clock) as client:
            agent = FlowAgent(
                self.settings(**changes), client=client, clock=clock, inside=self.node.do
            )
            agent.open()
            running = asyncio.create_task(agent.run())
            try:
                ready = asyncio.create_task(agent.ready.wait())
                await asyncio.wait((ready, running), return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                if running.done():
                    running.result()
                yield agent
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                agent.close()


async def flows_of(agent: FlowAgent, *, walks: bool = False) -> dict[FlowKey, FlowCounts]:
    """Return all flows that are counted now."""
    if walks:
        await agent.collector.walk()
    agent._refreshed_at = None
    await agent.refresh()
    return agent.table.rows


@contextmanager
def flow_bed(*, accounts: bool = True) -> Iterator[FlowBed]:
    """Build the bed, or skip the test with the reason."""
    with namespaces_or_skip("node", "client", "server") as (node, client, server):
        ip_batches(
            {
                node: [
                    f"link add c0 type veth peer name eth0 netns {client.name}",
                    f"link add s0 type veth peer name eth0 netns {server.name}",
                    f"addr add {GATEWAY}/32 dev c0",
                    f"addr add {GATEWAY}/32 dev s0",
                    f"addr add {GATEWAY6}/128 dev c0 nodad",
                    f"addr add {GATEWAY6}/128 dev s0 nodad",
                    "link set c0 up",
                    "link set s0 up",
                    f"route add {CLIENT} dev c0",
                    f"route add {SERVER} dev s0",
                    f"route add {CLIENT6} dev c0",
                    f"route add {SERVER6} dev s0",
                ]
            }
        )
        ip_batches(
            {
                pod_namespace: [
                    f"addr add {address}/32 dev eth0",
                    f"addr add {address6}/128 dev eth0 nodad",
                    "link set eth0 up",
                    f"route add {GATEWAY} dev eth0",
                    f"route add default via {GATEWAY} dev eth0",
                    f"route add {GATEWAY6} dev eth0",
                    f"route add default via {GATEWAY6} dev eth0",
                ]
                for pod_namespace, address, address6 in (
                    (client, CLIENT, CLIENT6),
                    (server, SERVER, SERVER6),
                )
            }
        )
        node.set_values(
            {
                "ipv4/ip_forward": 1,
                "ipv6/conf/all/forwarding": 1,
                "netfilter/nf_conntrack_acct": int(accounts),
            }
        )
        node.run("nft", "-f", "-", text=_RULES)
        yield FlowBed(node, client, server)


def pod(name: str, node: str, *addresses: str) -> dict[str, Any]:
    """Return a running pod."""
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name + addresses[0]},
        "spec": {"nodeName": node},
        "status": {
            "phase": "Running",
            "podIP": addresses[0],
            "podIPs": [{"ip": address} for address in addresses],
        },
    }


def _node(name: str, zone: str, ranges: tuple[str, ...]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": {"podCIDR": ranges[0], "podCIDRs": list(ranges)},
    }


def _service() -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "clusterIP": SERVICE,
            "clusterIPs": [SERVICE, SERVICE6],
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080},
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353},
                {"name": "diameter", "port": 3868, "protocol": "SCTP", "targetPort": 3869},
            ],
        },
    }


def _slice(family: str, address: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"web-{family.lower()}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": family,
        "endpoints": [{"addresses": [address], "nodeName": "n2", "zone": "zone-b"}],
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"},
            {"name": "dns", "port": 5353, "protocol": "UDP"},
            {"name": "diameter", "port": 3869, "protocol": "SCTP"},
        ],
    }
