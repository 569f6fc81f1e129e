"""The sets whose elements count new connections by the endpoint that they get.

Pooled endpoints count their connections themselves (see `port_objects`). Connections of all other
ports, those with node ports, external or load balancer IPs, session affinity or weights, are
counted behind the translation:

    client -> 192.0.2.10:443 -> (nat prerouting) -> 10.244.3.7:8443 -> (nat input or postrouting)
    element { 192.0.2.10 . tcp . 443 . 10.244.3.7 . 8443 } of counted-outside counts it

An element costs the kernel as much in a large table as in a small one; a chain or a named counter
for each endpoint does not. nat hooks see a connection once, however often its first packet is sent.
Their priority is before that of programs that masquerade: the kernel asks no other chain then.

Connections to external addresses are counted separately if neither the node nor its pods opened
them. Without a way to identify the node's pods there is no such distinction. A connection to a
cluster IP never counts as one from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.selection import Selection
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset.endpoint_chains import distinct_endpoints
from keepclose.ruleset.names import ServicePortKey
from keepclose.ruleset.settings import CountBy, RulesetSettings
from keepclose.ruleset.statements import InSet, IsLocal, Match, PacketField, Return
from keepclose.ruleset.tables import (
    PORT_TYPE,
    PROTOCOL_TYPE,
    Counted,
    Element,
    ElementKey,
    Rule,
    Set,
    make_rule,
)

CONNECTIONS: Final = "counted-connections"
"""Counts by address, protocol and port that the client used, and address and port that it got."""
NODEPORT_CONNECTIONS: Final = "counted-nodeports"
"""Counts by protocol and node port, and address and port that the client got."""
OUTSIDE_SETS: Final = {
    CONNECTIONS: "counted-outside",
    NODEPORT_CONNECTIONS: "counted-outside-nodeports",
}
"""The sets for connections that neither the node nor its pods opened."""
CONNECTION_SETS: Final = (*OUTSIDE_SETS, *OUTSIDE_SETS.values())

_COMMENT: Final = "counts connections"
_USED_PORT: Final = (PacketField.PROTOCOL, PacketField.ORIGINAL_PORT)
_ENDPOINT: Final = (PacketField.DESTINATION, PacketField.PORT)
_KEYS: Final = {
    CONNECTIONS: (PacketField.ORIGINAL_DESTINATION, *_USED_PORT, *_ENDPOINT),
    NODEPORT_CONNECTIONS: (*_USED_PORT, *_ENDPOINT),
}


def connection_sets(settings: RulesetSettings) -> list[Set]:
    """Return the sets; none unless connections are counted."""
    if settings.count_by is CountBy.NOTHING:
        return []
    address = settings.address_type
    used = (PROTOCOL_TYPE, PORT_TYPE)
    types = {
        CONNECTIONS: (address, *used, address, PORT_TYPE),
        NODEPORT_CONNECTIONS: (*used, address, PORT_TYPE),
    }
    names = [*types, *[OUTSIDE_SETS[name] for name in types if _knows_outside(settings)]]
    keys = types | {OUTSIDE_SETS[name]: key for name, key in types.items()}
    return [Set(name, keys[name], comment=_COMMENT, counted=True) for name in names]


def count_lookups(name: str, transports: Sequence[str], settings: RulesetSettings) -> list[Rule]:
    """Return the rules that look connections up in the set, so that the matching element counts.

    A connection that was found leaves the chain.
    """
    ip, key = settings.ip, _KEYS[name]
    not_pods = settings.local_traffic.condition(settings.family, negated=True)
    rules: list[Rule] = []
    # NB: nft knows the type of an original port only in a rule for one protocol.
    for transport in transports:
        is_protocol = Match(PacketField.PROTOCOL, (transport,))
        if not_pods is not None:
            outside = (not_pods, IsLocal(PacketField.SOURCE, negated=True))
            found = InSet(key, OUTSIDE_SETS[name])
            rules.append(make_rule(ip, is_protocol, *outside, found, Return()))
        rules.append(make_rule(ip, is_protocol, InSet(key, name), Return()))
    return rules


def internal_counts(
    at: ElementKey, selection: Selection, settings: RulesetSettings
) -> list[Element]:
    """Return the elements that count connections to the cluster IP, protocol and port."""
    if settings.count_by is CountBy.NOTHING:
        return []
    endpoints = _endpoint_keys(selection.internal.endpoints, settings)
    return [Element(CONNECTIONS, at + endpoint) for endpoint in endpoints]


def external_counts(
    name: str, at: ElementKey, selection: Selection, settings: RulesetSettings
) -> list[Element]:
    """Return the elements that count connections to a node port, external or load balancer IP."""
    if settings.count_by is CountBy.NOTHING:
        return []
    outside = _endpoint_keys(selection.external.endpoints, settings)
    inside = _endpoint_keys(selection.external_from_inside.endpoints, settings)
    elements = [Element(name, at + endpoint) for endpoint in dict.fromkeys((*inside, *outside))]
    if _knows_outside(settings):
        elements += [Element(OUTSIDE_SETS[name], at + endpoint) for endpoint in outside]
    return elements


def counted_endpoints(
    port: RoutedPort, selection: Selection, settings: RulesetSettings
) -> dict[ElementKey, Counted]:
    """Return what counters of endpoints count, by address and port; none unless counting is on."""
    outcomes = (selection.internal, selection.external, selection.external_from_inside)
    endpoints = [endpoint for outcome in outcomes for endpoint in outcome.endpoints]
    counted = describe_counts(port, endpoints, str(selection.mode), settings)
    keys = [(endpoint.address, str(endpoint.port)) for endpoint in endpoints]
    return dict(zip(keys, counted, strict=False))


def describe_counts(
    port: RoutedPort, endpoints: Sequence[PortEndpoint], mode: str, settings: RulesetSettings
) -> tuple[Counted, ...]:
    """Return what a counter of each endpoint counts; empty unless counting is on."""
    if settings.count_by is CountBy.NOTHING:
        return ()
    key = ServicePortKey.of(port)
    places = [_place(endpoint, settings) for endpoint in endpoints]
    # Endpoints in one place share one object; there are many more endpoints than places.
    by_place = {place: Counted(key, *place, mode, port.port) for place in places}
    return tuple([by_place[place] for place in places])


def _place(endpoint: PortEndpoint, settings: RulesetSettings) -> tuple[str, str]:
    """Return the zone and node under which connections to an endpoint are counted."""
    node = endpoint.node_name
    if settings.count_by is CountBy.ZONE and node != settings.node_name:
        node = ""
    return endpoint.zone, node


def _endpoint_keys(
    endpoints: Sequence[PortEndpoint], settings: RulesetSettings
) -> tuple[ElementKey, ...]:
    usable = distinct_endpoints(endpoints, settings.family)
    return tuple([(endpoint.address, str(endpoint.port)) for endpoint in usable])


def _knows_outside(settings: RulesetSettings) -> bool:
    return settings.local_traffic.condition(settings.family) is not None
