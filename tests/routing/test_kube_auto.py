"""The allocation of the topology mode Auto as numbers, against the controller that writes hints."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.kube_auto import (
    INFEASIBLE,
    KUBE_AUTO_ALLOCATED,
    allocate_kube_auto,
    least_endpoints,
    lend_endpoints,
    set_targets,
)
from keepclose.routing.auto import allocate_proportionally
from keepclose.routing.hints import SliceSet
from support.builders import endpoint, endpoint_slice


def allocated(
    nodes: Sequence[int], endpoints: Sequence[int], *, threshold: float = 0.2
) -> tuple[int, list[list[int]]]:
    """Return the code and the rows of the matrix."""
    zones = len(nodes)
    shares = [count / sum(nodes) for count in nodes] if any(nodes) else [0.0] * zones
    matrix = [9] * zones**2
    room = 16 * zones + 16
    code = allocate_kube_auto(
        zones, shares, endpoints, threshold, 0, matrix, [0] * room, [0.0] * room
    )
    return code, [matrix[row * zones : (row + 1) * zones] for row in range(zones)]


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want"),
    [
        pytest.param((1, 1, 1), (1, 3, 2), [[1, 0, 0], [1, 2, 0], [0, 0, 2]], id="one is lent"),
        pytest.param((5, 3, 2), (3, 6, 2), [[3, 0, 0], [2, 4, 0], [0, 0, 2]], id="by CPU share"),
        pytest.param(
            (1, 1, 4), (12, 0, 0), [[2, 2, 8], [0, 0, 0], [0, 0, 0]], id="one zone gives to two"
        ),
        pytest.param((1, 1), (1, 1), [[1, 0], [0, 1]], id="as many endpoints as zones"),
        pytest.param(
            (1, 1, 1, 1),
            (3, 3, 1, 1),
            [[2, 0, 1, 0], [0, 2, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]],
            id="of zones that need alike the first is served first",
        ),
        pytest.param((1, 0, 1), (1, 2, 1), [[1, 0, 0], [0, 2, 0], [0, 0, 1]], id="no part taken"),
    ],
)
def test_matrices(nodes: Sequence[int], endpoints: Sequence[int], want: list[list[int]]) -> None:
    """Surplus goes where the need is largest; zones without traffic keep what they have."""
    assert allocated(nodes, endpoints) == (KUBE_AUTO_ALLOCATED, want)


@pytest.mark.parametrize(
    ("nodes", "endpoints"),
    [
        pytest.param((), (), id="no zones"),
        pytest.param((0, 0), (3, 3), id="no traffic"),
        pytest.param((4, 0), (3, 3), id="traffic in one zone only"),
        pytest.param((1, 1, 1), (2, 0, 0), id="fewer endpoints than zones"),
        pytest.param((1, 1, 1), (2, 1, 1), id="minimums exceed the endpoints"),
    ],
)
def test_infeasible_has_no_matrix(nodes: Sequence[int], endpoints: Sequence[int]) -> None:
    """Without an allocation all clients use all endpoints."""
    zones = len(nodes)
    assert allocated(nodes, endpoints) == (INFEASIBLE, [[0] * zones for _ in range(zones)])


def test_a_larger_threshold_makes_more_feasible() -> None:
    """Four endpoints on three equal zones overload one by a third."""
    assert allocated((1, 1, 1), (2, 1, 1), threshold=0.34)[0] == KUBE_AUTO_ALLOCATED


def test_minimums_are_rounded_as_the_original_rounds() -> None:
    """The share over 1.2, rounded up; where that is a whole number, float rounding may add one."""
    assert [least_endpoints(0.5, total, 0.2) for total in (6, 12, 13)] == [3, 5, 6]
    assert least_endpoints(0.2, 6, 0.2) == 2
    minimums, targets = [0, 0], [0.0, 0.0]
    assert set_targets(2, (0.25, 0.75), 5, 0.2, minimums, targets) == -1
    assert (minimums, targets) == ([2, 4], [2.0, 4.0])


@pytest.mark.parametrize(
    ("surplus", "want_giving", "want_receiving"),
    [
        pytest.param((), (), (), id="no zones"),
        pytest.param((0.5, -0.5), (0, 0), (0, 0), id="two halves move nothing"),
        pytest.param((1.45, -0.45, -0.45), (0, 0, 0), (0, 0, 0), id="needs below one half stay"),
        pytest.param((1.0, -0.5, -0.5), (1, 0, 0), (0, 1, 0), id="of equal needs the first"),
        pytest.param((0.4, -1.6, 1.2), (0, 0, 1), (0, 1, 0), id="less than half stays"),
        pytest.param((0.5, -1.0, 1.5, -1.0), (1, 0, 1, 0), (0, 1, 0, 1), id="half serves a whole"),
        pytest.param((1.0, -0.5, -0.5, 1.0), (1, 0, 0, 1), (0, 1, 1, 0), id="a whole serves half"),
        pytest.param(
            (2.0, -1.0, 2.0, -1.0), (1, 0, 1, 0), (0, 1, 0, 1), id="in turns, first first"
        ),
    ],
)
def test_lending(
    surplus: Sequence[float], want_giving: Sequence[int], want_receiving: Sequence[int]
) -> None:
    """One endpoint at a time goes from the largest surplus to the largest need."""
    counts = [7] * (2 * len(surplus))
    lend_endpoints(len(surplus), list(surplus), counts)
    assert counts == [*want_giving, *want_receiving]


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    data=st.data(),
)
def test_the_controller_writes_what_the_allocator_says(
    nodes: list[int], data: st.DataObject
) -> None:
    """From nothing written, the hints are the matrix, endpoint for endpoint."""
    zones = len(nodes)
    endpoints = data.draw(st.lists(st.integers(0, 12), min_size=zones, max_size=zones))
    names = [f"zone-{number}" for number in range(zones)]
    placed = [name for name, count in zip(names, endpoints, strict=True) for _ in range(count)]
    written = allocate_proportionally(
        SliceSet(
            create=(
                endpoint_slice(
                    *(endpoint(f"10.0.0.{n}", zone=zone) for n, zone in enumerate(placed))
                ),
            )
        ),
        ratios={name: n / sum(nodes) for name, n in zip(names, nodes, strict=True) if n},
        address_type="IPv4",
        populated=True,
    )
    code, matrix = allocated(nodes, endpoints)
    assert (code == KUBE_AUTO_ALLOCATED) == (written.totals is not None)
    hints = Counter(
        (names.index(e.zone or ""), names.index(e.hints.for_zones[0].name))
        for e in written.slices.create[0].endpoints
        if e.hints
    )
    want = {(i, j): n for i, row in enumerate(matrix) for j, n in enumerate(row) if n}
    assert hints == want


def test_compiled_is_the_same_as_plain() -> None:
    """Machine code gives the very same matrices."""
    pytest.importorskip("numba")
    numpy = pytest.importorskip("numpy")
    compiling = pytest.importorskip("keepclose.simulate.compiling")
    compiled = compiling.compile_function(allocate_kube_auto)
    rng = random.Random(5)
    codes = Counter[int]()
    for _ in range(500):
        zones = rng.randint(1, 5)
        nodes = [rng.randint(0, 9) for _ in range(zones - 1)] + [3]
        endpoints = [rng.randint(0, 20) for _ in range(zones)]
        code, rows = allocated(nodes, endpoints)
        matrix = numpy.zeros(zones * zones, dtype=numpy.int64)
        shares = numpy.array(nodes) / sum(nodes)
        ints, floats = numpy.zeros(99, dtype=numpy.int64), numpy.zeros(99)
        counts = numpy.array(endpoints)
        assert compiled(zones, shares, counts, 0.2, 0.0, matrix, ints, floats) == code
        assert matrix.reshape(zones, zones).tolist() == rows
        codes[code] += 1
    assert set(codes) == {KUBE_AUTO_ALLOCATED, INFEASIBLE}
