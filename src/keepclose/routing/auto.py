"""Proportional allocation: topology mode Auto of KEP-2433, as in the EndpointSlice controller.

Each zone should be served by a share of the endpoints that equals its share of the CPU, within an
overload bound of 20 %. Endpoints stay in their zone as far as possible; zones with too many lend
some to zones with too few. If the bound cannot be kept, all hints are removed. Where the original
picks at random which zone receives an endpoint, this module picks the largest need, then the first
name.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointSlice
from keepclose.routing.allocation.kube_auto import (
    least_endpoints,
    lend_endpoints,
    set_targets,
)
from keepclose.routing.hint_facts import FactsOf, SliceFacts, hints_for, slice_facts, with_hints
from keepclose.routing.hints import SliceSet, remove_hints, without, zoneless_reason
from keepclose.routing.reasons import Reason, ReasonCode, TopologyEvent

OVERLOAD_THRESHOLD = 0.2


class Bounds(msgspec.Struct, frozen=True):
    """The target number of endpoints of a zone, and the maximum from unchanged slices."""

    target: float
    maximum: int


class Infeasible(msgspec.Struct, frozen=True):
    """Why no allocation exists: the message of the event, and the reason."""

    message: str
    reason: Reason


class AutoResult(msgspec.Struct, frozen=True):
    """The hinted slices and the allocation; `totals` is None if hints were removed."""

    slices: SliceSet
    totals: dict[str, int] | None
    events: tuple[TopologyEvent, ...]
    reasons: tuple[Reason, ...]


def allocate_proportionally(
    slices: SliceSet,
    *,
    ratios: Mapping[str, float] | None,
    address_type: str,
    populated: bool,
    node_hints: bool = False,
    facts: FactsOf = slice_facts,
) -> AutoResult:
    """Return the slices hinted in proportion to the zones' CPU; without hints if impossible.

    `populated` says whether the Service had hints before; if not, the result has an event.
    `node_hints` adds each endpoint's own node to its hints.
    """
    ready = sum(facts(endpoint_slice).ready for endpoint_slice in slices.all)
    bounds = zone_bounds(ratios, ready)
    if isinstance(bounds, Infeasible):
        return _without_hints(slices, bounds, address_type, facts)
    kept, rest, totals = _keep_fitting(slices.unchanged, bounds, node_hints, facts)
    open_slices = [*slices.create, *slices.update, *rest]
    zoneless = [facts(endpoint_slice).zoneless for endpoint_slice in open_slices]
    first = next((endpoint for endpoint in zoneless if endpoint is not None), None)
    if first is not None:
        count = sum(facts(endpoint_slice).by_zone.get("", 0) for endpoint_slice in open_slices)
        message = "One or more endpoints do not have a zone specified"
        reason = zoneless_reason(first, count, ready)
        return _without_hints(slices, Infeasible(message, reason), address_type, facts)
    for endpoint_slice in open_slices:
        for zone, number in facts(endpoint_slice).by_zone.items():
            totals[zone] = totals.get(zone, 0) + number
    giving, receiving = lend(
        {zone: bound.target for zone, bound in bounds.items()},
        {zone: totals.get(zone, 0) for zone in bounds},
    )
    rewritten = _redistribute(open_slices, giving, receiving, node_hints, totals)
    created = len(slices.create)
    events = () if populated else (enabled_event(address_type),)
    spread = ", ".join(f"{zone} {totals[zone]}" for zone in sorted(totals))
    return AutoResult(
        SliceSet(
            create=tuple(rewritten[:created]), update=tuple(rewritten[created:]), unchanged=kept
        ),
        totals,
        events,
        (
            Reason(
                ReasonCode.ALLOCATED, f"{ready} ready endpoints are hinted by CPU share: {spread}"
            ),
        ),
    )


def zone_bounds(ratios: Mapping[str, float] | None, ready: int) -> dict[str, Bounds] | Infeasible:
    """Return the bounds of each zone for the ready endpoints, or why there are none."""
    if ratios is None:
        return Infeasible(
            "Insufficient Node information: allocatable CPU or zone not specified on one or more"
            " nodes",
            Reason(
                ReasonCode.INSUFFICIENT_NODE_INFO,
                "every ready worker node must have a zone label and allocatable CPU, "
                "in at least two zones",
            ),
        )
    zones = len(ratios)
    counts = f"({ready} endpoints, {zones} zones)"
    if zones < 2:
        return Infeasible(
            "Nodes only ready in one zone",
            Reason(ReasonCode.NODES_IN_ONE_ZONE, "there are ready nodes in one zone only"),
        )
    if zones > ready:
        return Infeasible(
            f"Insufficient number of endpoints {counts}",
            Reason(
                ReasonCode.TOO_FEW_ENDPOINTS,
                f"{ready} ready endpoints are too few for {zones} zones",
                fix=f"run at least {zones} ready pods, better three for each zone",
            ),
        )
    names = sorted(ratios)
    minimums = [0] * zones
    targets = [0.0] * zones
    shares = [ratios[zone] for zone in names]
    spare = set_targets(zones, shares, ready, OVERLOAD_THRESHOLD, minimums, targets)
    if spare < 0:
        return Infeasible(
            "Unable to allocate minimum required endpoints to each zone without exceeding"
            f" overload threshold {counts}",
            Reason(
                ReasonCode.OVERLOAD_BOUND,
                f"{ready} endpoints on {zones} zones cannot keep every zone within "
                f"{OVERLOAD_THRESHOLD:.0%} of its share",
                fix="run more pods",
            ),
        )
    return {
        zone: Bounds(target, minimum + spare)
        for zone, target, minimum in zip(names, targets, minimums, strict=True)
    }


def lend(
    targets: Mapping[str, float], have: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many endpoints each zone gives away and receives; zones with none are omitted.

    The rule is that of `lend_endpoints`.
    """
    names = sorted(targets)
    zones = len(names)
    counts = [0] * (2 * zones)
    lend_endpoints(zones, [have.get(zone, 0) - targets[zone] for zone in names], counts)
    giving = {zone: number for zone, number in zip(names, counts[:zones], strict=True) if number}
    receiving = {zone: number for zone, number in zip(names, counts[zones:], strict=True) if number}
    return giving, receiving


def is_overloaded(totals: Mapping[str, int], ratios: Mapping[str, float] | None) -> bool:
    """Return whether the allocated hints overload a zone after a change of the nodes."""
    if not totals:
        return False
    if not ratios:
        return True
    total = sum(totals.values())
    return any(
        zone not in totals or totals[zone] < least_endpoints(ratio, total, OVERLOAD_THRESHOLD)
        for zone, ratio in ratios.items()
    )


def enabled_event(address_type: str) -> TopologyEvent:
    """Return the event for a Service that gets hints for the first time."""
    text = "Topology Aware Hints has been enabled"
    return TopologyEvent("Normal", "TopologyAwareHintsEnabled", text, address_type)


def disabled_event(address_type: str, message: str | None = None) -> TopologyEvent:
    """Return the event for a Service that loses its hints or cannot get any; `message` says why."""
    text = message or "Topology Aware Hints has been disabled"
    return TopologyEvent("Warning", "TopologyAwareHintsDisabled", text, address_type)


def _without_hints(
    slices: SliceSet, why: Infeasible, address_type: str, facts: FactsOf
) -> AutoResult:
    return AutoResult(
        remove_hints(slices, facts=facts),
        None,
        (disabled_event(address_type, why.message),),
        (why.reason,),
    )


def _keep_fitting(
    unchanged: tuple[EndpointSlice, ...],
    bounds: Mapping[str, Bounds],
    node_hints: bool,
    facts: FactsOf,
) -> tuple[tuple[EndpointSlice, ...], list[EndpointSlice], dict[str, int]]:
    totals: dict[str, int] = {}
    rest = []
    for endpoint_slice in unchanged:
        hint_facts = facts(endpoint_slice)
        fits = _hints_fit(hint_facts, node_hints) and all(
            zone in bounds and totals.get(zone, 0) + number <= bounds[zone].maximum
            for zone, number in hint_facts.hinted.items()
        )
        if fits:
            for zone, number in hint_facts.hinted.items():
                totals[zone] = totals.get(zone, 0) + number
        else:
            rest.append(endpoint_slice)
    return without(unchanged, rest), rest, totals


def _hints_fit(hint_facts: SliceFacts, node_hints: bool) -> bool:
    # Stale node hints of PreferSameNode would keep traffic on the node, so the slice must be
    # allocated again.
    nodes_right = hint_facts.own_nodes if node_hints else hint_facts.node_hinted == 0
    return nodes_right and hint_facts.zone_hinted == hint_facts.ready


def _redistribute(
    slices: list[EndpointSlice],
    giving: dict[str, int],
    receiving: dict[str, int],
    node_hints: bool,
    totals: dict[str, int],
) -> list[EndpointSlice]:
    left = dict(giving)
    needed = dict(receiving)
    table: dict[tuple[str, str], EndpointHints | None] = {}

    def hinted(endpoint: Endpoint) -> Endpoint:
        if endpoint.conditions.ready is not True:
            return with_hints(endpoint, None)
        own = zone = endpoint.zone or ""
        if needed and left.get(own, 0) > 0:
            zone = max(sorted(needed), key=needed.__getitem__)
            left[own] -= 1
            needed[zone] -= 1
            if needed[zone] == 0:
                del needed[zone]
            totals[own] -= 1
            totals[zone] = totals.get(zone, 0) + 1
        key = (zone, (endpoint.node_name or "") if node_hints else "")
        if key not in table:
            table[key] = hints_for(*key)
        return with_hints(endpoint, table[key])

    return [
        replace(
            endpoint_slice,
            endpoints=tuple([hinted(endpoint) for endpoint in endpoint_slice.endpoints]),
        )
        for endpoint_slice in slices
    ]
