"""Everything in the table that belongs to one service port.

The objects follow from the port and from what was selected for it: elements that lead from its
cluster IP, node port, external and load balancer IPs to its chains, or that refuse; the chain for
traffic from outside, which masquerades or, under the Local policy, keeps the client's address; the
chain that lets only the source ranges in; hairpin entries for endpoints on this node. As kube-proxy
does it, with PreferLocal (the first draft of KEP-3015) beside Cluster and Local: it always
masquerades what comes from outside.

Decides nothing about endpoints. What is not an address, a known protocol or a port is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final

import msgspec

from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.selection import Outcome, PacketVerdict, Selection
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy
from keepclose.ruleset.endpoint_chains import Scribe, distinct_endpoints, endpoint_place
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
    Draw,
    Drop,
    Goto,
    IsLocal,
    Match,
    PacketField,
    Return,
    SetMark,
    To,
)
from keepclose.ruleset.tables import (
    Chain,
    ChainVerdict,
    Counted,
    Counter,
    Element,
    ElementKey,
    Rule,
    Set,
    make_rule,
)

TRANSPORTS: Final = frozenset({"tcp", "udp", "sctp"})
LONGEST_AFFINITY_S: Final = 86400
"""For how long a client may come back to its endpoint; a server accepts no more."""

_REFUSALS: Final[dict[PacketVerdict, ChainVerdict | None]] = {
    PacketVerdict.NONE: None,
    PacketVerdict.DROP: Drop(),
    PacketVerdict.REJECT: Goto(REJECT_CHAIN),
}


_COUNTING: Final = {
    NO_ENDPOINT_SERVICES: UNSERVED_SERVICES,
    NO_ENDPOINT_NODEPORTS: UNSERVED_NODEPORTS,
}


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
    return endpoints if len({one.weight for one in endpoints}) == 1 else []


def pool_elements(
    at: tuple[str, str, str], endpoints: Sequence[PortEndpoint], settings: RulesetSettings
) -> list[Element]:
    """Return what leads from an address, protocol and port to the endpoints, of which some are."""
    transport = at[1]
    container = endpoints_map(settings, transport)
    pool = pool_chain(settings.ip, transport, len(endpoints), container)
    elements = [
        Element(container, (*at, _number(index)), To(one.address, one.port))
        for index, one in enumerate(endpoints)
    ]
    return [*elements, Element(SERVICE_IPS, at, Goto(pool.name))]


@lru_cache(maxsize=4096)
def pool_chain(ip: str, transport: str, count: int, container: str) -> Chain:
    """Return the chain that draws one of so many endpoints of whatever port it is entered for."""
    is_protocol = Match(PacketField.PROTOCOL, (transport,))
    rule = make_rule(ip, is_protocol, Draw(DESTINATION, count, container))
    return Chain(whole_name(POOL, f"{transport}/{count}", print_of=rule.text), (rule,))


@lru_cache(maxsize=4096)
def _number(index: int) -> str:
    return str(index)


class PortObjects(msgspec.Struct, frozen=True):
    """What one service port has in the table; chains come after those that they refer to."""

    chains: tuple[Chain, ...] = ()
    sets: tuple[Set, ...] = ()
    counters: tuple[Counter, ...] = ()
    elements: tuple[Element, ...] = ()
    counted: tuple[Counted, ...] = ()
    """What the counters of pooled endpoints count, by the number of the endpoint."""


NO_OBJECTS: Final = PortObjects()


def render_port(
    key: ServicePortKey, port: RoutedPort, selection: Selection, *, settings: RulesetSettings
) -> PortObjects:
    """Return what the table needs for the port; nothing for a protocol that nobody knows."""
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
            counted=_counted(key, pooled, str(selection.mode), settings),
        )
    scribe = Scribe(
        settings=settings
        if settings.count_chains
        else msgspec.structs.replace(settings, count_by=CountBy.NOTHING),
        key=key,
        base=port_base(key),
        transport=transport,
        mode=str(selection.mode),
        affinity_s=_affinity_seconds(port),
    )
    cluster = scribe.write_endpoints(SERVICE_CHAIN, selection.cluster or ())
    local = scribe.write_endpoints(LOCAL, selection.local or ())
    elements: list[Element] = []
    is_counting = settings.count_by is not CountBy.NOTHING

    if cluster_ip := plain_address(port.cluster_ip, settings.family):
        elements.append(Element(CLUSTER_IPS, (cluster_ip,)))
        internal = _leads_to(
            selection.internal, selection, port.internal_policy, cluster=cluster, local=local
        )
        at = (cluster_ip, transport, str(port.port))
        if internal:
            elements.append(Element(SERVICE_IPS, at, Goto(internal)))
        elif (refusal := _REFUSALS[selection.internal.verdict]) is not None:
            elements.append(Element(NO_ENDPOINT_SERVICES, at, refusal, str(key)))
            if is_counting:
                elements.append(Element(UNSERVED_SERVICES, at))

    balancer_ips = _addresses(port.load_balancer_ips, settings.family)
    external_ips = port.external_ips if settings.uses_external_ips else ()
    outside_ips = dict.fromkeys((*_addresses(external_ips, settings.family), *balancer_ips))
    if outside_ips or port.node_port:
        via = _external_chain(scribe, port, selection, cluster=cluster, local=local)
        # What enters the chain and finds no way out of it keeps its address and is refused here.
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
            if refusal is not None:
                elements.append(Element(refusals, key_at, refusal, str(key)))
                if is_counting:
                    elements.append(Element(_COUNTING[refusals], key_at))
    if balancer_ips and (ranges := plain_ranges(port.source_ranges, settings.family)):
        firewall = _firewall_chain(scribe, ranges, balancer_ips)
        elements += [
            Element(FIREWALL_IPS, (address, transport, str(port.port)), Goto(firewall))
            for address in balancer_ips
        ]
    elements += _hairpins(selection, transport, settings)
    return PortObjects(
        tuple(scribe.chains.values()),
        tuple(scribe.sets.values()),
        tuple(scribe.counters.values()),
        tuple(elements),
    )


def _counted(
    key: ServicePortKey, pooled: Sequence[PortEndpoint], mode: str, settings: RulesetSettings
) -> tuple[Counted, ...]:
    if settings.count_by is CountBy.NOTHING:
        return ()
    places = [endpoint_place(one, settings) for one in pooled]
    # Endpoints in one place share what says so; there are many more endpoints than places.
    by_place = {place: Counted(key, *place, mode) for place in places}
    return tuple([by_place[place] for place in places])


def _affinity_seconds(port: RoutedPort) -> int:
    # NB: nft takes no other number than one of these, and then refuses everybody's rules.
    if port.session_affinity != "ClientIP":
        return 0
    return min(max(0, port.affinity_seconds), LONGEST_AFFINITY_S)


def _leads_to(
    outcome: Outcome, selection: Selection, policy: TrafficPolicy, *, cluster: str, local: str
) -> str:
    """Return the chain that has the outcome's endpoints; "" when it has none."""
    if not outcome.endpoints:
        return ""
    if policy is TrafficPolicy.CLUSTER:
        return cluster
    if policy is TrafficPolicy.LOCAL or outcome.endpoints == selection.local:
        return local
    return cluster


def _external_chain(
    scribe: Scribe, port: RoutedPort, selection: Selection, *, cluster: str, local: str
) -> str:
    """Add the chain for traffic to external addresses; "" when nobody could get anywhere."""
    ip, mark = scribe.settings.ip, SetMark(scribe.settings.mark)
    outcome, policy = selection.external, port.external_policy
    target = _leads_to(outcome, selection, policy, cluster=cluster, local=local)
    inside = cluster if selection.external_from_inside.endpoints else ""
    if not target and not inside:
        return ""
    rules: list[Rule] = []
    if policy is not TrafficPolicy.LOCAL:
        rules.append(make_rule(ip, mark, comment="masquerade"))
    else:
        # Traffic of the node and its pods is not bound to the node's own endpoints: it stands for
        # what would leave through the load balancer and come back at any node.
        onward = Goto(inside) if inside else Return()
        pods = scribe.settings.local_traffic.condition(scribe.settings.family)
        if pods is not None:
            rules.append(make_rule(ip, pods, onward, comment="own pods use the whole cluster"))
        is_own = IsLocal(PacketField.SOURCE)
        # NB: the address asked for may be the node's own, and would then be the source as well.
        if inside:
            rules.append(make_rule(ip, is_own, mark, comment="masquerade the node itself"))
        rules.append(make_rule(ip, is_own, onward, comment="the node uses the whole cluster"))
    if target:
        rules.append(make_rule(ip, Goto(target)))
    return scribe.write_chain(EXTERNAL_CHAIN, rules)


def _firewall_chain(scribe: Scribe, ranges: tuple[str, ...], balancer_ips: tuple[str, ...]) -> str:
    settings = scribe.settings
    allowed = ranges
    node_ip = plain_address(settings.node_ip, settings.family)
    # What the node sends to such an address may come back to it with that address as its source.
    if node_ip and any(ip_address(node_ip) in ip_network(one) for one in ranges):
        allowed = plain_ranges((*ranges, *balancer_ips), settings.family)
    others = Match(PacketField.SOURCE, allowed, negated=True)
    return scribe.write_chain(FIREWALL, [make_rule(settings.ip, others, Drop())])


def _hairpins(selection: Selection, transport: str, settings: RulesetSettings) -> list[Element]:
    node = settings.node_name
    if not node:
        return []
    here = [one for one in selection.reachable if one.node_name == node]
    return [
        Element(HAIRPINS, (one.address, one.address, transport, str(one.port)))
        for one in distinct_endpoints(here, settings.family)
    ]


def _addresses(texts: tuple[str, ...], family: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys([known for text in texts if (known := plain_address(text, family))]))
