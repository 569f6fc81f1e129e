"""What an allocation does to traffic: in-zone share, deviation of load, number of slices, score.

Follows the reference simulator of KEP-2004: traffic is computed, not sampled. The clients of a zone
spread over the groups they can reach by size times weight, and evenly over the endpoints of a
group. The functions are plain, over flat sequences of numbers and in the subset of Python that
numba compiles; sums run over zones in order and groups in order, so a result is the same on every
run. They never raise, and never divide by zero: a case without a result is invalid.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Final

VALID: Final = 1
INVALID: Final = 0

# The index of each figure in the output; all are fractions or counts, none is a percentage.
IN_ZONE: Final = 0
MAX_DEVIATION: Final = 1
MEAN_DEVIATION: Final = 2
SPREAD: Final = 3  # around the mean of the ABSOLUTE deviations, as in the reference
TRUE_SPREAD: Final = 4  # around the mean of the signed deviations
SLICES: Final = 5
REFERENCE_SLICES: Final = 6
FIGURES: Final = 7

_SLICE_SIZE: Final = 100


def evaluate_groups(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    groups: int,
    comp: Sequence[int],
    weight: MutableSequence[float],
    out: MutableSequence[float],
) -> int:
    """Fill `out` with the seven figures of an allocation in groups; return VALID or INVALID.

    `comp[g*zones+z]` endpoints located in zone z are listed in group g, and `weight[g*zones+z]` is
    how much g attracts the clients of z. No groups (0) mean one group of all endpoints for all
    clients. A zone that reaches no endpoint makes the whole row INVALID, even without clients;
    `out` then has no meaning.

    NB: at most 3*zones groups; the two rows of `weight` behind that room are scratch space.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total <= 0:
        return INVALID
    reference = (total + _SLICE_SIZE - 1) // _SLICE_SIZE

    if groups == 0:
        in_zone = 0.0
        traffic = 0.0
        for zone in range(zones):
            traffic += shares[zone]
            in_zone += shares[zone] * endpoints[zone] / total
        # Without any clients every endpoint lacks all of its load: a deviation of -1.
        deviation = 0.0 if traffic > 0.0 else -1.0
        out[0] = in_zone
        out[1] = 0.0
        # NB: not the negation, which would be -0.0.
        out[2] = 0.0 - deviation
        out[3] = 0.0 - 2.0 * deviation
        out[4] = 0.0
        out[5] = reference
        out[6] = reference
        return VALID

    own = 3 * zones * zones
    reach = own + zones
    for zone in range(zones):
        weight[own + zone] = 0.0
        weight[reach + zone] = 0.0
    slices = 0
    for group in range(groups):
        row = group * zones
        size = 0
        for zone in range(zones):
            size += comp[row + zone]
        slices += (size + _SLICE_SIZE - 1) // _SLICE_SIZE
        for zone in range(zones):
            attraction = weight[row + zone]
            if size * attraction < 0.0:
                return INVALID
            weight[reach + zone] += size * attraction
            weight[own + zone] += comp[row + zone] * attraction

    in_zone = 0.0
    for zone in range(zones):
        if not weight[reach + zone] > 0.0:
            return INVALID
        # From here on the row holds what one endpoint of weight 1 gets from the clients of a zone.
        weight[reach + zone] = shares[zone] / weight[reach + zone]
        in_zone += weight[reach + zone] * weight[own + zone]

    listed = 0
    maximum = 0.0
    absolute = 0.0
    signed = 0.0
    squared = 0.0
    for group in range(groups):
        row = group * zones
        size = 0
        load = 0.0
        for zone in range(zones):
            size += comp[row + zone]
            load += weight[row + zone] * weight[reach + zone]
        if size > 0:
            deviation = total * load - 1.0
            maximum = max(maximum, deviation)
            listed += size
            absolute += size * abs(deviation)
            signed += size * deviation
            squared += size * deviation * deviation
    _write_figures(total, listed, in_zone, maximum, absolute, signed, squared, out)
    out[5] = slices
    out[6] = reference
    return VALID


def evaluate_matrix(  # noqa: PLR0917 - one flat function is what a compiler takes
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    matrix: Sequence[int],
    hints: int,
    out: MutableSequence[float],
) -> int:
    """Fill `out` with the seven figures of a matrix of endpoints; return VALID or INVALID.

    `matrix[i*zones+j]` endpoints located in zone i serve the clients of zone j. With `hints` 0 each
    zone has slices of its own, and a zone that no endpoint serves makes the whole row INVALID. With
    `hints` 1 there are no more slices than without, and such a zone uses all endpoints, as
    kube-proxy does when no endpoint has a hint for its zone. A row without endpoints is INVALID;
    `out` then has no meaning.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total <= 0:
        return INVALID
    reference = (total + _SLICE_SIZE - 1) // _SLICE_SIZE

    everywhere = 0.0
    for zone in range(zones if hints != 0 else 0):
        size = 0
        for location in range(zones):
            size += matrix[location * zones + zone]
        if size == 0:
            everywhere += shares[zone] / total

    slices = 0
    in_zone = 0.0
    listed = 0
    maximum = 0.0
    absolute = 0.0
    signed = 0.0
    squared = 0.0
    for zone in range(zones):
        size = 0
        for location in range(zones):
            size += matrix[location * zones + zone]
        slices += (size + _SLICE_SIZE - 1) // _SLICE_SIZE
        if size == 0 and hints == 0:
            return INVALID
        if size == 0:
            in_zone += shares[zone] / total * endpoints[zone]
        else:
            load = shares[zone] / size
            in_zone += load * matrix[zone * zones + zone]
            deviation = total * (load + everywhere) - 1.0
            maximum = max(maximum, deviation)
            listed += size
            absolute += size * abs(deviation)
            signed += size * deviation
            squared += size * deviation * deviation
    _write_figures(total, listed, in_zone, maximum, absolute, signed, squared, out)
    out[5] = slices if hints == 0 else reference
    out[6] = reference
    return VALID


def score(  # noqa: PLR0917 - called from compiled code, which takes positions only
    in_zone: float,
    maximum: float,
    mean: float,
    slices: float,
    reference: float,
    w_in_zone: float = 0.45,
    w_max: float = 0.20,
    w_mean: float = 0.20,
    w_slices: float = 0.15,
) -> float:
    """Return the weighted score of an evaluation, 100 at best with the weights of the KEP."""
    ratio = 100.0 * reference / slices if slices > 0.0 else 0.0
    return (
        w_in_zone * (100.0 * in_zone)
        + w_max * (100.0 - 100.0 * maximum)
        + w_mean * (100.0 - 100.0 * mean)
        + w_slices * ratio
    )


def _write_figures(  # noqa: PLR0917 - called from compiled code, which takes positions only
    total: int,
    listed: int,
    in_zone: float,
    maximum: float,
    absolute: float,
    signed: float,
    squared: float,
    out: MutableSequence[float],
) -> None:
    """Write the five figures of traffic from sums over all listed endpoints."""
    mean = absolute / total
    # Both spreads are expanded squares: the signed deviations add up to nearly nothing, so there is
    # no loss by cancellation. An endpoint that float rounding left in no group gets no traffic; it
    # counts in the true spread only.
    spread = (squared - 2.0 * mean * signed + mean * mean * listed) / total
    lost = total - listed
    centre = (signed - lost) / total
    true_spread = (squared + lost) / total - centre * centre
    out[0] = in_zone
    out[1] = maximum
    out[2] = mean
    out[3] = math.sqrt(max(spread, 0.0))
    out[4] = math.sqrt(max(true_spread, 0.0))
