"""The allocator "balanced": the best hints for a stated objective, under a bound on overload.

With few endpoints all hints are tried: for several zones, for one, for none. With more endpoints
each one serves one zone, and zones may be left to all endpoints; that is then very near to the
best. There is an answer for every input, never worse than PreferSameZone, the topology mode Auto,
or no hints at all.

Written hints change only if keeping them would cost more than a little of the objective or break
the bound: each change is a write to a slice that all proxies read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.routing.allocation.hint_choice import (
    BALANCED_SCRATCH,
    allocate_balanced_from,
    is_small,
)
from keepclose.routing.allocation.zone_sizes import (
    LOCALITY_OBJECTIVE,
    ROUNDING,
    SCORE_OBJECTIVE,
    SHARED,
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
        total = max(1, sum(endpoints))
        sizes = self.sizes
        return sum(
            share * (row[zone] / sizes[zone] if sizes[zone] else endpoints[zone] / total)
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

    `previous` are the written hints. A strict bound is never relaxed. Shares are divided by their
    sum; negative and non-finite shares count as 0, and a zone that is in only one of the two
    sequences is skipped.
    """
    zones = min(len(shares), len(endpoints))
    counts = [max(0, count) for count in endpoints[:zones]]
    parts = [max(0.0, part) if math.isfinite(part) else 0.0 for part in shares[:zones]]
    whole = sum(parts)
    if whole and not math.isclose(whole, 1.0, rel_tol=ROUNDING):
        parts = [part / whole for part in parts]
    code = LOCALITY_OBJECTIVE if objective is Objective.LOCALITY else SCORE_OBJECTIVE
    limit = max(0.0, bound)
    has_sets = is_small(zones, counts, code)
    columns = 1 << zones if has_sets else zones
    written = [0] * (zones * columns)
    busy = sum(1 << zone for zone in range(zones) if parts[zone] > 0.0) if has_sets else 0
    for location, row in enumerate(previous[:zones]):
        for served, number in row.items():
            column = _column(served, zones, busy, has_sets=has_sets)
            if column is not None:
                written[location * columns + column] += max(0, number)
    matrix = [0] * (zones * columns)
    room = BALANCED_SCRATCH * (zones + 1)
    ints, floats = [0] * room, [0.0] * room
    answer = allocate_balanced_from(
        zones, parts, counts, limit, int(is_strict), code, written, matrix, ints, floats
    )
    if answer == SHARED:
        return Balance(tuple({} for _ in range(zones)), None, shared=True)
    idle = next((zone for zone in range(zones) if not parts[zone] > 0.0), None)
    rows = tuple(
        {
            _served(column, location, zones, parts, idle, has_sets=has_sets): number
            for column, number in enumerate(matrix[location * columns : (location + 1) * columns])
            if number
        }
        for location in range(zones)
    )
    result = Balance(rows, None, shared=False)
    sizes = result.sizes
    unhinted = tuple(zone for zone in range(zones) if parts[zone] > 0.0 and sizes[zone] == 0)
    everywhere = sum(parts[zone] for zone in unhinted)
    total = sum(counts)
    worst = max(
        everywhere + total * sum(parts[zone] / sizes[zone] for zone in served) - 1.0
        for row in rows
        for served in row
    )
    relaxed = worst if worst > limit + ROUNDING else None
    return msgspec.structs.replace(result, relaxed=relaxed, unhinted=unhinted)


def _column(served: HintedZones, zones: int, busy: int, *, has_sets: bool) -> int | None:
    """Return the column of written hints in the matrix; None if they count as not written."""
    known = sorted({zone for zone in served if 0 <= zone < zones})
    if not known or len(known) < len(served):
        return None
    if not has_sets:
        return known[0] if len(known) == 1 else None
    # A hint for a zone without traffic has no effect; set 0 are hints for such zones alone.
    return sum(1 << zone for zone in known) & busy


def _served(
    column: int,
    location: int,
    zones: int,
    shares: Sequence[float],
    idle: int | None,
    *,
    has_sets: bool,
) -> HintedZones:
    if not has_sets:
        return (column,)
    if column == 0:
        is_own_idle = not shares[location] > 0.0
        return (location if is_own_idle or idle is None else idle,)
    return tuple(zone for zone in range(zones) if column >> zone & 1)
