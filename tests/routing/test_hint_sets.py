"""Few endpoints: the hints of the allocator "balanced" against every assignment there is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from keepclose.routing.allocation.balanced import Balance, balance
from keepclose.routing.allocation.hint_choice import FEW_ENDPOINTS, FEW_IN_FOUR_ZONES
from keepclose.routing.allocation.kube_auto import allocate_kube_auto
from support.hint_judge import (
    divide,
    figures,
    kept_bound,
    own_zones,
    patterns,
    placements,
    run_by_count,
    run_by_endpoint,
    search_by_count,
    search_by_endpoint,
    weigh,
    weigh_together,
)

pytest.importorskip("numba")
compiling = pytest.importorskip("keepclose.simulate.compiling")

Judge = Callable[[Sequence[float], Sequence[int], float], float]
THIRDS = (1 / 3, 1 / 3, 1 / 3)


@pytest.fixture(scope="module", name="by_endpoint")
def _by_endpoint() -> Judge:
    compiled = compiling.compile_function(search_by_endpoint)
    return lambda shares, endpoints, bound: run_by_endpoint(compiled, shares, endpoints, bound)


@pytest.fixture(scope="module", name="by_count")
def _by_count() -> Judge:
    compiled = compiling.compile_function(search_by_count)
    return lambda shares, endpoints, bound: run_by_count(compiled, shares, endpoints, bound)


def weigh_auto(shares: Sequence[float], endpoints: Sequence[int]) -> float:
    """Return the objective of the topology mode Auto; -inf if it sets no hints."""
    zones = range(len(shares))
    matrix, ints, floats = [0] * len(shares) ** 2, [0] * 99, [0.0] * 99
    if not allocate_kube_auto(len(shares), shares, endpoints, 0.2, 0.0, matrix, ints, floats):
        return -math.inf
    at = [matrix[zone * len(shares) :] for zone in zones]
    return weigh(shares, [{(j,): at[i][j] for j in zones if at[i][j]} for i in zones])


def find_best(
    judge: Judge,
    shares: Sequence[float],
    endpoints: Sequence[int],
    *,
    bound: float = 0.2,
    is_strict: bool = False,
) -> float:
    """Return the best objective that the rules allow."""
    together = weigh_together(shares, endpoints)
    if is_strict:
        return max(together, judge(shares, endpoints, bound))
    kept = kept_bound(shares, sum(endpoints), bound)
    return max(
        together,
        judge(shares, endpoints, kept),
        weigh(shares, own_zones(endpoints)),
        weigh_auto(shares, endpoints),
    )


def value_of(shares: Sequence[float], endpoints: Sequence[int], result: Balance) -> float:
    """Return the objective of an allocation, after a look at its counts."""
    if result.shared:
        return weigh_together(shares, endpoints)
    assert [sum(row.values()) for row in result.hints] == list(endpoints)
    assert all(number > 0 and served for row in result.hints for served, number in row.items())
    return weigh(shares, result.hints)


def random_input(
    rng: random.Random, zones: int, fewest: int, most: int
) -> tuple[list[float], list[int]]:
    """Return shares and endpoints; some zones have none of either."""
    nodes = [rng.choice([0, 1, 1, 2, 3, 4, 5, 7, 9]) for _ in range(zones)]
    nodes[rng.randrange(zones)] += 1
    endpoints = [0] * zones
    weights = [rng.choice([0, 1, 1, 2]) + 1e-3 for _ in range(zones)]
    for zone in rng.choices(range(zones), weights, k=rng.randint(fewest, most)):
        endpoints[zone] += 1
    return divide(nodes), endpoints


def test_no_hints_of_up_to_six_endpoints_are_better(by_endpoint: Judge) -> None:
    """In three zones with 0 to 4 nodes, the result is the best of all hints for every placement."""
    checked = 0
    for nodes in patterns(3, 4):
        shares = divide(nodes)
        for endpoints in placements(3, 1, 6):
            want = find_best(by_endpoint, shares, endpoints)
            got = value_of(shares, endpoints, balance(shares, endpoints))
            assert got == pytest.approx(want, abs=1e-8), (nodes, endpoints)
            checked += 1
    assert checked == 22 * 83


@pytest.mark.parametrize(
    ("zones", "fewest", "most", "samples"),
    [
        pytest.param(1, 1, FEW_ENDPOINTS, 20, id="one zone"),
        pytest.param(2, 1, FEW_ENDPOINTS, 300, id="two zones"),
        pytest.param(3, 6, FEW_ENDPOINTS, 250, id="three zones"),
        pytest.param(4, 1, FEW_IN_FOUR_ZONES, 120, id="four zones"),
    ],
)
def test_no_hints_of_few_endpoints_are_better(
    by_count: Judge, zones: int, fewest: int, most: int, samples: int
) -> None:
    """With any bound, strict or not, the result is the best of all hints up to the last size."""
    rng = random.Random(zones)
    for _ in range(samples):
        shares, endpoints = random_input(rng, zones, fewest, most)
        bound, is_strict = rng.choice([0.0, 0.1, 0.2, 0.2, 0.5]), rng.random() < 0.3
        want = find_best(by_count, shares, endpoints, bound=bound, is_strict=is_strict)
        result = balance(shares, endpoints, bound=bound, is_strict=is_strict)
        got = value_of(shares, endpoints, result)
        assert got == pytest.approx(want, abs=1e-8), (shares, endpoints, bound, is_strict)


def test_both_judges_agree(by_endpoint: Judge, by_count: Judge) -> None:
    """Counting sets, with endpoints at home by Hall's condition, loses nothing."""
    rng = random.Random(11)
    for zones, most in ((2, 7), (3, 6), (4, 4)):
        for _ in range(40):
            shares, endpoints = random_input(rng, zones, 1, most)
            bound = rng.choice([0.2, 0.6, math.inf])
            want = by_endpoint(shares, endpoints, bound)
            assert by_count(shares, endpoints, bound) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize(
    "nodes", [(1, 1, 1), (1, 1, 2), (1, 2, 3), (1, 3, 5), (1, 1, 10), (0, 1, 2), (3, 4, 5, 6)]
)
def test_no_mechanism_of_kubernetes_is_better(nodes: tuple[int, ...]) -> None:
    """On all placements of 2 to 8 endpoints PreferSameZone, Auto and no hints never score more."""
    shares = divide(nodes)
    for endpoints in placements(len(nodes), 2, 8 if len(nodes) < 4 else 6):
        got = value_of(shares, endpoints, balance(shares, endpoints)) + 1e-9
        assert got >= weigh(shares, own_zones(endpoints)), endpoints
        assert got >= weigh_auto(shares, endpoints), endpoints
        assert got >= weigh_together(shares, endpoints), endpoints


def test_the_fields_say_what_the_hints_do() -> None:
    """Sizes, matrix, zones left to all and the overload beyond the bound follow from the hints."""
    rng = random.Random(3)
    seen = {"shared": 0, "unhinted": 0, "relaxed": 0, "several": 0}
    for _ in range(600):
        shares, endpoints = random_input(rng, rng.choice([2, 3, 3, 4]), 1, 12)
        zones = range(len(shares))
        result = balance(shares, endpoints)
        if result.shared:
            assert result == Balance(tuple({} for _ in zones), None, shared=True)
            assert result.sizes == (0,) * len(shares)
            seen["shared"] += 1
            continue
        served = [(i, group, n) for i in zones for group, n in result.hints[i].items()]
        for i in zones:
            for j in zones:
                assert result.matrix[i][j] == sum(n for at, g, n in served if at == i and j in g)
        assert result.sizes == tuple(sum(n for _, g, n in served if j in g) for j in zones)
        assert result.unhinted == tuple(
            zone for zone in zones if shares[zone] > 0 and not result.sizes[zone]
        )
        largest = figures(shares, result.hints)[1]
        assert result.relaxed == (pytest.approx(largest) if largest > 0.2 + 1e-9 else None)
        for _, group, _ in served:
            assert group == tuple(sorted(set(group)))
            # A zone without traffic is hinted alone, for endpoints that stay unused.
            assert all(shares[zone] > 0 for zone in group) or len(group) == 1
        seen["unhinted"] += bool(result.unhinted)
        seen["relaxed"] += result.relaxed is not None
        seen["several"] += any(len(group) > 1 for _, group, _ in served)
    assert min(seen.values()) > 10, seen


def test_a_strict_bound_is_never_relaxed() -> None:
    """However few the endpoints, no endpoint carries more than a strict bound allows."""
    rng = random.Random(4)
    relaxed = 0
    for _ in range(600):
        zones = rng.randint(1, 6)
        shares, endpoints = random_input(rng, zones, 1, rng.choice([5, 12, 30]))
        # NB: four zones without any overload take seconds to search.
        bound = rng.choice([0.05 if zones == 4 else 0.0, 0.1, 0.2, 0.4])
        result = balance(shares, endpoints, bound=bound, is_strict=True)
        assert result.relaxed is None
        if not result.shared:
            assert figures(shares, result.hints)[1] <= bound + 1e-8
        relaxed += balance(shares, endpoints, bound=bound).relaxed is not None
    assert relaxed > 50


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_hints", "want_unhinted"),
    [
        pytest.param(
            (5, 3, 2),
            (1, 1, 0),
            ({(0,): 1}, {(1, 2): 1}, {}),
            (),
            id="a zone without endpoints shares the one that has less to do",
        ),
        pytest.param(
            (1, 1, 1), (4, 4, 0), ({(0,): 4}, {(1,): 4}, {}), (2,), id="it loads all of them alike"
        ),
        pytest.param(
            (1, 1, 1),
            (6, 2, 0),
            ({(0,): 4, (1,): 2}, {(1,): 2}, {}),
            (2,),
            id="the other zones are still balanced among themselves",
        ),
        pytest.param(
            (0, 1, 1),
            (1, 3, 3),
            ({(0,): 1}, {(1,): 3}, {(2,): 3}),
            (),
            id="an endpoint where no traffic is stays unused",
        ),
        pytest.param((1, 1), (2, 2), ({(0,): 2}, {(1,): 2}), (), id="nothing to share"),
        pytest.param((1,), (3,), ({(0,): 3},), (), id="no hints are as good in one zone"),
        pytest.param(
            (1, 1), (4, 0), ({(0,): 2, (1,): 2}, {}), (), id="no hints are as good as a division"
        ),
    ],
)
def test_hints_of_few_endpoints(
    nodes: tuple[int, ...],
    endpoints: tuple[int, ...],
    want_hints: tuple[dict[tuple[int, ...], int], ...],
    want_unhinted: tuple[int, ...],
) -> None:
    """Zones share endpoints, or are left to all, only where that is better than a division."""
    result = balance(divide(nodes), endpoints)
    assert (result.hints, result.unhinted) == (want_hints, want_unhinted)


def test_a_division_that_is_as_good_as_none_is_made() -> None:
    """Zones that hold the same part of the endpoints as of all traffic would not notice."""
    together = weigh_together((0.5, 0.5), (4, 0))
    assert weigh((0.5, 0.5), ({(0,): 2, (1,): 2}, {})) == pytest.approx(together)
    assert not balance((0.5, 0.5), (4, 0)).shared
    assert balance(THIRDS, (4, 0, 0)).shared
