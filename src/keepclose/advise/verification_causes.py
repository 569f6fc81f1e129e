"""Why observed traffic is not as expected: probable causes, each with its evidence and its fix.

A cause is named only with evidence in the objects or in the flows. Causes of the controller come
from the reasons of the routing decisions; those of nodes are in `data_plane_causes`.

Nothing here decides whether traffic is as expected; `verification` does, and asks here for causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from shlex import quote
from typing import Final, NamedTuple

import msgspec

from keepclose.accounting.flow_table import NO_ZONE, OUTSIDE, UNKNOWN, FlowCounts
from keepclose.advise.observed_traffic import (
    ClientZone,
    PortExpectation,
    PortObservation,
)
from keepclose.model.acknowledgements import NodeAcknowledgement
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.well_known import TRIGGER_TIME_ANNOTATION, ZONE_LABEL
from keepclose.model.workload import Node, Pod
from keepclose.routing.reasons import NO_EFFECT_CODES, Reason, ReasonCode
from keepclose.routing.strategy import HINTING_STRATEGIES, Strategy
from keepclose.routing.traffic_shares import NAMED_NODES

FAILED_SHARE: Final = 0.05
"""The part of connections that may fail without being named: pods come and go."""
NOTED_SHARE: Final = 0.1
"""The part of connections from which on direct or outside traffic is worth a cause."""


class CauseCode(StrEnum):
    """What explains observed traffic."""

    SERVED_ELSEWHERE = "ServedByAnotherProxy"
    PROXY_REFUSES_HINTS = "ProxyRefusesHints"
    PROXY_BEHIND = "ProxyBehind"
    STALE_ENDPOINTS = "StaleEndpoints"
    UNUSED_ENDPOINTS = "UnusedEndpoints"
    CHANGED_WITHIN_PERIOD = "ChangedWithinPeriod"
    SOME_NODES_DIFFER = "SomeNodesDiffer"
    ONE_BUSY_CLIENT = "OneBusyClient"
    SESSION_AFFINITY = "SessionAffinity"
    HINTS_NOT_FOLLOWED = "HintsNotFollowed"
    LONG_LIVED_CONNECTIONS = "LongLivedConnections"
    KEPT_UDP_FLOWS = "KeptUdpFlows"
    HINTS_MISSING = "HintsMissing"
    HINTS_WITHHELD = "HintsWithheld"
    NODES_WITHOUT_ZONE = "NodesWithoutZone"
    ENDPOINTS_NOT_READY = "EndpointsNotReady"
    FIELD_WITHOUT_EFFECT = "FieldWithoutEffect"
    GATE_IS_OFF = "GateIsOff"
    CONNECTIONS_FAIL = "ConnectionsFail"
    DIRECT_POD_TRAFFIC = "DirectPodTraffic"
    TRAFFIC_FROM_OUTSIDE = "TrafficFromOutside"
    UNKNOWN_CLIENTS = "UnknownClients"
    UNEXPLAINED = "Unexplained"


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """A probable cause: what it is, the object concerned, and the smallest fix.

    `message` has the evidence in it. `fix` is a command if one exists, else one short imperative
    sentence; "" if nothing is to be fixed.
    """

    code: CauseCode
    message: str
    subject: str = ""
    fix: str = ""
    effect: str = ""
    """What the fix does to the traffic, if it was tried."""


class LastChange(NamedTuple):
    """When the newest of the objects changed that decide where a Service's traffic goes."""

    at: float = 0.0
    """Seconds of the Unix epoch; 0 if no object says it."""
    subject: str = ""
    is_known: bool = False
    """Whether managedFields of the Service and of every slice say when they were written: a change
    of hints alone advances no other time."""


class PortFacts(NamedTuple):
    """Everything about one port of a Service that a cause may be found in."""

    service: Service
    strategy: Strategy
    now: PortExpectation
    """With the slices as they are."""
    planned: PortExpectation
    """With the slices that a controller would write."""
    plan_reasons: tuple[Reason, ...]
    seen: PortObservation
    slices: tuple[EndpointSlice, ...]
    nodes: tuple[Node, ...]
    acknowledgements: tuple[NodeAcknowledgement, ...]
    start: float
    end: float
    change: LastChange
    tolerance: float
    protocol: str
    min_connections: int

    @property
    def is_mixed(self) -> bool:
        """Whether flows are from before the last change of the objects, all or some of them."""
        return 0 < self.start < self.change.at

    @property
    def is_settled(self) -> bool:
        """Whether all flows are from after the last change of the objects."""
        return self.start > 0 and self.change.is_known and not self.is_mixed

    @property
    def observe(self) -> str:
        """The command that judges new connections only."""
        return f"keepclose verify {quote(str(self.service.key))} --observe 60s"


def find_last_change(
    service: Service,
    slices: Iterable[EndpointSlice],
    pods: Iterable[Pod],
    writes: Mapping[str, str],
) -> LastChange:
    """Return the newest change of a Service, its slices and its pods.

    `writes` has the time of the last write of objects by uid, as managedFields say.
    """
    listed = tuple(slices)
    times = [
        (_seconds(text), f"Service {service.key}")
        for text in (service.metadata.creation_timestamp, writes.get(service.metadata.uid))
    ]
    for each in listed:
        meta = each.metadata
        trigger = meta.annotations.get(TRIGGER_TIME_ANNOTATION)
        times += [
            (_seconds(text), f"EndpointSlice {meta.name}")
            for text in (meta.creation_timestamp, trigger, writes.get(meta.uid))
        ]
    for pod in pods:
        ready = [each for each in pod.status.conditions if each.type == "Ready"]
        times += [
            (_seconds(text), f"Pod {pod.key}")
            for text in (
                pod.metadata.creation_timestamp,
                *(each.last_transition_time for each in ready),
            )
        ]
    at, subject = max(times)
    is_known = all(
        writes.get(uid) for uid in (service.metadata.uid, *(each.metadata.uid for each in listed))
    )
    return LastChange(at, subject, is_known)


def explain_change(facts: PortFacts) -> Cause:
    """Return that the objects changed while flows were counted, so that these do not judge them."""
    change = facts.change
    if 0 < facts.end < change.at:
        when = "after the last flow was counted; all flows are from before"
    elif facts.end:
        when = f"{facts.end - change.at:,.0f} s ago; flows are from before and after"
    else:
        when = f"{change.at - facts.start:,.0f} s after the first flow; flows are from before and "
        when += "after"
    return Cause(
        CauseCode.CHANGED_WITHIN_PERIOD,
        f"{change.subject} changed {when}",
        subject=change.subject,
        fix=facts.observe,
    )


def explain_control_plane(facts: PortFacts) -> list[Cause]:
    """Return why the slices or the Service do not have what was asked for."""
    return [*_no_effect(facts), *_hints(facts)]


def explain_bytes(facts: PortFacts, zone: str, seen: ClientZone, elsewhere: list[str]) -> Cause:
    """Return the cause of bytes that go to zones to which no new connections go."""
    part = sum(seen.bytes[place] for place in elsewhere) / max(1, seen.bytes.total())
    evidence = (
        f"from {zone}, {100 * part:.0f} % of the bytes go to {', '.join(elsewhere)}, "
        "and new connections do not"
    )
    if facts.protocol == "UDP":
        return Cause(
            CauseCode.KEPT_UDP_FLOWS,
            f"{evidence}: a client that keeps its socket keeps its endpoint, as conntrack keeps "
            "the flow while packets pass",
            subject=f"Service {facts.service.key}",
            fix="restart these clients, or let them use a new socket from time to time",
        )
    clients = sorted(name for name in seen.clients if "/" in name)
    fix = "restart these clients, or limit the age of connections at the server"
    if len(clients) == 1:
        namespace, _, name = clients[0].partition("/")
        fix = f"restart the pods of {quote(name)} in namespace {quote(namespace)}"
    return Cause(
        CauseCode.LONG_LIVED_CONNECTIONS,
        f"{evidence}: connections from before the last change stay with their endpoint",
        subject=f"Service {facts.service.key}",
        fix=fix,
    )


def explain_failures(facts: PortFacts) -> list[Cause]:
    """Return where connections are refused or get no answer, if more fail than usual.

    These do not judge shares: a connection that fails went somewhere, as it should or not.
    """
    seen = facts.seen
    by_endpoint = seen.endpoints or {
        f"zone {place}": counts for place, counts in seen.places.items() if place != NO_ZONE
    }
    return [
        Cause(
            CauseCode.CONNECTIONS_FAIL,
            f"{name}: {_count_failed(counts)} of {counts.connections:,} connections",
            subject=f"Pod {facts.service.metadata.namespace}/{name}" if seen.endpoints else "",
            fix=f"kubectl describe pod -n {facts.service.metadata.namespace} {quote(name)}"
            if seen.endpoints
            else "find the endpoint: observe the flows by pod",
        )
        for name, counts in sorted(by_endpoint.items())
        if _fails(counts, facts.protocol)
    ]


def explain_unrouted(facts: PortFacts) -> list[Cause]:
    """Return that connections found no endpoint, if more than usual."""
    nowhere = facts.seen.places.get(NO_ZONE)
    if nowhere is None or NO_ZONE in facts.now.pods.values():
        return []
    if nowhere.connections <= FAILED_SHARE * facts.seen.connections:
        return []
    if facts.now.ready:
        why = f"although {len(facts.now.ready)} endpoints are ready"
        fix = "look at the proxies of the nodes: they do not know these endpoints"
    else:
        why = "as no endpoint is ready"
        fix = f"kubectl get pods -n {facts.service.metadata.namespace}"
    return [
        Cause(
            CauseCode.CONNECTIONS_FAIL,
            f"{nowhere.connections:,} connections found no endpoint, {why}",
            subject=f"Service {facts.service.key}",
            fix=fix,
        ),
    ]


def explain_clients(facts: PortFacts) -> list[Cause]:
    """Return what is to be known of connections that cannot be judged."""
    seen, causes = facts.seen, []
    direct = seen.direct.connections
    whole = seen.connections + direct
    outside = seen.zones.get(OUTSIDE, ClientZone()).connections
    unknown = seen.zones.get(UNKNOWN, ClientZone()).connections
    if facts.service.is_headless or direct > NOTED_SHARE * whole:
        why = "the Service is headless" if facts.service.is_headless else "they bypass the Service"
        causes.append(
            Cause(
                CauseCode.DIRECT_POD_TRAFFIC,
                f"{direct:,} of {whole:,} connections go to the pods' own addresses, "
                f"{seen.crossing:,} of them to another zone: {why}, so no node routes them",
                subject=f"Service {facts.service.key}",
                fix="let clients use the cluster IP, or choose close endpoints themselves",
            )
        )
    if outside > NOTED_SHARE * whole:
        policy = facts.service.spec.external_traffic_policy or "Cluster"
        causes.append(
            Cause(
                CauseCode.TRAFFIC_FROM_OUTSIDE,
                f"{outside:,} of {whole:,} connections come from outside the cluster: they follow "
                f"the node that they enter by (externalTrafficPolicy {policy}), "
                "whose zone is not the client's",
                subject=f"Service {facts.service.key}",
            )
        )
    if unknown > NOTED_SHARE * whole:
        causes.append(
            Cause(
                CauseCode.UNKNOWN_CLIENTS,
                f"{unknown:,} of {whole:,} connections have a client that is not known, "
                "so their zone is not either",
            )
        )
    return causes


def zoneless_nodes(facts: PortFacts, seen: ClientZone) -> Cause:
    """Return that clients run on nodes without a zone, with the nodes."""
    names = sorted(node.name for node in facts.nodes if not node.zone)
    named = [name for name in names if name in seen.nodes] or names
    shown = name_some(named) or "nodes that no longer exist"
    fix = f"kubectl label node {quote(named[0])} {ZONE_LABEL}=<zone>" if named else ""
    return Cause(
        CauseCode.NODES_WITHOUT_ZONE,
        f"{seen.connections:,} connections come from nodes without a zone label ({shown}), "
        "which use all endpoints",
        subject=f"Node {named[0]}" if named else "",
        fix=fix,
    )


def unready_endpoints(facts: PortFacts, zone: str) -> Cause | None:
    """Return that a zone's own endpoints are all unready; None if it has none or a ready one."""
    own = sorted(pod for pod, place in facts.now.pods.items() if place == zone)
    if not own or any(facts.now.ready.get(pod) for pod in own):
        return None
    return Cause(
        CauseCode.ENDPOINTS_NOT_READY,
        f"none of the {len(own)} endpoints in {zone} is ready ({name_some(own)}), "
        "so its clients use those of other zones",
        subject=f"Pod {facts.service.metadata.namespace}/{own[0]}",
        fix=f"kubectl describe pod -n {facts.service.metadata.namespace} {quote(own[0])}",
    )


def name_some(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    rest = f" and {len(listed) - NAMED_NODES} more" if len(listed) > NAMED_NODES else ""
    return ", ".join(listed[:NAMED_NODES]) + rest


def _no_effect(facts: PortFacts) -> Iterator[Cause]:
    for reason in facts.strategy.reasons:
        if reason.code in NO_EFFECT_CODES:
            code, fix = CauseCode.FIELD_WITHOUT_EFFECT, reason.fix
            if reason.code is ReasonCode.GATE_OFF:
                code = CauseCode.GATE_IS_OFF
                gate = reason.subject.removeprefix("FeatureGate ")
                fix = fix or f"run controller and proxies with --feature-gates {gate}=true"
            yield Cause(code, reason.message, reason.subject, fix, reason.effect)


def _hints(facts: PortFacts) -> Iterator[Cause]:
    """Yield why hints are missing: the controller decided so, or it has not written them."""
    without, ready = facts.now.unhinted
    planned_without, planned_ready = facts.planned.unhinted
    if facts.strategy.name not in HINTING_STRATEGIES:
        return
    if planned_ready and planned_without:
        # Those that name an object and its fix come first.
        for reason in sorted(facts.plan_reasons, key=lambda reason: not reason.fix):
            yield Cause(CauseCode.HINTS_WITHHELD, reason.message, reason.subject, reason.fix)
    if without > planned_without:
        one = next(iter(facts.slices), None)
        managed = "" if one is None else f" (EndpointSlice {one.metadata.name})"
        yield Cause(
            CauseCode.HINTS_MISSING,
            f"{without} of {ready} ready endpoints have no hint{managed}, and "
            f"{facts.strategy.label} would give hints to {planned_ready - planned_without} of "
            f"{planned_ready}: the controller has not written them",
            subject=f"Service {facts.service.key}",
            fix="check that a controller runs that knows this value: Kubernetes 1.31 or later, or "
            "keepclose controller",
        )


def _fails(counts: FlowCounts, protocol: str) -> bool:
    # NB: many UDP protocols have no answers, such as those of syslog and statsd.
    failed = counts.refused + (0 if protocol == "UDP" else counts.unanswered)
    return failed > 2 and failed > FAILED_SHARE * counts.connections


def _count_failed(counts: FlowCounts) -> str:
    parts = ((counts.refused, "refused"), (counts.unanswered, "unanswered"))
    return " and ".join(f"{number:,} {what}" for number, what in parts if number)


def _seconds(text: str | None) -> float:
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return 0.0
