"""Proportional allocation by CPU share."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.routing.auto import (
    Infeasible,
    allocate_proportionally,
    disabled_event,
    is_overloaded,
    lend,
    zone_bounds,
)
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import ReasonCode
from support.builders import endpoint, endpoint_slice

THIRDS = {"zone-a": 1 / 3, "zone-b": 1 / 3, "zone-c": 1 / 3}


def spread(name: str = "web-abcde", **zones: int) -> EndpointSlice:
    """Return a slice with so many ready endpoints in zone-a, zone-b, ..."""
    endpoints = [
        endpoint(f"10.0.{len(name)}.{number}", zone=f"zone-{zone}", node_name=f"n-{zone}")
        for number, zone in enumerate(z for z, count in zones.items() for _ in range(count))
    ]
    return endpoint_slice(*endpoints, name=name)


def hinted(slices: SliceSet) -> Counter[tuple[str, str]]:
    """Return how many ready endpoints of a zone are hinted to a zone; "" for no hint."""
    return Counter(
        (e.zone or "", e.hints.for_zones[0].name if e.hints and e.hints.for_zones else "")
        for one in slices.all
        for e in one.endpoints
        if e.is_ready
    )


@pytest.mark.parametrize(
    ("zones", "feasible", "infeasible"),
    [
        pytest.param(2, [2, 4, 6, 7, 8, 9, 20], [3, 5], id="two equal zones"),
        pytest.param(3, [3, 6, 7, 9, 10, 12, 13, 14, 50], [4, 5, 8, 11], id="three equal zones"),
        pytest.param(4, [4, 8, 9, 12, 13, 14, 16, 40], [5, 6, 7, 10, 11, 15], id="four equal"),
    ],
)
def test_feasible_endpoint_counts(zones: int, feasible: list[int], infeasible: list[int]) -> None:
    """On equal zones some endpoint counts cannot keep every zone within the bound."""
    ratios = {f"zone-{n}": 1 / zones for n in range(zones)}
    assert all(isinstance(zone_bounds(ratios, n), dict) for n in feasible)
    refused = [zone_bounds(ratios, n) for n in infeasible]
    assert all(isinstance(one, Infeasible) for one in refused)


def test_bounds_follow_the_ratios() -> None:
    """Minimums are the shares divided by 1.2 and rounded up; the rest is everybody's maximum."""
    bounds = zone_bounds({"a": 0.4, "b": 0.32, "c": 0.28}, 10)
    assert isinstance(bounds, dict)
    assert {zone: bound.maximum for zone, bound in bounds.items()} == {"a": 4, "b": 3, "c": 3}
    assert bounds["b"].target == 3.2
    quarter = zone_bounds({"a": 0.5, "b": 0.25, "c": 0.25}, 4)
    assert isinstance(quarter, dict)
    assert {zone: bound.maximum for zone, bound in quarter.items()} == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("ratios", "ready", "want_code", "want_text"),
    [
        pytest.param(
            None,
            5,
            ReasonCode.INSUFFICIENT_NODE_INFO,
            "Insufficient Node information: allocatable CPU or zone not specified on one or more"
            " nodes",
            id="no ratios",
        ),
        pytest.param({}, 5, ReasonCode.NODES_IN_ONE_ZONE, "Nodes only ready in one zone", id="{}"),
        pytest.param(
            {"a": 1.0}, 5, ReasonCode.NODES_IN_ONE_ZONE, "Nodes only ready in one zone", id="one"
        ),
        pytest.param(
            THIRDS,
            2,
            ReasonCode.TOO_FEW_ENDPOINTS,
            "Insufficient number of endpoints (2 endpoints, 3 zones)",
            id="too few",
        ),
        pytest.param(
            THIRDS,
            4,
            ReasonCode.OVERLOAD_BOUND,
            "Unable to allocate minimum required endpoints to each zone without exceeding"
            " overload threshold (4 endpoints, 3 zones)",
            id="overload",
        ),
    ],
)
def test_infeasible_says_why(
    ratios: dict[str, float] | None, ready: int, want_code: ReasonCode, want_text: str
) -> None:
    """Each way to fail has its event text and its reason."""
    answer = zone_bounds(ratios, ready)
    assert isinstance(answer, Infeasible)
    assert (answer.message, answer.reason.code) == (want_text, want_code)


@pytest.mark.parametrize(
    ("targets", "have", "want_giving", "want_receiving"),
    [
        pytest.param({}, {}, {}, {}, id="nothing"),
        pytest.param({"a": 5, "b": 5}, {"a": 5, "b": 5}, {}, {}, id="balanced"),
        pytest.param(
            {"a": 5.1, "b": 5.1, "c": 5.8}, {"a": 16}, {"a": 10}, {"b": 5, "c": 5}, id="all in a"
        ),
        pytest.param(
            {"a": 5.0, "b": 5.6, "c": 5.4}, {"a": 16}, {"a": 11}, {"b": 6, "c": 5}, id="fractions"
        ),
        pytest.param(
            {"a": 5.0, "b": 5.6, "c": 5.4},
            {"b": 8, "c": 8},
            {"b": 2, "c": 3},
            {"a": 5},
            id="two givers",
        ),
        pytest.param({"a": 1.5, "b": 1.5}, {"a": 2, "b": 1}, {}, {}, id="two halves move nothing"),
        pytest.param(
            {"a": 1.0, "b": 1.4, "c": 1.4},
            {"a": 2, "b": 1, "c": 1},
            {},
            {},
            id="need below one half stays",
        ),
        pytest.param(
            {"a": 1.0, "b": 1.5, "c": 1.5},
            {"a": 2, "b": 1, "c": 1},
            {"a": 1},
            {"b": 1},
            id="a whole surplus serves half a need",
        ),
        pytest.param(
            {"a": 1.5, "b": 3.0, "c": 1.5},
            {"a": 2, "b": 2, "c": 2},
            {"a": 1},
            {"b": 1},
            id="half a surplus serves a whole need",
        ),
    ],
)
def test_lending_goes_from_the_largest_surplus_to_the_largest_need(
    targets: dict[str, float],
    have: dict[str, int],
    want_giving: dict[str, int],
    want_receiving: dict[str, int],
) -> None:
    """Whole endpoints move while giver and taker both have at least half of one at stake."""
    assert lend(targets, have) == (want_giving, want_receiving)


def test_six_pods_on_three_zones_end_up_two_each() -> None:
    """Placed 1/3/2, one endpoint of the middle zone serves the first."""
    result = allocate_proportionally(
        SliceSet(create=(spread(a=1, b=3, c=2),)),
        ratios=THIRDS,
        address_type="IPv4",
        populated=False,
    )
    assert hinted(result.slices) == {
        ("zone-a", "zone-a"): 1,
        ("zone-b", "zone-b"): 2,
        ("zone-b", "zone-a"): 1,
        ("zone-c", "zone-c"): 2,
    }
    assert result.totals == {"zone-a": 2, "zone-b": 2, "zone-c": 2}
    assert [(e.type, e.reason, e.message) for e in result.events] == [
        (
            "Normal",
            "TopologyAwareHintsEnabled",
            "Topology Aware Hints has been enabled, addressType: IPv4",
        )
    ]
    assert result.reasons[0].code is ReasonCode.ALLOCATED


def test_a_zone_may_receive_several_endpoints() -> None:
    """Zones without endpoints of their own receive until they have enough, and no more."""
    result = allocate_proportionally(
        SliceSet(create=(spread(a=6),)), ratios=THIRDS, address_type="IPv4", populated=True
    )
    assert hinted(result.slices) == {
        ("zone-a", "zone-a"): 2,
        ("zone-a", "zone-b"): 2,
        ("zone-a", "zone-c"): 2,
    }


def test_the_event_comes_once() -> None:
    """A Service that had hints before gets no event for having them still."""
    result = allocate_proportionally(
        SliceSet(create=(spread(a=1, b=1, c=1),)),
        ratios=THIRDS,
        address_type="IPv6",
        populated=True,
    )
    assert result.events == ()


def test_infeasible_removes_all_hints() -> None:
    """When the bound cannot be kept, also slices that were fine lose their hints."""
    fine = endpoint_slice(endpoint("10.0.0.1", zone="zone-a", for_zones=("zone-a",)))
    result = allocate_proportionally(
        SliceSet(create=(spread(b=2, c=1),), unchanged=(fine,)),
        ratios=THIRDS,
        address_type="IPv4",
        populated=True,
    )
    assert set(hinted(result.slices)) == {("zone-a", ""), ("zone-b", ""), ("zone-c", "")}
    assert result.totals is None
    assert result.events == (
        disabled_event(
            "IPv4",
            "Unable to allocate minimum required endpoints to each zone without exceeding"
            " overload threshold (4 endpoints, 3 zones)",
        ),
    )


def test_an_endpoint_without_a_zone_ends_it() -> None:
    """One ready endpoint without a zone removes all hints and names the node to mend."""
    lost = endpoint_slice(
        endpoint("10.0.0.9", node_name="n9"), *spread(a=1, b=1, c=1).endpoints, name="lost"
    )
    result = allocate_proportionally(
        SliceSet(create=(lost,)),
        ratios={"zone-a": 0.5, "zone-b": 0.5},
        address_type="IPv4",
        populated=False,
    )
    assert result.events[0].message == (
        "One or more endpoints do not have a zone specified, addressType: IPv4"
    )
    assert result.reasons[0].subject == "Node n9"


def test_ready_endpoints_alone_count() -> None:
    """Endpoints that are not ready, or do not say, are neither counted nor hinted."""
    mixed = endpoint_slice(
        endpoint("10.0.0.1", zone="zone-a"),
        endpoint("10.0.0.2", zone="zone-b"),
        endpoint("10.0.0.3", zone="zone-a", ready=False, for_zones=("zone-a",)),
        endpoint("10.0.0.4", zone="zone-b", ready=None),
    )
    result = allocate_proportionally(
        SliceSet(update=(mixed,)),
        ratios={"zone-a": 0.5, "zone-b": 0.5},
        address_type="IPv4",
        populated=False,
    )
    hints = [e.hints for one in result.slices.all for e in one.endpoints]
    assert [hint is not None for hint in hints] == [True, True, False, False]


def test_slices_that_fit_stay_unchanged() -> None:
    """A slice whose hints still fit under the maximums is not written again."""
    first = allocate_proportionally(
        SliceSet(create=(spread(a=2, b=2, c=2),)),
        ratios=THIRDS,
        address_type="IPv4",
        populated=False,
    )
    again = allocate_proportionally(
        SliceSet(unchanged=first.slices.create),
        ratios=THIRDS,
        address_type="IPv4",
        populated=True,
    )
    assert again.slices == SliceSet(unchanged=first.slices.create)
    assert again.totals == {"zone-a": 2, "zone-b": 2, "zone-c": 2}


def hints_as(*pairs: tuple[str, tuple[str, ...]]) -> EndpointSlice:
    """Return a slice with endpoints given as (own zone, hinted zones)."""
    return endpoint_slice(
        *(
            endpoint(f"10.0.9.{n}", zone=zone, for_zones=zones)
            for n, (zone, zones) in enumerate(pairs)
        )
    )


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param(hints_as(("zone-a", ("zone-a",)), ("zone-b", ())), id="a hint is missing"),
        pytest.param(
            hints_as(("zone-a", ("zone-x",)), ("zone-b", ("zone-b",))), id="a zone is unknown"
        ),
        pytest.param(
            hints_as(("zone-a", ("zone-a",)), ("zone-b", ("zone-a",))), id="over the maximum"
        ),
        pytest.param(
            endpoint_slice(
                endpoint("10.0.9.1", zone="zone-a", for_zones=("zone-a",), for_nodes=("n1",)),
                endpoint("10.0.9.2", zone="zone-b", for_zones=("zone-b",)),
            ),
            id="node hints are left over from PreferSameNode",
        ),
    ],
)
def test_slices_that_do_not_fit_are_allocated_again(stale: EndpointSlice) -> None:
    """An unchanged slice with unusable hints becomes an update with the right ones."""
    result = allocate_proportionally(
        SliceSet(unchanged=(stale,)),
        ratios={"zone-a": 0.5, "zone-b": 0.5},
        address_type="IPv4",
        populated=True,
    )
    assert len(result.slices.update) == 1
    assert hinted(result.slices) == {("zone-a", "zone-a"): 1, ("zone-b", "zone-b"): 1}
    assert all(not e.hints.for_nodes for e in result.slices.update[0].endpoints if e.hints)


def test_node_hints_can_be_laid_over() -> None:
    """With node-level topology on top, each endpoint also names its own node."""
    result = allocate_proportionally(
        SliceSet(create=(spread(a=1, b=1),)),
        ratios={"zone-a": 0.5, "zone-b": 0.5},
        address_type="IPv4",
        populated=False,
        node_hints=True,
    )
    nodes = [e.hints.for_nodes[0].name for e in result.slices.create[0].endpoints if e.hints]
    assert nodes == ["n-a", "n-b"]
    again = allocate_proportionally(
        SliceSet(unchanged=result.slices.create),
        ratios={"zone-a": 0.5, "zone-b": 0.5},
        address_type="IPv4",
        populated=True,
        node_hints=True,
    )
    assert again.slices.update == ()


def test_zones_without_nodes_never_give() -> None:
    """Endpoints in a zone that has no ready node keep their own zone."""
    result = allocate_proportionally(
        SliceSet(create=(spread(a=1, b=1, x=2),)),
        ratios={"zone-a": 0.5, "zone-b": 0.5},
        address_type="IPv4",
        populated=False,
    )
    assert hinted(result.slices)[("zone-x", "zone-x")] == 2


@pytest.mark.parametrize(
    ("totals", "ratios", "want"),
    [
        pytest.param({}, THIRDS, False, id="nothing remembered"),
        pytest.param({"zone-a": 3}, None, True, id="no ratios any more"),
        pytest.param({"zone-a": 3}, {}, True, id="no zones any more"),
        pytest.param({"zone-a": 2, "zone-b": 2, "zone-c": 2}, THIRDS, False, id="even"),
        pytest.param({"zone-a": 3, "zone-b": 3}, THIRDS, True, id="a zone has none"),
        pytest.param(
            {"zone-a": 10, "zone-b": 9}, {"zone-a": 0.5, "zone-b": 0.5}, False, id="within bound"
        ),
        pytest.param(
            {"zone-a": 12, "zone-b": 7}, {"zone-a": 0.5, "zone-b": 0.5}, True, id="beyond bound"
        ),
        pytest.param(
            {"zone-a": 8, "zone-b": 4, "zone-c": 2},
            {"zone-a": 4 / 7, "zone-b": 2 / 7, "zone-c": 1 / 7},
            False,
            id="uneven zones that match",
        ),
        pytest.param(
            {"zone-a": 3, "zone-b": 1},
            {"zone-a": 4 / 7, "zone-b": 2 / 7, "zone-c": 1 / 7},
            True,
            id="uneven zones, one below one",
        ),
    ],
)
def test_overload_after_node_changes(
    totals: dict[str, int], ratios: dict[str, float] | None, want: bool
) -> None:
    """A Service is overloaded when some zone now has less than its share over 1.2."""
    assert is_overloaded(totals, ratios) is want


def random_slices() -> st.SearchStrategy[list[list[str]]]:
    """Return slices as lists of zones."""
    return st.lists(st.lists(st.sampled_from("abc"), max_size=8), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    groups=random_slices(),
    weights=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
def test_allocation_keeps_its_bound(groups: list[list[str]], weights: tuple[int, int, int]) -> None:
    """From nothing, each zone ends within half an endpoint of its target, or where it was.

    Where no zone's minimum had to be rounded above its share, that also keeps every zone within
    the overload bound. Otherwise the targets add up to more than there is, and the original
    algorithm lets the largest need win.
    """
    slices = tuple(
        endpoint_slice(
            *(endpoint(f"10.{number}.0.{n}", zone=f"zone-{zone}") for n, zone in enumerate(group)),
            name=f"s{number}",
        )
        for number, group in enumerate(groups)
    )
    total = sum(weights)
    ratios = {f"zone-{z}": w / total for z, w in zip("abc", weights, strict=True)}
    result = allocate_proportionally(
        SliceSet(create=slices), ratios=ratios, address_type="IPv4", populated=False
    )
    counts = Counter(served for (_, served), n in hinted(result.slices).items() for _ in range(n))
    if result.totals is None:
        assert set(counts) <= {""}
        return
    assert counts == Counter(result.totals)
    bounds = zone_bounds(ratios, sum(len(group) for group in groups))
    assert isinstance(bounds, dict)
    have = Counter(f"zone-{zone}" for group in groups for zone in group)
    for zone, bound in bounds.items():
        assert result.totals.get(zone, 0) <= max(have[zone], bound.target + 0.5)
        assert result.totals.get(zone, 0) >= min(have[zone], bound.target - 0.5)
    if sum(bound.target for bound in bounds.values()) < len(bounds) * 1e-9 + sum(have.values()):
        assert not is_overloaded(result.totals, ratios)
    endpoints: list[Endpoint] = [e for one in result.slices.all for e in one.endpoints]
    assert len(endpoints) == sum(len(group) for group in groups)
    again = allocate_proportionally(
        SliceSet(unchanged=result.slices.all), ratios=ratios, address_type="IPv4", populated=True
    )
    assert again.totals == result.totals
