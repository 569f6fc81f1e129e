"""Endpoints that the topologyKeys of a Service allow."""

from __future__ import annotations

import pytest

from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.service_ports import RoutedPort
from keepclose.routing.topology import match_topology_keys

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"

HERE = PortEndpoint("10.0.0.1", 80, node_name="n1", zone="zone-a")
NEAR = PortEndpoint("10.0.0.2", 80, node_name="n2", zone="zone-a")
FAR = PortEndpoint(
    "10.0.0.3", 80, node_name="n3", zone="zone-b", topology=((REGION, "east"), ("rack", "r1"))
)
NOWHERE = PortEndpoint("10.0.0.4", 80)
NODE = NodeView("n1", "zone-a", "east", {"rack": "r1"})
KNOWING = NodeView(
    "n1",
    "zone-a",
    "east",
    {"disk": "ssd"},
    {"n1": {REGION: "west", "disk": "ssd"}, "n2": {REGION: "east", "disk": "hdd"}},
)


def port(*keys: str) -> RoutedPort:
    """Return a port with topologyKeys."""
    return RoutedPort(
        NamespacedName("default", "web"), "http", "TCP", "10.96.0.10", 80, topology_keys=keys
    )


@pytest.mark.parametrize(
    ("keys", "candidates", "node", "want"),
    [
        pytest.param((), (HERE, FAR), NODE, (), id="no keys match nothing"),
        pytest.param((HOST,), (HERE, NEAR, FAR), NODE, (HERE,), id="one hard key, match"),
        pytest.param((HOST,), (NEAR, FAR), NODE, (), id="one hard key, no match"),
        pytest.param(("*",), (HERE, FAR, NOWHERE), NODE, (HERE, FAR, NOWHERE), id="any"),
        pytest.param(
            (HOST, ZONE), (HERE, NEAR, FAR), NODE, (HERE,), id="several hard keys, first wins"
        ),
        pytest.param((HOST, ZONE), (NEAR, FAR), NODE, (NEAR,), id="several hard keys, second wins"),
        pytest.param((HOST, ZONE), (FAR, NOWHERE), NODE, (), id="several hard keys, no match"),
        pytest.param(
            (HOST, ZONE, "*"), (FAR, NOWHERE), NODE, (FAR, NOWHERE), id="several keys, then any"
        ),
        pytest.param((HOST, ZONE, "*"), (NEAR, FAR), NODE, (NEAR,), id="any is not reached"),
        pytest.param((REGION,), (HERE, FAR), NODE, (FAR,), id="region told by the slice"),
        pytest.param((REGION,), (HERE, NEAR), NODE, (), id="region of endpoints unknown"),
        pytest.param((REGION,), (HERE, NEAR), KNOWING, (NEAR,), id="region told by the Node"),
        pytest.param(("disk",), (HERE, NEAR), KNOWING, (HERE,), id="any label told by the Node"),
        pytest.param(("rack",), (HERE, FAR), NODE, (FAR,), id="any label told by the slice"),
        pytest.param(
            (ZONE,), (HERE, NOWHERE), NodeView("n1"), (), id="a node without the label skips it"
        ),
        pytest.param(
            (ZONE, HOST), (HERE, NEAR), NodeView("n1"), (HERE,), id="and goes on with the next key"
        ),
        pytest.param(
            (HOST, ZONE), (HERE, NOWHERE), NodeView(""), (), id="a node that knows nothing: none"
        ),
        pytest.param(
            (HOST, ZONE, "*"),
            (HERE, NOWHERE),
            NodeView(""),
            (HERE, NOWHERE),
            id="a node that knows nothing: all by the last key",
        ),
    ],
)
def test_matches(
    keys: tuple[str, ...],
    candidates: tuple[PortEndpoint, ...],
    node: NodeView,
    want: tuple[PortEndpoint, ...],
) -> None:
    """The first key in which some endpoint agrees with the node decides; none means none."""
    matched, reason = match_topology_keys(port(*keys), candidates, node)
    assert matched == want
    want_code = ReasonCode.TOPOLOGY_KEY_MATCHED if want else ReasonCode.TOPOLOGY_KEYS_UNMATCHED
    assert reason.code is want_code


def test_matched_reason() -> None:
    """The reason names the key, the value and how many endpoints remain."""
    _, reason = match_topology_keys(port(HOST, ZONE), (NEAR, FAR), NODE)
    assert reason.message == (
        "the first of the topologyKeys with a match is topology.kubernetes.io/zone (zone-a): "
        "1 of 2 endpoints"
    )


def test_unmatched_reason() -> None:
    """Without a match the Service is to blame, and the fix leaves its keys alone."""
    _, reason = match_topology_keys(port(HOST, ZONE), (FAR,), NODE)
    assert reason.message == (
        "no endpoint agrees with node n1 in any of the topologyKeys "
        "(kubernetes.io/hostname, topology.kubernetes.io/zone), so connections are refused"
    )
    assert reason.subject == "Service default/web"
    assert reason.fix == "run endpoints where node n1 finds them by one of these labels"
