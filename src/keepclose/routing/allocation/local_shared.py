"""The allocator "local-shared" of KEP-2004: whole endpoints, and few groups shared by zones.

Zones without endpoints share one merged group, zones that lack whole endpoints are given them, and
zones that stay at or above the overload threshold get one more each or share one group. Zones that
still have a whole endpoint too many give it to the most loaded zone. If the threshold cannot be
kept, there is no allocation. The result is, endpoint for endpoint, that of the reference simulator
of the proposal: every float operation and every step of its binary heaps decide ties, so neither
may be rearranged or "repaired".

Each time the zone with the least load after giving gives an endpoint. The givers are a heap by the
key r/(n-1), of the share of clients r and the size n of a zone's group; a zone leaves it when one
more endpoint given would bring it to the overload threshold. Scratch space for Z zones: `ints`
holds the sizes of the groups of all zones and of a spare one, the sizes at which each zone has just
enough (Z), what zones need (Z), and from 3*Z+1 on the heap of givers; `floats` begins with the keys
of the givers.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.local import find_least_size, order_heap, pop_heap, push_heap

LEAST_SKIPPED_SHARE: Final = 1e-200
"""Givers with less move one endpoint at a time: sizes divided by their share may be infinite."""


def serve_zone(  # noqa: PLR0917 - called from compiled code, which takes positions only
    zones: int,
    shares: Sequence[float],
    taker: int,
    need: int,
    givers: int,
    comp: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Move `need` endpoints to the group of a zone; return the givers left, -1 if too few."""
    # One or two moves are faster than the attempt to skip them.
    tries = max(0, min(2, need - 2))
    while need > 0:
        if givers == 0:
            return -1
        if tries:
            tries -= 1
            need -= skip_ahead(zones, shares, taker, need, givers, comp, ints, floats)
        if need > 0:
            givers = move_one(zones, shares, taker, givers, comp, ints, floats)
            need -= 1
    return givers


def skip_ahead(  # noqa: PLR0915, PLR0917 - called from compiled code, which takes positions only
    zones: int,
    shares: Sequence[float],
    taker: int,
    need: int,
    givers: int,
    comp: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Do up to `need` moves at once if the outcome is certain; return how many were done.

    It handles one or two givers that stay givers, and a taker that stays behind both in the heap. A
    giver gives by rising keys and the lower key of both gives first; so two sizes are certain to be
    reached when every key used so far, of either giver, is below the next key of the other.
    """
    enough = zones + 1
    giving = 3 * zones + 1
    giver = ints[giving]
    rival = -1 if givers == 1 else ints[giving + givers - 1]
    waits = rival == taker
    if waits:
        rival = -1 if givers == 2 else ints[giving + 1]
    elif givers == 3:
        waits = ints[giving + 1] == taker
    if givers > 3 or (givers == 3 and not waits) or giver == taker:
        return 0
    if not shares[giver] > LEAST_SKIPPED_SHARE:
        return 0
    if rival >= 0 and not shares[rival] > LEAST_SKIPPED_SHARE:
        return 0

    # Sizes are without the endpoint to be given next, as in the keys.
    share = shares[giver]
    size = ints[giver] - 1
    rival_share = 0.0
    rival_size = 0
    if rival >= 0:
        rival_share = shares[rival]
        rival_size = ints[rival] - 1
        if floats[rival] < floats[giver]:
            return 0
    sizes = size + rival_size
    both = share + rival_share
    if waits:
        lead = shares[taker] * sizes - both * (ints[taker] - 1)
        need = min(need, int(lead / (shares[taker] + both)) - 2)

    # A guess, at which both givers have the same load; the code below decides whether it holds.
    left = max(size - need, ints[enough + giver])
    rival_left = rival_size
    if rival >= 0:
        level = (sizes - need) / both
        if share == max(share, rival_share):
            left = int(level * share) + 1
            rival_left = int(rival_share * left / share + 1e-9)
        else:
            rival_left = int(level * rival_share) + 1
            left = int(share * rival_left / rival_share + 1e-9)
        if rival_left >= rival_size:
            rival_left = rival_size
            left = max(size - need, ints[enough + giver], int(share / floats[rival] + 1e-9))
    moved = sizes - left - rival_left
    if moved <= 0 or moved > need or left < ints[enough + giver]:
        return 0
    key = share / left
    highest = key
    first = giver
    if rival >= 0:
        # NB: a giver that gave nothing never passes the comparison: the rival has no lower key.
        used = share / (left + 1)
        rival_used = rival_share / (rival_left + 1) if rival_left < rival_size else 0.0
        if rival_left < ints[enough + rival] or not (
            used < rival_share / rival_left and rival_used < key
        ):
            return 0
        rival_key = rival_share / rival_left
        highest = max(key, rival_key)
        # Of equal givers the one that gave last is behind. With equal shares that never changes
        # once both have the same key.
        if key == rival_key:
            if used == rival_used and share != rival_share:
                return 0
            if used > rival_used or (used == rival_used and size > rival_size):
                first = rival
        elif highest == key:
            first = rival
    if waits:
        waiting_key = shares[taker] / (ints[taker] + moved - 1)
        if not highest < waiting_key:
            return 0
        floats[taker] = waiting_key
        ints[giving + 1] = taker
    if rival >= 0:
        ints[giving + givers - 1] = giver if first == rival else rival
        ints[rival] = rival_left + 1
        floats[rival] = rival_share / rival_left
        comp[rival * zones + rival] -= rival_size - rival_left
        comp[taker * zones + rival] += rival_size - rival_left
    ints[giving] = first
    ints[giver] = left + 1
    ints[taker] += moved
    floats[giver] = key
    comp[giver * zones + giver] -= size - left
    comp[taker * zones + giver] += size - left
    return moved


def move_one(  # noqa: PLR0917 - called from compiled code, which takes positions only
    zones: int,
    shares: Sequence[float],
    taker: int,
    givers: int,
    comp: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Move an endpoint from the first giver to a group; return the number of givers after it."""
    enough = zones + 1
    giving = 3 * zones + 1
    giver = ints[giving]
    givers = pop_heap(ints, giving, givers, floats, 0)
    comp[giver * zones + giver] -= 1
    comp[taker * zones + giver] += 1
    ints[giver] -= 1
    ints[taker] += 1
    # NB: the taker may itself be among the givers; it keeps its position, however its key changes.
    if taker < zones and ints[taker] > 1:
        floats[taker] = shares[taker] / (ints[taker] - 1)
    if ints[giver] > ints[enough + giver]:
        floats[giver] = shares[giver] / (ints[giver] - 1)
        push_heap(ints, giving, givers, floats, 0)
        givers += 1
    return givers


def allocate_local_shared(  # noqa: PLR0915, PLR0917 - the signature all allocators share
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,
    start: float,  # noqa: ARG001
    comp: MutableSequence[int],
    weight: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Fill as many groups as there are zones, some of them empty; return their number.

    0 means one group of all endpoints: fewer endpoints than zones, no clients anywhere (where the
    reference never ends), or a zone that cannot be kept below the threshold. A group that several
    zones share has the index of the first of them.
    """
    total = 0
    traffic = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        traffic += shares[zone]
    if total < zones or not traffic > 0.0:
        return 0

    # Scratch: the sizes of the groups and of a spare one, the size from which each zone is below
    # the threshold, the heaps of givers and takers; the keys of both and the expected numbers.
    enough = zones + 1
    needs = enough + zones
    giving = needs + zones
    taking = giving + zones
    keys = zones
    expects = 2 * zones
    merged = -1
    lacking = 0.0
    givers = 0
    for zone in range(zones):
        row = zone * zones
        for location in range(zones):
            comp[row + location] = 0
            weight[row + location] = 0.0
        count = endpoints[zone]
        expected = total * shares[zone]
        ints[zone] = count
        ints[needs + zone] = 0
        floats[expects + zone] = expected
        if count == 0:
            merged = zone if merged < 0 else merged
            weight[merged * zones + zone] = 1.0
            lacking += expected
            continue
        comp[row + zone] = count
        weight[row + zone] = 1.0
        if count - expected <= -1.0:
            ints[needs + zone] = int(expected - count)
        ints[enough + zone] = find_least_size(expected, threshold, total + 1)
        if count > ints[enough + zone]:
            floats[zone] = shares[zone] / (count - 1)
            ints[giving + givers] = zone
            givers += 1
    order_heap(ints, giving, givers, floats, 0)

    # Zones without endpoints come first, all others in name order; one endpoint at a time comes
    # from the zone with the least load after giving, which may be the needing zone itself.
    if lacking > 0.0:
        need = max(1, math.floor(math.ceil(lacking * 1000.0) / 1000.0 + 0.5))
        givers = serve_zone(zones, shares, merged, need, givers, comp, ints, floats)
    for zone in range(zones):
        if givers >= 0:
            givers = serve_zone(zones, shares, zone, ints[needs + zone], givers, comp, ints, floats)
    if givers < 0:
        return 0

    takers = 0
    for zone in range(zones):
        if endpoints[zone] > 0:
            floats[keys + zone] = -shares[zone] / ints[zone]
            ints[taking + takers] = zone
            takers += 1
    order_heap(ints, taking, takers, floats, keys)
    # NB: an overloaded zone is never a giver, and it leaves the heap of takers for good. It stays
    # behind the end of that heap, the first to leave at the very end.
    last = taking + takers - 1
    for _ in range(takers):
        if ints[ints[taking]] >= ints[enough + ints[taking]]:
            break
        takers = pop_heap(ints, taking, takers, floats, keys)
    first = taking + takers
    if last >= first:
        givers = _relieve(zones, shares, threshold, first, last, givers, comp, weight, ints, floats)
        if givers < 0:
            return 0
        for place in range(taking, first):
            zone = ints[place]
            floats[keys + zone] = -shares[zone] / ints[zone]

    # NB: the reference has no limit here, and needs none where there are clients.
    for _ in range(2 * total + 64 * zones):
        giver = ints[giving]
        if givers == 0 or ints[giver] - floats[expects + giver] < 1.0:
            break
        taker = ints[taking]
        pop_heap(ints, taking, takers, floats, keys)
        floats[keys + taker] = -shares[taker] / (ints[taker] + 1)
        push_heap(ints, taking, takers - 1, floats, keys)
        givers = move_one(zones, shares, taker, givers, comp, ints, floats)
        floats[keys + giver] = -shares[giver] / ints[giver]
    return zones


def _relieve(  # noqa: PLR0917 - called from compiled code, which takes positions only
    zones: int,
    shares: Sequence[float],
    threshold: float,
    first: int,
    last: int,
    givers: int,
    comp: MutableSequence[int],
    weight: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Bring overloaded zones below the threshold; return the givers left, -1 if too few.

    Their numbers are in `ints` from `last` down to `first`. Each gets one endpoint if so many are
    to spare, else all of them share one group.
    """
    spare = zones
    giving = 3 * zones + 1
    expects = 2 * zones
    members = last - first + 1
    ints[spare] = 0
    for zone in range(zones):
        comp[spare * zones + zone] = 0
    while ints[spare] < members and givers > 0:
        giver = ints[giving]
        if ints[giver] - floats[expects + giver] < 1.0:
            break
        givers = move_one(zones, shares, spare, givers, comp, ints, floats)

    if ints[spare] == members:
        location = 0
        for place in range(last, first - 1, -1):
            while comp[spare * zones + location] == 0:
                location += 1
            comp[spare * zones + location] -= 1
            comp[ints[place] * zones + location] += 1
            ints[ints[place]] += 1
        return givers

    size = 0
    for place in range(first, last + 1):
        size += ints[ints[place]]
    while True:
        load = 0.0
        for place in range(last, first - 1, -1):
            load += floats[expects + ints[place]] / (ints[spare] + size)
        if load - 1.0 < threshold:
            break
        if givers == 0:
            return -1
        givers = move_one(zones, shares, spare, givers, comp, ints, floats)
    shared = ints[last]
    for place in range(last, first - 1, -1):
        member = ints[place]
        weight[shared * zones + member] = 1.0
        for location in range(zones):
            if member != shared:
                comp[shared * zones + location] += comp[member * zones + location]
                comp[member * zones + location] = 0
    for location in range(zones):
        comp[shared * zones + location] += comp[spare * zones + location]
    return givers
