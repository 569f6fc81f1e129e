"""KEP-3015, Monitoring, Dependencies, Scalability, Troubleshooting, Alternatives.

Not counted: what the speed of users' own workloads may be, calls to a cloud provider, and the
history of earlier attempts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.requests import PODS, SERVICES
from keepclose.model.addresses import IPV4
from keepclose.model.gates import Gate, parse_gates
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import HOSTNAME_LABEL
from keepclose.routing.selection import PacketVerdict
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.testing.recording_writer import RecordingWriter
from support.controllers import World
from support.live.sights import POST, PUT
from support.packets.loads import ask_here
from support.packets.webobjects import addresses_of, web
from support.proposals.proposalpackets import CLIENTS, SERVERS, PacketScene, packet_scene
from support.proposals.proposalscenes import (
    GATES,
    NO_SAME_NODE,
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    named,
    own_nodes,
)
from support.proxies import cluster_of, hinted

COUNT = "endpoint_slice_controller_services_count_by_traffic_distribution"
SYNCS = "endpoint_slice_controller_syncs_total"
STAMP = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
SCENE = Scene(THREE_ZONES, UNEVEN)
WEB = NamespacedName("default", "web")


@pytest.fixture(scope="module")
def packets() -> Iterator[PacketScene]:
    """Run one network for all tests of this file."""
    with packet_scene() as scene:
        yield scene


async def build(cluster: World) -> None:
    """Add two nodes in two zones, with a pod on each."""
    for number, zone in enumerate(("zone-a", "zone-b"), start=1):
        await cluster.add_node(f"n{number}", zone)
        await cluster.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number}")


async def test_use_is_seen_by_the_values_of_services(cluster: World) -> None:
    """An operator sees the use by checking whether any Service has one of the new values."""
    await build(cluster)
    metrics = ControllerMetrics(max_endpoints=100)
    for name, value in (("a", "PreferSameNode"), ("b", "PreferSameZone"), ("c", "PreferSameNode")):
        await cluster.add_service(name, trafficDistribution=value)
    page = await cluster.client.list_all(SERVICES, namespace=cluster.namespace)
    values = Counter(one.spec.traffic_distribution for one in page.items)
    async with cluster.controlled(observer=metrics) as controller:
        await cluster.settle(controller)
    for wanted, count in values.items():
        labels = {"traffic_distribution": str(wanted)}
        assert metrics.registry.get_sample_value(COUNT, labels) == count


def test_it_is_seen_in_the_connections_of_endpoints(packets: PacketScene) -> None:
    """Endpoints receive the expected connections, and no unexpected ones."""
    wanted = web("web", 50, traffic_distribution="PreferSameNode")
    packets.route(wanted)
    address = addresses_of(wanted, IPV4).cluster
    seen: Counter[str] = Counter()
    for client in (CLIENTS["n1"], CLIENTS["n2"]):
        inside = packets.bed.namespace(client)
        seen += inside.do(lambda: Counter(ask_here(address, 80).name for _ in range(40)))
    assert set(seen) == set(SERVERS[:3])
    assert seen[SERVERS[2]] == 40


async def test_slo_the_additional_work_is_trivial(cluster: World) -> None:
    """Updating slices costs as many writes with PreferSameNode as without."""
    await build(cluster)
    writes = []
    for value in (None, "PreferSameNode"):
        await cluster.add_service(trafficDistribution=value)
        async with cluster.controlled() as controller:
            await cluster.settle(controller)
            await cluster.add_pod("p3", "n2", ip="10.0.0.3")
            await cluster.settle(controller)
            await cluster.remove(PODS, "p3")
            await cluster.settle(controller)
            writes.append(Counter(cluster.wire.take()))
        await cluster.remove(SERVICES, "web")
    assert writes[0] == writes[1] == {POST: 1, PUT: 2}


async def test_sli_of_updating_slices(cluster: World) -> None:
    """It inherits the indicators around updating slices: syncs count Services with it."""
    await build(cluster)
    await cluster.add_service(trafficDistribution="PreferSameNode")
    metrics = ControllerMetrics(max_endpoints=100)
    async with cluster.controlled(observer=metrics) as controller:
        await cluster.settle(controller)
    assert (metrics.registry.get_sample_value(SYNCS, {"result": "success"}) or 0) >= 1


async def test_sli_of_programming_the_data_plane(tmp_path: Path) -> None:
    """It inherits the indicators around programming the data plane."""
    labels = {"ip_family": "IPv4"}
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a", pod_cidrs=("10.244.1.0/24",))
        await cluster.add_service(trafficDistribution="PreferSameNode")
        await cluster.set_endpoints(on_node("10.0.0.1", "n1"), on_node("10.0.0.2", "n2"))
        async with cluster.proxied("n1", writer=RecordingWriter(), families=("IPv4",)) as proxy:
            await cluster.settle(proxy)
            assert (proxy.metrics.registry.get_sample_value(STAMP, labels) or 0) > 0


def on_node(address: str, name: str) -> dict[str, object]:
    """Return an endpoint with hints for zone-a and its node, as the API writes it."""
    one = hinted(address, "zone-a", name)
    one["hints"] = {**one["hints"], "forNodes": [{"name": name}]}
    return one


def test_proxies_that_follow_prefer_close_follow_prefer_same_zone() -> None:
    """Any proxy that implements PreferClose by hints handles PreferSameZone automatically."""
    for gates in (GATES, NO_SAME_NODE):
        close, zone = (
            SCENE.routed(asking(value), proxy=gates) for value in ("PreferClose", "PreferSameZone")
        )
        assert close == zone != SCENE.everywhere()


async def test_proxies_must_know_node_hints(tmp_path: Path) -> None:
    """PreferSameNode needs a proxy that knows forNodes; a running one follows it."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a", pod_cidrs=("10.244.1.0/24",))
        await cluster.add_service(trafficDistribution="PreferSameNode")
        await cluster.set_endpoints(on_node("10.0.0.1", "n1"), on_node("10.0.0.2", "n2"))
        found = []
        for gates in (GATES, NO_SAME_NODE):
            settings: dict[str, Any] = {"families": ("IPv4",), "gates": gates}
            async with cluster.proxied("n1", writer=RecordingWriter(), **settings) as proxy:
                await cluster.settle(proxy)
                state = proxy.families["IPv4"].states.services[WEB].ports["http", "TCP"]
                found.append([one.address for one in state.selection.internal.endpoints])
    assert found == [["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]]


def test_until_then_proxies_fall_back_to_the_zone() -> None:
    """Until a proxy is updated, PreferSameNode has the semantics of PreferSameZone there."""
    older = SCENE.routed(asking("PreferSameNode"), proxy=NO_SAME_NODE)
    assert older == SCENE.routed(asking("PreferSameZone"), proxy=NO_SAME_NODE)


async def test_no_new_api_calls(cluster: World) -> None:
    """The feature results in no new API calls: what is written is slices, as ever."""
    await build(cluster)
    await cluster.add_service(trafficDistribution="PreferSameNode")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        await cluster.label_node("n1", "zone-b")
        await cluster.settle(controller)
        assert cluster.wire.take() == [POST, PUT]


async def test_no_new_api_types(tmp_path: Path) -> None:
    """The feature introduces no new API types."""
    found = []
    for gates in ("PreferSameTrafficDistribution=true", "PreferSameTrafficDistribution=false"):
        async with serving(tmp_path, gates=parse_gates(gates)) as plain:
            paths = ("/api/v1", "/apis", "/apis/discovery.k8s.io/v1")
            found.append([await plain.get(path) for path in paths])
    assert found[0] == found[1]


def test_the_size_of_slices() -> None:
    """Each endpoint of each slice gains a forNodes hint with the name of its node."""
    (zone,) = SCENE.plan(asking("PreferSameZone")).slices
    (node,) = SCENE.plan(asking("PreferSameNode")).slices
    added = len(msgspec.json.encode(node)) - len(msgspec.json.encode(zone))
    each = [f',"forNodes":[{{"name":"{one.node_name}"}}]' for one in node.endpoints]
    assert added == sum(map(len, each))
    assert SCENE.hints(SCENE.plan(asking("PreferSameNode"))) == own_nodes(SCENE)


def test_no_operation_takes_longer() -> None:
    """No operation takes longer: a changed pod changes one slice, with the value or without."""
    large = Scene({"n1": "zone-a", "n2": "zone-b"}, {"n1": 130, "n2": 120})
    more = Scene({"n1": "zone-a", "n2": "zone-b"}, {"n1": 130, "n2": 121})
    for wanted in (asking("PreferSameZone"), asking("PreferSameNode")):
        plan = more.plan(wanted, slices=named(large.plan(wanted).slices))
        assert [len(one.create) + len(one.update) for one in plan.plans.values()] == [1]


def test_no_component_needs_more_resources() -> None:
    """No node needs more resources: it routes to no more endpoints than with PreferSameZone."""
    zone, node = (SCENE.routed(asking(value)) for value in ("PreferSameZone", "PreferSameNode"))
    assert all(node[name] <= zone[name] for name in zone)


async def test_without_the_api_server_nothing_changes(tmp_path: Path) -> None:
    """With the API server away there is no change from existing behaviour: rules stay."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a", pod_cidrs=("10.244.1.0/24",))
        await cluster.add_service(trafficDistribution="PreferSameNode")
        await cluster.set_endpoints(on_node("10.0.0.1", "n1"), on_node("10.0.0.2", "n2"))
        writer = RecordingWriter()
        async with cluster.proxied("n1", writer=writer, families=("IPv4",)) as proxy:
            await cluster.settle(proxy)
            before = list(writer.applied)
            with capture_logs() as logs:
                await api.server.stop()
                async with asyncio.timeout(PATIENCE):
                    # NB: logs send no event.
                    while not [one for one in logs if one["log_level"] == "warning"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            state = proxy.families["IPv4"].states.services[WEB].ports["http", "TCP"]
            assert [one.address for one in state.selection.internal.endpoints] == ["10.0.0.1"]
            assert writer.applied == before


def test_topology_keys_had_node_level_topology() -> None:
    """Alternatives: node-level topology was possible with topologyKeys."""
    gates = GATES.without(Gate.TOPOLOGY_AWARE_HINTS).with_gates(Gate.SERVICE_TOPOLOGY)
    wanted = asking(None, topology_keys=(HOSTNAME_LABEL, "*"))
    routes = SCENE.routed(wanted, controller=gates, proxy=gates)
    assert (routes["n2"], routes["n4"]) == ({"n2-1"}, SCENE.everywhere()["n4"])


def test_it_is_a_hint_and_no_policy() -> None:
    """Alternatives: unlike a traffic policy this is just a hint: Local overrides it, and drops."""
    wanted = asking("PreferSameNode", internal_traffic_policy="Local")
    chosen = SCENE.selections(SCENE.plan(wanted).slices, wanted)
    assert chosen["n4"].internal.verdict is PacketVerdict.DROP
    assert SCENE.routed(asking("PreferSameNode"))["n4"] == {"n3-1"}
