"""From EndpointSlices to the endpoints of each port."""

from __future__ import annotations

import msgspec
import pytest

from keepclose.model.endpointslice.types import Endpoint, EndpointPort, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.workload import Node
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from support.builders import endpoint, endpoint_slice, node

GATES = FeatureGates()
HTTP = ("http", "TCP")


def keys_by_port(*slices: EndpointSlice, family: str = "IPv4") -> dict[tuple[str, str], list[str]]:
    """Return the keys of the endpoints of each port."""
    found = collect_endpoints(slices, family, gates=GATES)
    return {port: [one.key for one in endpoints] for port, endpoints in found.items()}


def only_endpoint(*slices: EndpointSlice, gates: FeatureGates = GATES) -> PortEndpoint:
    """Return the single endpoint of the port http."""
    (one,) = collect_endpoints(slices, "IPv4", gates=gates)[HTTP]
    return one


def ports(*triples: tuple[str | None, str | None, int | None]) -> tuple[EndpointPort, ...]:
    """Return ports of a slice from name, protocol and number."""
    return tuple(EndpointPort(name=n, protocol=p, port=number) for n, p, number in triples)


@pytest.mark.parametrize(
    ("slices", "want"),
    [
        pytest.param((), {}, id="no slices"),
        pytest.param((endpoint_slice(),), {}, id="a slice without endpoints"),
        pytest.param((endpoint_slice(endpoint(), ports=()),), {}, id="a slice without ports"),
        pytest.param(
            (endpoint_slice(endpoint("10.0.0.1")),),
            {HTTP: ["10.0.0.1:8080"]},
            id="one endpoint, one port",
        ),
        pytest.param(
            (endpoint_slice(endpoint("10.0.0.1"), ports=ports(("", "UDP", 53))),),
            {("", "UDP"): ["10.0.0.1:53"]},
            id="an unnamed port",
        ),
        pytest.param(
            (endpoint_slice(endpoint("10.0.0.1"), ports=ports((None, "TCP", 80))),),
            {},
            id="a port whose name is absent is skipped",
        ),
        pytest.param(
            (
                endpoint_slice(
                    endpoint("10.0.0.1"),
                    ports=ports(("a", "TCP", None), ("b", "TCP", 0), ("c", "TCP", 9)),
                ),
            ),
            {("c", "TCP"): ["10.0.0.1:9"]},
            id="ports without a number are skipped",
        ),
        pytest.param(
            (endpoint_slice(endpoint("10.0.0.1"), ports=ports(("a", None, 9))),),
            {("a", "TCP"): ["10.0.0.1:9"]},
            id="no protocol means TCP",
        ),
        pytest.param(
            (
                endpoint_slice(
                    endpoint("10.0.0.2"),
                    endpoint("10.0.0.10"),
                    endpoint("10.0.0.1"),
                    ports=ports(("http", "TCP", 8080), ("dns", "UDP", 53)),
                ),
            ),
            {
                HTTP: ["10.0.0.10:8080", "10.0.0.1:8080", "10.0.0.2:8080"],
                ("dns", "UDP"): ["10.0.0.10:53", "10.0.0.1:53", "10.0.0.2:53"],
            },
            id="sorted as text for each port",
        ),
        pytest.param(
            (
                endpoint_slice(endpoint("10.0.0.1"), name="s1"),
                endpoint_slice(endpoint("10.0.0.2"), name="s2"),
                endpoint_slice(endpoint("10.0.0.3"), name="s3", ports=ports(("dns", "UDP", 53))),
            ),
            {HTTP: ["10.0.0.1:8080", "10.0.0.2:8080"], ("dns", "UDP"): ["10.0.0.3:53"]},
            id="several slices are joined",
        ),
        pytest.param(
            (
                endpoint_slice(endpoint("10.0.0.1"), name="s1"),
                endpoint_slice(endpoint("10.0.0.1"), name="s2", ports=ports(("http", "TCP", 81))),
            ),
            {HTTP: ["10.0.0.1:8080", "10.0.0.1:81"]},
            id="one address with two numbers is two endpoints",
        ),
        pytest.param(
            (endpoint_slice(Endpoint(addresses=()), endpoint("10.0.0.1")),),
            {HTTP: ["10.0.0.1:8080"]},
            id="an endpoint without address is skipped",
        ),
        pytest.param(
            (endpoint_slice(endpoint("ten"), endpoint("10.0.0.1")),),
            {HTTP: ["10.0.0.1:8080"]},
            id="an endpoint whose address is none is skipped",
        ),
        pytest.param(
            (endpoint_slice(Endpoint(addresses=("010.0.0.1", "10.0.0.2"))),),
            {HTTP: ["10.0.0.1:8080"]},
            id="only the first address counts, tidied",
        ),
    ],
)
def test_endpoints_by_port(
    slices: tuple[EndpointSlice, ...], want: dict[tuple[str, str], list[str]]
) -> None:
    """Each port gets the endpoints of all slices that name it, sorted as text."""
    assert keys_by_port(*slices) == want


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(endpoint_slice(endpoint(), address_type="FQDN"), id="names"),
        pytest.param(endpoint_slice(endpoint(), address_type="IPv6"), id="the other family"),
        pytest.param(endpoint_slice(endpoint(), service_name=""), id="no Service"),
        pytest.param(endpoint_slice(endpoint(), namespace=""), id="no namespace"),
        pytest.param(endpoint_slice(endpoint(), name=""), id="no name"),
        pytest.param(
            endpoint_slice(endpoint(), labels={"service.kubernetes.io/headless": ""}), id="headless"
        ),
    ],
)
def test_ignored_slices(one: EndpointSlice) -> None:
    """A slice that is not of a routed Service and the family gives no endpoints."""
    assert keys_by_port(one) == {}


def test_slice_without_service_label() -> None:
    """A slice whose label for the Service is missing gives no endpoints."""
    one = endpoint_slice(endpoint())
    bare = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels={}))
    assert keys_by_port(bare) == {}


def test_ipv6_texts() -> None:
    """An IPv6 endpoint is keyed with brackets, spelled canonically and shown without them."""
    one = endpoint_slice(endpoint("FD00:0:0::1"), address_type="IPv6")
    (got,) = collect_endpoints([one], "IPv6", gates=GATES)[HTTP]
    assert (got.address, got.key, got.shown) == ("fd00::1", "[fd00::1]:8080", "fd00::1/8080")


def test_ipv4_texts() -> None:
    """An IPv4 endpoint is keyed as ip:port and shown as ip/port."""
    got = PortEndpoint("10.0.0.3", 8080)
    assert (got.key, got.shown) == ("10.0.0.3:8080", "10.0.0.3/8080")


@pytest.mark.parametrize(
    ("one", "want"),
    [
        pytest.param(endpoint(ready=None), (True, True, False), id="nothing said"),
        pytest.param(endpoint(ready=True), (True, True, False), id="ready"),
        pytest.param(endpoint(ready=False), (False, True, False), id="only not ready is said"),
        pytest.param(
            endpoint(ready=False, serving=True, terminating=True),
            (False, True, True),
            id="terminating and serving",
        ),
        pytest.param(
            endpoint(ready=False, serving=False, terminating=False),
            (False, False, False),
            id="all said to be false",
        ),
    ],
)
def test_conditions(one: Endpoint, want: tuple[bool, bool, bool]) -> None:
    """Absent conditions mean ready, serving and not terminating."""
    got = only_endpoint(endpoint_slice(one))
    assert (got.ready, got.serving, got.terminating) == want


def test_place() -> None:
    """An endpoint brings its node, its zone and what the beta API said of its topology."""
    one = Endpoint(
        addresses=("10.0.0.1",),
        node_name="n1",
        zone="zone-a",
        deprecated_topology={"rack": "r7", "topology.kubernetes.io/region": "east"},
    )
    got = only_endpoint(endpoint_slice(one))
    assert (got.node_name, got.zone) == ("n1", "zone-a")
    assert got.topology == (("rack", "r7"), ("topology.kubernetes.io/region", "east"))
    bare = only_endpoint(endpoint_slice(endpoint()))
    assert (bare.node_name, bare.zone, bare.topology) == ("", "", ())


@pytest.mark.parametrize(
    ("gates", "want_node_hints"),
    [
        pytest.param(GATES, ("n1", "n2"), id="PreferSameTrafficDistribution on"),
        pytest.param(GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION), (), id="both gates off"),
        pytest.param(
            GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION).with_gates(
                Gate.NODE_LEVEL_TOPOLOGY
            ),
            ("n1", "n2"),
            id="NodeLevelTopology on",
        ),
    ],
)
def test_hints(gates: FeatureGates, want_node_hints: tuple[str, ...]) -> None:
    """Zone hints are always kept, node hints while some gate uses them."""
    one = endpoint_slice(endpoint(for_zones=("zone-a", "zone-b"), for_nodes=("n1", "n2")))
    got = only_endpoint(one, gates=gates)
    assert (got.zone_hints, got.node_hints) == (("zone-a", "zone-b"), want_node_hints)


def test_no_hints() -> None:
    """An endpoint without hints has none of either kind."""
    got = only_endpoint(endpoint_slice(endpoint()))
    assert (got.zone_hints, got.node_hints) == ((), ())


def test_slice_labels() -> None:
    """An endpoint remembers for which zone or region its slice is meant."""
    labels = {
        "endpointslice.kubernetes.io/for-zone": "zone-a",
        "endpointslice.kubernetes.io/for-region": "east",
    }
    got = only_endpoint(endpoint_slice(endpoint(), labels=labels))
    assert (got.for_zone, got.for_region) == ("zone-a", "east")


@pytest.mark.parametrize(
    ("earlier", "later", "want_node"),
    [
        pytest.param(
            endpoint(node_name="old"), endpoint(node_name="new"), "new", id="the later slice wins"
        ),
        pytest.param(
            endpoint(node_name="old"),
            endpoint(node_name="new", ready=False, terminating=True),
            "old",
            id="unless its endpoint terminates",
        ),
        pytest.param(
            endpoint(node_name="old", ready=False, terminating=True),
            endpoint(node_name="new", ready=False),
            "new",
            id="an endpoint not yet ready replaces one that terminates",
        ),
        pytest.param(
            endpoint(node_name="old", terminating=True),
            endpoint(node_name="new", terminating=True),
            "old",
            id="of two that terminate the first stays",
        ),
    ],
)
def test_duplicates(earlier: Endpoint, later: Endpoint, want_node: str) -> None:
    """One address in two slices is one endpoint, whatever order the slices come in."""
    first, second = endpoint_slice(earlier, name="s1"), endpoint_slice(later, name="s2")
    assert only_endpoint(first, second).node_name == want_node
    assert only_endpoint(second, first).node_name == want_node


@pytest.mark.parametrize(
    ("text", "want_weights"),
    [
        pytest.param(None, [1, 1], id="none"),
        pytest.param("[3, 5]", [3, 5], id="one each"),
        pytest.param("[3]", [1, 1], id="too few"),
        pytest.param("[3, 5, 7]", [1, 1], id="too many"),
        pytest.param("[3, 0]", [1, 1], id="zero would be a black hole"),
        pytest.param("[3, -5]", [1, 1], id="negative"),
        pytest.param('["3", "5"]', [1, 1], id="texts"),
        pytest.param("[true, true]", [1, 1], id="no numbers"),
        pytest.param("3,5", [1, 1], id="no JSON"),
        pytest.param("", [1, 1], id="empty"),
    ],
)
def test_weights(text: str | None, want_weights: list[int]) -> None:
    """Weights come from the slice in the order of its endpoints, all of them or none."""
    annotations = {} if text is None else {"keepclose.dev/endpoint-weights": text}
    one = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"), annotations=annotations)
    found = collect_endpoints([one], "IPv4", gates=GATES)[HTTP]
    assert [got.weight for got in found] == want_weights


def test_weights_keep_to_their_endpoint() -> None:
    """A weight follows its endpoint when endpoints are sorted or skipped."""
    one = endpoint_slice(
        endpoint("10.0.0.9"),
        Endpoint(addresses=()),
        endpoint("10.0.0.1"),
        annotations={"keepclose.dev/endpoint-weights": "[9,5,1]"},
    )
    found = collect_endpoints([one], "IPv4", gates=GATES)[HTTP]
    assert [(got.address, got.weight) for got in found] == [("10.0.0.1", 1), ("10.0.0.9", 9)]


@pytest.mark.parametrize(
    ("one", "want"),
    [
        pytest.param(node("n1", None), NodeView("n1"), id="no labels"),
        pytest.param(
            node("n1", "zone-a", labels={"topology.kubernetes.io/region": "east"}),
            NodeView(
                "n1",
                "zone-a",
                "east",
                {
                    "topology.kubernetes.io/zone": "zone-a",
                    "topology.kubernetes.io/region": "east",
                },
            ),
            id="zone and region",
        ),
    ],
)
def test_view_of_a_node(one: Node, want: NodeView) -> None:
    """A node's view of itself comes from its labels."""
    assert NodeView.of(one) == want
