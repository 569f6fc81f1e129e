"""Seeded faults: verify says that traffic is not as asked, and names the cause."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.accounting.flow_table import NO_ZONE, OUTSIDE, UNKNOWN, FlowKind, FlowTable
from keepclose.advise.verification import TrafficVerdict, VerifiedPort
from keepclose.advise.verification_causes import CauseCode
from keepclose.model.acknowledgements import HintLevel, NodeAcknowledgement
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import ServicePort
from keepclose.model.well_known import (
    PROXY_NAME_LABEL,
    TOPOLOGY_MODE_ANNOTATION,
)
from keepclose.slices.settings import PlannerSettings
from support.builders import endpoint_slice, node, pod, service
from support.observed import (
    NODES,
    PODS,
    WEB,
    ZONES,
    flows_of,
    in_zone,
    planned_slices,
    spread,
    verify,
    without_hints,
)

HONORS = frozenset({HintLevel.ZONES, HintLevel.NODES})


def _first(verified: VerifiedPort) -> CauseCode:
    """Return the most probable cause of traffic that is not honoured."""
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    return verified.causes[0].code


def _codes(verified: VerifiedPort) -> list[CauseCode]:
    return [cause.code for cause in verified.causes]


def test_data_plane_ignores_hints() -> None:
    """A spread over all endpoints although hints can be followed is the data plane's fault."""
    verified = verify(spread())
    assert _codes(verified) == [CauseCode.HINTS_NOT_FOLLOWED]
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    assert verified.rows[0].difference == "zone-a got 33 %, expected 100 %"
    assert verified.in_zone == pytest.approx(1 / 3)
    assert verified.expected_in_zone == 1.0


def test_controller_wrote_no_hints() -> None:
    """Slices without the hints that a controller would write are the controller's fault."""
    verified = verify(spread(), slices=without_hints(planned_slices()))
    assert _codes(verified) == [CauseCode.HINTS_MISSING]
    assert "6 of 6 ready endpoints have no hint" in verified.causes[0].message
    assert verified.rows[0].expected["zone-a"] == (1.0, 1.0)


def test_one_endpoint_without_hint() -> None:
    """One missing hint makes nodes ignore all of them, and is named with the number."""
    verified = verify(spread(), slices=without_hints(planned_slices(), first=1))
    assert _first(verified) is CauseCode.HINTS_MISSING
    assert "1 of 6 ready endpoints" in verified.causes[0].message


def test_core_withholds_hints() -> None:
    """The mode Auto without enough endpoints writes no hints, and its reason is the cause."""
    web = service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"})
    verified = verify(flows_of({(zone, "zone-a"): 600 for zone in ZONES}), web=web, pods=PODS[:1])
    assert verified.verdict is TrafficVerdict.HONOURED, "there is only one zone to go to"
    withheld = verify(spread(), web=web, pods=PODS[::2], nodes=(*NODES[:5], node("n6", None)))
    assert _first(withheld) is CauseCode.HINTS_WITHHELD
    assert "n6" in withheld.causes[0].message
    assert withheld.causes[0].fix.startswith("kubectl label node n6")


def test_endpoint_on_node_without_zone() -> None:
    """An endpoint whose node has no zone gets no hint, and the core's reason says so."""
    nodes = (*NODES[:5], node("n6", None))
    rows = {(zone, other): 200 for zone in ZONES for other in ("zone-a", "zone-b")}
    rows |= {(zone, "zone-c"): 100 for zone in ZONES} | {(zone, NO_ZONE): 100 for zone in ZONES}
    verified = verify(flows_of(rows), nodes=nodes)
    assert CauseCode.HINTS_WITHHELD in _codes(verified)
    assert any("label" in cause.fix for cause in verified.causes)


def test_clients_on_nodes_without_zone() -> None:
    """Clients on a node without the zone label use all endpoints; the node is named."""
    nodes = (*NODES, node("n7", None))
    flows = spread(zones=[NO_ZONE], table=in_zone())
    verified = verify(flows, nodes=nodes)
    assert _codes(verified) == [CauseCode.NODES_WITHOUT_ZONE]
    assert verified.causes[0].fix == "kubectl label node n7 topology.kubernetes.io/zone=<zone>"
    assert verified.verdict is TrafficVerdict.NOT_HONOURED


def test_only_some_nodes_differ() -> None:
    """A node whose proxy is old is named, and others of its zone are not."""
    flows = in_zone(client_node="n1", zones=["zone-a"])
    spread(client_node="n2", zones=["zone-a"], table=flows)
    in_zone(client_node="n3", zones=["zone-b"], table=flows)
    verified = verify(flows)
    assert _first(verified) is CauseCode.SOME_NODES_DIFFER
    assert "only n2 of 3 nodes" in verified.causes[0].message
    assert "spec.nodeName=n2" in verified.causes[0].fix
    assert _codes(verified)[1:] == [CauseCode.HINTS_NOT_FOLLOWED]
    assert verified.rows[0].nodes == ("n2",)


def test_stale_endpoints() -> None:
    """Connections to pods that are in no slice come from proxies that lag behind."""
    flows = in_zone(300, endpoint="default/web-0")
    in_zone(300, endpoint="default/web-old", table=flows)
    verified = verify(flows)
    assert CauseCode.STALE_ENDPOINTS in _codes(verified)
    assert "web-old" in next(
        cause.message for cause in verified.causes if cause.code is CauseCode.STALE_ENDPOINTS
    )


def test_stale_zone() -> None:
    """Without pods in the flows, traffic to a zone that has no endpoint any more is stale."""
    verified = verify(in_zone(), pods=PODS[:4])
    assert _first(verified) is CauseCode.STALE_ENDPOINTS
    assert "zone-c" in verified.causes[0].message


def test_new_endpoints_unused() -> None:
    """Ready endpoints without any connection are named, although zones are as expected."""
    flows = FlowTable()
    for number in (0, 2, 4, 5):
        zone = ZONES[number // 2]
        in_zone(300, zones=[zone], endpoint=f"default/web-{number}", table=flows)
    verified = verify(flows)
    assert _first(verified) is CauseCode.UNUSED_ENDPOINTS
    assert "web-1, web-3 got no connection" in verified.causes[0].message


def test_session_affinity() -> None:
    """With ClientIP, clients stay where they were before the hints."""
    web = service(traffic_distribution="PreferSameZone", session_affinity="ClientIP")
    rows = {("zone-a", "zone-c"): 500, ("zone-a", "zone-a"): 100}
    verified = verify(flows_of(rows), web=web)
    assert _codes(verified) == [CauseCode.SESSION_AFFINITY]
    assert "10,800 s" in verified.causes[0].message
    assert "sessionAffinity" in verified.causes[0].fix


def test_one_busy_client() -> None:
    """A client that goes elsewhere by itself is named, if others are as expected."""
    flows = in_zone(client="default/shop")
    flows_of({("zone-a", "zone-b"): 2000}, client="default/loader", table=flows)
    verified = verify(flows)
    assert _first(verified) is CauseCode.ONE_BUSY_CLIENT
    assert verified.causes[0].subject == "default/loader"


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(spread(30, client="default/shop"), id="others differ too"),
        pytest.param(in_zone(3, client="default/shop"), id="others are too few to say"),
    ],
)
def test_a_client_with_most_traffic_is_not_blamed(others: FlowTable) -> None:
    """A client that has most unexpected connections because it has most of all explains nothing."""
    flows = spread(6000, client="default/loader")
    flows.merge(others)
    assert _codes(verify(flows)) == [CauseCode.HINTS_NOT_FOLLOWED]


def test_long_lived_connections() -> None:
    """Bytes to other zones without new connections are of connections from before."""
    flows = in_zone(client="default/shop")
    flows_of({("zone-a", "zone-b"): 0}, request_bytes=50_000_000, table=flows)
    verified = verify(flows)
    assert _codes(verified) == [CauseCode.LONG_LIVED_CONNECTIONS]
    assert "99 % of the bytes go to zone-b" in verified.causes[0].message
    assert "shop" in verified.causes[0].fix


def test_long_lived_connections_alone() -> None:
    """A period without any new connection is still judged by its bytes."""
    flows = flows_of({("zone-a", "zone-b"): 0}, request_bytes=50_000_000)
    assert _first(verify(flows)) is CauseCode.LONG_LIVED_CONNECTIONS


def test_kept_udp_flows() -> None:
    """For UDP, it is the client's socket that keeps its endpoint."""
    web = service(
        traffic_distribution="PreferSameZone",
        ports=(ServicePort(name="dns", protocol="UDP", port=53, target_port=53),),
    )
    flows = in_zone(port="dns", protocol="UDP")
    flows_of(
        {("zone-b", "zone-a"): 0},
        port="dns",
        protocol="UDP",
        request_bytes=9_000_000,
        table=flows,
    )
    assert _codes(verify(flows, web=web)) == [CauseCode.KEPT_UDP_FLOWS]


def test_own_endpoints_not_ready() -> None:
    """A zone whose endpoints are all unready falls back, and they are named."""
    unready = tuple(
        pod(each.metadata.name, each.spec.node_name, ip=each.status.pod_ip, ready=False)
        for each in PODS[4:]
    )
    flows = in_zone(zones=ZONES[:2])
    flows_of({("zone-c", "zone-a"): 300, ("zone-c", "zone-b"): 300}, table=flows)
    verified = verify(flows, pods=(*PODS[:4], *unready))
    assert _codes(verified) == [CauseCode.ENDPOINTS_NOT_READY]
    assert verified.causes[0].fix == "kubectl describe pod -n default web-4"


def test_annotation_over_field() -> None:
    """An annotation that wins over the field is named when the field is not honoured."""
    web = service(
        traffic_distribution="PreferSameZone",
        annotations={TOPOLOGY_MODE_ANNOTATION: "Disabled"},
    )
    verified = verify(spread(), web=web)
    assert verified.verdict is not TrafficVerdict.HONOURED
    web = service(
        traffic_distribution="PreferSameZone", annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}
    )
    nodes = (*NODES[:5], node("n6", "zone-c", cpu=None))
    verified = verify(spread(), web=web, nodes=nodes)
    assert CauseCode.FIELD_WITHOUT_EFFECT in _codes(verified)
    assert verified.verdict is TrafficVerdict.NOT_HONOURED


def test_gate_off() -> None:
    """A gate that is off is named, when what the Service asks for depends on it."""
    settings = PlannerSettings(gates=FeatureGates().without(Gate.SERVICE_TRAFFIC_DISTRIBUTION))
    verified = verify(spread(), settings=settings)
    assert _first(verified) is CauseCode.GATE_IS_OFF
    assert "ServiceTrafficDistribution" in verified.causes[0].message
    assert verified.causes[0].fix == "--feature-gates ServiceTrafficDistribution=true"
    assert verified.causes[0].effect.startswith("in zone 33 -> 100 %, busiest 1.00x; for other")


@pytest.mark.parametrize("field", ["refused", "unanswered"])
def test_connections_fail_at_one_endpoint(field: str) -> None:
    """An endpoint that refuses or swallows connections is named, also if shares are right."""
    flows = FlowTable()
    for number in range(6):
        zone = ZONES[number // 2]
        bad = {field: 200} if number == 3 else {}
        in_zone(300, zones=[zone], endpoint=f"default/web-{number}", table=flows, **bad)
    verified = verify(flows)
    assert _codes(verified) == [CauseCode.CONNECTIONS_FAIL]
    assert verified.verdict is TrafficVerdict.HONOURED, "the shares are right"
    assert verified.causes[0].message == f"web-3: 200 {field} of 300 connections"
    assert verified.causes[0].subject == "Pod default/web-3"


def test_no_endpoint_found() -> None:
    """Connections that no node translated are a failure of the data plane while pods are ready."""
    verified = verify(flows_of({("zone-a", NO_ZONE): 300}, table=in_zone()))
    assert _first(verified) is CauseCode.CONNECTIONS_FAIL
    assert "found no endpoint, although 6 endpoints are ready" in verified.causes[0].message


def test_direct_pod_traffic() -> None:
    """Clients of pod addresses bypass the Service, and no node keeps them close."""
    verified = verify(spread(kind=FlowKind.POD))
    assert _codes(verified) == [CauseCode.DIRECT_POD_TRAFFIC]
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
    headless = replace(WEB, spec=replace(WEB.spec, cluster_ip="None", cluster_ips=("None",)))
    verified = verify(spread(kind=FlowKind.POD), web=headless)
    assert "the Service is headless" in verified.causes[0].message


def test_traffic_from_outside() -> None:
    """Connections from outside follow the node they enter by; they are told, not judged."""
    web = service(
        traffic_distribution="PreferSameZone", type="NodePort", external_traffic_policy="Cluster"
    )
    verified = verify(spread(zones=[OUTSIDE]), web=web)
    assert _codes(verified) == [CauseCode.TRAFFIC_FROM_OUTSIDE]
    assert verified.verdict is TrafficVerdict.NO_TRAFFIC
    assert verified.rows[0].verdict is TrafficVerdict.NOT_JUDGED


def test_unknown_clients() -> None:
    """Clients without a known zone are told, not judged."""
    verified = verify(spread(zones=[UNKNOWN], table=in_zone()))
    assert _codes(verified) == [CauseCode.UNKNOWN_CLIENTS]
    assert verified.verdict is TrafficVerdict.HONOURED


def test_another_proxy_serves() -> None:
    """A Service of another proxy is not expected to follow hints."""
    web = replace(WEB, metadata=replace(WEB.metadata, labels={PROXY_NAME_LABEL: "mesh"}))
    verified = verify(spread(), web=web)
    assert _first(verified) is CauseCode.SERVED_ELSEWHERE


def test_proxy_behind() -> None:
    """A proxy that acknowledged only older slices is named."""
    slices = tuple(
        replace(each, metadata=replace(each.metadata, resource_version="70"))
        for each in planned_slices()
    )
    acknowledged = (
        NodeAcknowledgement("n1", 70, honors=HONORS),
        NodeAcknowledgement("n2", 60, honors=HONORS),
    )
    verified = verify(spread(), slices=slices, acknowledgements=acknowledged)
    assert _first(verified) is CauseCode.PROXY_BEHIND
    assert verified.causes[0].subject == "Node n2"
    assert verified.causes[0].fix == (
        "kubectl get configmap -n kube-system keepclose-ack-n2 -o yaml"
    )


def test_proxies_acknowledge_hints_only() -> None:
    """Slices without hints are acknowledged by no proxy, and none is behind because of them."""
    slices = tuple(
        replace(each, metadata=replace(each.metadata, resource_version="70"))
        for each in without_hints(planned_slices())
    )
    acknowledged = (NodeAcknowledgement("n1", 60, honors=HONORS),)
    flows = flows_of({("zone-a", "zone-b"): 600})
    verified = verify(flows, slices=slices, acknowledgements=acknowledged)
    assert CauseCode.PROXY_BEHIND not in _codes(verified)


@pytest.mark.parametrize(
    ("acknowledgement", "words"),
    [
        pytest.param(
            NodeAcknowledgement(
                "n1", 70, {NamespacedName("default", "web"): "ForeignProxy"}, HONORS
            ),
            "do not use them (ForeignProxy)",
            id="the proxy makes an exception of the Service",
        ),
        pytest.param(NodeAcknowledgement("n1", 70), "follow no zone hints", id="its gates are off"),
    ],
)
def test_proxy_refuses_hints(acknowledgement: NodeAcknowledgement, words: str) -> None:
    """What a proxy says of itself is the first cause."""
    verified = verify(spread(), acknowledgements=(acknowledgement,))
    assert _first(verified) is CauseCode.PROXY_REFUSES_HINTS
    assert words in verified.causes[0].message


def test_unexplained() -> None:
    """Shares that fit nothing known are called unexplained, with what was seen."""
    verified = verify(flows_of({("zone-a", "zone-b"): 600}))
    assert _codes(verified) == [CauseCode.UNEXPLAINED]
    assert "from zone-a: zone-a got 0 %, expected 100 %" in verified.causes[0].message


def test_slices_of_other_controllers() -> None:
    """A Service without a selector whose slices have no hints is told so by its mechanism."""
    web = replace(WEB, spec=replace(WEB.spec, selector=None))
    slices = without_hints(planned_slices())
    by_hand = endpoint_slice(*slices[0].endpoints, labels={"by": "hand"})
    verified = verify(spread(), web=web, slices=[by_hand])
    assert verified.verdict is TrafficVerdict.NOT_HONOURED
