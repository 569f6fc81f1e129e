"""The allocator "local-weighted" against hand-worked regions and a plain reading of its rules."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.local_weighted import allocate_local_weighted

# Groups as (endpoints by location, weights by zone), without empty groups.
Groups = list[tuple[tuple[int, ...], tuple[float, ...]]]

REGIONS = st.integers(1, 8).flatmap(
    lambda zones: st.tuples(
        st.lists(st.integers(0, 12), min_size=zones, max_size=zones),
        st.lists(st.one_of(st.integers(0, 4), st.integers(0, 120)), min_size=zones, max_size=zones),
    )
)


def divide(nodes: Sequence[int]) -> list[float]:
    """Return each zone's part of the nodes, zeros if there are none."""
    return [count / sum(nodes) if sum(nodes) else 0.0 for count in nodes]


def allocate(nodes: Sequence[int], endpoints: Sequence[int]) -> Groups:
    """Return the groups the allocator makes."""
    zones = len(nodes)
    comp = [-1] * (zones * (3 * zones + 2))
    weight = [math.nan] * (zones * (3 * zones + 2))
    ints = [-1] * (16 * zones + 16)
    floats = [math.nan] * (16 * zones + 16)
    count = allocate_local_weighted(
        zones, divide(nodes), endpoints, 0.5, 3.0, comp, weight, ints, floats
    )
    assert zones <= count <= 3 * zones
    assert not any(math.isnan(attraction) for attraction in weight[: count * zones])
    cells = [slice(group * zones, (group + 1) * zones) for group in range(count)]
    found = [(tuple(comp[row]), tuple(weight[row])) for row in cells]
    return sorted(group for group in found if any(group[0]))


def read_plainly(nodes: Sequence[int], endpoints: Sequence[int]) -> Groups:
    """Return the groups by a plain reading of the rules, named as the reference names them."""
    zones = range(len(nodes))
    shares = divide(nodes)
    total = sum(endpoints)
    groups: dict[str, tuple[list[int], list[float]]] = {}
    available: deque[list[int]] = deque()
    needs: list[tuple[int, int]] = []
    # Entries are (zone, count, weight), and whether the zone itself comes first.
    offers: list[tuple[int, int, float, bool]] = []
    wants: deque[tuple[int, float, float]] = deque()
    for zone in zones:
        expected = total * shares[zone]
        difference = endpoints[zone] - expected
        whole = math.trunc(difference)
        rest = difference - whole
        own = [0 for _ in zones]
        own[zone] = endpoints[zone] if whole < 0 else math.trunc(expected)
        groups[f"local-{zone}"] = (own, [float(other == zone) for other in zones])
        if whole > 0:
            available.append([zone, whole])
        if whole < 0:
            needs.append((zone, -whole))
        if rest > 0:
            offers.append((zone, 1, 1 - rest, True))
        if rest < 0:
            wants.append((zone, 1, -rest))
    for zone, count in needs:
        lacking = count
        while lacking and available:
            moved = min(lacking, available[0][1])
            groups[f"local-{zone}"][0][available[0][0]] += moved
            available[0][1] -= moved
            lacking -= moved
            if not available[0][1]:
                available.popleft()
        if lacking:
            wants.append((zone, lacking, 1.0))
    offers.extend((zone, count, 1.0, False) for zone, count in available)
    for zone, count, weight, at_home in offers:
        label = "shared"
        comp = [0 for _ in zones]
        comp[zone] = count
        weights = [0.0 for _ in zones]
        left = weight
        if at_home:
            weights[zone] = weight
            label += f"-{zone}"
            left = 1 - weight
        while wants:
            taker, number, each = wants[0]
            delta = number * each - count * left
            label += f"-{taker}"
            if delta >= 0:
                weights[taker] += left
                if delta == 0:
                    wants.popleft()
                else:
                    wants[0] = (taker, 1, delta)
                break
            weights[taker] += number * each / count
            left -= weights[taker]
            wants.popleft()
        groups[label] = (comp, weights)
    found = [(tuple(comp), tuple(weights)) for comp, weights in groups.values()]
    return sorted(group for group in found if any(group[0]))


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_groups"),
    [
        pytest.param([1], [5], [((5,), (1,))], id="one zone keeps all"),
        pytest.param([1, 1], [2, 2], [((0, 2), (0, 1)), ((2, 0), (1, 0))], id="even zones"),
        pytest.param(
            [1, 1], [6, 2], [((2, 2), (0, 1)), ((4, 0), (1, 0))], id="whole endpoints move"
        ),
        pytest.param(
            [1, 1],
            [3, 2],
            [((0, 2), (0, 1)), ((1, 0), (0.5, 0.5)), ((2, 0), (1, 0))],
            id="half an endpoint is had by sharing it",
        ),
        pytest.param(
            [1, 1],
            [3, 0],
            [((1, 0), (0, 1)), ((1, 0), (0.5, 0.5)), ((1, 0), (1, 0))],
            id="one and a half are one and a shared one",
        ),
        pytest.param(
            [1, 1, 2],
            [1, 0, 1],
            [((0, 0, 1), (0, 0, 1)), ((1, 0, 0), (0.5, 0.5, 0))],
            id="an endpoint of a zone that expects half of it",
        ),
        pytest.param(
            [1, 1, 2],
            [2, 0, 0],
            [((1, 0, 0), (0, 0, 1)), ((1, 0, 0), (0.5, 0.5, 0))],
            id="a whole need is met before fractions",
        ),
        pytest.param(
            [1, 1, 0],
            [0, 0, 1],
            [((0, 0, 1), (0.5, 0.5, 0))],
            id="what no zone needs as a whole is shared by fractions",
        ),
        pytest.param(
            [1, 1, 2],
            [1, 1, 0],
            [((0, 1, 0), (0, 0.5, 0.5)), ((1, 0, 0), (0.5, 0, 0.5))],
            id="a whole need that fractions meet",
        ),
        pytest.param(
            [3, 9, 10],
            [31, 31, 48],
            [((2, 0, 48), (0, 0, 1)), ((14, 0, 0), (1, 0, 0)), ((14, 31, 0), (0, 1, 0))],
            id="rounding of floats loses an endpoint",
        ),
        pytest.param(
            [0, 0], [2, 3], [((0, 3), (0, 0))], id="of groups that serve nobody the last remains"
        ),
        pytest.param(
            [0, 0, 0],
            [2, 3, 0],
            [((0, 3, 0), (0, 0, 0))],
            id="a zone without endpoints makes no group that serves nobody",
        ),
        pytest.param(
            [0, 2, 2, 1, 3],
            [6, 0, 0, 0, 1],
            [
                ((1, 0, 0, 0, 0), (0, 0, 1, 0, 0)),
                ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0)),
                ((1, 0, 0, 0, 1), (0, 0, 0, 0, 1)),
                ((3, 0, 0, 0, 0), (0, 0.25, 0.25, 0.875 / 3, 1 - 0.25 - 0.25 - 0.875 / 3)),
            ],
            id="who takes the rest of a group exactly gets what is left, not its need divided",
        ),
        pytest.param([1, 1], [0, 0], [], id="no endpoints"),
    ],
)
def test_worked_regions(nodes: list[int], endpoints: list[int], want_groups: Groups) -> None:
    """Groups and their weights come out as worked out by hand."""
    assert allocate(nodes, endpoints) == want_groups


@settings(deadline=None, max_examples=200)
@given(region=REGIONS)
def test_groups_follow_the_rules(region: tuple[list[int], list[int]]) -> None:
    """Any region has the very groups, and to the last bit the weights, that the rules give."""
    nodes, endpoints = region
    assert allocate(nodes, endpoints) == read_plainly(nodes, endpoints)


def test_no_zones() -> None:
    """Without zones there are no groups."""
    assert allocate_local_weighted(0, [], [], 0.5, 3.0, [], [], [0] * 16, [0.0] * 16) == 0
