"""The allocator "local" of KEP-2004: whole endpoints, each in the group of exactly one zone.

Every endpoint starts in the group of its own zone. Zones with a surplus give endpoints, first to
zones at or above the overload threshold, then to zones that lack a whole endpoint or more. If a
zone stays at or above the threshold, there is no allocation. Endpoint for endpoint the result is
that of the reference simulator of the proposal, in which floats and the steps of binary heaps
decide ties: no comparison and no step may be rearranged or "repaired". Endpoints that would move
one by one move at once where the outcome of the single steps is known.

The zones of a heap are in `ints` from `heap` on, the key of zone z is `floats[keys + z]`, and the
least key comes first. A zone whose key changes inside the heap keeps its place, so the heap may be
out of order; the reference has the same property, and it decides allocations.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from enum import StrEnum
from typing import Final

import msgspec

LOCAL_ALLOCATED: Final = 1
BELOW_START: Final = 0
DOWNGRADED: Final = -1


def order_heap(
    ints: MutableSequence[int], heap: int, length: int, floats: Sequence[float], keys: int
) -> None:
    """Turn the first `length` zones into a heap."""
    for top in range(length // 2 - 1, -1, -1):
        _sift_down(ints, heap, length, top, floats, keys)


def pop_heap(
    ints: MutableSequence[int], heap: int, length: int, floats: Sequence[float], keys: int
) -> int:
    """Move the first zone of a heap behind the new end; return the new length."""
    length -= 1
    ints[heap], ints[heap + length] = ints[heap + length], ints[heap]
    _sift_down(ints, heap, length, 0, floats, keys)
    return length


def push_heap(
    ints: MutableSequence[int], heap: int, length: int, floats: Sequence[float], keys: int
) -> None:
    """Add the zone just behind the end of a heap to the heap."""
    child = length
    while child > 0:
        parent = (child - 1) // 2
        zone = ints[heap + child]
        above = ints[heap + parent]
        if not floats[keys + zone] < floats[keys + above]:
            break
        ints[heap + child] = above
        ints[heap + parent] = zone
        child = parent


def _sift_down(  # noqa: PLR0917 - called from compiled code, which takes positions only
    ints: MutableSequence[int],
    heap: int,
    length: int,
    top: int,
    floats: Sequence[float],
    keys: int,
) -> None:
    """Move a zone down a heap until no child has a lesser key; equal keys keep their places."""
    parent = top
    while 2 * parent + 1 < length:
        child = 2 * parent + 1
        zone = ints[heap + child]
        if child + 1 < length and floats[keys + ints[heap + child + 1]] < floats[keys + zone]:
            child += 1
            zone = ints[heap + child]
        above = ints[heap + parent]
        if not floats[keys + zone] < floats[keys + above]:
            break
        ints[heap + child] = above
        ints[heap + parent] = zone
        parent = child


class LocalOutcome(StrEnum):
    """The outcome of the allocator."""

    ALLOCATED = "Allocated"
    BELOW_START = "BelowStart"
    DOWNGRADED = "Downgraded"


class Allocation(msgspec.Struct, frozen=True):
    """An allocation; `matrix[i][j]` endpoints located in zone i serve the clients of zone j.

    Unless the outcome is ALLOCATED the matrix is all zeros, and all clients use all endpoints.
    """

    outcome: LocalOutcome
    matrix: tuple[tuple[int, ...], ...]


_OUTCOMES = {
    LOCAL_ALLOCATED: LocalOutcome.ALLOCATED,
    BELOW_START: LocalOutcome.BELOW_START,
    DOWNGRADED: LocalOutcome.DOWNGRADED,
}


def local(
    shares: Sequence[float],
    endpoints: Sequence[int],
    *,
    threshold: float = 0.5,
    start_per_zone: float = 3,
) -> Allocation:
    """Return the allocation for zones in the order of their names; no zones give BELOW_START.

    With `start_per_zone` 0 any number of endpoints is allocated. Negative counts count as 0, and a
    zone that is in only one of the two sequences is skipped.
    """
    zones = min(len(shares), len(endpoints))
    counts = [max(0, count) for count in endpoints[:zones]]
    matrix = [0] * (zones * zones)
    ints = [0] * (4 * zones)
    floats = [0.0] * (2 * zones)
    code = allocate_local(zones, shares, counts, threshold, start_per_zone, matrix, ints, floats)
    rows = tuple(tuple(matrix[row * zones : (row + 1) * zones]) for row in range(zones))
    return Allocation(_OUTCOMES[code], rows)


def allocate_local(  # noqa: PLR0915, PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,
    start_per_zone: float,
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Fill the flat matrix (location times zones plus served zone); return one of the three codes.

    Zones come in name order; `ints` is scratch space for four numbers a zone, `floats` for two. The
    matrix is all zeros unless LOCAL_ALLOCATED is returned. Endpoints must not be negative.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    for cell in range(zones * zones):
        matrix[cell] = 0
    if zones == 0 or total < start_per_zone * zones:
        return BELOW_START

    # Scratch space: the heap of givers, the heap of takers, the size of each group, the least size
    # at which the load of a group is below the threshold; and the keys of the two heaps.
    heap = zones
    sizes = 2 * zones
    least = 3 * zones
    keys = zones
    givers = 0
    takers = 0
    spare = 0
    for zone in range(zones):
        size = endpoints[zone]
        expected = total * shares[zone]
        bound = find_least_size(expected, threshold, total + 1)
        matrix[zone * zones + zone] = size
        ints[sizes + zone] = size
        ints[least + zone] = bound
        if size > bound:
            floats[zone] = shares[zone] / (size - 1)
            ints[givers] = zone
            givers += 1
            spare += size - bound
        elif size < bound and (size > 0 or expected > 0.0):
            floats[keys + zone] = weigh_taker(shares[zone], size)
            ints[heap + takers] = zone
            takers += 1
            spare -= bound - size

    # Round one: the zone with the highest load takes until it is below the threshold, each time
    # from the zone with the least load after giving. No taker gives, so sums decide the outcome.
    if spare < 0:
        for zone in range(zones):
            matrix[zone * zones + zone] = 0
        return DOWNGRADED
    order_heap(ints, 0, givers, floats, 0)
    order_heap(ints, heap, takers, floats, keys)
    while takers > 0:
        takers = pop_heap(ints, heap, takers, floats, keys)
        taker = ints[heap + takers]
        givers = relieve_taker(zones, shares, matrix, ints, floats, taker, givers)

    # Round two: the zone with the least load after giving gives all it has beyond its expectation
    # to the most loaded of all zones, as long as that one lacks a whole endpoint.
    ordered = False
    while givers > 0:
        giver = ints[0]
        surplus = ints[sizes + giver] - total * shares[giver]
        if surplus < 1.0:
            break
        givers = pop_heap(ints, 0, givers, floats, 0)
        if not ordered:
            for zone in range(zones):
                ints[heap + zone] = zone
                floats[keys + zone] = weigh_taker(shares[zone], ints[sizes + zone])
            order_heap(ints, heap, zones, floats, keys)
            ordered = True
        while surplus >= 1.0:
            taker = ints[heap]
            deficit = ints[sizes + taker] - total * shares[taker]
            if deficit > -1.0:
                return LOCAL_ALLOCATED
            pop_heap(ints, heap, zones, floats, keys)
            # Steps of one toward zero are exact in doubles, so they can be taken all at once.
            moved = int(min(surplus, -deficit))
            surplus -= moved
            move_endpoints(zones, matrix, ints, giver, taker, moved)
            # NB: keys follow the present sizes, but entries of a heap do not move when their key
            # changes, so the order may be stale; the reference has the same property.
            floats[keys + giver] = weigh_taker(shares[giver], ints[sizes + giver])
            floats[keys + taker] = weigh_taker(shares[taker], ints[sizes + taker])
            floats[taker] = shares[taker] / max(1, ints[sizes + taker] - 1)
            push_heap(ints, heap, zones - 1, floats, keys)
    return LOCAL_ALLOCATED


def find_least_size(expected: float, threshold: float, limit: int) -> int:
    """Return the least size, 1 or more, whose overload is below the threshold; at most `limit`."""
    size = 1
    if threshold > -1.0:
        # A lower estimate that rounding cannot make too large: the comparison below decides, with
        # the operations of the reference.
        size = max(1, int(min(expected / (1.0 + threshold), float(limit))))
    while size < limit and expected / size - 1.0 >= threshold:
        size += 1
    return size


def weigh_taker(share: float, size: int) -> float:
    """Return the key of a group among takers: the most loaded has the least, an empty one -inf."""
    return -math.inf if size == 0 else -share / size


def move_endpoints(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    giver: int,
    taker: int,
    count: int,
) -> None:
    """Move own endpoints of one zone into the group of another."""
    matrix[giver * zones + giver] -= count
    matrix[giver * zones + taker] += count
    ints[2 * zones + giver] -= count
    ints[2 * zones + taker] += count


def relieve_taker(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
    taker: int,
    givers: int,
) -> int:
    """Move endpoints to a taker until it has its least size; return how many givers are left.

    The givers together must have enough to spare.
    """
    sizes = 2 * zones
    least = 3 * zones
    need = ints[least + taker] - ints[sizes + taker]
    while need > 0:
        first = ints[0]
        if givers == 1:
            move_endpoints(zones, matrix, ints, first, taker, need)
            need = 0
            if ints[sizes + first] == ints[least + first]:
                givers = 0
            else:
                floats[first] = shares[first] / (ints[sizes + first] - 1)
        elif givers == 2 and shares[first] > 0.0:
            # The second has a share too: without one its key would be 0, and it would be first.
            givers = relieve_from_two(zones, shares, matrix, ints, floats, taker, need)
            need = 0
        else:
            givers = pop_heap(ints, 0, givers, floats, 0)
            giver = ints[givers]
            move_endpoints(zones, matrix, ints, giver, taker, 1)
            need -= 1
            if ints[sizes + giver] > ints[least + giver]:
                floats[giver] = shares[giver] / (ints[sizes + giver] - 1)
                push_heap(ints, 0, givers, floats, 0)
                givers += 1
    return givers


def relieve_from_two(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
    taker: int,
    need: int,
) -> int:
    """Move `need` endpoints from the two givers of the heap; return how many givers are left.

    The keys of a giver rise with each endpoint it gives, so the steps of the heap merge two rising
    sequences, and the state after `need` steps follows without the steps. Both shares must be above
    zero, or the sequences would not rise.
    """
    sizes = 2 * zones
    least = 3 * zones
    first = ints[0]
    second = ints[1]
    a = shares[first]
    b = shares[second]
    m = ints[sizes + first]
    n = ints[sizes + second]
    lowest = max(0, need - (n - ints[least + second]))
    highest = min(need, m - ints[least + first])
    # A lower estimate, reduced by one so that rounding cannot make it too large; a wrong estimate
    # only costs a few iterations.
    taken = m - 2 - int((m + n - 1 - need) * (a / (a + b)))
    taken = min(max(taken, lowest), highest)
    while taken < highest and b / (n - need + taken) >= a / (m - 1 - taken):
        taken += 1
    # Of two equal keys the one that did not give last comes first.
    if (
        taken > lowest
        and a / (m - taken) == b / (n - 1 - need + taken)
        and gave_last(a, m, taken - 1, b, n, need - taken)
    ):
        taken -= 1

    move_endpoints(zones, matrix, ints, first, taker, taken)
    move_endpoints(zones, matrix, ints, second, taker, need - taken)
    first_left = ints[sizes + first] > ints[least + first]
    second_left = ints[sizes + second] > ints[least + second]
    if first_left:
        floats[first] = a / (m - 1 - taken)
    if second_left:
        floats[second] = b / (n - 1 - need + taken)
    if first_left and second_left:
        if floats[second] < floats[first] or (
            floats[second] == floats[first] and gave_last(a, m, taken, b, n, need - taken)
        ):
            ints[0] = second
            ints[1] = first
        return 2
    if second_left:
        ints[0] = second
    return 1 if first_left or second_left else 0


def gave_last(  # noqa: PLR0917 - compiled code takes positions only
    share: float, size: int, given: int, other_share: float, other_size: int, other_given: int
) -> bool:
    """Return whether the first of two givers gave the last of all endpoints given so far.

    Sizes are those at the start, when the first giver was on top of the heap. Equal keys alternate
    and do not change which giver was last, so they are skipped in pairs.
    """
    while given and other_given:
        key = share / (size - given)
        other_key = other_share / (other_size - other_given)
        if key > other_key:
            return True
        if key < other_key:
            return False
        given -= 1
        other_given -= 1
    return given > 0
