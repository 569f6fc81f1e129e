"""Sums up flow tables by Service, zones, namespace or client, and renders them for `flows top`.

The answer comes first: how much crosses zones, of how much; then the kinds of traffic, so that all
of it is accounted for; then a line for each Service. Rates stand in the place of totals once there
are two readings. Where the terminal is narrow, the least important columns are left out. Names come
from outside: they are made plain, and shortened where they do not fit.

Shares are of the traffic between known zones. Loopback traffic and the packets of overlays, whose
content is counted inside, are kinds of their own and in no sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

import msgspec

from keepclose.accounting.flow_table import (
    UNSUMMED_KINDS,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
    ZoneCounts,
    is_zone,
)
from keepclose.cli.options import FlowGrouping, FlowOrder
from keepclose.cli.render.flow_reports import (
    NO_VALUE,
    show_bytes,
    show_seconds,
    show_zone_share,
)
from keepclose.cli.render.output import count_things
from keepclose.cli.render.screen import Group, Line, cell_len
from keepclose.model.plain_text import make_plain

WIDEST_LINE: Final = 120
_UNIT: Final = re.compile(r"(?<=\d) (?=[a-zA-Z%])")
_NARROWEST_NAME: Final = 16
_LONGEST_NAME: Final = 64
_DIRECT_KINDS: Final = (FlowKind.POD, FlowKind.NODE)
"""Kinds of traffic to an endpoint's own address, past the address of its Service."""


class FlowLine(msgspec.Struct, rename="camel", omit_defaults=True):
    """The traffic of a Service, a pair of zones, a namespace or a client."""

    name: str
    total: ZoneCounts
    per_second: ZoneCounts | None = None
    """Since the last reading; None if this is the first."""
    busiest_pair: str = ""
    """The two zones between which most of it goes; "" if it stays in its zones."""

    @property
    def shown(self) -> ZoneCounts:
        """What columns show: the rates, or the totals of a first reading."""
        return self.per_second or self.total


class FlowSummary(msgspec.Struct, rename="camel"):
    """What `flows top` shows."""

    sources: int
    total: ZoneCounts
    kinds: dict[str, ZoneCounts]
    """By kind of traffic, the kinds without any left out."""
    lines: list[FlowLine]
    grouping: str
    has_bytes: bool = True
    start: float = 0.0
    """In seconds of the Unix epoch, 0 if not known."""
    end: float = 0.0
    seconds: float = 0.0
    """The time that rates are of: since the last reading; 0 if there are none."""
    per_second: ZoneCounts | None = None
    is_mean: bool = False
    """Whether rates are means of the windows of sources, not of the time since the last reading."""
    notes: list[str] = []


class FlowReading(NamedTuple):
    """All that was counted, and since the last reading."""

    total: FlowTable
    later: FlowTable | None
    seconds: float
    sources: int
    tables: tuple[FlowTable, ...] = ()
    """Those that the total is the sum of."""
    late: tuple[tuple[FlowTable, float], ...] = ()
    """What sources counted that had not answered the last time, with the seconds since they did."""

    @property
    def recent(self) -> list[tuple[FlowTable, float]]:
        """Return tables with their lengths that rates are made of; none if a source has no rate."""
        windows = [(table, table.seconds) for table in self.tables if table.is_window]
        if self.later is None:
            return windows if len(windows) == len(self.tables) else []
        return [*([(self.later, self.seconds)] if self.seconds > 0 else []), *self.late, *windows]


def summarise(reading: FlowReading, grouping: FlowGrouping, order: FlowOrder) -> FlowSummary:
    """Return sums and sorted lines; an empty table has no lines."""
    name_of = _NAMES[grouping]
    total, kinds, lines, pairs = _sum_up(reading.total, name_of)
    summary = FlowSummary(
        reading.sources,
        total,
        kinds,
        [FlowLine(name, counts) for name, counts in lines.items()],
        grouping.value,
        has_bytes=reading.total.has_bytes,
        start=reading.total.start,
        end=reading.total.end,
        notes=list(reading.total.notes),
    )
    if recent := [(table, seconds) for table, seconds in reading.recent if seconds > 0]:
        summary.seconds = reading.seconds or max(seconds for _, seconds in recent)
        summary.is_mean = reading.later is None
        summary.per_second = ZoneCounts()
        rates: dict[str, ZoneCounts] = {}
        pairs = {}
        for table, seconds in recent:
            sums = _sum_up(table, name_of)
            summary.per_second.add(sums.total.per_second(seconds))
            for name, counts in sums.names.items():
                rates.setdefault(name, ZoneCounts()).add(counts.per_second(seconds))
            for name, amounts in sums.pairs.items():
                known = pairs.setdefault(name, {})
                for pair, amount in amounts.items():
                    known[pair] = known.get(pair, 0) + amount / seconds
        for line in summary.lines:
            line.per_second = rates.get(line.name) or ZoneCounts()
    if grouping is not FlowGrouping.ZONES:
        for line in summary.lines:
            line.busiest_pair = _busiest(pairs.get(line.name, {}))
    if grouping is FlowGrouping.CLIENT and set(lines) <= {_UNNAMED, ""}:
        summary.notes.append(
            "the flows do not name clients: run the agents with --detail workloads"
        )
    summary.lines.sort(key=lambda line: _sort_key(line, order, has_bytes=summary.has_bytes))
    return summary


def render_flows(summary: FlowSummary, *, width: int, most_lines: int) -> Group:
    """Return the lines of the screen; `most_lines` 0 means all Services."""
    width = max(20, min(width, WIDEST_LINE))
    shown = summary.lines[:most_lines] if most_lines else summary.lines
    lines = [*_head(summary, width), Line(), *_table(summary, shown, width)]
    if len(shown) < len(summary.lines):
        more = f"and {len(summary.lines) - len(shown):,} more: -n 0 shows all"
        lines.append(Line(_shorten(more, width), style="dim"))
    for note in summary.notes:
        lines += [Line(part, style="dim") for part in wrap(make_plain(f"note: {note}"), width)]
    return Group(*lines)


_Pairs = dict[tuple[str, str], float]
_UNNAMED: Final = "(not recorded)"


class _Sums(NamedTuple):
    """The sum of all traffic, the sums by kind and by name, and what crosses which zones."""

    total: ZoneCounts
    kinds: dict[str, ZoneCounts]
    names: dict[str, ZoneCounts]
    pairs: dict[str, _Pairs]


def _sum_up(table: FlowTable, name_of: Callable[[FlowKey], str]) -> _Sums:
    # NB: a cluster has tens of thousands of flows, so that each is added to one sum only here.
    cells: dict[tuple[FlowKind, str, str, str], FlowCounts] = {}
    for key, counts in table:
        cell = (key.kind, name_of(key), key.client_zone, key.endpoint_zone)
        known = cells.get(cell)
        if known is None:
            cells[cell] = known = FlowCounts()
        known.add(counts)
    sums = _Sums(ZoneCounts(), {}, {}, {})
    for (kind, name, client_zone, endpoint_zone), counts in cells.items():
        part = _place(client_zone, endpoint_zone, counts)
        sums.kinds.setdefault(kind.value, ZoneCounts()).add(part)
        if kind in UNSUMMED_KINDS:
            continue
        sums.total.add(part)
        sums.names.setdefault(name, ZoneCounts()).add(part)
        amount = part.cross_zone_bytes if table.has_bytes else part.cross_zone_connections
        if amount:
            pairs = sums.pairs.setdefault(name, {})
            pair = (client_zone, endpoint_zone)
            pairs[pair] = pairs.get(pair, 0) + amount
    return sums


def _place(client_zone: str, endpoint_zone: str, counts: FlowCounts) -> ZoneCounts:
    failed = counts.refused + counts.unanswered
    placed = ZoneCounts(counts.connections, failed)
    if not is_zone(client_zone) or not is_zone(endpoint_zone):
        placed.other_bytes = counts.total_bytes
    elif client_zone == endpoint_zone:
        placed.in_zone_connections = counts.connections
        placed.in_zone_bytes = counts.total_bytes
    else:
        placed.cross_zone_connections = counts.connections
        placed.cross_zone_bytes = counts.total_bytes
    return placed


def _name_service(key: FlowKey) -> str:
    if not key.service:
        return f"({key.kind.value})"
    name = f"{key.namespace}/{key.service}" if key.namespace else key.service
    return f"{name} (pods)" if key.kind in _DIRECT_KINDS else name


def _name_namespace(key: FlowKey) -> str:
    return key.namespace or key.service or f"({key.kind.value})"


_NAMES: Final[dict[FlowGrouping, Callable[[FlowKey], str]]] = {
    FlowGrouping.SERVICE: _name_service,
    FlowGrouping.ZONES: lambda key: f"{key.client_zone} → {key.endpoint_zone}",
    FlowGrouping.NAMESPACE: _name_namespace,
    FlowGrouping.CLIENT: lambda key: key.client or _UNNAMED,
}


def _busiest(pairs: _Pairs) -> str:
    if not any(pairs.values()):
        return ""
    client, endpoint = min(pairs, key=lambda pair: (-pairs[pair], pair))
    return f"{client} → {endpoint}"


def _sort_key(line: FlowLine, order: FlowOrder, *, has_bytes: bool) -> tuple[float | str, ...]:
    shown = line.shown
    crossing = shown.cross_zone_bytes if has_bytes else shown.cross_zone_connections
    first: dict[FlowOrder, float] = {
        FlowOrder.CROSS_ZONE: crossing,
        FlowOrder.BYTES: shown.total_bytes if has_bytes else shown.connections,
        FlowOrder.CONNECTIONS: shown.connections,
        FlowOrder.FAILED: shown.failed,
        FlowOrder.NAME: 0.0,
    }
    # NB: without traffic since the last reading, lines keep the order of their totals.
    rest = (crossing, shown.total_bytes, shown.connections, line.total.cross_zone_bytes)
    if order is FlowOrder.NAME:
        return (line.name,)
    return (-first[order], *(-number for number in rest), line.name)


def _head(summary: FlowSummary, width: int) -> list[Line]:
    lines = []
    if summary.per_second is not None:
        text = _sentence(summary.per_second, has_bytes=summary.has_bytes, per="/s")
        lines += _labelled("mean" if summary.is_mean else "now", text, width, style="bold")
    text = _sentence(summary.total, has_bytes=summary.has_bytes, per="")
    if summary.end > summary.start > 0:
        text += f", in {show_seconds(summary.end - summary.start)}"
    agents = count_things(summary.sources, "source")
    style = "" if summary.per_second is not None else "bold"
    lines += _labelled("total", f"{text}, {agents}", width, style=style)
    kinds = [
        f"{kind} {_amount(counts, has_bytes=summary.has_bytes)}"
        for kind, counts in _by_amount(summary.kinds, has_bytes=summary.has_bytes)
    ]
    if kinds:
        lines += _labelled("kinds", ", ".join(kinds), width, style="dim")
    return lines


def _by_amount(
    kinds: dict[str, ZoneCounts], *, has_bytes: bool
) -> Iterable[tuple[str, ZoneCounts]]:
    def amount(entry: tuple[str, ZoneCounts]) -> tuple[float, str]:
        kind, counts = entry
        return (-(counts.total_bytes if has_bytes else counts.connections), kind)

    return sorted(kinds.items(), key=amount)


def _amount(counts: ZoneCounts, *, has_bytes: bool) -> str:
    return show_bytes(counts.total_bytes) if has_bytes else f"{counts.connections:,.0f}"


def _sentence(counts: ZoneCounts, *, has_bytes: bool, per: str) -> str:
    share = _cross_share(counts, has_bytes=has_bytes)
    noun = "connection" if counts.connections == 1 and not per else "connections"
    connections = f"{_count(counts.connections, per)} {noun}{per}"
    failed = f"{_count(counts.failed, per)} failed{per}"
    part = f" ({share})" if share != NO_VALUE else ""
    if not has_bytes:
        crossing = _count(counts.cross_zone_connections, per)
        return f"{crossing}{per} of {connections} cross zones{part}, {failed}"
    crossing, whole = show_bytes(counts.cross_zone_bytes), show_bytes(counts.total_bytes)
    return f"{crossing}{per} of {whole}{per} cross zones{part}, {connections}, {failed}"


def _cross_share(counts: ZoneCounts, *, has_bytes: bool) -> str:
    inside, crossing = _split(counts, has_bytes=has_bytes)
    return show_zone_share(crossing, inside + crossing)


def _split(counts: ZoneCounts, *, has_bytes: bool) -> tuple[float, float]:
    if has_bytes:
        return counts.in_zone_bytes, counts.cross_zone_bytes
    return counts.in_zone_connections, counts.cross_zone_connections


def _count(number: float, per: str) -> str:
    return f"{number:,.1f}" if per and 0 < number < 10 else f"{number:,.0f}"


def _labelled(label: str, text: str, width: int, *, style: str) -> list[Line]:
    # A number stays on the line of its unit.
    joined = _UNIT.sub("\N{NO-BREAK SPACE}", make_plain(text))
    lines = wrap(joined, max(width - 7, 13), break_on_hyphens=False) or [""]
    parts = [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
    return [
        Line.assemble((f"{label if number == 0 else '':<7}", "dim"), (part, style))
        for number, part in enumerate(parts)
    ]


class _Column(NamedTuple):
    """A column; those of a higher rank are left out first."""

    header: str
    cells: list[str]
    rank: int
    style: str = ""
    is_text: bool = False

    @property
    def width(self) -> int:
        return max(cell_len(cell) for cell in (self.header, *self.cells))


def _table(summary: FlowSummary, lines: Sequence[FlowLine], width: int) -> list[Line]:
    names = [make_plain(line.name) for line in lines]
    columns = _columns(summary, lines)
    wanted = min(
        max([_NARROWEST_NAME, len(summary.grouping), *map(cell_len, names)]), _LONGEST_NAME
    )
    least = min(wanted, max(_NARROWEST_NAME, width // 4))
    # Names that look the same when cut need more of the width, at most half of it.
    while least < min(wanted, width // 2) and _are_ambiguous(names, least):
        least += 1
    while columns and sum(column.width + 2 for column in columns) + least > width:
        columns.remove(max(columns, key=lambda column: column.rank))
    room = max(width - sum(column.width + 2 for column in columns), 1)
    first = min(wanted, room)
    rows = [(summary.grouping, [column.header for column in columns])]
    rows += [
        (name, [column.cells[number] for column in columns]) for number, name in enumerate(names)
    ]
    rendered = []
    for number, (name, cells) in enumerate(rows):
        text = _shorten(name, first)
        line = Line(text + " " * (first - cell_len(text)), style="dim" if number == 0 else "")
        for column, cell in zip(columns, cells, strict=True):
            blank = " " * (column.width - cell_len(cell))
            style = "dim" if number == 0 or cell == NO_VALUE else column.style
            line.append(f"  {cell}{blank}" if column.is_text else f"  {blank}{cell}", style)
        line.rstrip()
        rendered.append(line)
    return rendered


def _are_ambiguous(names: Sequence[str], width: int) -> bool:
    return len({_shorten(name, width) for name in names}) < len(set(names))


def _columns(summary: FlowSummary, lines: Sequence[FlowLine]) -> list[_Column]:
    per = "/s" if summary.per_second is not None else ""
    has_bytes = summary.has_bytes
    split = [_split(line.shown, has_bytes=has_bytes) for line in lines]

    def show(number: float) -> str:
        if not number:
            return NO_VALUE
        return show_bytes(number) if has_bytes else _count(number, per)

    columns = [
        _Column("in zone", [show_zone_share(inside, inside + cross) for inside, cross in split], 2),
        _Column(f"cross zone{per}", [show(cross) for _, cross in split], 0, "yellow"),
        _Column(f"same zone{per}", [show(inside) for inside, _ in split], 3),
        _Column(f"conn{per}", [_count(line.shown.connections, per) for line in lines], 1),
        _Column(
            f"failed{per}",
            [_count(line.shown.failed, per) if line.shown.failed else NO_VALUE for line in lines],
            4,
            "red",
        ),
    ]
    if has_bytes and any(line.shown.other_bytes for line in lines):
        columns.append(_Column(f"other{per}", [show(line.shown.other_bytes) for line in lines], 6))
    if per:
        crossed = [_split(line.total, has_bytes=has_bytes)[1] for line in lines]
        columns.append(_Column("crossed", [show(cross) for cross in crossed], 5))
    pairs = [make_plain(line.busiest_pair) or NO_VALUE for line in lines]
    if any(line.busiest_pair for line in lines):
        shortened = [_shorten(pair, 30) for pair in pairs]
        columns.append(_Column("most from → to", shortened, 7, is_text=True))
    return columns


def _shorten(text: str, width: int) -> str:
    """Return a text without its middle, because names of pods differ at their ends."""
    if cell_len(text) <= width:
        return text
    first, last = (len(text) + 1) // 2, len(text) // 2
    while first + last and cell_len(text[:first] + text[len(text) - last :]) > width - 1:
        first, last = (first - 1, last) if first > last else (first, last - 1)
    return f"{text[:first]}…{text[len(text) - last :]}"
