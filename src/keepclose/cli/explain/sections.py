"""The parts of an explanation as rows of words, the same for terminals and Markdown.

Long lists are cut here: a terminal shows a screen, and -o json has everything. Rows keep text from
outside as it is; the renderers make it plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause
from keepclose.advise.explaining.controller_numbers import ZoneNumbers
from keepclose.advise.explaining.explanation import (
    ExplainedEndpoint,
    ExplainedNodes,
    Explanation,
    TrafficFlow,
)
from keepclose.advise.explaining.pod_paths import ClientKind, PodShare
from keepclose.advise.resolution import ResolvedPort
from keepclose.cli.render.output import show_share
from keepclose.cli.render.resolve import MODE_NAMES, describe_outcome
from keepclose.routing.selection import Outcome
from keepclose.routing.service_ports import TrafficPolicy
from keepclose.routing.strategy import StrategyName
from keepclose.routing.topology import RoutingMode

_MAX_ROWS: Final = 6
CAUSES_ON_SCREEN: Final = 4
_NAMED_NODES: Final = 3
_MAX_REASONS: Final = 3

Row = tuple[str, ...]


class Listing(NamedTuple):
    """The rows of a table with its head, and how many more there are."""

    head: Row
    rows: tuple[Row, ...]
    left_out: str = ""


def headline(answer: Explanation) -> str:
    """Return the answer in one line: whose traffic, and whether it goes as asked."""
    if answer.target is not None and answer.shares:
        return f"{_question(answer)}: {_share_words(answer.shares)}"
    words = {
        TrafficFlow.AS_ASKED: "traffic goes as asked",
        TrafficFlow.NOT_AS_ASKED: "traffic does not go as asked",
        TrafficFlow.BLOCKED: "connections get no endpoint",
        TrafficFlow.UNKNOWN: "no node is known that routes it",
    }
    if answer.target is not None and answer.flow is TrafficFlow.BLOCKED:
        words[TrafficFlow.BLOCKED] = "gets no connections"
    return f"{_question(answer)}: {words[answer.flow]}"


def figures(answer: Explanation) -> str:
    """Return where the traffic goes in figures; "" if no node routes the Service."""
    traffic = answer.traffic
    if traffic is None or not traffic.busiest:
        return ""
    parts = [
        f"in zone {100 * traffic.in_zone:.0f} %",
        f"on node {100 * traffic.on_node:.0f} %",
        f"busiest {traffic.busiest:.2f}x",
    ]
    if traffic.failed:
        parts.append(f"failed {100 * traffic.failed:.0f} %")
    return f"{', '.join(parts)}, if all nodes send the same"


def split_causes(answer: Explanation) -> tuple[list[TrafficCause], list[TrafficCause]]:
    """Return what is to blame, and what is only to be known."""
    blamed = [
        cause for cause in answer.causes if cause.weight is not CauseWeight.NOTE and cause.is_sure
    ]
    notes = [cause for cause in answer.causes if cause not in blamed]
    return blamed, notes


def mechanism_lines(answer: Explanation) -> list[str]:
    """Return which mechanism governs, what it overrides, and what stands above it.

    What a cause says already is not repeated.
    """
    mechanism = answer.mechanism
    told = {cause.message for cause in answer.causes}
    source = f" ({mechanism.source})" if mechanism.source else ""
    head = f"{mechanism.name}{source} governs"
    if mechanism.name == StrategyName.NONE.value:
        head = "none governs: every node uses all endpoints"
    elif not mechanism.ignored:
        head += ", and nothing overrides it"
    reasons = [
        reason
        for reason in mechanism.reasons
        if reason not in told
        and not reason.endswith(" governs")
        and not reason.startswith("no mechanism was asked")
    ]
    lines = [head]
    lines += [f"overridden: {text}" for text in mechanism.ignored if text not in told]
    lines += mechanism.policies
    lines += reasons[:_MAX_REASONS]
    if len(reasons) > _MAX_REASONS:
        lines.append(f"and {len(reasons) - _MAX_REASONS} more reasons, see -o json")
    if mechanism.thresholds:
        lines.append(mechanism.thresholds)
    lines += [
        f"status: {condition.type}={condition.status} ({condition.reason})"
        for condition in mechanism.conditions
    ]
    return lines


def slice_line(answer: Explanation) -> str:
    """Return whose slices nodes go by."""
    slices = answer.slices
    count = f"{slices.count} slice" + ("" if slices.count == 1 else "s")
    if not slices.is_written:
        return f"{count}, planned from the Pods, as no slices were read"
    managers = ", ".join(name or "no controller" for name in slices.managers)
    by = f" of {managers}" if managers else ""
    differs = "; the planner would write others" if slices.differs else ""
    return f"{count}{by}, whose hints count{differs}"


def zone_listing(answer: Explanation, most: int | None = _MAX_ROWS) -> Listing:
    """Return the controller's numbers by zone."""
    has_least = any(zone.least is not None for zone in answer.zones)
    head = ["zone", "nodes", "share", "ready", "expected"]
    head += ["at least"] if has_least else []
    head += ["hinted", "load"]
    rows = []
    for zone in answer.zones[:most]:
        row = [zone.zone or "no zone", _nodes(zone), _percent(zone.share)]
        row += [_of(zone.ready, zone.endpoints), _number(zone.expected)]
        row += ["-" if zone.least is None else str(zone.least)] if has_least else []
        row += [str(zone.hinted), "-" if zone.load is None else f"{zone.load:.2f}x"]
        rows.append(tuple(row))
    return Listing(tuple(head), tuple(rows), _more(len(answer.zones), most, "zones"))


def endpoint_listing(answer: Explanation, most: int | None = _MAX_ROWS) -> Listing:
    """Return the endpoints with their hints, unready ones first."""
    rows = [
        (
            endpoint.pod or endpoint.address or "?",
            endpoint.node or "-",
            endpoint.zone or "-",
            endpoint.state,
            _hints(endpoint),
        )
        for endpoint in answer.endpoints[:most]
    ]
    head = ("endpoint", "node", "zone", "state", "hints")
    return Listing(head, tuple(rows), _more(len(answer.endpoints), most, "endpoints"))


def node_listings(answer: Explanation, most: int | None = _MAX_ROWS) -> list[tuple[str, Listing]]:
    """Return what the nodes use, a listing for all ports that they route alike."""
    titles = dict.fromkeys(port.title for group in answer.nodes for port in group.ports)
    listings: dict[Listing, list[str]] = {}
    for title in titles:
        listings.setdefault(_nodes_of_port(answer.nodes, title, most), []).append(title)
    return [
        (", ".join(title.removesuffix("/") for title in same), listing)
        for listing, same in listings.items()
    ]


def _nodes_of_port(groups: Sequence[ExplainedNodes], title: str, most: int | None) -> Listing:
    rows: dict[Row, list[str]] = {}
    columns: tuple[str, ...] = ()
    for group in groups:
        for port in group.ports:
            if port.title == title:
                columns, cells = _route(port, group)
                rows.setdefault((group.zone or "no zone", *cells), []).extend(group.nodes)
    listed = sorted(rows.items(), key=lambda row: row[0])
    return Listing(
        ("from", "nodes", *columns, "mode"),
        tuple((row[0], _names(names), *row[1:]) for row, names in listed[:most]),
        _more(len(listed), most, "rows"),
    )


def _route(resolved: ResolvedPort, group: ExplainedNodes) -> tuple[Row, Row]:
    port, selection = resolved.port, resolved.selection
    node = group.nodes[0] if len(group.nodes) == 1 else ""
    on_node = selection.mode in (RoutingMode.SAME_NODE, RoutingMode.NODE_LEVEL)

    def describe(outcome: Outcome, policy: TrafficPolicy) -> str:
        is_local = on_node or policy is not TrafficPolicy.CLUSTER
        return describe_outcome(outcome, node if is_local else "")

    columns = {"cluster IP": describe(selection.internal, port.internal_policy)}
    if port.is_externally_accessible:
        columns["from outside"] = describe(selection.external, port.external_policy)
    mode = MODE_NAMES[selection.mode] if selection.has_any else "-"
    if selection.by_slice_labels and selection.mode is RoutingMode.ALL:
        mode = "zone's slices"
    return tuple(columns), (*columns.values(), mode)


def _question(answer: Explanation) -> str:
    words = str(answer.service.key)
    clients = answer.clients
    if clients.kind is ClientKind.NODE:
        zones = {group.zone for group in answer.nodes}
        words += f" from {clients.name} ({min(zones, default='') or 'no zone'})"
    elif clients.kind is ClientKind.POD:
        words += f" from {clients.name} on {clients.nodes[0]}"
    elif clients.kind is ClientKind.ZONE:
        words += f" from {clients.name}"
    if answer.target is not None:
        words += f" to {answer.target.metadata.name}"
    return words


def _share_words(shares: Iterable[PodShare]) -> str:
    listed = list(shares)
    if all(share.high == 0.0 for share in listed):
        return "no connections"
    ranges = {(share.low, share.high) for share in listed}
    if len(ranges) == 1:
        return f"{_range(listed[0])} of the connections"
    return ", ".join(f"{_range(share)} of {share.port}" for share in listed)


def _range(share: PodShare) -> str:
    low, high = f"{100 * share.low:.0f}", f"{100 * share.high:.0f}"
    return f"{high} %" if low == high else f"{low} to {high} %"


def _names(names: list[str]) -> str:
    if len(names) <= _NAMED_NODES:
        return " ".join(names)
    return f"{' '.join(names[: _NAMED_NODES - 1])} and {len(names) - _NAMED_NODES + 1:,} more"


def _nodes(zone: ZoneNumbers) -> str:
    return _of(zone.ready_nodes, zone.nodes)


def _of(part: int, whole: int) -> str:
    return f"{part:,}" if part == whole else f"{part:,}/{whole:,}"


def _percent(share: float | None) -> str:
    return "-" if share is None else show_share(share)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _hints(endpoint: ExplainedEndpoint) -> str:
    parts = []
    if endpoint.zone_hints:
        parts.append(f"zone {' '.join(endpoint.zone_hints)}")
    if endpoint.node_hints:
        parts.append(f"node {' '.join(endpoint.node_hints)}")
    return ", ".join(parts) or "none"


def _more(count: int, most: int | None, noun: str) -> str:
    if most is None or count <= most:
        return ""
    return f"and {count - most:,} more {noun}, see -o json"
