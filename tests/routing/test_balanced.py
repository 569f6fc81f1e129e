"""The heuristic keepclose.dev/Balanced, from shares and slices to hints, and what is said of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.routing.allocation.balanced import Objective, balance
from keepclose.routing.allocation.weighted import evaluate_weighted, weighted_matrix
from keepclose.routing.balanced import BALANCED, Balanced
from keepclose.routing.heuristic_answers import check_answer
from keepclose.routing.heuristics import Allotment, Refusal, ZoneDemand, apply_heuristic
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import ReasonCode
from support.builders import endpoint, endpoint_slice

PAGE = Path(__file__).parents[2] / "docs" / "background" / "balanced.md"
SHARES = {"a": 0.5, "b": 0.3, "c": 0.2}


def spread(**zones: int) -> EndpointSlice:
    """Return a slice with so many ready endpoints in each zone, not hinted."""
    placed = [zone for zone, count in zones.items() for _ in range(count)]
    return endpoint_slice(
        *(endpoint(f"10.0.0.{number}", zone=zone) for number, zone in enumerate(placed))
    )


def hinted(slices: SliceSet) -> Counter[tuple[str, str]]:
    """Return how many endpoints of a zone are hinted to a zone; "" for no hint."""
    return Counter(
        (e.zone or "", e.hints.for_zones[0].name if e.hints else "")
        for one in slices.all
        for e in one.endpoints
    )


def test_zones_are_matched_by_name() -> None:
    """Whatever the order of the mappings, each zone gets what is meant for it."""
    demand = ZoneDemand({"c": 0.2, "a": 0.5, "b": 0.3}, {"b": 6, "c": 2, "a": 3}, {})
    assert BALANCED.allocate(demand) == {"a": {"a": 3}, "b": {"a": 2, "b": 4}, "c": {"c": 2}}


def test_written_hints_are_kept() -> None:
    """The allocation starts from what is written, also to zones nobody knows any more."""
    shares, endpoints = {"a": 0.5, "b": 0.5}, {"a": 200, "b": 200}
    written = {"a": {"a": 200}, "b": {"a": 1, "b": 199}}
    assert BALANCED.allocate(ZoneDemand(shares, endpoints, written)) == written
    lost = {"a": {"a": 200}, "b": {"gone": 2, "b": 198}}
    assert BALANCED.allocate(ZoneDemand(shares, endpoints, lost)) == {
        "a": {"a": 200},
        "b": {"b": 200},
    }


def test_endpoints_in_a_zone_without_nodes_serve_the_others() -> None:
    """A zone that nobody sends from is served by nobody, and its endpoints are not idle."""
    demand = ZoneDemand({"a": 0.75, "c": 0.25}, {"b": 8}, {})
    assert BALANCED.allocate(demand) == {"b": {"a": 6, "c": 2}}


def test_bound_and_objective_can_be_chosen() -> None:
    """A heuristic for locality alone uses the bound up."""
    demand = ZoneDemand({"a": 0.5, "b": 0.5}, {"a": 4, "b": 8}, {})
    assert BALANCED.allocate(demand) == {"a": {"a": 4}, "b": {"a": 2, "b": 6}}
    local = Balanced(objective=Objective.LOCALITY)
    assert local.allocate(demand) == {"a": {"a": 4}, "b": {"a": 1, "b": 7}}
    loose = Balanced(bound=0.5, objective=Objective.LOCALITY)
    assert loose.allocate(demand) == {"a": {"a": 4}, "b": {"b": 8}}


@pytest.mark.parametrize(
    ("shares", "endpoints", "want_code", "want_message"),
    [
        pytest.param(
            {},
            {"a": 3},
            ReasonCode.NO_ZONES,
            "no ready node has a zone, so it is unknown where traffic comes from",
            id="no shares",
        ),
        pytest.param(
            {"a": 0.0, "b": 0.0},
            {"a": 3},
            ReasonCode.NO_ZONES,
            "no ready node has a zone, so it is unknown where traffic comes from",
            id="no traffic anywhere",
        ),
        pytest.param(
            {"a": 0.5, "b": 0.5, "c": 0.0},
            {"a": 1},
            ReasonCode.TOO_FEW_ENDPOINTS,
            "1 ready endpoint is too few, or too close together, to be divided among 2 zones "
            "with traffic",
            id="a zone without traffic does not count",
        ),
        pytest.param(
            SHARES,
            {"a": 2},
            ReasonCode.TOO_FEW_ENDPOINTS,
            "2 ready endpoints are too few, or too close together, to be divided among 3 zones "
            "with traffic",
            id="fewer endpoints than zones",
        ),
        pytest.param(
            {"a": 1 / 12, "b": 1 / 12, "c": 10 / 12},
            {"c": 3},
            ReasonCode.TOO_FEW_ENDPOINTS,
            "3 ready endpoints are too few, or too close together, to be divided among 3 zones "
            "with traffic",
            id="one each would do more harm than good",
        ),
    ],
)
def test_refusals_say_why(
    shares: dict[str, float], endpoints: dict[str, int], want_code: ReasonCode, want_message: str
) -> None:
    """It refuses only where there is nothing to allocate by, and says what would help."""
    answer = BALANCED.allocate(ZoneDemand(shares, endpoints, {}))
    assert isinstance(answer, Refusal)
    assert (answer.reason.code, answer.reason.message) == (want_code, want_message)
    assert answer.reason.fix


def test_zones_without_endpoints_share_one() -> None:
    """Two endpoints in two of three zones are loaded alike if the third uses the second."""
    assert BALANCED.allocate(ZoneDemand(SHARES, {"a": 1, "b": 1}, {})) == {
        "a": {"a": 1},
        "b": {"b,c": 1},
    }


def test_zones_without_endpoints_are_left_to_all() -> None:
    """Eight endpoints in two of three equal zones serve these; the third uses all of them."""
    demand = ZoneDemand(dict.fromkeys("abc", 1 / 3), {"a": 4, "b": 4}, {})
    assert BALANCED.allocate(demand) == {"a": {"a": 4}, "b": {"b": 4}}


def test_written_hints_for_several_zones_are_kept() -> None:
    """Groups are read as they were written; one with a zone that is gone counts as not written."""
    written = {"a": {"a": 1}, "b": {"b,c": 1}}
    assert BALANCED.allocate(ZoneDemand(SHARES, {"a": 1, "b": 1}, written)) == written
    lost = {"a": {"a": 1}, "b": {"b,gone": 1}}
    assert BALANCED.allocate(ZoneDemand(SHARES, {"a": 1, "b": 1}, lost)) == written


def test_slices_are_hinted_and_stay() -> None:
    """The hints come out as allocated; a second look changes nothing."""
    first = apply_heuristic(SliceSet(create=(spread(a=3, b=6, c=2),)), BALANCED, shares=SHARES)
    want = {("a", "a"): 3, ("b", "a"): 2, ("b", "b"): 4, ("c", "c"): 2}
    assert hinted(first.slices) == want
    assert first.reasons[0].message == "11 ready endpoints are hinted, 2 to another zone"
    again = apply_heuristic(SliceSet(unchanged=first.slices.all), BALANCED, shares=SHARES)
    assert again.slices == SliceSet(unchanged=first.slices.all)


def test_too_few_endpoints_lose_their_hints() -> None:
    """A refusal leaves no hint behind, so all endpoints are used from everywhere."""
    old = endpoint_slice(
        *(
            endpoint(f"10.0.0.{number}", zone="a", for_zones=(zone,))
            for number, zone in enumerate("abcde")
        )
    )
    shares = {"a": 0.6, "b": 0.1, "c": 0.1, "d": 0.1, "e": 0.1}
    result = apply_heuristic(SliceSet(unchanged=(old,)), BALANCED, shares=shares)
    assert hinted(result.slices) == {("a", ""): 5}


@settings(max_examples=150, deadline=None)
@example({"a": 1, "b": 1}, {"c": 2}, {"c": {"c": 1}})
@given(
    shares=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), max_size=5),
    endpoints=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 15), max_size=5),
    written=st.dictionaries(
        st.sampled_from("abcdefx"),
        st.dictionaries(st.sampled_from("abcdefx"), st.integers(1, 5), max_size=4),
        max_size=5,
    ),
)
def test_every_endpoint_serves_zones(
    shares: dict[str, int], endpoints: dict[str, int], written: dict[str, dict[str, int]]
) -> None:
    """Each zone's endpoints are used up, for known zones in order, and some zone has traffic."""
    parts = {zone: count / sum(shares.values()) for zone, count in shares.items()}
    demand = ZoneDemand(parts, endpoints, written)
    answer = BALANCED.allocate(demand)
    if not shares or not endpoints:
        assert isinstance(answer, Refusal)
    if not isinstance(answer, Refusal):
        matrix = answer.matrix if isinstance(answer, Allotment) else answer
        assert {zone: sum(row.values()) for zone, row in matrix.items()} == endpoints
        served = {zone for row in matrix.values() for group in row for zone in group.split(",")}
        assert served <= shares.keys() | endpoints.keys()
        # Zones without hints use all endpoints; if that were all, hints would have no effect.
        assert served & shares.keys() or len(shares) == 1
        checked = check_answer(answer, demand)
        assert isinstance(checked, Allotment)
        assert checked.matrix == matrix


def test_a_bound_that_cannot_be_kept_is_told() -> None:
    """Four endpoints on three equal zones overload two of them, and the reasons say by how much."""
    thirds = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    result = apply_heuristic(SliceSet(create=(spread(a=2, b=1, c=1),)), BALANCED, shares=thirds)
    assert [reason.code for reason in result.reasons] == [
        ReasonCode.ALLOCATED,
        ReasonCode.BOUND_RELAXED,
    ]
    assert result.reasons[1].message == (
        "the busiest of 4 endpoints carry 33% more than the mean, beyond 20%: "
        "no hints within that are clearly better for the objective"
    )


def figures(sizes: tuple[int, ...]) -> str:
    """Return a row of the example in the documentation for these sizes."""
    shares, endpoints = list(SHARES.values()), (3, 6, 2)
    total = sum(sizes)
    rows = list(zip(shares, sizes, endpoints, strict=True))
    in_zone = sum(r * min(e, n) / n for r, n, e in rows)
    largest = max(total * r / n - 1 for r, n, _ in rows)
    mean = sum(abs(r - n / total) for r, n, _ in rows)
    score = 45 * in_zone + 20 * (1 - largest) + 20 * (1 - mean) + 15
    return f"| {in_zone:.1%} | {largest:.1%} | {mean:.1%} | {score:.1f} |".replace("%", " %")


def test_the_example_in_the_documentation_is_right() -> None:
    """The sizes, figures and the re-hint that are told are those that come out."""
    page = " ".join(PAGE.read_text().split())
    shares = list(SHARES.values())
    for sizes, name in (
        ((3, 6, 2), "PreferSameZone"),
        ((6, 3, 2), "rounded"),
        ((5, 4, 2), "Balanced"),
    ):
        told = ", ".join(map(str, sizes))
        assert f"| {told} ({name}) {figures(sizes)}" in page
    assert balance(shares, (3, 6, 2)).matrix == ((3, 0, 0), (2, 4, 0), (0, 0, 2))
    flows, out = [0.0] * 9, [0.0] * 7
    weighted_matrix(3, shares, (3, 6, 2), flows)
    evaluate_weighted(3, shares, (3, 6, 2), flows, out)
    everywhere = 45 * sum(r * e / 11 for r, e in zip(shares, (3, 6, 2), strict=True)) + 55
    weights = 45 * out[0] + 55
    assert f"Weights score {weights:.1f}, all endpoints everywhere {everywhere:.1f}." in page
    after = balance(shares, (3, 6, 1), previous=({(0,): 3}, {(0,): 2, (1,): 4}, {(2,): 1}))
    assert after.matrix == ((3, 0, 0), (2, 3, 1), (0, 0, 1))
    assert balance((1 / 3, 1 / 3, 1 / 3), (4, 0, 0)).shared
    assert balance((1 / 3, 1 / 3, 1 / 3), (2, 1, 1)).relaxed == pytest.approx(1 / 3)
    assert f"{0.45 * 83.9006 + 40 + 15:.3f}" == "92.755"
