"""KEP-4444, Test Plan, Graduation Criteria, Upgrade / Downgrade and Version Skew Strategy.

Components from before the field are those with its gates off. Not counted: coverage figures and
test grids of Kubernetes, dates, feedback of developers, and examples of use.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keepclose.kube.requests import SERVICES
from keepclose.model.gates import DEFAULT_GATES, Gate, parse_gates
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.routing.strategy import StrategyName
from support.controllers import World
from support.live.sights import hints, quick
from support.packets.webobjects import web
from support.proposals.proposalpackets import SERVERS, PacketScene, packet_scene
from support.proposals.proposalscenes import GATES, NO_FIELD, Scene, asking, own_zones

AUTO = {TOPOLOGY_MODE_ANNOTATION: "Auto"}
NODES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}
SCENE = Scene(NODES, {"n1": 1, "n2": 3, "n3": 2})
"""Auto and the field give other hints here: zone-b lends an endpoint to zone-a under Auto."""
BOTH, FIELD, ANNOTATION = (
    asking("PreferClose", mode="Auto"),
    asking("PreferClose"),
    asking(None, mode="Auto"),
)
BY_AUTO = SCENE.routed(ANNOTATION, controller=NO_FIELD, proxy=NO_FIELD)
"""What a cluster from before the field makes of the annotation."""


@pytest.fixture(scope="module")
def packets() -> Iterator[PacketScene]:
    """Run one network for all tests of this file."""
    with packet_scene() as scene:
        yield scene


async def build(cluster: World) -> None:
    """Make the scene above on a running cluster."""
    for name, zone in NODES.items():
        await cluster.add_node(name, zone)
    for one in SCENE.pods:
        await cluster.add_pod(one.metadata.name, one.spec.node_name, ip=one.status.pod_ip)


def by_address(wanted: dict[str, str]) -> dict[str, str]:
    """Return hints by address instead of by pod."""
    return {one.status.pod_ip: wanted[one.metadata.name] for one in SCENE.pods}


async def test_integration_the_annotation_takes_precedence(cluster: World) -> None:
    """Integration test: with annotation Auto and field PreferClose the annotation wins."""
    await build(cluster)
    await cluster.add_service(annotations=AUTO, trafficDistribution="PreferClose")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        both = hints(await cluster.slices())
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == both
    assert sorted(both.values()) == ["zone-a", "zone-a", "zone-b", "zone-b", "zone-c", "zone-c"]


async def test_e2e_hints_are_populated(cluster: World) -> None:
    """E2e test: slices have the right hints when trafficDistribution is PreferClose."""
    await build(cluster)
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == by_address(own_zones(SCENE))


def test_e2e_requests_stay_in_a_zone_with_pods(packets: PacketScene) -> None:
    """E2e test: requests from a zone with pods of the Service get to a pod of that zone."""
    wanted = web("web", 20, traffic_distribution="PreferClose")
    packets.route(wanted)
    packets.expect(wanted, {"n1": SERVERS[:3], "n2": SERVERS[:3], "n3": SERVERS[3:]})


def test_e2e_requests_from_a_zone_without_pods_are_not_blackholed(packets: PacketScene) -> None:
    """E2e test: requests from zones without pods are forwarded to any pod of the cluster."""
    wanted = web("web", 20, traffic_distribution="PreferClose")
    packets.route(wanted)
    packets.expect(wanted, {"n4": SERVERS})


def test_alpha_the_feature_is_behind_a_gate() -> None:
    """Alpha: the feature is implemented behind a feature gate."""
    off = parse_gates("ServiceTrafficDistribution=false")
    assert SCENE.plan(FIELD, gates=off).strategy.name is StrategyName.NONE
    on = parse_gates("ServiceTrafficDistribution=true")
    assert SCENE.plan(FIELD, gates=on).strategy.name is StrategyName.SAME_ZONE


def test_beta_the_gate_is_on_by_default() -> None:
    """Beta and later: the gate is enabled by default."""
    assert DEFAULT_GATES.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION)


def test_ga_prefer_same_zone_is_an_alias() -> None:
    """GA: PreferSameZone, which KEP-3015 introduces, is an alias for PreferClose."""
    assert SCENE.plan(asking("PreferSameZone")).slices == SCENE.plan(FIELD).slices


async def test_upgrade_with_both_the_annotation_wins(cluster: World) -> None:
    """Upgrade: of annotation and field the annotation takes precedence, the field is ignored."""
    await build(cluster)
    await cluster.add_service(annotations=AUTO, trafficDistribution="PreferClose")
    async with cluster.controlled(quick(NO_FIELD)) as controller:
        await cluster.settle(controller)
        before = hints(await cluster.slices())
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == before != by_address(own_zones(SCENE))
        assert cluster.wire.take() == []


async def test_upgrade_with_the_annotation_alone_nothing_changes(cluster: World) -> None:
    """Upgrade: a Service with the annotation alone behaves the same."""
    await build(cluster)
    await cluster.add_service(annotations=AUTO)
    async with cluster.controlled(quick(NO_FIELD)) as controller:
        await cluster.settle(controller)
        before = hints(await cluster.slices())
    assert set(before.values()) == {"zone-a", "zone-b", "zone-c"}
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert (hints(await cluster.slices()), cluster.wire.take()) == (before, [])


async def test_downgrade_of_the_controller(cluster: World) -> None:
    """Downgrade of the EndpointSlice controller: the field is simply not considered."""
    await build(cluster)
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == by_address(own_zones(SCENE))
    async with cluster.controlled(quick(NO_FIELD)) as controller:
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"none"}


def test_downgrade_of_the_proxy() -> None:
    """Downgrade of kube-proxy: the field is not considered in any decision."""
    assert SCENE.routed(FIELD) != SCENE.everywhere()
    assert SCENE.routed(FIELD, proxy=NO_FIELD) == SCENE.everywhere()


async def test_skew_an_older_controller_ignores_the_field(cluster: World) -> None:
    """Skew: a newer kube-apiserver serves the field, an older controller ignores it silently."""
    await build(cluster)
    created = await cluster.add_service(trafficDistribution="PreferClose")
    assert created.spec.traffic_distribution == "PreferClose"
    async with cluster.controlled(quick(NO_FIELD)) as controller:
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"none"}
        await controller._recorder.flush()
        assert await cluster.events() == []


def test_skew_an_older_proxy_ignores_the_field() -> None:
    """Skew: an older kube-proxy ignores the field, hinted or not."""
    for controller in (GATES, NO_FIELD):
        assert SCENE.routed(FIELD, controller=controller, proxy=NO_FIELD) == SCENE.everywhere()


def test_skew_is_as_if_the_feature_were_disabled() -> None:
    """Skew: with older controller and proxies the field has no effect at all."""
    old = {"controller": NO_FIELD, "proxy": NO_FIELD}
    assert SCENE.routed(FIELD, **old) == SCENE.routed(asking(None), **old)


def test_new_controller_old_proxy_with_both() -> None:
    """New controller, old proxy, both set: as before, since the annotation wins."""
    assert SCENE.routed(BOTH, proxy=NO_FIELD) == BY_AUTO


def test_new_controller_old_proxy_with_the_field() -> None:
    """New controller, old proxy, field alone: hints are written, and the proxy ignores them."""
    plan = SCENE.plan(FIELD)
    assert SCENE.hints(plan) == own_zones(SCENE)
    assert SCENE.routes(plan, FIELD, gates=NO_FIELD) == SCENE.everywhere()


def test_new_controller_old_proxy_with_the_annotation() -> None:
    """New controller, old proxy, annotation alone: the same as with both."""
    assert SCENE.routed(ANNOTATION, proxy=NO_FIELD) == SCENE.routed(BOTH, proxy=NO_FIELD) == BY_AUTO


def test_old_controller_new_proxy_with_both() -> None:
    """Old controller, new proxy, both set: hints by the annotation, which the proxy follows."""
    plan = SCENE.plan(BOTH, gates=NO_FIELD)
    assert plan.strategy.name is StrategyName.AUTO
    assert SCENE.routes(plan, BOTH) == BY_AUTO


def test_old_controller_new_proxy_with_the_field() -> None:
    """Old controller, new proxy, field alone: no hints, so routes are those without hints."""
    plan = SCENE.plan(FIELD, gates=NO_FIELD)
    assert set(SCENE.hints(plan).values()) == {"none"}
    assert SCENE.routes(plan, FIELD) == SCENE.everywhere()


def test_old_controller_new_proxy_with_the_annotation() -> None:
    """Old controller, new proxy, annotation alone: the same as with both."""
    assert SCENE.routed(ANNOTATION, controller=NO_FIELD) == BY_AUTO
