"""Everything in the table that belongs to one service port.

As in kube-proxy: elements that dispatch from its cluster IP, node port, external and load balancer
IPs to its chains, or that reject; the chain for traffic from outside, which masquerades or, under
the Local policy, keeps the client's address; the chain that admits only the source ranges; hairpin
entries for endpoints on this node. PreferLocal (the first draft of KEP-3015) always masquerades
traffic from outside.

A plain port (a cluster IP and nothing else, no affinity, equal weights) needs no chain of its own.
Its endpoints are in one map for each protocol; its dispatch goes to the chain for that number of
endpoints, which draws a number and looks the endpoint up by cluster IP, protocol, port and number.
So a changed endpoint is one changed element, which counts its own connections. This matters because
the kernel's time for a new chain, rule or map grows with their number, and nft reads all of them
before it adds one. While the number of endpoints changes, the chain for the old number may still
draw the last endpoint, so elements are added before the dispatch is switched and deleted later.

This module never chooses endpoints. It drops invalid addresses, protocols and ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final

import msgspec

from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.selection import Outcome, PacketVerdict, Selection
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy
from keepclose.ruleset.connection_sets import (
    CONNECTIONS,
    NODEPORT_CONNECTIONS,
    counted_endpoints,
    describe_counts,
    external_counts,
    internal_counts,
)
from keepclose.ruleset.endpoint_chains import ChainBuilder, distinct_endpoints
from keepclose.ruleset.layout import (
    CLUSTER_IPS,
    DESTINATION,
    FIREWALL_IPS,
    HAIRPINS,
    NO_ENDPOINT_NODEPORTS,
    NO_ENDPOINT_SERVICES,
    REJECT_CHAIN,
    SERVICE_IPS,
    SERVICE_NODEPORTS,
    UNSERVED_NODEPORTS,
    UNSERVED_SERVICES,
    endpoints_map,
)
from keepclose.ruleset.names import (
    EXTERNAL_CHAIN,
    FIREWALL,
    LOCAL,
    POOL,
    SERVICE_CHAIN,
    ServicePortKey,
    plain_address,
    plain_ranges,
    port_base,
    whole_name,
)
from keepclose.ruleset.settings import CountBy, RulesetSettings
from keepclose.ruleset.statements import (
    DnatTarget,
    Draw,
    Drop,
    Goto,
    IsLocal,
    Match,
    PacketField,
    Return,
    SetMark,
)
from keepclose.ruleset.tables import (
    Chain,
    ChainVerdict,
    Counted,
    Element,
    ElementKey,
    Rule,
    Set,
    make_rule,
)

TRANSPORTS: Final = frozenset({"tcp", "udp", "sctp"})
MAX_AFFINITY_S: Final = 86400
"""The longest timeout of session affinity that an API server accepts."""
_REFUSALS: Final[dict[PacketVerdict, ChainVerdict | None]] = {
    PacketVerdict.NONE: None,
    PacketVerdict.DROP: Drop(),
    PacketVerdict.REJECT: Goto(REJECT_CHAIN),
}
_CONNECTIONS: Final = {SERVICE_IPS: CONNECTIONS, SERVICE_NODEPORTS: NODEPORT_CONNECTIONS}
_COUNTING: Final = {
    NO_ENDPOINT_SERVICES: UNSERVED_SERVICES,
    NO_ENDPOINT_NODEPORTS: UNSERVED_NODEPORTS,
}


class PortObjects(msgspec.Struct, frozen=True):
    """The objects of one service port; a chain comes after the chains that it refers to."""

    chains: tuple[Chain, ...] = ()
    sets: tuple[Set, ...] = ()
    elements: tuple[Element, ...] = ()
    counted: tuple[Counted, ...] = ()
    """What the counters of pooled endpoints count, in the order of the endpoints."""
    counted_endpoints: Mapping[ElementKey, Counted] = {}
    """What the counters of other endpoints count, by address and port."""


NO_OBJECTS: Final = PortObjects()


def pooled_endpoints(
    port: RoutedPort, selection: Selection, settings: RulesetSettings
) -> list[PortEndpoint]:
    """Return the endpoints of a port that needs no chain of its own; empty for all others."""
    if (
        not settings.pooled
        or port.node_port
        or port.session_affinity == "ClientIP"
        or port.external_ips
        or port.load_balancer_ips
    ):
        return []
    endpoints = distinct_endpoints(selection.internal.endpoints, settings.family)
    return endpoints if len({endpoint.weight for endpoint in endpoints}) == 1 else []


def pool_elements(
    at: tuple[str, str, str], endpoints: Sequence[PortEndpoint], settings: RulesetSettings
) -> list[Element]:
    """Return the elements that route an address, protocol and port to one or more endpoints."""
    transport = at[1]
    container = endpoints_map(settings, transport)
    pool = pool_chain(settings.ip, transport, len(endpoints), container)
    elements = [
        Element(container, (*at, _number(index)), DnatTarget(endpoint.address, endpoint.port))
        for index, endpoint in enumerate(endpoints)
    ]
    return [*elements, Element(SERVICE_IPS, at, Goto(pool.name))]


@lru_cache(maxsize=4096)
def pool_chain(ip: str, transport: str, count: int, container: str) -> Chain:
    """Return the chain that draws one of `count` endpoints; all ports with that many share it."""
    is_protocol = Match(PacketField.PROTOCOL, (transport,))
    rule = make_rule(ip, is_protocol, Draw(DESTINATION, count, container))
    return Chain(whole_name(POOL, f"{transport}/{count}", fingerprint_of=rule.text), (rule,))


def render_port(
    key: ServicePortKey, port: RoutedPort, selection: Selection, *, settings: RulesetSettings
) -> PortObjects:
    """Return the objects of the port in the table; none for an unknown protocol."""
    transport = port.transport
    if transport not in TRANSPORTS:
        return NO_OBJECTS
    pooled = pooled_endpoints(port, selection, settings)
    if pooled and (cluster_ip := plain_address(port.cluster_ip, settings.family)):
        at = (cluster_ip, transport, str(port.port))
        return PortObjects(
            (pool_chain(settings.ip, transport, len(pooled), endpoints_map(settings, transport)),),
            elements=(
                Element(CLUSTER_IPS, (cluster_ip,)),
                *pool_elements(at, pooled, settings),
                *_hairpins(selection, transport, settings),
            ),
            counted=describe_counts(port, pooled, str(selection.mode), settings),
        )
    builder = ChainBuilder(
        settings=settings,
        key=key,
        base=port_base(key),
        transport=transport,
        affinity_s=_affinity_seconds(port),
    )
    cluster = builder.add_endpoints_chain(SERVICE_CHAIN, selection.cluster or ())
    local = builder.add_endpoints_chain(LOCAL, selection.local or ())
    elements: list[Element] = []
    is_counting = settings.count_by is not CountBy.NOTHING

    if cluster_ip := plain_address(port.cluster_ip, settings.family):
        elements.append(Element(CLUSTER_IPS, (cluster_ip,)))
        internal = _target_chain(
            selection.internal, selection, port.internal_policy, cluster=cluster, local=local
        )
        at = (cluster_ip, transport, str(port.port))
        if internal:
            elements.append(Element(SERVICE_IPS, at, Goto(internal)))
            elements += internal_counts(at, selection, settings)
        elif (refusal := _REFUSALS[selection.internal.verdict]) is not None:
            elements.append(Element(NO_ENDPOINT_SERVICES, at, refusal, str(key)))
            if is_counting:
                elements.append(Element(UNSERVED_SERVICES, at))

    balancer_ips = _addresses(port.load_balancer_ips, settings.family)
    external_ips = port.external_ips if settings.uses_external_ips else ()
    outside_ips = dict.fromkeys((*_addresses(external_ips, settings.family), *balancer_ips))
    if outside_ips or port.node_port:
        via = _external_chain(builder, port, selection, cluster=cluster, local=local)
        # A packet that the chain does not translate keeps its destination and is rejected here.
        refusal = (
            _REFUSALS[selection.external.verdict]
            or _REFUSALS[selection.external_from_inside.verdict]
        )
        places: list[tuple[str, str, ElementKey]] = [
            (SERVICE_IPS, NO_ENDPOINT_SERVICES, (address, transport, str(port.port)))
            for address in outside_ips
        ]
        if port.node_port:
            at_node = (transport, str(port.node_port))
            places.append((SERVICE_NODEPORTS, NO_ENDPOINT_NODEPORTS, at_node))
        for dispatch, refusals, key_at in places:
            if via:
                elements.append(Element(dispatch, key_at, Goto(via)))
                elements += external_counts(_CONNECTIONS[dispatch], key_at, selection, settings)
            if refusal is not None:
                elements.append(Element(refusals, key_at, refusal, str(key)))
                if is_counting:
                    elements.append(Element(_COUNTING[refusals], key_at))
    if balancer_ips and (ranges := plain_ranges(port.source_ranges, settings.family)):
        firewall = _firewall_chain(builder, ranges, balancer_ips)
        elements += [
            Element(FIREWALL_IPS, (address, transport, str(port.port)), Goto(firewall))
            for address in balancer_ips
        ]
    elements += _hairpins(selection, transport, settings)
    return PortObjects(
        tuple(builder.chains.values()),
        tuple(builder.sets.values()),
        tuple(elements),
        counted_endpoints=counted_endpoints(port, selection, settings),
    )


def _affinity_seconds(port: RoutedPort) -> int:
    # NB: nft rejects the rules of all Services if one timeout is out of range.
    if port.session_affinity != "ClientIP":
        return 0
    return min(max(0, port.affinity_seconds), MAX_AFFINITY_S)


def _target_chain(
    outcome: Outcome, selection: Selection, policy: TrafficPolicy, *, cluster: str, local: str
) -> str:
    """Return the chain that routes to the outcome's endpoints; "" if it has none."""
    if not outcome.endpoints:
        return ""
    if policy is TrafficPolicy.CLUSTER:
        return cluster
    if policy is TrafficPolicy.LOCAL or outcome.endpoints == selection.local:
        return local
    return cluster


def _external_chain(
    builder: ChainBuilder, port: RoutedPort, selection: Selection, *, cluster: str, local: str
) -> str:
    """Add the chain for traffic to external addresses; "" if no client can reach an endpoint."""
    ip, mark = builder.settings.ip, SetMark(builder.settings.mark)
    outcome, policy = selection.external, port.external_policy
    target = _target_chain(outcome, selection, policy, cluster=cluster, local=local)
    inside = cluster if selection.external_from_inside.endpoints else ""
    if not target and not inside:
        return ""
    rules: list[Rule] = []
    if policy is not TrafficPolicy.LOCAL:
        rules.append(make_rule(ip, mark, comment="masquerade"))
    else:
        # Traffic of the node and its pods may use endpoints of all nodes: it stands for traffic
        # that would leave through the load balancer and come back to any node.
        onward = Goto(inside) if inside else Return()
        pods = builder.settings.local_traffic.condition(builder.settings.family)
        if pods is not None:
            rules.append(make_rule(ip, pods, onward, comment="own pods use the whole cluster"))
        is_own = IsLocal(PacketField.SOURCE)
        # NB: the destination may be the node's own address, and would then be the source as well.
        if inside:
            rules.append(make_rule(ip, is_own, mark, comment="masquerade the node itself"))
        rules.append(make_rule(ip, is_own, onward, comment="the node uses the whole cluster"))
    if target:
        rules.append(make_rule(ip, Goto(target)))
    return builder.add_chain(EXTERNAL_CHAIN, rules)


def _firewall_chain(
    builder: ChainBuilder, ranges: tuple[str, ...], balancer_ips: tuple[str, ...]
) -> str:
    settings = builder.settings
    allowed = ranges
    node_ip = plain_address(settings.node_ip, settings.family)
    # A packet from the node to such an address may return to it with that address as its source.
    if node_ip and any(ip_address(node_ip) in ip_network(cidr) for cidr in ranges):
        allowed = plain_ranges((*ranges, *balancer_ips), settings.family)
    others = Match(PacketField.SOURCE, allowed, negated=True)
    return builder.add_chain(FIREWALL, [make_rule(settings.ip, others, Drop())])


def _hairpins(selection: Selection, transport: str, settings: RulesetSettings) -> list[Element]:
    node = settings.node_name
    if not node:
        return []
    local = [endpoint for endpoint in selection.reachable if endpoint.node_name == node]
    return [
        Element(HAIRPINS, (endpoint.address, endpoint.address, transport, str(endpoint.port)))
        for endpoint in distinct_endpoints(local, settings.family)
    ]


def _addresses(texts: tuple[str, ...], family: str) -> tuple[str, ...]:
    addresses = [address for text in texts if (address := plain_address(text, family))]
    return tuple(dict.fromkeys(addresses))


@lru_cache(maxsize=4096)
def _number(index: int) -> str:
    return str(index)
