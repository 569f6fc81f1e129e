"""Facts about the hints of a slice, and whether a node follows the hints of a service port.

A writer of hints must know of every slice whether its hints are right. The facts are computed once
per slice object, so that the cost of a change does not grow with the number of endpoints; a caller
that keeps slices keeps their facts with them.

A node follows hints by the rule of kube-proxy (KEP-3015, KEP-4444): a level counts only if every
ready endpoint has a hint of that level and at least one names this node or its zone. One endpoint
without a hint disables the level for all nodes, which makes half-written slices safe; the reason
names the first such endpoint, its node and the command that fixes it. Only the hints decide, never
the location of an endpoint. Callers pass ready endpoints only; without hints there is no reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from shlex import quote
from typing import Final

import msgspec

from keepclose.model.acknowledgements import HintLevel
from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointHints,
    EndpointSlice,
    ForNode,
    ForZone,
)
from keepclose.model.well_known import ZONE_LABEL
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode

_node_hints = attrgetter("node_hints")
_zone_hints = attrgetter("zone_hints")
_SPARE_FACTS = 4
ZONE_SEPARATOR: Final = ","
"""Between the zones of a group; no label value has it, so no zone does."""

FollowedHints = tuple[tuple[PortEndpoint, ...], Reason | None]
"""Endpoints hinted for the node, () if the level does not count, and the reason."""


class SliceFacts(msgspec.Struct, frozen=True):
    """Facts about the ready endpoints of a slice; `any_hints` and `levels` cover all endpoints."""

    ready: int
    by_zone: dict[str, int]
    """Ready endpoints by their own zone; "" counts endpoints without a zone."""
    hinted: dict[str, int]
    """Ready endpoints by hinted zone; an endpoint for several zones counts in each."""
    pairs: dict[tuple[str, str], int]
    """Ready endpoints by own zone and group of hinted zones, see `group_of`; "" without hints."""
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
    levels: frozenset[HintLevel]
    """The levels of hints that endpoints have, ready or not."""
    zoneless: Endpoint | None
    """The first ready endpoint without a zone."""
    nodeless: Endpoint | None
    """The first ready endpoint without a node."""


FactsOf = Callable[[EndpointSlice], SliceFacts]
# The levels by whether there are hints for zones and for nodes.
_LEVELS: Final = {
    (False, False): frozenset[HintLevel](),
    (True, False): frozenset({HintLevel.ZONES}),
    (False, True): frozenset({HintLevel.NODES}),
    (True, True): frozenset({HintLevel.ZONES, HintLevel.NODES}),
}


def slice_facts(endpoint_slice: EndpointSlice) -> SliceFacts:
    """Return the facts of a slice; an empty slice counts as hinted correctly."""
    ready = zone_hinted = node_hinted = 0
    by_zone: dict[str, int] = {}
    hinted: dict[str, int] = {}
    pairs: dict[tuple[str, str], int] = {}
    own_zones = own_nodes = True
    any_hints = has_zones = has_nodes = False
    zoneless = nodeless = None
    for endpoint in endpoint_slice.endpoints:
        hints = endpoint.hints
        if hints is not None:
            any_hints = True
        if endpoint.conditions.ready is not True:
            if hints is not None:
                has_zones = has_zones or bool(hints.for_zones)
                has_nodes = has_nodes or bool(hints.for_nodes)
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
            target = group_of(hints)
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
        levels=_LEVELS[has_zones or zone_hinted > 0, has_nodes or node_hinted > 0],
        zoneless=zoneless,
        nodeless=nodeless,
    )


def hint_levels(slices: Iterable[EndpointSlice]) -> frozenset[HintLevel]:
    """Return the levels of hints that endpoints of the slices have."""
    levels: set[HintLevel] = set()
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints:
            hints = endpoint.hints
            if hints is None:
                continue
            if hints.for_zones:
                levels.add(HintLevel.ZONES)
            if hints.for_nodes:
                levels.add(HintLevel.NODES)
    return frozenset(levels)


class FactsCache:
    """The facts of slices, computed once per object."""

    def __init__(self) -> None:
        # The slice is kept so that its id stays its own.
        self._facts: dict[int, tuple[EndpointSlice, SliceFacts]] = {}

    def of(self, endpoint_slice: EndpointSlice) -> SliceFacts:
        """Return the facts of a slice."""
        cached = self._facts.get(id(endpoint_slice))
        if cached is None:
            cached = self._facts[id(endpoint_slice)] = (endpoint_slice, slice_facts(endpoint_slice))
        return cached[1]

    def prune(self, slices: Collection[EndpointSlice]) -> None:
        """Drop the facts of all other slices, once there are several."""
        if len(self._facts) > len(slices) + len(slices) // 4 + _SPARE_FACTS:
            keys = [id(endpoint_slice) for endpoint_slice in slices]
            self._facts = {key: self._facts[key] for key in keys if key in self._facts}


def with_hints(endpoint: Endpoint, hints: EndpointHints | None) -> Endpoint:
    """Return the endpoint with these hints; the same object if it has them already."""
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


def hints_for(group: str, node: str) -> EndpointHints | None:
    """Return hints for a group of zones and a node, either of which may be ""; None if both are."""
    if not group and not node:
        return None
    return EndpointHints(
        for_zones=tuple([ForZone(zone) for zone in zones_of(group)]),
        for_nodes=(ForNode(node),) if node else (),
    )


def group_of(hints: EndpointHints | None) -> str:
    """Return the group of the hinted zones: their names in order, separated by commas."""
    if hints is None or not hints.for_zones:
        return ""
    if len(hints.for_zones) == 1:
        return hints.for_zones[0].name
    return name_group([hint.name for hint in hints.for_zones])


def name_group(zones: Iterable[str]) -> str:
    """Return the name of a group of zones."""
    return ZONE_SEPARATOR.join(sorted(set(zones)))


def zones_of(group: str) -> tuple[str, ...]:
    """Return the zones of a group; () for ""."""
    return tuple(group.split(ZONE_SEPARATOR)) if group else ()


def follow_node_hints(ready: Sequence[PortEndpoint], node: NodeView) -> FollowedHints:
    """Return the endpoints hinted for this node, if node hints count."""
    # NB: this is the hot path; count() and index() over lists of hints run at the speed of C.
    hints: list[tuple[str, ...]] = list(map(_node_hints, ready))
    missing = hints.count(())
    if missing == len(hints):
        return (), None
    if missing:
        return (), _node_hint_missing(ready[hints.index(())], missing, len(hints))
    chosen = _hinted_for(node.name, ready, hints)
    if chosen:
        return chosen, Reason(
            ReasonCode.SAME_NODE,
            f"hinted for node {node.name}: {len(chosen)} of {count_ready(len(hints))}",
        )
    return (), Reason(
        ReasonCode.NODE_NOT_HINTED,
        f"no ready endpoint is hinted for node {node.name}",
        subject=f"Node {node.name}",
        fix=f"run endpoints on node {node.name}, in proportion to its clients",
    )


def follow_zone_hints(ready: Sequence[PortEndpoint], node: NodeView) -> FollowedHints:
    """Return the endpoints hinted for the zone of this node, if zone hints count."""
    hints: list[tuple[str, ...]] = list(map(_zone_hints, ready))
    missing = hints.count(())
    if missing == len(hints):
        return (), None
    if missing:
        return (), _zone_hint_missing(ready[hints.index(())], missing, len(hints))
    if not node.zone:
        return (), zoneless_node(node, "hints for zones cannot be followed there")
    chosen = _hinted_for(node.zone, ready, hints)
    if chosen:
        return chosen, Reason(
            ReasonCode.SAME_ZONE,
            f"hinted for zone {node.zone}: {len(chosen)} of {count_ready(len(hints))}",
        )
    return (), Reason(
        ReasonCode.ZONE_NOT_HINTED,
        f"no ready endpoint is hinted for zone {node.zone} of node {node.name}",
        subject=f"Node {node.name}",
        fix=f"run endpoints in zone {node.zone}, in proportion to its clients",
    )


def zoneless_node(node: NodeView, consequence: str) -> Reason:
    """Return the reason for a node without a zone label; `consequence` follows from it."""
    return Reason(
        ReasonCode.NODE_WITHOUT_ZONE,
        f"node {node.name} has no zone label, so {consequence}",
        subject=f"Node {node.name}",
        fix=_label_zone(node.name),
    )


def count_ready(count: int) -> str:
    """Return "1 ready endpoint" or "5 ready endpoints"."""
    return f"{count} ready endpoint" + ("" if count == 1 else "s")


def _hinted_for(
    name: str, ready: Sequence[PortEndpoint], hints: list[tuple[str, ...]]
) -> tuple[PortEndpoint, ...]:
    # NB: a hint may be the empty string; it never matches a node without a name or zone.
    if not name:
        return ()
    return tuple([endpoint for endpoint, names in zip(ready, hints, strict=True) if name in names])


def _node_hint_missing(endpoint: PortEndpoint, missing: int, ready: int) -> Reason:
    why = "although it is on node " + endpoint.node_name
    if not endpoint.node_name:
        why = "because it names no node"
    return Reason(
        ReasonCode.NODE_HINT_MISSING,
        f"every ready endpoint must have a node hint; {endpoint.address} has none {why}"
        + _others(missing, ready),
        subject=f"Endpoint {endpoint.address}",
        fix="" if endpoint.node_name else "name the node of the endpoint in its EndpointSlice",
    )


def _zone_hint_missing(endpoint: PortEndpoint, missing: int, ready: int) -> Reason:
    node, zone = endpoint.node_name, endpoint.zone
    if zone:
        why, fix = f"although it is in zone {zone}", ""
    elif node:
        why, fix = f"because its node {node} has no zone label", _label_zone(node)
    else:
        why = "because it names neither zone nor node"
        fix = "name the zone of the endpoint in its EndpointSlice"
    return Reason(
        ReasonCode.ZONE_HINT_MISSING,
        f"every ready endpoint must have a zone hint; {endpoint.address} has none {why}"
        + _others(missing, ready),
        subject=f"Endpoint {endpoint.address}",
        fix=fix,
    )


def _others(missing: int, ready: int) -> str:
    return f" (and {missing - 1} more of {ready})" if missing > 1 else ""


def _label_zone(node: str) -> str:
    return f"kubectl label node {quote(node)} {ZONE_LABEL}=<zone>"
