"""Which endpoints get which sets of zones as hints, with few changes against the written ones.

A matrix says how many endpoints of each location have each set: location times the number of sets
plus the set. It comes from the numbers by set alone, or from the written hints, improved by one
endpoint at a time until it is good enough: each re-hinted endpoint is a write to a slice that all
proxies read.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.hint_sets import count_matched
from keepclose.routing.allocation.hysteresis import EXCESS
from keepclose.routing.allocation.zone_sizes import (
    ROUNDING,
    SCORE_OBJECTIVE,
    combine,
)

MOST_SLOTS: Final = 16
"""More endpoints are not assigned here."""
_FREE: Final = -1
# Where numbers begin in `ints`, from the caller's offset: the set and the location of each slot,
# and for the search of a path the slot before it and the slots still to be visited.
_SET_OF: Final = 0
_TAKEN: Final = MOST_SLOTS
_BEFORE: Final = 2 * MOST_SLOTS
_QUEUE: Final = 3 * MOST_SLOTS
ASSIGNMENT_ROOM: Final = 4 * MOST_SLOTS
"""How many numbers an assignment needs from the offset on."""


def assign_sets(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    counts: int,
    previous: Sequence[int],
    matrix: MutableSequence[int],
    offset: int,
    ints: MutableSequence[int],
) -> None:
    """Fill the matrix for the numbers by set that begin at `counts` in `ints`.

    As much traffic as possible stays in its zone; among such matrices it has few changes.
    """
    sets = 1 << zones
    slots = 0
    for mask in range(sets):
        for _ in range(ints[counts + mask]):
            ints[offset + _SET_OF + slots] = mask
            ints[offset + _TAKEN + slots] = _FREE
            slots += 1
    for cell in range(zones * sets):
        matrix[cell] = 0
    chosen = 0
    matched = 0
    for _ in range(zones):
        first = _FREE
        highest = 0.0
        for zone in range(zones):
            size = 0
            for mask in range(sets):
                if mask >> zone & 1:
                    size += ints[counts + mask]
            if size > 0 and chosen >> zone & 1 == 0:
                load = shares[zone] / size
                if first < 0 or load > highest:
                    first = zone
                    highest = load
        if first < 0:
            break
        chosen |= 1 << first
        reached = count_matched(zones, endpoints, chosen, counts, ints)
        missing = reached - matched
        matched = reached
        for slot in range(slots):
            mask = ints[offset + _SET_OF + slot]
            if (
                missing > 0
                and mask >> first & 1
                and ints[offset + _TAKEN + slot] == _FREE
                and matrix[first * sets + mask] < previous[first * sets + mask]
            ):
                ints[offset + _TAKEN + slot] = first
                matrix[first * sets + mask] += 1
                missing -= 1
        for _ in range(missing):
            take_slot(zones, first, slots, matrix, offset, ints)
    for turn in range(2):
        for location in range(zones):
            free = endpoints[location]
            for mask in range(sets):
                free -= matrix[location * sets + mask]
            for slot in range(slots):
                mask = ints[offset + _SET_OF + slot]
                cell = location * sets + mask
                if (
                    free > 0
                    and ints[offset + _TAKEN + slot] == _FREE
                    and (turn == 1 or matrix[cell] < previous[cell])
                ):
                    ints[offset + _TAKEN + slot] = location
                    matrix[cell] += 1
                    free -= 1


def take_slot(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    location: int,
    slots: int,
    matrix: MutableSequence[int],
    offset: int,
    ints: MutableSequence[int],
) -> None:
    """Give an endpoint of a location a slot whose set has its zone; others may move for it."""
    sets = 1 << zones
    end = 0
    for slot in range(slots):
        ints[offset + _BEFORE + slot] = -2
        if ints[offset + _SET_OF + slot] >> location & 1:
            ints[offset + _BEFORE + slot] = _FREE
            ints[offset + _QUEUE + end] = slot
            end += 1
    begin = 0
    while begin < end:
        slot = ints[offset + _QUEUE + begin]
        begin += 1
        holder = ints[offset + _TAKEN + slot]
        if holder == _FREE:
            # Each endpoint on the path moves to the next slot, which frees the first one.
            while slot >= 0:
                before = ints[offset + _BEFORE + slot]
                mover = location
                if before >= 0:
                    mover = ints[offset + _TAKEN + before]
                    matrix[mover * sets + ints[offset + _SET_OF + before]] -= 1
                ints[offset + _TAKEN + slot] = mover
                matrix[mover * sets + ints[offset + _SET_OF + slot]] += 1
                slot = before
            return
        for other in range(slots):
            if (
                ints[offset + _BEFORE + other] == -2
                and ints[offset + _SET_OF + other] >> holder & 1
            ):
                ints[offset + _BEFORE + other] = slot
                ints[offset + _QUEUE + end] = other
                end += 1


def weigh_matrix(
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    matrix: Sequence[int],
) -> float:
    """Return the objective of a matrix, far less if it breaks the bound."""
    sets = 1 << zones
    total = 0
    placed = 0
    for zone in range(zones):
        total += endpoints[zone]
    everywhere = 0.0
    in_zone = 0.0
    for zone in range(zones):
        size = 0
        own = 0
        for mask in range(1, sets):
            if mask >> zone & 1:
                own += matrix[zone * sets + mask]
                for location in range(zones):
                    size += matrix[location * sets + mask]
        if size > 0:
            in_zone += shares[zone] * own / size
        else:
            everywhere += shares[zone]
            in_zone += shares[zone] * endpoints[zone] / total
    worst = 0.0
    mean = 0.0
    for mask in range(sets):
        count = 0
        for location in range(zones):
            count += matrix[location * sets + mask]
        if count > 0:
            placed += count
            load = everywhere - 1.0
            for zone in range(zones):
                if mask >> zone & 1:
                    size = 0
                    for other in range(1, sets):
                        if other >> zone & 1:
                            for location in range(zones):
                                size += matrix[location * sets + other]
                    load += total * shares[zone] / size
            worst = max(worst, load)
            mean += count * abs(load)
    # An endpoint that is not placed yet counts as unused.
    mean += (total - placed) * abs(everywhere - 1.0)
    value = combine(SCORE_OBJECTIVE, in_zone, worst, mean / total)
    # NB: the smallest excess must cost more than the hysteresis allows.
    return value - EXCESS * (1.0 + worst - bound) if worst > bound + ROUNDING else value


def keep_written(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    previous: Sequence[int],
    matrix: MutableSequence[int],
) -> float:
    """Keep all written hints and place new endpoints where they help most; return the objective.

    It is -inf if there is little to keep: most endpoints are new, or no client follows the hints,
    because all of them are for zones without traffic.
    """
    sets = 1 << zones
    total = 0
    unplaced = 0
    idle = 0
    for location in range(zones):
        if not shares[location] > 0.0:
            idle |= 1 << location
        total += endpoints[location]
        free = endpoints[location]
        for mask in range(sets):
            kept = min(previous[location * sets + mask], free)
            matrix[location * sets + mask] = kept
            free -= kept
        unplaced += free
    if 2 * unplaced > total:
        return -math.inf
    for location in range(zones):
        free = endpoints[location]
        for mask in range(sets):
            free -= matrix[location * sets + mask]
        for _ in range(free):
            chosen = 1 << location if shares[location] > 0.0 else 0
            most = -math.inf
            for mask in range(sets):
                # Hints for zones without traffic are always written as the set 0.
                if mask & idle or (mask == 0 and idle == 0):
                    continue
                matrix[location * sets + mask] += 1
                value = weigh_matrix(zones, shares, endpoints, bound, matrix)
                matrix[location * sets + mask] -= 1
                if value > most + ROUNDING:
                    chosen = mask
                    most = value
            matrix[location * sets + chosen] += 1
    is_followed = False
    for location in range(zones):
        for mask in range(sets):
            if mask & ~idle and matrix[location * sets + mask] > 0:
                is_followed = True
    if not is_followed:
        return -math.inf
    return weigh_matrix(zones, shares, endpoints, bound, matrix)
