"""KEP-4444, Summary, Motivation, Goals and Non-Goals.

Not counted: the reasons why topologyKeys and Auto were found wanting as designs, and the wish that
other implementations may interpret values as they can; neither says what a component does.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.gates import Gate
from keepclose.model.well_known import HOSTNAME_LABEL, ZONE_LABEL
from keepclose.routing.heuristics import Matrix, ZoneDemand
from keepclose.routing.selection import PacketVerdict
from support.builders import node
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposalscenes import GATES, THREE_ZONES, UNEVEN, Scene, asking, own_zones

TOPOLOGY_KEYS = GATES.without(Gate.TOPOLOGY_AWARE_HINTS).with_gates(Gate.SERVICE_TOPOLOGY)
RACK = "example.dev/rack"
NEAREST_FIRST = (HOSTNAME_LABEL, ZONE_LABEL, "*")


def labelled(scene: Scene) -> Scene:
    """Return the scene with hostname labels on its nodes, as kubelets set them."""
    scene.nodes = [
        node(one.name, one.zone, labels={HOSTNAME_LABEL: one.name}) for one in scene.nodes
    ]
    return scene


async def test_the_service_spec_has_the_field(api: ProposalApi) -> None:
    """The Service spec has a field trafficDistribution, and what is set is stored."""
    assert (await api.post_service(trafficDistribution="PreferClose")).status == 201
    assert await api.distribution() == "PreferClose"


def test_the_field_supersedes_the_annotation() -> None:
    """The field does what the annotation was for, in-zone routing, without any annotation."""
    scene = Scene(THREE_ZONES, {"n1": 2, "n3": 2, "n5": 1})
    by_annotation = scene.routed(asking(None, mode="Auto"))
    assert scene.routed(asking("PreferClose")) == by_annotation
    assert by_annotation["n5"] == {"n5-1"}


async def test_topology_keys_are_deprecated(api: ProposalApi) -> None:
    """The precursor topologyKeys is gone unless asked for: by default the field is unknown."""
    reply = await api.post_service(topologyKeys=[ZONE_LABEL, "*"])
    assert reply.status == 201
    assert ["topologyKeys" in warning for warning in reply.warnings] == [True]
    assert "topologyKeys" not in reply.json["spec"]


def test_topology_keys_are_an_ordered_preference() -> None:
    """With topologyKeys users order their preferences: local nodes, then zone, then anywhere."""
    scene = labelled(Scene(THREE_ZONES, UNEVEN))
    wanted = asking(None, topology_keys=NEAREST_FIRST)
    routes = scene.routed(wanted, controller=TOPOLOGY_KEYS, proxy=TOPOLOGY_KEYS)
    assert routes["n1"] == {"n1-1", "n1-2"}
    assert routes["n4"] == {"n3-1"}
    assert routes["n5"] == {"n1-1", "n1-2", "n2-1", "n3-1"}


def test_topology_keys_take_any_key_before_the_zone() -> None:
    """With topologyKeys an arbitrary key can be preferred over the zone."""
    racks = {"n1": "left", "n2": "right", "n3": "left"}
    scene = Scene({"n1": "zone-a", "n2": "zone-a", "n3": "zone-b"}, {"n2": 1, "n3": 1})
    scene.nodes = [node(one.name, one.zone, labels={RACK: racks[one.name]}) for one in scene.nodes]
    # Slices of v1 carry no labels of nodes but the zone; those of the beta API did.
    slices = [
        replace(
            one,
            endpoints=tuple(
                replace(each, deprecated_topology={RACK: racks[each.node_name or ""]})
                for each in one.endpoints
            ),
        )
        for one in scene.plan(asking(None), gates=TOPOLOGY_KEYS).slices
    ]
    wanted = asking(None, topology_keys=(RACK, ZONE_LABEL))
    chosen = scene.selections(slices, wanted, gates=TOPOLOGY_KEYS)["n1"].internal
    assert [one.node_name for one in chosen.endpoints] == ["n3"]


def test_auto_uses_a_heuristic_of_the_implementation() -> None:
    """When the annotation topology-mode is Auto, a heuristic allocates endpoints to zones."""
    scene = Scene({"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}, {"n1": 1, "n2": 3, "n3": 2})
    hints = scene.hints(scene.plan(asking(None, mode="Auto")))
    assert sorted(hints.values()) == ["zone-a", "zone-a", "zone-b", "zone-b", "zone-c", "zone-c"]


@pytest.mark.parametrize("mode", ["Disabled", "PreferZone", "AUTO", ""])
def test_the_annotation_knows_no_other_value_than_auto(mode: str) -> None:
    """The annotation supports no other value than Auto."""
    scene = Scene(THREE_ZONES, {"n1": 2, "n3": 2, "n5": 2})
    assert set(scene.hints(scene.plan(asking(None, mode=mode))).values()) == {"none"}


def test_auto_may_apply_no_hints() -> None:
    """Auto is less predictable: hints are not applied where the endpoints cannot be balanced."""
    scene = Scene(THREE_ZONES, UNEVEN)
    plan = scene.plan(asking(None, mode="Auto"))
    assert set(scene.hints(plan).values()) == {"none"}
    assert [event.reason for event in plan.events] == ["TopologyAwareHintsDisabled"]


def test_the_field_is_predictable_where_auto_is_not() -> None:
    """Users get closeness by the field even where that overloads endpoints."""
    scene = Scene(THREE_ZONES, UNEVEN)
    assert scene.hints(scene.plan(asking("PreferClose"))) == own_zones(scene)


def test_internal_policy_local_keeps_traffic_on_the_node() -> None:
    """InternalTrafficPolicy Local restricts traffic to endpoints on the node of the client."""
    scene = Scene(THREE_ZONES, UNEVEN)
    routes = scene.routed(asking(None, internal_traffic_policy="Local"))
    assert (routes["n1"], routes["n2"]) == ({"n1-1", "n1-2"}, {"n2-1"})


def test_internal_policy_local_lacks_failover() -> None:
    """Under internalTrafficPolicy Local traffic is dropped if no local endpoint exists."""
    scene = Scene(THREE_ZONES, UNEVEN)
    wanted = asking(None, internal_traffic_policy="Local")
    outcome = scene.selections(scene.plan(wanted).slices, wanted)["n4"].internal
    assert (outcome.endpoints, outcome.verdict) == ((), PacketVerdict.DROP)


def test_node_then_zone_then_anywhere_can_be_introduced() -> None:
    """The design allows "prefer node-local, failover to same zone, then route anywhere"."""
    scene = labelled(Scene(THREE_ZONES, UNEVEN))
    by_keys = scene.routed(
        asking(None, topology_keys=NEAREST_FIRST), controller=TOPOLOGY_KEYS, proxy=TOPOLOGY_KEYS
    )
    assert scene.routed(asking("PreferSameNode")) == by_keys


def test_the_field_is_a_knob_for_routing() -> None:
    """Goal: users get a knob whose preference influences the routing of a Service."""
    scene = Scene(THREE_ZONES, UNEVEN)
    assert scene.routed(asking(None)) == scene.everywhere()
    assert scene.routed(asking("PreferClose")) != scene.everywhere()


@pytest.mark.parametrize("value", ["PreferClose", "PreferSameZone", "PreferSameNode"])
async def test_there_are_standard_values(api: ProposalApi, value: str) -> None:
    """Goal: there are standard values, which the implementation recognizes."""
    assert (await api.post_service(trafficDistribution=value)).status == 201
    plan = Scene(THREE_ZONES, UNEVEN).plan(asking(value))
    assert (plan.strategy.value, plan.strategy.source) == (value, "spec.trafficDistribution")


def test_implementations_can_add_strategies() -> None:
    """Goal: implementations can introduce routing strategies of their own."""

    class FirstZone:
        """Has all endpoints serve the first zone."""

        def allocate(self, demand: ZoneDemand) -> Matrix:
            """Return the allocation."""
            first = min(demand.endpoints)
            return {zone: {first: count} for zone, count in demand.endpoints.items()}

    scene = Scene(THREE_ZONES, UNEVEN)
    plan = scene.plan(
        asking("example.dev/FirstZone"),
        gates=GATES.with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS),
        heuristics={"example.dev/FirstZone": FirstZone()},
    )
    assert set(scene.hints(plan).values()) == {"zone-a"}


def test_no_strict_guarantee() -> None:
    """Non-goal: the field enforces no path; traffic leaves the zone where it has no endpoint."""
    scene = Scene(THREE_ZONES, UNEVEN)
    assert scene.routed(asking("PreferClose"))["n5"] == scene.everywhere()["n5"]


async def test_the_field_stands_beside_traffic_policies(api: ProposalApi) -> None:
    """Non-goal: the field replaces no traffic policy; all three may be set together."""
    reply = await api.post_service(
        type="NodePort",
        trafficDistribution="PreferClose",
        internalTrafficPolicy="Local",
        externalTrafficPolicy="Local",
    )
    assert reply.status == 201
    spec = reply.json["spec"]
    assert [spec["internalTrafficPolicy"], spec["externalTrafficPolicy"]] == ["Local", "Local"]
    assert spec["trafficDistribution"] == "PreferClose"


async def test_other_heuristics_are_not_there_yet(api: ProposalApi) -> None:
    """Non-goal: heuristics such as Local are not among the first values."""
    reply = await api.post_service(trafficDistribution="Local")
    assert reply.status == 422
    assert 'spec.trafficDistribution: Unsupported value: "Local"' in reply.message
