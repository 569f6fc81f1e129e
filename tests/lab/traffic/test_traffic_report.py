"""What a run showed, summed up."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from keepclose.advise.expectations import Expectation, NamedEndpoint
from keepclose.lab.traffic.answers import ConnectionFailure, ConnectionResult, PodAnswer
from keepclose.lab.traffic.report import (
    Busiest,
    Observation,
    ReportedReason,
    SourceRow,
    TrafficRow,
    make_row,
    make_source_row,
    sum_up_traffic,
)
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.selection import PacketVerdict

ZONES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b"}
GOALS = {
    "a1": NamedEndpoint("a1", "n1", "zone-a"),
    "a2": NamedEndpoint("a2", "n2", "zone-a"),
    "b1": NamedEndpoint("b1", "n3", "zone-b"),
}
# The answer names the zone that the node had when the pod was started.
A1, A2, B1 = (
    PodAnswer("a1", "n1", "old"),
    PodAnswer("a2", "n2", "zone-a"),
    PodAnswer("b1", "n3", "zone-b"),
)


def no_hint(node: str) -> Reason:
    """Return a reason that names the node."""
    return Reason(ReasonCode.ZONE_NOT_HINTED, f"none for node {node}", f"Node {node}", "mend it")


def seen(
    node: str, results: dict[ConnectionResult, int], expected: Expectation, fault: str
) -> Observation:
    """Return what the client of a node saw."""
    zone = ZONES[node]
    return Observation(zone, node, node, zone, results, expected, GOALS, fault)


def spread(node: str, **shares: float) -> Expectation:
    """Return an expectation with a reason."""
    return Expectation(shares, PacketVerdict.NONE, (no_hint(node),))


FIRST = seen("n1", {A1: 30, B1: 70}, spread("n1", a1=0.25, b1=0.75), "")
SECOND = seen(
    "n2", {A2: 20, ConnectionFailure.TIMED_OUT: 180}, spread("n2", a2=1.0), "180 timed out"
)
DROPPED = seen("n3", {ConnectionFailure.TIMED_OUT: 50}, Expectation({}, PacketVerdict.DROP, ()), "")


def test_a_row_by_zones() -> None:
    """Nodes count by their connections, labels of nodes tell zones, and reasons are told once."""
    assert make_row("zone-a", [FIRST, SECOND], ZONES) == TrafficRow(
        source="zone-a",
        connections=300,
        answered={"zone-a": 50, "zone-b": 70},
        expected={"zone-a": 0.75, "zone-b": 0.25},
        failures={"timed out": 180},
        expected_failures={},
        fault="n2: 180 timed out",
        reasons=(ReportedReason("ZoneNotHinted", "none for node n1", "Node n1", "mend it", 2),),
    )


def test_a_row_of_one_source_by_nodes() -> None:
    """It has the pods too."""
    assert make_source_row(FIRST, ZONES) == SourceRow(
        source="n1",
        node="n1",
        zone="zone-a",
        connections=100,
        answered={"n1": 30, "n3": 70},
        expected={"n1": 0.25, "n3": 0.75},
        failures={},
        expected_failures={},
        pods={"a1": 30, "b1": 70},
        expected_pods={"a1": 0.25, "b1": 0.75},
        fault="",
        reasons=(ReportedReason("ZoneNotHinted", "none for node n1", "Node n1", "mend it", 1),),
    )


def test_expected_failures() -> None:
    """Dropped connections are expected to time out, in the proportion of their nodes."""
    row = make_row("all", [FIRST, DROPPED], ZONES)
    assert row.expected_failures == pytest.approx({"timed out": 1 / 3})
    assert row.expected == pytest.approx({"zone-a": 25 / 150, "zone-b": 75 / 150})


def test_sums() -> None:
    """Parts are those of the answered connections; the busiest is measured by an equal share."""
    sums = sum_up_traffic([FIRST, SECOND, DROPPED], zones=ZONES, ready=list(GOALS.values()))
    assert sums.connections == 350
    assert sums.failures == {"timed out": 230}
    assert sums.in_zone == pytest.approx(50 / 120)
    assert sums.on_node == pytest.approx(50 / 120)
    # Of the 100 connections of n1 that were answered b1 should get 75; 40 are a fair share.
    assert sums.busiest is not None
    assert sums.busiest.expected == pytest.approx(75 / 40)
    assert replace(sums.busiest, expected=None) == Busiest("b1", "n3", "zone-b", 1.75)
    uncompared = sum_up_traffic(
        [FIRST, SECOND, DROPPED], zones=ZONES, ready=list(GOALS.values()), compares_shares=False
    )
    assert uncompared.busiest == Busiest("b1", "n3", "zone-b", 1.75)


def test_sums_of_nothing() -> None:
    """Where nobody answered there is no share and no busiest."""
    sums = sum_up_traffic([DROPPED], zones=ZONES, ready=[])
    assert (sums.in_zone, sums.on_node, sums.busiest) == (None, None, None)


def test_rows_as_json() -> None:
    """Keys are those of the API's style, and a row comes back as it was."""
    row = make_row("zone-a", [FIRST], ZONES)
    text = msgspec.json.encode(row)
    assert set(msgspec.json.decode(text)) == {
        "from",
        "connections",
        "answered",
        "expected",
        "failures",
        "expectedFailures",
        "fault",
        "reasons",
    }
    assert msgspec.json.decode(text, type=TrafficRow) == row
