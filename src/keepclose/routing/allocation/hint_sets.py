"""The best hints of all: an endpoint may be hinted for several zones, a zone may have none.

The hints of an endpoint are a set of zones, written as a bit mask. The clients of a zone divide
among the endpoints with a hint for it; the clients of a zone without any use all endpoints, as in
kube-proxy. Loads depend on how many endpoints have each set, and not on where these are: so the
search first chooses how many endpoints each zone uses, then how many have each set, and last which
locations they come from. At every level an upper bound of the objective cuts off what cannot be
better than the best so far. It visits every case that the bounds leave, so the result is exact.

Two facts make the bounds tight. If zones with the share u are left to all endpoints, the endpoints
of a zone can take 1 - u of their fair share from their own zone without overload. To take a share d
more, they carry d too much and others d too little, which costs 40 d in the mean and at least 20 d
in the largest deviation, and gains 45 d: so no more than that fair share ever pays. And among sets
that are given, the zones whose clients send most to an endpoint choose their own endpoints first:
which endpoints can be matched is a matroid, where the greedy choice is the best.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.zone_sizes import (
    ROUNDING,
    SCORE_IN_ZONE,
    SCORE_MAXIMUM,
    SCORE_MEAN,
    SCORE_OBJECTIVE,
    combine,
)

MOST_ZONES: Final = 4
_MASKS: Final = 1 << MOST_ZONES
MOST_STEPS: Final = 200_000
"""Cases that one search from nothing tries, which takes about a second in the controller."""
CHANGE_STEPS: Final = 20_000
"""Cases that one search tries if changes of written hints cost: the best so far is good enough."""

# Where numbers begin in `ints`, counted in parts of MOST_ZONES numbers from the caller's offset.
_SIZES: Final = 0
_LOWEST: Final = MOST_ZONES
_HIGHEST: Final = 2 * MOST_ZONES
_LACKING: Final = 3 * MOST_ZONES
_SETS: Final = 4 * MOST_ZONES
_USED: Final = _SETS + _MASKS
_COUNTS: Final = _USED + _MASKS
BEST_COUNTS: Final = _COUNTS + _MASKS
"""Where the numbers of endpoints by set begin, relative to the offset."""
WRITTEN_COUNTS: Final = BEST_COUNTS + _MASKS
"""Where the numbers of endpoints by set of the written hints begin."""
_WRITTEN_SIZES: Final = WRITTEN_COUNTS + _MASKS
_STEPS: Final = _WRITTEN_SIZES + MOST_ZONES
SEARCH_ROOM: Final = _STEPS + 1
"""How many numbers the search needs from the offset on."""


def search_hint_sets(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    unhinted: int,
    change_cost: float,
    least: float,
    offset: int,
    ints: MutableSequence[int],
) -> float:
    """Return the best objective above `least`, or `least`; sets are counted in `ints`.

    There are at most MOST_ZONES zones; shares add up to 1. No endpoint carries more than `bound`
    above the mean. `unhinted` is the set of zones that must have no hinted endpoint, or -1 for the
    best one. The set 0 stands for a hint for any zone without traffic: such endpoints are used only
    by clients of zones that are left to all endpoints. Each endpoint with written hints, counted at
    WRITTEN_COUNTS, that gets others takes `change_cost` from the objective.
    """
    total = 0
    busy = 0
    for zone in range(zones):
        total += endpoints[zone]
        if shares[zone] > 0.0:
            busy += 1 << zone
    best = least
    ints[offset + _STEPS] = MOST_STEPS if change_cost <= 0.0 else CHANGE_STEPS
    if total == 0:
        return best
    for zone in range(zones):
        size = 0
        for mask in range(1 << zones):
            if change_cost > 0.0 and mask >> zone & 1:
                size += ints[offset + WRITTEN_COUNTS + mask]
        ints[offset + _WRITTEN_SIZES + zone] = size
    for left in range(1 << zones):
        if left & ~busy == 0 and left != busy and (unhinted < 0 or left == unhinted):
            for zone in range(zones):
                ints[offset + _LACKING + zone] = left >> zone & 1
            limit = limit_objective(
                zones, shares, endpoints, SCORE_OBJECTIVE, offset + _LACKING, ints
            )
            if limit > best + ROUNDING:
                hinted = busy & ~left
                best = search_sizes(
                    zones, shares, endpoints, bound, hinted, left, change_cost, best, offset, ints
                )
    return best


def limit_objective(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    objective: float,
    marks: int,
    ints: Sequence[int],
) -> float:
    """Return what no hints can exceed if the marked zones are left to all endpoints.

    `marks` is where the mark of each zone begins in `ints`.
    """
    total = 0
    everywhere = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        if ints[marks + zone]:
            everywhere += shares[zone]
    in_zone = 0.0
    for zone in range(zones):
        part = endpoints[zone] / total
        if ints[marks + zone]:
            in_zone += shares[zone] * part
        elif objective == SCORE_OBJECTIVE:
            in_zone += min(shares[zone], (1.0 - everywhere) * part)
        elif endpoints[zone] > 0:
            in_zone += shares[zone]
    return combine(objective, in_zone, 0.0, 0.0)


def search_sizes(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    hinted: int,
    left: int,
    change_cost: float,
    least: float,
    offset: int,
    ints: MutableSequence[int],
) -> float:
    """Try how many endpoints each hinted zone uses; return the best objective, or `least`."""
    best = least
    total = 0
    everywhere = 0.0
    is_idle = False
    for zone in range(zones):
        total += endpoints[zone]
        if left >> zone & 1:
            everywhere += shares[zone]
        elif hinted >> zone & 1 == 0:
            is_idle = True
    fresh = total
    if change_cost > 0.0:
        for mask in range(1 << zones):
            fresh -= ints[offset + WRITTEN_COUNTS + mask]
    fixed = 0.0
    home = 0.0
    fair = 0.0
    for zone in range(zones):
        if left >> zone & 1:
            fixed += shares[zone] * endpoints[zone] / total
        elif hinted >> zone & 1 and endpoints[zone] > 0:
            home += shares[zone]
            fair += min(shares[zone], (1.0 - everywhere) * endpoints[zone] / total)
    for zone in range(zones):
        ints[offset + _SIZES + zone] = 0
        if hinted >> zone & 1 == 0:
            continue
        share = shares[zone]
        part = (1.0 - everywhere) * endpoints[zone] / total
        others = home - share if endpoints[zone] > 0 else home
        fair_others = fair - min(share, part)
        lowest = 0
        highest = -1
        for size in range(1, total + 1):
            over = max(0.0, total * share / size + everywhere - 1.0)
            own = share * min(endpoints[zone], size) / size
            value = SCORE_IN_ZONE * (fixed + others + own) - SCORE_MAXIMUM * over
            value -= 2.0 * SCORE_MEAN * over * size / total
            limit = SCORE_IN_ZONE * (fixed + fair_others + min(own, part))
            cost = change_cost * max(0, ints[offset + _WRITTEN_SIZES + zone] - size)
            if over <= bound + ROUNDING and min(value, limit) - cost > best + ROUNDING:
                if highest < 0:
                    lowest = size
                highest = size
        if highest < 0:
            return best
        ints[offset + _LOWEST + zone] = lowest
        ints[offset + _HIGHEST + zone] = highest
        ints[offset + _SIZES + zone] = lowest
    while True:
        members = 0
        worst = 0.0
        mean = 0.0
        in_zone = fixed
        limit = fixed
        rehinted = 0
        for zone in range(zones):
            size = ints[offset + _SIZES + zone]
            # So many endpoints at least lose their hint for the zone, or get it.
            lost = ints[offset + _WRITTEN_SIZES + zone] - size
            rehinted = max(rehinted, lost, -lost - fresh)
            if size > 0:
                members += size
                own = shares[zone] * min(endpoints[zone], size) / size
                over = total * shares[zone] / size + everywhere - 1.0
                in_zone += own
                limit += min(own, (1.0 - everywhere) * endpoints[zone] / total)
                worst = max(worst, over)
                mean = max(mean, 2.0 * over * size / total)
        value = SCORE_IN_ZONE * in_zone - SCORE_MAXIMUM * worst - SCORE_MEAN * mean
        enough = is_idle or members >= total
        value = min(value, SCORE_IN_ZONE * limit)
        if enough and value - change_cost * rehinted > best + ROUNDING:
            best = search_sets(
                zones,
                shares,
                endpoints,
                bound,
                is_idle,
                fixed,
                everywhere,
                change_cost,
                fresh,
                value,
                best,
                offset,
                ints,
            )
        zone = zones - 1
        while zone >= 0:
            size = ints[offset + _SIZES + zone]
            if size > 0:
                if size < ints[offset + _HIGHEST + zone]:
                    ints[offset + _SIZES + zone] = size + 1
                    break
                ints[offset + _SIZES + zone] = ints[offset + _LOWEST + zone]
            zone -= 1
        if zone < 0:
            return best


def search_sets(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    is_idle: bool,
    fixed: float,
    everywhere: float,
    change_cost: float,
    fresh: int,
    most_value: float,
    least: float,
    offset: int,
    ints: MutableSequence[int],
) -> float:
    """Try how many endpoints have each set, for given sizes; return the best objective, or `least`.

    Sets with several zones are tried in all numbers; sets with one zone get what is left. `fresh`
    endpoints have no written hints. Before changes cost, no sets exceed `most_value`.
    """
    best = least
    total = 0
    members = 0
    in_zone = fixed
    worst = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        size = ints[offset + _SIZES + zone]
        members += size
        ints[offset + _LACKING + zone] = size
        if size > 0:
            in_zone += shares[zone] * min(endpoints[zone], size) / size
            worst = max(worst, total * shares[zone] / size + everywhere - 1.0)
    most = min(bound, (SCORE_IN_ZONE * in_zone - best) / SCORE_MAXIMUM) + ROUNDING
    # Loads add up to the number of endpoints, so the mean deviation is twice what is above 1.
    least_cost = SCORE_MAXIMUM * worst
    sets = 0
    lost = 0
    for mask in range(1 << zones):
        ints[offset + _COUNTS + mask] = 0
    # Sets with many zones come first, so that it is soon known whether the rest can be placed.
    for turn in range(zones - 1):
        for mask in range(1 << zones):
            several = 0
            load = everywhere
            for zone in range(zones):
                if mask >> zone & 1:
                    several += 1
                    size = ints[offset + _SIZES + zone]
                    load += total * shares[zone] / size if size > 0 else math.inf
            if several == zones - turn:
                if load - 1.0 <= most:
                    ints[offset + _SETS + sets] = mask
                    ints[offset + _USED + sets] = 0
                    sets += 1
                elif change_cost > 0.0:
                    lost += ints[offset + WRITTEN_COUNTS + mask]
    # Each set with k zones saves k - 1 endpoints against sets with one zone each.
    surplus = members - total
    added = 0
    deepest = sets - 1
    while ints[offset + _STEPS] > 0:
        ints[offset + _STEPS] -= 1
        if surplus == 0 or (is_idle and surplus < 0):
            ints[offset + _COUNTS] = -surplus
            for zone in range(zones):
                ints[offset + _COUNTS + (1 << zone)] = ints[offset + _LACKING + zone]
            for position in range(sets):
                mask = ints[offset + _SETS + position]
                ints[offset + _COUNTS + mask] = ints[offset + _USED + position]
            value = weigh_sets(
                zones, shares, endpoints, bound, fixed, everywhere, in_zone, best, offset, ints
            )
            if value > best + ROUNDING and change_cost > 0.0:
                for mask in range(1 << zones):
                    written = ints[offset + WRITTEN_COUNTS + mask]
                    value -= change_cost * max(0, written - ints[offset + _COUNTS + mask])
            if value > best + ROUNDING:
                best = value
                for mask in range(1 << zones):
                    ints[offset + BEST_COUNTS + mask] = ints[offset + _COUNTS + mask]
        position = deepest
        while position >= 0:
            mask = ints[offset + _SETS + position]
            several = -1
            spare = total
            load = everywhere - 1.0
            for zone in range(zones):
                if mask >> zone & 1:
                    several += 1
                    spare = min(spare, ints[offset + _LACKING + zone])
                    load += total * shares[zone] / ints[offset + _SIZES + zone]
            cost = 2.0 * SCORE_MEAN * max(0.0, load) / total
            number = ints[offset + _USED + position]
            used = 1
            if position == sets - 1 and not is_idle and surplus > 0:
                # Only the number that leaves no surplus is worth a try.
                used = surplus // several if surplus % several == 0 else total + 1
            value = min(most_value, SCORE_IN_ZONE * in_zone - least_cost - used * cost)
            is_possible = used <= spare and (is_idle or used * several <= surplus)
            more = 0
            if change_cost > 0.0:
                written = ints[offset + WRITTEN_COUNTS + mask]
                more = max(0, number + used - written) - max(0, number - written)
                if is_possible and value > best:
                    rehinted = lost + count_lost(zones, mask, used, position, offset, ints)
                    value -= change_cost * max(rehinted, added + more - fresh)
            if not (is_possible and value > best):
                used = -number
                if change_cost > 0.0:
                    more = -max(0, number - ints[offset + WRITTEN_COUNTS + mask])
            added += more
            for zone in range(zones):
                if mask >> zone & 1:
                    ints[offset + _LACKING + zone] -= used
            surplus -= used * several
            least_cost += used * cost
            ints[offset + _USED + position] += used
            if used > 0:
                # Sets with up to k zones save k - 1 of k endpoints, and all but the largest zone's.
                lacking = 0
                largest = 0
                for zone in range(zones):
                    lacking += ints[offset + _LACKING + zone]
                    largest = max(largest, ints[offset + _LACKING + zone])
                saved = min(lacking - largest, lacking * several // (several + 1))
                deepest = position if surplus > saved and not is_idle else sets - 1
                break
            position -= 1
        if position < 0:
            break
    return best


def count_lost(  # noqa: PLR0917 - compiled code takes positions only
    zones: int, mask: int, used: int, position: int, offset: int, ints: Sequence[int]
) -> int:
    """Return how many endpoints at least lose a written set, if so many more get this one.

    The numbers of sets before the position stay. Sets with one zone only lose endpoints.
    """
    lost = 0
    for before in range(position):
        written = ints[offset + WRITTEN_COUNTS + ints[offset + _SETS + before]]
        lost += max(0, written - ints[offset + _USED + before])
    for zone in range(zones):
        left = ints[offset + _LACKING + zone] - (used if mask >> zone & 1 else 0)
        lost += max(0, ints[offset + WRITTEN_COUNTS + (1 << zone)] - left)
    return lost


def weigh_sets(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    fixed: float,
    everywhere: float,
    most_in_zone: float,
    least: float,
    offset: int,
    ints: MutableSequence[int],
) -> float:
    """Return the objective of counted sets, or `least` if it is clearly not above that."""
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    worst = 0.0
    mean = 0.0
    for mask in range(1 << zones):
        count = ints[offset + _COUNTS + mask]
        if count > 0:
            load = everywhere - 1.0
            for zone in range(zones):
                if mask >> zone & 1:
                    load += total * shares[zone] / ints[offset + _SIZES + zone]
            worst = max(worst, load)
            mean += count * abs(load) / total
    most = combine(SCORE_OBJECTIVE, most_in_zone, worst, mean)
    if worst > bound + ROUNDING or most <= least:
        return least
    in_zone = fixed
    chosen = 0
    matched = 0
    for _ in range(zones):
        first = -1
        highest = 0.0
        for zone in range(zones):
            size = ints[offset + _SIZES + zone]
            if size > 0 and chosen >> zone & 1 == 0:
                load = shares[zone] / size
                if first < 0 or load > highest:
                    first = zone
                    highest = load
        if first < 0:
            break
        chosen |= 1 << first
        reached = count_matched(zones, endpoints, chosen, offset + _COUNTS, ints)
        in_zone += highest * (reached - matched)
        matched = reached
    return combine(SCORE_OBJECTIVE, in_zone, worst, mean)


def count_matched(
    zones: int, endpoints: Sequence[int], chosen: int, counts: int, ints: Sequence[int]
) -> int:
    """Return how many endpoints of the chosen zones can be in sets that contain their own zone.

    `counts` is where the numbers of endpoints by set begin. The result is the least over the parts
    of the chosen zones: the sets that meet a part, and the endpoints of the other chosen zones.
    """
    fewest = -1
    for part in range(1 << zones):
        if part & ~chosen == 0:
            number = 0
            for zone in range(zones):
                if chosen >> zone & 1 and part >> zone & 1 == 0:
                    number += endpoints[zone]
            for mask in range(1 << zones):
                if mask & part:
                    number += ints[counts + mask]
            if fewest < 0 or number < fewest:
                fewest = number
    return fewest
