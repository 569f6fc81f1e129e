"""Divisions of the endpoints among zones: each endpoint serves one zone, some zones have none.

A zone without hinted endpoints uses all endpoints, as in kube-proxy, and loads all of them alike.
If such zones send the part u of the traffic, the rest is the same problem with fewer zones, and
every deviation is 1 - u times that of the smaller problem: its best sizes are the best sizes for
all. Which zones are left is tried in every way for few zones. For more, none, those without
endpoints, and each single zone with and without these are tried; beyond MANY_ZONES, none and those
without endpoints, because the time grows with the fourth power of the zones otherwise.

The bound on overload holds where a division can hold it in which every zone has endpoints; the
least overload of such a division replaces it otherwise. The mechanisms of Kubernetes itself,
PreferSameZone and the topology mode Auto, may exceed that: with few endpoints they are sometimes
better than all that keeps it, and no user should lose by the change from them.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.hint_sets import MOST_ZONES, limit_objective
from keepclose.routing.allocation.hysteresis import REVERSAL
from keepclose.routing.allocation.kube_auto import KUBE_AUTO_ALLOCATED, allocate_kube_auto
from keepclose.routing.allocation.zone_sizes import (
    ALLOCATED,
    MANY_ZONES,
    ROUNDING,
    SCORE_OBJECTIVE,
    SHARED,
    choose_sizes,
    combine,
    set_least_sizes,
)

AUTO_OVERLOAD: Final = 0.2
"""The overload threshold of the topology mode Auto."""
EXCESS_COST: Final = 15.0
"""Points below the limit that an overload of 100 % costs at least.

To keep a share d more in its zone gains 45 d and costs 40 d in the mean deviation. Overloaded
endpoints are never more than all, so d is never larger than the overload. That tells whether
more than the bound can pay where all divisions within it were tried: with few zones.
"""

# Indices in `floats`: the bound that was kept and the objective, both in terms of the smaller
# problem; the traffic of zones that are left to all endpoints; the bound and the objective of the
# whole problem; the shares of the other zones as parts of their traffic together.
KEPT: Final = 0
REACHED: Final = 1
LEFT: Final = 2
BOUND: Final = 3
VALUE: Final = 4
SERVED_SHARES: Final = 16
# Parts of `ints`, in zones: which zones are left, the best sizes, and their zones that are left.
IS_LEFT: Final = 7
_BEST_SIZES: Final = 8
_BEST_LEFT: Final = 9


def choose_division(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    is_strict: int,
    objective: float,
    only: int,
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Write the best sizes to the head of `ints`; return ALLOCATED or SHARED.

    SHARED means that all clients should use all endpoints, because that is better or nothing else
    is possible. `only` is -1, or the choice of zones that are left to all endpoints, see
    `mark_left`; the choice that was made is not returned but marked. A strict bound holds always.
    """
    total = 0
    busy = 0
    together = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        if shares[zone] > 0.0:
            busy += 1
        together += shares[zone] * endpoints[zone]
    floats[BOUND] = max(0.0, bound)
    floats[KEPT] = floats[BOUND]
    floats[REACHED] = -math.inf
    floats[LEFT] = 0.0
    floats[VALUE] = combine(objective, together / max(1, total), 0.0, 0.0)
    if only >= 0:
        # What is written may be worse than no hints, by less than its removal must gain.
        floats[VALUE] -= REVERSAL
    for zone in range(zones):
        floats[SERVED_SHARES + zone] = shares[zone]
        ints[zone] = 0
        ints[IS_LEFT * zones + zone] = 0
    if busy == 0 or total == 0:
        return SHARED
    if is_strict == 0:
        floats[BOUND] = math.inf
        if total >= busy:
            floats[BOUND] = set_least_sizes(zones, shares, total, bound, ints)
    code = SHARED
    best = floats[VALUE]
    kept = floats[BOUND]
    for choice in range(count_choices(zones)):
        if (only < 0 or choice == only) and mark_left(zones, shares, endpoints, choice, ints):
            # A division among all zones, or the one that is written, may be just as good as none.
            is_even = choice == 0 or only >= 0
            least = best - ROUNDING if is_even else best + ROUNDING
            limit = limit_objective(zones, shares, endpoints, objective, IS_LEFT * zones, ints)
            if limit > least:
                value = divide_rest(zones, shares, endpoints, kept, objective, ints, floats)
                if value > least:
                    best = value
                    code = ALLOCATED
                    for zone in range(zones):
                        ints[_BEST_SIZES * zones + zone] = ints[zone]
                        ints[_BEST_LEFT * zones + zone] = ints[IS_LEFT * zones + zone]
    floats[VALUE] = best
    for zone in range(zones):
        ints[zone] = ints[_BEST_SIZES * zones + zone] if code == ALLOCATED else 0
        is_left = code == ALLOCATED and ints[_BEST_LEFT * zones + zone] > 0
        ints[IS_LEFT * zones + zone] = 1 if is_left else 0
    describe_rest(zones, shares, endpoints, objective, ints, floats)
    return code


def count_choices(zones: int) -> int:
    """Return how many choices there are of zones that are left to all endpoints."""
    if zones > MANY_ZONES:
        return 2
    return 1 << zones if zones <= MOST_ZONES else 2 + 2 * zones


def mark_left(
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    choice: int,
    ints: MutableSequence[int],
) -> bool:
    """Mark the zones that a choice leaves to all endpoints; return whether there is such a choice.

    For few zones the choice is the set of zones. For many, 0 is none and 1 all without endpoints;
    then follow single zones, and single zones with all that have no endpoints.
    """
    others = 0
    marked = 0
    for zone in range(zones):
        if zones <= MOST_ZONES:
            is_left = choice >> zone & 1
        else:
            single = (choice - 2) % zones
            is_left = 1 if choice >= 2 and single == zone else 0
            if endpoints[zone] == 0 and (choice == 1 or choice >= 2 + zones):
                is_left = 1
        if is_left and not shares[zone] > 0.0:
            if zones <= MOST_ZONES or choice >= 2:
                return False
            is_left = 0
        ints[IS_LEFT * zones + zone] = is_left
        marked += is_left
        if is_left == 0 and shares[zone] > 0.0:
            others += 1
    return others > 0 and (marked > 0 or choice == 0)


def divide_rest(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    kept: float,
    objective: float,
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> float:
    """Write the best sizes for the zones that are not left; return the objective, or -inf.

    -inf means that no such division keeps the bound.
    """
    everywhere = 0.0
    fixed = 0.0
    total = 0
    is_apart = True
    for zone in range(zones):
        total += endpoints[zone]
        if ints[IS_LEFT * zones + zone]:
            everywhere += shares[zone]
            fixed += shares[zone] * endpoints[zone]
            if endpoints[zone] > 0:
                is_apart = False
    rest = 1.0 - everywhere
    for zone in range(zones):
        floats[SERVED_SHARES + zone] = 0.0 if ints[IS_LEFT * zones + zone] else shares[zone] / rest
    if everywhere <= 0.0:
        # NB: nothing is divided, so nothing is rounded.
        for zone in range(zones):
            floats[SERVED_SHARES + zone] = shares[zone]
    served = floats[SERVED_SHARES : SERVED_SHARES + zones]
    choose_sizes(zones, served, endpoints, kept / rest, objective, ints, floats)
    reached = floats[REACHED] if floats[KEPT] * rest <= kept + ROUNDING else -math.inf
    # Sizes leave no endpoint to a zone without traffic; this division does.
    own = -math.inf
    if is_apart:
        own = own_value(zones, served, endpoints, kept / rest, objective)
    if own > reached + ROUNDING:
        reached = own
        for zone in range(zones):
            ints[zone] = endpoints[zone]
    return rest * reached + combine(objective, fixed / total, 0.0, 0.0)


def describe_rest(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    objective: float,
    ints: Sequence[int],
    floats: MutableSequence[float],
) -> None:
    """Write what the marked zones leave, from the bound and the objective of the whole problem."""
    total = 0
    fixed = 0.0
    floats[LEFT] = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        if ints[IS_LEFT * zones + zone]:
            floats[LEFT] += shares[zone]
            fixed += shares[zone] * endpoints[zone]
    rest = 1.0 - floats[LEFT]
    for zone in range(zones):
        floats[SERVED_SHARES + zone] = shares[zone]
        if floats[LEFT] > 0.0:
            floats[SERVED_SHARES + zone] = (
                0.0 if ints[IS_LEFT * zones + zone] else shares[zone] / rest
            )
    floats[KEPT] = floats[BOUND] / rest
    floats[REACHED] = (floats[VALUE] - combine(objective, fixed / total, 0.0, 0.0)) / rest


def take_standard(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> bool:
    """Replace the sizes by those of PreferSameZone or Auto if these are better; return whether.

    `floats[VALUE]` is what they must exceed, and `floats[BOUND]` the bound that was kept.
    """
    for zone in range(zones):
        ints[_BEST_SIZES * zones + zone] = ints[zone]
        ints[_BEST_LEFT * zones + zone] = ints[IS_LEFT * zones + zone]
        ints[IS_LEFT * zones + zone] = 0
    limit = limit_objective(zones, shares, endpoints, SCORE_OBJECTIVE, IS_LEFT * zones, ints)
    is_taken = False
    least_cost = EXCESS_COST * floats[BOUND] if zones <= MOST_ZONES else 0.0
    is_possible = floats[VALUE] < limit - least_cost
    for is_auto in range(2 if is_possible else 0):
        code = KUBE_AUTO_ALLOCATED
        if is_auto:
            served = floats[SERVED_SHARES : SERVED_SHARES + zones]
            code = allocate_kube_auto(
                zones, shares, endpoints, AUTO_OVERLOAD, 0.0, matrix, ints, served
            )
        for zone in range(zones):
            size = endpoints[zone]
            if is_auto:
                size = 0
                for location in range(zones):
                    size += matrix[location * zones + zone]
            ints[zone] = size
        worst = 0.0
        value = -math.inf
        if code == KUBE_AUTO_ALLOCATED:
            worst = largest_overload(zones, shares, endpoints, ints)
            value = weigh_sizes(zones, shares, endpoints, ints, worst, SCORE_OBJECTIVE)
        if value > floats[VALUE] + ROUNDING:
            is_taken = True
            floats[VALUE] = value
            floats[BOUND] = max(floats[BOUND], worst)
            for zone in range(zones):
                ints[_BEST_SIZES * zones + zone] = ints[zone]
                is_left = shares[zone] > 0.0 and ints[zone] == 0
                ints[_BEST_LEFT * zones + zone] = 1 if is_left else 0
    for zone in range(zones):
        ints[zone] = ints[_BEST_SIZES * zones + zone]
        ints[IS_LEFT * zones + zone] = ints[_BEST_LEFT * zones + zone]
    describe_rest(zones, shares, endpoints, SCORE_OBJECTIVE, ints, floats)
    return is_taken


def largest_overload(
    zones: int, shares: Sequence[float], endpoints: Sequence[int], sizes: Sequence[int]
) -> float:
    """Return how much more than the mean the busiest endpoint carries, 0 at least."""
    total = 0
    everywhere = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        if sizes[zone] == 0:
            everywhere += shares[zone]
    worst = 0.0
    for zone in range(zones):
        if sizes[zone] > 0:
            worst = max(worst, total * shares[zone] / sizes[zone] + everywhere - 1.0)
    return worst


def weigh_sizes(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    sizes: Sequence[int],
    worst: float,
    objective: float,
) -> float:
    """Return the objective of sizes with this largest overload, each zone's own endpoints first."""
    total = 0
    everywhere = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        if sizes[zone] == 0:
            everywhere += shares[zone]
    in_zone = 0.0
    mean = 0.0
    for zone in range(zones):
        size = sizes[zone]
        if size > 0:
            in_zone += shares[zone] * min(endpoints[zone], size) / size
            mean += size * abs(total * shares[zone] / size + everywhere - 1.0) / total
        else:
            in_zone += shares[zone] * endpoints[zone] / total
    return combine(objective, in_zone, worst, mean)


def own_value(
    zones: int, shares: Sequence[float], endpoints: Sequence[int], bound: float, objective: float
) -> float:
    """Return the objective if every endpoint serves its own zone; -inf beyond the bound.

    Endpoints of zones without traffic then get no connections. It is -inf, too, if a zone with
    traffic has no endpoints.
    """
    for zone in range(zones):
        if shares[zone] > 0.0 and endpoints[zone] == 0:
            return -math.inf
    worst = largest_overload(zones, shares, endpoints, endpoints)
    if worst > bound + ROUNDING:
        return -math.inf
    return weigh_sizes(zones, shares, endpoints, endpoints, worst, objective)
