"""The limits that a Service sets for Balanced by annotations, and what becomes of bad values."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.well_known import (
    MAX_OVERLOAD_ANNOTATION,
    MIN_IN_ZONE_ANNOTATION,
    OBJECTIVE_ANNOTATION,
)
from keepclose.routing.allocation.balanced import Objective
from keepclose.routing.balanced import BALANCED, Balanced, parse_part, read_balance_limits
from keepclose.routing.heuristic_answers import check_answer
from keepclose.routing.heuristics import Allotment, Refusal, ZoneDemand, apply_heuristic
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import WARNING_CODES, ReasonCode
from support.builders import endpoint, endpoint_slice
from support.hint_judge import divide, figures

THIRDS = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}


def ask(heuristic: Balanced, endpoints: dict[str, int], shares: dict[str, float]) -> Allotment:
    """Return the answer with its reasons."""
    answer = heuristic.allocate(ZoneDemand(shares, endpoints, {}))
    assert not isinstance(answer, Refusal)
    return answer if isinstance(answer, Allotment) else Allotment(answer)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0.2", 0.2),
        ("20%", 0.2),
        ("0", 0.0),
        ("100%", 1.0),
        ("", -1.0),
        ("%", -1.0),
        ("-1", -1.0),
        ("-5%", -1.0),
        ("nan", -1.0),
        ("0x10", -1.0),
        ("٢٠%", -1.0),
        ("20 %", -1.0),
    ],
)
def test_parts_are_fractions_or_percentages(text: str, part: float) -> None:
    """A part is a decimal number, or one with a percent sign; anything else is none."""
    assert parse_part(text) == pytest.approx(part)


def test_a_service_sets_its_limits() -> None:
    """All three annotations replace the defaults, and a bound that is set is strict."""
    annotations = {
        MAX_OVERLOAD_ANNOTATION: "50%",
        OBJECTIVE_ANNOTATION: "Locality",
        MIN_IN_ZONE_ANNOTATION: "0.6",
    }
    heuristic, reasons = read_balance_limits(annotations, BALANCED)
    assert heuristic == Balanced(0.5, Objective.LOCALITY, is_strict=True, min_in_zone=0.6)
    assert reasons == ()
    assert read_balance_limits({"other": "1"}, BALANCED) == (BALANCED, ())


@pytest.mark.parametrize(
    ("key", "code", "text", "default"),
    [
        (MAX_OVERLOAD_ANNOTATION, ReasonCode.MAX_OVERLOAD_INVALID, "a lot", "20%"),
        (MAX_OVERLOAD_ANNOTATION, ReasonCode.MAX_OVERLOAD_INVALID, "1001%", "20%"),
        (MIN_IN_ZONE_ANNOTATION, ReasonCode.MIN_IN_ZONE_INVALID, "1.1", "0%"),
        (OBJECTIVE_ANNOTATION, ReasonCode.OBJECTIVE_INVALID, "score", "Score"),
        (OBJECTIVE_ANNOTATION, ReasonCode.OBJECTIVE_INVALID, "", "Score"),
    ],
)
def test_a_bad_value_leaves_the_default(
    key: str, code: ReasonCode, text: str, default: str
) -> None:
    """The reason names annotation, value, default and fix, and makes a Warning Event."""
    heuristic, (reason,) = read_balance_limits({key: text}, BALANCED)
    assert heuristic == BALANCED
    assert reason.code is code
    assert code in WARNING_CODES
    assert reason.message.startswith(f"metadata.annotations[{key}]: {text!r} is not ")
    assert reason.message.endswith(f", so {default} holds")
    assert reason.fix.startswith(f"set {key} to ")


def test_a_bound_that_is_set_holds() -> None:
    """By default 2-1-1 is divided with 33 % overload; within 20 % zone b must use all endpoints."""
    endpoints = {"a": 2, "b": 1, "c": 1}
    divided = ask(BALANCED, endpoints, THIRDS)
    assert [reason.code for reason in divided.reasons] == [ReasonCode.BOUND_RELAXED]
    heuristic, _ = read_balance_limits({MAX_OVERLOAD_ANNOTATION: "20%"}, BALANCED)
    kept = heuristic.allocate(ZoneDemand(THIRDS, endpoints, {}))
    assert kept == {"a": {"a": 2}, "b": {"c": 1}, "c": {"c": 1}}
    looser, _ = read_balance_limits({MAX_OVERLOAD_ANNOTATION: "34%"}, BALANCED)
    assert looser.allocate(ZoneDemand(THIRDS, endpoints, {})) == divided.matrix


@pytest.mark.parametrize(
    ("least", "in_zone"), [(0.0, 0.80), (0.9, 0.9), (1.0, 1.0)], ids=["none", "90 %", "all"]
)
def test_a_least_share_stays_in_its_zone(least: float, in_zone: float) -> None:
    """More than the best score keeps stays in its zone if the Service asks, with more overload."""
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    endpoints = {"a": 3, "b": 6, "c": 2}
    answer = ask(Balanced(min_in_zone=least), endpoints, shares)
    sizes = {zone: sum(row.get(zone, 0) for row in answer.matrix.values()) for zone in endpoints}
    kept = sum(
        share * answer.matrix[zone].get(zone, 0) / sizes[zone] for zone, share in shares.items()
    )
    assert kept >= in_zone - 1e-9
    assert math.isclose(kept, 0.8) == (least == 0.0)


SKEWED = {"a": 0.98, "b": 0.01, "c": 0.01}


def limits(**values: str) -> Balanced:
    """Return the heuristic of a Service with these annotations, by the end of their names."""
    annotations = {f"keepclose.dev/balanced-{key.replace('_', '-')}": values[key] for key in values}
    heuristic, reasons = read_balance_limits(annotations, BALANCED)
    assert reasons == ()
    return heuristic


def evaluate(
    answer: object, endpoints: dict[str, int], shares: dict[str, float]
) -> tuple[float, float]:
    """Return in-zone traffic and largest overload of an answer."""
    zones = sorted({*endpoints, *shares})
    parts = [shares.get(zone, 0.0) for zone in zones]
    matrix = answer.matrix if isinstance(answer, Allotment) else answer
    if not isinstance(matrix, dict):
        own = sum(shares.get(zone, 0.0) * count for zone, count in endpoints.items())
        return own / sum(endpoints.values()), 0.0
    rows = [
        {
            tuple(zones.index(served) for served in group.split(",")): number
            for group, number in matrix.get(zone, {}).items()
        }
        for zone in zones
    ]
    in_zone, largest, _ = figures(parts, rows)
    return in_zone, largest


@settings(max_examples=150, deadline=None)
@given(
    nodes=st.lists(st.sampled_from([1, 1, 3, 10, 98]), min_size=2, max_size=3),
    counts=st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
    bound=st.sampled_from(["0%", "20%", "50%"]),
    least=st.sampled_from(["40%", "80%", "100%"]),
)
def test_a_bound_that_is_set_holds_against_a_least_share(
    nodes: list[int], counts: list[int], bound: str, least: str
) -> None:
    """Both annotations at once: the bound is never broken, and a share that is missed is told."""
    shares = dict(zip("abc", divide(nodes), strict=False))
    endpoints = {zone: count for zone, count in zip("abc", counts, strict=True) if count}
    answer = limits(max_overload=bound, min_in_zone=least).allocate(
        ZoneDemand(shares, endpoints, {})
    )
    in_zone, largest = evaluate(answer, endpoints, shares)
    assert largest <= parse_part(bound) + 1e-9
    reasons = answer.reasons if isinstance(answer, Allotment | Refusal) else ()
    is_missed = in_zone < parse_part(least) - 1e-9
    assert is_missed == any(reason.code is ReasonCode.MIN_IN_ZONE_UNREACHABLE for reason in reasons)


def test_a_least_share_is_kept_within_the_bound_first() -> None:
    """Hints within the bound that keep the share come before any with more overload."""
    endpoints = {"a": 2, "c": 1}
    answer = limits(max_overload="50%", min_in_zone="80%").allocate(
        ZoneDemand(SKEWED, endpoints, {})
    )
    in_zone, largest = evaluate(answer, endpoints, SKEWED)
    assert in_zone >= 0.8
    assert largest <= 0.5
    thirds = {"a": 3, "b": 6, "c": 3}
    kept = evaluate(ask(limits(min_in_zone="60%"), thirds, THIRDS), thirds, THIRDS)
    assert kept[0] >= 0.6
    assert kept[1] <= 0.2 + 1e-9


def test_a_least_share_beyond_the_bound_says_so() -> None:
    """The default bound gives way to a least share, and the reason says how far and why."""
    endpoints = {"a": 1, "c": 1}
    answer = ask(limits(min_in_zone="80%"), endpoints, SKEWED)
    in_zone, largest = evaluate(answer, endpoints, SKEWED)
    assert in_zone == pytest.approx(0.985, abs=0.01)
    assert [reason.code for reason in answer.reasons] == [ReasonCode.BOUND_RELAXED]
    assert answer.reasons[0].message == (
        f"the busiest of 2 endpoints carry {largest:.0%} more than the mean, beyond 20%: "
        "so more traffic stays in its zone, where 80% should"
    )


def test_a_refusal_tells_of_the_share_too() -> None:
    """Without hints the least share is missed, and both reasons reach the result."""
    old = endpoint_slice(*(endpoint(f"10.0.0.{number}", zone="a") for number in range(1, 12)))
    shares = {"a": 0.1, "b": 0.8, "c": 0.1}
    heuristic = limits(min_in_zone="80%", max_overload="0%")
    result = apply_heuristic(SliceSet(unchanged=(old,)), heuristic, shares=shares)
    assert [reason.code for reason in result.reasons] == [
        ReasonCode.TOO_FEW_ENDPOINTS,
        ReasonCode.MIN_IN_ZONE_UNREACHABLE,
    ]
    assert result.reasons[0].fix == (
        "run ready pods in more of the zones with traffic, better three in each"
    )
    assert result.reasons[1].message == (
        "no hints within 0% overload were found that keep 80% of the traffic in its zone; "
        "all endpoints for all zones keep 10%"
    )


def test_a_share_that_cannot_be_kept_is_reported() -> None:
    """Zones without endpoints send their traffic away, whatever the Service asks for."""
    answer = ask(Balanced(min_in_zone=0.9), {"a": 4, "b": 4}, THIRDS)
    codes = [reason.code for reason in answer.reasons]
    assert ReasonCode.MIN_IN_ZONE_UNREACHABLE in codes


def count_steps(zones: int, heuristic: Balanced) -> int:
    """Return how many functions are called for zones of odd demand with hints for their neighbours.

    Each comparison of an exchange and each objective of a matrix calls some.
    """
    names = [f"z{number:03}" for number in range(zones)]
    shares = divide([(number + 1) ** 3 for number in range(zones)])
    written = {zone: {names[number - 1]: 20} for number, zone in enumerate(names)}
    demand = ZoneDemand(dict(zip(names, shares, strict=True)), dict.fromkeys(names, 20), written)
    steps = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        heuristic.allocate(demand)
    finally:
        sys.setprofile(before)
    return steps


MOST_STEPS = 15_000_000


@pytest.mark.parametrize("least", [0.0, 0.99])
@pytest.mark.parametrize("zones", [13, 48])
def test_the_cost_of_many_zones_is_bounded(zones: int, least: float) -> None:
    """However many zones have odd demand, an allocation, and the search for one, is short."""
    assert 0 < count_steps(zones, Balanced(min_in_zone=least)) < MOST_STEPS


@pytest.mark.parametrize("zones", [9, 40])
def test_among_many_zones_an_allocation_still_keeps_its_promises(zones: int) -> None:
    """Each endpoint is used once, and the least share in the zone is kept where it can be."""
    shares = divide([number + 1 for number in range(zones)])
    demand = ZoneDemand(
        {f"z{number:02}": share for number, share in enumerate(shares)},
        {f"z{number:02}": 5 for number in range(zones)},
        {},
    )
    checked = check_answer(Balanced(min_in_zone=0.95).allocate(demand), demand)
    assert isinstance(checked, Allotment)
    own = sum(
        share * row.get(zone, 0) / sum(other.get(zone, 0) for other in checked.matrix.values())
        for (zone, share), row in zip(demand.shares.items(), checked.matrix.values(), strict=True)
    )
    assert own >= 0.95
