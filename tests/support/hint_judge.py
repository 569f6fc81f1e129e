"""Judges of hints by brute force: every assignment is tried, and weighed endpoint by endpoint.

They share no code with the allocator. The functions over flat arrays are plain, so that a test can
compile them; hints of an endpoint are a bit mask of zones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any

IN_ZONE, LARGEST, MEAN = 45.0, 20.0, 20.0
TOLERANCE = 1e-9
Rows = Sequence[Mapping[tuple[int, ...], int]]


def divide(nodes: Sequence[int]) -> list[float]:
    """Return each zone's part of the nodes; zeros without nodes."""
    return [count / max(1, sum(nodes)) for count in nodes]


def placements(zones: int, fewest: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to place so many endpoints in zones, none left out."""
    for counts in itertools.product(range(most + 1), repeat=zones):
        if fewest <= sum(counts) <= most:
            yield counts


def patterns(zones: int, most: int) -> list[tuple[int, ...]]:
    """Return all different nodes by zone in ascending order, with up to so many in a zone."""
    return [
        nodes
        for nodes in itertools.combinations_with_replacement(range(most + 1), zones)
        if math.gcd(*nodes) == 1
    ]


def figures(shares: Sequence[float], rows: Rows) -> tuple[float, float, float]:
    """Return in-zone traffic, largest overload and mean deviation of hints by location.

    The clients of a zone divide among the endpoints with a hint for it; they use all endpoints if
    there is none.
    """
    zones = range(len(shares))
    endpoints = [
        (location, served)
        for location, row in enumerate(rows)
        for served, number in row.items()
        for _ in range(number)
    ]
    total = len(endpoints)
    loads = [0.0] * total
    in_zone = 0.0
    for zone in zones:
        used = [number for number, (_, served) in enumerate(endpoints) if zone in served]
        used = used or list(range(total))
        for number in used:
            loads[number] += total * shares[zone] / len(used)
            in_zone += shares[zone] / len(used) if endpoints[number][0] == zone else 0.0
    largest = max(0.0, *(load - 1.0 for load in loads))
    return in_zone, largest, sum(abs(load - 1.0) for load in loads) / total


def weigh(shares: Sequence[float], rows: Rows) -> float:
    """Return the objective of hints by location."""
    in_zone, largest, mean = figures(shares, rows)
    return IN_ZONE * in_zone - LARGEST * largest - MEAN * mean


def weigh_together(shares: Sequence[float], endpoints: Sequence[int]) -> float:
    """Return the objective if all clients use all endpoints."""
    own = sum(share * count for share, count in zip(shares, endpoints, strict=True))
    return IN_ZONE * own / sum(endpoints)


def own_zones(endpoints: Sequence[int]) -> list[dict[tuple[int, ...], int]]:
    """Return the hints of PreferSameZone."""
    return [{(zone,): count} if count else {} for zone, count in enumerate(endpoints)]


def all_sizes(zones: Sequence[int], total: int) -> Iterator[dict[int, int]]:
    """Yield every division of the endpoints among these zones, at least one for each."""
    for cuts in itertools.combinations(range(1, total), len(zones) - 1):
        edges = (0, *cuts, total)
        yield {zone: edges[at + 1] - edges[at] for at, zone in enumerate(zones)}


def kept_bound(shares: Sequence[float], total: int, bound: float = 0.2) -> float:
    """Return the bound, or the least overload of a division among all zones with traffic."""
    busy = [zone for zone, share in enumerate(shares) if share > 0]
    if total < len(busy):
        return math.inf
    least = min(
        max(total * shares[zone] / size - 1.0 for zone, size in sizes.items())
        for sizes in all_sizes(busy, total)
    )
    return max(bound, least)


def best_division(
    shares: Sequence[float],
    endpoints: Sequence[int],
    left: Sequence[int],
    bound: float,
    weights: tuple[float, float, float] = (IN_ZONE, LARGEST, MEAN),
) -> float:
    """Return the best objective if each endpoint serves one zone and `left` use all endpoints."""
    total = sum(endpoints)
    served = [zone for zone, share in enumerate(shares) if share > 0 and zone not in left]
    everywhere = sum(shares[zone] for zone in left)
    fixed = sum(shares[zone] * endpoints[zone] / total for zone in left)
    best = -math.inf
    for sizes in all_sizes(served, total) if served else ():
        loads = {zone: total * shares[zone] / n + everywhere - 1.0 for zone, n in sizes.items()}
        largest = max(0.0, *loads.values())
        mean = sum(n * abs(loads[zone]) for zone, n in sizes.items()) / total
        own = sum(shares[zone] * min(endpoints[zone], n) / n for zone, n in sizes.items())
        if largest <= bound + TOLERANCE:
            best = max(best, weights[0] * (fixed + own) - weights[1] * largest - weights[2] * mean)
    return best


def search_by_endpoint(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    places: Sequence[int],
    bound: float,
    sets: MutableSequence[int],
    sizes: MutableSequence[int],
) -> float:
    """Return the best objective over all hints of endpoints at these places; -inf if none keeps it.

    Endpoints of one location are interchangeable, so their sets are tried in ascending order.
    """
    total = len(places)
    best = -math.inf
    for number in range(total):
        sets[number] = 1
    while True:
        for zone in range(zones):
            sizes[zone] = 0
        for number in range(total):
            for zone in range(zones):
                sizes[zone] += sets[number] >> zone & 1
        in_zone = 0.0
        largest = 0.0
        mean = 0.0
        for number in range(total):
            load = 0.0
            for zone in range(zones):
                part = 0.0
                if sizes[zone] == 0:
                    part = shares[zone] / total
                elif sets[number] >> zone & 1:
                    part = shares[zone] / sizes[zone]
                load += part
                if zone == places[number]:
                    in_zone += part
            largest = max(largest, total * load - 1.0)
            mean += abs(total * load - 1.0) / total
        value = 45.0 * in_zone - 20.0 * largest - 20.0 * mean
        if largest <= bound + 1e-9 and value > best:
            best = value
        number = total - 1
        while number >= 0 and sets[number] == (1 << zones) - 1:
            number -= 1
        if number < 0:
            return best
        raised = sets[number] + 1
        for other in range(number, total):
            is_same = places[other] == places[number]
            sets[other] = raised if is_same else 1


def search_by_count(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    sets: MutableSequence[int],
    counts: MutableSequence[int],
    sizes: MutableSequence[int],
    own: MutableSequence[int],
) -> float:
    """Return the same for more endpoints: how many have each set, then how many are at home.

    `own` endpoints of each zone can be in sets with their zone if, for all zones together and for
    each part of them, there are as many endpoints whose sets meet that part.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    full = (1 << zones) - 1
    best = -math.inf
    for number in range(total):
        sets[number] = 1
    while True:
        for mask in range(full + 1):
            counts[mask] = 0
        for number in range(total):
            counts[sets[number]] += 1
        everywhere = 0.0
        fixed = 0.0
        most = 0.0
        for zone in range(zones):
            sizes[zone] = 0
            for mask in range(full + 1):
                if mask >> zone & 1:
                    sizes[zone] += counts[mask]
            if sizes[zone] == 0:
                everywhere += shares[zone]
                fixed += shares[zone] * endpoints[zone] / total
            else:
                most += shares[zone] * min(endpoints[zone], sizes[zone]) / sizes[zone]
        largest = 0.0
        mean = 0.0
        for mask in range(1, full + 1):
            if counts[mask] > 0:
                load = everywhere
                for zone in range(zones):
                    if mask >> zone & 1:
                        load += total * shares[zone] / sizes[zone]
                largest = max(largest, load - 1.0)
                mean += counts[mask] * abs(load - 1.0) / total
        cost = 20.0 * largest + 20.0 * mean
        if largest <= bound + 1e-9 and 45.0 * (fixed + most) - cost > best:
            for zone in range(zones):
                own[zone] = 0
            is_done = False
            while not is_done:
                is_possible = True
                in_zone = fixed
                for zone in range(zones):
                    if own[zone] > 0:
                        in_zone += shares[zone] * own[zone] / sizes[zone]
                if 45.0 * in_zone - cost > best:
                    for part in range(1, full + 1):
                        needed = 0
                        meeting = 0
                        for zone in range(zones):
                            needed += own[zone] if part >> zone & 1 else 0
                        for mask in range(1, full + 1):
                            meeting += counts[mask] if mask & part else 0
                        is_possible = is_possible and needed <= meeting
                    if is_possible:
                        best = 45.0 * in_zone - cost
                zone = zones - 1
                while zone >= 0 and own[zone] == min(endpoints[zone], sizes[zone]):
                    own[zone] = 0
                    zone -= 1
                is_done = zone < 0
                if zone >= 0:
                    own[zone] += 1
        number = total - 1
        while number >= 0 and sets[number] == full:
            number -= 1
        if number < 0:
            return best
        raised = sets[number] + 1
        for other in range(number, total):
            sets[other] = raised


def run_by_endpoint(
    judge: Callable[..., float], shares: Sequence[float], endpoints: Sequence[int], bound: float
) -> float:
    """Call a compiled `search_by_endpoint`."""
    import numpy as np  # noqa: PLC0415 - only tests with the compiler need it

    places = [zone for zone, count in enumerate(endpoints) for _ in range(count)]
    room: list[Any] = [np.zeros(size, np.int64) for size in (len(places), len(shares))]
    return judge(len(shares), np.array(shares), np.array(places), bound, *room)


def run_by_count(
    judge: Callable[..., float], shares: Sequence[float], endpoints: Sequence[int], bound: float
) -> float:
    """Call a compiled `search_by_count`."""
    import numpy as np  # noqa: PLC0415 - only tests with the compiler need it

    zones = len(shares)
    sizes = (sum(endpoints), 1 << zones, zones, zones)
    room: list[Any] = [np.zeros(size, np.int64) for size in sizes]
    return judge(zones, np.array(shares), np.array(endpoints), bound, *room)
