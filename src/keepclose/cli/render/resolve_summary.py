"""Renders the summary of `keepclose resolve`: totals, and a ranked table, in one screen."""

from __future__ import annotations

from textwrap import wrap
from typing import Final

from keepclose.advise.resolution_summary import ResolutionSummary, ServiceSummary
from keepclose.cli.render.output import count_things, show_share
from keepclose.cli.render.screen import Line, Screen, cell_len
from keepclose.model.plain_text import make_plain

SHOWN_SERVICES: Final = 10
SHOWN_MECHANISMS: Final = 4
_LABEL: Final = len("in zone")
_WIDEST_SERVICE: Final = 32
_WIDEST_MECHANISM: Final = 18
_LEAST_WHY: Final = 12
_TABLE_LINES: Final = 16
"""How many lines the table may have, so that all fits a terminal of 24."""
_MOST_LINES: Final = 3
"""How many lines one reason may have."""
_HEADS: Final = ("SERVICE", "MECHANISM", "READY", "IN ZONE", "FIX", "WHY")
_RIGHT: Final = (2, 3)
"""Columns of numbers."""


def print_summary(console: Screen, summary: ResolutionSummary) -> None:
    """Print the totals, then the Services worth a look, then how to see more."""
    width = console.width
    lines = [_headline(summary), *_totals(summary)]
    shown = summary.worth_a_look[:SHOWN_SERVICES]
    if shown:
        lines += [Line(), *_table(shown, width)]
    lines += _rest(summary, shown)
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)


def _headline(summary: ResolutionSummary) -> Line:
    places = f"{count_things(summary.nodes, 'node')} in {count_things(summary.zones, 'zone')}"
    counts = f"{count_things(summary.endpoints, 'endpoint')}, {summary.ready:,} ready"
    return Line(f"{count_things(summary.services, 'Service')}, {counts}, {places}", style="bold")


def _totals(summary: ResolutionSummary) -> list[Line]:
    share = "no node routes any of them"
    if summary.in_zone is not None:
        share = f"{_percent(summary.in_zone)} of what nodes send, each node and Service alike"
    mechanisms = [f"{name} {count:,}" for name, count in summary.mechanisms.items()]
    if len(mechanisms) > SHOWN_MECHANISMS:
        rest = len(mechanisms) - SHOWN_MECHANISMS
        mechanisms = [*mechanisms[:SHOWN_MECHANISMS], f"and {rest} more"]
    fixes = f"{count_things(summary.with_fix, 'Service')} with a fix"
    if summary.without_endpoints:
        fixes += f", {summary.without_endpoints:,} with nodes that reach no endpoint"
    rows = (
        ("in zone", share),
        ("by", ", ".join(mechanisms)),
        ("fixes", fixes),
    )
    return [Line.assemble((f"{label:<{_LABEL}}  ", "dim"), text) for label, text in rows]


def _table(shown: tuple[ServiceSummary, ...], width: int) -> list[Line]:
    rows = [
        (
            _cut(each.title, _WIDEST_SERVICE),
            _cut(each.mechanism, _WIDEST_MECHANISM),
            f"{each.ready:,}/{each.endpoints:,}",
            _percent(each.in_zone),
            "yes" if each.has_fix else "",
            each.why,
        )
        for each in shown
    ]
    widths = [
        max(cell_len(row[column]) for row in (_HEADS, *rows)) for column in range(len(_HEADS) - 1)
    ]
    # The table must fit, so the names of Services give way to the reasons.
    spare = width - sum(widths) - 2 * len(widths)
    if spare < _LEAST_WHY:
        widths[0] = max(len(_HEADS[0]), widths[0] - (_LEAST_WHY - spare))
    room = max(_LEAST_WHY, width - sum(widths) - 2 * len(widths))
    most = max(1, min(_MOST_LINES, _TABLE_LINES // len(rows)))
    lines = [_line(_HEADS, widths, style="dim")]
    for row in rows:
        first, *others = _wrap(row[-1], room, most=most)
        lines.append(_line((*row[:-1], first), widths))
        blank = " " * (sum(widths) + 2 * len(widths))
        lines += [Line(blank + text) for text in others]
    return lines


def _wrap(text: str, width: int, *, most: int) -> list[str]:
    """Return a text in a few lines; what is left over is cut off, with dots."""
    parts = wrap(make_plain(text), width) or [""]
    if len(parts) <= most:
        return parts
    return [*parts[: most - 1], _cut(" ".join(parts[most - 1 :]), width)]


def _line(row: tuple[str, ...], widths: list[int], *, style: str = "") -> Line:
    line = Line(style=style)
    for column, width in enumerate(widths):
        text = _cut(row[column], width)
        blank = " " * (width - cell_len(text))
        line.append(blank + text if column in _RIGHT else text + blank)
        line.append("  ")
    line.append(row[-1])
    return line


def _rest(summary: ResolutionSummary, shown: tuple[ServiceSummary, ...]) -> list[Line]:
    more = len(summary.worth_a_look) - len(shown)
    fine = summary.services - len(summary.worth_a_look)
    parts = []
    if more:
        parts.append(f"{count_things(more, 'more Service')} worth a look")
    if fine:
        parts.append(f"{count_things(fine, 'Service')} with nothing to note")
    lines = [Line(f"and {', '.join(parts)}" if shown else ", ".join(parts), style="dim")]
    hint = "endpoints, reasons and fixes: --service NAME, or --details for all"
    return [*(lines if parts else []), Line(hint, style="dim")]


def _cut(text: str, width: int) -> str:
    """Return the beginning of a text that is too long, with dots."""
    return text if cell_len(text) <= width else f"{text[: max(0, width - 2)]}.."


def _percent(share: float | None) -> str:
    return "-" if share is None else show_share(share)
