"""The part of the table that does not depend on Services: hooks, dispatch, checks, masquerading.

    from the wire: prerouting -110 firewall-check . -100 services (dispatch, translation)
                   then forward 0 or input 0: reject, drop; then input 90 or postrouting 90:
                   count; then postrouting 100 masquerading
    from the node: output -110 . -100 . 0, then postrouting 90 . 100

Chains, sets and maps have the names and the purpose of kube-proxy's. Only the filter hooks reject,
because older kernels cannot reject before routing. Priorities are numbers: nft 1.0.6 accepts the
words only at some hooks. An empty chain, named after a fingerprint of the layout, is its marker.
`connection_sets` says how connections are counted.

A table with the right marker and the right number of rules stays as it is. A table without a marker
(kube-proxy's, or none) gets its base chains deleted and created again, because their hooks cannot
be changed in place; a table with another marker gets only its rules replaced. All of it is one
transaction, so there is never a moment without rules.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.model.addresses import IPV4
from keepclose.ruleset.commands import (
    AddChain,
    AddMap,
    AddRule,
    AddSet,
    AddTable,
    Command,
    DeleteChain,
    DeleteSet,
    FlushChain,
)
from keepclose.ruleset.connection_sets import (
    CONNECTION_SETS,
    CONNECTIONS,
    NODEPORT_CONNECTIONS,
    connection_sets,
    count_lookups,
)
from keepclose.ruleset.listing import TableListing
from keepclose.ruleset.names import LAYOUT, fingerprint, plain_address, plain_ranges
from keepclose.ruleset.settings import CountBy, RulesetSettings
from keepclose.ruleset.statements import (
    ClearMark,
    Drop,
    HasMark,
    InSet,
    IsLocal,
    IsNew,
    IsTranslated,
    Jump,
    Lookup,
    Masquerade,
    Match,
    MatchCondition,
    PacketField,
    Reject,
    Return,
    SetMark,
)
from keepclose.ruleset.tables import (
    PORT_TYPE,
    PROTOCOL_TYPE,
    Chain,
    Element,
    Hook,
    Map,
    Rule,
    Set,
    make_rule,
)

CLUSTER_IPS: Final = "cluster-ips"
NODEPORT_IPS: Final = "nodeport-ips"
HAIRPINS: Final = "hairpin-connections"
SERVICE_IPS: Final = "service-ips"
SERVICE_NODEPORTS: Final = "service-nodeports"
NO_ENDPOINT_SERVICES: Final = "no-endpoint-services"
NO_ENDPOINT_NODEPORTS: Final = "no-endpoint-nodeports"
FIREWALL_IPS: Final = "firewall-ips"
ENDPOINTS_MAP: Final = {
    "tcp": "tcp-endpoints",
    "udp": "udp-endpoints",
    "sctp": "sctp-endpoints",
}
"""The map of pooled endpoints of each protocol."""
COUNTED_ENDPOINTS: Final = {
    "tcp": "tcp-counted-endpoints",
    "udp": "udp-counted-endpoints",
    "sctp": "sctp-counted-endpoints",
}
"""The same if connections are counted. NB: the kernel cannot add counters to an existing map, so
these maps have names of their own."""
UNSERVED_SERVICES: Final = "unserved-services"
UNSERVED_NODEPORTS: Final = "unserved-nodeports"
CONTAINERS: Final = (
    CLUSTER_IPS,
    NODEPORT_IPS,
    HAIRPINS,
    SERVICE_IPS,
    SERVICE_NODEPORTS,
    NO_ENDPOINT_SERVICES,
    NO_ENDPOINT_NODEPORTS,
    FIREWALL_IPS,
    *ENDPOINTS_MAP.values(),
    *COUNTED_ENDPOINTS.values(),
    UNSERVED_SERVICES,
    UNSERVED_NODEPORTS,
    *CONNECTION_SETS,
)
"""Every set and map whose elements the proxy writes."""
REJECT_CHAIN: Final = "reject-chain"
DESTINATION: Final = (PacketField.DESTINATION, PacketField.PROTOCOL, PacketField.PORT)

_SERVICES = "services"
_MASQUERADING = "masquerading"
_SERVICE_CHECK = "service-endpoints-check"
_NODEPORT_CHECK = "nodeport-endpoints-check"
_FIREWALL_CHECK = "firewall-check"
_CLUSTER_IP_CHECK = "cluster-ips-check"
_COUNTING = "connections-count"

_BASE_CHAINS: Final[tuple[tuple[str, Hook, tuple[str, ...]], ...]] = (
    ("filter-prerouting-pre-dnat", Hook("filter", "prerouting", -110), (_FIREWALL_CHECK,)),
    ("filter-output-pre-dnat", Hook("filter", "output", -110), (_FIREWALL_CHECK,)),
    ("filter-input", Hook("filter", "input", 0), (_NODEPORT_CHECK, _SERVICE_CHECK)),
    ("filter-forward", Hook("filter", "forward", 0), (_SERVICE_CHECK, _CLUSTER_IP_CHECK)),
    ("filter-output", Hook("filter", "output", 0), (_SERVICE_CHECK, _CLUSTER_IP_CHECK)),
    ("nat-prerouting", Hook("nat", "prerouting", -100), (_SERVICES,)),
    ("nat-output", Hook("nat", "output", -100), (_SERVICES,)),
    ("nat-postrouting", Hook("nat", "postrouting", 100), (_MASQUERADING,)),
    ("count-postrouting", Hook("nat", "postrouting", 90), (_COUNTING,)),
    ("count-input", Hook("nat", "input", 90), (_COUNTING,)),
)
_NODEPORT = (PacketField.PROTOCOL, PacketField.PORT)
_COMMENT = "rules for Services, by keepclose"


class Layout(msgspec.Struct, frozen=True):
    """The fixed part of a table."""

    sets: tuple[Set, ...]
    maps: tuple[Map, ...]
    chains: tuple[Chain, ...]
    """A chain comes before the chains whose rules jump to it."""
    elements: tuple[Element, ...]
    marker: Chain
    """An empty chain whose name identifies the layout."""


def build_layout(settings: RulesetSettings) -> Layout:
    """Return the fixed part of the table; addresses of the other family are left out."""
    checks = (
        Chain(_FIREWALL_CHECK, (make_rule(settings.ip, Lookup(DESTINATION, FIREWALL_IPS)),)),
        Chain(
            _SERVICE_CHECK,
            (
                *_counting(settings, InSet(DESTINATION, UNSERVED_SERVICES)),
                make_rule(settings.ip, Lookup(DESTINATION, NO_ENDPOINT_SERVICES)),
            ),
        ),
        Chain(
            _NODEPORT_CHECK,
            (
                *_counting(
                    settings, _nodeport_address(settings), InSet(_NODEPORT, UNSERVED_NODEPORTS)
                ),
                make_rule(
                    settings.ip,
                    _nodeport_address(settings),
                    Lookup(_NODEPORT, NO_ENDPOINT_NODEPORTS),
                ),
            ),
        ),
        _cluster_ip_check(settings),
        _services(settings),
        _masquerading(settings),
        _connections_count(settings),
        Chain(
            REJECT_CHAIN,
            (make_rule(settings.ip, Reject()),),
            comment="refuses what has no endpoint at all",
        ),
    )
    bases = tuple([_base_chain(settings, *base) for base in _BASE_CHAINS])
    nodeport_ips = [
        Element(NODEPORT_IPS, (address,))
        for text in settings.nodeport_ips or ()
        if (address := plain_address(text, settings.family))
    ]
    chains = checks + bases
    identity = [_describe_chain(chain) for chain in chains]
    if settings.pooled:
        identity += [endpoints_map(settings, transport) for transport in ENDPOINTS_MAP]
    return Layout(
        sets=_sets(settings),
        maps=_maps(settings),
        chains=chains,
        elements=tuple(dict.fromkeys(nodeport_ips)),
        marker=Chain(
            LAYOUT + fingerprint("\n".join(identity)),
            comment="says which rules the chains without a slash hold",
        ),
    )


def place_layout(layout: Layout, existing: TableListing, *, trust: bool) -> list[Command]:
    """Return the commands that install the layout in the listed table; none if it is installed.

    Without `trust` the layout is always written again.
    """
    if trust and all(existing.holds(chain) for chain in (layout.marker, *layout.chains)):
        return []
    markers = sorted([name for name in existing.chains if name.startswith(LAYOUT)])
    commands: list[Command] = [AddTable(_COMMENT)]
    if existing.chains and not markers:
        for chain in layout.chains:
            if chain.hook is not None:
                commands += [AddChain(Chain(chain.name)), DeleteChain(chain.name)]
    commands += [AddSet(layout_set) for layout_set in layout.sets]
    commands += [AddMap(layout_map) for layout_map in layout.maps]
    for chain in layout.chains:
        commands += [AddChain(chain), FlushChain(chain.name), *_rules(chain)]
    commands.append(AddChain(layout.marker))
    commands += [DeleteChain(name) for name in markers if name != layout.marker.name]
    if NODEPORT_IPS in existing.sets - {layout_set.name for layout_set in layout.sets}:
        commands.append(DeleteSet(NODEPORT_IPS))
    return commands


def replace_layout(placed: Layout, layout: Layout) -> list[Command]:
    """Return the commands that turn a layout into another with the same chains, sets and maps."""
    if placed.marker == layout.marker:
        return []
    commands: list[Command] = []
    for old, new in zip(placed.chains, layout.chains, strict=True):
        if old != new:
            commands += [FlushChain(new.name), *_rules(new)]
    return [*commands, AddChain(layout.marker), DeleteChain(placed.marker.name)]


def endpoints_map(settings: RulesetSettings, transport: str) -> str:
    """Return the name of the map of the pooled endpoints of a protocol."""
    return (ENDPOINTS_MAP if settings.count_by is CountBy.NOTHING else COUNTED_ENDPOINTS)[transport]


def counted_containers(settings: RulesetSettings) -> tuple[str, ...]:
    """Return the sets and maps whose elements have counters."""
    if settings.count_by is CountBy.NOTHING:
        return ()
    pooled = COUNTED_ENDPOINTS.values() if settings.pooled else ()
    connections = [counting.name for counting in connection_sets(settings)]
    return (*pooled, UNSERVED_SERVICES, UNSERVED_NODEPORTS, *connections)


def _counting(settings: RulesetSettings, *conditions: MatchCondition) -> tuple[Rule, ...]:
    """Return a rule that only looks packets up, so that the matching element counts them."""
    if settings.count_by is CountBy.NOTHING:
        return ()
    return (make_rule(settings.ip, *conditions, comment="counts what finds no endpoint"),)


def _describe_chain(chain: Chain) -> str:
    return f"{chain.name} {chain.hook} {[rule.whole_text for rule in chain.rules]}"


def _base_chain(
    settings: RulesetSettings, name: str, hook: Hook, targets: tuple[str, ...]
) -> Chain:
    # Only filter hooks see later packets of a connection; nat hooks see the first packet.
    condition: tuple[MatchCondition, ...] = (IsNew(),) if hook.type == "filter" else ()
    if targets == (_COUNTING,):
        condition = (IsTranslated(),)
    rules = tuple([make_rule(settings.ip, *condition, Jump(target)) for target in targets])
    return Chain(name, rules, hook)


def _connections_count(settings: RulesetSettings) -> Chain:
    """Return the chain that counts translated connections; empty if none are counted."""
    if settings.count_by is CountBy.NOTHING:
        return Chain(_COUNTING)
    transports = tuple(ENDPOINTS_MAP)
    is_cluster_ip = InSet((PacketField.ORIGINAL_DESTINATION,), CLUSTER_IPS)
    rules = [
        *count_lookups(CONNECTIONS, transports, settings),
        # Another Service may have a port with the number of a node port, and the same endpoint.
        make_rule(settings.ip, is_cluster_ip, Return(), comment="counted, or counts elsewhere"),
        *count_lookups(NODEPORT_CONNECTIONS, transports, settings),
    ]
    return Chain(_COUNTING, tuple(rules))


def _services(settings: RulesetSettings) -> Chain:
    ip, mark = settings.ip, SetMark(settings.mark)
    is_cluster_ip = InSet((PacketField.DESTINATION,), CLUSTER_IPS)
    rules: list[Rule] = []
    outside = settings.local_traffic.condition(settings.family, negated=True)
    if settings.masquerade_all:
        rules.append(make_rule(ip, is_cluster_ip, mark, comment="all traffic to cluster IPs"))
    elif outside is not None:
        # A client that reaches a cluster IP through this node must get its replies through it too.
        rules.append(
            make_rule(ip, is_cluster_ip, outside, mark, comment="cluster IPs, not from our pods")
        )
    rules.append(make_rule(ip, Lookup(DESTINATION, SERVICE_IPS)))
    own = (IsLocal(PacketField.DESTINATION),) if settings.nodeport_ips is None else ()
    rules.append(
        make_rule(ip, *own, _nodeport_address(settings), Lookup(_NODEPORT, SERVICE_NODEPORTS))
    )
    return Chain(_SERVICES, tuple(rules))


def _masquerading(settings: RulesetSettings) -> Chain:
    ip, mark = settings.ip, settings.mark
    hairpin = (PacketField.SOURCE, PacketField.DESTINATION, PacketField.PROTOCOL, PacketField.PORT)
    return Chain(
        _MASQUERADING,
        (
            make_rule(ip, HasMark(mark), ClearMark(mark), Masquerade()),
            make_rule(ip, IsTranslated(), InSet(hairpin, HAIRPINS), Masquerade()),
        ),
    )


def _cluster_ip_check(settings: RulesetSettings) -> Chain:
    rules = [
        make_rule(
            settings.ip,
            InSet((PacketField.DESTINATION,), CLUSTER_IPS),
            Reject(),
            comment="a cluster IP, but none of its ports",
        )
    ]
    if ranges := plain_ranges(settings.service_cidrs, settings.family):
        rules.append(
            make_rule(
                settings.ip,
                Match(PacketField.DESTINATION, ranges),
                Drop(),
                comment="a cluster IP that no Service has",
            )
        )
    return Chain(_CLUSTER_IP_CHECK, tuple(rules))


def _nodeport_address(settings: RulesetSettings) -> MatchCondition:
    if settings.nodeport_ips is not None:
        return InSet((PacketField.DESTINATION,), NODEPORT_IPS)
    # NB: a packet to a loopback address must not leave the node with that address as its source.
    loopback = "127.0.0.0/8" if settings.family == IPV4 else "::1"
    return Match(PacketField.DESTINATION, (loopback,), negated=True)


def _sets(settings: RulesetSettings) -> tuple[Set, ...]:
    address = settings.address_type
    sets = [
        Set(CLUSTER_IPS, (address,), comment="cluster IPs of all Services"),
        Set(
            HAIRPINS,
            (address, address, PROTOCOL_TYPE, PORT_TYPE),
            comment="endpoints of this node that reach themselves",
        ),
    ]
    if settings.count_by is not CountBy.NOTHING:
        by_address = (address, PROTOCOL_TYPE, PORT_TYPE)
        by_port = (PROTOCOL_TYPE, PORT_TYPE)
        sets.append(Set(UNSERVED_SERVICES, by_address, comment="counts refusals", counted=True))
        sets.append(Set(UNSERVED_NODEPORTS, by_port, comment="counts refusals", counted=True))
        sets += connection_sets(settings)
    if settings.nodeport_ips is not None:
        sets.append(Set(NODEPORT_IPS, (address,), comment="where node ports answer"))
    return tuple(sets)


def _maps(settings: RulesetSettings) -> tuple[Map, ...]:
    by_address = (settings.address_type, PROTOCOL_TYPE, PORT_TYPE)
    by_port = (PROTOCOL_TYPE, PORT_TYPE)
    maps = (
        Map(SERVICE_IPS, by_address, comment="cluster, external and load balancer IPs"),
        Map(SERVICE_NODEPORTS, by_port, comment="node ports"),
        Map(NO_ENDPOINT_SERVICES, by_address, comment="what is refused for want of an endpoint"),
        Map(NO_ENDPOINT_NODEPORTS, by_port, comment="likewise, by node port"),
        Map(FIREWALL_IPS, by_address, comment="load balancer IPs with source ranges"),
    )
    if not settings.pooled:
        return maps
    return (*maps, *[_endpoints(settings, transport) for transport in ENDPOINTS_MAP])


def _endpoints(settings: RulesetSettings, transport: str) -> Map:
    ip = settings.ip
    key = f"{ip} daddr . {PacketField.PROTOCOL} . {PacketField.PORT} . numgen random mod 65536"
    return Map(
        endpoints_map(settings, transport),
        (settings.address_type, PROTOCOL_TYPE, PORT_TYPE, "integer"),
        comment="endpoints by cluster IP and number",
        # NB: with a port of any protocol (th dport), nft 1.0.6 rejects later rules with the map.
        typeof=f"{key} : {ip} daddr . {transport} dport",
        counted=settings.count_by is not CountBy.NOTHING,
    )


def _rules(chain: Chain) -> list[AddRule]:
    return [AddRule(chain.name, rule) for rule in chain.rules]
