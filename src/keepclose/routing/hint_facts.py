"""What the hints of one slice say, in numbers: computed once per slice object.

Whoever writes hints must know of every slice whether its hints are right. Re-reading thousands of
endpoints for that on each change would make the cost grow with what exists instead of with what
changed; a caller that keeps slices keeps their facts beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointHints,
    EndpointSlice,
    ForNode,
    ForZone,
)


class SliceFacts(msgspec.Struct, frozen=True):
    """Facts about the ready endpoints of a slice, except where all are spoken of."""

    ready: int
    by_zone: dict[str, int]
    """Ready endpoints by the zone they are in; "" counts those without one."""
    hinted: dict[str, int]
    """Ready endpoints by hinted zone; an endpoint for several zones counts in each."""
    pairs: dict[tuple[str, str], int]
    """Ready endpoints by (own zone, hinted zone); "" where not exactly one zone is hinted."""
    zone_hinted: int
    """How many ready endpoints have at least one zone hint."""
    node_hinted: int
    """How many ready endpoints have at least one node hint."""
    own_zones: bool
    """Every ready endpoint is hinted to exactly its own zone, or has none and no hint."""
    own_nodes: bool
    """Every ready endpoint is hinted to exactly its own node, or has none and no hint."""
    any_hints: bool
    """Some endpoint, ready or not, carries a hints object."""
    zoneless: Endpoint | None
    """The first ready endpoint without a zone."""
    nodeless: Endpoint | None
    """The first ready endpoint without a node."""


FactsOf = Callable[[EndpointSlice], SliceFacts]


def slice_facts(endpoint_slice: EndpointSlice) -> SliceFacts:
    """Return the facts of a slice; an empty slice has all hints right and none at all."""
    ready = zone_hinted = node_hinted = 0
    by_zone: dict[str, int] = {}
    hinted: dict[str, int] = {}
    pairs: dict[tuple[str, str], int] = {}
    own_zones = own_nodes = True
    any_hints = False
    zoneless = nodeless = None
    for endpoint in endpoint_slice.endpoints:
        hints = endpoint.hints
        if hints is not None:
            any_hints = True
        if endpoint.conditions.ready is not True:
            continue
        ready += 1
        zone = endpoint.zone or ""
        node = endpoint.node_name or ""
        by_zone[zone] = by_zone.get(zone, 0) + 1
        if not zone and zoneless is None:
            zoneless = endpoint
        if not node and nodeless is None:
            nodeless = endpoint
        target = ""
        if hints is None or not hints.for_zones:
            own_zones = own_zones and not zone
        else:
            zone_hinted += 1
            for hint in hints.for_zones:
                hinted[hint.name] = hinted.get(hint.name, 0) + 1
            if len(hints.for_zones) == 1:
                target = hints.for_zones[0].name
            own_zones = own_zones and target == zone and len(hints.for_zones) == 1
        if hints is None or not hints.for_nodes:
            own_nodes = own_nodes and not node
        else:
            node_hinted += 1
            own_nodes = own_nodes and len(hints.for_nodes) == 1 and hints.for_nodes[0].name == node
        pair = (zone, target)
        pairs[pair] = pairs.get(pair, 0) + 1
    return SliceFacts(
        ready=ready,
        by_zone=by_zone,
        hinted=hinted,
        pairs=pairs,
        zone_hinted=zone_hinted,
        node_hinted=node_hinted,
        own_zones=own_zones,
        own_nodes=own_nodes,
        any_hints=any_hints,
        zoneless=zoneless,
        nodeless=nodeless,
    )


def with_hints(endpoint: Endpoint, hints: EndpointHints | None) -> Endpoint:
    """Return the endpoint with other hints; the endpoint itself when they are equal already."""
    if endpoint.hints == hints:
        return endpoint
    # NB: the plain constructor costs half of structs.replace, and this runs once per endpoint.
    return Endpoint(
        endpoint.addresses,
        endpoint.conditions,
        endpoint.hostname,
        endpoint.target_ref,
        endpoint.deprecated_topology,
        endpoint.node_name,
        endpoint.zone,
        hints,
    )


def hints_for(zone: str, node: str) -> EndpointHints | None:
    """Return hints for one zone and one node, either of which may be ""; None when both are."""
    if not zone and not node:
        return None
    return EndpointHints(
        for_zones=(ForZone(zone),) if zone else (), for_nodes=(ForNode(node),) if node else ()
    )
