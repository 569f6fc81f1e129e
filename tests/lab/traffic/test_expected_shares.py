"""Where connections should go, by the decisions of the proxies."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.advise.expectations import (
    NamedEndpoint,
    NamedPortEndpoints,
    expect,
    name_endpoints,
)
from keepclose.lab.traffic.answers import ConnectionFailure
from keepclose.lab.traffic.expected_shares import expected_failure
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.well_known import ENDPOINT_WEIGHTS_ANNOTATION
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.selection import PacketVerdict
from keepclose.routing.service_ports import routed_ports
from support.builders import endpoint, endpoint_slice, pod, service

GATES = FeatureGates().with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)
ZONES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}
NODE_PORT = (ServicePort(name="http", protocol="TCP", port=80, target_port=8080, node_port=30080),)


def hinted() -> EndpointSlice:
    """Return a slice with endpoints in two of three zones, each for its own zone."""
    return endpoint_slice(
        endpoint("10.0.0.1", node_name="n1", zone="zone-a", for_zones=("zone-a",), pod_name="a1"),
        endpoint("10.0.0.2", node_name="n1", zone="zone-a", for_zones=("zone-a",), pod_name="a2"),
        endpoint("10.0.0.3", node_name="n2", zone="zone-b", for_zones=("zone-b",), pod_name="b1"),
    )


def plain() -> EndpointSlice:
    """Return the same endpoints without hints."""
    piece = hinted()
    return replace(piece, endpoints=tuple(replace(one, hints=None) for one in piece.endpoints))


def named_endpoints(one: Service, *slices: EndpointSlice) -> NamedPortEndpoints:
    """Return the endpoints of the first port in IPv4."""
    (port,) = routed_ports(one, "IPv4", gates=GATES)
    return name_endpoints(port, slices, family="IPv4", zones=ZONES, gates=GATES)


def view(name: str) -> NodeView:
    """Return a node."""
    return NodeView(name, ZONES[name])


def test_a_zone_with_endpoints_keeps_its_connections() -> None:
    """Equal shares of what is hinted for the zone, and nothing to explain."""
    found = expect(named_endpoints(service(), hinted()), node=view("n1"), gates=GATES)
    assert found.shares == {"a1": 0.5, "a2": 0.5}
    assert expected_failure(found) is None
    assert found.reasons == ()


def test_a_zone_without_endpoints_uses_all_and_says_why() -> None:
    """The reason is that of the selection."""
    found = expect(named_endpoints(service(), hinted()), node=view("n3"), gates=GATES)
    assert found.shares == pytest.approx({"a1": 1 / 3, "a2": 1 / 3, "b1": 1 / 3})
    assert [reason.message for reason in found.reasons] == [
        "no ready endpoint is hinted for zone zone-c of node n3"
    ]


def test_weights_make_unequal_shares() -> None:
    """An endpoint's share follows its weight."""
    piece = endpoint_slice(
        endpoint("10.0.0.1", pod_name="a1"),
        endpoint("10.0.0.2", pod_name="a2"),
        annotations={ENDPOINT_WEIGHTS_ANNOTATION: "[3,1]"},
    )
    found = expect(named_endpoints(service(), piece), node=view("n1"), gates=GATES)
    assert found.shares == {"a1": 0.75, "a2": 0.25}
    assert [reason.code for reason in found.reasons] == ["Weighted"]


def test_a_local_policy_drops_where_nobody_is() -> None:
    """Connections time out, and only the policy is to blame."""
    known = named_endpoints(service(internal_traffic_policy="Local"), hinted())
    assert expect(known, node=view("n1"), gates=GATES).shares == {"a1": 0.5, "a2": 0.5}
    found = expect(known, node=view("n3"), gates=GATES)
    assert (found.shares, found.verdict) == ({}, PacketVerdict.DROP)
    assert expected_failure(found) is ConnectionFailure.TIMED_OUT
    assert [reason.code for reason in found.reasons] == ["NoLocalEndpoint"]


def test_no_endpoints_at_all_are_refused() -> None:
    """Connections are refused, and the reason tells how many endpoints there are."""
    piece = endpoint_slice(endpoint("10.0.0.1", ready=False, serving=False, pod_name="a1"))
    found = expect(named_endpoints(service(), piece), node=view("n1"), gates=GATES)
    assert (found.shares, expected_failure(found)) == ({}, ConnectionFailure.REFUSED)
    assert [reason.code for reason in found.reasons] == ["NoEndpoints"]


@pytest.mark.parametrize(
    ("policy", "node", "want", "codes"),
    [
        pytest.param("Local", "n2", {"b1": 1.0}, [], id="Local keeps to the entry node"),
        pytest.param("Local", "n3", {}, ["NoLocalEndpoint"], id="Local drops elsewhere"),
        pytest.param("Cluster", "n2", {"b1": 1.0}, [], id="Cluster goes by hints"),
        pytest.param(
            "Cluster",
            "n3",
            {"a1": 1 / 3, "a2": 1 / 3, "b1": 1 / 3},
            ["ZoneNotHinted"],
            id="Cluster falls back",
        ),
    ],
)
def test_from_outside_the_other_policy_counts(
    policy: str, node: str, want: dict[str, float], codes: list[str]
) -> None:
    """What the internal policy does is neither expected nor told."""
    one = service(
        type="NodePort",
        ports=NODE_PORT,
        external_traffic_policy=policy,
        internal_traffic_policy="Local",
    )
    found = expect(named_endpoints(one, hinted()), node=view(node), gates=GATES, from_outside=True)
    assert found.shares == pytest.approx(want)
    assert [reason.code for reason in found.reasons] == codes


def test_prefer_local_says_when_it_falls_back() -> None:
    """On a node with endpoints hints are no matter; elsewhere the policy and the hints speak."""
    one = service(annotations={"keepclose.dev/internal-traffic-policy": "PreferLocal"})
    known = named_endpoints(one, plain())
    assert expect(known, node=view("n2"), gates=GATES).reasons == ()
    found = expect(known, node=view("n3"), gates=GATES)
    assert [reason.code for reason in found.reasons] == ["LocalFellBack"]
    assert len(found.shares) == 3


def test_endpoints_by_name_and_place() -> None:
    """Slices name pods, else pods by address do; labels of nodes win over what slices say."""
    piece = endpoint_slice(
        endpoint("10.0.0.1", node_name="n1", zone="old", pod_name="a1"),
        endpoint("10.0.0.2", node_name="gone", zone="zone-x"),
        endpoint("10.0.0.3", node_name="n2", ready=False),
    )
    (port,) = routed_ports(service(), "IPv4", gates=GATES)
    pods = [pod("by-hand", "gone", ip="10.0.0.2")]
    known = name_endpoints(port, [piece], family="IPv4", zones=ZONES, pods=pods, gates=GATES)
    assert known.named == {
        "10.0.0.1": NamedEndpoint("a1", "n1", "zone-a"),
        "10.0.0.2": NamedEndpoint("by-hand", "gone", "zone-x"),
        "10.0.0.3": NamedEndpoint("10.0.0.3", "n2", "zone-b"),
    }
    assert [goal.pod for goal in known.ready] == ["a1", "by-hand"]
