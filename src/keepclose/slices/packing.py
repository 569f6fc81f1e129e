"""How many endpoints go into which slice, decided on sizes alone.

Follows the EndpointSlice controller: slices that are written anyway are filled first, fullest
first. Then one unchanged slice is touched only if it takes all the rest, and the one that it fills
best; else slices are created. So a single new slice is preferred to several small updates, and
nothing is ever moved to save space. Ties go to the slice whose name comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from keepclose.model.endpointslice.types import EndpointSlice


class SlicePlan(msgspec.Struct, frozen=True):
    """The writes for one Service and address type, and the slices that stay as they are.

    Slices to create have no name yet. `added` and `removed` count endpoints; those in slices whose
    ports nobody wants any more do not count as removed. The other counts say what becomes of
    endpoints that are in slices already.
    """

    create: tuple[EndpointSlice, ...] = ()
    update: tuple[EndpointSlice, ...] = ()
    delete: tuple[EndpointSlice, ...] = ()
    unchanged: tuple[EndpointSlice, ...] = ()
    added: int = 0
    removed: int = 0
    reallocated: int = 0
    """Endpoints that leave their zone, or the zone that they were lent to, for another."""
    rehinted: int = 0
    """Endpoints that get other hints than were written."""
    withheld: int = 0
    """Slices that are not created because their Service is being deleted."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.create or self.update or self.delete)


class Share(NamedTuple):
    """So many of the endpoints that are left go to this slice; "" stands for a new one."""

    slice_name: str
    number: int


def pack(
    count: int, *, updating: Mapping[str, int], unchanged: Mapping[str, int], max_endpoints: int
) -> tuple[Share, ...]:
    """Return where `count` endpoints without a slice go; the shares add up to `count`.

    `updating` and `unchanged` give the sizes of the slices, by name. A limit below one counts as
    one.
    """
    limit = max(max_endpoints, 1)
    shares: list[Share] = []
    for name, size in sorted(updating.items(), key=lambda item: (-item[1], item[0])):
        room = min(limit - size, count)
        if room > 0:
            shares.append(Share(name, room))
            count -= room
    while count > 0:
        if count < limit and (best := _best_fit(count, unchanged, limit)) is not None:
            shares.append(Share(best, count))
            break
        portion = min(count, limit)
        shares.append(Share("", portion))
        count -= portion
    return tuple(shares)


def _best_fit(count: int, sizes: Mapping[str, int], limit: int) -> str | None:
    fitting = [(limit - size, name) for name, size in sizes.items() if size + count <= limit]
    return min(fitting)[1] if fitting else None
