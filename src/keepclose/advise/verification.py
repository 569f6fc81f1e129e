"""Whether observed traffic is as a Service asks, and if not, why.

Expected shares come from the decision core for the cluster as it is: the slices that exist, the
slices that a controller would write, and those that would exist if every field of the Service had
an effect. Traffic that fits the first and not the others is the controller's; traffic that does not
fit the first is the data plane's. Shares are judged by exact binomial tails, with a tolerance,
because endpoints change while flows are counted. Flows from before a change of the objects judge
nothing that the objects themselves do not show.

The verdict is total: every cluster and every table of flows has one, and none is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.accounting.flow_table import NO_ZONE, FlowCounts, FlowKey, FlowTable, is_zone
from keepclose.advise.clients import ClientNodes
from keepclose.advise.data_plane_causes import (
    UnexpectedZone,
    explain_data_plane,
    explain_endpoints,
    explain_zone,
)
from keepclose.advise.inventory import Inventory
from keepclose.advise.observed_traffic import (
    TOLERANCE,
    ClientZone,
    Difference,
    PortExpectation,
    ShareRanges,
    expect_port,
    expect_zone,
    find_differences,
    observe_port,
)
from keepclose.advise.resolution import (
    advise_changes,
    ignored_reasons,
    plan_as_asked,
    plan_slices,
)
from keepclose.advise.verification_causes import (
    Cause,
    CauseCode,
    PortFacts,
    explain_change,
    explain_clients,
    explain_control_plane,
    explain_failures,
    explain_unrouted,
    find_last_change,
)
from keepclose.model.acknowledgements import NodeAcknowledgement
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import ServicePort
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.routing.reasons import NO_EFFECT_CODES, ReasonCode
from keepclose.routing.service_ports import TrafficPolicy
from keepclose.routing.strategy import HINTING_STRATEGIES, StrategyName
from keepclose.slices.settings import ClusterNodes, PlannerSettings

JUDGED_CONNECTIONS: Final = 50
"""Fewer connections from a zone say nothing about shares."""


class TrafficVerdict(StrEnum):
    """Whether traffic is as a Service asks."""

    HONOURED = "honoured"
    NOT_HONOURED = "not honoured"
    TOO_FEW = "too few connections to say"
    NO_TRAFFIC = "no traffic"
    CHANGED = "changed within the period"
    """The objects changed while flows were counted, and the flows do not fit them as they are."""
    NO_PREFERENCE = "no preference"
    """Nothing asks for some endpoints rather than others."""
    NOT_JUDGED = "not judged"
    """Of clients that are in no zone of the cluster, or without a preference; never of a port."""


class VerifiedRow(msgspec.Struct, frozen=True, rename="camel"):
    """The connections from one zone, by the zone of the endpoint."""

    source: str = msgspec.field(name="from")
    connections: int
    observed: dict[str, int]
    expected: ShareRanges
    """The least and the largest share that is as expected, by zone."""
    verdict: TrafficVerdict
    difference: str = ""
    nodes: tuple[str, ...] = ()
    """The nodes that differ, if flows name nodes."""


class VerifiedPort(msgspec.Struct, frozen=True, rename="camel"):
    """The verdict on one port of a Service."""

    namespace: str
    service: str
    port: str
    protocol: str
    mechanism: str
    verdict: TrafficVerdict
    connections: int
    in_zone: float | None
    """The part of connections between known zones that stayed in one; None if there are none."""
    expected_in_zone: float | None
    """The same as it should be; None if it cannot be said."""
    rows: tuple[VerifiedRow, ...] = ()
    causes: tuple[Cause, ...] = ()
    """The most probable one first."""


class _Judged(NamedTuple):
    """A row with what its causes are found in."""

    row: VerifiedRow
    unexpected: UnexpectedZone | None = None
    is_of_controller: bool = False
    causes: tuple[Cause, ...] = ()


class _Expectations(NamedTuple):
    """What is expected of a port, and of what the rows are judged by."""

    facts: PortFacts
    asked: PortExpectation
    names: dict[str, list[str]]
    """The nodes by zone."""
    has_preference: bool
    has_bytes: bool


def verify_services(
    inventory: Inventory,
    flows: FlowTable,
    *,
    settings: PlannerSettings,
    service: NamespacedName | None = None,
    acknowledgements: Iterable[NodeAcknowledgement] = (),
    min_connections: int = JUDGED_CONNECTIONS,
    tolerance: float = TOLERANCE,
    writes: Mapping[str, str] | None = None,
) -> tuple[VerifiedPort, ...]:
    """Return the verdict on every port of every Service, or of one of them.

    Services must have been admitted. A Service that does not exist gives (). `writes` has the time
    of the last write of Services and slices by uid, as their managedFields say.
    """
    cluster = ClusterNodes.of(inventory.nodes)
    labels = labels_by_node(inventory.nodes)
    views = [NodeView.of(node, labels) for node in inventory.nodes]
    senders = ClientNodes(NodeView.of(node, labels) for node in inventory.nodes if node.is_ready)
    acknowledged = tuple(acknowledgements)
    by_service: dict[tuple[str, str], list[tuple[FlowKey, FlowCounts]]] = {}
    for key, counts in flows:
        by_service.setdefault((key.namespace, key.service), []).append((key, counts))
    verified = []
    for each in inventory.services:
        if service not in (None, each.key) or each.spec.type == "ExternalName":
            continue
        planned = plan_slices(each, inventory, cluster, settings)
        if ignored_reasons(planned):
            planned = advise_changes(
                planned, inventory, cluster, settings=settings, senders=senders
            )
        asked, asked_settings = plan_as_asked(planned, inventory, cluster, settings)
        # Manifests without any slice are those of a cluster before its controller wrote them.
        slices = inventory.slices.get(each.key, ()) if inventory.slices else planned.slices
        # Only endpoints without a targetRef are named by the addresses of pods.
        is_named = all(
            endpoint.target_ref is not None for held in slices for endpoint in held.endpoints
        )
        change = find_last_change(each, slices, inventory.pods_of(each), writes or {})
        pods = () if is_named else inventory.pods.get(each.metadata.namespace, ())
        for port in each.spec.ports:
            expected = [
                expect_port(each, port, which, views=views, pods=pods, gates=gates)
                for which, gates in (
                    (slices, settings.gates),
                    (planned.slices, settings.gates),
                    (asked.slices, asked_settings.gates),
                )
            ]
            facts = PortFacts(
                each,
                planned.strategy,
                expected[0],
                expected[1],
                planned.reasons,
                observe_port(by_service.get(each.key, ()), each, port),
                slices,
                inventory.nodes,
                acknowledged,
                flows.start,
                flows.end,
                change,
                tolerance,
                port.protocol or "TCP",
                min_connections,
            )
            names: dict[str, list[str]] = {}
            for node in inventory.nodes:
                names.setdefault(node.zone or NO_ZONE, []).append(node.name)
            verified.append(
                _verify_port(
                    port,
                    _Expectations(
                        facts,
                        expected[2],
                        names,
                        _has_preference(facts),
                        flows.has_bytes,
                    ),
                )
            )
    return tuple(verified)


def _verify_port(port: ServicePort, expected: _Expectations) -> VerifiedPort:
    facts = expected.facts
    judged = [_judge(zone, seen, expected) for zone, seen in sorted(facts.seen.zones.items())]
    rows = tuple(each.row for each in judged)
    causes: list[Cause] = []
    if expected.has_preference:
        unexpected = [each.unexpected for each in judged if each.unexpected is not None]
        unrouted = explain_unrouted(facts)
        causes = [
            *explain_data_plane(facts, unexpected),
            *explain_endpoints(facts),
            *(
                explain_control_plane(facts)
                if any(each.is_of_controller for each in judged)
                else ()
            ),
            *(cause for each in judged for cause in each.causes),
            *([explain_change(facts)] if unrouted and facts.is_mixed else unrouted),
        ]
    verdict = _sum_up(rows, expected, is_faulty=_is_faulty(causes))
    if expected.has_preference:
        causes += [*explain_failures(facts), *explain_clients(facts)]
    return VerifiedPort(
        facts.service.metadata.namespace,
        facts.service.metadata.name,
        port.name or str(port.port),
        facts.protocol,
        _mechanism(facts),
        verdict,
        facts.seen.connections,
        facts.seen.in_zone,
        _expected_in_zone(rows) if expected.has_preference else None,
        rows,
        tuple(dict.fromkeys(causes)),
    )


def _judge(zone: str, seen: ClientZone, expected: _Expectations) -> _Judged:
    facts = expected.facts
    names = expected.names.get(zone, [])
    ranges = expect_zone(facts.now, names, seen.nodes)
    row = VerifiedRow(zone, seen.connections, dict(seen.zones), ranges, TrafficVerdict.NOT_JUDGED)
    if (
        not expected.has_preference
        or not names
        or not facts.now.nodes
        or not (is_zone(zone) or zone == NO_ZONE)
    ):
        return _Judged(row)
    counts = facts.now.with_endpoint(seen.zones)
    number = max(1, len(facts.seen.zones) * (len(ranges) + 1) + len(seen.nodes))
    faults = tuple(explain_zone(facts, zone, seen, ranges, has_bytes=expected.has_bytes))
    if counts.total() < facts.min_connections:
        verdict = _verdict_of(faults, TrafficVerdict.TOO_FEW)
        return _Judged(replace(row, verdict=verdict), causes=faults)
    differences = find_differences(counts, ranges, tolerance=facts.tolerance, judged=number)
    nodes = {
        node: found
        for node, places in sorted(seen.nodes.items())
        if node in facts.now.nodes
        and (own := facts.now.with_endpoint(places)).total() >= facts.min_connections
        and (
            found := find_differences(
                own, facts.now.nodes[node].zones, tolerance=facts.tolerance, judged=number
            )
        )
    }
    if differences or nodes:
        first: list[Difference] = differences or next(iter(nodes.values()))
        return _Judged(
            replace(
                row,
                verdict=_verdict_of(
                    faults,
                    TrafficVerdict.CHANGED if facts.is_mixed else TrafficVerdict.NOT_HONOURED,
                ),
                difference=first[0].words,
                nodes=tuple(nodes),
            ),
            UnexpectedZone(zone, seen, ranges, tuple(first), tuple(nodes)),
            causes=faults,
        )
    for which in (expected.asked, facts.planned):
        wanted = expect_zone(which, names, seen.nodes)
        found = find_differences(counts, wanted, tolerance=facts.tolerance, judged=number)
        if found or (which is facts.planned and _lacks_hints(names, facts)):
            words = found[0].words if found else ""
            row = replace(
                row, verdict=TrafficVerdict.NOT_HONOURED, difference=words, expected=wanted
            )
            return _Judged(row, is_of_controller=True, causes=faults)
    verdict = _verdict_of(faults, TrafficVerdict.HONOURED)
    return _Judged(replace(row, verdict=verdict), causes=faults)


def _is_faulty(causes: Iterable[Cause]) -> bool:
    """Return whether causes show a fault, other than flows from before a change."""
    return any(cause.code is not CauseCode.CHANGED_WITHIN_PERIOD for cause in causes)


def _verdict_of(faults: tuple[Cause, ...], verdict: TrafficVerdict) -> TrafficVerdict:
    """Return the verdict on a row of which something is wrong besides where connections go."""
    if _is_faulty(faults):
        return TrafficVerdict.NOT_HONOURED
    return TrafficVerdict.CHANGED if faults else verdict


def _lacks_hints(names: Iterable[str], facts: PortFacts) -> bool:
    """Return whether a mechanism that works by hints has none that nodes can follow."""
    if facts.strategy.name not in HINTING_STRATEGIES or len(facts.now.spread) < 2:
        return False
    without, ready = facts.now.unhinted
    return without == ready or any(
        reason.code in (ReasonCode.ZONE_HINT_MISSING, ReasonCode.HINTS_IGNORED)
        for name in names
        if name in facts.now.nodes
        for reason in facts.now.nodes[name].reasons
    )


def _has_preference(facts: PortFacts) -> bool:
    """Return whether anything asks for some endpoints rather than others."""
    without, ready = facts.now.unhinted
    return (
        facts.strategy.name is not StrategyName.NONE
        or any(reason.code in NO_EFFECT_CODES for reason in facts.strategy.reasons)
        or any(named.port.internal_policy is not TrafficPolicy.CLUSTER for named in facts.now.named)
        or without < ready
    )


def _sum_up(
    rows: Iterable[VerifiedRow], expected: _Expectations, *, is_faulty: bool
) -> TrafficVerdict:
    facts = expected.facts
    if not expected.has_preference:
        return TrafficVerdict.NO_PREFERENCE
    verdicts = {row.verdict for row in rows}
    if is_faulty or (not facts.seen.connections and facts.seen.crossing):
        verdicts.add(TrafficVerdict.NOT_HONOURED)
    for verdict in (
        TrafficVerdict.NOT_HONOURED,
        TrafficVerdict.CHANGED,
        TrafficVerdict.HONOURED,
        TrafficVerdict.TOO_FEW,
    ):
        if verdict in verdicts:
            return verdict
    return TrafficVerdict.NO_TRAFFIC


def _mechanism(facts: PortFacts) -> str:
    policies = {named.port.internal_policy for named in facts.now.named}
    if policies and TrafficPolicy.CLUSTER not in policies:
        return f"internalTrafficPolicy {next(iter(policies))}"
    if facts.strategy.name is StrategyName.NONE:
        return "no trafficDistribution"
    return facts.strategy.label


def _expected_in_zone(rows: Iterable[VerifiedRow]) -> float | None:
    own, whole = 0.0, 0
    for row in rows:
        if is_zone(row.source) and row.expected:
            own += row.connections * sum(row.expected.get(row.source, (0.0, 0.0))) / 2
            whole += row.connections
    return own / whole if whole else None
