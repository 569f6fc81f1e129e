"""KEP-2004: Risks and Mitigations, Assumptions and Kube-Proxy, one test a statement.

Left out: that autoscalers see the load of one zone only, and separate Deployments for each zone,
which are the user's; and what may be explored later.
"""

from __future__ import annotations

import pytest

from keepclose.model.gates import Gate
from keepclose.model.well_known import FOR_REGION_LABEL, FOR_ZONE_LABEL
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.subsets import overloads
from keepclose.routing.traffic_shares import traffic_shares
from support.builders import endpoint, endpoint_slice, node, service
from support.proposals.planned_services import count_writes, nodes_in, select_on, share_of_traffic
from support.proposals.subset_services import SUBSETTING, A, B, C, decide, sizes, subsetted


def test_kep2004_risks_one_busy_zone_overloads_its_endpoints() -> None:
    """Risks: if all traffic comes from one zone, its endpoints get all, and others none."""
    planned = subsetted(a=4, b=4, c=4)
    selections = {name: planned.select(name) for name in ("a1", "b1", "c1")}
    received = share_of_traffic(selections, {"a1": 1.0})
    zone_of = {address: zone for address, (zone, _) in planned.placement().items()}
    by_zone = {A: 0.0, B: 0.0, C: 0.0}
    for address, part in received.items():
        by_zone[zone_of[address]] += part
    assert by_zone == pytest.approx({A: 1.0, B: 0.0, C: 0.0})
    # Each gets three times what an even distribution would give it.
    assert max(received.values()) == pytest.approx(3 / 12)


def test_kep2004_risks_more_endpoints_do_not_make_more_writes() -> None:
    """Risks: slower updates that limit scalability; an update of any Service is one write."""
    for count in (10, 400):
        planned = subsetted(a=count, b=count, c=count)
        planned.stop("b1")
        assert count_writes(planned.sync()) == 1


def test_kep2004_assumptions_traffic_is_proportional_to_cpu() -> None:
    """Assumptions: traffic is proportional to the allocatable CPU cores in a zone."""
    nodes = [node("a1", A, cpu="8"), node("b1", B, cpu="2"), node("c1", C, cpu="1500m")]
    nodes.append(node("c2", C, cpu="500m"))
    assert traffic_shares(nodes).by_zone == pytest.approx({A: 8 / 12, B: 2 / 12, C: 2 / 12})
    assert subsetted(nodes=nodes, a=8, b=8, c=8).groups() == {A: 16, B: 4, C: 4}


def test_kep2004_assumptions_nodes_count_where_cores_are_unknown() -> None:
    """Assumptions: where allocatable cores cannot be derived, the number of nodes counts."""
    nodes = [node("a1", A, cpu="64"), node("b1", B, cpu=None), node("b2", B), node("c1", C)]
    assert traffic_shares(nodes).by_zone == pytest.approx({A: 0.25, B: 0.5, C: 0.25})
    assert subsetted(nodes=nodes, a=4, b=4, c=4).groups() == {A: 3, B: 6, C: 3}


def test_kep2004_assumptions_capacity_is_the_number_of_endpoints() -> None:
    """Assumptions: capacity is proportional to the endpoints in a zone, all of them equal."""
    shares = {A: 0.5, B: 0.5}
    assert overloads(shares, {A: 6, B: 2}) == pytest.approx({A: 4 / 6 - 1, B: 1.0})
    assert overloads(shares, {A: 60, B: 20}) == pytest.approx({A: 4 / 6 - 1, B: 1.0})
    # Zones of equal capacity serve equal traffic.
    assert sizes(decide({A: 9, B: 1}, shares=shares)) == {A: 5, B: 5}


def _labelled(label: str) -> list[str]:
    """Return what nodes in zones a and b of two regions use of three slices, one labelled."""
    slices = [
        endpoint_slice(endpoint("10.0.0.1"), name="web-1", labels={label: "east"}),
        endpoint_slice(endpoint("10.0.0.2"), name="web-2", labels={label: "west"}),
    ]
    answers = []
    for place in ("east", "west"):
        view = NodeView("n1", zone=place, region=place)
        used = select_on(service(), slices, view, SUBSETTING).internal.endpoints
        answers.append(" ".join(one.address for one in used))
    return answers


def test_kep2004_kube_proxy_consumes_slices_of_its_zone() -> None:
    """Kube-Proxy: each instance consumes slices whose label names its zone."""
    assert _labelled(FOR_ZONE_LABEL) == ["10.0.0.1", "10.0.0.2"]


def test_kep2004_kube_proxy_consumes_slices_of_its_region() -> None:
    """Kube-Proxy: each instance consumes slices whose label names its region."""
    assert _labelled(FOR_REGION_LABEL) == ["10.0.0.1", "10.0.0.2"]


def test_kep2004_kube_proxy_support_is_another_proposal() -> None:
    """Kube-Proxy: consuming subsets depends on another proposal, with a gate of its own."""
    planned = subsetted(nodes=nodes_in(a=1, b=1, c=1), a=4, b=4, c=4)
    assert len(planned.used("a1")) == 4
    assert len(planned.used("a1", SUBSETTING.without(Gate.ENDPOINT_SLICE_SUBSETTING))) == 12
