"""Renders the answer of `keepclose verify`: the verdict first, then zones, the cause and the fix.

Ports that are not honoured are shown in full, as are those that changed within the period; the
others in one line each, or summed up where there is nothing to judge. Lines have no trailing
blanks, and colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final

from keepclose.advise.observed_traffic import ShareRange
from keepclose.advise.verification import TrafficVerdict, VerifiedPort, VerifiedRow
from keepclose.advise.verification_causes import CauseCode
from keepclose.cli.render.output import count_things
from keepclose.cli.render.screen import Line, Screen, cell_len
from keepclose.cli.render.traffic_table import EMPTY_CELL, WIDEST_NAME
from keepclose.model.plain_text import make_plain

SHOWN_CAUSES: Final = 4
_MARKS: Final = {
    TrafficVerdict.HONOURED: ("✓", "green"),
    TrafficVerdict.NOT_HONOURED: ("✗", "bold red"),
}
_JUDGED: Final = (
    TrafficVerdict.HONOURED,
    TrafficVerdict.NOT_HONOURED,
    TrafficVerdict.CHANGED,
    TrafficVerdict.TOO_FEW,
)
_ALWAYS_SHOWN: Final = (CauseCode.CONNECTIONS_FAIL, CauseCode.CHANGED_WITHIN_PERIOD)
"""Of ports in one line: what is worth a look although traffic is as expected."""
_SHOWN_IN_FULL: Final = (TrafficVerdict.NOT_HONOURED, TrafficVerdict.CHANGED)


def print_verdicts(
    console: Screen, answer: Sequence[VerifiedPort], *, shows_all: bool = False
) -> None:
    """Print all verdicts; with `shows_all` each in full."""
    width = min(console.width, WIDEST_NAME)
    shown = [each for each in answer if shows_all or each.verdict in _JUDGED]
    titles = [_title(each) for each in shown]
    widest = max(map(cell_len, titles), default=0)
    mechanisms = max((cell_len(each.mechanism) for each in shown), default=0)
    for each, title in zip(shown, titles, strict=True):
        pads = widest + 2, mechanisms + 2
        console.print(_headline(each, title, pads), soft_wrap=True)
        is_full = shows_all or each.verdict in _SHOWN_IN_FULL
        for line in _matrix(each, width) if is_full else ():
            console.print(line, soft_wrap=True)
        for line in _explanation(each, width, is_full=is_full):
            console.print(line, soft_wrap=True)
        if is_full and each is not shown[-1]:
            console.print()
    for line in _rest(answer, shows_all=shows_all):
        console.print(line, soft_wrap=True)


def _title(each: VerifiedPort) -> str:
    protocol = "" if each.protocol == "TCP" else f"/{each.protocol}"
    return f"{each.namespace}/{each.service} {each.port}{protocol}"


def _headline(each: VerifiedPort, title: str, pads: tuple[int, int]) -> Line:
    mark, style = _MARKS.get(each.verdict, (EMPTY_CELL, "dim"))
    line = Line(f"{mark} ", style=style)
    line.append(title + " " * (pads[0] - cell_len(title)), style="bold")
    line.append(each.mechanism + " " * (pads[1] - cell_len(each.mechanism)), style="cyan")
    line.append(each.verdict.value, style=style)
    parts = [count_things(each.connections, "connection")]
    if each.in_zone is not None:
        share = f"{100 * each.in_zone:.0f} %"
        parts.append(f"in zone {share}")
        if each.expected_in_zone is not None and f"{100 * each.expected_in_zone:.0f} %" != share:
            parts.append(f"expected {100 * each.expected_in_zone:.0f} %")
    line.append(f"   {', '.join(parts)}")
    line.rstrip()
    return line


def _matrix(each: VerifiedPort, width: int) -> list[Line]:
    places = sorted({place for row in each.rows for place in (*row.observed, *row.expected)})
    if not each.rows:
        return []
    for form in (_counted, _in_percent):
        lines = _grid(each.rows, places, form)
        if max(cell_len(line.plain) for line in lines) <= width:
            return lines
    return _list(each.rows, places, width)


def _counted(row: VerifiedRow, place: str) -> str:
    return f"{row.observed.get(place, 0):,} {_percent(row, place)} %"


def _in_percent(row: VerifiedRow, place: str) -> str:
    return f"{_percent(row, place)} %"


def _grid(rows: Sequence[VerifiedRow], places: Sequence[str], form: object) -> list[Line]:
    render = _counted if form is _counted else _in_percent
    table = [["to", *places, "expected", ""]]
    for number, row in enumerate(rows):
        cells = [render(row, place) if _is_used(row, place) else EMPTY_CELL for place in places]
        label = f"{'from' if number == 0 else '':<4} {row.source}"
        table.append([label, *cells, _expectation(row, places), _mark(row)])
    widths = [max(cell_len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = []
    for number, cells in enumerate(table):
        line = Line()
        for column, cell in enumerate(cells):
            blank = " " * (widths[column] - cell_len(cell))
            text = blank + cell if column == 0 and number == 0 else cell + blank
            style = "dim" if number == 0 or cell == EMPTY_CELL else _style(cell)
            line.append(text, style=style)
            line.append("  ")
        line.rstrip()
        lines.append(line)
    return lines


def _list(rows: Sequence[VerifiedRow], places: Sequence[str], width: int) -> list[Line]:
    """Return the cells that are not empty, row by row, for narrow screens and many zones."""
    lines = [Line("in % (expected)", style="dim")]
    for row in rows:
        cells = [
            f"{place} {_percent(row, place)} ({_range(row, place)})"
            for place in places
            if _is_used(row, place)
        ]
        label = f"from {row.source} {_mark(row)} "
        for part in wrap(", ".join(cells), max(20, width - cell_len(label))) or [""]:
            line = Line(label + part)
            line.rstrip()
            lines.append(line)
            label = " " * cell_len(label)
    return lines


def _explanation(each: VerifiedPort, width: int, *, is_full: bool) -> Iterable[Line]:
    """Yield the causes, as notes where they do not explain the verdict."""
    causes = [cause for cause in each.causes if is_full or cause.code in _ALWAYS_SHOWN]
    first, other = ("why", "or") if each.verdict in _SHOWN_IN_FULL else ("note", "note")
    for number, cause in enumerate(causes[:SHOWN_CAUSES]):
        label = first if number == 0 else other
        for part in wrap(make_plain(cause.message), width - 6):
            yield Line.assemble((f"{label:<4}  ", "dim"), part)
            label = ""
        if cause.fix:
            # Never wrapped: a command that is broken into lines cannot be copied.
            yield Line.assemble(("fix   ", "dim"), (cause.fix, "green"))
        if cause.effect:
            yield Line.assemble(("then  ", "dim"), cause.effect)
    if len(causes) > SHOWN_CAUSES:
        yield Line(f"      and {len(causes) - SHOWN_CAUSES} more, see -o json", style="dim")


def _rest(answer: Sequence[VerifiedPort], *, shows_all: bool) -> Iterable[Line]:
    if shows_all:
        return
    plain = [each for each in answer if each.verdict is TrafficVerdict.NO_PREFERENCE]
    if plain and len(plain) == len(answer):
        yield Line("no Service sets trafficDistribution, so there is nothing to verify")
        # NB: a patch may overload endpoints, so it is advised only where it was tried.
        yield Line.assemble(
            ("fix   ", "dim"),
            ("keepclose plan", "green"),
            "   which Services would gain by it, and by how much",
        )
        return
    unused = sum(each.verdict is TrafficVerdict.NO_TRAFFIC for each in answer)
    phrases = ((unused, "without traffic"), (len(plain), "without trafficDistribution"))
    counts = [f"{count:,} {phrase}" for count, phrase in phrases if count]
    if counts:
        yield Line(f"ports of Services not shown: {', '.join(counts)}", style="dim")


def _expectation(row: VerifiedRow, places: Sequence[str]) -> str:
    if not row.expected:
        return row.verdict.value if row.verdict is TrafficVerdict.NOT_JUDGED else "none"
    return "/".join(_range(row, place) for place in places)


def _range(row: VerifiedRow, place: str) -> str:
    low, high = (100 * share for share in row.expected.get(place, ShareRange()))
    return f"{low:.0f}" if high - low < 1 else f"{low:.0f}-{high:.0f}"


def _percent(row: VerifiedRow, place: str) -> str:
    return f"{100 * row.observed.get(place, 0) / max(row.connections, 1):.0f}"


def _is_used(row: VerifiedRow, place: str) -> bool:
    expected = row.expected.get(place, ShareRange())
    return bool(row.observed.get(place) or expected[1])


def _mark(row: VerifiedRow) -> str:
    return _MARKS.get(row.verdict, (EMPTY_CELL, ""))[0]


def _style(cell: str) -> str:
    return dict(_MARKS.values()).get(cell, "")
