"""Hysteresis for written hints: from a previous allocation to one that is good enough.

Each re-hinted endpoint is a write to a slice that all proxies read. So a previous allocation stays
while its objective is close to the best one. New endpoints are placed where they help most. If that
does not suffice, endpoints are re-hinted one at a time, each time the one that helps most; of many
endpoints several at a time, so that the time does not grow with their number. The bound on overload
is never broken for the sake of fewer changes.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.zone_sizes import MANY_ZONES, ROUNDING, combine

HYSTERESIS: Final = 0.5
"""Points of the objective that may be lost to keep written hints."""

REVERSAL: Final = 4.0
"""Points to gain before a zone with hinted endpoints is left to all endpoints, or all zones are.

Zones gain and lose endpoints as pods start and stop: the next endpoint that starts there would
reverse the change.
"""

EXCESS: Final = 1000.0
"""Points for breaking the bound, and for each 100 % beyond: more than an allocation can gain."""


_STEPS: Final = 64
"""Of twice as many endpoints and more, this part of all moves at once."""
_MOST_WEIGHED: Final = 1_000_000
"""How many loads of zones are weighed at most among more than MANY_ZONES."""


def count_changes(zones: int, previous: Sequence[int], matrix: Sequence[int]) -> int:
    """Return how many endpoints hinted before are hinted to another zone now."""
    changes = 0
    for cell in range(zones * zones):
        changes += max(0, previous[cell] - matrix[cell])
    return changes


def settle(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
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

    -1 means failure: steps do not reach the goal, or most endpoints are new. Each step costs the
    third power of the zones, so that many zones have few steps.
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
    at_once = max(1, total // _STEPS)
    for location in range(zones):
        free = ints[4 * zones + location]
        while free > 0:
            amount = min(free, at_once)
            free -= amount
            chosen = -1
            most = 0.0
            for turn in range(-1, zones):
                zone = location if turn < 0 else turn
                if shares[zone] > 0.0:
                    move(zones, amount, location, -1, zone, matrix, ints)
                    value = weigh(zones, shares, total, objective, matrix, ints, floats)
                    move(zones, amount, location, zone, -1, matrix, ints)
                    if chosen < 0 or value > most + ROUNDING:
                        chosen = zone
                        most = value
            move(zones, amount, location, -1, chosen, matrix, ints)
    goal = floats[1] - HYSTERESIS
    steps = min(total, 2 * _STEPS)
    if zones > MANY_ZONES:
        steps = min(steps, _MOST_WEIGHED // zones**3)
    for _ in range(steps):
        reached = weigh(zones, shares, total, objective, matrix, ints, floats)
        if reached >= goal:
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
                        move(zones, 1, location, source, target, matrix, ints)
                        value = weigh(zones, shares, total, objective, matrix, ints, floats)
                        move(zones, 1, location, target, source, matrix, ints)
                        if value > most:
                            most = value
                            mover = location
                            giver = source
                            taker = target
        if mover < 0:
            break
        cell = mover * zones + giver
        fresh = matrix[cell] - previous[cell]
        amount = min(at_once, fresh if fresh > 0 else matrix[cell])
        # More at a time must help more than fewer, and not go beyond what is good enough.
        while amount > 1:
            move(zones, amount, mover, giver, taker, matrix, ints)
            value = weigh(zones, shares, total, objective, matrix, ints, floats)
            if most < value < goal:
                break
            move(zones, amount, mover, taker, giver, matrix, ints)
            amount //= 2
        if amount == 1:
            move(zones, 1, mover, giver, taker, matrix, ints)
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
    amount: int,
    location: int,
    source: int,
    target: int,
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
) -> None:
    """Let endpoints of a location serve another zone; -1 stands for no zone."""
    if source >= 0:
        matrix[location * zones + source] -= amount
        ints[3 * zones + source] -= amount
    if target >= 0:
        matrix[location * zones + target] += amount
        ints[3 * zones + target] += amount


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
    value = combine(objective, in_zone, maximum, mean)
    # NB: the smallest excess must cost more than the hysteresis allows.
    return value - EXCESS * (1.0 + excess) if excess > 0.0 else value
