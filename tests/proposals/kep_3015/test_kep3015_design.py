"""KEP-3015, Design Details: PreferSameZone, PreferSameNode, node hints, and what kube-proxy does.

Not counted: the older definition of PreferClose that is quoted, and what other proxies did.
"""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from keepclose.apiserver.schema.protobuf import load_messages
from keepclose.model.endpointslice.types import Endpoint
from keepclose.model.gates import FeatureGates
from support.builders import endpoint, endpoint_slice
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposalscenes import (
    GATES,
    NO_SAME_NODE,
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    own_nodes,
    own_zones,
)

PLACES = st.dictionaries(st.sampled_from(sorted(THREE_ZONES)), st.integers(0, 4))
HINTS = "io.k8s.api.discovery.v1.EndpointHints"
FOR_NODE = "io.k8s.api.discovery.v1.ForNode"
TWO_ZONES = Scene({"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": None}, {})
ZONES, NODES = ("zone-a", "zone-a", "zone-b"), ("n1", "n2", "n3")


def hinted(
    *, zones: tuple[str, ...] = ("", "", ""), nodes: tuple[str, ...] = ("", "", "")
) -> list[Endpoint]:
    """Return three endpoints with these hints; "" is none, and blanks part several."""
    return [
        endpoint(
            f"10.0.0.{number}",
            for_zones=tuple(zone.split()),
            for_nodes=tuple(node.split()),
        )
        for number, (zone, node) in enumerate(zip(zones, nodes, strict=True), start=1)
    ]


def available(ends: list[Endpoint], *, gates: FeatureGates = GATES) -> dict[str, list[int]]:
    """Return the numbers of the topologically available endpoints by node."""
    chosen = TWO_ZONES.selections([endpoint_slice(*ends)], gates=gates)
    return {
        name: [int(end.address.rpartition(".")[2]) for end in one.internal.endpoints]
        for name, one in chosen.items()
    }


EVERYBODY = [1, 2, 3]


async def test_prefer_same_zone_is_a_value(api: ProposalApi) -> None:
    """There is a new value PreferSameZone, which needs no warning."""
    reply = await api.post_service(trafficDistribution="PreferSameZone")
    assert (reply.status, reply.warnings) == (201, [])


@given(PLACES)
def test_same_zone_if_any_is_available(pods: dict[str, int]) -> None:
    """PreferSameZone: the proxy always routes to a same-zone endpoint if any is available."""
    scene = Scene(THREE_ZONES, pods)
    zones = own_zones(scene)
    for name, used in scene.routed(asking("PreferSameZone")).items():
        if THREE_ZONES[name] in zones.values():
            assert {zones[pod] for pod in used} == {THREE_ZONES[name]}


@given(PLACES)
def test_prefer_close_is_an_alias(pods: dict[str, int]) -> None:
    """PreferClose is an alias for PreferSameZone and never means anything else."""
    scene = Scene(THREE_ZONES, pods)
    close, zone = (scene.plan(asking(value)) for value in ("PreferClose", "PreferSameZone"))
    assert close.slices == zone.slices
    assert close.strategy.name is zone.strategy.name


def test_prefer_close_is_implemented_as_before() -> None:
    """The existing implementation of PreferClose does not change, with the feature or without."""
    scene = Scene(THREE_ZONES, UNEVEN)
    wanted = asking("PreferClose")
    assert scene.plan(wanted).slices == scene.plan(wanted, gates=NO_SAME_NODE).slices
    assert scene.routed(wanted) == scene.routed(wanted, controller=NO_SAME_NODE, proxy=NO_SAME_NODE)


async def test_prefer_same_node_is_a_value(api: ProposalApi) -> None:
    """There is a new value PreferSameNode."""
    reply = await api.post_service(trafficDistribution="PreferSameNode")
    assert (reply.status, reply.warnings) == (201, [])


@given(PLACES)
def test_same_node_if_any_is_available(pods: dict[str, int]) -> None:
    """PreferSameNode: the proxy always routes to a same-node endpoint if any is available."""
    scene = Scene(THREE_ZONES, pods)
    for name, used in scene.routed(asking("PreferSameNode")).items():
        own = {f"{name}-{number}" for number in range(1, pods.get(name, 0) + 1)}
        if own:
            assert used == own


async def test_hints_have_a_field_for_nodes(api: ProposalApi) -> None:
    """EndpointHints of discovery v1 have a new field forNodes, and what is set is stored."""
    hints = {"forNodes": [{"name": "n1"}]}
    assert (await api.post_slice(hints=hints)).status == 201
    assert await api.hints() == hints


async def test_for_nodes_is_an_atomic_list(api: ProposalApi) -> None:
    """The list forNodes is atomic: an apply by another manager replaces it as a whole."""
    document = await api.plain.get("/openapi/v2")
    field = document["definitions"][HINTS]["properties"]["forNodes"]
    assert field["x-kubernetes-list-type"] == "atomic"
    assert (field["type"], field["items"]) == ("array", {"$ref": f"#/definitions/{FOR_NODE}"})


async def test_for_nodes_is_omitted_where_it_is_empty(api: ProposalApi) -> None:
    """An empty forNodes is not written: the JSON omits it."""
    hints = {"forZones": [{"name": "zone-a"}], "forNodes": []}
    await api.post_slice(hints=hints)
    assert await api.hints() == {"forZones": [{"name": "zone-a"}]}


def test_for_nodes_has_number_2() -> None:
    """In protobuf forNodes is field 2 of EndpointHints, a list of messages."""
    fields = {one.name: one for one in load_messages()["discovery.v1.EndpointHints"]}
    assert (fields["forNodes"].number, fields["forNodes"].list) == (2, True)


def test_the_name_of_a_node_has_number_1() -> None:
    """In protobuf the name of the node is field 1 of ForNode."""
    (name,) = load_messages()["discovery.v1.ForNode"]
    assert (name.number, name.name, name.type) == (1, "name", "string")


async def test_for_node_has_the_name_of_the_node(api: ProposalApi) -> None:
    """ForNode has one field, name, which is required."""
    document = await api.plain.get("/openapi/v2")
    definition = document["definitions"][FOR_NODE]
    assert list(definition["properties"]) == ["name"]
    assert definition["required"] == ["name"]


async def test_plain_strings_are_refused(api: ProposalApi) -> None:
    """ForNodes is consistent with forZones: a list of objects and not of strings."""
    reply = await api.post_slice(hints={"forNodes": ["n1"]})
    assert reply.status == 400
    document = await api.plain.get("/openapi/v2")
    shapes = document["definitions"][HINTS]["properties"]
    assert shapes["forNodes"]["type"] == shapes["forZones"]["type"] == "array"


def test_the_controller_adds_the_node_of_each_endpoint() -> None:
    """For PreferSameNode each endpoint gets a forNodes hint with the name of its node."""
    scene = Scene(THREE_ZONES, UNEVEN)
    for piece in scene.plan(asking("PreferSameNode")).slices:
        for one in piece.endpoints:
            assert one.hints is not None
            assert [hint.name for hint in one.hints.for_nodes] == [one.node_name]


@given(PLACES, st.sampled_from([None, "PreferClose", "PreferSameZone", "PreferSameNode"]))
def test_there_are_0_or_1_nodes(pods: dict[str, int], value: str | None) -> None:
    """Initially forNodes always has either 0 or 1 elements: 1 for PreferSameNode alone."""
    want = 1 if value == "PreferSameNode" else 0
    for piece in Scene(THREE_ZONES, pods).plan(asking(value)).slices:
        for one in piece.endpoints:
            assert len(one.hints.for_nodes if one.hints else ()) == want


async def test_several_nodes_are_possible(api: ProposalApi) -> None:
    """The field is an array for future extensibility: several nodes can be stored and used."""
    names = [{"name": "n1"}, {"name": "n2"}]
    assert (await api.post_slice(hints={"forNodes": names})).status == 201
    ends = hinted(nodes=("n1 n2", "n2", "n3"))
    assert [available(ends)[name] for name in NODES] == [[1], [1, 2], [3]]


def test_the_controller_sets_zones_too() -> None:
    """For PreferSameNode forZones is set as it would be with PreferClose."""
    scene = Scene(THREE_ZONES, UNEVEN)
    assert scene.hints(scene.plan(asking("PreferSameNode"))) == own_nodes(scene)
    zones = {
        scene.name_of(one): [hint.name for hint in one.hints.for_zones] if one.hints else []
        for piece in scene.plan(asking("PreferSameNode")).slices
        for one in piece.endpoints
    }
    assert zones == {name: [zone] for name, zone in own_zones(scene).items()}


def test_zones_are_for_older_proxies() -> None:
    """The zone hints let older service proxies fall back to same-zone behaviour."""
    scene = Scene(THREE_ZONES, UNEVEN)
    older = scene.routed(asking("PreferSameNode"), proxy=NO_SAME_NODE)
    assert older == scene.routed(asking("PreferClose"))


def test_step_1_all_have_nodes_and_one_is_ours() -> None:
    """Step 1: all have forNodes and one includes the local node: those that include it."""
    found = available(hinted(zones=ZONES, nodes=NODES))
    assert [found[name] for name in NODES] == [[1], [2], [3]]


def test_step_2_all_have_zones_and_one_is_ours() -> None:
    """Step 2: otherwise, all have forZones and one includes our zone: those that include it."""
    found = available(hinted(zones=ZONES))
    assert [found[name] for name in NODES] == [[1, 2], [1, 2], [3]]


def test_step_3_otherwise_all() -> None:
    """Step 3: otherwise, all endpoints are topologically available."""
    assert set(map(tuple, available(hinted()).values())) == {tuple(EVERYBODY)}


def test_step_1_needs_a_hint_on_every_endpoint() -> None:
    """Step 1 does not apply if one endpoint has no forNodes; step 2 may."""
    found = available(hinted(zones=ZONES, nodes=("n1", "n2", "")))
    assert [found[name] for name in NODES] == [[1, 2], [1, 2], [3]]


def test_step_1_needs_the_local_node() -> None:
    """Step 1 does not apply if no forNodes includes the local node; step 2 may."""
    found = available(hinted(zones=ZONES, nodes=("n1", "n1", "n9")))
    assert [found[name] for name in NODES] == [[1, 2], [1, 2], [3]]


def test_step_2_needs_a_hint_on_every_endpoint() -> None:
    """Step 2 does not apply if one endpoint has no forZones."""
    found = available(hinted(zones=("zone-a", "zone-a", "")))
    assert [found[name] for name in NODES] == [EVERYBODY] * 3


def test_step_2_needs_the_zone_of_the_node() -> None:
    """Step 2 does not apply if no forZones includes the zone of the local node."""
    found = available(hinted(zones=("zone-a", "zone-a", "zone-a")))
    assert (found["n3"], found["n4"]) == (EVERYBODY, EVERYBODY)


def test_only_the_first_step_is_new() -> None:
    """The first step is new, the other two are as before."""
    level = [("", "", ""), ZONES, ("zone-a", "", "zone-b"), ("zone-a", "zone-a", "zone-a")]
    nodes = [("", "", ""), NODES, ("n1", "n2", "")]
    for zones, names in itertools.product(level, nodes):
        before = available(hinted(zones=zones))
        assert available(hinted(zones=zones, nodes=names), gates=NO_SAME_NODE) == before
