"""KEP-3015, Summary, Goals, User Stories, Risks and Mitigations.

Not counted: the discussion that led to the proposal, and what future proxies may be able to do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.kube.requests import SERVICES
from support.controllers import World
from support.live.sights import hints
from support.packets.webobjects import web
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposaldocs import DISTRIBUTION_PAGE, read_section
from support.proposals.proposalpackets import SERVERS, PacketScene, packet_scene
from support.proposals.proposalscenes import (
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    own_nodes,
    own_zones,
)

PLACES = st.dictionaries(st.sampled_from(sorted(THREE_ZONES)), st.integers(0, 4))
ONE_EACH = dict.fromkeys(THREE_ZONES, 1)
DNS = ("n1-p1", "n2-p1", "n3-p1")


@pytest.fixture(scope="module")
def packets() -> Iterator[PacketScene]:
    """Run one network for all tests of this file."""
    with packet_scene() as scene:
        yield scene


async def test_prefer_close_is_deprecated(api: ProposalApi) -> None:
    """PreferClose is deprecated: a client that sets it gets a warning with the new name."""
    reply = await api.post_service(trafficDistribution="PreferClose")
    assert reply.status == 201
    (warning,) = reply.warnings
    assert "deprecated" in warning
    assert "PreferSameZone" in warning


def test_prefer_same_zone_replaces_prefer_close() -> None:
    """PreferSameZone is a new name for the old behaviour of PreferClose."""
    scene = Scene(THREE_ZONES, UNEVEN)
    assert scene.routed(asking("PreferSameZone")) == scene.routed(asking("PreferClose"))
    assert scene.hints(scene.plan(asking("PreferSameZone"))) == own_zones(scene)


def test_prefer_same_node_prefers_the_node_of_the_client() -> None:
    """PreferSameNode routes preferentially to endpoints on the same node as the client."""
    routes = Scene(THREE_ZONES, UNEVEN).routed(asking("PreferSameNode"))
    assert (routes["n1"], routes["n2"], routes["n3"]) == ({"n1-1", "n1-2"}, {"n2-1"}, {"n3-1"})


def test_goal_values_are_unambiguous() -> None:
    """Goal: the values are unambiguous, so zone and node have one value each and differ."""
    scene = Scene(THREE_ZONES, UNEVEN)
    zone, node = (scene.routed(asking(f"PreferSame{level}")) for level in ("Zone", "Node"))
    assert zone["n1"] == {"n1-1", "n1-2", "n2-1"} != node["n1"] == {"n1-1", "n1-2"}


def test_goal_a_local_endpoint_when_possible(packets: PacketScene) -> None:
    """Goal: connections are delivered to a local endpoint when possible."""
    wanted = web("web", 30, traffic_distribution="PreferSameNode")
    packets.route(wanted)
    packets.expect(wanted, {"n1": SERVERS[:2], "n2": SERVERS[2:3], "n3": SERVERS[3:]})


def test_goal_a_remote_endpoint_if_not(packets: PacketScene) -> None:
    """Goal: connections are delivered to a remote endpoint if there is no local one."""
    wanted = web("web", 30, traffic_distribution="PreferSameNode")
    packets.route(wanted)
    packets.expect(wanted, {"n4": SERVERS})


async def test_non_goal_prefer_close_is_not_removed(api: ProposalApi) -> None:
    """Non-goal: PreferClose is not removed from the API."""
    assert (await api.post_service(trafficDistribution="PreferClose")).status == 201
    assert await api.distribution() == "PreferClose"


@given(PLACES)
def test_story_it_really_is_the_same_zone(pods: dict[str, int]) -> None:
    """Story: PreferSameZone really is the same zone, whatever a smarter proxy would prefer.

    All ready endpoints of the zone, only those, and each as much as the others.
    """
    scene = Scene(THREE_ZONES, pods)
    plan = scene.plan(asking("PreferSameZone"))
    for name, one in scene.selections(plan.slices).items():
        ends = one.internal.endpoints
        own = {pod for pod, zone in own_zones(scene).items() if zone == THREE_ZONES[name]}
        if own:
            assert {end.zone for end in ends} == {THREE_ZONES[name]}
            assert (len(ends), {end.weight for end in ends}) == (len(own), {1})


def test_story_dns_goes_to_the_local_pod(packets: PacketScene) -> None:
    """DNS story: with a DNS pod on each node, requests always go to the local one."""
    dns = web("dns", 31, traffic_distribution="PreferSameNode")
    packets.route(dns, DNS)
    packets.expect(dns, {"n1": ("n1-p1",), "n2": ("n2-p1",), "n3": ("n3-p1",)}, udp=True)


def test_story_dns_keeps_working_without_the_local_pod(packets: PacketScene) -> None:
    """DNS story: if no local DNS pod is available, requests go to a remote pod."""
    dns = web("dns", 31, traffic_distribution="PreferSameNode")
    packets.route(dns, DNS, not_ready=("n2-p1",))
    packets.expect(dns, {"n2": ("n1-p1",), "n4": ("n1-p1", "n3-p1")}, udp=True)


def test_story_dns_does_not_worry_about_overload() -> None:
    """DNS story: the mode does not worry about overload: hints are there however uneven."""
    scene = Scene(THREE_ZONES, {"n1": 4, "n3": 1})
    assert scene.hints(scene.plan(asking("PreferSameNode"))) == own_nodes(scene)
    assert max(scene.loads(scene.routed(asking("PreferSameNode"))).values()) > 2


async def test_risk_users_can_change_the_service(cluster: World) -> None:
    """Risk: a user for whom the value turns out wrong can just change the Service."""
    await cluster.add_node("n1", "zone-a")
    await cluster.add_pod("p1", "n1", ip="10.0.0.1")
    await cluster.add_service(trafficDistribution="PreferSameZone")
    found = []
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        for value in ("PreferSameNode", None):
            await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": value}})
            await cluster.settle(controller)
            found.append(hints(await cluster.slices())["10.0.0.1"])
    assert found == ["zone-a on n1", "none"]


def test_risk_modes_overload_endpoints_if_used_poorly() -> None:
    """Risk: these modes overload endpoints if used poorly."""
    scene = Scene(THREE_ZONES, {"n1": 1, "n2": 1, "n3": 8})
    plain = scene.loads(scene.routed(asking(None)))
    assert max(plain.values()) == pytest.approx(1.0)
    for value in ("PreferSameZone", "PreferSameNode"):
        assert max(scene.loads(scene.routed(asking(value))).values()) > 1.1


def test_risk_modes_are_safe_where_pods_are_spread() -> None:
    """Risk: with pods spread by topology spread constraints the modes are completely safe."""
    scene = Scene(THREE_ZONES, ONE_EACH)
    for value in ("PreferSameZone", "PreferSameNode"):
        loads = scene.loads(scene.routed(asking(value)))
        assert max(loads.values()) == pytest.approx(1.0)


def test_risk_docs_name_what_takes_care_of_load() -> None:
    """Risk: the documentation names spread constraints and autoscaling beside the modes."""
    text = read_section(DISTRIBUTION_PAGE, "What it is for, and what it risks")
    assert "topologySpreadConstraints" in text
    assert "autoscaler" in text
