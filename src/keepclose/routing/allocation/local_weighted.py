"""The allocator "local-weighted": every zone gets exactly its expected capacity, by weights.

Whole endpoints move first, first come first served in name order. Fractions of an endpoint come
from sharing: an endpoint that its zone needs only in part forms a group of its own, which several
zones use at weights that add up to one. The result is that of the reference simulator of KEP-2004,
down to its float rounding, which may lose an endpoint or leave a tiny rest: neither must be
"repaired". It keeps no overload limit and never falls back to one group of all endpoints.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence


def allocate_local_weighted(  # noqa: PLR0915, PLR0917 - the signature all allocators share
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    comp: MutableSequence[int],
    weight: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Fill one group per zone and the shared ones behind them; return the number of groups.

    There are at most three groups per zone. No zones give 0, one group of all endpoints.

    NB: the reference names a shared group after the zones it serves, and a later group of the same
    name replaces the earlier one. That can only happen to groups that serve no zone, which are
    therefore one group here: the last.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    for cell in range(zones * zones):
        comp[cell] = 0
        weight[cell] = 0.0

    # Scratch: the whole endpoints a zone has to spare (below zero: lacks); zones with a fraction to
    # spare; the queue of zones that lack capacity, fractions first. Amounts are beside the zones.
    fractions = zones
    queue = 2 * zones
    offered = 0
    waiting = 0
    for zone in range(zones):
        count = endpoints[zone]
        expected = total * shares[zone]
        difference = count - expected
        whole = int(difference)
        rest = difference - whole
        comp[zone * zones + zone] = count if whole < 0 else int(expected)
        weight[zone * zones + zone] = 1.0
        ints[zone] = whole
        if rest > 0.0:
            ints[fractions + offered] = zone
            floats[fractions + offered] = 1.0 - rest
            offered += 1
        elif rest < 0.0:
            ints[queue + waiting] = zone
            floats[queue + waiting] = -rest
            waiting += 1

    source = 0
    for zone in range(zones):
        lacking = -ints[zone]
        while lacking > 0 and source < zones:
            moved = max(0, min(lacking, ints[source]))
            comp[zone * zones + source] += moved
            ints[source] -= moved
            lacking -= moved
            if ints[source] <= 0:
                source += 1
        if lacking > 0:
            ints[queue + waiting] = zone
            floats[queue + waiting] = float(lacking)
            waiting += 1

    # Shared groups: first the fractions, which serve their own zone before others, then whole
    # endpoints that no zone took.
    head = 0
    groups = zones
    nameless = 0
    for entry in range(offered + zones - source):
        if entry < offered:
            location = ints[fractions + entry]
            size = 1
        else:
            location = source + entry - offered
            size = ints[location]
            if size <= 0:
                continue
        row = groups * zones
        if entry >= offered and head >= waiting:
            # Row 0 is that of the first zone, so 0 can mean none.
            row = nameless or row
            nameless = row
        groups = max(groups, row // zones + 1)
        for zone in range(zones):
            comp[row + zone] = 0
            weight[row + zone] = 0.0
        comp[row + location] = size
        left = 1.0
        if entry < offered:
            left = floats[fractions + entry]
            weight[row + location] = left
            left = 1.0 - left
        while head < waiting:
            taker = ints[queue + head]
            amount = floats[queue + head]
            lacking_more = amount - size * left
            if lacking_more >= 0.0:
                weight[row + taker] += left
                floats[queue + head] = lacking_more
                if lacking_more == 0.0:
                    head += 1
                break
            weight[row + taker] += amount / size
            # NB: the reference subtracts all that the zone got from this group, not just this time.
            left -= weight[row + taker]
            head += 1
    return groups
