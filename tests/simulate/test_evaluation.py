"""The evaluation of allocations, against recorded figures and a plain reading of the rules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.local import allocate_local
from keepclose.routing.allocation.local_opt import allocate_local_opt
from keepclose.routing.allocation.local_shared import allocate_local_shared
from keepclose.routing.allocation.local_weighted import allocate_local_weighted
from keepclose.simulate.allocators.global_group import (
    allocate_shared_global,
    allocate_shared_multizone,
)
from keepclose.simulate.compiling import compile_function
from keepclose.simulate.evaluation import (
    FIGURES,
    IN_ZONE,
    INVALID,
    MAX_DEVIATION,
    MEAN_DEVIATION,
    REFERENCE_SLICES,
    SLICES,
    SPREAD,
    TRUE_SPREAD,
    VALID,
    evaluate_groups,
    evaluate_matrix,
    score,
)

PRINTED = 1.01e-4
KERNELS: dict[str, Callable[..., int]] = {
    "local-shared": allocate_local_shared,
    "local-weighted": allocate_local_weighted,
    "local-opt": allocate_local_opt,
    "shared-global": allocate_shared_global,
    "shared-multizone": allocate_shared_multizone,
}
GROUPS = st.integers(1, 5).flatmap(
    lambda zones: st.tuples(
        st.lists(st.integers(0, 9), min_size=zones, max_size=zones),
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 120), min_size=zones, max_size=zones),
                st.lists(
                    st.sampled_from([-0.5, 0.0, 0.0, 0.4, 1.0]), min_size=zones, max_size=zones
                ),
            ),
            min_size=1,
            max_size=3 * zones,
        ),
    )
)


class Case(msgspec.Struct, frozen=True):
    """One recorded row: zones as (name, nodes, endpoints) in column order, and seven figures."""

    note: str
    zones: tuple[tuple[str, int, int], ...]
    valid: bool
    expected: tuple[float, ...] | None


class Cases(msgspec.Struct, frozen=True):
    """The recorded rows of one algorithm."""

    cases: tuple[Case, ...]


class Recorded(msgspec.Struct, frozen=True):
    """All recorded rows."""

    algorithms: dict[str, Cases]
    extra_local_starting_threshold_1: Cases


RECORDED = msgspec.json.decode(
    (Path(__file__).parent.parent / "data" / "simulator.json").read_bytes(), type=Recorded
)
ROWS = [
    *(
        pytest.param(name, 3.0, case, id=f"{name}: {case.note}")
        for name, recorded in RECORDED.algorithms.items()
        for case in recorded.cases
    ),
    *(
        pytest.param("local", 1.0, case, id=f"local from one endpoint a zone: {case.note}")
        for case in RECORDED.extra_local_starting_threshold_1.cases
    ),
]


def divide(nodes: Sequence[int]) -> list[float]:
    """Return each zone's part of the nodes, zeros if there are none."""
    return [count / sum(nodes) if sum(nodes) else 0.0 for count in nodes]


def evaluate(
    nodes: Sequence[int],
    endpoints: Sequence[int],
    groups: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> list[float] | None:
    """Return the figures of groups given as (composition, weights); None if invalid."""
    zones = len(nodes)
    comp = [0] * (zones * (3 * zones + 2))
    weight = [math.nan] * (zones * (3 * zones + 2))
    for number, (composition, attraction) in enumerate(groups):
        comp[number * zones : (number + 1) * zones] = composition
        weight[number * zones : (number + 1) * zones] = attraction
    out = [math.nan] * FIGURES
    code = evaluate_groups(zones, divide(nodes), endpoints, len(groups), comp, weight, out)
    assert code in {VALID, INVALID}
    return out if code == VALID else None


def read_plainly(
    nodes: Sequence[int],
    endpoints: Sequence[int],
    groups: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> list[float] | None:
    """Return the figures by a direct reading of the rules of traffic; None if invalid."""
    zones = range(len(nodes))
    total = sum(endpoints)
    shares = divide(nodes)
    sizes = [sum(composition) for composition, _ in groups]
    reach = [
        [size * attraction[zone] for size, (_, attraction) in zip(sizes, groups, strict=True)]
        for zone in zones
    ]
    if any(sum(row) <= 0 or min(row) < 0 for row in reach):
        return None
    traffic = [
        [shares[zone] * reach[zone][group] / sum(reach[zone]) for zone in zones]
        for group in range(len(groups))
    ]
    in_zone = sum(
        traffic[group][zone] * groups[group][0][zone] / sizes[group]
        for group in range(len(groups))
        for zone in zones
        if sizes[group]
    )
    listed = [
        total * sum(traffic[group]) / sizes[group] - 1
        for group in range(len(groups))
        for _ in range(sizes[group])
    ]
    mean = sum(abs(deviation) for deviation in listed) / total
    everyone = [*listed, *[-1.0] * (total - len(listed))]
    centre = sum(everyone) / total
    return [
        in_zone,
        max(0.0, *listed),
        mean,
        math.sqrt(sum((deviation - mean) ** 2 for deviation in listed) / total),
        math.sqrt(sum((deviation - centre) ** 2 for deviation in everyone) / total),
        sum(math.ceil(size / 100) for size in sizes),
        math.ceil(total / 100),
    ]


@pytest.mark.parametrize(("name", "start", "case"), ROWS)
def test_recorded_rows_come_out_again(name: str, start: float, case: Case) -> None:
    """Every recorded row has its validity and its seven printed figures."""
    columns = sorted(case.zones)
    zones = len(columns)
    shares = divide([nodes for _, nodes, _ in columns])
    endpoints = [count for _, _, count in columns]
    comp = [-1] * (zones * (3 * zones + 2))
    weight = [math.nan] * (zones * (3 * zones + 2))
    ints = [-1] * (16 * zones + 16)
    floats = [math.nan] * (16 * zones + 16)
    out = [math.nan] * FIGURES

    if name == "local":
        code = allocate_local(zones, shares, endpoints, 0.5, start, comp, ints, floats)
    elif name == "original":
        code = 0
    else:
        code = KERNELS[name](zones, shares, endpoints, 0.5, start, comp, weight, ints, floats)
    if name == "local" and code == 1:
        valid = evaluate_matrix(zones, shares, endpoints, comp, 0, out)
    else:
        valid = evaluate_groups(zones, shares, endpoints, max(code, 0), comp, weight, out)

    assert bool(valid) == case.valid
    if case.expected is not None:
        maximum, mean = out[MAX_DEVIATION], out[MEAN_DEVIATION]
        figures = [
            score(out[IN_ZONE], maximum, mean, out[SLICES], out[REFERENCE_SLICES]),
            100 * out[IN_ZONE],
            0.5 * (100 - 100 * maximum) + 0.5 * (100 - 100 * mean),
            100 * out[REFERENCE_SLICES] / out[SLICES],
            100 * maximum,
            100 * mean,
            out[SPREAD],
        ]
        assert figures == pytest.approx(case.expected, abs=PRINTED)


@pytest.mark.parametrize(
    ("nodes", "endpoints", "groups", "want_figures"),
    [
        pytest.param(
            [1, 3], [2, 2], [], [0.5, 0, 0, 0, 0, 1, 1], id="one group of everything is even"
        ),
        pytest.param(
            [0, 0], [60, 50], [], [0, 0, 1, 2, 0, 2, 2], id="without clients all load is missing"
        ),
        pytest.param(
            [1, 3],
            [2, 2],
            [([2, 0], [1, 0]), ([0, 2], [0, 1])],
            [1, 0.5, 0.5, math.sqrt(0.5), 0.5, 2, 1],
            id="two groups of two with a quarter and three quarters of the clients",
        ),
        pytest.param(
            [1, 1],
            [2, 2],
            [([1, 0], [1, 0]), ([0, 1], [0, 1]), ([1, 1], [0.5, 0.5])],
            [0.75, 0, 0, 0, 0, 3, 1],
            id="half of the clients of both zones share a group, a quarter each at home in it",
        ),
        pytest.param(
            [1, 1],
            [2, 2],
            [([2, 0], [1, 0]), ([0, 1], [0, 1])],
            [1, 1, 0.25, math.sqrt(0.171875), math.sqrt(0.5), 2, 1],
            id="a lost endpoint counts for nothing but the true spread",
        ),
        pytest.param(
            [1, 1],
            [101, 99],
            [([101, 0], [1, 1]), ([0, 99], [1, 1])],
            [0.5, 0, 0, 0, 0, 3, 2],
            id="101 endpoints are two slices",
        ),
    ],
)
def test_figures_of_groups(
    nodes: list[int],
    endpoints: list[int],
    groups: list[tuple[list[int], list[float]]],
    want_figures: list[float],
) -> None:
    """Groups have in-zone share, largest and mean deviation, both spreads, slices, reference."""
    assert evaluate(nodes, endpoints, groups) == pytest.approx(want_figures, abs=1e-12)


@pytest.mark.parametrize(
    ("endpoints", "groups"),
    [
        pytest.param([0, 0], [], id="no endpoints"),
        pytest.param([0, 0], [([0, 0], [1, 1])], id="no endpoints in one group"),
        pytest.param([1, 1], [([1, 1], [1, 0])], id="a zone that no group attracts"),
        pytest.param([1, 1], [([1, 0], [1, 0]), ([0, 0], [0, 1])], id="a zone with an empty group"),
        pytest.param([1, 1], [([1, 0], [1, 1]), ([0, 1], [1, -0.1])], id="a weight below zero"),
    ],
)
def test_groups_without_result(
    endpoints: list[int], groups: list[tuple[list[int], list[float]]]
) -> None:
    """Groups are invalid where clients reach nothing or weights are negative."""
    assert evaluate([1, 1], endpoints, groups) is None


@settings(deadline=None, max_examples=200)
@given(region=GROUPS, lost=st.integers(0, 2))
def test_groups_follow_the_rules_of_traffic(
    region: tuple[list[int], list[tuple[list[int], list[float]]]], lost: int
) -> None:
    """Any groups have the validity and figures that the rules give, also with endpoints lost."""
    nodes, groups = region
    endpoints = [sum(column) for column in zip(*(comp for comp, _ in groups), strict=True)]
    endpoints[0] += lost
    want_figures = read_plainly(nodes, endpoints, groups)

    figures = evaluate(nodes, endpoints, groups)

    if want_figures is None:
        assert figures is None
    else:
        assert figures == pytest.approx(want_figures, rel=1e-9, abs=1e-7)


@pytest.mark.parametrize(
    ("hints", "endpoints", "matrix", "want_figures"),
    [
        pytest.param(0, [3, 1], [2, 1, 0, 1], [0.75, 0, 0, 0, 0, 2, 1], id="a zone lends one"),
        pytest.param(1, [3, 1], [2, 1, 0, 1], [0.75, 0, 0, 0, 0, 1, 1], id="hints take no slices"),
        pytest.param(0, [4, 0], [4, 0, 0, 0], None, id="a zone without slices is served by nobody"),
        pytest.param(
            1,
            [4, 0],
            [4, 0, 0, 0],
            [0.5, 0, 0, 0, 0, 1, 1],
            id="a zone nothing is hinted for uses everything",
        ),
        pytest.param(
            1,
            [2, 2],
            [2, 0, 2, 0],
            [0.5, 0, 0, 0, 0, 1, 1],
            id="a zone whose endpoints all serve another finds some of them at home",
        ),
        pytest.param(
            0, [0, 0], [0, 0, 0, 0], None, id="no endpoints are invalid with slices of zones"
        ),
        pytest.param(1, [0, 0], [0, 0, 0, 0], None, id="no endpoints are invalid with hints"),
    ],
)
def test_figures_of_a_matrix(
    hints: int, endpoints: list[int], matrix: list[int], want_figures: list[float] | None
) -> None:
    """A matrix of endpoints has the same figures, with slices for each zone or with hints."""
    out = [math.nan] * FIGURES
    code = evaluate_matrix(2, [0.5, 0.5], endpoints, matrix, hints, out)
    if want_figures is None:
        assert code == INVALID
    else:
        assert code == VALID
        assert out == pytest.approx(want_figures, abs=1e-12)


@settings(deadline=None, max_examples=200)
@given(
    nodes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    data=st.data(),
)
def test_a_matrix_is_groups_of_one_zone_each(nodes: list[int], data: st.DataObject) -> None:
    """A matrix in slices of zones has exactly the figures of its columns as groups."""
    zones = len(nodes)
    counts = st.integers(0, 150)
    matrix = data.draw(st.lists(counts, min_size=zones * zones, max_size=zones * zones))
    endpoints = [sum(matrix[zone * zones : (zone + 1) * zones]) for zone in range(zones)]
    groups = [
        (matrix[zone::zones], [float(zone == other) for other in range(zones)])
        for zone in range(zones)
    ]
    want_figures = evaluate(nodes, endpoints, groups)

    out = [math.nan] * FIGURES
    code = evaluate_matrix(zones, divide(nodes), endpoints, matrix, 0, out)

    assert (out if code == VALID else None) == want_figures


@pytest.mark.parametrize(
    ("figures", "weights", "want_score"),
    [
        pytest.param([1, 0, 0, 1, 1], [], 100, id="all best"),
        pytest.param([0.5, 0.1, 0.2, 3, 2], [], 22.5 + 18 + 16 + 10, id="the weights of the KEP"),
        pytest.param([0, 3, 1, 1, 1], [], -40 + 15, id="a deviation has no lower limit"),
        pytest.param([0.5, 0.1, 0.2, 3, 2], [1, 2, 3, 4], 50 + 180 + 240 + 800 / 3, id="weights"),
        pytest.param([0.5, 0.5, 0.5, 0, 0], [], 22.5 + 10 + 10, id="no slices"),
    ],
)
def test_score_is_a_weighted_sum(
    figures: list[float], weights: list[float], want_score: float
) -> None:
    """The score weighs in-zone share, largest and mean deviation, and the growth of slices."""
    assert score(*figures, *weights) == pytest.approx(want_score, abs=1e-12)


def test_compiled_evaluation_is_identical() -> None:
    """Compiled, the functions give the very same doubles, groups and matrix alike."""
    pytest.importorskip("numba")
    numpy = pytest.importorskip("numpy")
    of_groups = compile_function(evaluate_groups)
    of_matrix = compile_function(evaluate_matrix)
    rng = random.Random(7)
    valid = 0
    for _ in range(2000):
        zones = rng.randint(1, 5)
        rows = 3 * zones + 2
        shares = divide([rng.randint(0, 9) for _ in range(zones)])
        comp = [rng.choice([0, 1, rng.randint(0, 200)]) for _ in range(rows * zones)]
        weight = [rng.choice([0.0, 0.4, 1.0, rng.random()]) for _ in range(rows * zones)]
        endpoints = [sum(comp[zone * zones : (zone + 1) * zones]) for zone in range(zones)]
        groups = rng.randint(0, 3 * zones)
        hints = rng.randint(0, 1)
        want = [math.nan] * FIGURES
        got = numpy.full(FIGURES, math.nan)
        arrays = [numpy.array(shares), numpy.array(endpoints), numpy.array(comp)]

        want_code = evaluate_groups(zones, shares, endpoints, groups, comp, list(weight), want)
        code = of_groups(zones, arrays[0], arrays[1], groups, arrays[2], numpy.array(weight), got)
        assert code == want_code
        assert want_code == INVALID or got.tolist() == want
        valid += want_code

        want_code = evaluate_matrix(zones, shares, endpoints, comp, hints, want)
        code = of_matrix(zones, arrays[0], arrays[1], arrays[2], hints, got)
        assert code == want_code
        assert want_code == INVALID or got.tolist() == want
        valid += want_code
    assert valid > 2000


def test_figures_have_names() -> None:
    """The places of the figures in the output are told apart by name."""
    out = [math.nan] * FIGURES
    matrix = [101, 0, 0, 1]
    assert evaluate_matrix(2, [0.5, 0.5], [101, 1], matrix, 0, out) == VALID
    assert out[IN_ZONE] == pytest.approx(1)
    assert out[MAX_DEVIATION] == pytest.approx(50)
    assert out[MEAN_DEVIATION] == pytest.approx(100 / 102)
    assert out[SPREAD] > out[TRUE_SPREAD] == pytest.approx(math.sqrt((50**2 + 2500 / 101) / 102))
    assert (out[SLICES], out[REFERENCE_SLICES]) == (3, 2)
