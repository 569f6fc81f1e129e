"""Everything together: objects go to an API server, a controller writes hints, proxies follow.

Controller and proxies run in this process, each with the rights of its role; rules and connections
are real, on six nodes in three zones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from keepclose.apiserver.registry.registry import AllocationSettings
from keepclose.controller.controller import Controller
from keepclose.model.service.types import Service
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.nft.libnftables import LibnftablesWriter
from keepclose.testing.api_server import serving
from support.controllers import World, world
from support.netanswers import answering, calling
from support.nettopology import (
    SERVICE_NETWORK,
    SERVICE_NETWORK6,
    THREE_ZONES,
    Bed,
    Place,
    topology_or_skip,
)
from support.packets.loads import count_inside, loading
from support.proxies import ProxyCluster, cluster_of

DUAL = AllocationSettings((SERVICE_NETWORK, SERVICE_NETWORK6))
TIMES = 60


class Chain(NamedTuple):
    """A cluster with all its parts at work."""

    bed: Bed
    world: World
    cluster: ProxyCluster
    controller: Controller
    proxies: dict[str, NodeProxy]

    async def settle(self) -> None:
        """Return when everybody has done what there was to do."""
        await self.world.settle(self.controller)
        for proxy in self.proxies.values():
            await self.cluster.settle(proxy)

    async def start_pod(self, name: str) -> None:
        """Make a pod of the bed an endpoint."""
        await self.world.add_pod(name, name.partition("-")[0], ip=self.pod(name).address)

    async def expect(self, service: Service, want: dict[str, set[str]]) -> None:
        """Fail unless new connections of each client reach exactly these pods, when all is done."""
        await self.settle()
        address = service.spec.cluster_ip

        def answers(client: str) -> set[str]:
            return set(count_inside(self.pod(client).namespace, address, 80, times=TIMES))

        found = {client: await asyncio.to_thread(answers, client) for client in want}
        assert found == want

    def pod(self, name: str) -> Place:
        """Return a pod by its name."""
        return next(pod for pod in self.bed.pods if pod.name == name)


@asynccontextmanager
async def chained(tmp_path: Path) -> AsyncIterator[Chain]:
    """Make a cluster and put everything to work for the block."""
    names = tuple(node.name for node in THREE_ZONES)
    async with AsyncExitStack() as stack:
        bed = stack.enter_context(topology_or_skip())
        stack.enter_context(answering(bed.pods))
        api = await stack.enter_async_context(
            serving(tmp_path / "data", nodes=names, allocation=DUAL)
        )
        hands = await stack.enter_async_context(world(api))
        cluster = await stack.enter_async_context(cluster_of(api))
        for node in bed.nodes:
            await cluster.add_node(
                node.name,
                node.zone,
                addresses=(node.address, node.address6),
                pod_cidrs=(node.pod_cidr, node.pod_cidr6),
            )
        controller = await stack.enter_async_context(hands.controlled())
        proxies = {}
        for node in bed.nodes:
            writer = LibnftablesWriter(namespace=node.namespace.path)
            stack.push_async_callback(writer.close)
            proxies[node.name] = await stack.enter_async_context(
                cluster.proxied(node.name, writer=writer, role=f"node-{node.name}.kubeconfig")
            )
        yield Chain(bed, hands, cluster, controller, proxies)


async def test_zones_keep_to_themselves_and_help_each_other(tmp_path: Path) -> None:
    """PreferSameZone: own zone where it has endpoints, others where not, and never nobody."""
    async with chained(tmp_path) as chain:
        service = await chain.world.add_service("web", trafficDistribution="PreferSameZone")
        zone_a, zone_b = {"n1-p1", "n2-p1"}, {"n3-p1"}
        for name in sorted(zone_a | zone_b):
            await chain.start_pod(name)
        clients = ("n1-p2", "n2-p2", "n3-p2", "n4-p2", "n5-p2", "n6-p2")
        want = dict(
            zip(
                clients,
                (zone_a, zone_a, zone_b, zone_b, zone_a | zone_b, zone_a | zone_b),
                strict=True,
            )
        )
        await chain.expect(service, want)
        inside = [chain.pod(name).namespace for name in ("n1-p2", "n3-p2", "n5-p2")]
        with loading(inside, [(service.spec.cluster_ip, 80)]) as load:
            # The last endpoint of zone-b goes: whoever is there is served by zone-a.
            await chain.world.end_pod("n3-p1", grace=0)
            await chain.expect(service, dict.fromkeys(clients, zone_a))
            # Zone-c gets its first.
            await chain.start_pod("n6-p1")
            await chain.expect(
                service,
                {
                    "n1-p2": zone_a,
                    "n4-p2": zone_a | {"n6-p1"},
                    "n5-p2": {"n6-p1"},
                    "n6-p2": {"n6-p1"},
                },
            )
            # It ends slowly: while others are ready nobody is sent there any more.
            await chain.world.end_pod("n6-p1")
            await chain.expect(service, dict.fromkeys(("n1-p2", "n5-p2"), zone_a))
            for name in sorted(zone_a):
                await chain.world.end_pod(name)
            everybody = zone_a | {"n6-p1"}
            await chain.expect(service, dict.fromkeys(("n1-p2", "n5-p2"), everybody))
            await asyncio.to_thread(load.wait_for, 30)
        assert load.failures == []


async def test_node_then_zone_then_anywhere(tmp_path: Path) -> None:
    """PreferSameNode: clients follow endpoints that come and go, ever to the closest."""
    async with chained(tmp_path) as chain:
        service = await chain.world.add_service("web", trafficDistribution="PreferSameNode")
        for name in ("n1-p1", "n2-p1", "n3-p1"):
            await chain.start_pod(name)
        await chain.expect(
            service,
            {
                "n1-p2": {"n1-p1"},
                "n2-p2": {"n2-p1"},
                "n4-p2": {"n3-p1"},
                "n5-p2": {"n1-p1", "n2-p1", "n3-p1"},
            },
        )
        inside = [chain.pod(name).namespace for name in ("n1-p2", "n5-p2")]
        with loading(inside, [(service.spec.cluster_ip, 80)]) as load:
            await chain.world.end_pod("n1-p1", grace=0)
            await chain.expect(service, {"n1-p2": {"n2-p1"}, "n5-p2": {"n2-p1", "n3-p1"}})
            await chain.world.end_pod("n2-p1", grace=0)
            await chain.expect(service, {"n1-p2": {"n3-p1"}, "n5-p2": {"n3-p1"}})
            await chain.start_pod("n2-p1")
            await chain.expect(service, {"n1-p2": {"n2-p1"}, "n5-p2": {"n2-p1", "n3-p1"}})
            await chain.start_pod("n1-p1")
            await chain.expect(service, {"n1-p2": {"n1-p1"}, "n2-p2": {"n2-p1"}})
            await asyncio.to_thread(load.wait_for, 30)
        assert load.failures == []


async def test_a_node_moves_to_another_zone(tmp_path: Path) -> None:
    """New connections of its pods move with the node; open ones stay where they are."""
    async with chained(tmp_path) as chain:
        service = await chain.world.add_service("web", trafficDistribution="PreferSameZone")
        for name in ("n1-p1", "n3-p1"):
            await chain.start_pod(name)
        await chain.expect(service, {"n2-p2": {"n1-p1"}, "n4-p2": {"n3-p1"}})
        client = chain.pod("n2-p2").namespace
        with (
            calling(client, service.spec.cluster_ip, 80) as caller,
            loading([client], [(service.spec.cluster_ip, 80)]) as load,
        ):
            before = await asyncio.to_thread(caller.ask)
            assert before.name == "n1-p1"
            await chain.cluster.label_node("n2", "zone-b")
            await chain.expect(service, {"n2-p2": {"n3-p1"}, "n1-p2": {"n1-p1"}})
            load.take()
            await asyncio.to_thread(load.wait_for, 20)
            assert set(load.take()) == {"n3-p1"}
            assert await asyncio.to_thread(caller.ask) == before
            await chain.cluster.label_node("n2", None)
            await chain.expect(service, {"n2-p2": {"n1-p1", "n3-p1"}})
            # A node with endpoints takes them along.
            await chain.cluster.label_node("n1", "zone-c")
            await chain.expect(
                service,
                {"n1-p2": {"n1-p1"}, "n5-p2": {"n1-p1"}, "n3-p2": {"n3-p1"}},
            )
            assert await asyncio.to_thread(caller.ask) == before
        assert load.failures == []
