"""The allocators with a global group: "shared-global" and "shared-multizone".

Every zone has a group of its own. Endpoints beyond the need of their zone form one global group of
lower weight, which the clients of all zones use. The results are those of the reference simulator
of KEP-2004. No overload limit is kept, and endpoints are never split.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

SMALLEST_TOTAL: Final = 101  # up to one full slice all endpoints stay together
GLOBAL_WEIGHT: Final = 0.4
MULTIZONE_WEIGHT: Final = 1.0


def allocate_shared_global(  # noqa: PLR0917 - the signature all allocators of this kind share
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    comp: MutableSequence[int],
    weight: MutableSequence[float],
    ints: MutableSequence[int],  # noqa: ARG001
    floats: MutableSequence[float],  # noqa: ARG001
) -> int:
    """Fill the groups of "shared-global"; return their number, or 0 for one group of all."""
    return _lend_surplus(zones, shares, endpoints, GLOBAL_WEIGHT, 0, comp, weight)


def allocate_shared_multizone(  # noqa: PLR0917 - the signature all allocators of this kind share
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,  # noqa: ARG001
    start: float,  # noqa: ARG001
    comp: MutableSequence[int],
    weight: MutableSequence[float],
    ints: MutableSequence[int],  # noqa: ARG001
    floats: MutableSequence[float],  # noqa: ARG001
) -> int:
    """Fill the groups of "shared-multizone"; return their number, or 0 for one group of all.

    Clients of a zone that lends and still has endpoints use only its own group.
    """
    return _lend_surplus(zones, shares, endpoints, MULTIZONE_WEIGHT, 1, comp, weight)


def _lend_surplus(  # noqa: PLR0917 - called from compiled code, which takes positions only
    zones: int,
    shares: Sequence[float],
    endpoints: Sequence[int],
    attraction: float,
    stay_home: int,
    comp: MutableSequence[int],
    weight: MutableSequence[float],
) -> int:
    """Fill one group per zone and the global one behind them; return the number of groups.

    The lower the weight of the global group, the more endpoints of it a surplus is worth.
    """
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total < SMALLEST_TOTAL:
        return 0
    pool = zones * zones
    for cell in range(pool):
        comp[cell] = 0
        weight[cell] = 0.0
    for zone in range(zones):
        count = endpoints[zone]
        surplus = max(count - total * shares[zone], 0.0) / attraction
        lent = int(min(surplus, float(count)))
        comp[zone * zones + zone] = count - lent
        weight[zone * zones + zone] = 1.0
        comp[pool + zone] = lent
        weight[pool + zone] = 0.0 if stay_home and 0 < lent < count else attraction
    return zones + 1
