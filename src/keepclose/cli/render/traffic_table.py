"""Renders the answer of `keepclose traffic`: totals, a matrix of zones, the reasons, and the sums.

The matrix has the first form that fits the width: counts with percents, percents alone, or a list
of the cells that are not empty. Lines have no trailing blanks, and colour is never the only sign.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

from keepclose.cli.render.screen import Line, Screen, cell_len
from keepclose.lab.traffic.report import TrafficReport, TrafficRow
from keepclose.model.plain_text import make_plain

WIDEST_NAME: Final = 100
SHOWN_TRAFFIC_REASONS: Final = 8
EMPTY_CELL: Final = "·"
_NO_ZONE: Final = "no zone"
_LEGEND: Final = "in % (expected)"
Cell = Callable[[TrafficRow, str], str]


def print_traffic(console: Screen, report: TrafficReport, *, by_node: bool = False) -> None:
    """Print the report, and with `by_node` a second matrix node by node."""
    width = min(console.width, WIDEST_NAME)
    is_outside = report.via != "cluster-ip"
    lines = _matrix(
        report.rows, report.zones, word="via" if is_outside else "from", width=width, sums=True
    )
    for line in (_headline(report, max(map(_length, lines), default=0), width), *lines):
        console.print(line, soft_wrap=True)
    if by_node:
        console.print()
        console.print(Line(f"node by node, {_LEGEND}", style="dim"))
        for line in _matrix(report.sources, report.nodes, word="from", width=width, sums=False):
            console.print(line, soft_wrap=True)
        console.print()
    for line in (*_explanation(report, width), *_footer(report, width)):
        console.print(line, soft_wrap=True)


def _headline(report: TrafficReport, table: int, width: int) -> Line:
    place = " from outside" if report.via != "cluster-ip" else ""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.failures.items()))
    failed = f"{report.failed:,} failed" + (f" ({kinds})" if kinds else "")
    noun = "datagram" if report.port.endswith("/UDP") else "connection"
    noun += "" if report.connections == 1 else "s"
    head = Line(f"{report.connections:,} {noun}{place}, ", style="bold")
    head.append(failed, style="bold red" if report.failed else "bold")
    gap = min(max(table, 60), width) - len(head.plain) - len(report.mechanism)
    head.append(" " * max(gap, 3))
    head.append(report.mechanism, style="cyan")
    return head


def _matrix(
    rows: Sequence[TrafficRow], columns: Sequence[str], *, word: str, width: int, sums: bool
) -> list[Line]:
    """Return the lines of the first form that fits the width."""
    digits = max([len(f"{count:,}") for row in rows for count in row.answered.values()] or [1])

    def counted(row: TrafficRow, place: str) -> str:
        return f"{row.answered.get(place, 0):>{digits},} {_percent(row, place):>3} %"

    def in_percent(row: TrafficRow, place: str) -> str:
        return f"{_percent(row, place):>3} %"

    def beside(row: TrafficRow, place: str) -> str:
        return f"{_percent(row, place):>3} ({_expected(row, place)})"

    for form in (counted, in_percent) if sums else (beside,):
        lines = _grid(rows, columns, form, word=word, sums=sums)
        if max(map(_length, lines), default=0) <= width:
            return lines
    legend = [Line(_LEGEND, style="dim")] if sums else []
    return [*legend, *_list(rows, columns, word=word, width=width)]


def _grid(
    rows: Sequence[TrafficRow], columns: Sequence[str], form: Cell, *, word: str, sums: bool
) -> list[Line]:
    tails = ["expected"] if sums else []
    if any(row.failures for row in rows):
        tails.append("failed")
    table = [["to", *(place or _NO_ZONE for place in columns), *tails, ""]]
    for number, row in enumerate(rows):
        label = f"{word if number == 0 else '':<{len(word)}} {row.source or _NO_ZONE}"
        cells = [form(row, place) if _is_used(row, place) else EMPTY_CELL for place in columns]
        if sums:
            cells.append(_expectation(row, columns))
        if len(tails) > sums:
            cells.append(_failed(row) or EMPTY_CELL)
        table.append([label, *cells, "✗" if row.fault else "✓"])
    widths = [max(cell_len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = []
    for number, cells in enumerate(table):
        line = Line()
        for column, cell in enumerate(cells):
            blank = " " * (widths[column] - cell_len(cell))
            if column == 0 and number == 0:
                cell, blank = blank + cell, ""  # noqa: PLW2901 - over the rows' own names
            style = "dim" if number == 0 or cell == EMPTY_CELL else _style(cell)
            line.append(cell, style=style)
            line.append(blank + ("  " if column < len(cells) - 1 else ""))
        line.rstrip()
        lines.append(line)
    return lines


def _list(
    rows: Sequence[TrafficRow], columns: Sequence[str], *, word: str, width: int
) -> list[Line]:
    """Return lines for each row: the measured percents, and the expected ones in brackets."""
    names = [row.source or _NO_ZONE for row in rows]
    longest = max(map(len, names), default=0)
    lines = []
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        reached = [
            f"{place or _NO_ZONE} {_percent(row, place)} ({_expected(row, place)})"
            for place in columns
            if _is_used(row, place)
        ]
        if row.failures or row.expected_failures:
            reached.append(f"failed {_failed(row) or EMPTY_CELL}")
        mark = "✗" if row.fault else "✓"
        label = f"{word if number == 0 else '':<{len(word)}} {name:<{longest}}  "
        whole = (
            ", ".join(reached)
            .replace(" ", "\N{NO-BREAK SPACE}")
            .replace(",\N{NO-BREAK SPACE}", ", ")
        )
        for part in wrap(whole, width - len(label) - 3) or [""]:
            text = part.replace("\N{NO-BREAK SPACE}", " ")
            line = Line(label)
            if label.strip():
                line.append(mark, style=_style(mark))
                line.append(f"  {text}")
            else:
                line.append(f"   {text}")
            line.rstrip()
            lines.append(line)
            label = " " * len(label)
    return lines


def _explanation(report: TrafficReport, width: int) -> list[Line]:
    lines = []
    for row in report.rows:
        if row.fault:
            lines += _labelled("✗", row.fault, width, style="red")
    for cause in report.causes:
        lines += _labelled("why", cause, width, style="dim")
    reasons = _gather_reasons(report)
    for reason in reasons[:SHOWN_TRAFFIC_REASONS]:
        lines += _labelled("why", reason.words, width, style="dim")
    if len(reasons) > SHOWN_TRAFFIC_REASONS:
        more = f"and {len(reasons) - SHOWN_TRAFFIC_REASONS} more, see -o json"
        lines += _labelled("", more, width, style="dim")
    for note in report.notes:
        lines += _labelled("note", note, width, style="dim")
    # Never wrapped: a command that is broken into lines cannot be copied.
    fixes = dict.fromkeys(r.fix for row in report.rows for r in row.reasons if r.fix)
    shown = [*fixes][:SHOWN_TRAFFIC_REASONS]
    lines += [Line.assemble((f"{'fix':<4}  ", "dim"), (fix, "green")) for fix in shown]
    return lines


class _GatheredReason(NamedTuple):
    """A reason with the message of its first row, and all rows and nodes that it applies to."""

    message: str
    rows: list[str]
    nodes: int

    @property
    def words(self) -> str:
        others = self.nodes - 1
        parts = [f"the same on {others} more node{'s' if others > 1 else ''}"] if others > 0 else []
        if len(self.rows) > 1 and self.nodes:
            parts.append(f"also in {', '.join(row or _NO_ZONE for row in self.rows[1:])}")
        return f"{self.message} ({', '.join(parts)})" if parts else self.message


def _gather_reasons(report: TrafficReport) -> list[_GatheredReason]:
    """Return each reason once, also where rows name different zones and nodes in it."""
    gathered: dict[str, _GatheredReason] = {}
    for row in report.rows:
        for reason in row.reasons:
            kind, _, node = reason.subject.partition(" ")
            # Other reasons are not about single nodes, so counting nodes would say nothing.
            is_of_node = kind == "Node"
            names = [name for name in (row.source, node) if name and is_of_node]
            key = reason.message
            for name in names:
                key = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", "*", key)
            # A row has each reason once, for all its nodes; a second one in it is another reason.
            if key in gathered and gathered[key].rows[-1] == row.source:
                key = reason.message
            first = gathered.setdefault(key, _GatheredReason(reason.message, [], 0))
            nodes = first.nodes + reason.nodes if is_of_node else 0
            gathered[key] = first._replace(rows=[*first.rows, row.source], nodes=nodes)
    return [*gathered.values()]


def _labelled(label: str, text: str, width: int, *, style: str) -> list[Line]:
    lines = []
    for part in wrap(make_plain(text), width - 6):
        lines.append(Line.assemble((f"{label:<4}  ", style), part))
        label = ""
    return lines


def _footer(report: TrafficReport, width: int) -> list[Line]:
    parts = []
    if report.in_zone is not None and report.on_node is not None:
        parts.append(f"in zone {100 * report.in_zone:.1f} %")
        parts.append(f"on node {100 * report.on_node:.1f} %")
    if report.busiest is not None:
        busiest = report.busiest
        where = f"{busiest.pod}, {busiest.zone or busiest.node or _NO_ZONE}"
        share = f"busiest endpoint {busiest.times:.2f}x its fair share"
        if busiest.expected is not None:
            share += f", {busiest.expected:.2f}x expected"
        if busiest.is_beyond_chance:
            share += ", beyond chance"
        parts.append(f"{share} ({where})")
    lines: list[Line] = []
    for part in parts:
        if lines and _length(lines[-1]) + 3 + len(part) <= width:
            lines[-1].append(f"   {part}")
        else:
            lines.append(Line(part))
    return lines


def _expectation(row: TrafficRow, columns: Sequence[str]) -> str:
    parts = []
    if row.expected or not row.expected_failures:
        parts.append("/".join(_expected(row, place) for place in columns))
    for kind, share in row.expected_failures.items():
        parts.append(kind if share > 0.999 else f"{100 * share:.0f} {kind}")
    return ", ".join(parts)


def _expected(row: TrafficRow, place: str) -> str:
    return f"{100 * row.expected.get(place, 0.0):.0f}"


def _percent(row: TrafficRow, place: str) -> str:
    return f"{100 * row.answered.get(place, 0) / max(row.connections, 1):.0f}"


def _is_used(row: TrafficRow, place: str) -> bool:
    return bool(row.answered.get(place) or row.expected.get(place))


def _failed(row: TrafficRow) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(row.failures.items()))


def _style(cell: str) -> str:
    return {"✓": "green", "✗": "bold red"}.get(cell, "")


def _length(line: Line) -> int:
    return cell_len(line.plain)
