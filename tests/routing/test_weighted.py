"""Allocation with weights: shares are met exactly and nobody is overloaded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.weighted import (
    IMPOSSIBLE,
    WEIGHTED,
    evaluate_weighted,
    weighted_matrix,
)


def flows_of(nodes: Sequence[int], endpoints: Sequence[int]) -> tuple[int, list[list[float]]]:
    """Return the code and the rows of the flows."""
    zones = len(nodes)
    shares = [count / sum(nodes) for count in nodes] if any(nodes) else [0.0] * zones
    flows = [9.0] * zones**2
    code = weighted_matrix(zones, shares, endpoints, flows)
    return code, [flows[row * zones : (row + 1) * zones] for row in range(zones)]


def test_surplus_is_divided_by_what_others_lack() -> None:
    """Zone a has 7 of 10 and wants 2.5; b lacks 3 and c lacks 1.5."""
    code, flows = flows_of((2, 4, 2), (7, 2, 1))
    assert code == WEIGHTED
    assert flows == [[2.5, 3.0, 1.5], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]


def test_zones_with_what_they_expect_keep_it() -> None:
    """Where nobody lacks anything, every endpoint serves its own zone."""
    assert flows_of((1, 1), (2, 2)) == (WEIGHTED, [[2.0, 0.0], [0.0, 2.0]])


def test_a_zone_without_endpoints_has_no_load() -> None:
    """Figures are those of the endpoints there are."""
    out = [9.0] * 7
    assert evaluate_weighted(2, (0.5, 0.5), (2, 0), (1.0, 1.0, 0.0, 0.0), out) == 1
    assert out == [0.5, 0.0, 0.0, 0.0, 0.0, 1, 1]


@pytest.mark.parametrize(
    ("nodes", "endpoints"),
    [
        pytest.param((), (), id="no zones"),
        pytest.param((1, 1), (0, 0), id="no endpoints"),
        pytest.param((0, 0), (3, 1), id="no traffic"),
    ],
)
def test_nothing_to_divide(nodes: Sequence[int], endpoints: Sequence[int]) -> None:
    """Without endpoints or traffic there are no flows."""
    zones = len(nodes)
    assert flows_of(nodes, endpoints) == (IMPOSSIBLE, [[0.0] * zones for _ in range(zones)])


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    data=st.data(),
)
def test_shares_are_met_and_nobody_is_overloaded(nodes: list[int], data: st.DataObject) -> None:
    """Each zone gets its share, every endpoint is used up, and in-zone traffic is at its limit."""
    zones = len(nodes)
    endpoints = data.draw(
        st.lists(st.integers(0, 30), min_size=zones, max_size=zones).filter(lambda e: sum(e) > 0)
    )
    total = sum(endpoints)
    shares = [count / sum(nodes) for count in nodes]
    code, flows = flows_of(nodes, endpoints)
    assert code == WEIGHTED
    assert [sum(row) for row in flows] == pytest.approx(endpoints)
    columns = [sum(row[zone] for row in flows) for zone in range(zones)]
    assert columns == pytest.approx([total * share for share in shares])
    out = [9.0] * 7
    flat = [flow for row in flows for flow in row]
    assert evaluate_weighted(zones, shares, endpoints, flat, out) == 1
    limit = sum(min(r, e / total) for r, e in zip(shares, endpoints, strict=True))
    assert out == pytest.approx([limit, 0, 0, 0, 0, 1 + (total > 100), 1 + (total > 100)], abs=1e-7)


def test_figures_of_uneven_flows() -> None:
    """Endpoints of one place carry the same load, whomever they serve."""
    out = [0.0] * 7
    # All of zone a goes to the 3 endpoints of a; zone b divides evenly between both places.
    assert evaluate_weighted(2, (0.5, 0.5), (3, 1), (1.0, 1.0, 0.0, 1.0), out) == 1
    # a: 0.75 of the traffic on 3 of 4 endpoints; b: 0.25 on one.
    assert out == [0.75, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert evaluate_weighted(2, (0.5, 0.5), (3, 1), (1.0, 0.0, 0.0, 1.0), out) == 1
    # a: 0.5 on 3 of 4, a third too little; b: 0.5 on one, double.
    assert out[:3] == pytest.approx([1.0, 1.0, 0.5])
    assert out[3] == pytest.approx((0.25 * (3 * (-1 / 3 - 0.5) ** 2 + 0.5**2)) ** 0.5)
    assert out[4] == pytest.approx((0.25 * (3 / 9 + 1)) ** 0.5)


def test_a_zone_that_nothing_serves_uses_everything() -> None:
    """As proxies do when nothing is meant for their zone; no endpoints at all have no figures."""
    out = [0.0] * 7
    assert evaluate_weighted(2, (0.5, 0.5), (60, 60), (0.0, 0.0, 0.0, 60.0), out) == 1
    assert out[0] == pytest.approx(0.75)
    assert out[1:3] == pytest.approx([0.5, 0.5])
    assert out[5:] == [2.0, 2.0]
    assert evaluate_weighted(1, (1.0,), (0,), (0.0,), out) == 0


def test_compiled_is_the_same_as_plain() -> None:
    """Machine code gives the very same flows and figures."""
    pytest.importorskip("numba")
    numpy = pytest.importorskip("numpy")
    compiling = pytest.importorskip("keepclose.simulate.compiling")
    fill = compiling.compile_function(weighted_matrix)
    evaluate = compiling.compile_function(evaluate_weighted)
    rng = random.Random(5)
    for _ in range(200):
        nodes = [rng.randint(1, 9) for _ in range(3)]
        endpoints = [rng.randint(0, 20) for _ in range(3)]
        shares = [count / sum(nodes) for count in nodes]
        flows, out = [0.0] * 9, [0.0] * 7
        flow_array, out_array = numpy.zeros(9), numpy.zeros(7)
        arrays = (numpy.array(shares), numpy.array(endpoints))
        assert fill(3, *arrays, flow_array) == weighted_matrix(3, shares, endpoints, flows)
        assert flow_array.tolist() == flows
        want = evaluate_weighted(3, shares, endpoints, flows, out)
        assert evaluate(3, *arrays, flow_array, out_array) == want
        assert out_array.tolist() == out
