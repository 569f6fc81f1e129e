"""Many endpoints, one zone for each: the sizes of the allocator "balanced" against all sizes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.balanced import Balance, Objective, balance
from keepclose.routing.allocation.hint_choice import fill_flows, is_small
from keepclose.routing.allocation.kube_auto import allocate_kube_auto
from keepclose.routing.allocation.weighted import evaluate_weighted, weighted_matrix
from support.hint_judge import (
    best_division,
    divide,
    figures,
    kept_bound,
    own_zones,
    weigh,
    weigh_together,
)

THIRDS = (1 / 3, 1 / 3, 1 / 3)
ONLY_LOCALITY = (100.0, 0.0, 0.0)

zone_inputs = st.integers(1, 6).flatmap(
    lambda zones: st.tuples(
        st.lists(st.integers(0, 12), min_size=zones, max_size=zones),
        st.lists(st.integers(0, 40), min_size=zones, max_size=zones),
    )
)


def value_of(shares: Sequence[float], endpoints: Sequence[int], result: Balance) -> float:
    """Return the objective of an allocation."""
    if result.shared:
        return weigh_together(shares, endpoints)
    return weigh(shares, result.hints)


def standard_values(shares: Sequence[float], endpoints: Sequence[int]) -> list[float]:
    """Return the objectives of no hints, PreferSameZone and, if it sets hints, Auto."""
    zones = range(len(shares))
    values = [weigh_together(shares, endpoints), weigh(shares, own_zones(endpoints))]
    matrix, ints, floats = [0] * len(shares) ** 2, [0] * 99, [0.0] * 99
    if allocate_kube_auto(len(shares), shares, endpoints, 0.2, 0.0, matrix, ints, floats):
        at = [matrix[zone * len(shares) :] for zone in zones]
        rows: list[dict[tuple[int, ...], int]] = [
            {(j,): at[i][j] for j in zones if at[i][j]} for i in zones
        ]
        values.append(weigh(shares, rows))
    return values


def lefts(shares: Sequence[float], endpoints: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the zones that may be left to all endpoints: all parts of up to four zones."""
    busy = [zone for zone, share in enumerate(shares) if share > 0]
    if len(shares) <= 4:
        for number in range(len(busy)):
            yield from itertools.combinations(busy, number)
        return
    bare = {zone for zone in busy if not endpoints[zone]}
    for left in [set(), bare, *({zone} for zone in busy), *({zone} | bare for zone in busy)]:
        yield tuple(sorted(left))


def place(rng: random.Random, zones: int, total: int) -> list[int]:
    """Return so many endpoints in zones, of which some have few or none."""
    endpoints = [0] * zones
    weights = [rng.choice([0, 1, 1, 2, 4]) + 1e-3 for _ in range(zones)]
    for zone in rng.choices(range(zones), weights, k=total):
        endpoints[zone] += 1
    return endpoints


@pytest.mark.parametrize(
    ("zones", "most", "samples"),
    [
        pytest.param(2, 24, 150, id="two zones"),
        pytest.param(3, 24, 250, id="three zones"),
        pytest.param(4, 16, 60, id="four zones"),
        pytest.param(5, 14, 25, id="five zones"),
    ],
)
def test_no_division_is_better(zones: int, most: int, samples: int) -> None:
    """Beyond few endpoints the result is the best of all sizes, with any zones left to all."""
    rng = random.Random(zones)
    for _ in range(samples):
        nodes = [rng.choice([0, 1, 1, 2, 3, 5, 8, 13]) for _ in range(zones)]
        nodes[rng.randrange(zones)] += 1
        shares = divide(nodes)
        endpoints = place(rng, zones, rng.randint(13, most))
        kept = kept_bound(shares, sum(endpoints))
        want = max(
            *standard_values(shares, endpoints),
            *(best_division(shares, endpoints, left, kept) for left in lefts(shares, endpoints)),
        )
        result = balance(shares, endpoints)
        assert not is_small(zones, endpoints, 0)
        assert all(len(served) == 1 for row in result.hints for served in row)
        got = value_of(shares, endpoints, result)
        assert got == pytest.approx(want, abs=1e-9), (nodes, endpoints)


@settings(max_examples=100, deadline=None)
@given(
    nodes=st.lists(st.integers(1, 30), min_size=3, max_size=3),
    endpoints=st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(lambda e: sum(e) >= 3),
    bound=st.sampled_from([0.0, 0.05, 0.2, 0.5]),
)
def test_locality_is_the_best_division(
    nodes: list[int], endpoints: list[int], bound: float
) -> None:
    """For locality alone no division that keeps the bound keeps more traffic in its zone."""
    shares = divide(nodes)
    result = balance(shares, endpoints, bound=bound, objective=Objective.LOCALITY)
    kept = kept_bound(shares, sum(endpoints), bound)
    want = max(
        best_division(shares, endpoints, left, kept, ONLY_LOCALITY)
        for left in lefts(shares, endpoints)
    )
    assert 100.0 * result.in_zone(shares, endpoints) >= want - 1e-2
    if not result.shared:
        in_zone, largest, _ = figures(shares, result.hints)
        assert in_zone == pytest.approx(result.in_zone(shares, endpoints))
        assert largest <= kept + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    nodes=st.lists(st.sampled_from([1, 2, 10, 49]), min_size=3, max_size=3),
    endpoints=st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
    is_strict=st.booleans(),
)
def test_locality_keeps_no_less_in_its_zone_than_the_score(
    nodes: list[int], endpoints: list[int], is_strict: bool
) -> None:
    """Within the bound the objective Locality never keeps less than Score, or than no hints."""
    shares = divide(nodes)
    local = balance(shares, endpoints, is_strict=is_strict, objective=Objective.LOCALITY)
    score = balance(shares, endpoints, is_strict=is_strict)
    in_zone = local.in_zone(shares, endpoints)
    if score.relaxed is None:
        assert in_zone >= score.in_zone(shares, endpoints) - 1e-9
    together = sum(r * e for r, e in zip(shares, endpoints, strict=True)) / sum(endpoints)
    assert in_zone >= together - 1e-6


@pytest.mark.parametrize(
    ("shares", "endpoints", "is_strict", "want"),
    [
        pytest.param((0.49, 0.49, 0.02), (5, 5, 0), True, 0.98, id="a zone is left to all"),
        pytest.param((0.45, 0.45, 0.1), (1, 1, 0), False, 0.9, id="fewer endpoints than zones"),
    ],
)
def test_locality_leaves_zones_to_all(
    shares: Sequence[float], endpoints: Sequence[int], is_strict: bool, want: float
) -> None:
    """A zone without endpoints does not take the traffic of the others out of their zones."""
    result = balance(shares, endpoints, is_strict=is_strict, objective=Objective.LOCALITY)
    assert result.in_zone(shares, endpoints) == pytest.approx(want)
    assert result.relaxed is None


@pytest.mark.parametrize(
    ("nodes", "endpoints", "bound"),
    [
        pytest.param((26, 6, 14), (17, 2, 7), 0.2, id="only the start by need leads there"),
        pytest.param((10, 13, 13), (17, 19, 19), 0.05, id="the same with many endpoints"),
        pytest.param((20, 7, 89), (16, 4, 49), 0.2, id="a zone gives several at once"),
        pytest.param((3, 3, 23), (7, 3, 22), 0.2, id="down to the load of the others"),
        pytest.param((3, 9, 33), (6, 28, 74), 0.2, id="down to the load of a small zone"),
        pytest.param((63, 52, 51), (23, 17, 23), 0.2, id="who has endpoints of its own goes first"),
        pytest.param((1, 1, 2, 16), (3, 8, 7, 7), 0.5, id="three zones share the highest load"),
        pytest.param((12, 5, 12, 3), (12, 5, 16, 3), 0.2, id="everybody stays at home"),
        pytest.param((8, 16, 14, 17), (6, 12, 15, 12), 0.2, id="nearly everybody stays at home"),
    ],
)
def test_hard_inputs(nodes: Sequence[int], endpoints: Sequence[int], bound: float) -> None:
    """Inputs on which a simpler way to search ends in the wrong place."""
    shares = divide(nodes)
    kept = kept_bound(shares, sum(endpoints), bound)
    want = best_division(shares, endpoints, (), kept)
    result = balance(shares, endpoints, bound=bound)
    assert weigh(shares, result.hints) >= want - 1e-8


@settings(max_examples=200, deadline=None)
@given(inputs=zone_inputs)
def test_no_mechanism_of_kubernetes_is_better(inputs: tuple[list[int], list[int]]) -> None:
    """Whatever the zones send and hold, PreferSameZone, Auto and no hints never score more."""
    nodes, endpoints = inputs
    if sum(nodes) and sum(endpoints):
        shares = divide(nodes)
        got = value_of(shares, endpoints, balance(shares, endpoints))
        assert got >= max(standard_values(shares, endpoints)) - 1e-9


def test_auto_is_never_better_with_many_zones() -> None:
    """With tiny shares in more than four zones not all divisions are tried, but Auto's is."""
    shares = divide((3_900_000, 5_700_000, 1, 5000, 15_000, 380_000))
    endpoints = [75, 0, 0, 0, 0, 35]
    got = value_of(shares, endpoints, balance(shares, endpoints))
    assert got >= max(standard_values(shares, endpoints)) - 1e-9
    rng = random.Random(11)
    for _ in range(300):
        zones = rng.randint(5, 7)
        shares = divide([rng.choice([1, 3, 500, 40_000, 600_000]) for _ in range(zones)])
        endpoints = place(rng, zones, rng.randint(20, 150))
        got = value_of(shares, endpoints, balance(shares, endpoints))
        assert got >= max(standard_values(shares, endpoints)) - 1e-9, (shares, endpoints)


def is_reachable(nodes: Sequence[int], total: int, bound: float) -> bool:
    """Return whether some sizes keep the bound.

    In whole numbers, so that no rounding can hide a mistake: x/(1+b) = T*v*100/(V*(100+100b)).
    """
    per_cent = round(100 + 100 * bound)
    return sum(-(-total * count * 100 // (sum(nodes) * per_cent)) for count in nodes) <= total


@settings(max_examples=200, deadline=None)
@given(inputs=zone_inputs, bound=st.sampled_from([0.0, 0.1, 0.2, 0.5]))
def test_the_bound_holds_where_it_can(inputs: tuple[list[int], list[int]], bound: float) -> None:
    """No endpoint is lost; beyond the bound are only PreferSameZone, Auto, or what must be."""
    nodes, endpoints = inputs
    total = sum(endpoints)
    shares = divide(nodes)
    result = balance(shares, endpoints, bound=bound)
    if result.shared:
        return
    assert [sum(row.values()) for row in result.hints] == endpoints
    largest = figures(shares, result.hints)[1]
    if result.relaxed is None:
        assert largest <= bound + 1e-9
        return
    assert result.relaxed == pytest.approx(largest, abs=1e-9)
    if is_reachable(nodes, total, bound):
        got = weigh(shares, result.hints)
        assert got == pytest.approx(max(standard_values(shares, endpoints)), abs=1e-9)


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_sizes", "want_relaxed"),
    [
        pytest.param((1, 1, 1), (1, 3, 2), (2, 2, 2), None, id="six on three equal zones"),
        pytest.param((1, 1, 1), (2, 1, 1), (2, 1, 1), 1 / 3, id="four cannot keep 20 %"),
        pytest.param(
            (1, 1, 1, 0), (8, 8, 8, 4), (10, 9, 9, 0), None, id="the first zone of equals"
        ),
        pytest.param((1, 1, 1, 0), (4, 4, 4, 1), (4, 4, 4, 1), None, id="unused without traffic"),
        pytest.param((1, 1, 1, 0), (4, 4, 4, 3), (5, 5, 5, 0), None, id="too many to be unused"),
    ],
)
def test_sizes(
    nodes: Sequence[int],
    endpoints: Sequence[int],
    want_sizes: tuple[int, ...],
    want_relaxed: float | None,
) -> None:
    """Zones get their part of the endpoints, as near as whole endpoints come."""
    result = balance(divide(nodes), endpoints)
    assert result.sizes == want_sizes
    assert result.relaxed == (None if want_relaxed is None else pytest.approx(want_relaxed))


def test_a_zone_without_endpoints_is_left_to_all() -> None:
    """Eight endpoints in each of two zones, three equal zones: nothing is overloaded."""
    result = balance(THIRDS, (8, 8, 0))
    assert result.matrix == ((8, 0, 0), (0, 8, 0), (0, 0, 0))
    assert (result.unhinted, result.relaxed) == ((2,), None)
    assert figures(THIRDS, result.hints) == pytest.approx((2 / 3, 0, 0))


def test_locality_keeps_as_much_at_home_as_the_bound_allows() -> None:
    """The other objective leaves the bound nothing to spare."""
    shares, endpoints = (0.5, 0.5), (5, 7)
    assert balance(shares, endpoints).sizes == (6, 6)
    assert balance(shares, endpoints, objective=Objective.LOCALITY).matrix == ((5, 0), (0, 7))
    assert balance(shares, (3, 9), objective=Objective.LOCALITY).sizes == (5, 7)


def test_flows_are_filled_as_far_as_endpoints_go() -> None:
    """A zone that is to have more than there is gets what there is."""
    matrix = [1, 0, 0, 2]

    fill_flows(2, [2, 2], matrix, [3, 2])

    assert matrix == [2, 0, 0, 2]


@pytest.mark.parametrize(
    ("shares", "endpoints"),
    [
        pytest.param((), (), id="no zones"),
        pytest.param((0.5, 0.5), (0, 0), id="no endpoints"),
        pytest.param((0.0, 0.0), (2, 3), id="no traffic"),
        pytest.param(THIRDS, (1, 0, 0), id="a single endpoint"),
        pytest.param(THIRDS, (4, 0, 0), id="overload that keeps nothing at home"),
        pytest.param((math.nan, math.inf, -1.0), (4, 4, 4), id="shares that are none"),
    ],
)
def test_without_an_allocation_all_share(
    shares: tuple[float, ...], endpoints: tuple[int, ...]
) -> None:
    """Where no hints are better than none, everybody uses all endpoints."""
    result = balance(shares, endpoints)
    assert result == Balance(tuple({} for _ in shares), None, shared=True)


def test_odd_input_has_an_answer() -> None:
    """Shares are scaled, negative counts are none, a bound below 0 is 0, extra entries are cut."""
    want = balance((0.5, 0.5), (4, 0), bound=0.0)
    assert want.matrix == ((2, 2), (0, 0))
    assert balance((8.0, 8.0, 5.0), (4, -2), bound=-1.0) == want
    written: list[dict[tuple[int, ...], int]] = [
        {(0,): 2, (1,): 2, (2,): 7, (0, 9): 1, (): 3},
        {(0,): -4},
    ]
    assert balance((0.5, 0.5), (4, 0), bound=math.nan, previous=written) == want
    assert balance((0.5, 0.5), (4, 0), bound=math.inf).sizes == (2, 2)
    assert balance((1.6e308, 1.6e308), (4, 0), bound=0.0) == want


@settings(max_examples=200, deadline=None)
@given(
    shares=st.lists(st.floats() | st.sampled_from([0.0, 1.0, 1e-300, 5e-324]), max_size=6),
    endpoints=st.lists(st.integers(-2, 15) | st.just(10**4), max_size=6),
    bound=st.floats() | st.just(0.2),
    is_strict=st.booleans(),
    objective=st.sampled_from(Objective),
    previous=st.lists(
        st.dictionaries(
            st.lists(st.integers(-2, 7), max_size=3).map(tuple), st.integers(-3, 99), max_size=4
        ),
        max_size=7,
    ),
)
def test_every_input_has_an_answer(  # noqa: PLR0917 - hypothesis passes names
    shares: list[float],
    endpoints: list[int],
    bound: float,
    is_strict: bool,
    objective: Objective,
    previous: list[dict[tuple[int, ...], int]],
) -> None:
    """Whatever numbers come in, every endpoint has hints for zones that exist, or none has."""
    result = balance(
        shares,
        endpoints,
        bound=bound,
        is_strict=is_strict,
        objective=objective,
        previous=previous,
    )
    zones = min(len(shares), len(endpoints))
    assert len(result.hints) == zones
    if not result.shared:
        counts = [sum(row.values()) for row in result.hints]
        assert counts == [max(0, count) for count in endpoints[:zones]]
        assert all(
            served and set(served) <= set(range(zones)) and number > 0
            for row in result.hints
            for served, number in row.items()
        )


def test_the_score_comes_close_to_the_limit() -> None:
    """On inputs like those of KEP-2004 whole endpoints cost a quarter of a point."""
    rng = random.Random(7)
    reached = limit = 0.0
    rows = 400
    for _ in range(rows):
        shares = divide(sorted(rng.choices(range(1, 11), k=3)))
        endpoints = sorted(rng.choices(range(1, 101), k=3))
        flows, out = [0.0] * 9, [0.0] * 7
        weighted_matrix(3, shares, endpoints, flows)
        evaluate_weighted(3, shares, endpoints, flows, out)
        limit += 45 * out[0] - 20 * out[1] - 20 * out[2]
        reached += value_of(shares, endpoints, balance(shares, endpoints))
    assert 0.15 < (limit - reached) / rows < 0.30
