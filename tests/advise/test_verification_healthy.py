"""Healthy clusters: connections drawn as proxies draw them are honoured, and nothing is blamed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.accounting.flow_table import (
    NO_ZONE,
    OUTSIDE,
    UNKNOWN,
    ZONES_ONLY,
    Detail,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
    merge_tables,
)
from keepclose.advise.inventory import Inventory
from keepclose.advise.observed_traffic import ShareRange, find_differences
from keepclose.advise.verification import TrafficVerdict, verify_services
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION, ZONE_WEIGHTS_ANNOTATION
from keepclose.model.workload import Node, Pod
from keepclose.routing.balanced import BALANCED
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from keepclose.slices.settings import PlannerSettings
from support.builders import endpoint, endpoint_slice, node, pod, service
from support.observed import (
    NODES,
    PODS,
    SETTINGS,
    WEB,
    ZONES,
    flows_of,
    in_zone,
    planned_slices,
    spread,
    verify,
)

ALL_GATES = PlannerSettings(gates=FeatureGates().with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY))


def _drawn(
    web: Service,
    slices: Sequence[EndpointSlice],
    *,
    nodes: Sequence[Node] = NODES,
    pods: Sequence[Pod] = PODS,
    detail: Detail = ZONES_ONLY,
    settings: PlannerSettings = SETTINGS,
    seed: int = 1,
) -> FlowTable:
    """Return the flows of 200 connections a node, ten times as many from n1, as proxies draw."""
    draw = random.Random(seed)
    flows = FlowTable(end=600.0)
    zones = {each.name: each.zone or NO_ZONE for each in (*NODES, *nodes)}
    by_address = {each.status.pod_ip: each for each in pods}
    (port,) = routed_ports(web, "IPv4", gates=settings.gates)
    endpoints = collect_endpoints(slices, "IPv4", gates=settings.gates)[port.key]
    for each in nodes:
        chosen = select(port, endpoints, node=NodeView.of(each), gates=settings.gates)
        for _ in range(2000 if each.name == "n1" else 200):
            if not chosen.internal.endpoints:
                break
            (target,) = draw.choices(
                chosen.internal.endpoints, [e.weight for e in chosen.internal.endpoints]
            )
            backend = by_address[target.address]
            key = FlowKey(
                FlowKind.SERVICE,
                "default",
                "web",
                "http",
                client_zone=zones[each.name],
                endpoint_zone=zones[backend.spec.node_name],
                client_node=each.name,
                endpoint_node=backend.spec.node_name,
                client="default/shop",
                endpoint=str(backend.key),
            )
            flows.add(detail.reduce(key), FlowCounts(1, request_bytes=500, response_bytes=9000))
    return flows


@pytest.mark.parametrize(
    "detail",
    [
        pytest.param(ZONES_ONLY, id="by zones"),
        pytest.param(Detail(nodes=True, workloads=True, pods=True), id="by nodes and pods"),
    ],
)
@pytest.mark.parametrize(
    "web",
    [
        pytest.param(WEB, id="PreferSameZone"),
        pytest.param(service(traffic_distribution="PreferClose"), id="PreferClose"),
        pytest.param(service(traffic_distribution="PreferSameNode"), id="PreferSameNode"),
        pytest.param(service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}), id="Auto"),
        pytest.param(service(internal_traffic_policy="Local"), id="Local"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_healthy(web: Service, detail: Detail, seed: int) -> None:
    """Traffic that proxies route by the rules is honoured, however busy single nodes are."""
    flows = _drawn(web, planned_slices(web), detail=detail, seed=seed)
    verified = verify(flows, web=web)
    assert (verified.verdict, verified.causes) == (TrafficVerdict.HONOURED, ())
    assert {row.verdict for row in verified.rows} == {TrafficVerdict.HONOURED}


def test_zone_without_endpoints() -> None:
    """A zone that has no endpoint at all falls back by design, and is honoured."""
    pods = PODS[:4]
    flows = _drawn(WEB, planned_slices(pods=pods), pods=pods)
    verified = verify(flows, pods=pods)
    assert (verified.verdict, verified.causes) == (TrafficVerdict.HONOURED, ())
    assert verified.rows[2].expected == {"zone-a": (0.5, 0.5), "zone-b": (0.5, 0.5)}


def test_few_strays() -> None:
    """A few connections elsewhere, as while endpoints change, are within the tolerance."""
    flows = flows_of({("zone-a", "zone-b"): 8}, table=in_zone())
    assert verify(flows).verdict is TrafficVerdict.HONOURED
    assert verify(flows, tolerance=0.0).verdict is TrafficVerdict.NOT_HONOURED


def test_too_few_connections() -> None:
    """A handful of connections says nothing, unless less is asked for."""
    flows = spread(30)
    assert verify(flows).verdict is TrafficVerdict.TOO_FEW
    assert verify(flows, min_connections=10).verdict is TrafficVerdict.NOT_HONOURED


def test_no_traffic() -> None:
    """Without a flow there is nothing to judge."""
    verified = verify(FlowTable())
    assert (verified.verdict, verified.in_zone) == (TrafficVerdict.NO_TRAFFIC, None)


def test_one_way_udp() -> None:
    """Datagrams that nothing answers, such as those of syslog, are honoured by their shares."""
    web = service(
        traffic_distribution="PreferSameZone",
        ports=(ServicePort(name="syslog", protocol="UDP", port=514, target_port=514),),
    )
    flows = in_zone(port="syslog", protocol="UDP", unanswered=600)
    verified = verify(flows, web=web)
    assert (verified.verdict, verified.causes) == (TrafficVerdict.HONOURED, ())


def test_no_preference() -> None:
    """A Service without any preference is not judged, wherever its traffic goes."""
    assert verify(in_zone(), web=service()).verdict is TrafficVerdict.NO_PREFERENCE


def test_hints_by_hand() -> None:
    """Hints that no mechanism explains ask for something, and are judged."""
    web = service(selector=None)
    slices = planned_slices()
    assert verify(in_zone(), web=web, slices=slices).verdict is TrafficVerdict.HONOURED
    assert verify(spread(), web=web, slices=slices).verdict is TrafficVerdict.NOT_HONOURED


def test_dual_stack() -> None:
    """The families of a Service may have different endpoints, and either share is fine."""
    web = replace(
        WEB,
        spec=replace(
            WEB.spec,
            cluster_ips=("10.96.0.10", "fd00::10"),
            ip_families=("IPv4", "IPv6"),
            ip_family_policy="RequireDualStack",
        ),
    )
    pods = [
        pod(f"web-{number}", f"n{number + 1}", ips=(f"10.0.0.{number + 1}", f"fd00::1:{number}"))
        for number in range(6)
    ]
    assert verify(in_zone(), web=web, pods=pods).verdict is TrafficVerdict.HONOURED
    assert verify(spread(), web=web, pods=pods).verdict is TrafficVerdict.NOT_HONOURED


def test_one_service_of_many() -> None:
    """Only the Service that was asked for is judged; one that does not exist gives nothing."""
    other = service("api")
    inventory = Inventory.of((*NODES, *PODS, WEB, other, *planned_slices()))
    key = NamespacedName("default", "web")
    (only,) = verify_services(inventory, in_zone(), settings=SETTINGS, service=key)
    assert (only.namespace, only.service, only.port) == ("default", "web", "http")
    gone = NamespacedName("default", "gone")
    assert verify_services(inventory, in_zone(), settings=SETTINGS, service=gone) == ()


@pytest.mark.parametrize(
    ("count", "expected", "want"),
    [
        pytest.param(0, ShareRange(0.0, 0.0), 0, id="nothing where nothing is expected"),
        pytest.param(1000, ShareRange(1.0, 1.0), 0, id="all where all is expected"),
        pytest.param(500, ShareRange(0.2, 0.6), 0, id="within the range"),
        pytest.param(900, ShareRange(0.2, 0.6), 1, id="beyond the range"),
        pytest.param(50, ShareRange(0.2, 0.6), 1, id="below the range"),
        pytest.param(230, ShareRange(0.25, 0.25), 0, id="by chance"),
    ],
)
def test_differences(count: int, expected: ShareRange, want: int) -> None:
    """A share differs if chance and tolerance do not explain how far it is from the range."""
    counts = {"here": count, "there": 1000 - count}
    ranges = {"here": expected, "there": ShareRange(0.0, 1.0)}
    found = find_differences(counts, ranges, tolerance=0.02)
    assert len([each for each in found if each.place == "here"]) == want


def test_differences_of_a_billion_connections() -> None:
    """A billion connections are judged at once, and a share within the tolerance is fine."""
    counts = {"here": 990_000_000, "there": 10_000_000}
    assert find_differences(counts, {"here": ShareRange(1.0, 1.0)}, tolerance=0.02) == []


_ANY_ZONE = st.sampled_from(["", *ZONES, NO_ZONE, OUTSIDE, UNKNOWN, "zone-gone"])
_KEYS = st.builds(
    FlowKey,
    kind=st.sampled_from(FlowKind),
    namespace=st.just("default"),
    service=st.sampled_from(["web", "other", ""]),
    port=st.sampled_from(["http", "80", "8080", "", "x"]),
    protocol=st.sampled_from(["TCP", "UDP"]),
    client_zone=_ANY_ZONE,
    endpoint_zone=_ANY_ZONE,
    client_node=st.sampled_from(["", "n0", "n1", "gone"]),
    client=st.sampled_from(["", "a/b", "(node)"]),
    endpoint=st.sampled_from(["", "default/web-0", "default/web-1", "default/web-old"]),
)
_NUMBERS = st.integers(0, 10**12)
_COUNTS = st.builds(FlowCounts, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS)
_SERVICES = st.builds(
    service,
    annotations=st.dictionaries(
        st.just(TOPOLOGY_MODE_ANNOTATION), st.sampled_from(["Auto", "Node", "Disabled", "x"])
    ),
    traffic_distribution=st.sampled_from([None, "PreferClose", "PreferSameNode", "x.dev/y"]),
    internal_traffic_policy=st.sampled_from(["Cluster", "Local", "PreferLocal"]),
    session_affinity=st.sampled_from(["None", "ClientIP"]),
    cluster_ip=st.sampled_from(["10.96.0.10", "None", ""]),
    type=st.sampled_from(["ClusterIP", "NodePort", "ExternalName"]),
)
_NODES = st.lists(st.sampled_from([None, *ZONES]), max_size=4).map(
    lambda zones: [node(f"n{number}", zone) for number, zone in enumerate(zones)]
)
_ENDPOINTS = st.lists(
    st.builds(
        endpoint,
        st.sampled_from([f"10.0.0.{number}" for number in range(6)]),
        zone=st.sampled_from([None, *ZONES]),
        node_name=st.sampled_from([None, "n0", "n1", "gone"]),
        ready=st.booleans(),
        terminating=st.booleans(),
        for_zones=st.lists(st.sampled_from(ZONES), max_size=2).map(tuple),
        for_nodes=st.lists(st.sampled_from(["n0", "gone"]), max_size=1).map(tuple),
        pod_name=st.sampled_from([None, "web-0", "web-1"]),
    ),
    max_size=5,
)


@given(
    web=_SERVICES,
    nodes=_NODES,
    endpoints=_ENDPOINTS,
    rows=st.lists(st.tuples(_KEYS, _COUNTS), max_size=12),
    pods=st.booleans(),
    has_bytes=st.booleans(),
)
def test_every_cluster_has_a_verdict(
    *,
    web: Service,
    nodes: list[Node],
    endpoints: list[object],
    rows: list[tuple[FlowKey, FlowCounts]],
    pods: bool,
    has_bytes: bool,
) -> None:
    """Any cluster with any flows gets a verdict that can be written, and no blame without cause."""
    flows = FlowTable(has_bytes=has_bytes)
    for key, counts in rows:
        flows.add(key, counts)
    held = endpoint_slice(*endpoints)  # type: ignore[arg-type] # built above
    inventory = Inventory.of((*nodes, *(PODS if pods else ()), web, held))
    for verified in verify_services(inventory, flows, settings=ALL_GATES):
        msgspec.json.encode(verified)
        if verified.verdict is TrafficVerdict.NOT_HONOURED:
            assert verified.causes
        assert verified.connections == sum(row.connections for row in verified.rows)
        for row in verified.rows:
            assert sum(row.observed.values()) == row.connections
            assert all(0 <= low <= high <= 1 + 1e-9 for low, high in row.expected.values())


@given(seed=st.integers(0, 10_000))
def test_false_alarms_are_rare(seed: int) -> None:
    """No seed of a random draw makes a healthy cluster look faulty."""
    pods = PODS[:4]
    flows = _drawn(WEB, planned_slices(pods=pods), pods=pods, seed=seed)
    verified = verify(flows, pods=pods)
    assert (verified.verdict, verified.causes) == (TrafficVerdict.HONOURED, ())


@pytest.mark.parametrize("following", [0, 2, 5, 6])
def test_nodes_that_follow_weights_and_nodes_that_follow_hints_are_both_right(
    following: int,
) -> None:
    """Beside written weights a node may go by either, in any mixture, and is not blamed for it."""
    gates = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
    asked = PlannerSettings(gates=gates, heuristics={"keepclose.dev/Balanced": BALANCED})
    web = service(
        traffic_distribution="keepclose.dev/Balanced",
        annotations={"keepclose.dev/weights": "Enabled"},
    )
    pods = [pod(f"web-{n}", f"n{n // 2 + 2}", ip=f"10.0.0.{n + 1}") for n in range(8)]
    slices = planned_slices(web, pods=pods, settings=asked)
    assert any(ZONE_WEIGHTS_ANNOTATION in each.metadata.annotations for each in slices)
    by_weights, by_hints = (
        _drawn(web, slices, nodes=nodes, pods=pods, settings=settings)
        for nodes, settings in (
            (NODES[:following], asked),
            (NODES[following:], PlannerSettings()),
        )
    )
    flows = merge_tables((by_weights, by_hints))
    verified = verify(flows, web=web, pods=pods, slices=slices, settings=asked)
    assert verified.verdict is TrafficVerdict.HONOURED, verified
