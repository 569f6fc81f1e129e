"""The allocator "balanced": the best exclusive allocation for a stated objective.

Every endpoint serves exactly one zone, and a zone is served by endpoints located in it before any
others. Sizes are chosen for the best objective under a bound on overload. There is an answer for
every input, never worse than serving each zone by its own endpoints, unless that breaks the bound.

A zone without hinted endpoints uses all endpoints, as in kube-proxy, and loads all of them alike.
Zones without endpoints may be left to that: the rest is the same problem with fewer zones and less
traffic. If such zones send the part u of the traffic, every deviation is 1 - u times that of the
smaller problem, so its best sizes are the best sizes for all. If every division is worse than none,
all clients use all endpoints. Written hints change only if keeping them would cost more than a
little of the objective or break the bound: each change is a write to a slice that all proxies read.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.routing.allocation.hysteresis import HYSTERESIS, count_changes, settle
from keepclose.routing.allocation.zone_sizes import (
    ALLOCATED,
    LOCALITY_OBJECTIVE,
    ROUNDING,
    SCORE_IN_ZONE,
    SCORE_MAXIMUM,
    SCORE_MEAN,
    SCORE_OBJECTIVE,
    SHARED,
    choose_sizes,
)

OVERLOAD_BOUND: Final = 0.2

REVERSAL: Final = 4.0
"""Points to gain before zones with hinted endpoints are left to all endpoints, and these re-hinted.

Zones gain and lose endpoints as pods start and stop: the next endpoint that starts there would
reverse the change.
"""

_SERVED: Final = 16
"""Index in `floats` at which the shares of the zones with endpoints of their own begin."""


def choose_served_sizes(  # noqa: PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    objective: float,
    lean: int,
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Write sizes as `choose_sizes` does, 0 for zones that are left to all endpoints.

    These are all zones without endpoints, and only if that improves the objective. `lean` is 1 if
    the written hints leave them to all endpoints, -1 if endpoints are hinted for them, and 0 if no
    hints are written. From _SERVED on `floats` holds the shares of the other zones, as parts of
    their traffic together; in terms of these `floats[0]` becomes the bound that was kept and
    `floats[1]` the objective of which HYSTERESIS may be lost. `floats[2]` becomes the part of the
    traffic that is left to all endpoints.
    """
    total = 0
    idle = 0
    left = 0.0
    together = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        if endpoints[zone] == 0:
            left += shares[zone]
        elif shares[zone] <= 0.0:
            idle += endpoints[zone]
        together += SCORE_IN_ZONE * shares[zone] * endpoints[zone]
    code = choose_sizes(zones, shares, endpoints, bound, objective, ints, floats)
    kept = floats[0]
    whole = floats[1]
    best = whole if code == ALLOCATED else together / max(1, total)
    if objective == SCORE_OBJECTIVE and 0.0 < left < 1.0 - ROUNDING:
        rest = 1.0 - left
        for zone in range(zones):
            ints[8 * zones + zone] = ints[zone]
            floats[_SERVED + zone] = shares[zone] / rest if endpoints[zone] > 0 else 0.0
        served = floats[_SERVED : _SERVED + zones]
        choose_sizes(zones, served, endpoints, bound / rest, objective, ints, floats)
        # If every zone can have its own endpoints, no more overload is accepted than that has.
        is_divisible = whole > -math.inf
        most = kept / rest if is_divisible else math.inf
        own = own_value(zones, served, endpoints, most)
        if is_divisible and own > floats[1] + ROUNDING and floats[0] < most:
            choose_sizes(zones, served, endpoints, most, objective, ints, floats)
        is_kept = floats[0] <= most + ROUNDING
        if own > floats[1] + ROUNDING:
            is_kept = True
            keep_own(zones, served, endpoints, own, ints, floats)
        reached = rest * floats[1] if is_kept else -math.inf
        if lean > 0 and code == ALLOCATED:
            is_better = reached + HYSTERESIS > best + ROUNDING
        elif lean < 0 and code == ALLOCATED:
            is_better = reached > best and rest * own > best + REVERSAL
        else:
            is_better = reached > best + ROUNDING
        if is_better:
            floats[1] = (max(best, reached) - HYSTERESIS) / rest + HYSTERESIS
            floats[2] = left
            return ALLOCATED
        for zone in range(zones):
            ints[zone] = ints[8 * zones + zone]
        floats[0] = kept
        floats[1] = whole
    for zone in range(zones):
        floats[_SERVED + zone] = shares[zone]
    floats[2] = 0.0
    # Sizes leave no endpoint to a zone without traffic, so this division is not among them.
    own = own_value(zones, shares, endpoints, kept) if 0 < idle < total else -math.inf
    if objective == SCORE_OBJECTIVE and own > best + ROUNDING:
        keep_own(zones, shares, endpoints, own, ints, floats)
        return ALLOCATED
    return code


def keep_own(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    value: float,
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> None:
    """Let every endpoint serve its own zone, also those of zones without traffic."""
    for zone in range(zones):
        ints[zone] = endpoints[zone]
    floats[0] = max(floats[0], own_overload(zones, shares, endpoints))
    floats[1] = value


def own_overload(zones: int, shares: Sequence[float], endpoints: Sequence[int]) -> float:
    """Return the largest overload if every endpoint serves its own zone; inf if one has none."""
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    maximum = 0.0
    for zone in range(zones):
        if shares[zone] > 0.0:
            if endpoints[zone] == 0:
                return math.inf
            maximum = max(maximum, total * shares[zone] / endpoints[zone] - 1.0)
    return maximum


def own_value(zones: int, shares: Sequence[float], endpoints: Sequence[int], bound: float) -> float:
    """Return the score if every endpoint serves its own zone; -inf beyond the bound.

    Endpoints of zones without traffic then get no connections.
    """
    maximum = own_overload(zones, shares, endpoints)
    if maximum > bound + ROUNDING or maximum == math.inf:
        return -math.inf
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    value = -SCORE_MAXIMUM * maximum
    for zone in range(zones):
        value += SCORE_IN_ZONE * shares[zone]
        value -= SCORE_MEAN * abs(shares[zone] - endpoints[zone] / total)
    return value


class Objective(StrEnum):
    """What the allocator optimizes under the bound on overload."""

    SCORE = "Score"
    """In-zone traffic, largest and mean deviation, weighted as in the score of KEP-2004."""
    LOCALITY = "Locality"
    """In-zone traffic alone."""


class Balance(msgspec.Struct, frozen=True):
    """An allocation; `matrix[i][j]` endpoints located in zone i serve the clients of zone j."""

    sizes: tuple[int, ...]
    """How many endpoints serve each zone."""
    matrix: tuple[tuple[int, ...], ...]
    relaxed: float | None
    """The least overload bound that can be kept, if the requested one cannot."""
    shared: bool
    """All clients use all endpoints; sizes and matrix are zeros."""
    unhinted: tuple[int, ...] = ()
    """Zones with traffic but no hinted endpoint: their clients use all endpoints."""


def balance(
    shares: Sequence[float],
    endpoints: Sequence[int],
    *,
    bound: float = OVERLOAD_BOUND,
    objective: Objective = Objective.SCORE,
    previous: Sequence[Sequence[int]] | None = None,
) -> Balance:
    """Return the best allocation for zones in the order of their names; there may be no zones.

    `previous` is the matrix of the written hints. Shares are divided by their sum; negative and
    non-finite shares count as 0, and a zone that is in only one of the two sequences is skipped.
    """
    zones = min(len(shares), len(endpoints))
    counts = [max(0, count) for count in endpoints[:zones]]
    parts = [max(0.0, part) if math.isfinite(part) else 0.0 for part in shares[:zones]]
    whole = sum(parts)
    if whole and not math.isclose(whole, 1.0, rel_tol=ROUNDING):
        parts = [part / whole for part in parts]
    code = LOCALITY_OBJECTIVE if objective is Objective.LOCALITY else SCORE_OBJECTIVE
    limit = max(0.0, bound)
    written = [0] * (zones * zones)
    for row, numbers in enumerate((previous or ())[:zones]):
        for column, number in enumerate(numbers[:zones]):
            written[row * zones + column] = max(0, number)
    matrix = [0] * (zones * zones)
    floats = [0.0] * (16 * zones + 16)
    answer = allocate_balanced_from(
        zones, parts, counts, limit, code, written, matrix, [0] * (16 * zones + 16), floats
    )
    # NB: if no zone is left to all endpoints, the factor is 1 and nothing is rounded.
    kept = floats[0] * (1.0 - floats[2])
    rows = tuple(tuple(matrix[row * zones : (row + 1) * zones]) for row in range(zones))
    return Balance(
        sizes=tuple(sum(row[zone] for row in rows) for zone in range(zones)),
        matrix=rows,
        relaxed=kept if answer == ALLOCATED and kept > limit + ROUNDING else None,
        shared=answer == SHARED,
        unhinted=tuple(
            zone
            for zone in range(zones)
            if answer == ALLOCATED and parts[zone] > 0.0 and not floats[_SERVED + zone] > 0.0
        ),
    )


def allocate_balanced(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    objective: float,
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Fill the flat matrix (location times zones plus served zone); return ALLOCATED or SHARED.

    Shares add up to 1. A zone without a share gets no endpoints; its own serve the other zones,
    unless the objective is better if they stay unused. A
    zone without endpoints may get none either: its clients then use all endpoints. SHARED, with a
    matrix of zeros, means that all clients use all endpoints, because there are fewer endpoints
    than zones with traffic, no traffic, or because the best division is worse than none. `ints`
    starts with the size of each zone, `floats` is filled as by `choose_served_sizes`.
    """
    for cell in range(zones * zones):
        matrix[cell] = 0
    code = choose_served_sizes(zones, shares, endpoints, bound, objective, 0, ints, floats)
    if code == SHARED:
        return SHARED
    for zone in range(zones):
        matrix[zone * zones + zone] = min(endpoints[zone], ints[zone])
    fill_flows(zones, endpoints, matrix, ints)
    return ALLOCATED


def allocate_balanced_from(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    bound: float,
    objective: float,
    previous: Sequence[int],
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Fill the matrix as `allocate_balanced` does, but with few changes against the previous one.

    The result is at most HYSTERESIS points below the best objective, or REVERSAL points where a
    zone without endpoints has others hinted for it, and keeps the same bound. It is reached by
    re-hinting one endpoint at a time, each time the one that helps most, or by the best sizes with
    the flows nearest to the previous ones, whichever re-hints fewer.
    """
    for cell in range(zones * zones):
        matrix[cell] = 0
    lean = lean_of(zones, endpoints, previous)
    code = choose_served_sizes(zones, shares, endpoints, bound, objective, lean, ints, floats)
    if code == SHARED:
        return SHARED
    served = floats[_SERVED : _SERVED + zones]
    settled = settle(zones, served, endpoints, objective, previous, matrix, ints, floats)
    if settled == 0:
        return ALLOCATED
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
    return ALLOCATED


def lean_of(zones: int, endpoints: Sequence[int], previous: Sequence[int]) -> int:
    """Return how the written hints treat zones without endpoints: 1 left to all, -1 served.

    0 means that no hints are written.
    """
    lean = 0
    for location in range(zones):
        for zone in range(zones):
            if previous[location * zones + zone] > 0:
                if endpoints[zone] == 0:
                    return -1
                lean = 1
    return lean


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
