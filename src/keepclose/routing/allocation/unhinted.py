"""Zones without endpoints: whether some endpoints should serve them, or all.

Where no endpoint is hinted for a zone, its clients use all endpoints, as kube-proxy has it. They
load every endpoint alike then, by the part of the traffic that they send, and the others share the
rest: what is left is the same question with fewer zones and less traffic. With the part u left to
all endpoints every deviation is 1 - u times that of the smaller question, so its best sizes are the
best sizes for all.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.routing.allocation.hysteresis import HYSTERESIS
from keepclose.routing.allocation.zone_sizes import (
    ALLOCATED,
    ROUNDING,
    SCORE_IN_ZONE,
    SCORE_MAXIMUM,
    SCORE_MEAN,
    SCORE_OBJECTIVE,
    choose_sizes,
)

REVERSAL: Final = 4.0
"""Points to be gained before zones that have hinted endpoints are left to all, and these re-hinted.

Zones come and go as pods do: the next endpoint that starts there would have all of them back.
"""

SERVED: Final = 16
"""Where in `floats` the shares of the zones begin that are served by endpoints of their own."""


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

    Only zones without endpoints are, all of them, and only where the objective is better for it.
    `lean` is 1 where the written hints leave them so, -1 where endpoints are hinted for them, and 0
    where nothing is written. From SERVED on `floats` holds the shares of the other zones,
    as parts of what they send together; in terms of these `floats[0]` becomes the bound that was
    kept and `floats[1]` the objective of which HYSTERESIS may be lost. `floats[2]` becomes the part
    of the traffic that is left to all endpoints.
    """
    total = 0
    left = 0.0
    together = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        if endpoints[zone] == 0:
            left += shares[zone]
        together += SCORE_IN_ZONE * shares[zone] * endpoints[zone]
    code = choose_sizes(zones, shares, endpoints, bound, objective, ints, floats)
    kept = floats[0]
    whole = floats[1]
    best = whole if code == ALLOCATED else together / max(1, total)
    if objective == SCORE_OBJECTIVE and 0.0 < left < 1.0 - ROUNDING:
        rest = 1.0 - left
        for zone in range(zones):
            ints[8 * zones + zone] = ints[zone]
            floats[SERVED + zone] = shares[zone] / rest if endpoints[zone] > 0 else 0.0
        served = floats[SERVED : SERVED + zones]
        choose_sizes(zones, served, endpoints, bound / rest, objective, ints, floats)
        # Where every zone can have endpoints of its own, no more overload is taken than that has.
        is_divisible = whole > -math.inf
        most = kept / rest if is_divisible else math.inf
        own = own_value(zones, served, endpoints, most)
        if is_divisible and own > floats[1] + ROUNDING and floats[0] < most:
            choose_sizes(zones, served, endpoints, most, objective, ints, floats)
        is_kept = floats[0] <= most + ROUNDING
        if own > floats[1] + ROUNDING and not is_divisible:
            for zone in range(zones):
                ints[zone] = endpoints[zone] if served[zone] > 0.0 else 0
            floats[0] = max(floats[0], own_overload(zones, served, endpoints))
            floats[1] = own
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
        floats[SERVED + zone] = shares[zone]
    floats[2] = 0.0
    return code


def own_overload(zones: int, shares: Sequence[float], endpoints: Sequence[int]) -> float:
    """Return the largest overload when every endpoint serves its own zone; inf where that fails."""
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
    """Return the score when every endpoint serves its own zone; -inf beyond the bound.

    Endpoints of zones without traffic get no connections then.
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
