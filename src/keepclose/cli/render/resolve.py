"""Renders the answer of `keepclose resolve`: a block for each Service, or plain data for JSON.

A block shows the mechanism first, then the endpoints that each zone and node uses, then the
reasons, and last the command that would fix the routing. Nodes that route alike share a row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from keepclose.advise.resolution import ResolvedPort, ResolvedService
from keepclose.cli.render.screen import (
    Grid,
    Group,
    Line,
    Padding,
    RenderableType,
    Screen,
    cell_len,
)
from keepclose.model.workload import Node
from keepclose.routing.reasons import VISIBLE_IN_SELECTION, Reason, ReasonCode
from keepclose.routing.selection import Outcome, PacketVerdict
from keepclose.routing.service_ports import TrafficPolicy
from keepclose.routing.topology import RoutingMode

LABEL_WIDTH: Final = len("status")
SHOWN_NODES: Final = 6
LONGEST_NAME: Final = 16
"""The longest name of a node that a table of 80 columns shows whole."""
SHOWN_REASONS: Final = 8
# The table shows the parts of endpoints by weight.
_VISIBLE_IN_TABLE: Final = VISIBLE_IN_SELECTION | {ReasonCode.WEIGHTED}
_ANNOTATION_PATH: Final = re.compile(r"metadata\.annotations\[([^]]*)\]")
MODE_NAMES: Final = {
    RoutingMode.ALL: "everywhere",
    RoutingMode.SAME_ZONE: "same zone",
    RoutingMode.SAME_NODE: "same node",
    RoutingMode.NODE_LEVEL: "same node",
    RoutingMode.WEIGHTS: "by weights",
    RoutingMode.TOPOLOGY_KEYS: "topology keys",
}


def resolved_document(services: tuple[ResolvedService, ...]) -> dict[str, Any]:
    """Return the whole answer as plain data; endpoints are sorted, the rest keeps its order."""
    return {"services": [_service(service) for service in services]}


def print_services(
    console: Screen, services: tuple[ResolvedService, ...], nodes: Iterable[Node]
) -> None:
    """Print a block for each Service, with an empty line between two."""
    zones = {node.name: node.zone for node in nodes}
    for number, service in enumerate(services):
        if number:
            console.print()
        print_trimmed(console, _block(service, zones))
        for position, (fix, effect) in enumerate(_fixes(service).items()):
            # Never wrapped: a command that is broken into lines cannot be copied.
            label = "fix" if position == 0 else ""
            line = Line.assemble((f"  {label:<{LABEL_WIDTH}}  ", "dim"), (fix, "green"))
            console.print(line, soft_wrap=True)
            if effect:
                console.print(Line.assemble((f"  {'then':<{LABEL_WIDTH}}  ", "dim"), effect))


def _service(resolved: ResolvedService) -> dict[str, Any]:
    strategy = resolved.strategy
    return {
        "namespace": resolved.service.metadata.namespace,
        "name": resolved.service.metadata.name,
        "strategy": {
            "name": strategy.label,
            "source": strategy.source,
            "value": strategy.value,
            "reasons": [_reason(reason) for reason in (*strategy.reasons, *resolved.reasons)],
        },
        "slices": [msgspec.to_builtins(endpoint_slice) for endpoint_slice in resolved.slices],
        "events": [
            {"type": event.type, "reason": event.reason, "message": event.message}
            for event in resolved.events
        ],
        "conditions": [msgspec.to_builtins(condition) for condition in resolved.conditions],
        "errors": list(resolved.errors),
        "nodes": {
            node: {port.title: _port(port) for port in ports}
            for node, ports in resolved.nodes.items()
        },
    }


def _port(resolved: ResolvedPort) -> dict[str, Any]:
    port, selection = resolved.port, resolved.selection
    answer: dict[str, Any] = {
        "mode": selection.mode.value,
        "reasons": [_reason(reason) for reason in selection.reasons],
        "internal": _outcome(selection.internal),
    }
    if port.has_node_port:
        answer["nodePort"] = _outcome(selection.external)
    if port.load_balancer_ips:
        answer["loadBalancer"] = _outcome(selection.external)
    if port.external_ips:
        answer["externalIP"] = _outcome(selection.external)
    return answer


def _outcome(outcome: Outcome) -> dict[str, Any]:
    if outcome.verdict:
        return {"verdict": outcome.verdict.value}
    endpoints = outcome.endpoints
    answer: dict[str, Any] = {"endpoints": sorted(endpoint.shown for endpoint in endpoints)}
    if any(endpoint.weight != 1 for endpoint in endpoints):
        answer["weights"] = {endpoint.shown: endpoint.weight for endpoint in endpoints}
    return answer


def _reason(reason: Reason) -> dict[str, str]:
    return {
        "code": reason.code.value,
        "message": reason.message,
        "subject": reason.subject,
        "fix": reason.fix,
        "effect": reason.effect,
    }


def print_trimmed(console: Screen, block: RenderableType) -> None:
    """Print a block without the trailing blanks of tables."""
    for segments in console.render_lines(block, pad=False):
        line = Line.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)


def _block(resolved: ResolvedService, zones: dict[str, str]) -> RenderableType:
    parts: list[RenderableType] = [_head(resolved)]
    titles = dict.fromkeys(port.title for ports in resolved.nodes.values() for port in ports)
    for rows, names in _same_tables(resolved, zones, titles):
        parts.append(_indented(Line(f"port {', '.join(map(_port_name, names))}", style="dim")))
        parts.append(_indented(rows))
    if not titles:
        parts.append(_indented(Line("no node routes this Service", style="dim")))
    parts.append(_indented(_explanation(resolved)))
    return Group(*parts)


def _port_name(title: str) -> str:
    """Return a port's title; one without a name ends with its protocol."""
    return title.removesuffix("/")


def _indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 0, 2), expand=False)


def _head(resolved: ResolvedService) -> RenderableType:
    slices = resolved.slices
    endpoints = [endpoint for endpoint_slice in slices for endpoint in endpoint_slice.endpoints]
    ready = sum(endpoint.conditions.ready is not False for endpoint in endpoints)
    head = Line(str(resolved.service.key), style="bold")
    head.append("  ")
    head.append(resolved.strategy.label, style="cyan")
    if resolved.strategy.source:
        head.append(f" ({shorten_paths(resolved.strategy.source)})", style="dim")
    counts = f"{_count(len(slices), 'slice')}, {_count(len(endpoints), 'endpoint')}"
    return Group(head, Line(f"  {counts}, {ready} ready", style="bold"))


def _same_tables(
    resolved: ResolvedService, zones: dict[str, str], titles: Iterable[str]
) -> list[tuple[Grid, list[str]]]:
    """Return one table for all ports that every node routes alike, with the names of the ports."""
    names_by_table: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    short = _shorten(zones)
    for title in titles:
        rows: dict[tuple[str, ...], list[str]] = {}
        columns: tuple[str, ...] = ()
        for node, ports in resolved.nodes.items():
            for port in ports:
                if port.title == title:
                    columns, cells = _cells(port, node)
                    rows.setdefault((zones.get(node, ""), *cells), []).append(node)
        table = (
            ("from", "nodes", *columns, "mode"),
            *(
                (zone or "no zone", _names(nodes, short), *cells)
                for (zone, *cells), nodes in sorted(rows.items(), key=lambda row: row[0][0])
            ),
        )
        names_by_table.setdefault(table, []).append(title)
    return [(_table(rows), names) for rows, names in names_by_table.items()]


def _table(rows: tuple[tuple[str, ...], ...]) -> Grid:
    table = Grid(box=None, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Line(cell, style=_style(cell)) for cell in row))
    return table


def _cells(resolved: ResolvedPort, node: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    port, selection = resolved.port, resolved.selection
    total = sum(endpoint.ready for endpoint in selection.reachable)
    on_node = selection.mode in (RoutingMode.SAME_NODE, RoutingMode.NODE_LEVEL)
    inside = on_node or port.internal_policy is not TrafficPolicy.CLUSTER
    outside = on_node or port.external_policy is not TrafficPolicy.CLUSTER
    columns = {"cluster IP": describe_outcome(selection.internal, node if inside else "")}
    for name, exists in (
        ("node port", port.has_node_port),
        ("load balancer", bool(port.load_balancer_ips)),
        ("external IP", bool(port.external_ips)),
    ):
        if exists:
            columns[name] = describe_outcome(selection.external, node if outside else "")
    mode = MODE_NAMES[selection.mode]
    if selection.by_slice_labels and selection.mode is RoutingMode.ALL:
        mode = "zone's slices"
    if total == 0 and not selection.has_any:
        mode = "-"
    return tuple(columns), (*columns.values(), mode)


def describe_outcome(outcome: Outcome, node: str) -> str:
    """Return what an outcome gives in a few words: "2 in zone-a", "1 on own node", "dropped".

    `node` is the node that routes, "" to name zones only.
    """
    match outcome.verdict:
        case PacketVerdict.DROP:
            return "dropped"
        case PacketVerdict.REJECT:
            return "refused"
        case _:
            pass
    if not outcome.endpoints:
        return "-"
    if node and all(endpoint.node_name == node for endpoint in outcome.endpoints):
        return f"{len(outcome.endpoints)} on own node"
    zones = Counter(endpoint.zone or "no zone" for endpoint in outcome.endpoints)
    if len(zones) > 3:
        return f"{len(outcome.endpoints)} in {len(zones)} zones"
    if len(zones) == 1 or len({endpoint.weight for endpoint in outcome.endpoints}) == 1:
        return ", ".join(f"{zones[zone]} in {zone}" for zone in sorted(zones))
    parts: Counter[str] = Counter()
    for endpoint in outcome.endpoints:
        parts[endpoint.zone or "no zone"] += endpoint.weight
    whole = parts.total()
    return ", ".join(
        f"{zones[zone]} in {zone} ({parts[zone] / whole:.0%})" for zone in sorted(zones)
    )


def _explanation(resolved: ResolvedService) -> RenderableType:
    reasons = _reasons(resolved)
    lines = Grid.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True, min_width=LABEL_WIDTH)
    lines.add_column(overflow="fold")
    for number, (reason, others) in enumerate(reasons[:SHOWN_REASONS]):
        more = f" (the same on {_count(others, 'more node')})" if others else ""
        lines.add_row("why" if number == 0 else "", Line(shorten_paths(reason.message) + more))
    if len(reasons) > SHOWN_REASONS:
        lines.add_row("", Line(f"and {len(reasons) - SHOWN_REASONS} more, see -o json"))
    for error in resolved.errors:
        lines.add_row(Line("error", style="red"), Line(error))
    for number, event in enumerate(resolved.events):
        lines.add_row("event" if number == 0 else "", Line(f"{event.reason}: {event.message}"))
    for condition in resolved.conditions:
        text = f"{condition.type}={condition.status} ({condition.reason})"
        lines.add_row("status", Line(text))
    return lines


def _fixes(resolved: ResolvedService) -> dict[str, str]:
    """Return the commands that would fix the Service's routing, each with its effect if known."""
    fixes = {reason.fix: reason.effect for reason, _ in _reasons(resolved) if reason.fix}
    return dict(list(fixes.items())[:SHOWN_REASONS])


def _reasons(resolved: ResolvedService) -> list[tuple[Reason, int]]:
    """Return each reason once, with the number of further nodes that it applies to."""
    first: dict[tuple[str, str], Reason] = {}
    nodes: dict[tuple[str, str], set[str]] = {}
    for reason in (*resolved.strategy.reasons, *resolved.reasons):
        first.setdefault((reason.code, reason.message), reason)
    for node, ports in resolved.nodes.items():
        for reason in (reason for port in ports for reason in port.selection.reasons):
            if reason.code not in _VISIBLE_IN_TABLE:
                key = (reason.code, re.sub(rf"\b{re.escape(node)}\b", "*", reason.message))
                first.setdefault(key, reason)
                nodes.setdefault(key, set()).add(node)
    return [(reason, max(0, len(nodes.get(key, ())) - 1)) for key, reason in first.items()]


def shorten_paths(text: str) -> str:
    """Return a message with "annotation NAME" in place of the paths of annotations."""
    return _ANNOTATION_PATH.sub(r"annotation \1", text)


def _names(nodes: list[str], short: Mapping[str, str]) -> str:
    """Return the names of nodes, or as many as fit, and how many more there are."""
    if not short:
        if len(nodes) <= SHOWN_NODES:
            return " ".join(nodes)
        return f"{' '.join(nodes[: SHOWN_NODES - 1])} and {len(nodes) - SHOWN_NODES + 1} more"
    return short[nodes[0]] + (f" +{len(nodes) - 1}" if len(nodes) > 1 else "")


def _shorten(nodes: Iterable[str]) -> dict[str, str]:
    """Return short names of nodes if their names are too long for a table of 80 columns, else {}.

    The domain that all of them have in common goes first, then the beginning, as the names that a
    cloud gives to its nodes differ at their ends. Names that would no longer differ stay whole.
    """
    names = list(nodes)
    if max(map(cell_len, names), default=0) <= LONGEST_NAME:
        return {}
    domains = {name.partition(".")[2] for name in names}
    short = {name: name.partition(".")[0] if len(domains) == 1 else name for name in names}
    for name, text in short.items():
        if cell_len(text) > LONGEST_NAME:
            end = text[-LONGEST_NAME + 2 :]
            short[name] = f"..{end[end.find('-') + 1 :] if '-' in end[:-4] else end}"
    return short if len(set(short.values())) == len(names) else {}


def _style(cell: str) -> str:
    return {"dropped": "red", "refused": "red", "no zone": "yellow"}.get(cell, "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
