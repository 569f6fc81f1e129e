"""Which endpoints one node uses for traffic under the Cluster policy.

The order is fixed. topologyKeys (KEP-536) govern alone. Else slices labelled for other zones or
regions are skipped (KEP-2030); of the rest, node-level topology (KEP-3015, second draft), node
hints, written weights and zone hints are tried in turn, and without any of them all ready endpoints
are used. Levels are never mixed. Only ready endpoints are considered, and except for topologyKeys
nothing here may leave a node without endpoints while any endpoint is ready.

The first topology key in which an endpoint matches the client's node decides; "*" matches all.
Without a match there are no endpoints: keys are a requirement, so connections then fail. A node
that lacks a label skips the key, and an unknown label of an endpoint never matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from keepclose.model.acknowledgements import HintLevel
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import HOSTNAME_LABEL, REGION_LABEL, ZONE_LABEL
from keepclose.routing.hint_facts import (
    count_ready,
    follow_node_hints,
    follow_zone_hints,
    zoneless_node,
)
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.service_ports import RoutedPort, follows_weights, honours_hints
from keepclose.routing.zone_weights import follow_zone_weights

ANY_TOPOLOGY: Final = "*"


def match_topology_keys(
    port: RoutedPort, candidates: Sequence[PortEndpoint], node: NodeView
) -> tuple[tuple[PortEndpoint, ...], Reason]:
    """Return the candidates that the port's topologyKeys allow on the node, and why.

    Without keys, and without candidates, nothing matches.
    """
    for key in port.topology_keys:
        if key == ANY_TOPOLOGY:
            matched, where = tuple(candidates), "* (any)"
        else:
            node_value = _node_value(node, key)
            # NB: without the guard a node without the label would match endpoints without it.
            matched = (
                tuple(
                    [
                        endpoint
                        for endpoint in candidates
                        if _endpoint_value(endpoint, key, node) == node_value
                    ]
                )
                if node_value
                else ()
            )
            where = f"{key} ({node_value})"
        if matched:
            return matched, Reason(
                ReasonCode.TOPOLOGY_KEY_MATCHED,
                f"the first of the topologyKeys with a match is {where}: "
                f"{len(matched)} of {len(candidates)} endpoints",
            )
    keys = ", ".join(port.topology_keys)
    return (), Reason(
        ReasonCode.TOPOLOGY_KEYS_UNMATCHED,
        f"no endpoint agrees with node {node.name} in any of the topologyKeys ({keys}), "
        "so connections are refused",
        subject=f"Service {port.service}",
        fix=f"run endpoints where node {node.name} finds them by one of these labels",
    )


def _node_value(node: NodeView, key: str) -> str:
    own_values = {HOSTNAME_LABEL: node.name, ZONE_LABEL: node.zone, REGION_LABEL: node.region}
    return own_values[key] if key in own_values else node.labels.get(key, "")


def _endpoint_value(endpoint: PortEndpoint, key: str, node: NodeView) -> str:
    if key == HOSTNAME_LABEL:
        return endpoint.node_name
    if key == ZONE_LABEL:
        return endpoint.zone
    value = dict(endpoint.topology).get(key, "")
    return value or node.others.get(endpoint.node_name, {}).get(key, "")


def needs_node_labels(keys: Iterable[str]) -> bool:
    """Return whether the keys need node labels that endpoints do not have."""
    return any(key not in (ANY_TOPOLOGY, HOSTNAME_LABEL, ZONE_LABEL) for key in keys)


class RoutingMode(StrEnum):
    """What narrowed the endpoints of the Cluster policy."""

    ALL = ""
    SAME_ZONE = "PreferSameZone"
    SAME_NODE = "PreferSameNode"
    NODE_LEVEL = "NodeLevel"
    WEIGHTS = "Weights"
    TOPOLOGY_KEYS = "TopologyKeys"


class ClusterChoice(NamedTuple):
    """The endpoints for the Cluster policy, and how they were selected."""

    endpoints: tuple[PortEndpoint, ...]
    mode: RoutingMode
    by_slice_labels: bool
    """Slices labelled for other zones or regions were skipped."""
    reasons: tuple[Reason, ...]

    @property
    def is_narrowed(self) -> bool:
        """Whether ready endpoints may be missing."""
        return self.by_slice_labels or self.mode is not RoutingMode.ALL


def choose_cluster_endpoints(
    port: RoutedPort, endpoints: Sequence[PortEndpoint], *, node: NodeView, gates: FeatureGates
) -> ClusterChoice:
    """Return what the node uses under the Cluster policy, in the given order.

    If no endpoint is ready, those that terminate but still serve are used, on any node; without
    these the choice is empty.
    """
    ready = tuple([endpoint for endpoint in endpoints if endpoint.ready])
    reasons: list[Reason] = []
    candidates = ready or _find_serving_terminating(endpoints, gates, reasons)
    if port.topology_keys and candidates:
        matched, reason = match_topology_keys(port, candidates, node)
        return ClusterChoice(matched, RoutingMode.TOPOLOGY_KEYS, False, (*reasons, reason))
    if not ready:
        return ClusterChoice(candidates, RoutingMode.ALL, False, tuple(reasons))
    remaining = ready
    if gates.on(Gate.ENDPOINT_SLICE_SUBSETTING):
        remaining = _keep_slices_for(node, ready, reasons)
    chosen, mode = _prefer(port, remaining, node=node, gates=gates, reasons=reasons)
    by_slice_labels = remaining is not ready
    if mode is RoutingMode.ALL and not by_slice_labels:
        reasons.append(
            Reason(ReasonCode.ALL_ENDPOINTS, f"every ready endpoint is used ({len(ready)})")
        )
    return ClusterChoice(chosen, mode, by_slice_labels, tuple(reasons))


def followed_levels(gates: FeatureGates) -> frozenset[HintLevel]:
    """Return the hints that nodes with these gates follow, for Services without an annotation."""
    if not honours_hints("", gates):
        return frozenset()
    levels = {HintLevel.ZONES}
    if _knows_node_hints(gates):
        levels.add(HintLevel.NODES)
    if follows_weights(gates):
        levels.add(HintLevel.WEIGHTS)
    return frozenset(levels)


def _knows_node_hints(gates: FeatureGates) -> bool:
    return gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION) or gates.on(Gate.NODE_LEVEL_TOPOLOGY)


def _find_serving_terminating(
    endpoints: Sequence[PortEndpoint], gates: FeatureGates, reasons: list[Reason]
) -> tuple[PortEndpoint, ...]:
    if not gates.on(Gate.PROXY_TERMINATING_ENDPOINTS):
        return ()
    draining = tuple(
        [endpoint for endpoint in endpoints if endpoint.terminating and endpoint.serving]
    )
    if draining:
        reasons.append(
            Reason(
                ReasonCode.TERMINATING_FALLBACK,
                "no endpoint is ready; those that still serve while they terminate are used "
                f"({len(draining)} of {len(endpoints)})",
            )
        )
    return draining


def _keep_slices_for(
    node: NodeView, ready: tuple[PortEndpoint, ...], reasons: list[Reason]
) -> tuple[PortEndpoint, ...]:
    """Return the endpoints of slices for this node; the same object if these are all."""
    zone, region = node.zone, node.region
    kept = tuple(
        [
            endpoint
            for endpoint in ready
            if not (endpoint.for_zone or endpoint.for_region)
            or (zone and endpoint.for_zone == zone)
            or (region and endpoint.for_region == region)
        ]
    )
    if len(kept) == len(ready):
        return ready
    if not zone:
        reasons.append(zoneless_node(node, "it takes slices labelled for any zone or region"))
        return ready
    if not kept:
        reasons.append(
            Reason(
                ReasonCode.SLICES_NOT_FOR_US,
                f"no slice with a ready endpoint is for zone {zone}, so those of others are taken",
                subject=f"Node {node.name}",
            )
        )
        return ready
    reasons.append(
        Reason(
            ReasonCode.SLICES_FOR_ZONE,
            f"in slices for zone {zone}, its region or all zones: "
            f"{len(kept)} of {count_ready(len(ready))}",
        )
    )
    return kept


def _prefer(
    port: RoutedPort,
    ready: tuple[PortEndpoint, ...],
    *,
    node: NodeView,
    gates: FeatureGates,
    reasons: list[Reason],
) -> tuple[tuple[PortEndpoint, ...], RoutingMode]:
    if port.node_level:
        local = (
            tuple([endpoint for endpoint in ready if endpoint.node_name == node.name])
            if node.name
            else ()
        )
        reasons.append(_node_level_reason(len(local), len(ready), node))
        if local:
            return local, RoutingMode.NODE_LEVEL
    if not port.honours_hints:
        if any(endpoint.zone_hints or endpoint.node_hints for endpoint in ready):
            reasons.append(_hints_ignored(port, gates))
        return ready, RoutingMode.ALL
    if _knows_node_hints(gates):
        chosen, reason = follow_node_hints(ready, node)
        if reason is not None:
            reasons.append(reason)
        if chosen:
            return chosen, RoutingMode.SAME_NODE
    if port.follows_weights:
        chosen, reason = follow_zone_weights(ready, node)
        if reason is not None:
            reasons.append(reason)
        if chosen:
            return chosen, RoutingMode.WEIGHTS
    chosen, reason = follow_zone_hints(ready, node)
    if reason is not None:
        reasons.append(reason)
    if chosen:
        return chosen, RoutingMode.SAME_ZONE
    return ready, RoutingMode.ALL


def _node_level_reason(local: int, ready: int, node: NodeView) -> Reason:
    asked = "the Service asks for endpoints on the client's node"
    if local:
        return Reason(
            ReasonCode.NODE_LEVEL,
            f"{asked}; on node {node.name}: {local} of {count_ready(ready)}",
        )
    return Reason(
        ReasonCode.LOCAL_FELL_BACK,
        f"{asked}, but no ready endpoint is on node {node.name}",
        subject=f"Node {node.name}",
        fix=f"run endpoints on node {node.name}, in proportion to its clients",
    )


def _hints_ignored(port: RoutedPort, gates: FeatureGates) -> Reason:
    off = f"feature gate {Gate.SERVICE_TRAFFIC_DISTRIBUTION} is off"
    if not gates.on(Gate.TOPOLOGY_AWARE_HINTS):
        return Reason(
            ReasonCode.HINTS_IGNORED,
            f"endpoints carry hints, but {off} and so is {Gate.TOPOLOGY_AWARE_HINTS}",
            subject=f"FeatureGate {Gate.SERVICE_TRAFFIC_DISTRIBUTION}",
        )
    return Reason(
        ReasonCode.HINTS_IGNORED,
        f"endpoints carry hints, but {off} and no topology annotation asks to follow them",
        subject=f"Service {port.service}",
    )
