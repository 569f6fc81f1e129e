"""Whether a node follows the node hints or the zone hints of a service port, and if not, why not.

The rule of kube-proxy (KEP-3015, KEP-4444): a level counts only if every ready endpoint has a hint
of that level and at least one names this node or its zone. One endpoint without a hint switches the
level off for everybody, which makes half-written slices safe; the reasons therefore name the first
such endpoint, the node behind it and the command that mends it.

Membership goes by what the hints say, never by where an endpoint is. Callers pass ready endpoints
only; no endpoints, or none with a hint, mean that nothing was asked and give no reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from shlex import quote

from keepclose.model.well_known import ZONE_LABEL
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode

_node_hints = attrgetter("node_hints")
_zone_hints = attrgetter("zone_hints")

Followed = tuple[tuple[PortEndpoint, ...], Reason | None]
"""Endpoints hinted for the node, () when the level does not count; and the reason for either."""


def follow_node_hints(ready: Sequence[PortEndpoint], node: NodeView) -> Followed:
    """Return the endpoints hinted for the node itself if node hints count."""
    # NB: over lists of hints, count() and index() run at the speed of C; this is the hot path.
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


def follow_zone_hints(ready: Sequence[PortEndpoint], node: NodeView) -> Followed:
    """Return the endpoints hinted for the node's zone if zone hints count."""
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


def zoneless_node(node: NodeView, so: str) -> Reason:
    """Return the reason that blames the node for having no zone label; `so` says what follows."""
    return Reason(
        ReasonCode.NODE_WITHOUT_ZONE,
        f"node {node.name} has no zone label, so {so}",
        subject=f"Node {node.name}",
        fix=_label_zone(node.name),
    )


def count_ready(count: int) -> str:
    """Return "1 ready endpoint" or "5 ready endpoints"."""
    return f"{count} ready endpoint" + ("" if count == 1 else "s")


def _hinted_for(
    ours: str, ready: Sequence[PortEndpoint], hints: list[tuple[str, ...]]
) -> tuple[PortEndpoint, ...]:
    # NB: a hint may be the empty text; a node that lacks a name or zone is not meant by it.
    if not ours:
        return ()
    return tuple([one for one, names in zip(ready, hints, strict=True) if ours in names])


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
