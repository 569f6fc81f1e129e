"""The allocator "balanced": the best hints for a stated objective, under a bound on overload.

With few endpoints all hints are tried: for several zones, for one, for none. With more endpoints
each one serves one zone, and zones may be left to all endpoints; that is then very near to the
best. There is an answer for every input. With nothing written and a bound that may give way, it
never scores below PreferSameZone, the topology mode Auto, or no hints at all.

Written hints change only if keeping them would cost more than a little of the objective or break
the bound: each change is a write to a slice that all proxies read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.routing.allocation.divisions import BOUND
from keepclose.routing.allocation.hint_assignment import weigh_matrix
from keepclose.routing.allocation.hint_choice import (
    BALANCED_SCRATCH,
    allocate_balanced_from,
    is_small,
)
from keepclose.routing.allocation.hysteresis import REVERSAL
from keepclose.routing.allocation.zone_sizes import (
    LOCALITY_OBJECTIVE,
    ROUNDING,
    SCORE_OBJECTIVE,
    SHARED,
    pick_zones,
)

OVERLOAD_BOUND: Final = 0.2

HintedZones = tuple[int, ...]
"""The zones that an endpoint is hinted for, by index and in order."""


class Objective(StrEnum):
    """What the allocator optimizes under the bound on overload."""

    SCORE = "Score"
    """In-zone traffic, largest and mean deviation, weighted as in the score of KEP-2004."""
    LOCALITY = "Locality"
    """In-zone traffic alone."""


class Balance(msgspec.Struct, frozen=True):
    """An allocation of endpoints to the zones that they are hinted for."""

    hints: tuple[dict[HintedZones, int], ...]
    """How many endpoints are hinted for which zones, by the zone where they are located."""
    relaxed: float | None
    """The largest overload, if it is beyond the requested bound."""
    shared: bool
    """All clients use all endpoints; there are no hints."""
    unhinted: tuple[int, ...] = ()
    """Zones with traffic but no hinted endpoint: their clients use all endpoints."""
    overload: float = 0.0
    """How much more than the mean the busiest endpoint carries."""

    @property
    def matrix(self) -> tuple[tuple[int, ...], ...]:
        """How many endpoints located in zone i are hinted for zone j; some may be for several."""
        zones = range(len(self.hints))
        return tuple(
            tuple(sum(number for served, number in row.items() if zone in served) for zone in zones)
            for row in self.hints
        )

    def in_zone(self, shares: Sequence[float], endpoints: Sequence[int]) -> float:
        """Return the part of the traffic that stays in its zone."""
        counts = [max(0, count) for count in endpoints]
        total, sizes = max(1, sum(counts)), self.sizes
        return sum(
            share * (row[zone] / sizes[zone] if sizes[zone] else counts[zone] / total)
            for zone, (share, row) in enumerate(zip(shares, self.matrix, strict=True))
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many endpoints the clients of each zone use by hints."""
        matrix = self.matrix
        return tuple(sum(row[zone] for row in matrix) for zone in range(len(matrix)))


def balance(
    shares: Sequence[float],
    endpoints: Sequence[int],
    *,
    bound: float = OVERLOAD_BOUND,
    is_strict: bool = False,
    objective: Objective = Objective.SCORE,
    previous: Sequence[Mapping[HintedZones, int]] = (),
) -> Balance:
    """Return the best allocation for zones in the order of their names; there may be no zones.

    `previous` are the written hints. A strict bound is never relaxed; one that is negative or not a
    number counts as 0. Shares are divided by their sum; negative and non-finite shares count as 0,
    and so does no more than LEAST_SHARE of all. A zone that is in only one of the two sequences is
    skipped.
    """
    zones = min(len(shares), len(endpoints))
    numbers, parts = [0] * (2 * zones), [0.0] * zones
    active = pick_zones(
        zones,
        divide_shares(shares[:zones]),
        [max(0, count) for count in endpoints[:zones]],
        numbers,
        parts,
    )
    picked, counts, parts = numbers[:active], numbers[zones : zones + active], parts[:active]
    limit = max(0.0, bound)
    local = objective is Objective.LOCALITY
    rows = [dict(previous[zone]) if zone < len(previous) else {} for zone in range(zones)]
    code = LOCALITY_OBJECTIVE if local else SCORE_OBJECTIVE
    if local and is_small(active, counts, SCORE_OBJECTIVE):
        # Hints for several zones are searched for the score alone, and may keep more. What is
        # written must not decide, or a second look could change it.
        none: list[dict[HintedZones, int]] = [{} for _ in range(zones)]
        by_locality, by_score = (
            _choose(each, picked, parts, counts, limit=limit, is_strict=is_strict, previous=none)
            for each in (LOCALITY_OBJECTIVE, SCORE_OBJECTIVE)
        )
        share_of = dict(zip(picked, parts, strict=True))
        alone = [share_of.get(zone, 0.0) for zone in range(zones)]
        is_allowed = (by_score.relaxed or limit) <= (by_locality.relaxed or limit) + ROUNDING
        more = by_score.in_zone(alone, endpoints) - by_locality.in_zone(alone, endpoints)
        if is_allowed and more > ROUNDING:
            code = SCORE_OBJECTIVE
    return _choose(code, picked, parts, counts, limit=limit, is_strict=is_strict, previous=rows)


def _choose(
    code: int,
    picked: Sequence[int],
    parts: Sequence[float],
    counts: Sequence[int],
    *,
    limit: float,
    is_strict: bool,
    previous: Sequence[Mapping[HintedZones, int]],
) -> Balance:
    """Return the best allocation for the zones that count; `previous` has all zones."""
    zones, active = len(previous), len(picked)
    has_sets = is_small(active, counts, code)
    columns = 1 << active if has_sets else active
    written = [0] * (active * columns)
    for location, zone in enumerate(picked):
        for served, number in previous[zone].items():
            column = _column(served, zones, picked, parts, has_sets=has_sets)
            if column is not None:
                written[location * columns + column] += max(0, number)
    room = BALANCED_SCRATCH * (active + 1)

    def allocate(start: Sequence[int]) -> tuple[int, list[int], float]:
        """Return the answer, the matrix and its bound, from these written hints."""
        cells, ints, floats = [0] * (active * columns), [0] * room, [0.0] * room
        found = allocate_balanced_from(
            active, parts, counts, limit, int(is_strict), code, start, cells, ints, floats
        )
        return found, cells, floats[BOUND]

    answer, matrix, within = allocate(written)
    if answer != SHARED and has_sets and _is_like_none(matrix, parts):
        # Written hints that change nothing may stay, but are not worth a change, and the price of
        # a change must not keep them where others are much better.
        fresh, cells, bound = allocate([0] * (active * columns))
        if fresh == SHARED:
            moved = any(
                now < min(was, counts[cell // columns])
                for cell, (was, now) in enumerate(zip(written, matrix, strict=True))
            )
            answer = SHARED if moved else answer
        elif weigh_matrix(active, parts, counts, bound, cells) > REVERSAL + weigh_matrix(
            active, parts, counts, within, matrix
        ):
            matrix = cells
    if answer == SHARED:
        return Balance(tuple({} for _ in range(zones)), None, shared=True)
    hints: list[dict[HintedZones, int]] = [{} for _ in range(zones)]
    for location, zone in enumerate(picked):
        for column, number in enumerate(matrix[location * columns : (location + 1) * columns]):
            if number:
                served = _served(column, location, picked, parts, has_sets=has_sets)
                hints[zone][served] = number
    result = Balance(tuple(hints), None, shared=False)
    sizes = result.sizes
    share_of = dict(zip(picked, parts, strict=True))
    unhinted = tuple(zone for zone in picked if share_of[zone] > 0.0 and sizes[zone] == 0)
    everywhere = sum(share_of[zone] for zone in unhinted)
    total = sum(counts)
    worst = max(
        everywhere + total * sum(share_of.get(zone, 0.0) / sizes[zone] for zone in served) - 1.0
        for row in hints
        for served in row
    )
    relaxed = worst if worst > limit + ROUNDING else None
    return msgspec.structs.replace(
        result, relaxed=relaxed, unhinted=unhinted, overload=max(0.0, worst)
    )


def _is_like_none(matrix: Sequence[int], shares: Sequence[float]) -> bool:
    """Return whether each zone with traffic uses all hinted endpoints, or none and so all.

    The columns of the matrix are sets of zones.
    """
    columns = 1 << len(shares)
    sizes = [sum(matrix[column::columns]) for column in range(columns)]
    used = (
        sum(size for column, size in enumerate(sizes) if column >> zone & 1)
        for zone, share in enumerate(shares)
        if share > 0.0
    )
    return all(size in {0, sum(sizes)} for size in used)


def divide_shares(shares: Sequence[float]) -> list[float]:
    """Return the shares divided by their sum; negative and non-finite shares count as 0."""
    parts = [max(0.0, share) if math.isfinite(share) else 0.0 for share in shares]
    whole = sum(parts)
    if math.isinf(whole):
        largest = max(parts)
        parts = [part / largest for part in parts]
        whole = sum(parts)
    if whole and not math.isclose(whole, 1.0, rel_tol=ROUNDING):
        parts = [part / whole for part in parts]
    return parts


def _column(
    served: HintedZones,
    zones: int,
    picked: Sequence[int],
    shares: Sequence[float],
    *,
    has_sets: bool,
) -> int | None:
    """Return the column of written hints in the matrix; None if they count as not written."""
    known = {zone for zone in served if 0 <= zone < zones}
    if not known or len(known) < len(served):
        return None
    if not has_sets:
        (zone, *others) = known
        return None if others or zone not in picked else picked.index(zone)
    # A hint for a zone without traffic has no effect; set 0 are hints for such zones alone.
    column = sum(
        1 << position
        for position, zone in enumerate(picked)
        if zone in known and shares[position] > 0.0
    )
    return column if column or not all(shares) else None


def _served(
    column: int, location: int, picked: Sequence[int], shares: Sequence[float], *, has_sets: bool
) -> HintedZones:
    if not has_sets:
        return (picked[column],)
    if column == 0:
        idle = next((at for at, share in enumerate(shares) if not share > 0.0), location)
        return (picked[location if not shares[location] > 0.0 else idle],)
    return tuple(zone for position, zone in enumerate(picked) if column >> position & 1)
