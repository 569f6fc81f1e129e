"""Where the connections of a moment go: which fail, which leave their zone, who is busiest.

Each node divides what its clients send among the endpoints that its proxy selects, from the slices
that the proxy has. Whether such an endpoint accepts the connection, and in which zone it is, is for
the cluster to say. Nodes that select alike are asked once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from keepclose.advise.clients import ClientNodes
from keepclose.model.gates import FeatureGates
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.selection import Selection, find_distinguished_nodes, select
from keepclose.routing.service_ports import RoutedPort
from keepclose.routing.topology import RoutingMode

ClientsByZone = Mapping[str, ClientNodes]
"""The nodes with clients, and what each sends a second, by the zone that they are really in."""


class RoutedLoad(NamedTuple):
    """Connections a second, and how they divide."""

    sent: float = 0.0
    failed: float = 0.0
    left_zone: float = 0.0
    """Answered outside the zone of their client, or of unknown zones."""
    busiest: float = 0.0
    """How many times its fair share the busiest endpoint gets; 0 without traffic."""
    without_zones: float = 0.0
    """Sent by nodes that route without regard to zones."""
    why: str = ""
    """Why the first such node does; "" where slices have no hints."""


class EndpointTruth(NamedTuple):
    """What is true of endpoints, whatever slices say."""

    refusing: Collection[str]
    """Addresses at which nothing accepts connections."""
    zones: Mapping[str, str]
    """The zone that each node is really in."""


def measure_load(
    port: RoutedPort,
    endpoints: Sequence[PortEndpoint],
    clients: ClientsByZone,
    truth: EndpointTruth,
    *,
    gates: FeatureGates,
) -> RoutedLoad:
    """Return where the connections go; no clients give zeros.

    A fair share is an equal part of the answered connections for each ready endpoint that accepts
    them.
    """
    sent = failed = left_zone = without_zones = 0.0
    why = ""
    loads: dict[str, float] = {}
    apart = find_distinguished_nodes(port, endpoints)
    groups = [(zone, group) for zone, nodes in clients.items() for group in nodes.groups(apart)]
    for client_zone, (view, rate, _) in groups:
        sent += rate
        selection = select(port, endpoints, node=view, gates=gates)
        if not _regards_zones(selection):
            without_zones += rate
            why = why or _why(selection)
        chosen = selection.internal.endpoints
        if not chosen:
            failed += rate
            continue
        unit = rate / sum([endpoint.weight for endpoint in chosen])
        for endpoint in chosen:
            load = unit * endpoint.weight
            if endpoint.address in truth.refusing:
                failed += load
                continue
            loads[endpoint.key] = loads.get(endpoint.key, 0.0) + load
            zone = truth.zones.get(endpoint.node_name, endpoint.zone)
            if not zone or zone != client_zone:
                left_zone += load
    ready = sum(endpoint.ready and endpoint.address not in truth.refusing for endpoint in endpoints)
    busiest = 0.0
    if loads:
        fair = sum(loads.values()) / (ready or len(loads))
        busiest = max(loads.values()) / fair
    return RoutedLoad(sent, failed, left_zone, busiest, without_zones, why)


def _regards_zones(selection: Selection) -> bool:
    is_local = selection.internal.endpoints is selection.local
    return selection.mode is not RoutingMode.ALL or selection.by_slice_labels or is_local


def _why(selection: Selection) -> str:
    """Return the reason that proxies know; "" if the slices have no hints for them."""
    reasons = (*selection.internal_reasons, *selection.other_reasons)
    messages = [each.message for each in reasons if each.code is not ReasonCode.ALL_ENDPOINTS]
    return messages[0] if messages else ""
