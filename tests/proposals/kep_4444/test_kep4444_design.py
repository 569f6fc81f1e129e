"""KEP-4444, Design Details: the values, hints, kube-proxy, the field's name, traffic policies.

Not counted: that hints are the simpler implementation, that data planes other than kube-proxy need
not follow them, and the reasons against words such as topology in the name of the field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.addresses import IPV4
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import Service
from keepclose.model.well_known import TOPOLOGY_HINTS_ANNOTATION
from keepclose.routing.service_ports import routed_ports
from support.builders import endpoint, endpoint_slice, node, service
from support.packets.chances import UNBELIEVABLE, chance_of
from support.packets.loads import ask_here
from support.packets.webobjects import addresses_of, web
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposalpackets import CLIENTS, PacketScene, packet_scene
from support.proposals.proposalscenes import (
    GATES,
    NO_FIELD,
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    hint_text,
    named,
    own_zones,
)

VALUES = (None, "PreferClose", "PreferSameZone")
MODES = (None, "Auto", "Disabled", "Whatever")
PLACES = st.dictionaries(st.sampled_from(sorted(THREE_ZONES)), st.integers(0, 4))


@pytest.fixture(scope="module")
def packets() -> Iterator[PacketScene]:
    """Run one network for all tests of this file."""
    with packet_scene() as scene:
        yield scene


def hinted_slices(*, unhinted: int = 0) -> list[EndpointSlice]:
    """Return slices of the scene below, the last endpoints of which have no hints."""
    ends = [
        endpoint(f"10.0.{number}.1", zone=f"zone-{zone}", for_zones=(f"zone-{zone}",))
        for number, zone in enumerate("aabb")
    ]
    bare = [replace(one, hints=None) for one in ends[len(ends) - unhinted :]]
    return [endpoint_slice(*ends[: len(ends) - unhinted], *bare)]


FOUR = Scene(
    {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": "zone-b", "n5": "zone-c"},
    {"n1": 1, "n2": 1, "n3": 1, "n4": 1},
)
"""One pod on each of four nodes, with the addresses of the slices above."""


def used(
    slices: list[EndpointSlice], wanted: Service | None = None, *, gates: FeatureGates = GATES
) -> dict[str, int]:
    """Return how many endpoints each node uses."""
    chosen = FOUR.selections(slices, wanted, gates=gates)
    return {name: len(one.internal.endpoints) for name, one in chosen.items()}


EVERYWHERE = dict.fromkeys(THREE_ZONES, 4)
IN_ZONE = {"n1": 2, "n2": 2, "n3": 2, "n4": 2, "n5": 4}


def test_default_is_an_equal_distribution(packets: PacketScene) -> None:
    """Unset: connections are distributed equally across the endpoints of all zones."""
    wanted = web("web", 10)
    servers = ("n1-p1", "n2-p1", "n3-p1")
    packets.route(wanted, servers)
    address = addresses_of(wanted, IPV4).cluster
    inside = packets.bed.namespace(CLIENTS["n4"])
    counts = inside.do(lambda: Counter(ask_here(address, 80).name for _ in range(300)))
    assert chance_of(counts, dict.fromkeys(servers, 1.0)) > UNBELIEVABLE


def test_default_needs_no_change() -> None:
    """Unset: slices are as they were before the field existed."""
    scene = Scene(THREE_ZONES, UNEVEN)
    assert scene.plan(asking(None)).slices == scene.plan(asking(None), gates=NO_FIELD).slices


@given(PLACES)
def test_prefer_close_routes_within_the_zone_of_the_client(pods: dict[str, int]) -> None:
    """PreferClose: a client's connections go to endpoints of its zone if there are any."""
    scene = Scene(THREE_ZONES, pods)
    for name, pods_used in scene.routed(asking("PreferClose")).items():
        zone = THREE_ZONES[name]
        own = {pod for pod, hint in own_zones(scene).items() if hint == zone}
        if own:
            assert pods_used == own


def test_a_zone_is_the_well_known_label() -> None:
    """A zone has the meaning of the label topology.kubernetes.io/zone and of no other."""
    scene = Scene({"n1": "zone-a", "n2": None}, {"n1": 1, "n2": 1})
    other = {"failure-domain.beta.kubernetes.io/zone": "zone-b", "example.dev/zone": "zone-b"}
    scene.nodes[1] = node("n2", None, labels=other)
    plan = scene.plan(asking("PreferClose"))
    zones = {scene.name_of(one): one.zone for piece in plan.slices for one in piece.endpoints}
    assert zones == {"n1-1": "zone-a", "n2-1": None}
    assert scene.hints(plan)["n2-1"] == "none"


@given(PLACES)
def test_without_endpoints_in_the_zone_others_are_used(pods: dict[str, int]) -> None:
    """PreferClose: if no endpoint of the zone is available, traffic goes to other zones."""
    scene = Scene(THREE_ZONES, pods)
    everything = {one.metadata.name for one in scene.pods}
    for name, pods_used in scene.routed(asking("PreferClose")).items():
        if THREE_ZONES[name] not in own_zones(scene).values():
            assert pods_used == everything


def test_endpoints_that_are_not_ready_are_not_available() -> None:
    """PreferClose: a zone whose endpoints are all unready uses those of other zones."""
    scene = Scene(THREE_ZONES, UNEVEN, not_ready=["n3-1"])
    assert scene.routed(asking("PreferClose"))["n3"] == {"n1-1", "n1-2", "n2-1"}


def test_prefer_close_is_implemented_by_hints() -> None:
    """The preference is implemented by the hints of EndpointSlices, and by nothing else."""
    scene = Scene(THREE_ZONES, UNEVEN)
    (close,), (plain,) = (scene.plan(asking(value)).slices for value in ("PreferClose", None))
    assert close != plain
    bare = tuple(replace(one, hints=None) for one in close.endpoints)
    assert replace(close, endpoints=bare) == plain


def test_auto_is_implemented_by_hints_too() -> None:
    """Hints already implement topology-mode Auto, in a similar manner."""
    scene = Scene(THREE_ZONES, {"n1": 2, "n3": 2, "n5": 1})
    (one,) = scene.plan(asking(None, mode="Auto")).slices
    assert all(each.hints is not None and each.hints.for_zones for each in one.endpoints)


@given(PLACES)
def test_the_hint_is_the_zone_of_the_endpoint_itself(pods: dict[str, int]) -> None:
    """For PreferClose the zone hint matches the zone of the endpoint itself."""
    scene = Scene(THREE_ZONES, pods)
    for piece in scene.plan(asking("PreferClose")).slices:
        for one in piece.endpoints:
            assert hint_text(one) == one.zone


def test_proxies_derive_nothing_from_zones_of_endpoints() -> None:
    """The data plane derives no preference from the zones of endpoints: no hints, no zones."""
    assert used(hinted_slices(unhinted=4)) == EVERYWHERE


def test_the_control_plane_reads_no_traffic_policy() -> None:
    """The control plane looks at trafficDistribution and not at traffic policies."""
    scene = Scene(THREE_ZONES, UNEVEN)
    want = scene.hints(scene.plan(asking("PreferClose")))
    for policy in ("Cluster", "Local"):
        wanted = asking(
            "PreferClose",
            type="NodePort",
            internal_traffic_policy=policy,
            external_traffic_policy=policy,
        )
        assert scene.hints(scene.plan(wanted)) == want == own_zones(scene)


def test_the_data_plane_reads_hints_and_traffic_policies() -> None:
    """The data plane looks at hints and traffic policies to route."""
    assert used(hinted_slices()) == IN_ZONE
    assert used(hinted_slices(unhinted=4)) == EVERYWHERE
    local = replace(service("web").spec, internal_traffic_policy="Local")
    slices = [
        replace(
            one,
            endpoints=tuple(
                replace(each, node_name=f"n{number}")
                for number, each in enumerate(one.endpoints, 1)
            ),
        )
        for one in hinted_slices()
    ]
    wanted = replace(service("web"), spec=local)
    assert used(slices, wanted) == {"n1": 1, "n2": 1, "n3": 1, "n4": 1, "n5": 0}


def test_the_data_plane_does_not_read_the_field() -> None:
    """Neither plane looks at the field of the other: rules do not depend on trafficDistribution."""
    ports = {routed_ports(asking(value), "IPv4", gates=GATES) for value in VALUES}
    assert len(ports) == 1


def test_old_proxies_wanted_the_annotation() -> None:
    """Before: kube-proxy considers hints only if the hints annotation is Auto."""
    asked = service("web", annotations={TOPOLOGY_HINTS_ANNOTATION: "Auto"})
    assert used(hinted_slices(), asked, gates=NO_FIELD) == IN_ZONE
    for value in VALUES:
        assert used(hinted_slices(), asking(value), gates=NO_FIELD) == EVERYWHERE


def test_new_proxies_follow_hints_whatever_the_annotation_says() -> None:
    """Now: hints are considered irrespective of the annotation, set or not."""
    for mode in MODES:
        assert used(hinted_slices(), asking(None, mode=mode)) == IN_ZONE


def test_new_proxies_follow_hints_whatever_the_field_says() -> None:
    """Now: hints are considered irrespective of trafficDistribution, set or not."""
    for value in VALUES:
        assert used(hinted_slices(), asking(value)) == IN_ZONE


def test_all_endpoints_must_have_hints() -> None:
    """All endpoints must have hints, or the proxy uses none of them."""
    assert used(hinted_slices(unhinted=1)) == EVERYWHERE


def test_hints_must_have_reached_all_slices() -> None:
    """Hints that have not propagated to all slices of a Service are not used yet."""
    (hinted,), (bare,) = hinted_slices(), hinted_slices(unhinted=4)
    first = replace(hinted, endpoints=hinted.endpoints[:2])
    second = replace(bare, endpoints=bare.endpoints[2:])
    second = replace(second, metadata=replace(second.metadata, name="web-second"))
    assert used([first, second]) == EVERYWHERE


@given(PLACES, st.permutations(range(4)))
def test_transitions_overload_nobody(pods: dict[str, int], order: list[int]) -> None:
    """While slices change one by one, a node uses all endpoints or those of its zone, never less.

    So no endpoint gets more than it gets at the end, or without hints.
    """
    scene = Scene(THREE_ZONES, pods)
    before = named(scene.plan(asking(None), max_endpoints=3).slices)
    after = named(scene.plan(asking("PreferClose"), slices=before, max_endpoints=3).slices)
    written = {one.metadata.name: one for one in before}
    final = {one.metadata.name: one for one in after}
    assert written.keys() == final.keys()
    names = sorted(written)
    allowed = [
        {name: one.internal.endpoints for name, one in scene.selections(slices).items()}
        for slices in (before, after)
    ]
    bare = [{end.address for end in ends} for ends in allowed[0].values()]
    for index in order:
        if index < len(names):
            written[names[index]] = final[names[index]]
        chosen = scene.selections(written.values())
        for number, (name, one) in enumerate(chosen.items()):
            addresses = {end.address for end in one.internal.endpoints}
            assert addresses in (bare[number], {end.address for end in allowed[1][name]})


async def test_the_name_of_the_field(api: ProposalApi) -> None:
    """The field is named trafficDistribution; the other names considered are unknown."""
    names = (
        "topologyPreference",
        "topologyRoutingPreference",
        "trafficRoutingHint",
        "customRoutingHint",
        "trafficPolicy",
        "endpointSelection",
    )
    reply = await api.post_service(**dict.fromkeys(names, "PreferClose"))
    assert [name for name in names if any(name in one for one in reply.warnings)] == list(names)
    known = await api.post_service("known", trafficDistribution="PreferSameZone")
    assert (known.status, known.warnings) == (201, [])


# Intersection with internal and external traffic policy: the table of KEP-2086.
NODES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b"}
PODS = {"n1": 1, "n2": 1, "n3": 1}
BY_HINTS = {"n1": {"n1-1", "n2-1"}, "n2": {"n1-1", "n2-1"}, "n3": {"n3-1"}}
LOCAL = {"n1": {"n1-1"}, "n2": {"n2-1"}, "n3": {"n3-1"}}


def route_both(**policies: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return external and internal routes of a NodePort Service with these policies."""
    scene = Scene(NODES, PODS)
    base = asking("PreferClose", type="NodePort", **policies)
    (port,) = base.spec.ports
    wanted = replace(base, spec=replace(base.spec, ports=(replace(port, node_port=30080),)))
    plan = scene.plan(wanted)
    return scene.routes(plan, wanted, external=True), scene.routes(plan, wanted)


def test_no_policies_external_result() -> None:
    """Row 1: without traffic policies external traffic goes by trafficDistribution."""
    assert route_both()[0] == BY_HINTS


def test_no_policies_internal_result() -> None:
    """Row 1: without traffic policies internal traffic goes by trafficDistribution."""
    assert route_both()[1] == BY_HINTS


def test_external_local_external_result() -> None:
    """Row 2: with externalTrafficPolicy Local external traffic goes by that policy."""
    assert route_both(external_traffic_policy="Local")[0] == LOCAL


def test_external_local_internal_result() -> None:
    """Row 2: with externalTrafficPolicy Local internal traffic goes by trafficDistribution."""
    assert route_both(external_traffic_policy="Local")[1] == BY_HINTS


def test_both_local_external_result() -> None:
    """Row 3: with both policies Local external traffic goes by externalTrafficPolicy."""
    both = {"external_traffic_policy": "Local", "internal_traffic_policy": "Local"}
    assert route_both(**both)[0] == LOCAL


def test_both_local_internal_result() -> None:
    """Row 3: with both policies Local internal traffic goes by internalTrafficPolicy."""
    both = {"external_traffic_policy": "Local", "internal_traffic_policy": "Local"}
    assert route_both(**both)[1] == LOCAL


def test_policies_meet_the_field_as_they_met_the_annotation() -> None:
    """The intersection with traffic policies is the same as that of the annotation."""
    scene = Scene({"n1": "zone-a", "n2": "zone-b"}, {"n1": 1, "n2": 1})
    for policy in ("Cluster", "Local"):
        spec = {"internal_traffic_policy": policy}
        by_field = scene.routed(asking("PreferClose", **spec))
        assert by_field == scene.routed(asking(None, mode="Auto", **spec))
