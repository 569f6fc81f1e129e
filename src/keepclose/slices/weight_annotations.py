"""Which slice holds the written weights of a Service and address family.

One slice is enough, and proxies change from the old weights to the new ones at once. The slice that
holds them already keeps them; else they go into one that is written anyway, so that they cost a
write of their own only if nothing else changes. Stale weights are removed from every other slice.
This module never decides which weights there are.
"""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION
from keepclose.model.zone_weights import ZoneWeights, render_zone_weights
from keepclose.routing.hints import SliceSet


def annotate_weights(slices: SliceSet, weights: ZoneWeights | None) -> SliceSet:
    """Return the slices of one family with these weights in one of them; None removes all.

    Without slices there is nothing to write.
    """
    text = None if weights is None else render_zone_weights(weights)
    holders = [each for each in slices.all if ZONE_WEIGHTS_ANNOTATION in each.metadata.annotations]
    if text is None and not holders:
        return slices
    # Slices to create come last: until they exist, no proxy could read weights from them.
    written = (*slices.update, *slices.unchanged)
    candidates = [
        *(each for each in written if ZONE_WEIGHTS_ANNOTATION in each.metadata.annotations),
        *slices.update,
        *slices.create,
        *slices.unchanged,
    ]
    holder = candidates[0] if text is not None else None
    changed = {
        id(each): new
        for each in (*holders, *(() if holder is None else (holder,)))
        if (new := _with_weights(each, text if each is holder else None)) is not each
    }
    return SliceSet(
        create=tuple([changed.get(id(each), each) for each in slices.create]),
        update=(
            *[changed.get(id(each), each) for each in slices.update],
            *[changed[id(each)] for each in slices.unchanged if id(each) in changed],
        ),
        unchanged=tuple([each for each in slices.unchanged if id(each) not in changed]),
    )


def _with_weights(endpoint_slice: EndpointSlice, text: str | None) -> EndpointSlice:
    annotations = endpoint_slice.metadata.annotations
    if annotations.get(ZONE_WEIGHTS_ANNOTATION) == text:
        return endpoint_slice
    changed = {key: value for key, value in annotations.items() if key != ZONE_WEIGHTS_ANNOTATION}
    if text is not None:
        changed[ZONE_WEIGHTS_ANNOTATION] = text
    return replace(endpoint_slice, metadata=replace(endpoint_slice.metadata, annotations=changed))
