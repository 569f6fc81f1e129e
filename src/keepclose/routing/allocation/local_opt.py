"""The allocator "local-opt": a group of endpoints for each zone, and one of low weight for all.

Whole endpoints that zones do not need form the global group. The result is that of the reference
simulator of KEP-2004. No overload limit is kept, and endpoints are never split.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence


def allocate_local_opt(  # noqa: PLR0917 - the signature all allocators of this kind share
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    comp: MutableSequence[int],
    weight: MutableSequence[float],
    ints: MutableSequence[int],
    floats: MutableSequence[float],  # noqa: ARG001
) -> int:
    """Fill one group per zone and, if endpoints are left, a global one; return their number.

    A zone keeps as many endpoints as it expects and offers all beyond that, where a fraction counts
    as a whole endpoint. Zones that lack whole endpoints take from the offers in name order, and the
    rest is the global group. No zones give 0, which means one group of all endpoints.

    NB: the float rounding of the reference simulator may lose an endpoint; it is kept.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    for cell in range(zones * zones):
        comp[cell] = 0
        weight[cell] = 0.0

    # What each zone offers (above zero) or lacks (below).
    for zone in range(zones):
        count = endpoints[zone]
        expected = total * shares[zone]
        comp[zone * zones + zone] = min(count, int(expected))
        weight[zone * zones + zone] = 1.0
        ints[zone] = math.ceil(count - expected)

    source = 0
    for zone in range(zones):
        lacking = -ints[zone]
        while lacking > 0 and source < zones:
            moved = max(0, min(lacking, ints[source]))
            comp[zone * zones + source] += moved
            ints[source] -= moved
            lacking -= moved
            if ints[source] <= 0:
                source += 1

    while source < zones and ints[source] <= 0:
        source += 1
    if source >= zones:
        return zones
    pool = zones * zones
    attraction = 1.0 / zones
    for zone in range(zones):
        comp[pool + zone] = max(ints[zone], 0)
        weight[pool + zone] = attraction
    return zones + 1
