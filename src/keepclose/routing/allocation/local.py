"""The allocator "local" of KEP-2004: whole endpoints, each in the group of exactly one zone.

Every endpoint starts in the group of its own zone. Zones that can spare endpoints give them, first
to zones at or above the overload threshold, then to zones that lack a whole endpoint or more. When
a zone stays at or above the threshold, there is no allocation at all. The result is, endpoint for
endpoint, that of the reference simulator of the proposal: the order of every float operation and
every step of its binary heaps decide ties, so neither may be rearranged or "repaired".
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from enum import StrEnum
from typing import Final

import msgspec

ALLOCATED: Final = 1
BELOW_START: Final = 0
DOWNGRADED: Final = -1


class Outcome(StrEnum):
    """What the allocator came to."""

    ALLOCATED = "Allocated"
    BELOW_START = "BelowStart"
    DOWNGRADED = "Downgraded"


class Allocation(msgspec.Struct, frozen=True):
    """An allocation; `matrix[i][j]` endpoints located in zone i serve the clients of zone j.

    The matrix is all zeros unless the outcome is ALLOCATED: all clients then use all endpoints.
    """

    outcome: Outcome
    matrix: tuple[tuple[int, ...], ...]


_OUTCOMES = {
    ALLOCATED: Outcome.ALLOCATED,
    BELOW_START: Outcome.BELOW_START,
    DOWNGRADED: Outcome.DOWNGRADED,
}


def local(
    shares: Sequence[float],
    endpoints: Sequence[int],
    *,
    threshold: float = 0.5,
    start_per_zone: float = 3,
) -> Allocation:
    """Return the allocation for zones in the order of their names; no zones give BELOW_START.

    `start_per_zone` 0 allocates however few endpoints there are. Negative counts count as 0, and a
    zone that stands in only one of the two sequences is left out.
    """
    zones = min(len(shares), len(endpoints))
    counts = [max(0, count) for count in endpoints[:zones]]
    matrix = [0] * (zones * zones)
    code = allocate_local(
        zones, shares, counts, threshold, start_per_zone, matrix, [0] * zones, [0] * zones
    )
    rows = tuple(tuple(matrix[row * zones : (row + 1) * zones]) for row in range(zones))
    return Allocation(_OUTCOMES[code], rows)


def allocate_local(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,
    start_per_zone: float,
    matrix: MutableSequence[int],
    heap_a: MutableSequence[int],
    heap_b: MutableSequence[int],
) -> int:
    """Fill the flat matrix (location times zones plus served zone); return one of the three codes.

    Zones come in name order; `heap_a` and `heap_b` are scratch space for one integer per zone. The
    matrix is all zeros unless ALLOCATED is returned. Endpoints must not be negative.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    for cell in range(zones * zones):
        matrix[cell] = 0
    if zones == 0 or total < start_per_zone * zones:
        return BELOW_START

    # NB: until the end the diagonal holds the size of each group, not the zone's own endpoints in
    # it. A zone that has to take (over the threshold) can never give (under it with one less).
    diagonal = zones + 1
    givers = 0
    takers = 0
    for zone in range(zones):
        size = endpoints[zone]
        expected = total * shares[zone]
        matrix[zone * diagonal] = size
        if expected > 0.0 if size == 0 else expected / size - 1.0 >= threshold:
            heap_b[takers] = zone
            takers += 1
        elif size > 1 and not expected / (size - 1) - 1.0 >= threshold:
            heap_a[givers] = zone
            givers += 1

    # Round one: the zone with the highest load takes until it is below the threshold, each time
    # from the zone with the least load after giving. Round two (balancing): the zone with the least
    # load after giving gives all it has beyond its expectation to the most loaded of all zones.
    balancing = False
    ordered_a = False
    ordered_b = False
    giver = -1
    taker = -1
    surplus = 0.0
    deficit = 0.0
    while True:
        if taker < 0 and takers == 0:
            balancing = True
            ordered_b = False
            takers = zones
            for zone in range(zones):
                heap_b[zone] = zone

        if taker < 0 or giver < 0:
            giving = taker >= 0
            heap = heap_a if giving else heap_b
            length = givers if giving else takers
            if length == 0:
                break
            # An unordered heap is built by sifting from its last parent to its top; popping swaps
            # the top with the last entry and sifts the new top.
            ordered = ordered_a if giving else ordered_b
            start = length // 2 - 1
            if ordered:
                length -= 1
                heap[0], heap[length] = heap[length], heap[0]
                start = 0
            # NB: keys are read from the sizes of now and entries are not moved when their size
            # changes, so the order may be stale; the reference has the same trait. The least key
            # stands first: r/(n-1) for givers, -r/n for takers, and empty takers before all others.
            # A giver has two endpoints or more, hence the divisor is never 0 for givers.
            sign = 1.0 if giving else -1.0
            less = 1 if giving else 0
            for top in range(start, -1, -1):
                parent = top
                while 2 * parent + 1 < length:
                    child = 2 * parent + 1
                    divisor = matrix[heap[child] * diagonal] - less
                    key = -math.inf if divisor == 0 else sign * shares[heap[child]] / divisor
                    if child + 1 < length:
                        divisor = matrix[heap[child + 1] * diagonal] - less
                        other = (
                            -math.inf if divisor == 0 else sign * shares[heap[child + 1]] / divisor
                        )
                        if other < key:
                            child += 1
                            key = other
                    divisor = matrix[heap[parent] * diagonal] - less
                    other = -math.inf if divisor == 0 else sign * shares[heap[parent]] / divisor
                    if not key < other:
                        break
                    heap[child], heap[parent] = heap[parent], heap[child]
                    parent = child
            if not ordered:
                ordered_a = ordered_a or giving
                ordered_b = ordered_b or not giving
                continue
            zone = heap[length]
            spare = matrix[zone * diagonal] - total * shares[zone]
            if giving:
                givers = length
                giver = zone
                surplus = spare
                if balancing and surplus < 1.0:
                    break
            else:
                takers = length
                taker = zone
                deficit = spare
                if balancing and deficit > -1.0:
                    break
            continue

        moved = 1
        if balancing:
            moved = 0
            while surplus >= 1.0 and deficit <= -1.0:
                surplus -= 1.0
                deficit += 1.0
                moved += 1
        matrix[giver * diagonal] -= moved
        matrix[taker * diagonal] += moved
        matrix[giver * zones + taker] += moved

        # Whoever goes back into a heap is appended to it and sifted up.
        if balancing:
            back = taker
            taker = -1
            if surplus < 1.0:
                giver = -1
        else:
            size = matrix[taker * diagonal]
            if not total * shares[taker] / size - 1.0 >= threshold:
                taker = -1
            back = giver
            giver = -1
            size = matrix[back * diagonal]
            if not (size > 1 and not total * shares[back] / (size - 1) - 1.0 >= threshold):
                continue
        heap = heap_b if balancing else heap_a
        sign = -1.0 if balancing else 1.0
        less = 0 if balancing else 1
        child = takers if balancing else givers
        if balancing:
            takers += 1
        else:
            givers += 1
        heap[child] = back
        while child > 0:
            parent = (child - 1) // 2
            divisor = matrix[heap[child] * diagonal] - less
            key = -math.inf if divisor == 0 else sign * shares[heap[child]] / divisor
            divisor = matrix[heap[parent] * diagonal] - less
            other = -math.inf if divisor == 0 else sign * shares[heap[parent]] / divisor
            if not key < other:
                break
            heap[child], heap[parent] = heap[parent], heap[child]
            child = parent

    if not balancing:
        for cell in range(zones * zones):
            matrix[cell] = 0
        return DOWNGRADED
    for zone in range(zones):
        for location in range(zones):
            if location != zone:
                matrix[zone * diagonal] -= matrix[location * zones + zone]
    return ALLOCATED
