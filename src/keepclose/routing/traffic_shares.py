"""How the traffic of a Service is expected to divide among zones, judged by the nodes.

Traffic is assumed to be proportional to the allocatable CPU of the nodes that are Ready and not
part of the control plane. The two mechanisms differ if a node reports too little: the topology mode
Auto gives up as the EndpointSlice controller does; subsetting (KEP-2004) skips nodes without a zone
and counts nodes instead of CPU. Neither ever guesses a zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, isinf
from shlex import quote
from typing import Final

import msgspec

from keepclose.model.quantities import millis
from keepclose.model.well_known import REGION_LABEL, ZONE_LABEL
from keepclose.model.workload import Node
from keepclose.routing.reasons import Reason, ReasonCode

BY_CPU: Final = "cpu"
BY_NODES: Final = "nodes"
"""The basis of shares where a node reports no CPU: the number of nodes."""
NAMED_NODES = 5
"""How many nodes are named; of the others only the number is reported."""

_LABEL_NODE = f"kubectl label node {{node}} {ZONE_LABEL}=<zone>"
_LABEL_NODE_WITH_REGION = f"kubectl label node {{node}} {REGION_LABEL}=<region>"
_REPORT_CPU = "make the kubelet of {node} report allocatable CPU"


class CpuRatios(msgspec.Struct, frozen=True):
    """Each zone's share of the CPU by zone name; None if the nodes report too little."""

    ratios: dict[str, float] | None
    reasons: tuple[Reason, ...] = ()


class Shares(msgspec.Struct, frozen=True):
    """Each zone's share of the traffic by zone name; empty if no node has a zone."""

    by_zone: dict[str, float]
    reasons: tuple[Reason, ...] = ()
    basis: str = BY_CPU
    """What the shares come from."""


class ZoneNodes(msgspec.Struct, frozen=True):
    """The nodes of a zone that are expected to send traffic."""

    ready: int
    cpu_millis: int
    """Their allocatable CPU in all, in thousandths; nodes that report none add none."""


def cpu_ratios(nodes: Iterable[Node]) -> CpuRatios:
    """Return the CPU ratios for the topology mode Auto; None unless two zones are fully known.

    One considered node without zone or CPU is enough for None, because its traffic would go to
    zones that were sized without it.
    """
    considered = considered_nodes(nodes)
    reasons = [
        *_node_reasons(
            [node for node in considered if not node.zone],
            code=ReasonCode.INSUFFICIENT_NODE_INFO,
            problem="has no zone label",
            fix=_LABEL_NODE,
        ),
        *_node_reasons(
            [node for node in considered if _cpu_of(node) is None],
            code=ReasonCode.INSUFFICIENT_NODE_INFO,
            problem="reports no allocatable CPU",
            fix=_REPORT_CPU,
        ),
    ]
    by_zone: dict[str, int] = {}
    for node in considered:
        by_zone[node.zone] = by_zone.get(node.zone, 0) + (_cpu_of(node) or 0)
    if not reasons and len(by_zone) < 2:
        # NB: a single zone gets the same code as missing data. The EndpointSlice controller
        # reports InsufficientNodeInfo here too, and alerts match it.
        reasons.append(_too_few_zones(tuple(by_zone)))
    if reasons:
        return CpuRatios(None, tuple(reasons))
    return CpuRatios(_divide(by_zone))


def traffic_shares(nodes: Iterable[Node]) -> Shares:
    """Return the traffic shares for subsetting, in the order of zone names.

    CPU counts; if it is unknown for a node with a zone, the number of nodes counts for all.
    """
    return _share_traffic(nodes, lambda node: node.zone, ReasonCode.NODE_WITHOUT_ZONE, "zone")


def region_shares(nodes: Iterable[Node]) -> Shares:
    """Return the traffic shares for subsetting by region, by the same rules."""
    return _share_traffic(nodes, lambda node: node.region, ReasonCode.NODE_WITHOUT_REGION, "region")


def _share_traffic(
    nodes: Iterable[Node], place_of: Callable[[Node], str], code: ReasonCode, level: str
) -> Shares:
    considered = considered_nodes(nodes)
    reasons = _node_reasons(
        [node for node in considered if not place_of(node)],
        code=code,
        problem=f"has no {level} label, so its traffic is not counted",
        fix=_LABEL_NODE if level == "zone" else _LABEL_NODE_WITH_REGION,
    )
    placed = [(node, _cpu_of(node)) for node in considered if place_of(node)]
    unknown = [node for node, cpu in placed if cpu is None]
    reasons += _node_reasons(
        unknown,
        code=ReasonCode.SHARE_BY_NODES,
        problem="reports no allocatable CPU, so nodes are counted instead",
        fix=_REPORT_CPU,
    )
    by_place: dict[str, int] = {}
    for node, cpu in placed:
        place = place_of(node)
        by_place[place] = by_place.get(place, 0) + (1 if unknown else cpu or 0)
    return Shares(_divide(by_place), tuple(reasons), BY_NODES if unknown else BY_CPU)


def count_zone_nodes(nodes: Iterable[Node]) -> dict[str, ZoneNodes]:
    """Return the nodes that count for the shares, by zone in order; nodes without a zone do not."""
    ready: dict[str, int] = {}
    cpu: dict[str, int] = {}
    for node in considered_nodes(nodes):
        if node.zone:
            ready[node.zone] = ready.get(node.zone, 0) + 1
            cpu[node.zone] = cpu.get(node.zone, 0) + (_cpu_of(node) or 0)
    return {zone: ZoneNodes(ready[zone], cpu[zone]) for zone in sorted(ready)}


def considered_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that are expected to send traffic, sorted by name."""
    usable = [node for node in nodes if node.is_ready and not node.is_excluded]
    return sorted(usable, key=lambda node: node.name)


def _cpu_of(node: Node) -> int | None:
    value = node.status.allocatable.get("cpu")
    cpu = None if value is None else millis(value)
    return cpu if cpu is not None and cpu > 0 else None


def divide_shares(values: Sequence[float]) -> list[float]:
    """Return the part of each value in their sum; without a positive value all parts are 0.

    Values that are not finite count as 0.
    """
    positive = [max(0.0, value) if isfinite(value) else 0.0 for value in values]
    whole = sum(positive) or 1.0
    if isinf(whole):
        # NB: only here, because a division more would round the shares of all others.
        greatest = max(positive)
        positive = [value / greatest for value in positive]
        whole = sum(positive)
    return [value / whole for value in positive]


def _divide(by_zone: Mapping[str, float]) -> dict[str, float]:
    zones = sorted(by_zone)
    return dict(zip(zones, divide_shares([by_zone[zone] for zone in zones]), strict=True))


def _node_reasons(
    nodes: Sequence[Node], *, code: ReasonCode, problem: str, fix: str
) -> list[Reason]:
    reasons = [
        Reason(
            code,
            f"node {node.name} {problem}",
            subject=f"Node {node.name}",
            fix=fix.format(node=quote(node.name)),
        )
        for node in nodes[:NAMED_NODES]
    ]
    if len(nodes) > NAMED_NODES:
        reasons.append(Reason(code, f"the same holds for {len(nodes) - NAMED_NODES} more nodes"))
    return reasons


def _too_few_zones(zones: tuple[str, ...]) -> Reason:
    if not zones:
        return Reason(
            ReasonCode.INSUFFICIENT_NODE_INFO,
            "no node is both Ready and outside the control plane",
            fix="kubectl get nodes",
        )
    return Reason(
        ReasonCode.INSUFFICIENT_NODE_INFO,
        f"all considered nodes are in zone {zones[0]}",
        fix="run ready worker nodes in at least two zones",
    )
