"""How the connections of a moment divide: failures, zones, the busiest endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.advise.clients import ClientNodes
from keepclose.advise.replaying.routed_load import EndpointTruth, RoutedLoad, measure_load
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy

GATES = FeatureGates()
ZONES = {"n1": "a", "n2": "b"}


def endpoint(number: int, node: str, **more: Any) -> PortEndpoint:
    """Return a ready endpoint on a node."""
    return PortEndpoint(f"10.0.0.{number}", 80, node_name=node, zone=ZONES.get(node, ""), **more)


def load(
    endpoints: list[PortEndpoint],
    *,
    refusing: set[str] | None = None,
    policy: TrafficPolicy = TrafficPolicy.CLUSTER,
    views: tuple[NodeView, ...] = (NodeView("n1", "a"), NodeView("n2", "b")),
) -> RoutedLoad:
    """Return the load of two nodes, which send 30 and 10."""
    port = RoutedPort(
        NamespacedName("x", "web"), "", "TCP", "10.96.0.1", 80, internal_policy=policy
    )
    rates = {"n1": 30.0, "n2": 10.0}
    clients = {ZONES.get(view.name, ""): ClientNodes([view], rates) for view in views}
    truth = EndpointTruth(refusing or set(), ZONES)
    return measure_load(port, endpoints, clients, truth, gates=GATES)


HINTED = [
    endpoint(1, "n1", zone_hints=("a",)),
    endpoint(2, "n2", zone_hints=("b",)),
    endpoint(3, "n2", zone_hints=("b",)),
]


def test_hinted_endpoints_keep_all_in_their_zone() -> None:
    """The only one of zone a gets 30 of 40, and a fair share is a third of 40."""
    got = load(HINTED)
    assert (got.sent, got.failed, got.left_zone, got.without_zones) == (40.0, 0.0, 0.0, 0.0)
    assert got.busiest == pytest.approx(30 / (40 / 3))


def test_without_hints_everything_goes_everywhere() -> None:
    """Two of three endpoints are outside zone a, one is outside zone b."""
    plain = [endpoint(1, "n1"), endpoint(2, "n2"), endpoint(3, "n2")]
    got = load(plain)
    assert got.left_zone == pytest.approx(30 * 2 / 3 + 10 / 3)
    assert (got.without_zones, got.why) == (40.0, "")
    assert got.busiest == pytest.approx(1.0)


def test_endpoints_that_refuse_fail() -> None:
    """They carry nothing, and are no part of a fair share."""
    got = load(HINTED, refusing={"10.0.0.2"})
    assert got.failed == 5.0
    # 35 are answered by two endpoints.
    assert got.busiest == pytest.approx(30 / 17.5)
    assert got.without_zones == 0.0


def test_without_endpoints_everything_fails() -> None:
    """Whatever the reason."""
    got = load([])
    assert (got.sent, got.failed, got.busiest) == (40.0, 40.0, 0.0)
    assert "no endpoints" in got.why


def test_a_missing_hint_is_the_reason() -> None:
    """One endpoint without a hint sends all nodes everywhere."""
    got = load([*HINTED[:2], endpoint(3, "n2")])
    assert got.without_zones == 40.0
    assert "10.0.0.3" in got.why


def test_the_local_policy_regards_zones() -> None:
    """What stays on its node stays in its zone; a node without an endpoint fails."""
    got = load([endpoint(1, "n1")], policy=TrafficPolicy.LOCAL)
    assert (got.failed, got.left_zone, got.without_zones) == (10.0, 0.0, 0.0)


def test_weights_divide_the_load() -> None:
    """An endpoint of weight 3 gets three of four connections."""
    got = load([endpoint(1, "n1", weight=3), endpoint(2, "n2")])
    assert got.busiest == pytest.approx(30 / 20)
    assert got.left_zone == pytest.approx(30 / 4 + 10 * 3 / 4)


def test_the_zone_of_a_client_is_where_it_is() -> None:
    """A node without a label knows no zone, but its connections stay in its zone or leave it."""
    views = (NodeView("n1", ""), NodeView("n2", "b"))
    got = load(HINTED, views=views)
    assert got.without_zones == 30.0
    assert got.left_zone == pytest.approx(30 * 2 / 3)
    assert "n1" in got.why


def test_unknown_zones_are_left() -> None:
    """An endpoint on a node that is not known is in no zone."""
    assert load([endpoint(1, "gone")]).left_zone == 40.0


def test_no_clients_send_nothing() -> None:
    """All figures are zero."""
    assert load(HINTED, views=()) == RoutedLoad()
