"""One line for each Service: its mechanism, and in a word what becomes of its traffic.

The word is about the slices that exist. Each ready node counts alike, because objects do not show
traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.advise.advice import overload_bound
from keepclose.advise.clients import ClientGroup, ClientNodes
from keepclose.advise.resolution import ports_with_endpoints
from keepclose.advise.routed_traffic import PortWithEndpoints, RoutedTraffic, measure_traffic
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.plain_text import make_plain
from keepclose.model.service.types import Service
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.selection import Selection, find_distinguished_nodes, select
from keepclose.routing.strategy import Strategy, choose_strategy
from keepclose.slices.settings import PlannerSettings

_WHOLE: Final = 0.9995
"""A share from which on it is shown as 100 %."""
_FALLBACKS: Final = frozenset(
    {
        ReasonCode.NODE_HINT_MISSING,
        ReasonCode.NODE_NOT_HINTED,
        ReasonCode.ZONE_HINT_MISSING,
        ReasonCode.ZONE_NOT_HINTED,
        ReasonCode.NODE_WITHOUT_ZONE,
        ReasonCode.NODE_WITHOUT_REGION,
        ReasonCode.HINTS_IGNORED,
        ReasonCode.TERMINATING_FALLBACK,
        ReasonCode.LOCAL_FELL_BACK,
        ReasonCode.SLICES_NOT_FOR_US,
        ReasonCode.TOPOLOGY_KEYS_UNMATCHED,
    }
)
"""Codes of nodes that want closer endpoints than they use."""


class TrafficState(StrEnum):
    """What becomes of the traffic of a Service, in a word."""

    IN_ZONE = "in zone"
    """All of it stays in its zone."""
    FALLING_BACK = "falling back"
    """Some nodes use endpoints that are farther away than they should be."""
    HINTED = "hinted"
    """Hints, weights or policies send a part of it to other zones on purpose."""
    UNHINTED = "unhinted"
    """Nothing keeps it in its zone."""
    EMPTY = "empty"
    """No endpoint is ready."""
    NOT_ROUTED = "not routed"
    """Nodes do not route it: the Service is headless, a DNS name, or another proxy's."""
    UNKNOWN = "unknown"
    """It could not be computed."""


class ServiceRow(msgspec.Struct, frozen=True, rename="camel"):
    """A Service in the list of all of them."""

    namespace: str
    name: str
    mechanism: str
    """What the fields of the Service ask for; a page says besides whether it was found to be a
    node-level Service, which takes a plan with its Pods."""
    state: TrafficState
    in_zone: float | None
    """The part of the traffic that stays in its zone; None where nothing is routed."""
    ready: int
    endpoints: int
    arcs: tuple[tuple[str, str, float], ...] = ()
    """Shares by the zone of the client and that of the endpoint."""


def describe_row(
    service: Service,
    slices: Iterable[EndpointSlice],
    clients: ClientNodes,
    settings: PlannerSettings,
) -> ServiceRow:
    """Return the line of a Service with these slices."""
    strategy = choose_mechanism(service, settings)
    ports = ports_with_endpoints(service, slices, settings.gates)
    traffic = measure_traffic(ports, clients, gates=settings.gates, bound=overload_bound(service))
    return ServiceRow(
        make_plain(service.metadata.namespace),
        make_plain(service.metadata.name),
        make_plain(strategy.label),
        judge_traffic(traffic, ports, strategy, clients, settings.gates),
        traffic.in_zone if ports else None,
        traffic.ready,
        max((len(port.endpoints) for port in ports), default=0),
        show_arcs(traffic),
    )


def describe_unknown(service: Service) -> ServiceRow:
    """Return the line of a Service that cannot be described."""
    return ServiceRow(
        make_plain(service.metadata.namespace),
        make_plain(service.metadata.name),
        "",
        TrafficState.UNKNOWN,
        None,
        0,
        0,
    )


def choose_mechanism(service: Service, settings: PlannerSettings) -> Strategy:
    """Return what governs the Service under these settings."""
    return choose_strategy(
        service,
        gates=settings.gates,
        default_subsetting=settings.subsets.default,
        heuristics=settings.heuristics,
    )


def judge_traffic(
    traffic: RoutedTraffic,
    ports: Sequence[PortWithEndpoints],
    strategy: Strategy,
    clients: ClientNodes,
    gates: FeatureGates,
) -> TrafficState:
    """Return the word for where the traffic goes."""
    if not ports:
        return TrafficState.NOT_ROUTED
    if not traffic.ready:
        return TrafficState.EMPTY
    if traffic.in_zone >= _WHOLE:
        return TrafficState.IN_ZONE
    if not (strategy.source or any(_is_hinted(port) for port in ports)):
        return TrafficState.UNHINTED
    if any(
        reason.code in _FALLBACKS
        for port in ports
        for _, selection in select_by_group(port, clients, gates)
        for reason in (*selection.internal_reasons, *selection.other_reasons)
    ):
        return TrafficState.FALLING_BACK
    return TrafficState.HINTED if any(map(_is_hinted, ports)) else TrafficState.UNHINTED


def select_by_group(
    port: PortWithEndpoints, clients: ClientNodes, gates: FeatureGates
) -> Iterator[tuple[ClientGroup, Selection]]:
    """Yield what each group of nodes that agree uses for a port."""
    apart = find_distinguished_nodes(port.port, port.endpoints)
    for group in clients.groups(apart):
        yield group, select(port.port, port.endpoints, node=group.view, gates=gates)


def show_arcs(traffic: RoutedTraffic) -> tuple[tuple[str, str, float], ...]:
    """Return the shares between zones, with names that are safe to show."""
    return tuple(
        (make_plain(client), make_plain(endpoint), round(share, 6))
        for client, endpoint, share in traffic.zones
    )


def _is_hinted(port: PortWithEndpoints) -> bool:
    return any(
        endpoint.zone_hints or endpoint.node_hints or endpoint.for_zone or endpoint.for_region
        for endpoint in port.endpoints
    )
