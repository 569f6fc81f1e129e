"""The answer of `keepclose resolve` for people: one block a Service, zones and nodes aligned.

First what governs, then who uses what, then why, and last the command that would mend it. Nodes
that do the same stand in one row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from keepclose.advise.resolution import ResolvedPort, ResolvedService
from keepclose.cli.render.screen import Grid, Group, Line, Padding, RenderableType, Screen
from keepclose.model.workload import Node
from keepclose.routing.reasons import SEEN_IN_CHOICE, Reason
from keepclose.routing.selection import Outcome, PacketVerdict
from keepclose.routing.service_ports import TrafficPolicy
from keepclose.routing.topology import RoutingMode

_ANNOTATION_PATH = re.compile(r"metadata\.annotations\[([^]]*)\]")
LABEL_WIDTH = len("status")
SHOWN_NODES = 6
SHOWN_REASONS = 8

_MODES = {
    RoutingMode.ALL: "everywhere",
    RoutingMode.SAME_ZONE: "same zone",
    RoutingMode.SAME_NODE: "same node",
    RoutingMode.NODE_LEVEL: "same node",
    RoutingMode.TOPOLOGY_KEYS: "topology keys",
}


def resolved_document(services: tuple[ResolvedService, ...]) -> dict[str, Any]:
    """Return the whole answer; endpoints are sorted, everything else keeps its order."""
    return {"services": [_service(one) for one in services]}


def _service(one: ResolvedService) -> dict[str, Any]:
    strategy = one.strategy
    return {
        "namespace": one.service.metadata.namespace,
        "name": one.service.metadata.name,
        "strategy": {
            "name": strategy.label,
            "source": strategy.source,
            "value": strategy.value,
            "reasons": [_reason(reason) for reason in (*strategy.reasons, *one.reasons)],
        },
        "slices": [msgspec.to_builtins(piece) for piece in one.slices],
        "events": [msgspec.to_builtins(event) for event in one.events],
        "conditions": [msgspec.to_builtins(condition) for condition in one.conditions],
        "errors": list(one.errors),
        "nodes": {
            node: {port.title: _port(port) for port in ports} for node, ports in one.nodes.items()
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
    answer: dict[str, Any] = {"endpoints": sorted(one.shown for one in outcome.endpoints)}
    if any(one.weight != 1 for one in outcome.endpoints):
        answer["weights"] = {one.shown: one.weight for one in outcome.endpoints}
    return answer


def _reason(reason: Reason) -> dict[str, str]:
    return {
        "code": reason.code.value,
        "message": reason.message,
        "subject": reason.subject,
        "fix": reason.fix,
    }


def print_services(
    console: Screen, services: tuple[ResolvedService, ...], nodes: Iterable[Node]
) -> None:
    """Print a block for each Service, with an empty line between two."""
    zones = {node.name: node.zone for node in nodes}
    for number, one in enumerate(services):
        if number:
            console.print()
        _print_trimmed(console, _block(one, zones))
        for position, fix in enumerate(_fixes(one)):
            # Never folded: a command that is broken into lines cannot be copied.
            label = "fix" if position == 0 else ""
            line = Line.assemble((f"  {label:<{LABEL_WIDTH}}  ", "dim"), (fix, "green"))
            console.print(line, soft_wrap=True)


def _print_trimmed(console: Screen, block: RenderableType) -> None:
    """Print without the blanks that tables put at the ends of lines."""
    for segments in console.render_lines(block, pad=False):
        line = Line.assemble(*((one.text, one.style or "") for one in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)


def _block(one: ResolvedService, zones: dict[str, str]) -> RenderableType:
    parts: list[RenderableType] = [_head(one)]
    titles = dict.fromkeys(port.title for ports in one.nodes.values() for port in ports)
    for rows, names in _same_tables(one, zones, titles):
        parts.append(_indented(Line(f"port {', '.join(map(_port_name, names))}", style="dim")))
        parts.append(_indented(rows))
    if not titles:
        parts.append(_indented(Line("no node routes this Service", style="dim")))
    parts.append(_indented(_explanation(one)))
    return Group(*parts)


def _port_name(title: str) -> str:
    """Return a port's title; one without a name ends with its protocol."""
    return title.removesuffix("/")


def _indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 0, 2), expand=False)


def _head(one: ResolvedService) -> RenderableType:
    endpoints = [e for piece in one.slices for e in piece.endpoints]
    ready = sum(e.conditions.ready is not False for e in endpoints)
    head = Line(str(one.service.key), style="bold")
    head.append("  ")
    head.append(one.strategy.label, style="cyan")
    if one.strategy.source:
        head.append(f" ({_short(one.strategy.source)})", style="dim")
    slices, count = _count(len(one.slices), "slice"), _count(len(endpoints), "endpoint")
    return Group(head, Line(f"  {slices}, {count}, {ready} ready", style="bold"))


def _same_tables(
    one: ResolvedService, zones: dict[str, str], titles: Iterable[str]
) -> list[tuple[Grid, list[str]]]:
    """Return one table for all ports that every node treats alike, with the names of the ports."""
    found: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for title in titles:
        rows: dict[tuple[str, ...], list[str]] = {}
        columns: tuple[str, ...] = ()
        for node, ports in one.nodes.items():
            for port in ports:
                if port.title == title:
                    columns, cells = _cells(port, node)
                    rows.setdefault((zones.get(node, ""), *cells), []).append(node)
        table = (
            ("from", "nodes", *columns, "mode"),
            *(
                (zone or "no zone", _names(nodes), *cells)
                for (zone, *cells), nodes in sorted(rows.items(), key=lambda row: row[0][0])
            ),
        )
        found.setdefault(table, []).append(title)
    return [(_table(rows), names) for rows, names in found.items()]


def _table(rows: tuple[tuple[str, ...], ...]) -> Grid:
    table = Grid(box=None, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Line(cell, style=_style(cell)) for cell in row))
    return table


def _cells(resolved: ResolvedPort, node: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    port, selection = resolved.port, resolved.selection
    total = sum(one.ready for one in selection.reachable)
    on_node = selection.mode in (RoutingMode.SAME_NODE, RoutingMode.NODE_LEVEL)
    inside = on_node or port.internal_policy is not TrafficPolicy.CLUSTER
    outside = on_node or port.external_policy is not TrafficPolicy.CLUSTER
    columns = {"cluster IP": _resolve_outcome(selection.internal, node if inside else "")}
    for name, exists in (
        ("node port", port.has_node_port),
        ("load balancer", bool(port.load_balancer_ips)),
        ("external IP", bool(port.external_ips)),
    ):
        if exists:
            columns[name] = _resolve_outcome(selection.external, node if outside else "")
    mode = _MODES[selection.mode]
    if selection.by_slice_labels and selection.mode is RoutingMode.ALL:
        mode = "zone's slices"
    if total == 0 and not selection.has_any:
        mode = "-"
    return tuple(columns), (*columns.values(), mode)


def _resolve_outcome(outcome: Outcome, node: str) -> str:
    match outcome.verdict:
        case PacketVerdict.DROP:
            return "dropped"
        case PacketVerdict.REJECT:
            return "refused"
        case _:
            pass
    if not outcome.endpoints:
        return "-"
    if node and all(one.node_name == node for one in outcome.endpoints):
        return f"{len(outcome.endpoints)} on own node"
    zones = Counter(one.zone or "no zone" for one in outcome.endpoints)
    if len(zones) > 3:
        return f"{len(outcome.endpoints)} in {len(zones)} zones"
    return ", ".join(f"{zones[zone]} in {zone}" for zone in sorted(zones))


def _explanation(one: ResolvedService) -> RenderableType:
    reasons = _reasons(one)
    lines = Grid.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True, min_width=LABEL_WIDTH)
    lines.add_column(overflow="fold")
    for number, (reason, others) in enumerate(reasons[:SHOWN_REASONS]):
        more = f" (the same on {_count(others, 'more node')})" if others else ""
        lines.add_row("why" if number == 0 else "", Line(_short(reason.message) + more))
    if len(reasons) > SHOWN_REASONS:
        lines.add_row("", Line(f"and {len(reasons) - SHOWN_REASONS} more, see -o json"))
    for error in one.errors:
        lines.add_row(Line("error", style="red"), Line(error))
    for number, event in enumerate(one.events):
        lines.add_row("event" if number == 0 else "", Line(f"{event.reason}: {event.message}"))
    for condition in one.conditions:
        told = f"{condition.type}={condition.status} ({condition.reason})"
        lines.add_row("status", Line(told))
    return lines


def _fixes(one: ResolvedService) -> list[str]:
    """Return what would mend the Service's routing, each once."""
    fixes = dict.fromkeys(reason.fix for reason, _ in _reasons(one) if reason.fix)
    return list(fixes)[:SHOWN_REASONS]


def _reasons(one: ResolvedService) -> list[tuple[Reason, int]]:
    """Return each reason once, with the number of further nodes on which it holds likewise."""
    first: dict[tuple[str, str], Reason] = {}
    nodes: dict[tuple[str, str], set[str]] = {}
    for reason in (*one.strategy.reasons, *one.reasons):
        first.setdefault((reason.code, reason.message), reason)
    for node, ports in one.nodes.items():
        for reason in (reason for port in ports for reason in port.selection.reasons):
            if reason.code not in SEEN_IN_CHOICE:
                key = (reason.code, re.sub(rf"\b{re.escape(node)}\b", "*", reason.message))
                first.setdefault(key, reason)
                nodes.setdefault(key, set()).add(node)
    return [(reason, max(0, len(nodes.get(key, ())) - 1)) for key, reason in first.items()]


def _short(text: str) -> str:
    return _ANNOTATION_PATH.sub(r"annotation \1", text)


def _names(nodes: list[str]) -> str:
    if len(nodes) <= SHOWN_NODES:
        return " ".join(nodes)
    return f"{' '.join(nodes[: SHOWN_NODES - 1])} and {len(nodes) - SHOWN_NODES + 1} more"


def _style(cell: str) -> str:
    return {"dropped": "red", "refused": "red", "no zone": "yellow"}.get(cell, "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
