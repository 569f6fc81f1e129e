"""KEP-3015, first draft: Summary, Goals and User Stories, one test a statement."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.model.gates import parse_gates
from keepclose.routing.selection import DROPPED
from keepclose.testing.api_server import serving
from support.netanswers import Silence
from support.nettopology import NodePlan
from support.packets.tabledbeds import tabled
from support.packets.webobjects import web
from support.proposals.packet_answers import answers_at_node_port, names_at_cluster_ip
from support.proposals.policy_services import (
    NODES,
    ON,
    exposed,
    external,
    internal,
    on,
    outcomes,
    sliced,
)

SERVICES = "/api/v1/namespaces/default/services"
EVERYWHERE = sliced(*(on(name) for name in NODES))
ONLY_N3 = sliced(on("n3"))
PLAN = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 2))


def test_kep3015_draft1_summary_external_local_delivers_locally() -> None:
    """Summary: externalTrafficPolicy Local always delivers to local endpoints."""
    for name in NODES:
        assert external(exposed(external="Local"), EVERYWHERE, name) == {f"10.0.{name[1:]}.1"}


def test_kep3015_draft1_summary_internal_local_delivers_locally() -> None:
    """Summary: internalTrafficPolicy Local always delivers to local endpoints."""
    for name in NODES:
        assert internal(exposed(internal="Local"), EVERYWHERE, name) == {f"10.0.{name[1:]}.1"}


def test_kep3015_draft1_summary_external_local_fails_without_local_endpoints() -> None:
    """Summary: externalTrafficPolicy Local fails entirely without endpoints on the node."""
    assert outcomes(exposed(external="Local"), ONLY_N3, "n1")[1] == DROPPED


def test_kep3015_draft1_summary_internal_local_fails_without_local_endpoints() -> None:
    """Summary: internalTrafficPolicy Local fails entirely without endpoints on the node."""
    assert outcomes(exposed(internal="Local"), ONLY_N3, "n1")[0] == DROPPED


@pytest.mark.parametrize("field", ["externalTrafficPolicy", "internalTrafficPolicy"])
async def test_kep3015_draft1_summary_both_fields_take_the_value(
    tmp_path: Path, field: str
) -> None:
    """Summary: PreferLocal is added to externalTrafficPolicy and to internalTrafficPolicy."""
    gates = parse_gates("PreferLocalTrafficPolicy=true")
    body = {
        "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "ports": [{"port": 80}], field: "PreferLocal"},
    }
    async with serving(tmp_path, gates=gates) as api:
        created = await api.create(SERVICES, body)
        assert created["spec"][field] == "PreferLocal"


def test_kep3015_draft1_summary_minimizes_hops() -> None:
    """Summary: PreferLocal minimizes hops when possible: a node uses its own endpoints alone."""
    asked = exposed(external="PreferLocal", internal="PreferLocal")
    for name in NODES:
        own = {f"10.0.{name[1:]}.1"}
        assert internal(asked, EVERYWHERE, name) == external(asked, EVERYWHERE, name) == own


def test_kep3015_draft1_summary_falls_back() -> None:
    """Summary: PreferLocal falls back where there is no local endpoint."""
    asked = exposed(external="PreferLocal", internal="PreferLocal")
    assert internal(asked, ONLY_N3, "n1") == external(asked, ONLY_N3, "n1") == {"10.0.3.1"}


def test_kep3015_draft1_goals_connections_from_outside() -> None:
    """Goals: real connections from outside go to a local endpoint, and to a remote one if none."""
    asked = web("web", 10, is_external=True, external_traffic_policy="PreferLocal")
    with tabled(PLAN, gates=ON) as bed:
        bed.write([asked], bed.slices("web", "n1-p1", "n2-p1"))
        local = answers_at_node_port(bed, "n1", asked)
        assert not isinstance(local, Silence)
        assert {answer.name for answer in local} == {"n1-p1"}
        bed.write([asked], bed.slices("web", "n2-p1"))
        remote = answers_at_node_port(bed, "n1", asked)
        assert not isinstance(remote, Silence)
        assert {answer.name for answer in remote} == {"n2-p1"}


def test_kep3015_draft1_goals_connections_from_inside() -> None:
    """Goals: real connections of pods go to a local endpoint, and to a remote one if none."""
    asked = web("web", 10, internal_traffic_policy="PreferLocal")
    with tabled(PLAN, gates=ON) as bed:
        bed.write([asked], bed.slices("web", "n1-p1", "n2-p1"))
        assert names_at_cluster_ip(bed, "n1-p2", asked) == {"n1-p1"}
        bed.write([asked], bed.slices("web", "n2-p1"))
        assert names_at_cluster_ip(bed, "n1-p2", asked) == {"n2-p1"}


MOVES = (
    ("n1 only", sliced(on("n1"))),
    ("n1 restarts: not ready", sliced(on("n1", ready=False), on("n3"))),
    ("n1 terminates", sliced(on("n1", ready=False, serving=True, terminating=True), on("n3"))),
    ("moved to n3", sliced(on("n3"))),
    ("back on n2", sliced(on("n2"))),
)


def test_kep3015_draft1_story_no_interruption_for_outside_traffic() -> None:
    """User Story 1: outside traffic is not interrupted when endpoints restart or move."""
    asked = exposed(external="PreferLocal")
    for what, slices in MOVES:
        for name in NODES:
            assert external(asked, slices, name), (what, name)


def test_kep3015_draft1_story_efficient_as_local() -> None:
    """User Story 1: where Local delivers to ready pods, PreferLocal delivers to the same."""
    for _, slices in MOVES:
        for name in NODES:
            ready = {
                one.addresses[0]
                for one in slices[0].endpoints
                if one.node_name == name and one.conditions.ready
            }
            if ready:
                assert external(exposed(external="Local"), slices, name) == ready
                assert external(exposed(external="PreferLocal"), slices, name) == ready


def test_kep3015_draft1_story_terminating_endpoints_do_not_close_the_race() -> None:
    """User Story 1: Local works while the pod terminates, but not once it is gone."""
    local, preferred = exposed(external="Local"), exposed(external="PreferLocal")
    leaving = sliced(on("n1", ready=False, serving=True, terminating=True), on("n3"))
    gone = sliced(on("n3"))
    assert external(local, leaving, "n1") == {"10.0.1.1"}
    assert outcomes(local, gone, "n1")[1] == DROPPED
    assert external(preferred, gone, "n1") == {"10.0.3.1"}


def test_kep3015_draft1_story_dns_goes_to_the_local_pod() -> None:
    """User Story 2: DNS requests over UDP go to the DNS pod of the node they come from."""
    dns = web("dns", 10, internal_traffic_policy="PreferLocal")
    with tabled(PLAN, gates=ON) as bed:
        bed.write([dns], bed.slices("dns", "n1-p1", "n2-p1"))
        assert names_at_cluster_ip(bed, "n1-p2", dns, udp=True) == {"n1-p1"}
        assert names_at_cluster_ip(bed, "n2-p2", dns, udp=True) == {"n2-p1"}


def test_kep3015_draft1_story_dns_keeps_working_without_a_local_pod() -> None:
    """User Story 2: without a local DNS pod, DNS goes to a remote pod and keeps working."""
    asked = exposed(internal="PreferLocal")
    dns = sliced(on("n1"), on("n2"), on("n3", ready=False), on("n4"))
    assert internal(asked, dns, "n3") == {"10.0.1.1", "10.0.2.1", "10.0.4.1"}


def test_kep3015_draft1_story_dns_fails_with_local() -> None:
    """User Story 2: with Local, DNS lookups fail when there is no local DNS pod."""
    dns = sliced(on("n1"), on("n2"), on("n4"))
    assert outcomes(exposed(internal="Local"), dns, "n3")[0] == DROPPED


def test_kep3015_draft1_story_local_even_if_all_goes_to_one_pod() -> None:
    """User Story 3: traffic goes to a local pod even if that pod gets all of it."""
    asked = exposed(internal="PreferLocal")
    slices = sliced(on("n1"), *(on("n3", number) for number in range(1, 10)))
    assert internal(asked, slices, "n1") == {"10.0.1.1"}


def test_kep3015_draft1_story_fallback_uses_topology_hints() -> None:
    """User Story 3: without local pods, hints lead to a nearby pod rather than a far one."""
    asked = exposed(internal="PreferLocal", external="PreferLocal")
    slices = sliced(on("n2", for_zones=("zone-a",)), on("n3", for_zones=("zone-b",)))
    assert internal(asked, slices, "n1") == external(asked, slices, "n1") == {"10.0.2.1"}
    assert internal(asked, slices, "n4") == {"10.0.3.1"}
