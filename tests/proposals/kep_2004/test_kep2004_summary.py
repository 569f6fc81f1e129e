"""KEP-2004: Summary, Motivation, Goals and Terminology, one test a statement.

Left out: costs and latency of zones (they are the provider's), feedback from load, several
clusters and regions (non-goals), and the release checklist.
"""

from __future__ import annotations

import pytest

from keepclose.model.well_known import FOR_ZONE_LABEL, ZONE_LABEL
from support.builders import node
from support.proposals.planned_services import PlannedService, count_writes, hints_of, nodes_in
from support.proposals.subset_services import A, B, C, subsetted

UNDIVIDED = {"": 12}


def test_kep2004_summary_the_annotation_opts_in() -> None:
    """Summary: a new Service annotation lets users opt in to EndpointSlice subsetting."""
    assert subsetted("Auto", a=4, b=4, c=4).groups() == {A: 4, B: 4, C: 4}
    assert subsetted(None, a=4, b=4, c=4).groups() == UNDIVIDED


def test_kep2004_summary_only_at_zone_level() -> None:
    """Summary: the proposal focuses on topology aware routing at zone level only.

    Nodes of one zone use the same endpoints, whether these are on the node or not.
    """
    planned = subsetted(nodes=nodes_in(a=2, b=2, c=2), a=4, b=4, c=4)
    assert planned.used("a1") == planned.used("a2")
    assert planned.nodes_used("a2") == {"a1"}


def test_kep2004_motivation_traffic_is_routed_to_any_endpoint_without_it() -> None:
    """Motivation: network traffic is routed randomly to any endpoint matching a Service."""
    planned = subsetted(None, a=4, b=4, c=4)
    everywhere = set(planned.placement())
    assert len(everywhere) == 12
    assert [planned.used(name) for name in ("a1", "b1", "c1")] == [everywhere] * 3


def test_kep2004_motivation_no_cross_zone_traffic_where_in_zone_endpoints_suffice() -> None:
    """Motivation: cross-zone traffic is avoided when in-zone endpoints would suffice."""
    planned = subsetted(a=5, b=4, c=4)
    assert {name: planned.zones_used(name) for name in ("a1", "b1", "c1")} == {
        "a1": {A},
        "b1": {B},
        "c1": {C},
    }


def test_kep2004_motivation_traffic_stays_only_with_sufficient_capacity() -> None:
    """Motivation: users prefer to keep traffic in the same zone if there is sufficient capacity."""
    planned = subsetted(a=10, b=10, c=1)
    assert planned.zones_used("a1") == {A}
    assert planned.zones_used("c1") > {C}


def test_kep2004_motivation_nothing_else_needs_configuration() -> None:
    """Motivation: users will not have to configure anything by default for most use cases.

    All controller options have their defaults here, and the Service has one annotation.
    """
    planned = subsetted(a=6, b=5, c=5)
    assert set(planned.service.metadata.annotations) == {"endpointslice.kubernetes.io/subsetting"}
    assert set(planned.groups()) == {A, B, C}


@pytest.mark.parametrize(
    ("label", "want"),
    [
        pytest.param(ZONE_LABEL, {"east": 6, "west": 6}, id="the standardized label"),
        pytest.param("failure-domain.beta.kubernetes.io/zone", {"": 12}, id="another label"),
    ],
)
def test_kep2004_goals_zones_come_from_the_standard_label(label: str, want: dict[str, int]) -> None:
    """Goals: topology.kubernetes.io/zone tells the zones of nodes and of endpoints."""
    nodes = [node("a1", None, labels={label: "east"}), node("b1", None, labels={label: "west"})]
    assert subsetted(nodes=nodes, a=6, b=6).groups() == want


def test_kep2004_goals_subsetting_is_the_mechanism() -> None:
    """Goals: EndpointSlice subsetting, and not hints, is the mechanism of the routing."""
    planned = subsetted(a=4, b=4, c=4)
    labels = {one.metadata.labels.get(FOR_ZONE_LABEL) for one in planned.slices}
    assert labels == {A, B, C}
    assert set(hints_of(planned.slices).values()) == {((), ())}


def test_kep2004_goals_proxies_process_fewer_endpoints() -> None:
    """Goals: kube-proxy scales better because it has fewer endpoints to process."""
    divided, whole = subsetted(a=50, b=50, c=50), subsetted(None, a=50, b=50, c=50)
    for name in ("a1", "b1", "c1"):
        assert len(divided.select(name).reachable) == 50
        assert len(whole.select(name).reachable) == 150


def _add_one(planned: PlannedService) -> int:
    planned.start("b1")
    return count_writes(planned.sync())


def test_kep2004_goals_churn_is_minimized() -> None:
    """Goals: the churn of EndpointSlices is minimized; one more pod costs one write."""
    assert [_add_one(subsetted(value, a=40, b=40, c=40)) for value in ("Auto", None)] == [1, 1]


def test_kep2004_goals_few_new_slices() -> None:
    """Goals: the number of new EndpointSlices is minimized: one a zone where one is enough."""
    assert len(subsetted(a=60, b=60, c=60).slices) == 3
    assert len(subsetted(a=100, b=100, c=100).slices) == 3


def test_kep2004_non_goals_pods_are_not_moved() -> None:
    """Non-Goals: it is not ensured that Pods are distributed evenly across zones."""
    planned = subsetted(a=16, b=1, c=1)
    zones = [zone for zone, _ in planned.placement().values()]
    assert {zone: zones.count(zone) for zone in (A, B, C)} == {A: 16, B: 1, C: 1}


def test_kep2004_non_goals_no_node_local_traffic() -> None:
    """Non-Goals: node local traffic is not required, so a node uses its whole zone's endpoints."""
    planned = subsetted(nodes=nodes_in(a=2, b=1, c=1), b=6, c=6)
    planned.start("a1", 6)
    planned.start("a2", 6)
    planned.sync()
    assert planned.nodes_used("a1") == planned.nodes_used("a2") == {"a1", "a2"}


def test_kep2004_terminology_a_group_is_one_or_more_slices_of_one_zone() -> None:
    """Terminology: a group is one or multiple EndpointSlices consumed by the same zones."""
    planned = subsetted(a=250, b=250, c=250)
    by_zone: dict[str, list[int]] = {A: [], B: [], C: []}
    for endpoint_slice in planned.slices:
        zone = endpoint_slice.metadata.labels[FOR_ZONE_LABEL]
        by_zone[zone].append(len(endpoint_slice.endpoints))
    assert {zone: len(counts) for zone, counts in by_zone.items()} == {A: 3, B: 3, C: 3}
    assert sum(map(sum, by_zone.values())) == 750
    for name, zone in (("a1", A), ("b1", B), ("c1", C)):
        assert len(planned.used(name)) == sum(by_zone[zone])


def test_kep2004_terminology_endpoints_are_single_pod_addresses() -> None:
    """Terminology: an endpoint is an individual Pod IP, so each pod is in exactly one group."""
    planned = subsetted(a=7, b=4, c=4)
    listed = [
        endpoint.addresses
        for endpoint_slice in planned.slices
        for endpoint in endpoint_slice.endpoints
    ]
    assert {len(addresses) for addresses in listed} == {1}
    assert len(listed) == len({addresses[0] for addresses in listed}) == 15
