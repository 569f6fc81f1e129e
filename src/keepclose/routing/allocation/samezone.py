"""The allocator "same-zone": every endpoint serves the clients of its own zone and nobody else.

This is what `trafficDistribution: PreferClose` hints for (KEP-4444): nothing is weighed, so a zone
may be overloaded without limit, and a zone without endpoints is served by nobody here; what its
clients do then is for the caller to say. It never moves an endpoint.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

ALLOCATED: Final = 1
RANDOM: Final = 0


def allocate_same_zone(  # noqa: PLR0917 - the signature all allocators of this kind share
    zones: int,
    shares: Sequence[float],  # noqa: ARG001
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    matrix: MutableSequence[int],
    ints: MutableSequence[int],  # noqa: ARG001
    floats: MutableSequence[float],  # noqa: ARG001
) -> int:
    """Fill the flat matrix (location times zones plus served zone); return ALLOCATED.

    Without any endpoints the matrix is all zeros and RANDOM is returned.
    """
    code = RANDOM
    for cell in range(zones * zones):
        matrix[cell] = 0
    for zone in range(zones):
        matrix[zone * zones + zone] = endpoints[zone]
        if endpoints[zone] > 0:
            code = ALLOCATED
    return code
