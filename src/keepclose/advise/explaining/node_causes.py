"""Causes on nodes: what their selection says, and their labels and states.

Whether a node follows hints is the answer of `routing.selection`; its reasons become causes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Final, NamedTuple

from msgspec.structs import replace

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.pod_causes import explain_selected_pod
from keepclose.advise.explaining.service_facts import AlikeNodes, ServiceFacts
from keepclose.advise.verification_causes import (
    name_some,
)
from keepclose.model.workload import Node, Pod
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.selection import PacketVerdict
from keepclose.routing.strategy import StrategyName
from keepclose.routing.traffic_shares import considered_nodes


def explain_nodes(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield what the selections of the nodes say, alike causes of several nodes joined."""
    if not facts.knows_nodes:
        return
    yield from _selections(facts)
    yield from _unready(facts)
    yield from _uncounted(facts)
    yield from _one_zone(facts)


def _selections(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield a cause for each reason that keeps traffic of nodes from where it should go."""
    found: dict[_ReasonKey, list[tuple[Reason, AlikeNodes]]] = {}
    for group in facts.groups:
        for key, reason in _reasons_of(group):
            found.setdefault(key, []).append((reason, group))
    nodes = sum(len(group.nodes) for group in facts.groups)
    for key, entries in found.items():
        reason = entries[0][0]
        affected = list(dict.fromkeys(name for _, group in entries for name in group.nodes))
        others = len(affected) - 1
        more = ""
        if others and reason.subject.startswith("Node "):
            more = f" (the same on {others:,} more node{'' if others == 1 else 's'})"
        cause = TrafficCause(
            key.code, f"{reason.message}{more}", reason.subject or facts.subject, reason.fix
        )
        if key.code is TrafficCauseCode.ZONE_WITHOUT_ENDPOINT:
            cause = _empty_zone(cause, key.subject, facts)
        elif key.is_external:
            # Load balancers check nodes and leave out those without an endpoint.
            cause = replace(cause, weight=CauseWeight.NOTE)
        elif key.code in _DROPPING and len(affected) == nodes:
            cause = replace(cause, weight=CauseWeight.BLOCKS)
        yield cause


class _ReasonKey(NamedTuple):
    """What reasons of several nodes have in common."""

    code: TrafficCauseCode
    subject: str
    is_external: bool


_DROPPING: Final = (TrafficCauseCode.NO_LOCAL_ENDPOINT, TrafficCauseCode.TOPOLOGY_KEYS_UNMATCHED)
_OF_SELECTION: Final = {
    ReasonCode.ZONE_HINT_MISSING: TrafficCauseCode.ENDPOINT_WITHOUT_HINT,
    ReasonCode.NODE_HINT_MISSING: TrafficCauseCode.ENDPOINT_WITHOUT_HINT,
    ReasonCode.NODE_WITHOUT_ZONE: TrafficCauseCode.NODE_WITHOUT_ZONE,
    ReasonCode.ZONE_NOT_HINTED: TrafficCauseCode.ZONE_WITHOUT_ENDPOINT,
    ReasonCode.SLICES_NOT_FOR_US: TrafficCauseCode.ZONE_WITHOUT_ENDPOINT,
    ReasonCode.HINTS_IGNORED: TrafficCauseCode.HINTS_IGNORED,
    ReasonCode.NO_LOCAL_ENDPOINT: TrafficCauseCode.NO_LOCAL_ENDPOINT,
    ReasonCode.TOPOLOGY_KEYS_UNMATCHED: TrafficCauseCode.TOPOLOGY_KEYS_UNMATCHED,
    ReasonCode.TERMINATING_FALLBACK: TrafficCauseCode.ONLY_TERMINATING,
}


def _reasons_of(group: AlikeNodes) -> Iterable[tuple[_ReasonKey, Reason]]:
    """Return the reasons of a group that are causes, one of each."""
    found: dict[_ReasonKey, Reason] = {}
    for port in group.ports:
        selection = port.selection
        for reason in selection.reasons:
            code = _OF_SELECTION.get(reason.code)
            if code is None:
                continue
            subject = "" if reason.subject.startswith("Node ") else reason.subject
            if code is TrafficCauseCode.ZONE_WITHOUT_ENDPOINT:
                subject = group.zone
            is_external = reason in selection.external_reasons
            found.setdefault(_ReasonKey(code, subject, is_external), reason)
    return found.items()


def _empty_zone(cause: TrafficCause, zone: str, facts: ServiceFacts) -> TrafficCause:
    """Return why a zone has no endpoint of its own: its Pods, its nodes, or nothing at all."""
    own = [pod for pod in facts.selected if _zone_of(pod, facts) == zone]
    if any((endpoint.zone or "") == zone for endpoint in facts.ready_endpoints()):
        # By design of a mechanism that balances; if not, the hints differ from those planned.
        return replace(cause, fix="", weight=CauseWeight.NOTE)
    if own and zone:
        return _unready_zone(cause, own, zone, facts)
    cause = replace(cause, weight=CauseWeight.NOTE)
    nodes = [node for node in facts.inventory.nodes if node.zone == zone]
    if nodes and all(node.spec.unschedulable for node in nodes):
        name = nodes[0].name
        return replace(
            cause,
            code=TrafficCauseCode.ZONE_CORDONED,
            message=f"{cause.message}; all its {len(nodes)} nodes are cordoned, so no Pod is "
            "scheduled there",
            fix=f"kubectl uncordon {quote(name)}",
        )
    taints = [
        taint
        for node in nodes[:1]
        for taint in node.spec.taints
        if taint.effect in ("NoSchedule", "NoExecute")
    ]
    if taints and all(_has_taint(node) for node in nodes):
        taint = taints[0]
        shown = f"{taint.key}={taint.value}" if taint.value else taint.key
        return replace(
            cause,
            code=TrafficCauseCode.ZONE_TAINTED,
            message=f"{cause.message}; all its {len(nodes)} nodes have taints such as {shown}:"
            f"{taint.effect}, which Pods must tolerate",
            fix=f"let the Pods tolerate {shown}, or run nodes without it in {zone}",
        )
    return cause


def _unready_zone(
    cause: TrafficCause, own: list[Pod], zone: str, facts: ServiceFacts
) -> TrafficCause:
    """Return why the Pods of a zone are no ready endpoints, by the first of them."""
    first = next(iter(explain_selected_pod(own[0], facts)), None)
    why = f"; {own[0].metadata.name}: {first.message}" if first is not None else ""
    many = f" ({name_some(pod.metadata.name for pod in own)})" if len(own) > 1 else ""
    return replace(
        cause,
        code=TrafficCauseCode.ZONE_UNREADY,
        message=f"no endpoint of {zone} is ready{many}, so its clients use other zones{why}",
        subject=f"Pod {own[0].key}",
        fix=first.fix if first is not None else "",
        weight=CauseWeight.DEFEATS,
    )


def _has_taint(node: Node) -> bool:
    return any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.spec.taints)


def _zone_of(pod: Pod, facts: ServiceFacts) -> str:
    node = facts.cluster.nodes.get(pod.spec.node_name)
    return "" if node is None else node.zone


def _unready(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield the nodes of the question that are not ready: their Pods are clients no more."""
    names = [name for group in facts.groups for name in group.nodes]
    unready = [name for name in names if not facts.cluster.nodes[name].is_ready]
    if unready and len(unready) == len(names):
        yield TrafficCause(
            TrafficCauseCode.NODE_NOT_READY,
            f"{name_some(unready)} {'is' if len(unready) == 1 else 'are'} not ready: what is said "
            "here holds once the node works",
            f"Node {unready[0]}",
            fix=f"kubectl describe node {quote(unready[0])}",
        )


def _uncounted(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield the nodes that shares by CPU leave out, if a mechanism plans with shares."""
    if facts.planned.strategy.name not in (StrategyName.AUTO, StrategyName.CUSTOM):
        return
    counted = {node.name for node in considered_nodes(facts.inventory.nodes)}
    excluded = [node.name for node in facts.inventory.nodes if node.is_excluded]
    down = [
        node.name
        for node in facts.inventory.nodes
        if node.name not in counted and not node.is_excluded
    ]
    parts = []
    if excluded:
        parts.append(f"{name_some(excluded)} of the control plane")
    if down:
        parts.append(f"{name_some(down)}, not ready")
    if parts:
        yield TrafficCause(
            TrafficCauseCode.NODES_NOT_COUNTED,
            f"the shares of zones leave out {' and '.join(parts)}: traffic from there comes on top",
            f"Node {(excluded or down)[0]}",
            weight=CauseWeight.NOTE,
        )


def _one_zone(facts: ServiceFacts) -> Iterator[TrafficCause]:
    zones = {node.zone for node in facts.inventory.nodes if node.zone and not node.is_excluded}
    by_zone = {StrategyName.SAME_ZONE, StrategyName.CUSTOM}
    if len(zones) == 1 and facts.planned.strategy.name in by_zone:
        yield TrafficCause(
            TrafficCauseCode.SINGLE_ZONE,
            f"all nodes with a zone are in {min(zones)}, so there is no closer zone to prefer",
            facts.subject,
            weight=CauseWeight.NOTE,
        )


def is_refused(group: AlikeNodes) -> bool:
    """Return whether no port of a group leads to an endpoint, by the cluster IP."""
    return bool(group.ports) and all(
        port.selection.internal.verdict is not PacketVerdict.NONE for port in group.ports
    )
