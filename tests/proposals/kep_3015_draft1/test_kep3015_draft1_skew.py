"""KEP-3015, first draft: Upgrade / Downgrade and Version Skew Strategy, one test a statement.

Left out: the planned end-to-end tests, which say nothing of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.model.gates import parse_gates
from keepclose.routing.service_ports import TrafficPolicy, routed_ports
from keepclose.testing.api_server import serving
from support.nettopology import NodePlan
from support.packets.tabledbeds import tabled
from support.packets.webobjects import web
from support.proposals.packet_answers import names_at_cluster_ip
from support.proposals.policy_services import (
    NODES,
    OFF,
    ON,
    exposed,
    external,
    internal,
    on,
    sliced,
    trace,
)

SERVICES = "/api/v1/namespaces/default/services"
MERGE_PATCH = "application/merge-patch+json"
EVERYWHERE = sliced(*(on(name) for name in NODES))
PREFERRED = exposed(external="PreferLocal", internal="PreferLocal")
ALL = {"10.0.1.1", "10.0.2.1", "10.0.3.1", "10.0.4.1"}


@pytest.mark.parametrize("value", ["PreferLocal", "Nearby", ""])
def test_kep3015_draft1_downgrade_only_external_local_is_checked(value: str) -> None:
    """Upgrade / Downgrade: any service that is not externalTrafficPolicy Local is Cluster."""
    (port,) = routed_ports(exposed(external=value), "IPv4", gates=OFF)
    assert port.external_policy is TrafficPolicy.CLUSTER
    (port,) = routed_ports(exposed(external="Local"), "IPv4", gates=OFF)
    assert port.external_policy is TrafficPolicy.LOCAL


@pytest.mark.parametrize("value", ["PreferLocal", "Nearby", ""])
def test_kep3015_draft1_downgrade_only_internal_local_is_checked(value: str) -> None:
    """Upgrade / Downgrade: any service that is not internalTrafficPolicy Local is Cluster."""
    (port,) = routed_ports(exposed(internal=value), "IPv4", gates=OFF)
    assert port.internal_policy is TrafficPolicy.CLUSTER
    (port,) = routed_ports(exposed(internal="Local"), "IPv4", gates=OFF)
    assert port.internal_policy is TrafficPolicy.LOCAL


def test_kep3015_draft1_downgrade_an_old_proxy_takes_it_for_cluster() -> None:
    """Upgrade / Downgrade: an old kube-proxy treats PreferLocal services as Cluster."""
    for is_external in (False, True):
        for name in NODES:
            old = trace(PREFERRED, EVERYWHERE, name, is_external=is_external, gates=OFF)
            assert old == trace(exposed(), EVERYWHERE, name, is_external=is_external)


def test_kep3015_draft1_downgrade_keeps_visible_behaviour() -> None:
    """Upgrade / Downgrade: all externally visible behaviour is preserved.

    Clients that were served still are, and the source is replaced or kept as before.
    """
    for slices in (EVERYWHERE, sliced(on("n3"))):
        for name in NODES:
            for is_external in (False, True):
                new = trace(PREFERRED, slices, name, is_external=is_external)
                old = trace(PREFERRED, slices, name, is_external=is_external, gates=OFF)
                assert new[1] == old[1]
                assert set(new[0]) <= set(old[0])


def test_kep3015_draft1_downgrade_loses_efficiency() -> None:
    """Upgrade / Downgrade: the efficiency gains of PreferLocal are not preserved."""
    assert internal(PREFERRED, EVERYWHERE, "n1") == {"10.0.1.1"}
    assert internal(PREFERRED, EVERYWHERE, "n1", OFF) == ALL


async def test_kep3015_draft1_downgrade_services_can_be_made_local(tmp_path: Path) -> None:
    """Upgrade / Downgrade: a user can change PreferLocal services to Local after downgrading."""
    spec = {"type": "NodePort", "ports": [{"port": 80}], "externalTrafficPolicy": "PreferLocal"}
    async with serving(tmp_path, gates=parse_gates("PreferLocalTrafficPolicy=true")) as api:
        await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec})
    async with serving(tmp_path) as api:
        patch = {"spec": {"externalTrafficPolicy": "Local"}}
        reply = await api.call("PATCH", f"{SERVICES}/web", patch, type=MERGE_PATCH)
        assert (reply.status, reply.json["spec"]["externalTrafficPolicy"]) == (200, "Local")


async def test_kep3015_draft1_skew_a_new_apiserver_takes_what_proxies_do_not_know(
    tmp_path: Path,
) -> None:
    """Version Skew: users can create PreferLocal services that kube-proxy takes for Cluster."""
    spec = {
        "type": "NodePort",
        "ports": [{"port": 80}],
        "externalTrafficPolicy": "PreferLocal",
        "internalTrafficPolicy": "PreferLocal",
    }
    async with serving(tmp_path, gates=parse_gates("PreferLocalTrafficPolicy=true")) as api:
        made = (await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}))["spec"]
    asked = exposed(external=made["externalTrafficPolicy"], internal=made["internalTrafficPolicy"])
    assert internal(asked, EVERYWHERE, "n1", OFF) == external(asked, EVERYWHERE, "n1", OFF) == ALL


def test_kep3015_draft1_skew_connections_at_an_old_node() -> None:
    """Version Skew: OldNode treats the service as Cluster and forwards to an endpoint anywhere."""
    chances, _ = trace(PREFERRED, EVERYWHERE, "n1", is_external=True, gates=OFF)
    assert set(chances) == {f"{address}:8080" for address in ALL}


def test_kep3015_draft1_skew_connections_at_a_new_node_with_an_endpoint() -> None:
    """Version Skew: NewNode with an endpoint forwards the connection to that local endpoint."""
    chances, _ = trace(PREFERRED, EVERYWHERE, "n2", is_external=True)
    assert chances == {"10.0.2.1:8080": 1}


def test_kep3015_draft1_skew_connections_at_a_new_node_without_an_endpoint() -> None:
    """Version Skew: NewNode without an endpoint forwards to one elsewhere, OldNode's among them."""
    chances, _ = trace(PREFERRED, sliced(on("n1"), on("n3")), "n2", is_external=True)
    assert set(chances) == {"10.0.1.1:8080", "10.0.3.1:8080"}


def test_kep3015_draft1_skew_connections_are_rewritten_before_they_leave() -> None:
    """Version Skew: no proxy forwards a connection without rewriting it to an endpoint IP."""
    for gates in (ON, OFF):
        for slices in (EVERYWHERE, sliced(on("n3"))):
            for is_external in (False, True):
                chances, _ = trace(PREFERRED, slices, "n1", is_external=is_external, gates=gates)
                assert all(target.endswith(":8080") for target in chances)


def test_kep3015_draft1_skew_the_first_node_decides() -> None:
    """Version Skew: the initial node's proxy determines whether PreferLocal is obeyed.

    A pod on n1 reaches the only endpoint on n2, although n2 has rules that prefer its own pods.
    """
    plan = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 2))
    asked = web("web", 10, internal_traffic_policy="PreferLocal")
    with tabled(plan, gates=ON) as bed:
        bed.write([asked], bed.slices("web", "n1-p1", "n2-p1"))
        # Pods of n1 and of n2 each use their own: no second node leads them on.
        assert names_at_cluster_ip(bed, "n1-p2", asked) == {"n1-p1"}
        assert names_at_cluster_ip(bed, "n2-p2", asked) == {"n2-p1"}
        bed.write([asked], bed.slices("web", "n2-p1", "n2-p2"))
        assert names_at_cluster_ip(bed, "n1-p2", asked, want=2) == {"n2-p1", "n2-p2"}
