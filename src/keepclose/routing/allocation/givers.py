"""Zones that give endpoints: each time the one with the least load after giving gives one.

A part of the allocator "local-shared". The givers are a heap by the key r/(n-1), of the share of
clients r and the size n of a zone's group; a zone leaves it when one more would bring it to the
overload threshold. No step may differ in its outcome from the reference simulator of KEP-2004.
Scratch space for Z zones: `ints` holds the sizes of the groups of all zones and of a spare one,
the sizes at which each zone has just enough (Z), what zones need (Z), and from 3*Z+1 on the heap of
givers; `floats` begins with the keys of the givers.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from keepclose.routing.allocation.local import pop_heap, push_heap


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
    # One or two moves are quicker done than skipped.
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

    It knows one or two givers that stay givers, and a taker that stays behind both in the heap. A
    giver gives by rising keys and the lower key of both gives first; so two sizes are certain to be
    met when every key used so far, of either giver, is below the next key of the other.
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
    if givers > 3 or (givers == 3 and not waits) or giver == taker or not shares[giver] > 0.0:
        return 0

    # Sizes are less the endpoint to be given next, as in the keys.
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

    # A guess, at which both givers have the same load; what follows decides whether it holds.
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
        # NB: a giver that gave nothing never gets past the comparison: the rival has no lower key.
        used = share / (left + 1)
        rival_used = rival_share / (rival_left + 1) if rival_left < rival_size else 0.0
        if rival_left < ints[enough + rival] or not (
            used < rival_share / rival_left and rival_used < key
        ):
            return 0
        rival_key = rival_share / rival_left
        highest = max(key, rival_key)
        # Of equal givers the one that gave last stands behind. With equal shares that never
        # changes once they have met.
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
    # NB: the taker may itself be among the givers; it keeps its place, however its key changes.
    if taker < zones and ints[taker] > 1:
        floats[taker] = shares[taker] / (ints[taker] - 1)
    if ints[giver] > ints[enough + giver]:
        floats[giver] = shares[giver] / (ints[giver] - 1)
        push_heap(ints, giving, givers, floats, 0)
        givers += 1
    return givers
