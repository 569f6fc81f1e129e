"""Written weights: an annotation of slices that says how clients of a zone divide their traffic.

The controller that renders and the proxy that parses share this module. The annotation holds a
weight for each pair of zones, never one per endpoint, so its size does not grow with the endpoints;
and it says which part of the traffic follows the hints of the same slices instead. One slice of a
Service and address family holds it. Several that hold it must agree.

Any client with rights on slices can write anything there: what is not exactly of this form gives
weights with a problem, which no proxy follows. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION

MAX_WEIGHT: Final = 10_000
"""The greatest weight: with fewer, 1,000 endpoints of small weight would get other parts."""
ALL_BY_HINTS: Final = 1000
"""The value of `hints` with which all traffic follows the hints."""
MAX_WEIGHTS_BYTES: Final = 65_536
"""The longest annotation that is read or written; 50 zones need less than 60 kB."""

WeightMatrix = Mapping[str, Mapping[str, int]]
"""Weight of one endpoint, by the zone of its client and the zone it is located in; 0 if absent."""


class ZoneWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of the endpoints of a Service, by the zone of the client."""

    weights: WeightMatrix = {}
    hints: int = 0
    """How many thousandths of the traffic follow the hints."""
    problem: str = ""
    """Why the weights cannot be followed."""

    def __hash__(self) -> int:
        return hash((self.hints, self.problem, len(self.weights)))


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    weights: WeightMatrix
    hints: int = 0


_DECODER: Final = msgspec.json.Decoder(_Form)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def render_zone_weights(zone_weights: ZoneWeights) -> str:
    """Return the annotation; equal weights give equal text."""
    return _ENCODER.encode(_Form(zone_weights.weights, zone_weights.hints)).decode()


def is_too_long(text: str) -> bool:
    """Return whether an annotation is longer than any that is read or written."""
    return len(text) > MAX_WEIGHTS_BYTES


def parse_zone_weights(text: str) -> ZoneWeights:
    """Return the weights of an annotation; with a problem if it is not of the form."""
    if is_too_long(text):
        return ZoneWeights(problem=f"they are longer than {MAX_WEIGHTS_BYTES:,} characters")
    try:
        form = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ZoneWeights(problem="they are not of the documented form")
    if not 0 <= form.hints <= ALL_BY_HINTS or not form.weights:
        return ZoneWeights(problem="they are not of the documented form")
    for row in form.weights.values():
        if not all(0 <= weight <= MAX_WEIGHT for weight in row.values()) or not any(row.values()):
            return ZoneWeights(
                problem=f"a weight is not between 0 and {MAX_WEIGHT:,}, or all are 0"
            )
    return ZoneWeights(weights=form.weights, hints=form.hints)


def hold_weights(slices: Iterable[EndpointSlice]) -> bool:
    """Return whether any of the slices holds weights, valid or not."""
    return any(
        ZONE_WEIGHTS_ANNOTATION in endpoint_slice.metadata.annotations for endpoint_slice in slices
    )


def read_zone_weights(slices: Iterable[EndpointSlice]) -> ZoneWeights | None:
    """Return the weights of the slices of one Service and family; None if no slice holds any."""
    texts = {
        text
        for endpoint_slice in slices
        if (text := endpoint_slice.metadata.annotations.get(ZONE_WEIGHTS_ANNOTATION)) is not None
    }
    if not texts:
        return None
    if len(texts) > 1:
        return ZoneWeights(problem="the slices of the Service disagree")
    return parse_zone_weights(texts.pop())
