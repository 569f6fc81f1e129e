"""The allocator "local" against figures of the reference simulator and a plain reading of it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.local import (
    BELOW_START,
    DOWNGRADED,
    LOCAL_ALLOCATED,
    Allocation,
    LocalOutcome,
    allocate_local,
    find_least_size,
    local,
    relieve_from_two,
)

Rows = tuple[tuple[int, ...], ...]


class Case(msgspec.Struct, frozen=True):
    """One row of the reference: zones as (name, nodes, endpoints) and its seven figures."""

    note: str
    zones: tuple[tuple[str, int, int], ...]
    valid: bool
    expected: tuple[float, ...] | None


class Recorded(msgspec.Struct, frozen=True):
    """All recorded rows of the allocator."""

    local: tuple[Case, ...]
    extra_local_starting_threshold_1: tuple[Case, ...]


RECORDED = msgspec.json.decode(
    (Path(__file__).parent.parent / "data" / "simulator-local.json").read_bytes(), type=Recorded
)
CASES = [
    *(pytest.param(3, case, id=f"start 3: {case.note}") for case in RECORDED.local),
    *(
        pytest.param(1, case, id=f"start 1: {case.note}")
        for case in RECORDED.extra_local_starting_threshold_1
    ),
]


def divide(nodes: Sequence[int]) -> list[float]:
    """Return each zone's part of the nodes."""
    return [count / sum(nodes) for count in nodes]


def score(shares: Sequence[float], endpoints: Sequence[int], result: Allocation) -> list[float]:
    """Return the seven figures of the reference for an allocation; none when it is invalid."""
    zones = range(len(shares))
    total = sum(endpoints)
    if result.outcome is LocalOutcome.ALLOCATED:
        compositions = [[result.matrix[i][j] for i in zones] for j in zones]
        routes = [[j] for j in zones]
    else:
        compositions = [list(endpoints)]
        routes = [[0] for _ in zones]
    sizes = [sum(composition) for composition in compositions]
    if any(sizes[group] <= 0 for route in routes for group in route):
        return []
    traffic = [0.0] * len(sizes)
    in_zone = 0.0
    for zone in zones:
        for group in routes[zone]:
            traffic[group] += shares[zone]
            in_zone += shares[zone] * compositions[group][zone] / sizes[group]
    deviations = [total * traffic[g] / sizes[g] - 1 for g in range(len(sizes))]
    most = max(0.0, *deviations)
    mean = sum(abs(deviations[g]) * sizes[g] for g in range(len(sizes))) / total
    spread = math.sqrt(
        sum((deviations[g] - mean) ** 2 * sizes[g] for g in range(len(sizes))) / total
    )
    slices = sum(math.ceil(size / 100) for size in sizes)
    in_zone_score = 100 * in_zone
    deviation_score = 0.5 * (100 - 100 * most) + 0.5 * (100 - 100 * mean)
    slice_score = 100 * math.ceil(total / 100) / slices
    whole = 0.45 * in_zone_score + 0.40 * deviation_score + 0.15 * slice_score
    return [
        whole,
        in_zone_score,
        deviation_score,
        slice_score,
        100 * most,
        100 * mean,
        spread,
    ]


@pytest.mark.parametrize(("start", "case"), CASES)
def test_figures_of_the_reference_come_out(start: int, case: Case) -> None:
    """The seven figures computed from the matrix are those that the reference printed."""
    zones = sorted(case.zones)
    shares = divide([nodes for _, nodes, _ in zones])
    endpoints = [count for _, _, count in zones]

    got = score(shares, endpoints, local(shares, endpoints, start_per_zone=start))

    assert bool(got) == case.valid
    assert got == pytest.approx(case.expected or [], abs=1.01e-4)


@pytest.mark.parametrize("case", RECORDED.extra_local_starting_threshold_1, ids=lambda c: c.note)
def test_downgrade_is_told_where_the_reference_logged_one(case: Case) -> None:
    """With a low start the outcome says whether the overload bound could be kept."""
    zones = sorted(case.zones)
    shares = divide([nodes for _, nodes, _ in zones])
    want = LocalOutcome.DOWNGRADED if case.note.startswith("downgraded") else LocalOutcome.ALLOCATED

    assert local(shares, [n for _, _, n in zones], start_per_zone=1).outcome is want


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_matrix"),
    [
        pytest.param(
            (1, 2, 7),
            (5, 20, 20),
            ((5, 0, 0), (0, 9, 11), (0, 0, 20)),
            id="one zone gives eleven endpoints to a big one",
        ),
        pytest.param(
            (1, 1, 1),
            (0, 6, 7),
            ((0, 0, 0), (1, 5, 0), (2, 0, 5)),
            id="an empty zone takes from both others",
        ),
        pytest.param(
            (16, 8, 1),
            (5, 1, 0),
            ((3, 1, 1), (0, 1, 0), (0, 0, 0)),
            id="the biggest zone helps two others",
        ),
        pytest.param(
            (30, 30, 30),
            (100, 0, 0),
            ((34, 33, 33), (0, 0, 0), (0, 0, 0)),
            id="one zone has all endpoints",
        ),
        pytest.param(
            (1, 2, 2), (3, 2, 2), ((3, 0, 0), (0, 2, 0), (0, 0, 2)), id="nothing needs to move"
        ),
        pytest.param(
            (1, 1, 1),
            (5, 3, 2),
            ((4, 0, 1), (0, 3, 0), (0, 0, 2)),
            id="a whole endpoint is lacking",
        ),
        pytest.param(
            (29, 200, 71),
            (2, 17, 11),
            ((2, 0, 0), (0, 17, 0), (0, 0, 11)),
            id="the most loaded zone lacks less than one and ends the balancing",
        ),
        pytest.param(
            (0, 0, 1),
            (4, 4, 0),
            ((1, 0, 3), (0, 1, 3), (0, 0, 0)),
            id="two zones without traffic give in turns",
        ),
        pytest.param(
            (1, 1, 1, 1, 1, 1),
            (1, 1, 0, 0, 2, 2),
            (
                (1, 0, 0, 0, 0, 0),
                (0, 1, 0, 0, 0, 0),
                (0, 0, 0, 0, 0, 0),
                (0, 0, 0, 0, 0, 0),
                (0, 0, 1, 0, 1, 0),
                (0, 0, 0, 1, 0, 1),
            ),
            id="zones with just enough do not stand among those that take",
        ),
    ],
)
def test_endpoints_are_allocated(
    nodes: tuple[int, ...], endpoints: tuple[int, ...], want_matrix: Rows
) -> None:
    """Without a starting threshold the groups come out as published."""
    got = local(divide(nodes), endpoints, start_per_zone=0)

    assert got == Allocation(LocalOutcome.ALLOCATED, want_matrix)


@pytest.mark.parametrize(
    ("nodes", "endpoints"),
    [
        pytest.param((30, 30, 30), (1, 0, 0), id="one endpoint for three zones"),
        pytest.param((1, 1, 1), (3, 1, 1), id="five endpoints leave a zone at 67 %"),
    ],
)
def test_unreachable_bound_downgrades(nodes: tuple[int, ...], endpoints: tuple[int, ...]) -> None:
    """A zone that stays at or above the threshold leaves the Service undivided, matrix zero."""
    got = local(divide(nodes), endpoints, start_per_zone=0)

    assert got == Allocation(LocalOutcome.DOWNGRADED, ((0, 0, 0), (0, 0, 0), (0, 0, 0)))


@pytest.mark.parametrize(
    ("endpoints", "want_outcome"),
    [
        pytest.param((4, 2, 2), LocalOutcome.BELOW_START, id="eight of nine"),
        pytest.param((5, 2, 2), LocalOutcome.ALLOCATED, id="exactly nine"),
        pytest.param((0, 0, 0), LocalOutcome.BELOW_START, id="none"),
    ],
)
def test_start_is_three_endpoints_a_zone(
    endpoints: tuple[int, ...], want_outcome: LocalOutcome
) -> None:
    """Fewer than three endpoints for each zone are not allocated."""
    assert local(divide((1, 1, 1)), endpoints).outcome is want_outcome


def test_exactly_half_more_is_over() -> None:
    """A zone at 50 % overload has reached the threshold and takes; a higher one lets it be."""
    shares, endpoints = [0.25, 0.75], [1, 5]

    at_half = local(shares, endpoints, start_per_zone=0)
    above_half = local(shares, endpoints, start_per_zone=0, threshold=0.51)

    assert at_half.matrix == ((1, 0), (1, 4))
    assert above_half.matrix == ((1, 0), (0, 5))


@pytest.mark.parametrize(
    ("shares", "endpoints", "want"),
    [
        pytest.param([], [], Allocation(LocalOutcome.BELOW_START, ()), id="no zones"),
        pytest.param([1.0], [4], Allocation(LocalOutcome.ALLOCATED, ((4,),)), id="one zone"),
        pytest.param(
            [0.0, 0.0],
            [3, 4],
            Allocation(LocalOutcome.ALLOCATED, ((3, 0), (0, 4))),
            id="no traffic at all",
        ),
        pytest.param(
            [0.5, 0.5, 0.0],
            [4, 4, 0],
            Allocation(LocalOutcome.ALLOCATED, ((4, 0, 0), (0, 4, 0), (0, 0, 0))),
            id="a zone with neither traffic nor endpoints",
        ),
        pytest.param(
            [0.5, 0.5],
            [-1, 4],
            Allocation(LocalOutcome.ALLOCATED, ((0, 0), (2, 2))),
            id="a negative count is none",
        ),
        pytest.param(
            [0.5, 0.5],
            [3],
            Allocation(LocalOutcome.ALLOCATED, ((3,),)),
            id="a zone without count is left out",
        ),
    ],
)
def test_odd_input_has_an_answer(
    shares: list[float], endpoints: list[int], want: Allocation
) -> None:
    """Empty, traffic-free and malformed regions are answered, never refused by an exception."""
    assert local(shares, endpoints, start_per_zone=1) == want


class PlainHeap:
    """The textbook binary heap over zones, with keys read anew at each comparison."""

    def __init__(self, before: Callable[[int, int], bool], entries: Sequence[int]) -> None:
        self.before = before
        self.items = list(entries)
        for start in range(len(self.items) // 2 - 1, -1, -1):
            self._down(start, len(self.items))

    def push(self, entry: int) -> None:
        """Append an entry and sift it up."""
        self.items.append(entry)
        child = len(self.items) - 1
        while child > 0 and self.before(self.items[child], self.items[(child - 1) // 2]):
            self._swap(child, (child - 1) // 2)
            child = (child - 1) // 2

    def pop(self) -> int:
        """Return the first entry."""
        self._swap(0, len(self.items) - 1)
        self._down(0, len(self.items) - 1)
        return self.items.pop()

    def _down(self, start: int, length: int) -> None:
        parent = start
        while (child := 2 * parent + 1) < length:
            if child + 1 < length and self.before(self.items[child + 1], self.items[child]):
                child += 1
            if not self.before(self.items[child], self.items[parent]):
                return
            self._swap(child, parent)
            parent = child

    def _swap(self, one: int, two: int) -> None:
        self.items[one], self.items[two] = self.items[two], self.items[one]


def read_plainly(
    shares: Sequence[float], endpoints: Sequence[int], *, threshold: float, start: int
) -> Allocation:
    """Allocate as the proposal's simulator is described, with objects instead of flat arrays."""
    zones = range(len(shares))
    total = sum(endpoints)
    nothing = tuple(tuple(0 for _ in zones) for _ in zones)
    if total < start * len(shares):
        return Allocation(LocalOutcome.BELOW_START, nothing)
    expected = [total * share for share in shares]
    matrix = [[endpoints[i] if i == j else 0 for j in zones] for i in zones]
    sizes = list(endpoints)

    def over(zone: int, size: int) -> bool:
        return expected[zone] > 0 if size == 0 else expected[zone] / size - 1 >= threshold

    def may_give(zone: int) -> bool:
        return sizes[zone] > 1 and not over(zone, sizes[zone] - 1)

    def gives_before(a: int, b: int) -> bool:
        if sizes[a] == 0 or sizes[b] == 0:
            return sizes[a] != 0
        return shares[a] / (sizes[a] - 1) < shares[b] / (sizes[b] - 1)

    def takes_before(a: int, b: int) -> bool:
        if sizes[b] == 0 or sizes[a] == 0:
            return sizes[b] != 0
        return shares[b] / sizes[b] < shares[a] / sizes[a]

    def move(giver: int, taker: int) -> None:
        matrix[giver][giver] -= 1
        matrix[giver][taker] += 1
        sizes[giver] -= 1
        sizes[taker] += 1

    givers = PlainHeap(gives_before, [zone for zone in zones if may_give(zone)])
    takers = PlainHeap(takes_before, [zone for zone in zones if over(zone, sizes[zone])])
    while takers.items:
        taker = takers.pop()
        while givers.items and over(taker, sizes[taker]):
            giver = givers.pop()
            move(giver, taker)
            if may_give(giver):
                givers.push(giver)
        if over(taker, sizes[taker]):
            return Allocation(LocalOutcome.DOWNGRADED, nothing)
    everyone = PlainHeap(takes_before, list(zones))
    done = False
    while givers.items and not done:
        giver = givers.pop()
        surplus = sizes[giver] - expected[giver]
        if surplus < 1:
            break
        while surplus >= 1:
            taker = everyone.pop()
            deficit = sizes[taker] - expected[taker]
            if deficit > -1:
                done = True
                break
            while surplus >= 1 and deficit <= -1:
                move(giver, taker)
                surplus -= 1
                deficit += 1
            everyone.push(taker)
    return Allocation(LocalOutcome.ALLOCATED, tuple(tuple(row) for row in matrix))


regions = st.lists(
    st.tuples(st.integers(0, 40), st.one_of(st.integers(0, 5), st.integers(0, 120))),
    min_size=1,
    max_size=9,
).filter(lambda zones: any(nodes for nodes, _ in zones))


@settings(deadline=None, max_examples=200)
@given(zones=regions, start=st.integers(0, 3), threshold=st.sampled_from([0.5, 0.2, 0.05, 1.0]))
def test_flat_function_is_the_plain_algorithm(
    zones: list[tuple[int, int]], start: int, threshold: float
) -> None:
    """The flat function allocates exactly as the algorithm written with heaps and lists."""
    shares = divide([nodes for nodes, _ in zones])
    endpoints = [count for _, count in zones]

    want = read_plainly(shares, endpoints, threshold=threshold, start=start)

    assert local(shares, endpoints, threshold=threshold, start_per_zone=start) == want


@settings(deadline=None, max_examples=100)
@given(zones=regions, start=st.integers(0, 3))
def test_lists_and_arrays_give_the_same(zones: list[tuple[int, int]], start: int) -> None:
    """Lists and typed arrays lead to the same code and the same matrix, scratch space dirty."""
    count = len(zones)
    shares = divide([nodes for nodes, _ in zones])
    endpoints = [number for _, number in zones]
    listed = [7] * (count * count)
    typed = array("q", listed)

    code = allocate_local(
        count, shares, endpoints, 0.5, start, listed, [9] * 4 * count, [9.0] * 2 * count
    )
    typed_code = allocate_local(
        count,
        array("d", shares),
        array("q", endpoints),
        0.5,
        start,
        typed,
        array("q", [9] * 4 * count),
        array("d", [9.0] * 2 * count),
    )

    assert typed_code == code
    assert typed.tolist() == listed
    assert code in (LOCAL_ALLOCATED, BELOW_START, DOWNGRADED)
    assert sum(listed) == (sum(endpoints) if code == LOCAL_ALLOCATED else 0)


@settings(deadline=None, max_examples=200)
@given(
    nodes=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    endpoints=st.lists(st.integers(0, 120), min_size=3, max_size=3),
    threshold=st.sampled_from([0.5, 0.1, 0.02, 0.0, -0.4, -1.0]),
)
def test_moving_many_at_once_is_moving_one_by_one(
    nodes: list[int], endpoints: list[int], threshold: float
) -> None:
    """Two givers with few nodes, hence with many equal loads, give as in single steps."""
    want = read_plainly(divide(nodes), endpoints, threshold=threshold, start=0)

    assert local(divide(nodes), endpoints, threshold=threshold, start_per_zone=0) == want


@pytest.mark.parametrize(
    ("expected", "threshold", "want"),
    [
        pytest.param(0.0, 0.5, 1, id="no traffic needs one endpoint at least"),
        pytest.param(3.0, 0.5, 3, id="half more than expected is too much"),
        pytest.param(2.9, 0.5, 2, id="a little less than half more is fine"),
        pytest.param(7.0, 0.0, 8, id="without tolerance one more than expected is needed"),
        pytest.param(
            585 * (99 / 117), 0.1, 451, id="the estimate comes out one too small by rounding"
        ),
        pytest.param(6.0, 0.2, 5, id="the estimate comes out one too large by rounding"),
        pytest.param(7.0, -1.0, 1000, id="nothing is below a threshold of minus one"),
        pytest.param(7.0, math.nan, 1, id="no threshold at all is never reached"),
    ],
)
def test_least_size_is_the_first_below_the_threshold(
    expected: float, threshold: float, want: int
) -> None:
    """The least size is where the overload test of the reference first says no."""
    assert find_least_size(expected, threshold, 1000) == want
    assert [size for size in range(1, 1000) if not expected / size - 1 >= threshold][:1] == (
        [want] if want < 1000 else []
    )


@pytest.mark.parametrize(
    ("shares", "sizes", "need"),
    [
        pytest.param((3 / 61, 34 / 61), (53, 71), 86, id="the estimate is one too high"),
        pytest.param((18 / 89, 46 / 89), (26, 60), 21, id="the estimate is one too low"),
        pytest.param((0.3, 0.3), (9, 9), 7, id="equal loads from the start, uneven number"),
        pytest.param((0.3, 0.3), (9, 9), 6, id="equal loads from the start, even number"),
        pytest.param((0.3, 0.3), (12, 9), 8, id="equal loads after a while"),
        pytest.param((0.2, 0.4), (20, 30), 14, id="loads equal now and then"),
        pytest.param((0.2, 0.4), (20, 30), 48, id="both give all they can"),
        pytest.param((0.01, 0.6), (4, 30), 20, id="one gives all it can"),
    ],
)
def test_two_givers_give_as_the_heap_would(
    shares: tuple[float, float], sizes: tuple[int, int], need: int
) -> None:
    """Taking from two givers at once ends where popping and pushing them one by one would."""
    left = list(sizes)
    heap = PlainHeap(
        lambda one, two: shares[one] / (left[one] - 1) < shares[two] / (left[two] - 1), [0, 1]
    )
    for _ in range(need):
        giver = heap.pop()
        left[giver] -= 1
        if left[giver] > 1:
            heap.push(giver)
    matrix = [sizes[0], 0, 0, 0, sizes[1], 0, 0, 0, 0]
    ints = [0, 1, 9, 9, 9, 9, *sizes, 0, 1, 1, 1]

    givers = relieve_from_two(3, (*shares, 0.0), matrix, ints, [0.0] * 6, 2, need)

    assert ints[6:9] == [*left, need]
    assert ints[:givers] == heap.items


def test_functions_need_nothing_but_numbers() -> None:
    """The function and all it calls look up only numbers and each other, without closures."""
    seen: set[FunctionType] = set()
    todo = [allocate_local]
    names: set[str] = set()
    while todo:
        function = todo.pop()
        assert isinstance(function, FunctionType)
        if function not in seen:
            seen.add(function)
            code = function.__code__
            assert code.co_freevars == code.co_cellvars == ()
            assert not [one for one in code.co_consts if hasattr(one, "co_code")]
            found = {name: function.__globals__.get(name) for name in code.co_names}
            todo += [value for value in found.values() if isinstance(value, FunctionType)]
            names |= {name for name, value in found.items() if not callable(value)}

    want_names = {"range", "math", "inf", "min", "max", "int", "float"}
    assert names == want_names | {"LOCAL_ALLOCATED", "BELOW_START", "DOWNGRADED"}
    assert len(seen) > 5
