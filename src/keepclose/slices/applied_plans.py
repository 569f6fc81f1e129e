"""The slices after the writes of a plan, as an API server would store them.

Created slices are named, generations counted and identities kept, with numbered names and uids, so
that the same writes always give the same slices. For programs that play a controller in memory; a
real controller writes to an API server and observes what it answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.slices.packing import SlicePlan

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_MAX_BASE: Final = 58


def apply_plan(existing: Iterable[EndpointSlice], plan: SlicePlan) -> list[EndpointSlice]:
    """Return the slices, by name, after creations, updates and deletions in this order.

    Raises LookupError for an update or a deletion of a slice that does not exist.
    """
    stored = {endpoint_slice.metadata.name: endpoint_slice for endpoint_slice in existing}
    for endpoint_slice in plan.create:
        name = endpoint_slice.metadata.name or _free_name(
            endpoint_slice.metadata.generate_name, stored
        )
        metadata = replace(
            endpoint_slice.metadata,
            name=name,
            uid=f"uid-{name}",
            resource_version="1",
            generation=1,
        )
        stored[name] = replace(endpoint_slice, metadata=metadata)
    for endpoint_slice in plan.update:
        stored[endpoint_slice.metadata.name] = _updated(
            stored[endpoint_slice.metadata.name], endpoint_slice
        )
    for endpoint_slice in plan.delete:
        del stored[endpoint_slice.metadata.name]
    return [stored[name] for name in sorted(stored)]


def _updated(old: EndpointSlice, new: EndpointSlice) -> EndpointSlice:
    same_content = (
        old.endpoints == new.endpoints
        and old.ports == new.ports
        and old.metadata.labels == new.metadata.labels
    )
    metadata = replace(
        new.metadata,
        uid=old.metadata.uid,
        creation_timestamp=old.metadata.creation_timestamp,
        resource_version=str(int(old.metadata.resource_version or "0") + 1),
        generation=old.metadata.generation + (0 if same_content else 1),
    )
    return replace(new, metadata=metadata, address_type=old.address_type)


def _free_name(prefix: str, taken: Mapping[str, EndpointSlice]) -> str:
    number = len(taken)
    while (name := prefix[:_MAX_BASE] + _suffix(number)) in taken:
        number += 1
    return name


def _suffix(number: int) -> str:
    digits = ""
    for _ in range(_SUFFIX_LENGTH):
        number, digit = divmod(number, len(_LETTERS))
        digits = _LETTERS[digit] + digits
    return digits
