"""KEP-3015, second draft: Summary, Goals, Non-Goals and the User Story, one test a statement.

Left out: whether internalTrafficPolicy should be deprecated, which is unresolved.
"""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.service.types import ServicePort
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.selection import DROPPED
from keepclose.slices.settings import PlannerSettings
from support.builders import node, pod
from support.nettopology import NodePlan
from support.packets.tabledbeds import tabled
from support.packets.webobjects import web
from support.proposals.node_level_services import (
    DRAFT,
    HINTS,
    NODES,
    ON,
    OVERLAY,
    daemons,
    is_local_first,
    replica_set,
    uses_all,
    zone_of,
)
from support.proposals.packet_answers import names_at_cluster_ip
from support.proposals.planned_services import PlannedService

MANUAL = {HINTS: "Node"}
WITHOUT_N1 = NODES[1:]
PORT = ServicePort(name="http", protocol="TCP", port=80, target_port=8080, node_port=30080)


@pytest.mark.parametrize("field", ["internal_traffic_policy", "external_traffic_policy"])
def test_kep3015_draft2_summary_local_always_delivers_locally(field: str) -> None:
    """Summary: the Local policies always deliver to local endpoints."""
    spec: dict[str, Any] = {"type": "NodePort", "ports": (PORT,), field: "Local"}
    planned = daemons(**spec)
    for name in NODES:
        selection = planned.select(name)
        side = selection.internal if field.startswith("internal") else selection.external
        assert {one.node_name for one in side.endpoints} == {name}


def test_kep3015_draft2_summary_local_fails_without_endpoints() -> None:
    """Summary: they fail entirely if there are no endpoints for the service on the node."""
    planned = daemons(on=WITHOUT_N1, internal_traffic_policy="Local")
    assert planned.select("n1").internal == DROPPED


def test_kep3015_draft2_summary_hints_optimize_by_zone_only() -> None:
    """Summary: Topology Aware Hints optimize by availability zone and on no other basis."""
    planned = daemons(gates=DRAFT, annotations={HINTS: "Auto"})
    for name in NODES:
        used = planned.nodes_used(name)
        assert used == {one for one in NODES if zone_of(one) == zone_of(name)}
        assert len(used) == 2


def test_kep3015_draft2_summary_a_local_endpoint_is_used_when_available() -> None:
    """Summary: the new hint makes kube-proxy always route to a local endpoint when available."""
    assert is_local_first(daemons(annotations=MANUAL))


def test_kep3015_draft2_summary_otherwise_other_hints_are_used() -> None:
    """Summary: without a local endpoint other topology hints are used."""
    planned = daemons(
        annotations={OVERLAY: "Enabled"}, traffic_distribution="PreferSameZone", on=WITHOUT_N1
    )
    assert planned.nodes_used("n1") == {"n4"}


def test_kep3015_draft2_summary_otherwise_cluster_policy_is_used() -> None:
    """Summary: without a local endpoint and other hints it is the ordinary Cluster policy."""
    planned = daemons(annotations=MANUAL, on=WITHOUT_N1)
    assert planned.nodes_used("n1") == set(WITHOUT_N1)


def test_kep3015_draft2_goals_local_when_possible_and_remote_if_not() -> None:
    """Goals: a service can be configured for a local endpoint when possible, else a remote one."""
    planned = daemons(annotations=MANUAL, on=WITHOUT_N1)
    assert planned.nodes_used("n2") == {"n2"}
    assert planned.used("n1")
    assert "n1" not in planned.nodes_used("n1")


def test_kep3015_draft2_non_goals_load_balancers_with_local_policy() -> None:
    """Non-Goals: externalTrafficPolicy Local is not improved for LoadBalancer services."""
    spec: dict[str, Any] = {
        "type": "LoadBalancer",
        "ports": (PORT,),
        "external_traffic_policy": "Local",
    }
    for asked in (MANUAL, {}):
        planned = daemons(annotations=asked, on=WITHOUT_N1, **spec)
        assert planned.select("n1").external == DROPPED


def test_kep3015_draft2_non_goals_uneven_numbers_of_endpoints() -> None:
    """Non-Goals: 15 endpoints on 10 nodes get no new behaviour."""
    nodes = tuple(f"n{number}" for number in range(1, 11))
    spread = (*nodes, *nodes[:5])
    planned = daemons(NodeLevelMode.AUTO, nodes=nodes, on=spread, owner=replica_set())
    assert len(planned.pods) == 15
    assert uses_all(planned)


def test_kep3015_draft2_story_dns_goes_to_the_local_pod() -> None:
    """User Story: DNS requests of pods always go to the DNS pod of their node, over real UDP."""
    plan = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 2))
    dns = web("dns", 10, annotations=MANUAL)
    planned = PlannedService(
        dns, [node(one.name, one.zone) for one in plan], PlannerSettings(gates=ON)
    )
    with tabled(plan, gates=ON) as bed:
        for one in bed.bed.nodes:
            place = one.pods[0]
            made = pod(place.name, one.name, ips=(place.address, place.address6))
            planned.pods[made.key] = made
        planned.sync()
        bed.write([dns], planned.slices)
        assert names_at_cluster_ip(bed, "n1-p2", dns, udp=True) == {"n1-p1"}
        assert names_at_cluster_ip(bed, "n2-p2", dns, udp=True) == {"n2-p1"}


def test_kep3015_draft2_story_dns_falls_back_automatically() -> None:
    """User Story: without a local DNS pod, DNS automatically goes to a remote pod."""
    planned = daemons(NodeLevelMode.AUTO)
    assert is_local_first(planned)
    planned.stop("n1")
    planned.sync()
    assert planned.nodes_used("n1") == set(WITHOUT_N1)


def test_kep3015_draft2_story_dns_fails_with_internal_traffic_policy() -> None:
    """User Story: in the original story DNS lookups fail when there is no local DNS pod."""
    original = daemons(on=WITHOUT_N1, internal_traffic_policy="Local")
    revised = daemons(on=WITHOUT_N1, annotations=MANUAL)
    assert original.select("n1").internal == DROPPED
    assert revised.used("n1")


def test_kep3015_draft2_summary_a_daemon_set_is_the_case_meant() -> None:
    """Summary: it is for a Service expected to have an endpoint on every node most of the time."""
    expected = daemons(NodeLevelMode.AUTO)
    unexpected = daemons(NodeLevelMode.AUTO, on=("n1", "n2"))
    assert is_local_first(expected)
    assert uses_all(unexpected)
