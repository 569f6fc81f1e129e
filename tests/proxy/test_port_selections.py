"""What a node does with service ports, and the sums that are kept of it."""

from __future__ import annotations

from keepclose.model.endpointslice.types import Endpoint, EndpointPort, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION
from keepclose.proxy.port_selections import PortStates
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.selection import Selection
from keepclose.routing.service_ports import RoutedPort, routed_ports
from support.builders import endpoint, endpoint_slice, service

WEB = NamespacedName("default", "web")
HERE = NodeView("n1", "zone-a")
GATES = FeatureGates()


class Rules:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[str, ...] | None]] = []

    def set_port(self, port: RoutedPort, selection: Selection | None) -> None:
        """Note the name of the port and where its internal traffic goes."""
        used = None
        if selection is not None:
            used = tuple(one.address for one in selection.internal.endpoints)
        self.told.append((port.name, used))


def make_states(node: NodeView = HERE) -> tuple[PortStates, Rules]:
    """Return states and the rules that they tell."""
    rules = Rules()
    return PortStates("IPv4", gates=GATES, node=node, set_port=rules.set_port), rules


def put(states: PortStates, one: Service, *slices: EndpointSlice) -> None:
    """Take in a Service and its slices."""
    states.set_ports(one.key, routed_ports(one, "IPv4", gates=GATES))
    states.set_endpoints(one.key, slices)
    states.select(one.key)


def hinted(address: str, zone: str) -> Endpoint:
    """Return an endpoint that is for its own zone."""
    return endpoint(address, zone=zone, for_zones=(zone,))


def test_zone_hints_narrow_what_the_rules_get() -> None:
    """The rules are told the endpoints of the zone, and the mode is counted."""
    states, rules = make_states()
    put(
        states,
        service(),
        endpoint_slice(hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b")),
    )
    assert rules.told == [("http", ("10.0.0.1",))]
    assert states.modes == {"PreferSameZone": 1}
    assert (states.exceptions, states.fallbacks) == ({}, {})


def test_a_node_that_moves_selects_anew() -> None:
    """After a move the same endpoints are judged by the new zone."""
    states, rules = make_states()
    put(
        states,
        service(),
        endpoint_slice(hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b")),
    )
    states.set_node(NodeView("n1", "zone-b"))
    states.select(WEB)
    assert rules.told[-1] == ("http", ("10.0.0.2",))
    states.set_node(NodeView("n1"))
    states.select(WEB)
    assert rules.told[2:] == [("http", ("10.0.0.1", "10.0.0.2"))]
    assert states.exceptions == {WEB: ReasonCode.NODE_WITHOUT_ZONE}
    assert +states.fallbacks == {"NodeWithoutZone": 1}
    assert +states.modes == {"": 1}


def test_ports_that_go_are_taken_from_the_rules() -> None:
    """Of two ports one goes, then the Service; the sums go back to nothing."""
    states, rules = make_states()
    two = (ServicePort(name="a", port=1), ServicePort(name="b", port=2, protocol="UDP"))
    put(states, service(ports=two))
    assert states.udp == {WEB}
    put(states, service(ports=two[:1]))
    assert rules.told[2:] == [("b", None), ("a", ())]
    states.set_ports(WEB, ())
    states.select(WEB)
    assert rules.told[-1] == ("a", None)
    assert (states.services, states.udp, +states.modes) == ({}, set(), {})


def test_slices_before_their_service() -> None:
    """Endpoints of an unknown Service wait, and are used once it comes."""
    states, rules = make_states()
    states.set_endpoints(WEB, [endpoint_slice(endpoint("10.0.0.1"))])
    states.select(WEB)
    assert (rules.told, states.services) == ([], {})
    states.set_ports(WEB, routed_ports(service(), "IPv4", gates=GATES))
    states.select(WEB)
    assert rules.told == [("http", ("10.0.0.1",))]


def test_no_local_endpoint_is_counted_by_direction() -> None:
    """Local policies without an endpoint here count once for each direction."""
    states, _ = make_states()
    local = service(
        type="NodePort",
        internal_traffic_policy="Local",
        external_traffic_policy="Local",
        ports=(ServicePort(name="http", port=80, node_port=30080),),
    )
    put(states, local, endpoint_slice(endpoint("10.0.0.1", node_name="n2")))
    assert states.no_local == {"internal": 1, "external": 1}
    put(states, local, endpoint_slice(endpoint("10.0.0.1", node_name="n1")))
    assert states.no_local == {"internal": 0, "external": 0}


def test_health_checks_count_addresses() -> None:
    """Ready addresses on this node count once, however many ports they serve."""
    states, _ = make_states()
    balanced = service(
        type="LoadBalancer",
        external_traffic_policy="Local",
        health_check_node_port=32000,
        ports=(ServicePort(name="a", port=1), ServicePort(name="b", port=2)),
    )
    put(
        states,
        balanced,
        endpoint_slice(
            endpoint("10.0.0.1", node_name="n1"),
            endpoint("10.0.0.2", node_name="n1", ready=False),
            endpoint("10.0.0.3", node_name="n2"),
            ports=(EndpointPort("a", "TCP", 8080), EndpointPort("b", "TCP", 8081)),
        ),
    )
    assert (states.health_checks, states.services[WEB].local_ready) == ({WEB: 32000}, 1)


def test_addresses_of_another_family_are_left_out() -> None:
    """An address that no rule of the family could hold does no harm."""
    states, rules = make_states()
    put(states, service(), endpoint_slice(endpoint("fd00::1"), endpoint("10.0.0.1")))
    assert rules.told == [("http", ("10.0.0.1",))]


def test_one_endpoint_without_a_hint_is_an_exception() -> None:
    """The reason is that of the decision; unhinted Services are none."""
    states, _ = make_states()
    put(states, service(), endpoint_slice(hinted("10.0.0.1", "zone-a"), endpoint("10.0.0.2")))
    assert states.exceptions == {WEB: ReasonCode.ZONE_HINT_MISSING}
    put(states, service(), endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2")))
    assert states.exceptions == {}


def test_replay_tells_other_rules_everything() -> None:
    """Rules that start empty get all ports, and all that comes later."""
    states, rules = make_states()
    put(states, service(), endpoint_slice(endpoint("10.0.0.1")))
    put(states, service(name="api"))
    fresh = Rules()
    states.replay(fresh.set_port)
    assert sorted(fresh.told) == [("http", ()), ("http", ("10.0.0.1",))]
    states.select(WEB)
    assert (len(rules.told), len(fresh.told)) == (2, 3)


def test_a_node_that_follows_weights_uses_the_hints_as_written() -> None:
    """Weights come from the writer of the hints, so following them is no exception."""
    gates = GATES.with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
    rules = Rules()
    states = PortStates("IPv4", gates=gates, node=HERE, set_port=rules.set_port)
    web = service(traffic_distribution="keepclose.dev/Balanced")
    weights = '{"weights":{"zone-a":{"zone-a":3,"zone-b":1}}}'
    states.set_ports(web.key, routed_ports(web, "IPv4", gates=gates))
    states.set_endpoints(
        web.key,
        [
            endpoint_slice(
                hinted("10.0.0.1", "zone-a"),
                hinted("10.0.0.2", "zone-b"),
                annotations={ZONE_WEIGHTS_ANNOTATION: weights},
            )
        ],
    )
    states.select(web.key)
    assert rules.told[-1] == ("http", ("10.0.0.1", "10.0.0.2"))
    assert states.modes == {"Weights": 1}
    assert states.exceptions == {}
