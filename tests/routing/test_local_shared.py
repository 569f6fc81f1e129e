"""The allocator "local-shared" against hand-worked regions and a plain reading of its rules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepclose.routing.allocation.local_shared import allocate_local_shared

# Groups as (endpoints by location, zones whose clients use them), without empty groups.
Groups = list[tuple[tuple[int, ...], tuple[int, ...]]]

REGIONS = st.integers(1, 8).flatmap(
    lambda zones: st.tuples(
        st.lists(st.integers(0, 12), min_size=zones, max_size=zones),
        st.lists(st.one_of(st.integers(0, 4), st.integers(0, 120)), min_size=zones, max_size=zones),
    )
)


class Heap:
    """A binary heap with the steps of the textbook, whose order is asked anew at each step."""

    def __init__(self, zones: Sequence[int], before: Callable[[int, int], bool]) -> None:
        self.zones = list(zones)
        self.before = before
        for top in range(len(self.zones) // 2 - 1, -1, -1):
            self.sift_down(top)

    def sift_down(self, top: int) -> None:
        """Move a zone down while a child is strictly before it, the left one if both are alike."""
        child = 2 * top + 1
        if child >= len(self.zones):
            return
        if child + 1 < len(self.zones) and self.before(self.zones[child + 1], self.zones[child]):
            child += 1
        if self.before(self.zones[child], self.zones[top]):
            self.zones[child], self.zones[top] = self.zones[top], self.zones[child]
            self.sift_down(child)

    def pop(self) -> int:
        """Return the first zone, after the last one took its place."""
        self.zones[0], self.zones[-1] = self.zones[-1], self.zones[0]
        zone = self.zones.pop()
        self.sift_down(0)
        return zone

    def push(self, zone: int) -> None:
        """Append a zone and move it up while it is strictly before its parent."""
        self.zones.append(zone)
        place = len(self.zones) - 1
        while place and self.before(self.zones[place], self.zones[(place - 1) // 2]):
            parent = (place - 1) // 2
            self.zones[place], self.zones[parent] = self.zones[parent], self.zones[place]
            place = parent


class Region:
    """A plain reading of the rules, one endpoint at a time."""

    def __init__(self, nodes: Sequence[int], endpoints: Sequence[int], threshold: float) -> None:
        self.zones = range(len(nodes))
        self.threshold = threshold
        self.total = sum(endpoints)
        self.shares = [count / sum(nodes) for count in nodes]
        self.expected = [self.total * share for share in self.shares]
        self.endpoints = endpoints
        # The group of each zone, by location; those of zones without endpoints stay empty.
        self.groups = [[0] * len(nodes) for _ in nodes]
        for zone in self.zones:
            self.groups[zone][zone] = endpoints[zone]
        self.givers = Heap(
            [zone for zone in self.zones if endpoints[zone] and self.can_give(zone)],
            lambda a, b: self.shares[a] / (self.size(a) - 1) < self.shares[b] / (self.size(b) - 1),
        )

    def size(self, zone: int) -> int:
        """Return how many endpoints the group of a zone has."""
        return sum(self.groups[zone])

    def is_over(self, zone: int, size: int) -> bool:
        """Tell whether a zone with a group of that size would be at or above the threshold."""
        return self.expected[zone] / size - 1 >= self.threshold

    def can_give(self, zone: int) -> bool:
        """Tell whether a zone may give one endpoint more."""
        return self.size(zone) != 1 and not self.is_over(zone, self.size(zone) - 1)

    def give(self, group: list[int]) -> None:
        """Move an endpoint of the first giver to a group."""
        zone = self.givers.pop()
        self.groups[zone][zone] -= 1
        group[zone] += 1
        if self.can_give(zone):
            self.givers.push(zone)

    def allocate(self) -> Groups | None:
        """Return the groups, or None for one group of everything."""
        urgent = [zone for zone in self.zones if not self.endpoints[zone]]
        others = [zone for zone in self.zones if self.endpoints[zone]]
        lacking = sum((self.expected[zone] for zone in urgent), 0.0)
        merged = [0 for _ in self.zones]
        needs: list[tuple[list[int], int]] = []
        if lacking >= 1:
            needs.append((merged, math.floor(math.ceil(lacking * 1000) / 1000 + 0.5)))
        elif lacking > 0:
            needs.append((merged, math.ceil(lacking)))
        for zone in others:
            difference = self.endpoints[zone] - self.expected[zone]
            if difference <= -1:
                needs.append((self.groups[zone], int(-difference)))
        for group, need in needs:
            for _ in range(need):
                if not self.givers.zones:
                    return None
                self.give(group)

        takers = Heap(
            others,
            lambda a, b: self.shares[b] / self.size(b) < self.shares[a] / self.size(a),
        )
        over = []
        while takers.zones and self.is_over(takers.zones[0], self.size(takers.zones[0])):
            over.append(takers.pop())
        shared = self.relieve(over)
        if shared is None:
            return None

        while self.givers.zones:
            giver = self.givers.zones[0]
            if self.size(giver) - self.expected[giver] < 1:
                break
            # The taker goes back into its heap before the giver has given.
            self.givers.pop()
            taker = takers.pop()
            self.groups[taker][giver] += 1
            takers.push(taker)
            self.groups[giver][giver] -= 1
            if self.can_give(giver):
                self.givers.push(giver)

        found = [(tuple(merged), tuple(urgent)), (tuple(shared), tuple(sorted(over)))]
        found += [
            (tuple(self.groups[zone]), (zone,))
            for zone in others
            if not any(shared) or zone not in over
        ]
        return sorted(group for group in found if any(group[0]))

    def relieve(self, over: Sequence[int]) -> list[int] | None:
        """Return the group that overloaded zones share, empty if none; None if all is in vain."""
        extras: list[int] = [0 for _ in self.zones]
        while sum(extras) < len(over) and self.givers.zones:
            giver = self.givers.zones[0]
            if self.size(giver) - self.expected[giver] < 1:
                break
            self.give(extras)
        if sum(extras) == len(over):
            for zone in over:
                location = next(place for place, count in enumerate(extras) if count)
                extras[location] -= 1
                self.groups[zone][location] += 1
            return extras
        members = sum(self.size(zone) for zone in over)
        while (
            not sum(self.expected[zone] / (sum(extras) + members) for zone in over) - 1
            < self.threshold
        ):
            if not self.givers.zones:
                return None
            self.give(extras)
        for zone in over:
            extras = [a + b for a, b in zip(extras, self.groups[zone], strict=True)]
        return extras


def allocate(
    nodes: Sequence[int], endpoints: Sequence[int], threshold: float = 0.5
) -> Groups | None:
    """Return the groups the allocator makes, or None for one group of everything."""
    zones = len(nodes)
    shares = [count / sum(nodes) if sum(nodes) else 0.0 for count in nodes]
    comp = [-1] * (zones * (3 * zones + 2))
    weight = [math.nan] * (zones * (3 * zones + 2))
    ints = [-1] * (16 * zones + 16)
    floats = [math.nan] * (16 * zones + 16)
    count = allocate_local_shared(
        zones, shares, endpoints, threshold, 3.0, comp, weight, ints, floats
    )
    if count == 0:
        return None
    assert count == zones
    assert set(weight[: count * zones]) <= {0.0, 1.0}
    rows = [range(group * zones, (group + 1) * zones) for group in range(count)]
    found = [
        (
            tuple(comp[cell] for cell in row),
            tuple(zone for zone, cell in enumerate(row) if weight[cell]),
        )
        for row in rows
    ]
    return sorted(group for group in found if any(group[0]))


@pytest.mark.parametrize(
    ("nodes", "endpoints", "want_groups"),
    [
        pytest.param([1, 1, 1], [1, 1, 0], None, id="fewer endpoints than zones stay together"),
        pytest.param([0, 0], [1, 3], None, id="without clients all stay together"),
        pytest.param(
            [1, 1], [4, 4], [((0, 4), (1,)), ((4, 0), (0,))], id="even zones keep their endpoints"
        ),
        pytest.param(
            [1, 1], [6, 2], [((2, 2), (1,)), ((4, 0), (0,))], id="a zone gets what it lacks"
        ),
        pytest.param(
            [1, 1, 2],
            [0, 0, 8],
            [((0, 0, 4), (0, 1)), ((0, 0, 4), (2,))],
            id="zones without endpoints share a group of the size both expect",
        ),
        pytest.param(
            [1, 1, 6],
            [0, 0, 5],
            [((0, 0, 1), (0, 1)), ((0, 0, 4), (2,))],
            id="1.25 expected endpoints are rounded to one",
        ),
        pytest.param(
            [1, 0, 1],
            [3, 0, 3],
            [((0, 0, 3), (2,)), ((3, 0, 0), (0,))],
            id="a zone with neither clients nor endpoints gets nothing",
        ),
        pytest.param(
            [8, 1, 1],
            [1, 1, 1],
            None,
            id="what a zone lacks cannot be given, so all stay together",
        ),
        pytest.param(
            [1, 1], [1, 2], None, id="an overloaded zone that nobody can help, so all stay together"
        ),
        pytest.param(
            [9, 5],
            [4, 1],
            [((1, 1), (1,)), ((3, 0), (0,))],
            id="an overloaded zone gets an endpoint of a zone with less than one to spare",
        ),
        pytest.param(
            [1, 1, 2],
            [1, 4, 2],
            [((0, 1, 2), (2,)), ((0, 2, 0), (1,)), ((1, 1, 0), (0,))],
            id="an overloaded zone gets one endpoint, and one more goes to the most loaded zone",
        ),
        pytest.param(
            [1, 1, 1, 2],
            [1, 1, 4, 3],
            [
                ((0, 0, 0, 3), (3,)),
                ((0, 0, 2, 0), (2,)),
                ((0, 1, 1, 0), (1,)),
                ((1, 0, 1, 0), (0,)),
            ],
            id="two overloaded zones get one endpoint each",
        ),
        pytest.param(
            [1, 1, 1],
            [1, 1, 3],
            [((0, 0, 2), (2,)), ((1, 1, 1), (0, 1))],
            id="two overloaded zones share a group with the one endpoint to spare",
        ),
        pytest.param(
            [1, 1, 1, 1],
            [1, 1, 1, 4],
            [((0, 0, 0, 2), (3,)), ((1, 1, 1, 2), (0, 1, 2))],
            id="three overloaded zones share a group with both endpoints to spare",
        ),
        pytest.param(
            [5, 5, 5, 6],
            [1, 1, 1, 4],
            [((0, 0, 0, 2), (3,)), ((1, 1, 1, 2), (0, 1, 2))],
            id="exactly one endpoint beyond the expectation can be spared",
        ),
        pytest.param(
            [6, 11, 11, 8],
            [1, 2, 2, 4],
            [
                ((0, 0, 0, 2), (3,)),
                ((0, 0, 2, 0), (2,)),
                ((0, 2, 0, 1), (1,)),
                ((1, 0, 0, 1), (0,)),
            ],
            id="an overloaded zone gets no more than one endpoint, even if there are two to spare",
        ),
        pytest.param(
            [0, 1, 1, 1],
            [2, 1, 1, 1],
            [((1, 0, 0, 0), (0,)), ((1, 1, 1, 1), (1, 2, 3))],
            id="the last endpoint of a zone without clients is not given",
        ),
        pytest.param(
            [8, 3, 3],
            [3, 2, 2],
            None,
            id="what a zone lacks without overload cannot be given, so all stay together",
        ),
    ],
)
def test_worked_regions(nodes: list[int], endpoints: list[int], want_groups: Groups | None) -> None:
    """Groups come out as worked out by hand."""
    assert allocate(nodes, endpoints) == want_groups


@pytest.mark.parametrize(
    ("threshold", "want_groups"),
    [
        pytest.param(0.5, [((0, 0, 2), (2,)), ((1, 1, 1), (0, 1))], id="at or above half is over"),
        pytest.param(
            0.7, [((0, 0, 2), (2,)), ((0, 1, 0), (1,)), ((1, 0, 1), (0,))], id="a higher threshold"
        ),
        pytest.param(0.0, None, id="all endpoints together are at the threshold"),
        pytest.param(-2.0, None, id="a threshold nobody can keep"),
        pytest.param(
            math.nan, [((0, 0, 2), (2,)), ((0, 1, 0), (1,)), ((1, 0, 1), (0,))], id="none"
        ),
    ],
)
def test_threshold_decides_who_is_over(threshold: float, want_groups: Groups | None) -> None:
    """Zones two thirds above their load share a group only where that is too much for them."""
    assert allocate([1, 1, 1], [1, 1, 3], threshold) == want_groups


@settings(deadline=None, max_examples=200)
@given(region=REGIONS, threshold=st.sampled_from([0.5, 0.5, 0.5, 0.25, 1.0]))
@example(region=([30, 30, 30], [100, 303, 996]), threshold=0.5)
@example(region=([1, 1, 1], [40, 51, 60]), threshold=0.5)
@example(region=([2, 1, 1], [3, 40, 41]), threshold=0.5)
@example(region=([6, 3, 5, 4], [0, 100, 100, 100]), threshold=0.5)
def test_groups_are_those_of_single_steps(
    region: tuple[list[int], list[int]], threshold: float
) -> None:
    """Moving many endpoints at once comes to the groups that single steps of the heaps make."""
    nodes, endpoints = region
    want_groups: Groups | None = None
    if sum(nodes) and sum(endpoints) >= len(nodes):
        want_groups = Region(nodes, endpoints, threshold).allocate()
    assert allocate(nodes, endpoints, threshold) == want_groups


@settings(deadline=None, max_examples=200)
@given(
    region=st.integers(1, 5).flatmap(
        lambda zones: st.tuples(
            st.lists(
                st.one_of(st.integers(0, 4), st.integers(0, 640).map(lambda power: 10**power)),
                min_size=zones,
                max_size=zones,
            ),
            st.lists(st.integers(0, 40), min_size=zones, max_size=zones),
        )
    )
)
@example(region=([1, 10**300, 10**13], [100, 1, 1000]))
@example(region=([2, 10**309, 1], [8, 2, 9999]))
@example(region=([1, 10**323, 1, 3 * 10**323], [40, 1, 40, 3]))
def test_tiny_shares_are_allocated_by_the_same_steps(region: tuple[list[int], list[int]]) -> None:
    """Shares down to the smallest double there is give the groups of single steps, too."""
    nodes, endpoints = region
    want_groups: Groups | None = None
    if sum(nodes) and sum(endpoints) >= len(nodes):
        want_groups = Region(nodes, endpoints, 0.5).allocate()
    assert allocate(nodes, endpoints) == want_groups


def test_equal_and_multiple_shares_are_those_of_single_steps() -> None:
    """Ties of the keys, which equal or multiple shares bring about, are settled alike."""
    rng = random.Random(11)
    allocated = 0
    for _ in range(1500):
        zones = rng.randint(2, 4)
        nodes = [rng.choice([1, 1, 2, 3, 4]) for _ in range(zones)]
        endpoints = [rng.choice([0, rng.randint(1, 60), rng.randint(50, 60)]) for _ in nodes]
        if sum(endpoints) >= zones:
            want_groups = Region(nodes, endpoints, 0.5).allocate()
            assert allocate(nodes, endpoints) == want_groups
            allocated += want_groups is not None
    assert allocated > 1000
