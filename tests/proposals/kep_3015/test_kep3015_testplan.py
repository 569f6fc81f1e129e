"""KEP-3015, Test Plan and Graduation Criteria: what the tests named there assert.

Not counted: that time passes, and that there are no objections. What kube-proxy's tests assert is
in the module of the design.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.kube.requests import PODS, SERVICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import parse_gates
from keepclose.slices.service_planner import ServicePlan
from keepclose.testing.api_server import serving
from support.controllers import World
from support.live.sights import POST, PUT, hints, quick
from support.packets.webobjects import web
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposalpackets import PacketScene, packet_scene
from support.proposals.proposalscenes import (
    GATES,
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    named,
    own_nodes,
    own_zones,
)

OFF = parse_gates("PreferSameTrafficDistribution=false")
NODE_HINTS = {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "n1"}]}
ZONE_HINTS = {"forZones": [{"name": "zone-a"}]}
SPREAD = ("n1-p1", "n2-p1", "n3-p1")
"""Two in zone-a, on a node each; one in zone-b; none in zone-c."""
SCENE = Scene(THREE_ZONES, UNEVEN)


@pytest.fixture(scope="module")
def packets() -> Iterator[PacketScene]:
    """Run one network for all tests of this file."""
    with packet_scene() as scene:
        yield scene


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("PreferClose", 201),
        ("PreferSameZone", 201),
        ("PreferSameNode", 201),
        ("PreferSameRegion", 422),
        ("prefersamenode", 422),
        ("", 422),
    ],
)
async def test_validation_of_services(api: ProposalApi, value: str, status: int) -> None:
    """TestValidateServiceCreate: the new values are valid, others are not."""
    assert (await api.post_service(trafficDistribution=value)).status == status


async def test_validation_of_services_without_the_gate(tmp_path: Path) -> None:
    """TestValidateServiceCreate: without the gate the new values are not supported."""
    async with serving(tmp_path, gates=OFF) as plain:
        reply = await ProposalApi(plain).post_service(trafficDistribution="PreferSameNode")
        assert reply.status == 422
        assert reply.message.endswith('"PreferSameNode": supported values: "PreferClose"')


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(["N_1"], "hints.forNodes[0].name: Invalid value", id="no name of a node"),
        pytest.param(["n1", "n1"], "hints.forNodes[1].name: Duplicate value", id="twice"),
        pytest.param([f"n{n}" for n in range(9)], "hints.forNodes: Too many", id="more than 8"),
    ],
)
async def test_validation_of_slices(api: ProposalApi, names: list[str], message: str) -> None:
    """TestValidateEndpointSlice: names in forNodes are valid, different, and 8 at most."""
    reply = await api.post_slice(hints={"forNodes": [{"name": name} for name in names]})
    assert reply.status == 422
    assert message in reply.message


async def test_drop_on_create(tmp_path: Path) -> None:
    """Test_dropDisabledFieldsOnCreate: without the gate new slices get no forNodes."""
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        assert (await api.post_slice(hints=NODE_HINTS)).status == 201
        assert await api.hints() == ZONE_HINTS


async def test_drop_on_update(tmp_path: Path) -> None:
    """Test_dropDisabledFieldsOnUpdate: without the gate an update brings no forNodes."""
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        await api.post_slice(hints=ZONE_HINTS)
        assert (await api.put_slice(hints=NODE_HINTS)).status == 200
        assert await api.hints() == ZONE_HINTS


async def test_keep_on_update_what_is_in_use(tmp_path: Path) -> None:
    """Test_dropDisabledFieldsOnUpdate: a slice that already has forNodes may keep it."""
    async with serving(tmp_path) as plain:
        await ProposalApi(plain).post_slice(hints=NODE_HINTS)
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        assert (await api.put_slice(hints=NODE_HINTS)).status == 200
        assert await api.hints() == NODE_HINTS


async def test_reconcile_traffic_distribution(cluster: World) -> None:
    """TestReconcile_TrafficDistribution: each value gives its hints, by one write a change."""
    await cluster.add_node("n1", "zone-a")
    await cluster.add_pod("p1", "n1", ip="10.0.0.1")
    await cluster.add_service()
    want = {"PreferClose": "zone-a", "PreferSameNode": "zone-a on n1", None: "none"}
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == [POST]
        for value, hint in want.items():
            await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": value}})
            await cluster.settle(controller)
            assert hints(await cluster.slices()) == {"10.0.0.1": hint}
            assert cluster.wire.take() == [PUT]


def writes(plan: ServicePlan) -> tuple[int, int, int]:
    """Return how many slices are created, updated and left as they are."""
    (one,) = plan.plans.values()
    return len(one.create), len(one.update), len(one.unchanged)


def test_reconcile_hints_of_new_slices() -> None:
    """TestReconcileHints: slices that are created get the hints of the value."""
    plan = SCENE.plan(asking("PreferSameNode"))
    assert (writes(plan), SCENE.hints(plan)) == ((1, 0, 0), own_nodes(SCENE))


def test_reconcile_hints_of_slices_with_other_hints() -> None:
    """TestReconcileHints: slices whose hints are wrong are updated."""
    zones = SCENE.plan(asking("PreferSameZone")).slices
    plan = SCENE.plan(asking("PreferSameNode"), slices=zones)
    assert (writes(plan), SCENE.hints(plan)) == ((0, 1, 0), own_nodes(SCENE))


def test_reconcile_hints_of_slices_with_the_right_hints() -> None:
    """TestReconcileHints: slices whose hints are right are not written again."""
    nodes = SCENE.plan(asking("PreferSameNode")).slices
    assert writes(SCENE.plan(asking("PreferSameNode"), slices=nodes)) == (0, 0, 1)


def test_reconcile_hints_of_endpoints_that_are_not_ready() -> None:
    """TestReconcileHints: endpoints that are not ready get no hints, and need none."""
    scene = Scene(THREE_ZONES, UNEVEN, not_ready=["n2-1"])
    plan = scene.plan(asking("PreferSameNode"))
    assert scene.hints(plan) == {**own_nodes(scene), "n2-1": "none"}
    assert scene.routes(plan)["n1"] == {"n1-1", "n1-2"}


def test_reconcile_hints_without_zone() -> None:
    """TestReconcileHints: an endpoint without zone gets a node hint alone."""
    scene = Scene({"n1": None}, {"n1": 1})
    assert scene.hints(scene.plan(asking("PreferSameNode"))) == {"n1-1": "on n1"}


def test_reconcile_removes_hints_of_a_former_value() -> None:
    """TestReconcileHints: from PreferSameNode to PreferSameZone the node hints go."""
    nodes = named(SCENE.plan(asking("PreferSameNode")).slices)
    plan = SCENE.plan(asking("PreferSameZone"), slices=nodes)
    assert SCENE.hints(plan) == own_zones(SCENE)
    assert strip(plan.slices) == strip(nodes)


def strip(slices: tuple[EndpointSlice, ...] | list[EndpointSlice]) -> list[EndpointSlice]:
    """Return slices without any hints."""
    return [
        replace(one, endpoints=tuple(replace(each, hints=None) for each in one.endpoints))
        for one in slices
    ]


@pytest.mark.parametrize("value", ["PreferSameZone", "PreferSameNode"])
async def test_integration_disabling_removes_hints(cluster: World, value: str) -> None:
    """Integration test: disabling the feature removes the hints of Services with new values."""
    await cluster.add_node("n1", "zone-a")
    await cluster.add_pod("p1", "n1", ip="10.0.0.1")
    await cluster.add_service(trafficDistribution=value)
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices())["10.0.0.1"].startswith("zone-a")
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "none"}


async def test_integration_transitions(cluster: World) -> None:
    """Test_TransitionsForPreferSameTrafficDistribution: zone, node, nothing, node without zone."""
    await cluster.add_node("n1", "zone-a")
    await cluster.add_pod("p1", "n1", ip="10.0.0.1")
    await cluster.add_service()
    steps = (
        ("PreferSameZone", "zone-a", "zone-a"),
        ("PreferSameNode", "zone-a", "zone-a on n1"),
        (None, "zone-a", "none"),
        ("PreferSameNode", None, "on n1"),
    )
    async with cluster.controlled() as controller:
        for value, zone, want in steps:
            await cluster.label_node("n1", zone)
            await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": value}})
            await cluster.settle(controller)
            assert hints(await cluster.slices()) == {"10.0.0.1": want}


def test_e2e_prefer_same_zone(packets: PacketScene) -> None:
    """E2e test: with PreferSameZone clients stay in a zone with endpoints, on whatever node."""
    wanted = web("web", 40, traffic_distribution="PreferSameZone")
    packets.route(wanted, SPREAD)
    in_a = SPREAD[:2]
    packets.expect(wanted, {"n1": in_a, "n2": in_a, "n3": SPREAD[2:], "n4": SPREAD})


def test_e2e_prefer_same_node(packets: PacketScene) -> None:
    """E2e test: with PreferSameNode clients stay on a node with endpoints, else in the zone."""
    wanted = web("web", 40, traffic_distribution="PreferSameNode")
    packets.route(wanted, SPREAD)
    packets.expect(wanted, {"n1": SPREAD[:1], "n2": SPREAD[1:2], "n3": SPREAD[2:], "n4": SPREAD})
    packets.route(wanted, SPREAD[1:])
    packets.expect(wanted, {"n1": SPREAD[1:2]})


def test_e2e_an_endpoint_is_lost_and_returns(packets: PacketScene) -> None:
    """E2e test: a client whose local endpoint goes uses another, and returns when it is back."""
    wanted = web("web", 40, traffic_distribution="PreferSameNode")
    both = ("n1-p1", "n2-p1")
    for servers, want in ((both, both[:1]), (both[1:], both[1:]), (both, both[:1])):
        packets.route(wanted, servers)
        packets.expect(wanted, {"n1": want, "n2": both[1:]})


async def test_alpha_behind_a_flag(cluster: World) -> None:
    """Alpha: the feature is behind a feature flag; endpoints come and go without hints then."""
    await cluster.add_node("n1", "zone-a")
    await cluster.add_pod("p1", "n1", ip="10.0.0.1")
    await cluster.add_service(trafficDistribution="PreferSameNode")
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
        await cluster.add_pod("p2", "n1", ip="10.0.0.2")
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"none"}
        await cluster.remove(PODS, "p2")
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "none"}
