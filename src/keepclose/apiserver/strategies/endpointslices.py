"""What becomes of an EndpointSlice when it is written, by the rules of the model.

The generation tells whoever wrote a slice whether it was changed since, so it counts labels too.
Hints whose gate is off are dropped unless the stored slice has some.
"""

from __future__ import annotations

from keepclose.apiserver.registry.metadata import beyond_metadata, carry_system_metadata
from keepclose.apiserver.registry.strategy import Context
from keepclose.apiserver.strategies.overlay import carry
from keepclose.apiserver.strategies.plain import PlainStrategy
from keepclose.apiserver.strategies.typed import read_as
from keepclose.model.endpointslice.strategy import (
    ALLOWS_CREATE_ON_UPDATE,
    ALLOWS_UNCONDITIONAL_UPDATE,
    prepare_for_create,
    prepare_for_update,
    warnings_on_create,
    warnings_on_update,
)
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.endpointslice.validation import (
    default_endpoint_slice,
    validate_endpoint_slice,
    validate_endpoint_slice_update,
)
from keepclose.model.field_errors import Cause
from keepclose.model.json_values import JsonObject


class EndpointSliceStrategy(PlainStrategy):
    """Slices of endpoints."""

    allows_unconditional_update = ALLOWS_UNCONDITIONAL_UPDATE
    allows_create_on_update = ALLOWS_CREATE_ON_UPDATE
    counts_generations = True

    def set_defaults(self, new: JsonObject) -> None:
        """Set what a client may leave out."""
        before = read_as(EndpointSlice, new)
        carry(new, before, default_endpoint_slice(before))

    def prepare_create(self, new: JsonObject, context: Context) -> None:
        """Set defaults and the first generation, drop what has no gate."""
        before = read_as(EndpointSlice, new)
        after = prepare_for_create(default_endpoint_slice(before), gates=context.gates)
        carry(new, before, after)
        _write_empty(new)

    def prepare_update(
        self, new: JsonObject, old: JsonObject, context: Context, *, subresource: str = ""
    ) -> None:
        """Set defaults and the next generation, drop what has no gate and was not there before."""
        del subresource
        carry_system_metadata(new, old)
        before = read_as(EndpointSlice, new)
        stored = read_as(EndpointSlice, old)
        after = prepare_for_update(default_endpoint_slice(before), stored, gates=context.gates)
        carry(new, before, after)
        _write_empty(new)

    def causes(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[Cause]:
        """Return what is wrong with the slice."""
        new_slice = read_as(EndpointSlice, new)
        if old is None:
            causes = validate_endpoint_slice(new_slice, gates=context.gates)
        else:
            stored = read_as(EndpointSlice, old)
            causes = validate_endpoint_slice_update(new_slice, stored, gates=context.gates)
        return beyond_metadata(causes)

    def warnings(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[str]:
        """Return what to tell the client although the write is followed."""
        del context
        new_slice = read_as(EndpointSlice, new)
        return warnings_on_create(new_slice) if old is None else warnings_on_update(new_slice)


def _write_empty(new: JsonObject) -> None:
    """Write what clients look for even when it is empty."""
    for key in ("endpoints", "ports"):
        if new.get(key) is None:
            new[key] = []
    for endpoint in new["endpoints"]:
        if endpoint.get("conditions") is None:
            endpoint["conditions"] = {}
