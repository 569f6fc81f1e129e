"""Why nodes route otherwise than they should, as their proxies and the flows show.

The order of causes is the order of certainty: what a proxy says of itself, then endpoints that
should not have been used, then what the shares look like. A zone may also have a fault although its
connections go where they should.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import exp
from shlex import quote
from typing import Final, NamedTuple

from keepclose.accounting.flow_table import NO_ZONE, UNKNOWN, is_zone
from keepclose.advise.expectations import FALSE_ALARMS
from keepclose.advise.observed_traffic import (
    ClientZone,
    Difference,
    ShareRanges,
    find_differences,
)
from keepclose.advise.verification_causes import (
    Cause,
    CauseCode,
    PortFacts,
    explain_bytes,
    explain_change,
    name_some,
    unready_endpoints,
    zoneless_nodes,
)
from keepclose.model.acknowledgements import (
    ACKNOWLEDGEMENT_NAMESPACE,
    HintLevel,
    acknowledgement_name,
    parse_resource_version,
)
from keepclose.model.well_known import PROXY_NAME_LABEL
from keepclose.routing.service_ports import DEFAULT_AFFINITY_SECONDS

BUSY_SHARE: Final = 0.9
"""The part of unexpected connections from which on one client explains them."""

UNEXPECTED_BYTES: Final = 0.1
"""By how much the share of bytes of a zone may exceed that of connections."""


class UnexpectedZone(NamedTuple):
    """A client zone whose connections are not as expected, and its nodes that are not."""

    zone: str
    seen: ClientZone
    expected: ShareRanges
    differences: tuple[Difference, ...]
    nodes: tuple[str, ...]


def explain_data_plane(facts: PortFacts, unexpected: Iterable[UnexpectedZone]) -> list[Cause]:
    """Return why nodes route otherwise than they should; never empty if zones are given.

    Flows from before a change of the objects show nothing: then only what proxies say counts.
    """
    zones = list(unexpected)
    if not zones:
        return []
    if facts.is_mixed:
        return [*_refused(facts), explain_change(facts)]
    causes = [
        *_served_elsewhere(facts),
        *_refused(facts),
        *_behind(facts),
        *explain_endpoints(facts),
        *_some_nodes(facts, zones),
        *_busy_client(facts, zones),
        *_affinity(facts),
        *_spread(facts, zones),
    ]
    if not causes:
        words = "; ".join(f"from {zone.zone}: {zone.differences[0].words}" for zone in zones[:3])
        return [
            Cause(
                CauseCode.UNEXPLAINED,
                f"the shares fit neither the hints nor a spread over all endpoints ({words})",
                subject=f"Service {facts.service.key}",
                fix="observe the flows again, by node, workload and pod",
            )
        ]
    return causes


def explain_endpoints(facts: PortFacts) -> list[Cause]:
    """Return endpoints that get traffic and should not, and those that should and get none.

    Where pods changed while flows were counted, both are what a rollout looks like.
    """
    causes = [*_stale(facts), *_unused(facts)]
    return [explain_change(facts)] if causes and facts.is_mixed else causes


def explain_proxies(facts: PortFacts) -> list[Cause]:
    """Return what proxies say of themselves that keeps them from following hints, without flows."""
    return [*_refused(facts), *_behind(facts)]


def explain_zone(
    facts: PortFacts, zone: str, seen: ClientZone, ranges: ShareRanges, *, has_bytes: bool
) -> Iterator[Cause]:
    """Yield what is wrong with a zone although its connections may go where they should."""
    without, ready = facts.now.unhinted
    if zone == NO_ZONE and without < ready:
        yield zoneless_nodes(facts, seen)
    if is_zone(zone) and (cause := unready_endpoints(facts, zone)):
        yield cause
    whole = seen.bytes.total()
    if not has_bytes or not whole or not ranges:
        return
    connections = facts.now.with_endpoint(seen.zones)
    elsewhere = [
        place
        for place, number in sorted(seen.bytes.items())
        if is_zone(place)
        and number / whole > ranges.get(place, (0.0, 0.0))[1] + UNEXPECTED_BYTES
        and connections[place]
        <= (ranges.get(place, (0.0, 0.0))[1] + UNEXPECTED_BYTES) * max(1, connections.total())
    ]
    if elsewhere:
        yield (
            explain_change(facts) if facts.is_mixed else explain_bytes(facts, zone, seen, elsewhere)
        )


def _served_elsewhere(facts: PortFacts) -> Iterator[Cause]:
    other = facts.service.metadata.labels.get(PROXY_NAME_LABEL)
    if other is not None:
        yield Cause(
            CauseCode.SERVED_ELSEWHERE,
            f"the label {PROXY_NAME_LABEL}={other} gives the Service to another proxy, "
            "which may not follow hints",
            subject=f"Service {facts.service.key}",
        )


def _refused(facts: PortFacts) -> Iterator[Cause]:
    """Yield the proxies that say that they do not follow hints."""
    key = facts.service.key
    refusing = {
        each.node: each.exceptions[key] for each in facts.acknowledgements if key in each.exceptions
    }
    without = [each.node for each in facts.acknowledgements if HintLevel.ZONES not in each.honors]
    if refusing:
        node, why = min(refusing.items())
        yield Cause(
            CauseCode.PROXY_REFUSES_HINTS,
            f"the proxies of {name_some(sorted(refusing))} have the hints and do not use them "
            f"({why})",
            subject=f"Node {node}",
        )
    if without:
        yield Cause(
            CauseCode.PROXY_REFUSES_HINTS,
            f"the proxies of {name_some(sorted(without))} say that they follow no zone hints",
            subject=f"Node {min(without)}",
            fix="turn on their feature gate ServiceTrafficDistribution",
        )


def _behind(facts: PortFacts) -> Iterator[Cause]:
    """Yield the proxies that have not acknowledged the newest slice.

    NB: proxies acknowledge slices with hints only.
    """
    newest = max(
        (
            parse_resource_version(each.metadata.resource_version) or 0
            for each in facts.slices
            if any(endpoint.hints is not None for endpoint in each.endpoints)
        ),
        default=0,
    )
    late = [
        each.node
        for each in facts.acknowledgements
        if 0 < each.version < newest and facts.service.key not in each.exceptions
    ]
    if late:
        yield Cause(
            CauseCode.PROXY_BEHIND,
            f"the proxies of {name_some(sorted(late))} have not programmed the newest slices of "
            "the Service",
            subject=f"Node {min(late)}",
            fix=_look_at_proxy(facts, min(late)),
        )


def _stale(facts: PortFacts) -> Iterator[Cause]:
    known = facts.now.pods
    gone = sorted(pod for pod, counts in facts.seen.endpoints.items() if _is_gone(pod, known))
    part = sum(facts.seen.endpoints[pod].connections for pod in gone)
    if gone and part > facts.tolerance * facts.seen.connections:
        yield Cause(
            CauseCode.STALE_ENDPOINTS,
            f"{part:,} connections went to pods that are in no slice of the Service "
            f"({name_some(gone)}): nodes still route to endpoints that were removed"
            f"{_or_later(facts, 'the endpoints were removed after the first flow')}",
            subject=f"Service {facts.service.key}",
            fix=_look_at_proxies(facts),
        )
        return
    empty = sorted(
        place
        for place, counts in facts.seen.places.items()
        if (is_zone(place) or place == UNKNOWN)
        and place not in known.values()
        and counts.connections > facts.tolerance * facts.seen.connections
    )
    if empty and not facts.seen.endpoints:
        yield Cause(
            CauseCode.STALE_ENDPOINTS,
            f"connections went to {', '.join(empty)}, where the Service has no endpoint: nodes "
            "still route to endpoints that were removed"
            f"{_or_later(facts, 'the endpoints were removed after the first flow')}",
            subject=f"Service {facts.service.key}",
            fix=_look_at_proxies(facts),
        )


def _is_gone(pod: str, known: dict[str, str]) -> bool:
    return bool(known) and pod not in known


def _unused_pods(facts: PortFacts) -> list[str]:
    """Return the ready endpoints that got nothing although many connections were theirs."""
    if not facts.seen.endpoints:
        return []
    awaited: dict[str, float] = {}
    names: dict[str, list[str]] = {}
    for node in facts.nodes:
        names.setdefault(node.zone or NO_ZONE, []).append(node.name)
    for zone, seen in facts.seen.zones.items():
        nodes = [facts.now.nodes[name] for name in names.get(zone, ()) if name in facts.now.nodes]
        for pod in {pod for node in nodes for pod in node.pods}:
            low = min(node.pods[pod].low if pod in node.pods else 0.0 for node in nodes)
            awaited[pod] = awaited.get(pod, 0.0) + low * seen.connections
    return sorted(
        pod
        for pod, number in awaited.items()
        if pod not in facts.seen.endpoints and exp(-number) < FALSE_ALARMS / len(awaited)
    )


def _unused(facts: PortFacts) -> Iterator[Cause]:
    unused = _unused_pods(facts)
    if unused:
        yield Cause(
            CauseCode.UNUSED_ENDPOINTS,
            f"{name_some(unused)} got no connection although ready: nodes do not know these "
            f"endpoints yet, or their connections do not arrive"
            f"{_or_later(facts, 'the endpoints are newer than the flows')}",
            subject=f"Pod {facts.service.metadata.namespace}/{unused[0]}",
            fix=_look_at_proxies(facts),
        )


def _some_nodes(facts: PortFacts, zones: list[UnexpectedZone]) -> Iterator[Cause]:
    unexpected = sorted({node for zone in zones for node in zone.nodes})
    judged = {node for zone in facts.seen.zones.values() for node in zone.nodes}
    if unexpected and len(unexpected) < len(judged):
        yield Cause(
            CauseCode.SOME_NODES_DIFFER,
            f"only {name_some(unexpected)} of {len(judged)} nodes with clients differ",
            subject=f"Node {unexpected[0]}",
            fix=_look_at_proxy(facts, unexpected[0]),
        )


def _busy_client(facts: PortFacts, zones: list[UnexpectedZone]) -> Iterator[Cause]:
    """Yield the client that opens the unexpected connections, while others do as expected.

    A client with most of all connections has most of the unexpected ones too: that alone shows
    nothing, so the other clients of these zones must be enough to be judged, and as expected.
    """
    unexpected: dict[str, int] = {}
    own: dict[str, int] = {}
    for zone in zones:
        wrong = {each.place for each in zone.differences if each.connections > 0}
        wrong = {place for place in wrong if place not in _wanted(zone.expected)} or wrong
        for client, places in zone.seen.clients.items():
            number = sum(places[place] for place in wrong)
            unexpected[client] = unexpected.get(client, 0) + number
            own[client] = own.get(client, 0) + places.total()
    whole = sum(unexpected.values())
    if len(unexpected) < 2 or not whole:
        return
    client, number = max(unexpected.items(), key=lambda item: (item[1], item[0]))
    share, usual = number / whole, own[client] / sum(own.values())
    if share < BUSY_SHARE or share <= usual or not _others_are_expected(facts, zones, client):
        return
    yield Cause(
        CauseCode.ONE_BUSY_CLIENT,
        f"{client} opened {100 * share:.0f} % of the connections that are not as expected, and "
        f"{own[client]:,} of all {sum(own.values()):,}; other clients are as expected",
        subject=client,
        fix=f"see how {client} connects: a fixed address, a proxy of its own, or reuse",
    )


def _others_are_expected(facts: PortFacts, zones: list[UnexpectedZone], client: str) -> bool:
    others = 0
    for zone in zones:
        counts = Counter(zone.seen.zones)
        counts.subtract(zone.seen.clients.get(client, Counter()))
        if find_differences(+counts, zone.expected, tolerance=facts.tolerance):
            return False
        others += counts.total()
    return others >= facts.min_connections


def _wanted(ranges: ShareRanges) -> set[str]:
    return {place for place, each in ranges.items() if each.high > 0}


def _affinity(facts: PortFacts) -> Iterator[Cause]:
    spec = facts.service.spec
    if spec.session_affinity != "ClientIP":
        return
    config = spec.session_affinity_config
    seconds = DEFAULT_AFFINITY_SECONDS
    if config is not None and config.client_ip is not None and config.client_ip.timeout_seconds:
        seconds = config.client_ip.timeout_seconds
    yield Cause(
        CauseCode.SESSION_AFFINITY,
        f"sessionAffinity ClientIP keeps each client at its endpoint until it pauses for "
        f"{seconds:,} s: clients stay where they were, and shares follow clients",
        subject=f"Service {facts.service.key}",
        fix=f"kubectl patch service -n {quote(facts.service.metadata.namespace)} "
        f"{quote(facts.service.metadata.name)} "
        """-p '{"spec":{"sessionAffinity":"None"}}'""",
    )


def _spread(facts: PortFacts, zones: list[UnexpectedZone]) -> Iterator[Cause]:
    spread = facts.now.spread
    fitting = [
        zone
        for zone in zones
        if not find_differences(zone.seen.zones, spread, tolerance=2 * facts.tolerance)
        or any(
            not find_differences(zone.seen.nodes[node], spread, tolerance=2 * facts.tolerance)
            for node in zone.nodes
        )
    ]
    if not fitting or len(spread) < 2:
        return
    shown = "/".join(f"{100 * spread[place].low:.0f}" for place in sorted(spread))
    which = ", ".join(zone.zone for zone in fitting)
    yield Cause(
        CauseCode.HINTS_NOT_FOLLOWED,
        f"traffic from {which} is spread over all {len(facts.now.ready)} ready endpoints ({shown}) "
        "although their hints can be followed: the data plane ignores hints"
        f"{_or_later(facts, 'the hints are newer than the flows')}",
        subject=f"Service {facts.service.key}",
        fix="use a proxy that follows hints: kube-proxy 1.33 or later, or keepclose proxy"
        f"{_or_observe(facts)}",
    )


def _look_at_proxy(facts: PortFacts, node: str) -> str:
    if any(each.node == node for each in facts.acknowledgements):
        name = quote(acknowledgement_name(node))
        return f"kubectl get configmap -n {ACKNOWLEDGEMENT_NAMESPACE} {name} -o yaml"
    selector = f"spec.nodeName={quote(node)}"
    return f"kubectl get pods -n kube-system -l k8s-app=kube-proxy --field-selector {selector}"


def _look_at_proxies(facts: PortFacts) -> str:
    return f"look at the proxies of the nodes: they lag behind the slices{_or_observe(facts)}"


def _or_later(facts: PortFacts, what: str) -> str:
    """Return the doubt of flows whose time relative to the objects is not known."""
    return "" if facts.is_settled else f", or {what}"


def _or_observe(facts: PortFacts) -> str:
    return "" if facts.is_settled else f"; to be sure, judge new connections: {facts.observe}"
