"""Custom heuristics: allocation by matrix, applied with few changes."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristics import (
    Matrix,
    Refusal,
    ZoneDemand,
    apply_heuristic,
    hint_by_matrix,
)
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import ZoneNodes
from support.builders import endpoint, endpoint_slice


class Fixed:
    """A heuristic that always answers the same, and remembers what it was asked."""

    def __init__(self, answer: Matrix | Refusal) -> None:
        self.answer = answer
        self.asked: list[ZoneDemand] = []

    def allocate(self, demand: ZoneDemand) -> Matrix | Refusal:
        """Return the fixed answer."""
        self.asked.append(demand)
        return self.answer


def pair(address: str, zone: str, served: str = "") -> tuple[str, str, str]:
    """Return the three facts about an endpoint that matter here."""
    return address, zone, served


def made(*endpoints: tuple[str, str, str], name: str = "s1") -> EndpointSlice:
    """Return a slice of endpoints given as (address, zone, hinted zone or "")."""
    return endpoint_slice(
        *(
            endpoint(
                address, zone=zone or None, node_name="n9", for_zones=(served,) if served else ()
            )
            for address, zone, served in endpoints
        ),
        name=name,
    )


def served(slices: SliceSet) -> dict[str, str]:
    """Return the hinted zone of every endpoint by address."""
    return {
        e.addresses[0]: e.hints.for_zones[0].name if e.hints else ""
        for one in slices.all
        for e in one.endpoints
    }


def groups(slices: SliceSet) -> dict[str, tuple[str, ...]]:
    """Return all hinted zones of every endpoint by address."""
    return {
        e.addresses[0]: tuple(hint.name for hint in e.hints.for_zones) if e.hints else ()
        for one in slices.all
        for e in one.endpoints
    }


HALF = {"a": 0.5, "b": 0.5}


def test_the_matrix_becomes_hints() -> None:
    """As many endpoints of each zone serve each zone as the heuristic says."""
    start = SliceSet(create=(made(pair("1", "a"), pair("2", "a"), pair("3", "a"), pair("4", "b")),))
    result = apply_heuristic(start, Fixed({"a": {"a": 2, "b": 1}, "b": {"b": 1}}), shares=HALF)
    assert Counter(served(result.slices).values()) == {"a": 2, "b": 2}
    assert served(result.slices)["4"] == "b"
    assert result.reasons[0].message == "4 ready endpoints are hinted, 1 to another zone"


def test_present_hints_are_kept_where_the_matrix_allows() -> None:
    """An endpoint that serves another zone already goes on doing so; no slice is written."""
    start = made(pair("1", "a", "b"), pair("2", "a", "a"), pair("3", "b", "b"))
    heuristic = Fixed({"a": {"a": 1, "b": 1}, "b": {"b": 1}})
    result = apply_heuristic(SliceSet(unchanged=(start,)), heuristic, shares=HALF)
    assert result.slices == SliceSet(unchanged=(start,))
    assert heuristic.asked == [
        ZoneDemand(HALF, {"a": 2, "b": 1}, {"a": {"a": 1, "b": 1}, "b": {"b": 1}})
    ]


def test_only_slices_with_a_changed_hint_are_written() -> None:
    """One endpoint too many for a zone means one changed hint in one slice."""
    one = made(pair("1", "a", "a"), pair("2", "a", "a"))
    two = made(pair("3", "b", "b"), name="s2")
    result = apply_heuristic(
        SliceSet(unchanged=(one, two)),
        Fixed({"a": {"a": 1, "b": 1}, "b": {"b": 1}}),
        shares=HALF,
    )
    assert [s.metadata.name for s in result.slices.update] == ["s1"]
    assert result.slices.unchanged == (two,)


def test_hints_for_several_zones_are_kept_where_the_matrix_allows() -> None:
    """An endpoint for several zones is in a group of its own, and is asked about as such."""
    start = endpoint_slice(
        endpoint("1", zone="a", for_zones=("b", "a")), endpoint("2", zone="a", for_zones=("a",))
    )
    heuristic = Fixed({"a": {"a": 1, "a,b": 1}})
    result = apply_heuristic(SliceSet(unchanged=(start,)), heuristic, shares=HALF)
    assert heuristic.asked == [ZoneDemand(HALF, {"a": 2}, {"a": {"a": 1, "a,b": 1}})]
    assert groups(result.slices) == {"1": ("a", "b"), "2": ("a",)}
    assert result.reasons[0].message == (
        "2 ready endpoints are hinted, 0 to another zone, 1 for several zones"
    )
    again = apply_heuristic(SliceSet(unchanged=result.slices.all), heuristic, shares=HALF)
    assert again.slices == SliceSet(unchanged=result.slices.all)


def test_the_fewest_endpoints_are_re_hinted_for_several_zones() -> None:
    """Endpoints that have the hints already keep them; only as many others change as lack."""
    start = endpoint_slice(
        endpoint("1", zone="a", for_zones=("a", "b")),
        endpoint("2", zone="a", for_zones=("a",)),
        endpoint("3", zone="a", for_zones=("b",)),
        endpoint("4", zone="b", for_zones=("b",)),
    )
    matrix = {"a": {"a,b": 2, "b": 1}, "b": {"b": 1}}
    result = hint_by_matrix(SliceSet(unchanged=(start,)), matrix, node_hints=True)
    assert groups(result) == {"1": ("a", "b"), "2": ("a", "b"), "3": ("b",), "4": ("b",)}
    split = hint_by_matrix(result, {"a": {"a": 1, "b": 2}, "b": {"b": 1}})
    assert groups(split) == {"1": ("b",), "2": ("a",), "3": ("b",), "4": ("b",)} or groups(
        split
    ) == {"1": ("a",), "2": ("b",), "3": ("b",), "4": ("b",)}


def test_a_refusal_removes_hints_and_says_why() -> None:
    """Without an allocation no hint may stay, and the heuristic's reason is told."""
    why = Reason(ReasonCode.OVERLOAD_BOUND, "too few")
    start = SliceSet(unchanged=(made(pair("1", "a", "a")),))
    result = apply_heuristic(start, Fixed(Refusal(why)), shares=HALF)
    assert served(result.slices) == {"1": ""}
    assert result.reasons == (why,)


def test_an_endpoint_without_a_zone_means_no_hints() -> None:
    """Proxies would ignore all hints anyway, so the reason names the node to label."""
    start = SliceSet(unchanged=(made(pair("1", "a", "a"), pair("2", "")),))
    result = apply_heuristic(start, Fixed({}), shares=HALF)
    assert served(result.slices) == {"1": "", "2": ""}
    assert result.reasons[0].subject == "Node n9"


def test_no_ready_endpoint_is_no_question() -> None:
    """The heuristic is not asked when there is nothing to allocate."""
    heuristic = Fixed({})
    result = apply_heuristic(
        SliceSet(create=(endpoint_slice(endpoint(ready=False)),)), heuristic, shares=HALF
    )
    assert heuristic.asked == []
    assert result.reasons[0].code is ReasonCode.NO_READY_ENDPOINTS


def test_endpoints_that_are_not_ready_lose_hints() -> None:
    """Hints that mean nothing are not kept."""
    start = endpoint_slice(
        endpoint("1", zone="a", ready=False, for_zones=("a",)), endpoint("2", zone="a")
    )
    result = apply_heuristic(SliceSet(update=(start,)), Fixed({"a": {"a": 1}}), shares=HALF)
    assert served(result.slices) == {"1": "", "2": "a"}


class Seeing(Fixed):
    """A heuristic that sees nodes and spread, as those of third parties do."""

    sees_nodes = True


def count_calls(calls: list[int]) -> dict[str, ZoneNodes]:
    """Note a call, and return the nodes of two zones."""
    calls.append(1)
    return {"a": ZoneNodes(2, 8000), "b": ZoneNodes(1, 4000)}


def test_a_heuristic_that_sees_nodes_is_asked_with_them() -> None:
    """Nodes by zone, and how many of them have how many ready endpoints, over all slices."""
    first = endpoint_slice(
        endpoint("1", zone="a", node_name="n1"),
        endpoint("2", zone="a", node_name="n2"),
        endpoint("3", zone="a", node_name="n9", ready=False),
    )
    second = endpoint_slice(
        endpoint("4", zone="a", node_name="n1"),
        endpoint("5", zone="b", node_name="n3"),
        endpoint("6", zone="b"),
        name="s2",
    )
    heuristic = Seeing({"a": {"a": 3}, "b": {"b": 2}})
    apply_heuristic(
        SliceSet(unchanged=(first, second)),
        heuristic,
        shares=HALF,
        source="nodes",
        nodes=lambda: count_calls([]),
    )
    (asked,) = heuristic.asked

    assert asked.source == "nodes"
    assert asked.nodes == count_calls([])
    assert asked.spread == {"a": {1: 1, 2: 1}, "b": {1: 1}}


def test_nodes_are_not_counted_for_a_heuristic_that_does_not_see_them() -> None:
    """Neither nodes nor spread are computed for one in process, such as Balanced."""
    calls: list[int] = []
    start = SliceSet(create=(endpoint_slice(endpoint("1", zone="a", node_name="n1")),))
    heuristic = Fixed({"a": {"a": 1}})
    for unseeing in (heuristic, BALANCED):
        apply_heuristic(start, unseeing, shares=HALF, nodes=lambda: count_calls(calls))

    assert heuristic.asked == [ZoneDemand(HALF, {"a": 1}, {})]
    assert calls == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), max_size=40))
def test_the_spread_counts_every_endpoint_once(placed: list[tuple[str, int]]) -> None:
    """Nodes times endpoints give the endpoints of each zone, whatever the slices are."""
    heuristic = Seeing({})
    slices = tuple(
        endpoint_slice(
            *(
                endpoint(f"{index}", zone=zone, node_name=f"{zone}-{number}")
                for index, (zone, number) in enumerate(placed)
                if index % 3 == part
            ),
            name=f"s{part}",
        )
        for part in range(3)
    )
    apply_heuristic(SliceSet(unchanged=slices), heuristic, shares=HALF)
    for asked in heuristic.asked:
        counted = {
            zone: sum(nodes * endpoints for endpoints, nodes in row.items())
            for zone, row in asked.spread.items()
        }
        on_nodes = {zone: sum(row.values()) for zone, row in asked.spread.items()}
        assert counted == asked.endpoints
        assert on_nodes == {z: len({n for at, n in placed if at == z}) for z in on_nodes}


def test_the_largest_question_of_5000_endpoints_stays_small() -> None:
    """Where as many nodes as possible differ in their endpoints, it is below 2,000 bytes."""
    endpoints = [
        endpoint(f"{zone}{number}-{index}", zone=f"zone-{zone}", node_name=f"{zone}{number}")
        for zone in "abc"
        for number in range(1, 58)
        for index in range(number)
    ]
    heuristic = Seeing({})
    shares = dict.fromkeys(["zone-a", "zone-b", "zone-c"], 1 / 3)
    nodes = {zone: ZoneNodes(1667, 1667 * 64_000) for zone in shares}
    start = SliceSet(unchanged=(endpoint_slice(*endpoints),))
    apply_heuristic(start, heuristic, shares=shares, nodes=lambda: nodes)

    assert len(endpoints) > 4900
    assert len(msgspec.json.encode(heuristic.asked[0])) < 2000
