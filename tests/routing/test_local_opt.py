"""The allocator "local-opt" against hand-worked regions and a plain reading of its rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.local_opt import allocate_local_opt

REGIONS = st.integers(1, 8).flatmap(
    lambda zones: st.tuples(
        st.lists(st.integers(0, 12), min_size=zones, max_size=zones),
        st.lists(st.one_of(st.integers(0, 4), st.integers(0, 120)), min_size=zones, max_size=zones),
    )
)


def divide(nodes: Sequence[int]) -> list[float]:
    """Return each zone's part of the nodes, zeros if there are none."""
    return [count / sum(nodes) if sum(nodes) else 0.0 for count in nodes]


def allocate(nodes: Sequence[int], endpoints: Sequence[int]) -> list[list[int]]:
    """Return the group of each zone and, if there is one, the global group, by location."""
    zones = len(nodes)
    comp = [-1] * (zones * (3 * zones + 2))
    weight = [math.nan] * (zones * (3 * zones + 2))
    ints = [-1] * (16 * zones + 16)
    count = allocate_local_opt(zones, divide(nodes), endpoints, 0.5, 3.0, comp, weight, ints, [])
    assert zones <= count <= zones + 1
    for zone in range(zones):
        want_weights = [float(other == zone) for other in range(zones)]
        assert weight[zone * zones : (zone + 1) * zones] == want_weights
    if count > zones:
        assert weight[zones * zones : count * zones] == [1 / zones] * zones
    return [comp[group * zones : (group + 1) * zones] for group in range(count)]


def read_plainly(nodes: Sequence[int], endpoints: Sequence[int]) -> list[list[int]]:
    """Return the groups by a plain reading of the rules, one endpoint at a time."""
    zones = range(len(nodes))
    total = sum(endpoints)
    groups = [[0 for _ in zones] for _ in zones]
    available: list[int] = []
    needs: list[int] = []
    for zone, share in enumerate(divide(nodes)):
        difference = endpoints[zone] - total * share
        groups[zone][zone] = math.trunc(total * share) if difference > 0 else endpoints[zone]
        if difference > 0:
            available += [zone] * math.ceil(difference)
        else:
            needs += [zone] * math.trunc(-difference)
    for taker, location in zip(needs, available, strict=False):
        groups[taker][location] += 1
    left = available[len(needs) :]
    return [*groups, [left.count(zone) for zone in zones]] if left else groups


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_groups"),
    [
        pytest.param([1, 1], [2, 2], [[2, 0], [0, 2]], id="even zones need no global group"),
        pytest.param([1, 1], [6, 2], [[4, 0], [2, 2]], id="whole endpoints move"),
        pytest.param(
            [1, 1], [3, 2], [[2, 0], [0, 2], [1, 0]], id="a started endpoint is left for everyone"
        ),
        pytest.param(
            [1, 1, 2],
            [4, 4, 0],
            [[2, 0, 0], [0, 2, 0], [2, 2, 0]],
            id="a zone in need draws on zones in order",
        ),
        pytest.param(
            [1, 2, 2],
            [9, 0, 1],
            [[2, 0, 0], [4, 0, 0], [3, 0, 1]],
            id="zones in need come in order",
        ),
        pytest.param(
            [0, 1], [1, 1], [[0, 0], [1, 1]], id="a zone without clients gives all it has"
        ),
        pytest.param(
            [3, 9, 10],
            [36, 31, 43],
            [[14, 0, 0], [14, 31, 0], [7, 0, 43]],
            id="rounding of floats loses an endpoint",
        ),
        pytest.param([0, 0], [1, 2], [[0, 0], [0, 0], [1, 2]], id="without clients all is global"),
        pytest.param([1, 1], [0, 0], [[0, 0], [0, 0]], id="no endpoints"),
    ],
)
def test_worked_regions(
    nodes: list[int], endpoints: list[int], want_groups: list[list[int]]
) -> None:
    """Groups come out as worked out by hand."""
    assert allocate(nodes, endpoints) == want_groups


@settings(deadline=None, max_examples=200)
@given(region=REGIONS)
def test_groups_follow_the_rules(region: tuple[list[int], list[int]]) -> None:
    """Any region has the groups that giving one endpoint at a time makes."""
    nodes, endpoints = region
    assert allocate(nodes, endpoints) == read_plainly(nodes, endpoints)


def test_what_nobody_has_is_not_given() -> None:
    """Zones that lack more than all others offer draw on nothing but the offers."""
    comp, weight, ints = [-1] * 8, [math.nan] * 8, [7] * 48

    count = allocate_local_opt(2, [1.0, 1.0], [1, 3], 0.5, 3.0, comp, weight, ints, [])

    assert (count, comp[:4], weight[:4]) == (2, [1, 0, 0, 3], [1.0, 0.0, 0.0, 1.0])


def test_no_zones() -> None:
    """Without zones there are no groups."""
    assert allocate_local_opt(0, [], [], 0.5, 3.0, [], [], [], []) == 0
