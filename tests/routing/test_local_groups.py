"""The heuristics of KEP-2004 with shares of any size: each endpoint once, and no exception."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepclose.routing.heuristic_answers import (
    Allotment,
    HeuristicFailure,
    ZoneDemand,
    check_answer,
)
from keepclose.routing.local_groups import (
    LOCAL_OPT,
    LOCAL_SHARED,
    LOCAL_WEIGHTED,
    LocalHeuristic,
)

EXTREMES = (5e-324, 1e-310, 2.2250738585072014e-308, 1e-300, 1e-9, 0.3, 1.0, 1e12, 1e300, 1e308)
SHARES = st.one_of(
    st.just(0.0), st.sampled_from(EXTREMES), st.floats(0.0, allow_nan=False, allow_infinity=False)
)
ZONES = st.lists(st.tuples(SHARES, st.integers(0, 30)), min_size=1, max_size=6)


@pytest.mark.parametrize("heuristic", [LOCAL_SHARED, LOCAL_WEIGHTED, LOCAL_OPT])
@settings(deadline=None, max_examples=100)
@given(zones=ZONES)
@example(zones=[(5e-324, 100), (0.1, 1), (1e-310, 1000)])
@example(zones=[(0.2, 8), (1.0, 2), (1.7976931348623157e308, 9999)])
@example(zones=[(5e-324, 1), (0.2, 1), (0.2, 8), (0.5, 20), (1.7976931348623157e308, 1)])
@example(zones=[(1e308, 4), (1e308, 4), (1e-300, 4)])
def test_shares_of_any_size_have_an_answer(
    heuristic: LocalHeuristic, zones: list[tuple[float, int]]
) -> None:
    """An allotment uses every endpoint once, and its weights can be written."""
    names = [f"z{number}" for number in range(len(zones))]
    demand = ZoneDemand(
        dict(zip(names, [share for share, _ in zones], strict=True)),
        {name: count for name, (_, count) in zip(names, zones, strict=True) if count},
        {},
    )
    checked = check_answer(heuristic.allocate(demand), demand)
    assert not isinstance(checked, HeuristicFailure), checked


def test_shares_beyond_all_numbers_are_divided_as_small_ones() -> None:
    """Two zones of 1e308 each send as much as two of 1 each."""
    endpoints = {"a": 4, "b": 2}
    small = LOCAL_SHARED.allocate(ZoneDemand({"a": 1.0, "b": 1.0}, endpoints, {}))
    assert isinstance(small, Allotment)
    assert LOCAL_SHARED.allocate(ZoneDemand({"a": 1e308, "b": 1e308}, endpoints, {})) == small
