"""The allocation of the topology mode Auto (KEP-2433), as the EndpointSlice controller computes it.

The target of each zone is its share of the endpoints; its minimum is that share divided by one plus
the overload threshold, rounded up. If the minimums add up to more than the endpoints, nothing is
allocated. Zones above their target lend endpoints to zones below it, the largest surplus to the
largest need. This is the only place that computes it. The order of the float operations is that of
the controller and decides roundings, so it must never change.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

KUBE_AUTO_ALLOCATED: Final = 1
INFEASIBLE: Final = 0


def allocate_kube_auto(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,
    start: float,  # noqa: ARG001 - all allocators of this kind are called alike
    matrix: MutableSequence[int],
    ints: MutableSequence[int],
    floats: MutableSequence[float],
) -> int:
    """Fill the flat matrix (location times zones plus served zone) as from nothing written.

    Returns KUBE_AUTO_ALLOCATED, or INFEASIBLE with a matrix of zeros: fewer than two zones with
    traffic, fewer endpoints than such zones, or minimums that exceed the endpoints. Zones without
    traffic take no part; their endpoints stay with them. `start` is not used.
    """
    for cell in range(zones * zones):
        matrix[cell] = 0
    total = 0
    busy = 0
    for zone in range(zones):
        total += endpoints[zone]
        if shares[zone] > 0.0:
            busy += 1
    if busy < 2 or busy > total:
        return INFEASIBLE
    if set_targets(zones, shares, total, threshold, ints, floats) < 0:
        return INFEASIBLE
    for zone in range(zones):
        floats[zone] = endpoints[zone] - floats[zone] if shares[zone] > 0.0 else 0.0
        matrix[zone * zones + zone] = endpoints[zone]
    lend_endpoints(zones, floats, ints)
    # Givers come in name order; each endpoint goes to the zone that still needs most.
    for giver in range(zones):
        for _ in range(ints[giver]):
            taker = 0
            for zone in range(1, zones):
                if ints[zones + zone] > ints[zones + taker]:
                    taker = zone
            ints[zones + taker] -= 1
            matrix[giver * zones + giver] -= 1
            matrix[giver * zones + taker] += 1
    return KUBE_AUTO_ALLOCATED


def least_endpoints(share: float, total: int, threshold: float) -> int:
    """Return how many of all endpoints a zone needs to stay within the overload threshold."""
    # NB: multiplied by the reciprocal, not divided, for the same rounding as the original.
    return math.ceil(share * total * (1 / (1 + threshold)))


def set_targets(  # noqa: PLR0917 - compiled code takes positions only
    zones: int,
    shares: Sequence[float],
    total: int,
    threshold: float,
    minimums: MutableSequence[int],
    targets: MutableSequence[float],
) -> int:
    """Write the minimum and the target of each zone; return what is left beyond all minimums.

    A negative result means that the threshold cannot be kept in every zone.
    """
    spare = total
    for zone in range(zones):
        minimums[zone] = least_endpoints(shares[zone], total, threshold)
        targets[zone] = max(shares[zone] * total, float(minimums[zone]))
        spare -= minimums[zone]
    return spare


def lend_endpoints(
    zones: int, surplus: MutableSequence[float], counts: MutableSequence[int]
) -> None:
    """Write how many endpoints each zone gives, then how many each receives, to `counts`.

    `surplus` is what each zone has beyond its target, negative for a need; it is used up. One
    endpoint at a time goes from the largest surplus to the largest need, as long as both are at
    least half an endpoint and one of them a whole one. Among equals the first zone is taken.
    """
    # NB: half a surplus turns into half a need by giving. It is never served: half a surplus gives
    # only when no larger one is left, and two halves move nothing. The same holds for takers.
    for zone in range(2 * zones):
        counts[zone] = 0
    while True:
        giver = -1
        taker = -1
        extra = 0.0
        lack = 0.0
        for zone in range(zones):
            if surplus[zone] > extra:
                giver = zone
                extra = surplus[zone]
            if -surplus[zone] > lack:
                taker = zone
                lack = -surplus[zone]
        if extra < 0.5 or lack < 0.5 or (extra < 1.0 and lack < 1.0):
            return
        surplus[giver] -= 1.0
        surplus[taker] += 1.0
        counts[giver] += 1
        counts[zones + taker] += 1
