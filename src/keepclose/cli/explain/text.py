"""Prints an explanation: the answer first, then what is to blame with its fix, then the chain.

A plain call fits a screen. Commands are never wrapped, because a command that is broken into lines
cannot be copied; all other lines are, and colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import TextWrapper
from typing import Final

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause
from keepclose.advise.explaining.explanation import Explanation, TrafficFlow
from keepclose.cli.explain.sections import (
    CAUSES_ON_SCREEN,
    Listing,
    endpoint_listing,
    figures,
    headline,
    mechanism_lines,
    node_listings,
    slice_line,
    split_causes,
    zone_listing,
)
from keepclose.cli.render.resolve import shorten_paths
from keepclose.cli.render.screen import Line, Screen, cell_len
from keepclose.model.plain_text import make_plain

MAX_WIDTH: Final = 100
MIN_WIDTH: Final = 60
_LEAST_CELL: Final = 4
_MARKS: Final = {
    TrafficFlow.AS_ASKED: ("✓", "green"),
    TrafficFlow.NOT_AS_ASKED: ("✗", "bold red"),
    TrafficFlow.BLOCKED: ("✗", "bold red"),
    TrafficFlow.UNKNOWN: ("·", "dim"),
}
_LABEL: Final = 6


def print_explanation(console: Screen, answer: Explanation) -> None:
    """Print the explanation for a terminal of any width; 80 columns and more show it best."""
    width = max(MIN_WIDTH, min(console.width, MAX_WIDTH))
    for line in _lines(answer, width):
        console.print(line, soft_wrap=True)


def _lines(answer: Explanation, width: int) -> Iterator[Line]:
    mark, style = _MARKS[answer.flow]
    for part in _wrap(headline(answer), width - 2):
        yield Line.assemble((f"{mark} ", style), (part, "bold"))
        mark = " "
    if text := figures(answer):
        yield from _wrapped("", text, width)
    blamed, notes = split_causes(answer)
    yield from _causes("why", blamed, width)
    yield from _causes("note", notes, width)
    yield from _section("Mechanism", mechanism_lines(answer), width)
    if answer.zones and answer.traffic is not None:
        yield _heading("Zones")
        yield from _table(zone_listing(answer), width)
    if answer.endpoints:
        yield from _titled("Endpoints", slice_line(answer), width)
        yield from _table(endpoint_listing(answer), width)
    for title, listing in node_listings(answer):
        yield from _titled("Nodes", title, width)
        yield from _table(listing, width)
    yield from _section("Not known", answer.unknown, width)


def _causes(label: str, causes: list[TrafficCause], width: int) -> Iterator[Line]:
    for number, cause in enumerate(causes[:CAUSES_ON_SCREEN]):
        words = cause.message if cause.is_sure else f"probably: {cause.message}"
        yield from _wrapped(label, words, width)
        if cause.fix and (cause.weight is not CauseWeight.NOTE or number < 2):
            yield Line.assemble((f"  {'fix':<{_LABEL}}", "dim"), (cause.fix, "green"))
            if cause.effect:
                yield from _wrapped("then", cause.effect, width)
    if len(causes) > CAUSES_ON_SCREEN:
        yield from _wrapped("", f"and {len(causes) - CAUSES_ON_SCREEN} more, see -o json", width)


def _section(title: str, texts: Iterable[str], width: int) -> Iterator[Line]:
    listed = list(texts)
    if listed:
        yield _heading(title)
    for text in listed:
        for number, part in enumerate(_wrap(shorten_paths(text), width - 4)):
            yield Line(f"  {part}" if number == 0 else f"    {part}")


def _heading(title: str) -> Line:
    return Line(title, style="bold")


def _titled(title: str, text: str, width: int) -> Iterator[Line]:
    for part in _wrap(text, width - len(title) - 2):
        yield Line.assemble((f"{title}  ", "bold"), (part, "dim"))
        title = " " * len(title)


def _wrapped(label: str, text: str, width: int) -> Iterator[Line]:
    for part in _wrap(shorten_paths(text), width - _LABEL - 2):
        yield Line.assemble((f"  {label:<{_LABEL}}", "dim"), part)
        label = ""


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text; a name is only broken if it is longer than a line."""
    return TextWrapper(width=width, break_on_hyphens=False).wrap(make_plain(text))


def _table(listing: Listing, width: int) -> Iterator[Line]:
    table = [tuple(map(make_plain, row)) for row in (listing.head, *listing.rows)]
    widths = [max(cell_len(row[column]) for row in table) for column in range(len(listing.head))]
    while sum(widths) + 2 * len(widths) > width and max(widths) > _LEAST_CELL:
        widths[widths.index(max(widths))] -= 1
    for number, row in enumerate(table):
        cells = [_fit(cell, widest) for cell, widest in zip(row, widths, strict=True)]
        line = Line("  " + "  ".join(cells), style="dim" if number == 0 else "")
        line.rstrip()
        yield line
    if listing.left_out:
        yield Line(f"  {listing.left_out}", style="dim")


def _fit(text: str, width: int) -> str:
    """Return a cell of exactly this width, cut with an ellipsis if it is longer."""
    while cell_len(text) > width:
        text = f"{text[:-2]}…" if text.endswith("…") else f"{text[:-1]}…"
    return text + " " * (width - cell_len(text))
