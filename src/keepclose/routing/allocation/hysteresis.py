"""Hysteresis for written hints: from a previous allocation to one that is good enough.

Each re-hinted endpoint is a write to a slice that all proxies read. So a previous allocation stays
while its objective is close to the best one. New endpoints are placed where they help most. If that
does not suffice, endpoints are re-hinted one at a time, each time the one that helps most. The
bound on overload is never broken for the sake of fewer changes.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.zone_sizes import (
    LOCALITY_DEVIATION,
    LOCALITY_IN_ZONE,
    LOCALITY_OBJECTIVE,
    ROUNDING,
    SCORE_IN_ZONE,
    SCORE_MAXIMUM,
    SCORE_MEAN,
)

HYSTERESIS: Final = 0.5
"""Points of the objective that may be lost to keep written hints."""

EXCESS: Final = 1000.0
"""Points for breaking the bound, and for each 100 % beyond: more than an allocation can gain."""


def count_changes(zones: int, previous: Sequence[int], matrix: Sequence[int]) -> int:
    """Return how many endpoints hinted before are hinted to another zone now."""
    changes = 0
    for cell in range(zones * zones):
        changes += max(0, previous[cell] - matrix[cell])
    return changes


def settle(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    objective: float,
    previous: Sequence[int],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Improve the previous matrix step by step until it is good enough; return the re-hints.

    -1 means failure: single steps do not reach the goal, or most endpoints are new.
    """
    total = 0
    unplaced = 0
    for zone in range(zones):
        total += endpoints[zone]
        ints[3 * zones + zone] = 0
    for location in range(zones):
        # An endpoint hinted for a zone without traffic counts as not hinted. The own zone comes
        # first if the written hints count more endpoints than exist.
        free = endpoints[location]
        for turn in range(-1, zones):
            zone = location if turn < 0 else turn
            if turn != location:
                kept = min(previous[location * zones + zone], free) if shares[zone] > 0.0 else 0
                matrix[location * zones + zone] = kept
                ints[3 * zones + zone] += kept
                free -= kept
        ints[4 * zones + location] = free
        unplaced += free
    if 2 * unplaced > total:
        return -1
    for location in range(zones):
        for _ in range(ints[4 * zones + location]):
            chosen = -1
            most = 0.0
            for turn in range(-1, zones):
                zone = location if turn < 0 else turn
                if shares[zone] > 0.0:
                    move(zones, location, -1, zone, matrix, ints)
                    value = weigh(zones, shares, total, objective, matrix, ints, floats)
                    move(zones, location, zone, -1, matrix, ints)
                    if chosen < 0 or value > most + ROUNDING:
                        chosen = zone
                        most = value
            move(zones, location, -1, chosen, matrix, ints)
    for _ in range(total):
        reached = weigh(zones, shares, total, objective, matrix, ints, floats)
        if reached >= floats[1] - HYSTERESIS:
            return count_changes(zones, previous, matrix)
        most = reached + ROUNDING
        mover = -1
        giver = -1
        taker = -1
        for source in range(zones):
            for target in range(zones):
                if target != source and shares[target] > 0.0:
                    location = find_mover(zones, source, target, previous, matrix)
                    if location >= 0:
                        move(zones, location, source, target, matrix, ints)
                        value = weigh(zones, shares, total, objective, matrix, ints, floats)
                        move(zones, location, target, source, matrix, ints)
                        if value > most:
                            most = value
                            mover = location
                            giver = source
                            taker = target
        if mover < 0:
            break
        move(zones, mover, giver, taker, matrix, ints)
    return -1


def find_mover(
    zones: int, source: int, target: int, previous: Sequence[int], matrix: Sequence[int]
) -> int:
    """Return the location whose endpoint should change from one served zone to another; or -1.

    An endpoint located in the target zone is best, one located in the source zone is worst; among
    equals one that was not hinted for the source zone before.
    """
    mover = -1
    best = 0
    for location in range(zones):
        cell = location * zones + source
        if matrix[cell] > 0:
            merit = 1 if matrix[cell] <= previous[cell] else 2
            if location == target:
                merit += 4
            elif location != source:
                merit += 2
            if merit > best:
                best = merit
                mover = location
    return mover


def move(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    location: int,
    source: int,
    target: int,
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
) -> None:
    """Let one endpoint serve another zone; -1 stands for no zone."""
    if source >= 0:
        matrix[location * zones + source] -= 1
        ints[3 * zones + source] -= 1
    if target >= 0:
        matrix[location * zones + target] += 1
        ints[3 * zones + target] += 1


def weigh(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    total: int,
    objective: float,
    matrix: Sequence[int],
    ints: Sequence[int],
    floats: Sequence[float],
) -> float:
    """Return the objective of a matrix, far less when it breaks the bound."""
    local = objective == LOCALITY_OBJECTIVE
    in_zone = 0.0
    maximum = 0.0
    mean = 0.0
    excess = 0.0
    for zone in range(zones):
        size = ints[3 * zones + zone]
        if shares[zone] > 0.0:
            # A zone without endpoints is worse than a single endpoint for all traffic.
            over = 2.0 * total
            if size > 0:
                over = total * shares[zone] / size - 1.0
                in_zone += shares[zone] * matrix[zone * zones + zone] / size
            maximum = max(maximum, over)
            excess += max(0.0, over - floats[0] - ROUNDING)
        mean += abs(shares[zone] - size / total)
    value = (LOCALITY_IN_ZONE if local else SCORE_IN_ZONE) * in_zone
    value -= (LOCALITY_DEVIATION if local else SCORE_MAXIMUM) * maximum
    value -= (LOCALITY_DEVIATION if local else SCORE_MEAN) * mean
    # NB: the smallest excess must cost more than the hysteresis allows.
    return value - EXCESS * (1.0 + excess) if excess > 0.0 else value
