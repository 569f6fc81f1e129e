"""Where the connections of a Service's port were seen to go, beside where they should go.

What should happen comes from the selection of every node. Flows rarely name the nodes of clients,
and nodes of a zone may have different expectations, so the expectation of a zone is a range: the
least and the largest share of any of its nodes. With nodes in the flows it is the mixture of their
connections. An observation disagrees if chance does not explain how far it is out of the range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from keepclose.accounting.flow_table import NO_ZONE, FlowCounts, FlowKey, FlowKind, is_zone
from keepclose.advise.expectations import (
    FALSE_ALARMS,
    Expectation,
    NamedPortEndpoints,
    expect,
    is_unlikely,
    name_endpoints,
)
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.workload import Pod
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.reasons import Reason
from keepclose.routing.service_ports import TrafficPolicy, routed_ports
from keepclose.slices.slice_metadata import address_types

TOLERANCE: Final = 0.02
"""By how much a share may differ without a meaning: endpoints change while flows are counted."""
MAX_JUDGED_COUNT: Final = 10_000
"""More connections than these are scaled down before they are judged.

A hundred million connections would make a difference of a thousandth significant, and that much
differs for reasons that no model has.
"""


class ShareRange(NamedTuple):
    """The least and the largest share that is as expected."""

    low: float = 0.0
    high: float = 0.0

    def joined(self, other: ShareRange) -> ShareRange:
        """Return the range that covers both."""
        return ShareRange(min(self.low, other.low), max(self.high, other.high))


ShareRanges = dict[str, ShareRange]


class NodeExpectation(NamedTuple):
    """Where the connections of a node's clients should go."""

    zones: ShareRanges = {}
    pods: ShareRanges = {}
    reasons: tuple[Reason, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether no endpoint may be used."""
        return not self.pods


class PortExpectation(NamedTuple):
    """What every node should do with one port of a Service, in all its address families."""

    named: tuple[NamedPortEndpoints, ...] = ()
    nodes: dict[str, NodeExpectation] = {}

    @property
    def pods(self) -> dict[str, str]:
        """The zones of all endpoints by pod, ready or not."""
        return {
            endpoint.pod: endpoint.zone or NO_ZONE
            for named in self.named
            for endpoint in named.named.values()
        }

    @property
    def ready(self) -> dict[str, str]:
        """The zones of the ready endpoints by pod."""
        return {
            endpoint.pod: endpoint.zone or NO_ZONE
            for named in self.named
            for endpoint in named.ready
        }

    @property
    def unhinted(self) -> tuple[int, int]:
        """How many ready endpoints have no hint, and how many are ready."""
        ready = [point for named in self.named for point in named.endpoints if point.ready]
        return sum(not (point.zone_hints or point.node_hints) for point in ready), len(ready)

    @property
    def spread(self) -> ShareRanges:
        """The shares of zones when every ready endpoint is used, as without any preference."""
        zones = Counter(self.ready.values())
        whole = sum(zones.values())
        return {zone: ShareRange(count / whole, count / whole) for zone, count in zones.items()}

    def with_endpoint(self, counts: Counter[str]) -> Counter[str]:
        """Return counts by zone without connections that found no endpoint: they have no zone."""
        if NO_ZONE not in counts or NO_ZONE in self.pods.values():
            return counts
        return Counter({place: number for place, number in counts.items() if place != NO_ZONE})


class ClientZone(msgspec.Struct):
    """The connections from one zone to one port of a Service."""

    counts: FlowCounts = msgspec.field(default_factory=FlowCounts)
    zones: Counter[str] = msgspec.field(default_factory=Counter)
    """Connections by the zone of the endpoint."""
    bytes: Counter[str] = msgspec.field(default_factory=Counter)
    nodes: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    """By node of the client, if flows name it."""
    clients: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    """By workload, if flows name it."""

    @property
    def connections(self) -> int:
        """How many connections there were."""
        return self.counts.connections

    def add(self, key: FlowKey, counts: FlowCounts) -> None:
        """Add a flow."""
        self.counts.add(counts)
        self.zones[key.endpoint_zone] += counts.connections
        self.bytes[key.endpoint_zone] += counts.total_bytes
        for name, groups in ((key.client_node, self.nodes), (key.client, self.clients)):
            if name:
                groups.setdefault(name, Counter())[key.endpoint_zone] += counts.connections


class PortObservation(msgspec.Struct):
    """All connections to one port of a Service."""

    zones: dict[str, ClientZone] = msgspec.field(default_factory=dict)
    """By the zone of the client."""
    direct: ClientZone = msgspec.field(default_factory=ClientZone)
    """Connections to its pods, without the Service."""
    crossing: int = 0
    """How many direct connections crossed zones."""
    endpoints: dict[str, FlowCounts] = msgspec.field(default_factory=dict)
    """Counts by pod, without its namespace, if flows name pods."""
    places: dict[str, FlowCounts] = msgspec.field(default_factory=dict)
    """Counts by the zone of the endpoint."""

    @property
    def connections(self) -> int:
        """How many connections used the Service."""
        return sum(zone.connections for zone in self.zones.values())

    @property
    def in_zone(self) -> float | None:
        """The part of connections between known zones that stayed in one; None without any."""
        own = whole = 0
        for zone, seen in self.zones.items():
            if is_zone(zone):
                own += seen.zones[zone]
                whole += sum(number for place, number in seen.zones.items() if is_zone(place))
        return own / whole if whole else None


class Difference(NamedTuple):
    """A share that is not as expected."""

    place: str
    connections: int
    whole: int
    expected: ShareRange

    @property
    def words(self) -> str:
        """The difference as a phrase."""
        low, high = (100 * share for share in self.expected)
        wanted = f"{low:.0f} %" if high - low < 1 else f"{low:.0f} to {high:.0f} %"
        return f"{self.place} got {100 * self.connections / self.whole:.0f} %, expected {wanted}"


def expect_port(
    service: Service,
    port: ServicePort,
    slices: Iterable[EndpointSlice],
    *,
    views: Sequence[NodeView],
    pods: Iterable[Pod],
    gates: FeatureGates,
) -> PortExpectation:
    """Return what each node should do with a port; empty for a Service that nodes do not route."""
    listed, owners = tuple(slices), tuple(pods)
    zones = {view.name: view.zone for view in views}
    key = port.name, port.protocol or "TCP"
    named = tuple(
        name_endpoints(routed, listed, family=family, zones=zones, pods=owners, gates=gates)
        for family in address_types(service)
        for routed in routed_ports(service, family, gates=gates, assume_allocated=True)
        if routed.key == key
    )
    known: dict[tuple[str, ...], NodeExpectation] = {}
    nodes: dict[str, NodeExpectation] = {}
    depends_on_name = any(map(_depends_on_name, named))
    for view in views if named else ():
        # NB: nodes of one zone mostly agree, and a large cluster has thousands of them.
        place = (view.name,) if depends_on_name else (view.zone, view.region)
        if place not in known:
            known[place] = _join_families(named, view, gates)
        nodes[view.name] = known[place]
    return PortExpectation(named, nodes)


def expect_zone(
    expectation: PortExpectation, names: Iterable[str], seen: Mapping[str, Counter[str]]
) -> ShareRanges:
    """Return the ranges for clients on these nodes, by the connections of each if all are seen.

    Nodes without an expectation are skipped; without any there are no ranges.
    """
    known = [(name, expectation.nodes[name]) for name in names if name in expectation.nodes]
    weights = {name: seen[name].total() for name, _ in known if name in seen}
    places = {place for _, node in known for place in node.zones}
    whole = sum(weights.values())
    if whole:
        return {
            place: ShareRange(
                *(
                    sum(
                        weights.get(name, 0) * node.zones.get(place, ShareRange())[side]
                        for name, node in known
                    )
                    / whole
                    for side in (0, 1)
                )
            )
            for place in places
        }
    ranges: ShareRanges = {}
    for place in places:
        each = [node.zones.get(place, ShareRange()) for _, node in known]
        ranges[place] = ShareRange(min(r.low for r in each), max(r.high for r in each))
    return ranges


def find_differences(
    counts: Mapping[str, int], ranges: ShareRanges, *, tolerance: float, judged: int = 1
) -> list[Difference]:
    """Return the shares that chance does not explain, the largest first; [] without counts.

    `judged` is the number of comparisons of the whole verdict, which share the false alarms.
    """
    whole = sum(counts.values())
    scale = min(1.0, MAX_JUDGED_COUNT / whole) if whole else 0.0
    sample = round(whole * scale)
    limit = FALSE_ALARMS / max(1, judged)
    differences = []
    for place in sorted({*counts, *ranges}) if whole else ():
        count = counts.get(place, 0)
        expected = ranges.get(place, ShareRange())
        part = round(count * scale)
        high = min(1.0, expected.high + tolerance)
        low = max(0.0, expected.low - tolerance)
        beyond = part > sample * high and is_unlikely(part, sample, high, limit=limit)
        below = part < sample * low and is_unlikely(part, sample, low, limit=limit)
        if beyond or below:
            differences.append(Difference(place, count, whole, expected))
    return sorted(
        differences,
        key=lambda each: -abs(each.connections / each.whole - sum(each.expected) / 2),
    )


def observe_port(
    flows: Iterable[tuple[FlowKey, FlowCounts]], service: Service, port: ServicePort
) -> PortObservation:
    """Return what was seen of a port, from the flows of its Service.

    Flows without a port belong to a Service's only one.
    """
    seen = PortObservation()
    names = {port.name, str(port.port), str(port.target_port)}
    if len(service.spec.ports) == 1:
        names.add("")
    protocol = port.protocol or "TCP"
    for key, counts in flows:
        if key.protocol != protocol or key.port not in names:
            continue
        if key.kind in (FlowKind.POD, FlowKind.NODE):
            seen.direct.add(key, counts)
            seen.crossing += counts.connections if key.crosses_zones else 0
        elif key.kind is FlowKind.SERVICE:
            seen.zones.setdefault(key.client_zone, ClientZone()).add(key, counts)
            seen.places.setdefault(key.endpoint_zone, FlowCounts()).add(counts)
            if key.endpoint:
                pod = key.endpoint.rpartition("/")[2]
                seen.endpoints.setdefault(pod, FlowCounts()).add(counts)
    return seen


def _depends_on_name(named: NamedPortEndpoints) -> bool:
    port = named.port
    return (
        port.internal_policy is not TrafficPolicy.CLUSTER
        or bool(port.topology_keys)
        or port.node_level
        or any(endpoint.node_hints for endpoint in named.endpoints)
    )


def _join_families(
    named: Sequence[NamedPortEndpoints], view: NodeView, gates: FeatureGates
) -> NodeExpectation:
    """Return one expectation for all families: flows do not tell them apart."""
    joined: NodeExpectation | None = None
    for family in named:
        for variant in _by_weights_or_hints(family):
            expectation = expect(variant, node=view, gates=gates)
            single = _of_family(variant, expectation)
            joined = single if joined is None else _join(joined, single)
    return joined or NodeExpectation()


def _by_weights_or_hints(named: NamedPortEndpoints) -> tuple[NamedPortEndpoints, ...]:
    """Return the port as nodes see it that follow written weights, and as those that do not.

    Both are right, and in one cluster there may be nodes of both kinds.
    """
    if not any(endpoint.zone_weights for endpoint in named.endpoints):
        return (named,)
    return tuple(
        named._replace(port=msgspec.structs.replace(named.port, follows_weights=follows))
        for follows in (True, False)
    )


def _of_family(named: NamedPortEndpoints, expectation: Expectation) -> NodeExpectation:
    places = {endpoint.pod: endpoint.zone or NO_ZONE for endpoint in named.named.values()}
    zones: dict[str, float] = {}
    for pod, share in expectation.shares.items():
        zones[places[pod]] = zones.get(places[pod], 0.0) + share
    return NodeExpectation(
        {zone: ShareRange(share, share) for zone, share in zones.items()},
        {pod: ShareRange(share, share) for pod, share in expectation.shares.items()},
        expectation.reasons,
    )


def _join(first: NodeExpectation, second: NodeExpectation) -> NodeExpectation:
    def join(one: ShareRanges, other: ShareRanges) -> ShareRanges:
        nothing = ShareRange()
        return {
            place: one.get(place, nothing).joined(other.get(place, nothing))
            for place in {*one, *other}
        }

    reasons = dict.fromkeys((*first.reasons, *second.reasons))
    return NodeExpectation(
        join(first.zones, second.zones), join(first.pods, second.pods), tuple(reasons)
    )
