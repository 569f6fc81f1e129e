"""Chooses the hints of all endpoints: by sets of zones for few endpoints, by zones for many.

`allocate_balanced` starts from nothing, as the simulator does; `allocate_balanced_from` starts from
the written hints, as the controller does, and changes few of them. Both choose by `choose_hints`.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.divisions import (
    BOUND,
    IS_LEFT,
    LEFT,
    REACHED,
    SERVED_SHARES,
    VALUE,
    choose_division,
    take_standard,
)
from keepclose.routing.allocation.hint_assignment import (
    ASSIGNMENT_ROOM,
    assign_sets,
    keep_written,
    weigh_matrix,
)
from keepclose.routing.allocation.hint_sets import (
    BEST_COUNTS,
    MOST_ZONES,
    SEARCH_ROOM,
    WRITTEN_COUNTS,
    search_hint_sets,
)
from keepclose.routing.allocation.hysteresis import (
    HYSTERESIS,
    REVERSAL,
    count_changes,
    settle,
)
from keepclose.routing.allocation.zone_sizes import (
    ALLOCATED,
    LEAST_SHARE,
    SCORE_OBJECTIVE,
    SHARED,
    pick_zones,
)

CHANGE_COST: Final = 2.0
"""Points that a re-hinted endpoint must gain, where all hints are tried."""

FEW_ENDPOINTS: Final = 12
"""With no more endpoints than this in up to three zones, all hints are tried."""
FEW_IN_FOUR_ZONES: Final = 8

BALANCED_SCRATCH: Final = 128
"""An allocation needs this many scratch numbers for each zone, and as many again."""
_WRITTEN_LEFT: Final = 10
"""Part of `ints`, in zones: which zones the written hints leave to all endpoints."""
_PICKED: Final = 120
"""Part of both scratches, in zones and one more: the zones that count, where not all do."""


def is_small(zones: int, endpoints: Sequence[int], objective: float) -> bool:
    """Return whether all hints are tried."""
    if zones > MOST_ZONES or objective != SCORE_OBJECTIVE:
        return False
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    return total <= (FEW_ENDPOINTS if zones < MOST_ZONES else FEW_IN_FOUR_ZONES)


def allocate_balanced(  # noqa: PLR0917 - the signature all allocators of groups share
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    objective: float,
    members: MutableSequence[int],
    weights: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Form a group of the endpoints with the same hints; return the number of groups.

    `members[g*zones+z]` endpoints located in zone z are in group g, and `weights[g*zones+z]` is 1
    where clients of zone z use the group, else 0. Shares add up to 1. No groups mean that all
    clients use all endpoints, because every division is worse or there is no traffic.
    """
    is_whole = True
    for zone in range(zones):
        if shares[zone] <= LEAST_SHARE and (shares[zone] > 0.0 or endpoints[zone] == 0):
            is_whole = False
    if is_whole:
        return form_hint_groups(
            zones, shares, endpoints, bound, objective, members, weights, ints, floats
        )
    # Zones that do not count must not make the search coarser for the others.
    start = _PICKED * (zones + 1)
    picked = ints[start : start + 2 * zones]
    parts = floats[start : start + zones]
    active = pick_zones(zones, shares, endpoints, picked, parts)
    groups = form_hint_groups(
        active,
        parts,
        picked[zones : zones + active],
        bound,
        objective,
        members,
        weights,
        ints,
        floats,
    )
    for group in range(groups - 1, -1, -1):
        position = active - 1
        for zone in range(zones - 1, -1, -1):
            cell = group * zones + zone
            if position >= 0 and picked[position] == zone:
                members[cell] = members[group * active + position]
                weights[cell] = weights[group * active + position]
                position -= 1
            else:
                members[cell] = 0
                weights[cell] = 1.0
    return groups


def form_hint_groups(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    objective: float,
    members: MutableSequence[int],
    weights: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Form groups as `allocate_balanced` does, for zones that all count."""
    code = choose_hints(zones, shares, endpoints, bound, 0, objective, -1, members, ints, floats)
    if code == SHARED:
        return 0
    groups = zones
    if is_small(zones, endpoints, objective):
        sets = 1 << zones
        offset = 16 * (zones + 1)
        start = offset + SEARCH_ROOM + ASSIGNMENT_ROOM
        matrix = ints[start : start + zones * sets]
        none = ints[start + zones * sets : start + 2 * zones * sets]
        for cell in range(zones * sets):
            none[cell] = 0
        assign_sets(
            zones,
            shares,
            endpoints,
            offset + BEST_COUNTS,
            none,
            matrix,
            offset + SEARCH_ROOM,
            ints,
        )
        groups = 0
        for mask in range(sets):
            count = 0
            for location in range(zones):
                count += matrix[location * sets + mask]
            if count > 0:
                for zone in range(zones):
                    members[groups * zones + zone] = matrix[zone * sets + mask]
                    weights[groups * zones + zone] = 1.0 if mask >> zone & 1 else 0.0
                groups += 1
    else:
        for cell in range(zones * zones):
            members[cell] = 0
            weights[cell] = 0.0
        for zone in range(zones):
            members[zone * zones + zone] = min(endpoints[zone], ints[zone])
            weights[zone * zones + zone] = 1.0
        fill_flows(zones, endpoints, members, ints)
        # Rows were locations, and are groups from here on.
        for zone in range(zones):
            for other in range(zone):
                kept = members[zone * zones + other]
                members[zone * zones + other] = members[other * zones + zone]
                members[other * zones + zone] = kept
    for zone in range(zones):
        reach = 0
        for group in range(groups):
            for location in range(zones):
                if weights[group * zones + zone] > 0.0:
                    reach += members[group * zones + location]
        if reach == 0:
            for group in range(groups):
                weights[group * zones + zone] = 1.0
    return groups


def allocate_balanced_from(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    is_strict: int,
    objective: float,
    previous: Sequence[int],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Fill the matrix with few changes against the previous one; return ALLOCATED or SHARED.

    All zones count, see `pick_zones`. A cell is location times columns plus column; columns are
    sets of zones if `is_small`, else zones. The result is at most HYSTERESIS points below the best
    objective, or REVERSAL points where the best are no hints, or leave zones to all endpoints that
    have hinted ones, and keeps the same bound. It is reached by re-hinting one endpoint at a time,
    each time the one that helps most, or by the best numbers with the nearest matrix, whichever
    re-hints fewer.
    """
    has_sets = is_small(zones, endpoints, objective)
    columns = 1 << zones if has_sets else zones
    code = choose_hints(
        zones, shares, endpoints, bound, is_strict, objective, -1, matrix, ints, floats
    )
    written = find_written_choice(zones, shares, endpoints, columns, previous, ints)
    # If the best hints leave the same zones, the choice is made, with the bound that it has.
    is_dropped = code == SHARED
    none = floats[VALUE]
    is_other = is_dropped
    margin = REVERSAL if code == SHARED else HYSTERESIS
    for zone in range(zones):
        is_left = ints[IS_LEFT * zones + zone] > 0
        was_left = ints[_WRITTEN_LEFT * zones + zone] > 0
        is_other = is_other or is_left != was_left
        if is_left and not was_left:
            margin = REVERSAL
    if written >= 0 and is_other:
        best = floats[VALUE]
        kept = choose_hints(
            zones, shares, endpoints, bound, is_strict, objective, written, matrix, ints, floats
        )
        if kept == ALLOCATED and floats[VALUE] >= best - margin:
            code = kept
        else:
            code = choose_hints(
                zones, shares, endpoints, bound, is_strict, objective, -1, matrix, ints, floats
            )
    for cell in range(zones * columns):
        matrix[cell] = 0
    if code == SHARED:
        return SHARED
    if has_sets:
        assign_few(zones, shares, endpoints, previous, matrix, ints, floats)
        # What changes cost must not keep hints that are far worse than none.
        if is_dropped:
            value = weigh_matrix(zones, shares, endpoints, floats[BOUND], matrix)
            if value < none - REVERSAL:
                return SHARED
    else:
        assign_many(zones, endpoints, objective, previous, matrix, ints, floats)
    return ALLOCATED


def choose_hints(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    is_strict: int,
    objective: float,
    only: int,
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Choose the best hints; return ALLOCATED or SHARED.

    The sizes of zones are written as by `choose_division`, or numbers by set if `is_small`. `only`
    is -1, or the choice of zones that are left to all endpoints. `matrix` is overwritten.
    """
    code = choose_division(
        zones, shares, endpoints, bound, is_strict, objective, only, ints, floats
    )
    has_sets = is_small(zones, endpoints, objective)
    counts = 16 * (zones + 1) + BEST_COUNTS
    is_better = False
    if has_sets:
        value = search_hint_sets(
            zones,
            shares,
            endpoints,
            floats[BOUND],
            only,
            0.0,
            floats[VALUE],
            16 * (zones + 1),
            ints,
        )
        if value > floats[VALUE]:
            is_better = True
            floats[VALUE] = value
            code = ALLOCATED
    if objective == SCORE_OBJECTIVE and only < 0 and is_strict == 0 and count_all(zones, endpoints):
        is_standard = take_standard(zones, shares, endpoints, matrix, ints, floats)
        if is_standard:
            is_better = False
            code = ALLOCATED
    if code == ALLOCATED and has_sets:
        if not is_better:
            for mask in range(1 << zones):
                ints[counts + mask] = 0
            for zone in range(zones):
                column = 1 << zone if shares[zone] > 0.0 else 0
                ints[counts + column] += ints[zone]
        for zone in range(zones):
            size = 0
            for mask in range(1 << zones):
                if mask >> zone & 1:
                    size += ints[counts + mask]
            is_left = shares[zone] > 0.0 and size == 0
            ints[IS_LEFT * zones + zone] = 1 if is_left else 0
    return code


def count_all(zones: int, endpoints: Sequence[int]) -> int:
    """Return the number of endpoints of all zones."""
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    return total


def find_written_choice(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    columns: int,
    previous: Sequence[int],
    ints: MutableSequence[int],
) -> int:
    """Mark the zones that the written hints leave to all endpoints; return the choice, or -1.

    -1 means that no hints are written, or that there is no choice of just these zones.
    """
    lefts = 0
    choice = 0
    is_bare = True
    hinted = 0
    for zone in range(zones):
        size = 0
        for column in range(columns):
            if (columns > zones and column >> zone & 1) or (columns == zones and column == zone):
                for location in range(zones):
                    size += previous[location * columns + column]
        is_left = shares[zone] > 0.0 and size == 0
        ints[_WRITTEN_LEFT * zones + zone] = 1 if is_left else 0
        if is_left:
            lefts += 1
            choice |= 1 << zone if zones <= MOST_ZONES else 1
        elif shares[zone] > 0.0:
            hinted += 1
        if is_left != (shares[zone] > 0.0 and endpoints[zone] == 0):
            is_bare = False
    if hinted == 0 or (zones > MOST_ZONES and lefts > 0 and not is_bare):
        return -1
    return choice


def assign_few(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    previous: Sequence[int],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> None:
    """Fill the matrix by sets, from the written hints or from the best numbers by set."""
    offset = 16 * (zones + 1)
    sets = 1 << zones
    kept = keep_written(zones, shares, endpoints, floats[BOUND], previous, matrix)
    if kept >= floats[VALUE] - HYSTERESIS:
        return
    if kept > -math.inf:
        for mask in range(sets):
            ints[offset + WRITTEN_COUNTS + mask] = 0
        for location in range(zones):
            # Endpoints that no longer exist are not re-hinted.
            free = endpoints[location]
            for mask in range(sets):
                count = min(previous[location * sets + mask], free)
                ints[offset + WRITTEN_COUNTS + mask] += count
                free -= count
        # The search is short if it starts from what the best hints are worth with their cost.
        least = floats[VALUE]
        for mask in range(sets):
            written = ints[offset + WRITTEN_COUNTS + mask]
            least -= CHANGE_COST * max(0, written - ints[offset + BEST_COUNTS + mask])
        least = max(least, kept)
        value = search_hint_sets(
            zones, shares, endpoints, floats[BOUND], -1, CHANGE_COST, least, offset, ints
        )
        if value <= kept:
            return
    assign_sets(
        zones,
        shares,
        endpoints,
        offset + BEST_COUNTS,
        previous,
        matrix,
        offset + SEARCH_ROOM,
        ints,
    )


def assign_many(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    endpoints: Sequence[int],
    objective: float,
    previous: Sequence[int],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> None:
    """Fill the matrix by zones, from the written hints or from the best sizes."""
    # HYSTERESIS is a part of the whole objective, and the zones that are served are only a part.
    floats[REACHED] += HYSTERESIS - HYSTERESIS / (1.0 - floats[LEFT])
    served = floats[SERVED_SHARES : SERVED_SHARES + zones]
    settled = settle(zones, served, endpoints, objective, previous, matrix, ints, floats)
    if settled == 0:
        return
    for zone in range(zones):
        for target in range(zones):
            matrix[zone * zones + target] = 0
        matrix[zone * zones + zone] = min(endpoints[zone], ints[zone])
    for zone in range(zones):
        spare = endpoints[zone] - matrix[zone * zones + zone]
        for target in range(zones):
            if target != zone:
                lacking = ints[target]
                for location in range(zones):
                    lacking -= matrix[location * zones + target]
                kept = min(previous[zone * zones + target], spare, lacking)
                matrix[zone * zones + target] = kept
                spare -= kept
    fill_flows(zones, endpoints, matrix, ints)
    if settled in range(1, count_changes(zones, previous, matrix)):
        settle(zones, served, endpoints, objective, previous, matrix, ints, floats)


def fill_flows(
    zones: int,
    endpoints: Sequence[int],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
) -> None:
    """Give endpoints that serve no zone yet to zones below their size, both in name order."""
    giver = 0
    spare = 0
    for zone in range(zones):
        lacking = ints[zone]
        for location in range(zones):
            lacking -= matrix[location * zones + zone]
        while lacking > 0 and giver < zones:
            spare = endpoints[giver]
            for target in range(zones):
                spare -= matrix[giver * zones + target]
            moved = min(spare, lacking)
            matrix[giver * zones + zone] += moved
            lacking -= moved
            if moved == spare:
                giver += 1
