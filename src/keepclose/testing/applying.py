"""An API server in one function: what exists after a plan of slice writes was carried out.

Does what the real one does to slices: names creations from their prefix, counts generations, keeps
identities. Names and uids are numbered, so that a test always sees the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.slices.packing import SlicePlan

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_LONGEST_BASE = 58


def apply_plan(existing: Iterable[EndpointSlice], plan: SlicePlan) -> list[EndpointSlice]:
    """Return the slices, by name, after creations, updates and deletions in this order.

    Raises LookupError for an update or a deletion of a slice that does not exist.
    """
    stored = {piece.metadata.name: piece for piece in existing}
    for piece in plan.create:
        name = piece.metadata.name or _free_name(piece.metadata.generate_name, stored)
        metadata = replace(
            piece.metadata, name=name, uid=f"uid-{name}", resource_version="1", generation=1
        )
        stored[name] = replace(piece, metadata=metadata)
    for piece in plan.update:
        stored[piece.metadata.name] = _updated(stored[piece.metadata.name], piece)
    for piece in plan.delete:
        del stored[piece.metadata.name]
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
    while (name := prefix[:_LONGEST_BASE] + _suffix(number)) in taken:
        number += 1
    return name


def _suffix(number: int) -> str:
    digits = ""
    for _ in range(_SUFFIX_LENGTH):
        number, digit = divmod(number, len(_LETTERS))
        digits = _LETTERS[digit] + digits
    return digits
