"""Tables of flows and of their costs, for people, spreadsheets and programs.

The answer comes first: how much crosses zones, and what that costs in a month. Below the table
stand the period, what was extrapolated from it, where prices come from, and what has none.
"""

from __future__ import annotations

import csv
import sys
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Final

from keepclose.accounting.cost import HOUR_S, MONTH_HOURS, YEAR_HOURS, show_duration
from keepclose.accounting.flow_files import guard_cell
from keepclose.cli.render.output import count_things, say
from keepclose.cli.render.screen import Grid, Screen

if TYPE_CHECKING:
    from keepclose.accounting.cost import CostLine, CostReport, ObservedPeriod
    from keepclose.accounting.flow_table import FlowKey, FlowTable
    from keepclose.accounting.prices import PriceTable
    from keepclose.model.json_values import JsonObject

MAX_SHOWN_ROWS: Final = 40
"""The most rows of a table for people; CSV and JSON have all of them."""
NO_VALUE: Final = "·"
"""What a cell shows where there is nothing to show."""
_STEP: Final = 1000
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_PERIODS: Final = {"hour": 1, "month": MONTH_HOURS, "year": YEAR_HOURS}
_TITLES: Final = {
    "service": "SERVICE",
    "namespace": "NAMESPACE",
    "zones": "FROM -> TO",
    "client": "CLIENT",
}
_LEAST_SHOWN: Final = 0.01
_MAX_SHOWN_PERIODS: Final = 5
_FILE_WIDTH: Final = 300
_EARLIEST: Final = 1e8
"""Times before are no dates, but the ends of a period of which only the length is known."""


def print_flow_table(table: FlowTable) -> None:
    """Print a line of sums and the rows, those with the most bytes between zones first."""
    total = table.total()
    crossing = table.selected(lambda key: key.crosses_zones).total()
    if table.has_bytes:
        share = _share(crossing.total_bytes, total.total_bytes)
        text = (
            f"{_bytes(crossing.total_bytes)} of {_bytes(total.total_bytes)} cross zones{share}, in"
        )
    else:
        share = _share(crossing.connections, total.connections)
        verb = "crosses" if crossing.connections == 1 else "cross"
        text = f"{count_things(crossing.connections, 'connection')} {verb} zones{share}, of"
    connections = count_things(total.connections, "connection")
    say(f"{text} {connections}{_period(table.start, table.end)}")
    rows = sorted(
        table,
        key=lambda row: (
            not row[0].crosses_zones,
            -row[1].total_bytes,
            -row[1].connections,
            row[0],
        ),
    )
    has_clients = any(key.client for key in table.rows)
    grid = _grid("TO", *(["CLIENT"] if has_clients else []), "FROM ZONE", "TO ZONE")
    for title in ("CONNECTIONS", *(("REQUESTS", "RESPONSES") if table.has_bytes else ())):
        grid.add_column(title, justify="right", no_wrap=True)
    for key, counts in rows[:MAX_SHOWN_ROWS]:
        failed = counts.refused + counts.unanswered
        connections = f"{counts.connections:,}" + (f" ({failed:,} failed)" if failed else "")
        cells = [
            _target(key),
            *([key.client] if has_clients else []),
            key.client_zone,
            "same" if key.is_within_zone else key.endpoint_zone,
            connections,
        ]
        if table.has_bytes:
            cells += [_bytes(counts.request_bytes), _bytes(counts.response_bytes)]
        grid.add_row(*cells)
    if rows:
        _print(grid)
    if len(rows) > MAX_SHOWN_ROWS:
        say(f"... and {len(rows) - MAX_SHOWN_ROWS:,} more, with -o csv")


def print_costs(report: CostReport, prices: PriceTable, *, name: str) -> None:
    """Print the sum, a row for each Service or the like, and what the numbers rest on."""
    total = report.total
    month = report.extrapolate(total, MONTH_HOURS)
    amount = show_amount(total.amount if month is None else month)
    when = "in the period" if month is None else "a month"
    crossing = f"{_bytes(total.crossing_bytes)} of {_bytes(total.bytes)} cross zones"
    say(f"{amount} {report.currency} {when}: in the period {crossing}", "")
    grid = _grid(_TITLES[report.by.value])
    for title in _column_titles(report):
        grid.add_column(title, justify="right", no_wrap=True)
    for line in report.lines[:MAX_SHOWN_ROWS]:
        grid.add_row(*_cells(report, line))
    if len(report.lines) > 1:
        grid.add_row(*_cells(report, total))
    if report.lines:
        _print(grid)
    if len(report.lines) > MAX_SHOWN_ROWS:
        say(f"... and {len(report.lines) - MAX_SHOWN_ROWS:,} more, with -o csv")
    say("", *_footnotes(report, prices, name))


def write_cost_csv(report: CostReport) -> str:
    """Return a header and the lines of a report as CSV."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    periods = [f"per_{period}" for period in _PERIODS]
    writer.writerow(
        [report.by.value, "bytes", "between_zones_bytes", "currency", "observed", *periods]
    )
    for line in report.lines:
        amounts = [line.amount, *(report.extrapolate(line, n) for n in _PERIODS.values())]
        writer.writerow(
            [
                guard_cell(line.name),
                line.bytes,
                line.crossing_bytes,
                guard_cell(report.currency),
                *("" if amount is None else f"{amount:.6f}" for amount in amounts),
            ]
        )
    return text.getvalue()


def cost_document(report: CostReport, prices: PriceTable, *, name: str) -> JsonObject:
    """Return a report for programs."""
    return {
        "by": report.by.value,
        "currency": report.currency,
        "prices": {"name": name, "date": prices.date, "source": prices.source},
        "period": {
            "start": show_moment(report.start),
            "end": show_moment(report.end),
            "hours": report.hours,
        },
        "periods": [
            {
                "start": show_moment(period.start),
                "end": show_moment(period.end),
                "hours": period.hours,
                "sources": period.sources,
            }
            for period in report.periods
        ],
        "total": _line_document(report, report.total),
        "lines": [_line_document(report, line) for line in report.lines],
        "unpricedBytes": report.unpriced,
        "warnings": report.warnings,
    }


def _line_document(report: CostReport, line: CostLine) -> JsonObject:
    document: JsonObject = {
        "name": line.name,
        "bytes": line.bytes,
        "betweenZonesBytes": line.crossing_bytes,
        "observed": line.amount,
    }
    for period, hours in _PERIODS.items():
        document[f"per{period.title()}"] = report.extrapolate(line, hours)
    return document


def _grid(*titles: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for title in titles:
        grid.add_column(title, overflow="fold")
    return grid


def _print(grid: Grid) -> None:
    """Print a table; only a terminal has a width that names must be folded for."""
    Screen(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(grid)


def _cells(report: CostReport, line: CostLine) -> list[str]:
    cells = [line.name]
    if report.by.value == "zones":
        cells.append(_bytes(line.bytes))
    else:
        share = _share(line.crossing_bytes, line.bytes).strip(" ()") or "-"
        cells += [_bytes(line.crossing_bytes), share]
    if not report.hours:
        return [*cells, show_amount(line.amount)]
    amounts = (report.extrapolate(line, hours) for hours in _PERIODS.values())
    return [*cells, *(show_amount(amount or 0.0) for amount in amounts)]


def _column_titles(report: CostReport) -> list[str]:
    titles = ["BYTES"] if report.by.value == "zones" else ["BETWEEN ZONES", "OF ITS BYTES"]
    if not report.hours:
        return [*titles, f"{report.currency} IN THE PERIOD"]
    return [*titles, *(f"{report.currency}/{period}" for period in _PERIODS)]


def _footnotes(report: CostReport, prices: PriceTable, name: str) -> list[str]:
    notes = []
    notes += [_observed(period) for period in report.periods[:_MAX_SHOWN_PERIODS]]
    if (more := len(report.periods) - _MAX_SHOWN_PERIODS) > 0:
        notes.append(f"observed: {more:,} shorter periods more, with -o json")
    if report.periods:
        own = ", each source by its own period" if len(report.periods) > 1 else ""
        notes.append(
            f"extrapolated: a month is {MONTH_HOURS} hours of that traffic, a year "
            f"{YEAR_HOURS:,}{own}"
        )
    dated = f" of {prices.date}" if prices.date else ""
    notes.append(f"prices: {name}{dated}, to be compared with your bill")
    if prices.source:
        notes.append(f"source of prices: {prices.source}")
    notes += [
        f"not priced: {_bytes(amount)} {reason}"
        for reason, amount in sorted(report.unpriced.items(), key=lambda item: -item[1])
    ]
    return [*notes, *(f"note: {warning}" for warning in report.warnings)]


def _target(key: FlowKey) -> str:
    if not key.service:
        return f"({key.kind.value})"
    name = f"{key.namespace}/{key.service}" if key.namespace else key.service
    return f"{name}:{key.port}" if key.port else name


def _bytes(number: float) -> str:
    """Return bytes with three digits, in powers of 1,000, as providers bill them."""
    for unit in _UNITS:
        if number < 999.5 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.3g} {unit}"


def show_amount(amount: float) -> str:
    """Return an amount of money; a small one with the digits that it needs."""
    if 0 < amount < _LEAST_SHOWN:
        return f"{amount:.1g}" if amount >= 1e-4 else "<0.0001"
    return f"{amount:,.2f}"


def _share(part: float, whole: float) -> str:
    return f" ({show_zone_share(part, whole)})" if whole else ""


def _period(start: float, end: float) -> str:
    if start < _EARLIEST or end < start:
        return ""
    return f" from {show_moment(start)} to {show_moment(end)}"


def _observed(period: ObservedPeriod) -> str:
    sources = f", {period.sources:,} sources" if period.sources > 1 else ""
    shown = show_duration(period.hours * HOUR_S)
    return f"observed: {shown}{_period(period.start, period.end)}{sources}"


def show_moment(seconds: float) -> str:
    """Return a time as RFC 3339; "" if it is not known."""
    if seconds < _EARLIEST:
        return ""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show_bytes(number: float) -> str:
    """Return bytes in a few characters, in powers of 1,000 as networks are sold."""
    unit = 0
    while number >= _STEP - 0.5 and unit < len(_UNITS) - 1:
        number /= _STEP
        unit += 1
    return (
        f"{number:.1f} {_UNITS[unit]}" if unit and number < 100 else f"{number:.0f} {_UNITS[unit]}"
    )


def show_zone_share(part: float, whole: float) -> str:
    """Return a share in percent; a dot if there is nothing to share."""
    if not whole:
        return NO_VALUE
    percent = 100 * part / whole
    # Neither "0 %" nor "100 %" may stand for almost so.
    if 0 < percent < 0.95 or 99.05 < percent < 100:
        return f"{min(max(percent, 0.1), 99.9):.1f} %"
    return f"{percent:.0f} %"


def show_seconds(seconds: float) -> str:
    """Return a period in its two largest units."""
    whole = round(seconds)
    for unit, size, smaller, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
