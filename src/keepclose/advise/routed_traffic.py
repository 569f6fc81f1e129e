"""Where the traffic of one Service goes, summed over all nodes with clients.

Each node's endpoints come from `routing.selection.select`; traffic divides among them by their
weights. The figures are shares of what is sent, so they do not depend on how much that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from keepclose.advise.clients import ClientNodes
from keepclose.model.gates import FeatureGates
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.selection import find_distinguished_nodes, select
from keepclose.routing.service_ports import RoutedPort

SHARE_ROUNDING: Final = 1e-9


class PortWithEndpoints(NamedTuple):
    """A routed port of a Service in one address family, and all its endpoints."""

    port: RoutedPort
    family: str
    endpoints: tuple[PortEndpoint, ...]


class RoutedTraffic(NamedTuple):
    """Where the traffic of one Service goes; shares are parts of what nodes send to its ports."""

    in_zone: float = 0.0
    on_node: float = 0.0
    failed: float = 0.0
    busiest: float = 0.0
    """How many times its fair share the busiest endpoint of any port gets; 0 without traffic."""
    busiest_endpoint: str = ""
    overloaded: int = 0
    """How many endpoints of the worst port get more than the bound."""
    ready: int = 0
    """How many ready endpoints the port with most of them has."""
    zones: tuple[tuple[str, str, float], ...] = ()
    """The shares by the zone of the client and that of the endpoint; failed traffic is in none."""

    def describe_change(self, now: RoutedTraffic) -> str:
        """Return what becomes of the figures: "in zone 33 -> 100 %, busiest 1.00 -> 1.11x"."""
        parts = [_arrow("in zone", _percent(now.in_zone), _percent(self.in_zone), " %")]
        if _percent(now.on_node) != _percent(self.on_node) and "->" not in parts[0]:
            parts.append(_arrow("on node", _percent(now.on_node), _percent(self.on_node), " %"))
        parts.append(_arrow("busiest", _times(now.busiest), _times(self.busiest), "x"))
        if _percent(now.failed) != _percent(self.failed):
            parts.append(_arrow("failed", _percent(now.failed), _percent(self.failed), " %"))
        return ", ".join(parts)


def measure_traffic(
    ports: Iterable[PortWithEndpoints],
    clients: ClientNodes,
    *,
    gates: FeatureGates,
    bound: float,
) -> RoutedTraffic:
    """Return where the traffic goes if each node sends its part to each port.

    `bound` is the part above its fair share that an endpoint may carry. A fair share is an equal
    part of the answered traffic of a port for each of its ready endpoints. No nodes or no ports
    give zeros.
    """
    sent = failed = in_zone = on_node = 0.0
    busiest, busiest_endpoint, overloaded, most_ready = 0.0, "", 0, 0
    zones: dict[tuple[str, str], float] = {}
    for port, _, endpoints in ports:
        loads: dict[str, float] = {}
        answered = 0.0
        apart = find_distinguished_nodes(port, endpoints)
        for view, weight, is_single in clients.groups(apart):
            chosen = select(port, endpoints, node=view, gates=gates).internal.endpoints
            sent += weight
            if not chosen:
                failed += weight
                continue
            answered += weight
            unit = 1.0 / sum([endpoint.weight for endpoint in chosen])
            for endpoint in chosen:
                part = endpoint.weight * unit
                load = weight * part
                key = endpoint.key
                loads[key] = loads.get(key, 0.0) + load
                pair = view.zone, endpoint.zone
                zones[pair] = zones.get(pair, 0.0) + load
                if view.zone and endpoint.zone == view.zone:
                    in_zone += load
                if is_single:
                    on_node += load if endpoint.node_name == view.name else 0.0
                elif endpoint.node_name not in (apart or ()):
                    on_node += clients.weight_of(endpoint.node_name, beside=view) * part
        ready = sum([endpoint.ready for endpoint in endpoints])
        most_ready = max(most_ready, ready)
        if not loads or answered <= 0.0:
            continue
        fair = answered / (ready or len(loads))
        limit = fair * (1.0 + bound) * (1.0 + SHARE_ROUNDING)
        overloaded = max(overloaded, sum([load > limit for load in loads.values()]))
        top = max(loads, key=lambda key: (loads[key], key))
        if loads[top] / fair > busiest:
            busiest, busiest_endpoint = loads[top] / fair, top
    if not sent:
        return RoutedTraffic(ready=most_ready)
    return RoutedTraffic(
        in_zone / sent,
        on_node / sent,
        failed / sent,
        busiest,
        busiest_endpoint,
        overloaded,
        most_ready,
        tuple([(*pair, load / sent) for pair, load in sorted(zones.items())]),
    )


def in_percent(share: float) -> str:
    """Return a share of the traffic in whole percent, for a sentence."""
    return f"{_percent(share)} %"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}"


def _arrow(name: str, before: str, after: str, unit: str) -> str:
    return f"{name} {before} -> {after}{unit}" if before != after else f"{name} {after}{unit}"
