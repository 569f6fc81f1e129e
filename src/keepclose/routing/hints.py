"""Hints that follow from where an endpoint is: PreferSameZone, PreferSameNode, node level, none.

KEP-4444 and KEP-3015: each ready endpoint is hinted to its own zone, and for PreferSameNode to its
own node too, so that proxies which do not know node hints still stay in the zone. There is no check
of balance: the user asked for closeness. Slices whose hints are right already stay unchanged.
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
    """The slices of a Service and address type, sorted by what is about to happen to them."""

    create: tuple[EndpointSlice, ...] = ()
    update: tuple[EndpointSlice, ...] = ()
    unchanged: tuple[EndpointSlice, ...] = ()

    @property
    def all(self) -> tuple[EndpointSlice, ...]:
        """Every slice that will exist afterwards."""
        return self.create + self.update + self.unchanged


def hint_own(
    slices: SliceSet, *, zones: bool, nodes: bool, facts: FactsOf = slice_facts
) -> SliceSet:
    """Return the slices with every ready endpoint hinted to its own zone and/or node.

    Endpoints that are not ready never make a slice wrong, since proxies do not look at their hints;
    in a slice that is written anyway they lose them.
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
        known = facts(endpoint_slice)
        zones_right = known.own_zones if zones else known.zone_hinted == 0
        nodes_right = known.own_nodes if nodes else known.node_hinted == 0
        return zones_right and nodes_right

    wrong = [one for one in slices.unchanged if not is_right(one)]
    return SliceSet(
        create=tuple(_rewrite(one, [target(e) for e in one.endpoints]) for one in slices.create),
        update=tuple(
            _rewrite(one, [target(e) for e in one.endpoints]) for one in (*slices.update, *wrong)
        ),
        unchanged=without(slices.unchanged, wrong),
    )


def remove_hints(slices: SliceSet, *, facts: FactsOf = slice_facts) -> SliceSet:
    """Return the slices without any hints; those that never had one stay unchanged."""
    wrong = [one for one in slices.unchanged if facts(one).any_hints]
    return SliceSet(
        create=tuple(_bare(one) for one in slices.create),
        update=tuple(_bare(one) for one in (*slices.update, *wrong)),
        unchanged=without(slices.unchanged, wrong),
    )


def own_hint_reasons(
    slices: SliceSet, *, zones: bool, nodes: bool, facts: FactsOf = slice_facts
) -> tuple[Reason, ...]:
    """Return whether the hints are complete, and if not, which endpoint and node to blame."""
    ready = zoneless_count = 0
    zoneless: Endpoint | None = None
    nodeless: Endpoint | None = None
    for one in slices.all:
        known = facts(one)
        ready += known.ready
        zoneless_count += known.by_zone.get("", 0)
        zoneless = zoneless or known.zoneless
        nodeless = nodeless or known.nodeless
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
        levels = " and ".join(word for word, wanted in (("zone", zones), ("node", nodes)) if wanted)
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
        # A name that no server checked must not become a second command in a shell.
        fix=f"kubectl label node {quote(node)} topology.kubernetes.io/zone=<zone>" if node else "",
    )


def without(
    slices: Sequence[EndpointSlice], taken: Sequence[EndpointSlice]
) -> tuple[EndpointSlice, ...]:
    """Return the slices that were not taken, by identity: two slices may have equal content."""
    if not taken:
        return tuple(slices)
    gone = {id(one) for one in taken}
    return tuple(one for one in slices if id(one) not in gone)


def _rewrite(endpoint_slice: EndpointSlice, endpoints: Sequence[Endpoint]) -> EndpointSlice:
    if all(new is old for new, old in zip(endpoints, endpoint_slice.endpoints, strict=True)):
        return endpoint_slice
    return replace(endpoint_slice, endpoints=tuple(endpoints))


def _bare(endpoint_slice: EndpointSlice) -> EndpointSlice:
    if not [e for e in endpoint_slice.endpoints if e.hints is not None]:
        return endpoint_slice
    return _rewrite(endpoint_slice, [with_hints(e, None) for e in endpoint_slice.endpoints])


def _address(endpoint: Endpoint) -> str:
    return endpoint.addresses[0] if endpoint.addresses else "?"
