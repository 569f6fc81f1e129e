"""Allocation with weights: each zone gets exactly its share of the endpoints, in fractions.

An endpoint may serve several zones, each with a part of its capacity. A zone is served by its own
endpoints up to its share; the surplus of zones goes to all zones that lack endpoints, in proportion
to their need. No endpoint is overloaded, and no allocation without overload keeps more traffic in
its zone. It needs a proxy that honors weights: hints alone cannot express it.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

WEIGHTED: Final = 1
IMPOSSIBLE: Final = 0

_SLICE_SIZE: Final = 100


def weighted_matrix(
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    flows: MutableSequence[float],
) -> int:
    """Fill the flat matrix of flows (location times zones plus served zone); return WEIGHTED.

    A client in zone j picks an endpoint located in zone i with a weight of flow(i, j) divided by
    the endpoints located in i. Shares add up to 1. Without endpoints or without traffic the flows
    are zeros and the answer is IMPOSSIBLE.
    """
    total = 0
    traffic = 0.0
    for zone in range(zones):
        total += endpoints[zone]
        traffic += shares[zone]
    for cell in range(zones * zones):
        flows[cell] = 0.0
    if total <= 0 or not traffic > 0.0:
        return IMPOSSIBLE
    lacking = 0.0
    for zone in range(zones):
        lacking += max(0.0, total * shares[zone] - endpoints[zone])
    for location in range(zones):
        expected = total * shares[location]
        flows[location * zones + location] = min(expected, endpoints[location])
        surplus = max(0.0, endpoints[location] - expected)
        if lacking > 0.0:
            for zone in range(zones):
                need = max(0.0, total * shares[zone] - endpoints[zone])
                flows[location * zones + zone] += surplus * (need / lacking)
    return WEIGHTED


def evaluate_weighted(
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    flows: Sequence[float],
    out: MutableSequence[float],
) -> int:
    """Fill `out` with the seven figures of a matrix of flows; return 1, or 0 without endpoints.

    The figures are: in-zone traffic, largest and mean deviation of an endpoint's load, the spread
    around the mean of the absolute deviations, the spread around the mean of the signed ones, and
    slices twice, because weights need no more slices than plain hints. All endpoints of a location
    carry the same load. A zone that no endpoint serves uses all endpoints alike.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total <= 0:
        return 0
    in_zone = 0.0
    maximum = 0.0
    absolute = 0.0
    signed = 0.0
    squared = 0.0
    for location in range(zones):
        load = 0.0
        for zone in range(zones):
            reach = 0.0
            for source in range(zones):
                reach += flows[source * zones + zone]
            part = endpoints[location] / total
            if reach > 0.0:
                part = flows[location * zones + zone] / reach
            load += shares[zone] * part
            if zone == location:
                in_zone += shares[zone] * part
        count = endpoints[location]
        if count > 0:
            deviation = total * load / count - 1.0
            maximum = max(maximum, deviation)
            absolute += count * abs(deviation)
            signed += count * deviation
            squared += count * deviation * deviation
    mean = absolute / total
    centre = signed / total
    out[0] = in_zone
    out[1] = maximum
    out[2] = mean
    out[3] = math.sqrt(max(squared / total - 2.0 * mean * centre + mean * mean, 0.0))
    out[4] = math.sqrt(max(squared / total - centre * centre, 0.0))
    out[5] = (total + _SLICE_SIZE - 1) // _SLICE_SIZE
    out[6] = out[5]
    return 1
