"""Hints that follow from the location of an endpoint: PreferSameZone, PreferSameNode, node level.

KEP-4444 and KEP-3015: each ready endpoint is hinted for its own zone, and for PreferSameNode also
for its own node, so that proxies without support for node hints still stay in the zone. Balance is
never checked, because the Service asks for closeness. Slices with the right hints stay unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointSlice
from keepclose.routing.hint_facts import FactsOf, hints_for, slice_facts, with_hints
from keepclose.routing.reasons import Reason, ReasonCode


class SliceSet(msgspec.Struct, frozen=True):
    """The slices of a Service and address type, by the write that they need."""

    create: tuple[EndpointSlice, ...] = ()
    update: tuple[EndpointSlice, ...] = ()
    unchanged: tuple[EndpointSlice, ...] = ()

    @property
    def all(self) -> tuple[EndpointSlice, ...]:
        """Every slice that exists after the writes."""
        return self.create + self.update + self.unchanged


def hint_own(
    slices: SliceSet, *, zones: bool, nodes: bool, facts: FactsOf = slice_facts
) -> SliceSet:
    """Return the slices with every ready endpoint hinted for its own zone and/or node.

    Endpoints that are not ready never require a write, because proxies ignore their hints; in a
    slice that is written anyway their hints are removed.
    """
    table: dict[tuple[str, str], EndpointHints | None] = {}

    def target(endpoint: Endpoint) -> Endpoint:
        if endpoint.conditions.ready is not True:
            return with_hints(endpoint, None)
        key = ((endpoint.zone or "") if zones else "", (endpoint.node_name or "") if nodes else "")
        if key not in table:
            table[key] = hints_for(*key)
        return with_hints(endpoint, table[key])

    def is_right(endpoint_slice: EndpointSlice) -> bool:
        hint_facts = facts(endpoint_slice)
        zones_right = hint_facts.own_zones if zones else hint_facts.zone_hinted == 0
        nodes_right = hint_facts.own_nodes if nodes else hint_facts.node_hinted == 0
        return zones_right and nodes_right

    wrong = [endpoint_slice for endpoint_slice in slices.unchanged if not is_right(endpoint_slice)]
    return SliceSet(
        create=tuple(
            _rewrite(endpoint_slice, [target(endpoint) for endpoint in endpoint_slice.endpoints])
            for endpoint_slice in slices.create
        ),
        update=tuple(
            _rewrite(endpoint_slice, [target(endpoint) for endpoint in endpoint_slice.endpoints])
            for endpoint_slice in (*slices.update, *wrong)
        ),
        unchanged=without(slices.unchanged, wrong),
    )


def remove_hints(slices: SliceSet, *, facts: FactsOf = slice_facts) -> SliceSet:
    """Return the slices without hints; slices that have none stay unchanged."""
    wrong = [
        endpoint_slice for endpoint_slice in slices.unchanged if facts(endpoint_slice).any_hints
    ]
    return SliceSet(
        create=tuple(_without_hints(endpoint_slice) for endpoint_slice in slices.create),
        update=tuple(_without_hints(endpoint_slice) for endpoint_slice in (*slices.update, *wrong)),
        unchanged=without(slices.unchanged, wrong),
    )


def own_hint_reasons(
    slices: SliceSet, *, zones: bool, nodes: bool, facts: FactsOf = slice_facts
) -> tuple[Reason, ...]:
    """Return whether the hints are complete, and if not, which endpoint and node prevent that."""
    ready = zoneless_count = 0
    zoneless: Endpoint | None = None
    nodeless: Endpoint | None = None
    for endpoint_slice in slices.all:
        hint_facts = facts(endpoint_slice)
        ready += hint_facts.ready
        zoneless_count += hint_facts.by_zone.get("", 0)
        zoneless = zoneless or hint_facts.zoneless
        nodeless = nodeless or hint_facts.nodeless
    if ready == 0:
        return (Reason(ReasonCode.NO_READY_ENDPOINTS, "there is no ready endpoint to hint"),)
    reasons = []
    if zones and zoneless is not None:
        reasons.append(zoneless_reason(zoneless, zoneless_count, ready))
    if nodes and nodeless is not None:
        reasons.append(
            Reason(
                ReasonCode.ENDPOINT_WITHOUT_NODE,
                "a ready endpoint without a node gets no node hint, so all nodes ignore node hints",
                subject=f"Endpoint {_address(nodeless)}",
            )
        )
    if not reasons:
        levels = " and ".join(
            level for level, is_set in (("zone", zones), ("node", nodes)) if is_set
        )
        reasons.append(
            Reason(ReasonCode.HINTS_POPULATED, f"all {ready} ready endpoints have {levels} hints")
        )
    return tuple(reasons)


def zoneless_reason(endpoint: Endpoint, count: int, ready: int) -> Reason:
    """Return the reason for endpoints that cannot be hinted because their zone is unknown."""
    others = f" and {count - 1} more" if count > 1 else ""
    node = endpoint.node_name
    because = f" because node {node} has no zone label" if node else ""
    return Reason(
        ReasonCode.ENDPOINT_WITHOUT_ZONE,
        f"{_address(endpoint)}{others} of {ready} ready endpoints cannot be hinted{because}",
        subject=f"Node {node}" if node else f"Endpoint {_address(endpoint)}",
        # An unvalidated name must not become a second command in a shell.
        fix=f"kubectl label node {quote(node)} topology.kubernetes.io/zone=<zone>" if node else "",
    )


def without(
    slices: Sequence[EndpointSlice], taken: Sequence[EndpointSlice]
) -> tuple[EndpointSlice, ...]:
    """Return the slices that are not in `taken`, by identity: two slices may be equal."""
    if not taken:
        return tuple(slices)
    taken_ids = {id(endpoint_slice) for endpoint_slice in taken}
    return tuple(endpoint_slice for endpoint_slice in slices if id(endpoint_slice) not in taken_ids)


def _rewrite(endpoint_slice: EndpointSlice, endpoints: Sequence[Endpoint]) -> EndpointSlice:
    if all(new is old for new, old in zip(endpoints, endpoint_slice.endpoints, strict=True)):
        return endpoint_slice
    return replace(endpoint_slice, endpoints=tuple(endpoints))


def _without_hints(endpoint_slice: EndpointSlice) -> EndpointSlice:
    if not [endpoint for endpoint in endpoint_slice.endpoints if endpoint.hints is not None]:
        return endpoint_slice
    return _rewrite(
        endpoint_slice, [with_hints(endpoint, None) for endpoint in endpoint_slice.endpoints]
    )


def _address(endpoint: Endpoint) -> str:
    return endpoint.addresses[0] if endpoint.addresses else "?"
