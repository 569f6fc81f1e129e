"""KEP-2004: Recommended Algorithm and its Optimizations, one test a statement."""

from __future__ import annotations

from functools import cache
from itertools import combinations_with_replacement, product

import pytest

from keepclose.routing.allocation.local import LocalOutcome, local
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.subsets import SubsetMode, SubsetOptions, overloads
from keepclose.routing.traffic_shares import traffic_shares
from keepclose.simulate.algorithms import find_algorithm
from keepclose.simulate.datasets import KEP2004_SMALL, open_dataset
from keepclose.simulate.engine import run_simulation
from keepclose.simulate.summary import Weights
from support.proposals.planned_services import count_reallocated, count_writes, nodes_in
from support.proposals.subset_services import A, B, C, decide, sizes, subsetted

THIRDS = [1 / 3] * 3


def loads(shares: list[float], matrix: tuple[tuple[int, ...], ...]) -> list[float]:
    """Return the overload of each zone's group."""
    total = sum(map(sum, matrix))
    return [
        total * share / sum(row[zone] for row in matrix) - 1 for zone, share in enumerate(shares)
    ]


def test_kep2004_local_keeps_endpoints_for_their_zone() -> None:
    """Recommended: as many endpoints as possible are responsible for their local zone.

    A zone gives an endpoint away only where another one lacks at least a whole endpoint.
    """
    for counts in product(range(3, 9), repeat=3):
        found = local(THIRDS, counts)
        expected = sum(counts) / 3
        for zone, count in enumerate(counts):
            assert found.matrix[zone][zone] >= min(count, int(expected))


def test_kep2004_local_rebalances_below_the_threshold() -> None:
    """Recommended: endpoints move from overflowed zones until every overload is below 50 %."""
    for nodes in combinations_with_replacement((1, 2, 5, 9), 3):
        shares = [count / sum(nodes) for count in nodes]
        for counts in product((0, 1, 3, 8, 15), repeat=3):
            found = local(shares, counts)
            if found.outcome is LocalOutcome.ALLOCATED:
                assert max(loads(shares, found.matrix)) < 0.5, (nodes, counts)
                assert [sum(row) for row in found.matrix] == list(counts)


def test_kep2004_local_example_expectation() -> None:
    """Example: each of three equal zones expects 3.3 of 10 endpoints."""
    shares = traffic_shares(nodes_in(a=1, b=1, c=1)).by_zone
    assert {zone: 10 * share for zone, share in shares.items()} == pytest.approx(
        dict.fromkeys((A, B, C), 3.3), abs=0.05
    )
    # The overload of a group of n is 3.33 / n - 1.
    assert decide({A: 4, B: 3, C: 3}).overload == pytest.approx({A: -1 / 6, B: 1 / 9, C: 1 / 9})


def test_kep2004_local_example_one_endpoint_moves() -> None:
    """Example: ZoneA gives one extra endpoint to ZoneC."""
    found = local(THIRDS, [5, 3, 2])
    assert found.matrix == ((4, 0, 1), (0, 3, 0), (0, 0, 2))


def test_kep2004_downgrading_to_random() -> None:
    """Downgrading: if overload cannot be kept, the whole mechanism becomes Random."""
    decision = decide({A: 2, B: 2, C: 1})
    assert (decision.mode, decision.target) == (SubsetMode.RANDOM, {})
    assert ReasonCode.DOWNGRADED in {reason.code for reason in decision.reasons}


def test_kep2004_downgrading_example_of_five_endpoints() -> None:
    """Downgrading: with 1.67 expected endpoints, a zone with 1 is overloaded by 67 %."""
    groups = {A: 2, B: 2, C: 1}
    found = overloads(dict.fromkeys(groups, 1 / 3), groups)
    assert found[C] == pytest.approx(2 / 3)
    # No division of five leaves each zone two, so each of them has such a zone.
    for counts in product(range(6), repeat=3):
        if sum(counts) == 5:
            assert local(THIRDS, counts, start_per_zone=0).outcome is LocalOutcome.DOWNGRADED


def _moved_share(totals: range) -> float:
    """Return which part of all endpoints changes its zone, on average, when one more comes."""
    parts = []
    for total in totals:
        for a in range(total + 1):
            for b in range(total - a + 1):
                before = [a, b, total - a - b]
                first = local(THIRDS, before, start_per_zone=0)
                after = [a + 1, b, total - a - b]
                second = local(THIRDS, after, start_per_zone=0)
                if first.outcome is second.outcome is LocalOutcome.ALLOCATED:
                    stay = sum(
                        min(old, new)
                        for old_row, new_row in zip(first.matrix, second.matrix, strict=True)
                        for old, new in zip(old_row, new_row, strict=True)
                    )
                    parts.append((total - stay) / total)
    return sum(parts) / len(parts)


def test_kep2004_starting_threshold_small_scales_churn_more() -> None:
    """Starting Threshold: few endpoints mean a higher ratio of change when one is updated."""
    assert _moved_share(range(6, 10)) > 2 * _moved_share(range(24, 28))


def test_kep2004_starting_threshold_small_scales_are_imbalanced() -> None:
    """Starting Threshold: few endpoints mean imbalanced load for endpoints."""

    def mean_overload(totals: range) -> float:
        found = [
            max(loads(THIRDS, one.matrix))
            for total in totals
            for a in range(total + 1)
            for b in range(total - a + 1)
            if (one := local(THIRDS, [a, b, total - a - b], start_per_zone=0)).outcome
            is LocalOutcome.ALLOCATED
        ]
        return sum(found) / len(found)

    assert mean_overload(range(6, 9)) > 2 * mean_overload(range(30, 33))


@cache
def score_from(start: float | None, weights: Weights = Weights()) -> float:  # noqa: B008 - frozen
    """Return the mean score over the small data set; None is the random distribution."""
    pytest.importorskip("numba")
    name = "original" if start is None else "local"
    algorithm = find_algorithm(name, start=start)
    (summary,) = run_simulation(open_dataset(KEP2004_SMALL), [algorithm], weights=weights)
    assert summary.figures is not None
    return summary.figures.total.mean


def test_kep2004_starting_threshold_varies_with_the_score() -> None:
    """Starting Threshold: the best one may vary with different score mechanisms."""
    by_locality = {start: score_from(start, Weights(1, 0, 0, 0)) for start in (1.0, 3.0, 5.0)}
    by_balance = {start: score_from(start, Weights(0.2, 0.4, 0.4, 0)) for start in (1.0, 3.0, 5.0)}
    assert max(by_locality, key=by_locality.__getitem__) == 1.0
    assert max(by_balance, key=by_balance.__getitem__) == 5.0


@pytest.mark.parametrize(("padding", "want_moved"), [(3, False), (0, True)])
def test_kep2004_padding_protects_rolling_updates(padding: int, want_moved: bool) -> None:
    """Padding: a rolling update around the starting threshold causes no unnecessary churn."""
    planned = subsetted(options=SubsetOptions(padding=padding), a=4, b=4, c=4)
    moved = 0
    for _ in range(3):
        for change in (planned.stop, planned.start):
            consumers = planned.placement()
            change("a1", 2)
            change("b1", 2)
            planned.sync()
            after = planned.placement()
            moved += sum(after[one] != consumers[one] for one in after.keys() & consumers.keys())
    assert (moved > 0) == want_moved


def test_kep2004_padding_example_no_subsets_until_12() -> None:
    """Example: with a start of 9 and a padding of 3 nothing is divided until 12 endpoints."""
    planned = subsetted(a=3, b=3, c=3)
    for number, node_name in enumerate(("a1", "b1", "c1")):
        assert planned.groups() == {"": 9 + number}
        planned.start(node_name)
        planned.sync()
    assert planned.groups() == {A: 4, B: 4, C: 4}


def test_kep2004_padding_example_subsets_until_6() -> None:
    """Example: with a start of 9 and a padding of 3 subsets remain until 6 endpoints."""
    planned = subsetted(a=4, b=4, c=4)
    for node_name in ("a1", "b1", "c1", "a1", "b1"):
        planned.stop(node_name)
        planned.sync()
        assert set(planned.groups()) == {A, B, C}
    planned.stop("c1")
    planned.sync()
    assert planned.groups() == {"": 6}


@pytest.mark.parametrize(
    ("start", "published"),
    [
        pytest.param(None, 72.55, id="random"),
        pytest.param(1.0, 80.05, id="local-1x"),
        pytest.param(2.0, 80.07, id="local-2x"),
        pytest.param(3.0, 80.07, id="local-3x"),
        pytest.param(4.0, 80.05, id="local-4x"),
        pytest.param(5.0, 79.98, id="local-5x"),
    ],
)
def test_kep2004_starting_threshold_scores(start: float | None, published: float) -> None:
    """Scores on the small dataset: one row of the table for each starting threshold."""
    # NB: the published 72.55 was cut off, not rounded: it is 72.556.
    assert score_from(start) == pytest.approx(published, abs=0.0065)


def test_kep2004_starting_threshold_of_three_scores_best() -> None:
    """Scores on the small dataset: 3x the zones was determined from these results."""
    scores = {start: score_from(start) for start in (1.0, 2.0, 3.0, 4.0, 5.0)}
    assert max(scores, key=scores.__getitem__) == 3.0


def test_kep2004_overload_maintenance_negative_overloads_give_first() -> None:
    """Overload Maintenance: zones with negative overload give to those above the threshold first.

    Zone-a has a surplus; zone-b has exactly its share and could give without being overloaded.
    """
    decision = decide({A: 8, B: 5, C: 2})
    assert decision.target[B] == {B: 5}
    assert decision.target[A][C] >= 2


def test_kep2004_overload_maintenance_then_those_below_the_threshold() -> None:
    """Overload Maintenance: then zones give whose overload stays below the threshold."""
    # Zone-a expects 3.84 of 6 endpoints and has 5; after one it has its share, and gives one more.
    shares = {A: 16 / 25, B: 8 / 25, C: 1 / 25}
    decision = decide({A: 5, B: 1, C: 0}, shares=shares)
    assert decision.target[A] == {A: 3, B: 1, C: 1}
    assert 0 < decision.overload[A] < 0.5


def test_kep2004_lazy_rebalance_reduces_churn() -> None:
    """Lazy Rebalance: it reduces churn of slices; starting over would move endpoints."""
    placed = {A: {A: 7}, B: {B: 4}, C: {C: 4}}
    lazy = decide({A: 7, B: 4, C: 4}, placed=placed)
    fresh = decide({A: 7, B: 4, C: 4})
    assert sizes(lazy) == {A: 7, B: 4, C: 4}
    assert sizes(fresh) == {A: 5, B: 5, C: 5}


def test_kep2004_lazy_rebalance_makes_the_update_only() -> None:
    """Lazy Rebalance: while no endpoint exceeds the threshold, only the update is made."""
    planned = subsetted(a=4, b=4, c=4)
    for _ in range(5):
        planned.start("a1")
        plan = planned.sync()
        assert (count_writes(plan), count_reallocated(plan)) == (1, 0)
    assert planned.groups() == {A: 9, B: 4, C: 4}


def test_kep2004_lazy_rebalance_ends_with_a_full_one() -> None:
    """Lazy Rebalance: a full rebalance is done once the update would exceed the threshold."""
    planned = subsetted(a=4, b=4, c=4)
    planned.start("a1", 5)
    planned.sync()
    assert planned.groups() == {A: 9, B: 4, C: 4}
    # Of 18 endpoints zone-b and zone-c expect 6 and have 4, an overload of 50 %.
    planned.start("a1")
    assert count_reallocated(planned.sync()) > 0
    assert planned.groups() == {A: 6, B: 6, C: 6}
