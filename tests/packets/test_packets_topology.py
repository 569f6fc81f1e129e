"""Real connections under hints, node-level topology and labelled slices, from every node."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    FOR_REGION_LABEL,
    FOR_ZONE_LABEL,
    TOPOLOGY_MODE_ANNOTATION,
)
from support.builders import endpoint, endpoint_slice
from support.netanswers import Silence
from support.nettopology import NodePlan
from support.packets.packetflows import CLUSTER, Flow, check, find_answers
from support.packets.tabledbeds import TabledBed, address_of, tabled
from support.packets.webobjects import Backend, addresses_of, ending, web

PLAN = (
    NodePlan("n1", "zone-a", 3),
    NodePlan("n2", "zone-a", 2),
    NodePlan("n3", "zone-b", 2),
    NodePlan("n4", "zone-c", 1),
)
N1, N2, N3 = ("n1-p1", "n1-p2"), ("n2-p1",), ("n3-p1",)
CLIENTS = {"n1": "n1-p3", "n2": "n2-p2", "n3": "n3-p2", "n4": "n4-p1"}
EVERYBODY = (*N1, *N2, *N3)
web1 = web("web", 10)

Used = dict[str, tuple[str, ...]]
"""The pods that each node uses."""


def backends(
    pods: Iterable[str], bed: TabledBed, *, zone: bool = False, node: bool = False
) -> list[Backend]:
    """Return ready endpoints, each for its own zone or node if so wanted."""
    made = []
    for pod in pods:
        home = bed.node_of(pod)
        zones = (home.zone,) if zone else ()
        made.append(Backend(pod, for_zones=zones, for_nodes=(home.name,) if node else ()))
    return made


def expect(bed: TabledBed, used: Used, *services: Service) -> None:
    """Fail unless clients on each node reach exactly the pods that the node uses."""
    check(
        bed,
        [
            Flow(CLIENTS[node], CLUSTER, one, pods)
            for node, pods in used.items()
            for one in services or (web1,)
        ],
    )


def everywhere(*pods: str) -> Used:
    """Return the same pods for every node."""
    return dict.fromkeys(CLIENTS, pods)


def test_no_hints_mean_everybody() -> None:
    """Without hints every node uses all endpoints."""
    with tabled(PLAN) as bed:
        bed.write((web1,), bed.slices("web", *EVERYBODY))
        expect(bed, everywhere(*EVERYBODY))


def test_zone_hints() -> None:
    """Nodes keep to the endpoints for their zone; a zone that is in no hint uses all."""
    with tabled(PLAN) as bed:
        bed.write((web1,), bed.slices("web", *backends(EVERYBODY, bed, zone=True)))
        zone_a = (*N1, *N2)
        expect(bed, {"n1": zone_a, "n2": zone_a, "n3": N3, "n4": EVERYBODY})


def test_hints_and_not_places_decide() -> None:
    """An endpoint is for the zones that its hints name, several if they do, not for its own."""
    with tabled(PLAN) as bed:
        ends = [
            Backend("n1-p1", for_zones=("zone-b", "zone-c")),
            Backend("n2-p1", for_zones=("zone-a",)),
            Backend("n3-p1", for_zones=("zone-a", "zone-c")),
        ]
        bed.write((web1,), bed.slices("web", *ends))
        near = ("n2-p1", "n3-p1")
        expect(bed, {"n1": near, "n2": near, "n3": ("n1-p1",), "n4": ("n1-p1", "n3-p1")})


def test_node_hints_then_zone_hints() -> None:
    """A node with endpoints of its own uses only those; one without uses its zone's."""
    with tabled(PLAN) as bed:
        pods = (*N1, *N3)
        bed.write((web1,), bed.slices("web", *backends(pods, bed, zone=True, node=True)))
        expect(bed, {"n1": N1, "n2": N1, "n3": N3, "n4": pods})


def test_own_endpoints_that_terminate() -> None:
    """They give way to ready ones of the zone; when all terminate all are used; then nobody."""
    with tabled(PLAN) as bed:
        gone = [ending(pod, for_zones=("zone-a",), for_nodes=("n1",)) for pod in N1]
        left = backends((*N2, *N3), bed, zone=True, node=True)
        bed.write((web1,), bed.slices("web", *gone, *left))
        expect(bed, {"n1": N2, "n2": N2, "n3": N3, "n4": (*N2, *N3)})
        all_gone = [ending(one.pod, for_zones=one.for_zones) for one in (*gone, *left)]
        bed.write((web1,), bed.slices("web", *all_gone))
        expect(bed, everywhere(*EVERYBODY))
        silent = [ending(one.pod, serving=False) for one in all_gone]
        bed.write((web1,), bed.slices("web", *silent))
        check(bed, [Flow(one, CLUSTER, web1, Silence.REFUSED) for one in CLIENTS.values()])


def test_one_endpoint_without_hints() -> None:
    """One ready endpoint without hints switches a level off for all; other levels go on."""
    with tabled(PLAN) as bed:
        hinted = backends(EVERYBODY[:-1], bed, zone=True, node=True)
        bed.write((web1,), bed.slices("web", *hinted, *N3))
        expect(bed, everywhere(*EVERYBODY))
        bed.write((web1,), bed.slices("web", *hinted, *backends(N3, bed, zone=True)))
        zone_a = (*N1, *N2)
        expect(bed, {"n1": zone_a, "n2": zone_a, "n3": N3, "n4": EVERYBODY})
        # One that is not ready has no say.
        unready = Backend("n3-p1", ready=False, serving=False)
        bed.write((web1,), bed.slices("web", *hinted, unready))
        expect(bed, {"n1": N1, "n2": N2, "n3": zone_a, "n4": zone_a})


def test_a_node_changes_its_zone() -> None:
    """New connections follow the label at once; without a label there is no zone to keep to."""
    with tabled(PLAN) as bed:
        slices = bed.slices("web", *backends(EVERYBODY, bed, zone=True))
        bed.write((web1,), slices)
        expect(bed, {"n1": (*N1, *N2)})
        bed.zones["n1"] = "zone-b"
        bed.write((web1,), slices)
        expect(bed, {"n1": N3, "n2": (*N1, *N2)})
        bed.zones["n1"] = ""
        bed.write((web1,), slices)
        expect(bed, {"n1": EVERYBODY, "n2": (*N1, *N2)})
        # Its own endpoints are still known by its name.
        slices = bed.slices("web", *backends(EVERYBODY, bed, node=True))
        bed.write((web1,), slices)
        expect(bed, {"n1": N1, "n4": EVERYBODY})


def test_hints_and_local_policies() -> None:
    """Hints never narrow what a Local policy uses."""
    inside = web("inside", 20, internal_traffic_policy="Local")
    with tabled(PLAN) as bed:
        ends = [Backend(pod, for_zones=("zone-c",)) for pod in (*N1, *N3)]
        bed.write((inside,), bed.slices("inside", *ends))
        expect(bed, {"n1": N1, "n3": N3}, inside)


def test_node_level_topology() -> None:
    """A Service of node level uses a node's own ready endpoints without any hint, else hints."""
    gates = FeatureGates().with_gates(Gate.NODE_LEVEL_TOPOLOGY)
    flat = web("flat", 30, annotations={TOPOLOGY_MODE_ANNOTATION: "Node"})
    zoned = web("zoned", 31, annotations={TOPOLOGY_MODE_ANNOTATION: "Node"})
    leaving = web("leaving", 32, annotations={TOPOLOGY_MODE_ANNOTATION: "Node"})
    services = (flat, zoned, leaving)
    with tabled(PLAN, gates=gates) as bed:
        slices = [
            *bed.slices("flat", *EVERYBODY),
            *bed.slices("zoned", *backends((*N1, *N3), bed, zone=True)),
            *bed.slices("leaving", *(ending(pod) for pod in N1), *N2, *N3),
        ]
        bed.write(services, slices)
        expect(bed, {"n1": N1, "n2": N2, "n3": N3, "n4": EVERYBODY}, flat)
        expect(bed, {"n1": N1, "n2": N1, "n3": N3, "n4": (*N1, *N3)}, zoned)
        expect(bed, {"n1": (*N2, *N3), "n2": N2, "n3": N3, "n4": (*N2, *N3)}, leaving)
    with tabled(PLAN) as bed:
        bed.write((flat,), bed.slices("flat", *EVERYBODY))
        expect(bed, everywhere(*EVERYBODY), flat)


@pytest.mark.parametrize("is_on", [True, False])
def test_slices_labelled_for_zones(is_on: bool) -> None:
    """Slices for other zones are left out unless no other is left; labels need their gate."""
    gates = FeatureGates()
    if is_on:
        gates = gates.with_gates(Gate.ENDPOINT_SLICE_SUBSETTING)
    with tabled(PLAN, gates=gates) as bed:
        bed.zones["n2"] = ""
        slices = [
            *bed.slices("web", "n1-p1", "n3-p1", labels={FOR_ZONE_LABEL: "zone-a"}, part="1"),
            *bed.slices("web", "n2-p1", labels={FOR_ZONE_LABEL: "zone-b"}, part="2"),
            *bed.slices("web", "n1-p2", labels={FOR_REGION_LABEL: "nowhere"}, part="3"),
        ]
        bed.write((web1,), slices)
        narrowed: Used = {
            "n1": ("n1-p1", "n3-p1"),
            "n2": EVERYBODY,
            "n3": ("n2-p1",),
            "n4": EVERYBODY,
        }
        expect(bed, narrowed if is_on else everywhere(*EVERYBODY))
        # A slice for nobody in particular is for everybody.
        bed.write((web1,), [*slices, *bed.slices("web", "n4-p1", part="4")])
        shared: Used = {
            "n1": ("n1-p1", "n3-p1", "n4-p1"),
            "n2": (*EVERYBODY, "n4-p1"),
            "n3": ("n2-p1", "n4-p1"),
        }
        expect(bed, shared if is_on else {"n1": (*EVERYBODY, "n4-p1")})


def test_families_have_endpoints_of_their_own() -> None:
    """Each family of a Service follows its own slices, hints and all."""
    with tabled(PLAN) as bed:

        def piece(family: str, *pods: str, zone: str = "") -> EndpointSlice:
            return endpoint_slice(
                *(
                    endpoint(address_of(bed.pod(pod), family), for_zones=(zone,) if zone else ())
                    for pod in pods
                ),
                name=f"web-{family.lower()}",
                address_type=family,
            )

        def found(family: str) -> set[str] | Silence:
            inside = bed.namespace(CLIENTS["n1"])
            answers = find_answers(inside, addresses_of(web1, family).cluster, 80, want=2)
            return answers if isinstance(answers, Silence) else {one.name for one in answers}

        four, six = piece(IPV4, "n1-p1", "n3-p1"), piece(IPV6, "n2-p1", "n1-p2", zone="zone-a")
        bed.write((web1,), [four, six])
        assert found(IPV4) == {"n1-p1", "n3-p1"}
        assert found(IPV6) == {"n1-p2", "n2-p1"}
        bed.write((web1,), [six])
        assert found(IPV4) is Silence.REFUSED
        assert found(IPV6) == {"n1-p2", "n2-p1"}
