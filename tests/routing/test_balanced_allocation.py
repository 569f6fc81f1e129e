"""The allocator "balanced" from written hints, in groups, and compiled."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.balanced import Objective, balance
from keepclose.routing.allocation.hint_choice import (
    BALANCED_SCRATCH,
    CHANGE_COST,
    allocate_balanced,
    allocate_balanced_from,
    is_small,
)
from keepclose.routing.allocation.hysteresis import HYSTERESIS, REVERSAL
from keepclose.routing.balanced import Balanced
from keepclose.routing.heuristics import Allotment, Refusal, ZoneDemand
from keepclose.simulate.compiling import bind_function
from keepclose.simulate.evaluation import FIGURES, VALID, evaluate_groups
from keepclose.simulate.row_loops import COLUMNS, run_groups
from support.hint_judge import (
    Rows,
    divide,
    figures,
    kept_bound,
    own_zones,
    weigh,
    weigh_together,
)

THIRDS = (1 / 3, 1 / 3, 1 / 3)
Hints = list[dict[tuple[int, ...], int]]


def rows(matrix: Sequence[Sequence[int]]) -> Hints:
    """Return hints for one zone each, from how many endpoints of a zone are for which."""
    return [{(zone,): number for zone, number in enumerate(row) if number} for row in matrix]


def count_changes(before: Rows, after: Rows) -> int:
    """Return how many endpoints hinted before are hinted for other zones now."""
    return sum(
        max(0, number - after[location].get(served, 0))
        for location, row in enumerate(before)
        for served, number in row.items()
    )


def count_by_set(hints: Rows) -> dict[tuple[int, ...], int]:
    """Return how many endpoints have each set, wherever they are."""
    counts: dict[tuple[int, ...], int] = {}
    for row in hints:
        for served, number in row.items():
            counts[served] = counts.get(served, 0) + number
    return counts


def random_case(rng: random.Random, *, most: int) -> tuple[list[float], list[int]]:
    """Return shares and endpoints of one to five zones."""
    zones = rng.choice([1, 2, 3, 3, 3, 4, 5])
    nodes = [rng.choice([0, 1, 1, 2, 3, 5, 9]) for _ in range(zones)]
    nodes[rng.randrange(zones)] += 1
    endpoints = [0] * zones
    for _ in range(rng.randint(1, most)):
        endpoints[rng.randrange(zones)] += 1
    return divide(nodes), endpoints


def random_hints(rng: random.Random, shares: Sequence[float], endpoints: Sequence[int]) -> Hints:
    """Return written hints for zones with traffic, often for several; some endpoints are new."""
    busy = [zone for zone, share in enumerate(shares) if share > 0]
    several = is_small(len(shares), endpoints, 0)
    hints: Hints = []
    for count in endpoints:
        row: dict[tuple[int, ...], int] = {}
        for _ in range(rng.choice([count, count, rng.randint(0, count)])):
            number = min(len(busy), rng.choice([1, 1, 1, 2]) if several else 1)
            served = tuple(sorted(rng.sample(busy, number)))
            row[served] = row.get(served, 0) + 1
        hints.append(row)
    return hints


@pytest.mark.parametrize("objective", Objective)
def test_few_changes_never_cost_much(objective: Objective) -> None:
    """From whatever was written, the result keeps the bound, is near the best, and then stays."""
    rng = random.Random(8)
    for _ in range(1200):
        shares, endpoints = random_case(rng, most=rng.choice([8, 12, 40]))
        written = random_hints(rng, shares, endpoints)
        best = balance(shares, endpoints, objective=objective)
        result = balance(shares, endpoints, objective=objective, previous=written)
        case = (shares, endpoints, written)
        if best.shared or result.shared:
            if best.shared and not result.shared:
                kept_all = figures(shares, result.hints)
                assert kept_all[1] <= kept_bound(shares, sum(endpoints)) + 1e-8, case
                if objective is Objective.SCORE:
                    least = weigh_together(shares, endpoints) - REVERSAL - HYSTERESIS
                    assert weigh(shares, result.hints) >= least - 1e-8, case
            continue
        assert [sum(row.values()) for row in result.hints] == endpoints
        again = balance(shares, endpoints, objective=objective, previous=result.hints)
        assert again == result, case
        most = max(kept_bound(shares, sum(endpoints)), figures(shares, best.hints)[1])
        assert figures(shares, result.hints)[1] <= most + 1e-8, case
        if objective is Objective.SCORE and not is_small(len(shares), endpoints, 0):
            least = weigh(shares, best.hints) - REVERSAL - HYSTERESIS
            assert weigh(shares, result.hints) >= least - 1e-8, case


@pytest.mark.parametrize("most", [12, 40])
def test_the_best_hints_stay_as_they_are(most: int) -> None:
    """A second look at the best hints changes none of them."""
    rng = random.Random(most)
    for _ in range(1000):
        shares, endpoints = random_case(rng, most=most)
        best = balance(shares, endpoints)
        if not best.shared:
            assert balance(shares, endpoints, previous=best.hints) == best, (shares, endpoints)


@pytest.mark.parametrize(
    ("nodes", "endpoints"),
    [
        pytest.param((5, 3, 3), (3, 2, 3), id="few endpoints"),
        pytest.param((9, 4, 6), (2, 2, 2), id="few endpoints that cannot keep the bound"),
        pytest.param((6, 9, 6), (4, 6, 3), id="many endpoints"),
    ],
)
def test_own_zones_beyond_the_bound_stay(nodes: Sequence[int], endpoints: Sequence[int]) -> None:
    """Where PreferSameZone is the best although it overloads more, a second look keeps it."""
    shares = divide(nodes)
    best = balance(shares, endpoints)
    assert list(best.hints) == own_zones(endpoints)
    assert best.relaxed is not None
    assert best.relaxed > kept_bound(shares, sum(endpoints)) + 1e-9
    assert balance(shares, endpoints, previous=best.hints) == best


class CountedCells(list[int]):
    """Scratch that counts how often a number is written."""

    writes = 0

    def __setitem__(self, key: SupportsIndex | slice, value: Any) -> None:
        self.writes += 1
        super().__setitem__(key, value)


@pytest.mark.parametrize(
    ("shares", "endpoints", "written"),
    [
        pytest.param(
            divide((10, 3, 2, 3)),
            (1, 2, 2, 3),
            [
                {(1,): 1},
                {(1, 2): 1, (3,): 1},
                {(2,): 1, (0, 1): 1},
                {(0,): 1, (1,): 1, (2, 3): 1},
            ],
            id="far from the best",
        ),
        pytest.param(
            (0.01686397626166889, 0.018943934322076108, 0.9028036309091844, 0.06138845850707051),
            (4, 2, 2, 0),
            [{(0,): 4}, {(1,): 2}, {(3,): 1, (2, 3): 1}, {}],
            id="the best of other shares",
        ),
    ],
)
def test_written_hints_of_four_zones_are_improved_at_once(
    shares: Sequence[float], endpoints: Sequence[int], written: Hints
) -> None:
    """Hints that are far from the best do not make the search visit everything."""
    result = balance(shares, endpoints, previous=written)
    assert weigh(shares, result.hints) > weigh(shares, written) + 9
    cells = [0] * 64
    for location, row in enumerate(written):
        for served, number in row.items():
            cells[location * 16 + sum(1 << zone for zone in served)] = number
    ints = CountedCells([0] * (BALANCED_SCRATCH * 5))
    floats = [0.0] * (BALANCED_SCRATCH * 5)
    allocate_balanced_from(4, shares, endpoints, 0.2, 0, 0, cells, [0] * 64, ints, floats)
    assert ints.writes < 1_000_000


def changes_nothing(hints: Sequence[Mapping[tuple[int, ...], int]]) -> bool:
    """Whether each zone uses all hinted endpoints, or none of them and so all."""
    hinted = sum(number for row in hints for number in row.values())
    return all(
        sum(number for row in hints for served, number in row.items() if zone in served)
        in {0, hinted}
        for zone in range(len(hints))
    )


@pytest.mark.parametrize("zone", [0, 1, 2])
def test_hints_that_change_nothing_hold_nothing_up(zone: int) -> None:
    """All endpoints hinted for one zone are no hints at all, so better ones have no price."""
    written: list[dict[tuple[int, ...], int]] = [{(zone,): 7}, {(zone,): 1}, {(zone,): 1}]
    third = [1 / 3] * 3
    result = balance(third, [7, 1, 1], previous=written)
    assert result.hints == balance(third, [7, 1, 1]).hints
    assert result.sizes == (3, 3, 3)


def test_written_hints_of_few_endpoints_change_only_for_a_gain() -> None:
    """All stay if they are good enough; else each re-hint, counted by set, gains its cost."""
    rng = random.Random(9)
    kept = changed = 0
    for _ in range(1200):
        shares, endpoints = random_case(rng, most=10)
        written = random_hints(rng, shares, endpoints)
        is_full = [sum(row.values()) for row in written] == endpoints
        if not is_full or not is_small(len(shares), endpoints, 0):
            continue
        best = balance(shares, endpoints)
        result = balance(shares, endpoints, previous=written)
        if best.shared or result.shared:
            continue
        bound = kept_bound(shares, sum(endpoints))
        before, after = weigh(shares, written), weigh(shares, result.hints)
        case = (shares, endpoints, written)
        if figures(shares, written)[1] > bound + 1e-9:
            continue
        if before >= weigh(shares, best.hints) - HYSTERESIS:
            assert count_changes(written, result.hints) == 0, case
            kept += 1
        elif list(result.hints) != written:
            counts = count_by_set(result.hints)
            moved = sum(
                max(0, number - counts.get(served, 0))
                for served, number in count_by_set(written).items()
            )
            assert after - CHANGE_COST * moved > before - 1e-8, case
            changed += 1
    assert kept > 20
    assert changed > 50


def test_written_hints_stay_while_they_are_good_enough() -> None:
    """What is nearly as good as the best is kept as it is; nothing written gives the best."""
    shares, endpoints = (0.5, 0.5), (200, 200)
    assert balance(shares, endpoints).matrix == ((200, 0), (0, 200))
    near = ((200, 0), (1, 199))
    assert balance(shares, endpoints, previous=rows(near)).matrix == near
    far = ((200, 0), (20, 180))
    assert balance(shares, endpoints, previous=rows(far)).matrix == near


def test_a_lost_endpoint_is_replaced_by_one_re_hint() -> None:
    """When a zone would be overloaded, one endpoint that another can spare is re-hinted to it."""
    shares = (0.5, 0.3, 0.2)
    assert balance(shares, (3, 6, 2)).matrix == ((3, 0, 0), (2, 4, 0), (0, 0, 2))
    after = balance(shares, (3, 6, 1), previous=rows(((3, 0, 0), (2, 4, 0), (0, 0, 1))))
    assert after.matrix == ((3, 0, 0), (2, 3, 1), (0, 0, 1))


def test_a_new_endpoint_goes_where_it_does_most_good() -> None:
    """A new endpoint may serve any zone, also the first, and no other is re-hinted for it."""
    after = balance((0.5, 0.5), (40, 61), previous=rows(((40, 0), (9, 51))))
    assert after.matrix == ((40, 0), (10, 51))
    few = balance((0.5, 0.5), (1, 3), previous=[{(0,): 1}, {(1,): 2}])
    assert few.hints == ({(0,): 1}, {(0,): 1, (1,): 2})


def test_a_new_endpoint_where_no_traffic_is_gets_its_hint_once() -> None:
    """If it stays unused it is hinted for its own zone, not first for another without traffic."""
    written: Hints = [{}, {(1,): 1}, {(2,): 3}, {(3,): 2}]
    first = balance((0.0, 0.0, 0.7, 0.3), (1, 2, 3, 2), previous=written)
    assert first.hints == ({(2,): 1}, {(1,): 1, (2,): 1}, {(2,): 3}, {(3,): 2})


def test_hints_that_no_client_follows_are_not_kept() -> None:
    """Where all written hints are for zones without traffic, they have no effect to be kept."""
    served = balance((0.0, 0.0, 1.0), (0, 2, 0), previous=[{}, {(1,): 1}, {}])
    assert served.hints == ({}, {(2,): 2}, {})


def test_an_endpoint_that_is_gone_is_not_re_hinted() -> None:
    """Only endpoints that exist count as changes, so what is worth a change is made at once."""
    shares, endpoints = divide((4, 1, 1)), (1, 1, 1)
    gone = balance(shares, endpoints, previous=[{(1,): 1}, {(1,): 1}, {(2,): 2}])
    left = balance(shares, endpoints, previous=[{(1,): 1}, {(1,): 1}, {(2,): 1}])
    assert gone == left


def test_hints_that_cross_are_put_right() -> None:
    """Endpoints that serve each other's zones are swapped back, which single steps cannot do."""
    for count in (4, 8):
        crossed = rows(((0, count), (count, 0)))
        want = ((count, 0), (0, count))
        assert balance((0.5, 0.5), (count, count), previous=crossed).matrix == want


def test_hints_for_a_zone_stay_when_it_loses_its_last_endpoint() -> None:
    """Endpoints hinted for it go home only where that gains much; what is left to all stays so."""
    served = rows([[5, 0, 3], [0, 5, 3], [0, 0, 0]])
    assert balance(THIRDS, (8, 8, 0)).unhinted == (2,)
    # 27 points against 30: less than a reversal is worth.
    assert list(balance(THIRDS, (8, 8, 0), previous=served).hints) == served
    switched = balance(THIRDS, (4, 4, 0), previous=rows([[3, 0, 1], [0, 3, 1], [0, 0, 0]]))
    assert switched.matrix == ((4, 0, 0), (0, 4, 0), (0, 0, 0))


def test_no_hints_are_written_to_change_nothing() -> None:
    """Pods of one zone come one by one, and each plan is final: a second one changes nothing."""
    written: Hints = [{}, {}, {}]
    for count in range(1, 12):
        result = balance(THIRDS, (count, 0, 0), previous=written)
        if not result.shared and count_changes(written, result.hints):
            assert not changes_nothing(result.hints)
        again = balance(THIRDS, (count, 0, 0), previous=result.hints)
        assert again.hints == result.hints
        written = list(result.hints)


def test_hints_stay_when_the_last_endpoint_of_a_small_zone_goes() -> None:
    """All hints go only where that gains much, so a pod that comes and goes re-hints no others."""
    shares = (0.98, 0.01, 0.01)
    written = balance(shares, (11, 0, 1)).hints
    assert written[0] == {(0,): 11}
    for endpoints in ((11, 0, 0), (11, 0, 1)) * 10:
        after = balance(shares, endpoints, previous=written).hints
        assert count_changes([written[0]], [after[0]]) == 0
        written = after
    divided: Hints = [{(zone,): 1 for zone in range(5)}, {}, {}, {}, {}]
    assert balance((0.6, 0.1, 0.1, 0.1, 0.1), (5, 0, 0, 0, 0), previous=divided).shared


def test_hints_to_a_zone_without_traffic_are_not_kept() -> None:
    """Nobody sends from there, so these endpoints serve others."""
    result = balance((0.5, 0.5, 0.0), (2, 2, 2), previous=rows(((2, 0, 0), (0, 2, 0), (0, 0, 2))))
    assert result.matrix == ((2, 0, 0), (0, 2, 0), (1, 1, 0))


@pytest.mark.parametrize(
    ("nodes", "bound", "written", "want_matrix"),
    [
        pytest.param(
            (9, 16, 5),
            0.5,
            ((4, 0, 1), (2, 2, 1), (1, 0, 0)),
            ((4, 0, 1), (0, 5, 0), (0, 0, 1)),
            id="the best hints are worth all changes",
        ),
        pytest.param(
            (99, 1), 0.2, ((100, 0), (0, 0)), ((100, 0), (0, 0)), id="a small zone uses all as ever"
        ),
        pytest.param(
            (99, 1), 0.2, ((99, 1), (0, 0)), ((99, 1), (0, 0)), id="a small zone is not left out"
        ),
    ],
)
def test_the_way_from_what_is_written(
    nodes: Sequence[int],
    bound: float,
    written: Sequence[Sequence[int]],
    want_matrix: Sequence[Sequence[int]],
) -> None:
    """What changes is worth it, and what is as good as the best does not change."""
    endpoints = [sum(row) for row in written]
    result = balance(divide(nodes), endpoints, bound=bound, previous=rows(written))
    assert result.matrix == want_matrix


def allocate_groups(
    shares: Sequence[float], endpoints: Sequence[int]
) -> tuple[int, list[int], list[float]]:
    """Return the groups of the simulator, their members and weights."""
    zones = len(shares)
    room = BALANCED_SCRATCH * (zones + 1)
    members, weights = [0] * (20 * zones + 99), [0.0] * (20 * zones + 99)
    groups = allocate_balanced(
        zones, shares, endpoints, 0.2, 0, members, weights, [0] * room, [0.0] * room
    )
    return groups, members, weights


def test_controller_and_simulator_agree_and_the_value_is_the_one_promised() -> None:
    """With nothing written, the groups are the hints of the heuristic, and evaluate to the same."""
    rng = random.Random(6)
    for _ in range(700):
        shares, endpoints = random_case(rng, most=rng.choice([8, 12, 30]))
        zones = len(shares)
        names = "abcde"[:zones]
        groups, members, weights = allocate_groups(shares, endpoints)
        demand = ZoneDemand(
            dict(zip(names, shares, strict=True)), dict(zip(names, endpoints, strict=True)), {}
        )
        answer = Balanced().allocate(demand)
        result = balance(shares, endpoints)
        assert isinstance(answer, Refusal) == (groups == 0) == result.shared
        value = weigh_together(shares, endpoints) if groups == 0 else weigh(shares, result.hints)
        if not isinstance(answer, Refusal):
            matrix = answer.matrix if isinstance(answer, Allotment) else answer
            for zone, name in enumerate(names):
                hinted: dict[tuple[bool, ...], int] = {}
                for group, number in matrix.get(name, {}).items():
                    # A zone that no group has a hint for uses all groups.
                    reach = tuple(
                        other in group.split(",") or not result.sizes[at]
                        for at, other in enumerate(names)
                    )
                    hinted[reach] = hinted.get(reach, 0) + number
                grouped: dict[tuple[bool, ...], int] = {}
                for group_number in range(groups):
                    row = slice(group_number * zones, (group_number + 1) * zones)
                    number = members[row][zone]
                    if number:
                        key = tuple(weight > 0 for weight in weights[row])
                        grouped[key] = grouped.get(key, 0) + number
                busy = [at for at in range(zones) if shares[at] > 0]
                assert _of_busy(hinted, busy) == _of_busy(grouped, busy), (shares, endpoints)
        out = [0.0] * FIGURES
        assert evaluate_groups(zones, shares, endpoints, groups, members, weights, out) == VALID
        assert 45 * out[0] - 20 * out[1] - 20 * out[2] == pytest.approx(value, abs=1e-8)


def _of_busy(
    counts: dict[tuple[bool, ...], int], busy: Sequence[int]
) -> dict[tuple[bool, ...], int]:
    """Return the same counts by the zones with traffic alone; hints for others have no effect."""
    result: dict[tuple[bool, ...], int] = {}
    for reach, number in counts.items():
        key = tuple(reach[zone] for zone in busy)
        result[key] = result.get(key, 0) + number
    return result


@pytest.mark.parametrize(
    ("shares", "endpoints", "bound", "is_strict", "written"),
    [
        pytest.param((0.5, 0.5, 1e-17), (1, 1, 0), 0.2, False, [{(2,): 1}], id="left alone"),
        pytest.param((1e-9, 0.2, 0.2, 5e-324), (0, 1, 1, 0), 0.0, True, [{(3,): 2}], id="served"),
    ],
)
def test_next_to_no_traffic_is_none(
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    is_strict: bool,
    written: Hints,
) -> None:
    """A share that only rounding can see, as smoothed measured demand has, counts as 0."""
    result = balance(shares, endpoints, bound=bound, is_strict=is_strict, previous=written)
    cut = [share if share > 1e-8 else 0.0 for share in shares]
    want = balance(cut, endpoints, bound=bound, is_strict=is_strict, previous=written)
    assert not result.shared
    assert result.hints == want.hints
    assert allocate_groups([0.5, 0.5, 1e-17], (1, 1, 0))[0] == 2


@settings(max_examples=150, deadline=None)
@given(
    zones=st.lists(
        st.tuples(st.sampled_from([0.0, 1e-12, 1.0, 2.0, 3.0, 9.0]), st.integers(0, 4)),
        min_size=1,
        max_size=4,
    ).filter(lambda zones: any(share >= 1.0 for share, _ in zones)),
    places=st.lists(st.integers(0, 6), max_size=3),
)
def test_zones_that_do_not_count_change_nothing(
    zones: list[tuple[float, int]], places: list[int]
) -> None:
    """A zone without traffic and endpoints leaves hints and groups of the others as they are."""
    more = list(zones)
    for place in places:
        more.insert(min(place, len(more)), (0.0, 0))
    whole = sum(share for share, _ in zones)
    few, many = ([share / whole for share, _ in rows] for rows in (zones, more))
    want = balance(few, [count for _, count in zones])
    result = balance(many, [count for _, count in more])
    counts = [count for _, count in more]
    assert result.shared == want.shared
    if any(counts):
        value = weigh_together(many, counts) if result.shared else weigh(many, result.hints)
        if not result.shared:
            assert value == pytest.approx(weigh(few, want.hints))
        groups, members, weights = allocate_groups(many, counts)
        out = [0.0] * FIGURES
        evaluate_groups(len(more), many, counts, groups, members, weights, out)
        assert 45 * out[0] - 20 * out[1] - 20 * out[2] == pytest.approx(value, abs=1e-6)


def test_rows_are_run_with_hints() -> None:
    """The loop over rows scores groups as hints, which need no slices of their own."""
    loop = bind_function(run_groups, {"allocate_row": allocate_balanced})
    zones, cases = 3, [((1, 1, 1), (4, 4, 0)), ((5, 3, 2), (1, 1, 0)), ((1, 2, 3), (60, 60, 80))]
    room = BALANCED_SCRATCH * (zones + 1)
    table, spreads, valid = [0.0] * (COLUMNS * 3), [0.0] * 3, [0] * 3
    undivided = loop(
        len(cases),
        zones,
        [count for nodes, _ in cases for count in nodes],
        [count for _, endpoints in cases for count in endpoints],
        0.2,
        0.0,
        1,
        [0.45, 0.2, 0.2, 0.15],
        [0] * 99,
        [0.0] * 99,
        [0] * room,
        [0.0] * room,
        [0.0] * zones,
        [0] * zones,
        [0.0] * FIGURES,
        table,
        spreads,
        valid,
    )
    assert undivided == 0
    assert valid == [VALID] * 3
    for number, (nodes, endpoints) in enumerate(cases):
        shares = divide(nodes)
        want = 55 + weigh(shares, balance(shares, endpoints).hints)
        assert table[number * COLUMNS] == pytest.approx(want, abs=1e-8)


def test_lists_and_arrays_give_the_same() -> None:
    """The allocator runs over any flat sequence of numbers."""
    room = BALANCED_SCRATCH * 4
    for endpoints in ((9, 1, 2), (0, 0, 30), (1, 1, 0), (5, 5, 5), (1, 0, 0)):
        groups, members, weights = allocate_groups(THIRDS, endpoints)
        typed, parts = array("q", [0] * len(members)), array("d", [0.0] * len(weights))
        second = allocate_balanced(
            3,
            array("d", THIRDS),
            array("q", endpoints),
            0.2,
            0,
            typed,
            parts,
            array("q", [0] * room),
            array("d", [0.0] * room),
        )
        assert (second, list(typed), list(parts)) == (groups, members, weights)


def test_compiled_is_the_same_as_plain() -> None:
    """Machine code gives the very same cells, with and without something written."""
    pytest.importorskip("numba")
    numpy = pytest.importorskip("numpy")
    compiling = pytest.importorskip("keepclose.simulate.compiling")
    fresh = compiling.compile_function(allocate_balanced)
    onward = compiling.compile_function(allocate_balanced_from)
    rng = random.Random(5)
    for _ in range(300):
        zones = rng.randint(1, 5)
        nodes = [rng.randint(0, 9) for _ in range(zones)]
        shares = divide(nodes)
        endpoints = [rng.randint(0, rng.choice([3, 5, 30])) for _ in range(zones)]
        objective = rng.choice([0.0, 0.0, 1.0])
        bound, is_strict = rng.choice([0.1, 0.2, 0.5]), rng.randint(0, 1)
        room = BALANCED_SCRATCH * (zones + 1)
        plain = [[0] * 200, [0.0] * 200, [0] * room, [0.0] * room]
        typed = [numpy.array(one) for one in plain]
        inputs = (zones, numpy.array(shares), numpy.array(endpoints), bound)
        code = allocate_balanced(zones, shares, endpoints, bound, objective, *plain)  # type: ignore[arg-type]
        assert fresh(*inputs, objective, *typed) == code
        assert [typed[0].tolist(), typed[1].tolist()] == plain[:2]
        columns = 1 << zones if is_small(zones, endpoints, objective) else zones
        written = [rng.choice([0, 0, 1, 4]) for _ in range(zones * columns)]
        matrix, ints, floats = [0] * (zones * columns), [0] * room, [0.0] * room
        cells = [numpy.array(one) for one in (written, matrix, ints, floats)]
        code = allocate_balanced_from(
            zones, shares, endpoints, bound, is_strict, objective, written, matrix, ints, floats
        )
        assert onward(*inputs, is_strict, objective, *cells) == code
        assert cells[1].tolist() == matrix
