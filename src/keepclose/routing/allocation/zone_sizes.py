"""How many endpoints serve each zone, for the best value of a stated objective.

Sizes are whole numbers that add up to all endpoints, at least one for each zone with traffic. The
objective weighs traffic that stays in its zone against the largest and the mean deviation of load.
The best size of a zone is near its share of all endpoints, so sizes start there, and endpoints are
exchanged between two zones as long as that gains. No size may load the endpoints of a zone beyond
the bound, unless no choice of sizes keeps it: then the least possible bound replaces it.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

ALLOCATED: Final = 1
SHARED: Final = 0

SCORE_OBJECTIVE: Final = 0
LOCALITY_OBJECTIVE: Final = 1

# Points for all traffic in its zone, and for 100 % of largest and of mean deviation: the score of
# KEP-2004 without its part for slices.
SCORE_IN_ZONE: Final = 45.0
SCORE_MAXIMUM: Final = 20.0
SCORE_MEAN: Final = 20.0
# NB: for locality alone many sizes are equally good; a small weight of the deviations decides.
LOCALITY_IN_ZONE: Final = 100.0
LOCALITY_DEVIATION: Final = 1e-4

BY_LOAD: Final = 0
AT_HOME: Final = 2
EXCHANGES: Final = 64
"""Of twice as many endpoints and more, this part of all moves at once where locality alone counts.
"""
MANY_ZONES: Final = 12
"""Among more zones exchanges end after `MOST_COMPARISONS`; no cloud has so many in a region."""
MOST_COMPARISONS: Final = 20_000
"""How many pairs of zones the exchanges from one start compare at most."""
HOME_ADVANCE: Final = 2.0
"""Points that exchanges are expected to gain after a start at home."""

ROUNDING: Final = 1e-9
LEAST_SHARE: Final = 1e-9
"""No more than this part of the traffic counts as none: it decides nothing but roundings."""


def combine(objective: float, in_zone: float, largest: float, mean: float) -> float:
    """Return the objective of in-zone traffic, largest overload and mean deviation, as parts."""
    if objective == LOCALITY_OBJECTIVE:
        return LOCALITY_IN_ZONE * in_zone - LOCALITY_DEVIATION * (largest + mean)
    return SCORE_IN_ZONE * in_zone - SCORE_MAXIMUM * largest - SCORE_MEAN * mean


def pick_zones(
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Return how many zones count, because they have traffic or endpoints.

    Their numbers begin `ints`, their endpoints follow from `zones` on, and their shares of the
    traffic begin `floats`. Shares add up to 1 before and after.
    """
    whole = 0.0
    is_cut = False
    for zone in range(zones):
        if shares[zone] > LEAST_SHARE:
            whole += shares[zone]
        elif shares[zone] > 0.0:
            is_cut = True
    # NB: where nothing is cut, nothing is divided, so nothing is rounded.
    if not is_cut:
        whole = 1.0
    active = 0
    for zone in range(zones):
        is_busy = shares[zone] > LEAST_SHARE
        if is_busy or endpoints[zone] > 0:
            ints[active] = zone
            ints[zones + active] = endpoints[zone]
            floats[active] = shares[zone] / whole if is_busy else 0.0
            active += 1
    return active


def choose_sizes(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    objective: float,
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Write how many endpoints serve each zone to the head of `ints`; return ALLOCATED or SHARED.

    SHARED means that all clients should use all endpoints: there are too few to divide them, or
    dividing them would do more harm than good. `floats[0]` becomes the bound that was kept, and
    `floats[1]` the objective of the division, -inf if they are too few.
    """
    floats[0] = max(0.0, bound)
    floats[1] = -math.inf
    total = 0
    busy = 0
    for zone in range(zones):
        total += endpoints[zone]
        if shares[zone] > 0.0:
            busy += 1
    if busy == 0 or total < busy:
        return SHARED
    floats[0] = set_least_sizes(zones, shares, total, bound, ints)
    # Each start may end in a local optimum. A start by load has the least maximum, a start by need
    # the least mean deviation, and a start at home no traffic between zones. The last is usually
    # far from the best, and is only tried if it is not.
    for start in range(3):
        least = floats[1] - HOME_ADVANCE if start == AT_HOME else -math.inf
        if place_endpoints(zones, shares, endpoints, total, start, ints):
            reached = exchange(zones, shares, endpoints, total, objective, least, ints)
            if reached > floats[1] + ROUNDING:
                floats[1] = reached
                for zone in range(zones):
                    ints[2 * zones + zone] = ints[zone]
    for zone in range(zones):
        ints[zone] = ints[2 * zones + zone]
    if objective == SCORE_OBJECTIVE:
        # If all clients use all endpoints, none is overloaded. Where a division is worse, because
        # the endpoints are few or all in one zone, they stay together.
        together = 0.0
        for zone in range(zones):
            together += SCORE_IN_ZONE * shares[zone] * endpoints[zone] / total
        if together > floats[1] + ROUNDING:
            return SHARED
    return ALLOCATED


def set_least_sizes(
    zones: int,
    shares: Sequence[float],
    total: int,
    bound: float,
    ints: MutableSequence[int],
) -> float:
    """Write the least size of each zone to the second part of `ints`; return the bound they keep.

    There must be an endpoint for each zone with traffic.
    """
    kept = max(bound, 0.0)
    least = 0
    for zone in range(zones):
        ints[zones + zone] = 0
        if shares[zone] > 0.0:
            ints[zones + zone] = max(1, math.ceil(total * shares[zone] / (1.0 + kept) - ROUNDING))
        least += ints[zones + zone]
    # Removing endpoints where the load stays lowest gives the least possible maximum.
    while least > total:
        lowest = math.inf
        for zone in range(zones):
            if ints[zones + zone] > 1:
                lowest = min(lowest, total * shares[zone] / (ints[zones + zone] - 1))
        for zone in range(zones):
            size = ints[zones + zone]
            if size > 1 and total * shares[zone] / (size - 1) == lowest:
                ints[zones + zone] -= 1
                least -= 1
        kept = max(kept, lowest - 1.0)
    for zone in range(zones):
        if shares[zone] > 0.0:
            ints[zones + zone] = max(1, math.ceil(total * shares[zone] / (1.0 + kept) - ROUNDING))
    return kept


def place_endpoints(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    total: int,
    start: int,
    ints: MutableSequence[int],
) -> bool:
    """Give each zone its expectation rounded down, and the rest by load or by need.

    With the start AT_HOME each zone gets its own endpoints instead. Returns False, with undefined
    sizes, if too many of them would have to move.
    """
    placed = 0
    for zone in range(zones):
        ints[zone] = ints[zones + zone]
        if shares[zone] > 0.0:
            desired = math.floor(total * shares[zone] + ROUNDING)
            if start == AT_HOME:
                desired = endpoints[zone]
            ints[zone] = max(ints[zone], desired)
        placed += ints[zone]
    if start == AT_HOME and abs(placed - total) > zones:
        return False
    while placed > total:
        donor = -1
        lowest = 0.0
        for zone in range(zones):
            if ints[zone] > ints[zones + zone]:
                load = shares[zone] / (ints[zone] - 1)
                if donor < 0 or load < lowest:
                    donor = zone
                    lowest = load
        ints[donor] -= 1
        placed -= 1
    while placed < total:
        receiver = -1
        highest = 0.0
        for zone in range(zones):
            if shares[zone] > 0.0:
                need = total * shares[zone] - ints[zone]
                if start == BY_LOAD:
                    need = shares[zone] / ints[zone]
                elif ints[zone] < endpoints[zone]:
                    need += 1.0
                if receiver < 0 or need > highest:
                    receiver = zone
                    highest = need
        ints[receiver] += 1
        placed += 1
    # Several zones may share the highest load; in turn each gets an endpoint of a zone that stays
    # below it. `exchange` cannot do that: the first step alone would gain nothing.
    while start == BY_LOAD:
        donor = -1
        receiver = -1
        lowest = 0.0
        highest = 0.0
        for zone in range(zones):
            if ints[zone] > 0:
                load = shares[zone] / ints[zone]
                if load > highest:
                    receiver = zone
                    highest = load
            if ints[zone] > ints[zones + zone]:
                load = shares[zone] / (ints[zone] - 1)
                if donor < 0 or load < lowest:
                    donor = zone
                    lowest = load
        if donor < 0 or donor == receiver or lowest >= highest - ROUNDING:
            break
        ints[donor] -= 1
        ints[receiver] += 1
    return True


def exchange(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    total: int,
    objective: float,
    least: float,
    ints: MutableSequence[int],
) -> float:
    """Move endpoints between two zones at a time while that helps; return the objective reached.

    A zone gives one endpoint, or as many as leave it no more loaded than the worst of the others:
    in between, the objective may be convex. A start with less than `least` is not improved.

    Up to MANY_ZONES zones the cost is that of their squared number for each exchange, and there are
    no more exchanges than endpoints and zones; among more zones it is bounded.
    """
    local = objective == LOCALITY_OBJECTIVE
    w_in = LOCALITY_IN_ZONE if local else SCORE_IN_ZONE
    w_max = LOCALITY_DEVIATION if local else SCORE_MAXIMUM
    w_mean = (LOCALITY_DEVIATION if local else SCORE_MEAN) / total
    # For locality alone long ways gain little at each step; of many endpoints, several go at once.
    at_once = total // EXCHANGES if local else 1
    reached = 0.0
    # NB: every step gains, so the loop terminates; the number only bounds its time.
    steps = total + zones
    if zones > MANY_ZONES:
        steps = max(1, min(steps, MOST_COMPARISONS // (zones * zones)))
    for _ in range(steps):
        first = -1
        second = -1
        worst = 0.0
        next_worst = 0.0
        third_worst = 0.0
        reached = 0.0
        for zone in range(zones):
            if ints[zone] > 0:
                load = shares[zone] / ints[zone]
                over = total * load - 1.0
                reached += w_in * load * min(endpoints[zone], ints[zone])
                reached -= w_mean * abs(total * shares[zone] - ints[zone])
                third_worst = max(third_worst, min(next_worst, over))
                next_worst = max(next_worst, min(worst, over))
                worst = max(worst, over)
                if over == worst:
                    second = first
                    first = zone
                elif over == next_worst:
                    second = zone
        reached -= w_max * worst
        if reached < least:
            break
        most = ROUNDING
        giver = -1
        taker = -1
        amount = 0
        for source in range(zones):
            size = ints[source]
            room = size - ints[zones + source]
            if room <= 0:
                continue
            x_source = total * shares[source]
            base = w_in * shares[source] * min(endpoints[source], size) / size
            base -= w_mean * abs(x_source - size)
            for target in range(zones):
                if target == source or not shares[target] > 0.0:
                    continue
                grown = ints[target]
                x_target = total * shares[target]
                before = w_in * shares[target] * min(endpoints[target], grown) / grown
                before += base - w_mean * abs(x_target - grown)
                others = worst
                if first in (source, target):
                    others = third_worst if second in (source, target) else next_worst
                many = min(size - math.ceil(x_source / (1.0 + others) - ROUNDING), room)
                for choice in range(3 if at_once > 1 else max(1, min(2, many))):
                    moved = 1
                    if choice > 0:
                        moved = max(1, many) if choice == 1 else min(at_once, room)
                    load = shares[source] / (size - moved)
                    maximum = max(others, total * load - 1.0)
                    gain = w_in * load * min(endpoints[source], size - moved)
                    gain -= w_mean * abs(x_source - size + moved)
                    load = shares[target] / (grown + moved)
                    maximum = max(maximum, total * load - 1.0)
                    gain += w_in * load * min(endpoints[target], grown + moved)
                    gain -= w_mean * abs(x_target - grown - moved)
                    gain += w_max * (worst - maximum) - before
                    if gain > most:
                        most = gain
                        giver = source
                        taker = target
                        amount = moved
        if giver < 0:
            break
        ints[giver] -= amount
        ints[taker] += amount
        reached += most
    return reached
