"""topologyKeys (KEP-536): an ordered list of node labels by which a Service restricts its clients.

The first key in which some endpoint agrees with the client's node decides; "*" agrees with all. No
agreement means no endpoints: keys are a demand and not a wish, so connections then fail. A node
that lacks a label skips the key. Of an endpoint the node name and the zone are known; any other
label is that of its Node, or what its slice carries as topology of the beta API. What is unknown
never agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from keepclose.model.well_known import HOSTNAME_LABEL, REGION_LABEL, ZONE_LABEL
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.service_ports import RoutedPort

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
            ours = _value_of_node(node, key)
            # NB: without the guard a node that lacks the label would match endpoints that do.
            matched = (
                tuple([one for one in candidates if _value_of(one, key, node) == ours])
                if ours
                else ()
            )
            where = f"{key} ({ours})"
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


def _value_of_node(node: NodeView, key: str) -> str:
    known = {HOSTNAME_LABEL: node.name, ZONE_LABEL: node.zone, REGION_LABEL: node.region}
    return known[key] if key in known else node.labels.get(key, "")


def _value_of(endpoint: PortEndpoint, key: str, node: NodeView) -> str:
    if key == HOSTNAME_LABEL:
        return endpoint.node_name
    if key == ZONE_LABEL:
        return endpoint.zone
    known = dict(endpoint.topology).get(key, "")
    return known or node.others.get(endpoint.node_name, {}).get(key, "")


def needs_node_labels(keys: Iterable[str]) -> bool:
    """Tell whether the keys ask for labels of nodes that no endpoint carries."""
    return any(key not in (ANY_TOPOLOGY, HOSTNAME_LABEL, ZONE_LABEL) for key in keys)
