"""What flows cost: bytes between zones times a price table, by Service, namespace, zones or client.

Requests go from the client's zone to the endpoint's, responses back; each direction has its own
price. Amounts are those of the period that was observed. An hour, a month (730 hours) and a year
(8,760 hours) are extrapolated from it, as if traffic stayed as it was. Bytes without a price are
never taken as free: they are reported beside the costs, with the reason.

Sources may have counted for different times: an agent for a month, that of a new node for an hour.
The amount of each is divided by its own period, and the rates are added. Tables whose periods
follow each other, as files of two months do, are one source with a longer period, in which some may
have no traffic. A source without any has no cost and no period.

Packets of overlays are left out, as their content is counted already, and so is traffic that does
not leave a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final

import msgspec

from keepclose.accounting.flow_table import (
    NO_ZONE,
    OUTSIDE,
    UNKNOWN,
    UNSUMMED_KINDS,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
    is_zone,
)
from keepclose.accounting.prices import PriceTable

HOUR_S: Final = 3600.0
MONTH_HOURS: Final = 730
YEAR_HOURS: Final = 8760
_MINUTE_S: Final = 60.0
_LONG_H: Final = 72
_NO_CLIENT: Final = "(not recorded)"
_SAME: Final = 0.05
"""Up to which part of a period two of them may differ, or overlap, and count as equal or apart."""
_REASONS: Final = {
    OUTSIDE: "to or from outside the cluster: the price table has no price for outside",
    UNKNOWN: "to or from addresses without a known zone",
    NO_ZONE: "to or from nodes without a zone",
}
_NO_ENTRY: Final = "between zones without an entry in betweenZones"
_NO_SAME_ZONE: Final = "within a zone: the price table has no sameZone"


class CostGrouping(StrEnum):
    """What costs are summed by."""

    SERVICE = "service"
    NAMESPACE = "namespace"
    ZONES = "zones"
    CLIENT = "client"


class CostError(ValueError):
    """Flows that have no cost."""


class CostLine(msgspec.Struct, rename="camel"):
    """What a Service, namespace, pair of zones or client costs in the period."""

    name: str
    bytes: int = 0
    """Bytes that have a price, of both directions."""
    crossing_bytes: int = 0
    """Those of them between two zones."""
    amount: float = 0.0
    hourly: float = 0.0
    """The sum of what the sources cost in an hour; 0 if a period is not known."""


class ObservedPeriod(msgspec.Struct, rename="camel"):
    """A period, how much of it was observed, and by how many sources."""

    start: float
    end: float
    hours: float
    sources: int = 1


class CostReport(msgspec.Struct, rename="camel"):
    """Costs of a period, the highest first."""

    by: CostGrouping
    currency: str
    start: float
    end: float
    lines: list[CostLine]
    total: CostLine
    unpriced: dict[str, int]
    """Bytes without a price, by reason."""
    warnings: list[str]
    periods: list[ObservedPeriod]
    """The periods of the sources, the longest first; none if one of them is not known."""

    @property
    def hours(self) -> float:
        """The length of the longest period; 0 if one is not known."""
        return max((period.hours for period in self.periods), default=0.0)

    def extrapolate(self, line: CostLine, hours: int) -> float | None:
        """Return what a line costs in so many hours; None if a period is not known."""
        return line.hourly * hours if self.periods else None


def price_flows(tables: Sequence[FlowTable], prices: PriceTable, *, by: CostGrouping) -> CostReport:
    """Return the costs of all tables together; raise CostError if one has no bytes."""
    if not all(table.has_bytes for table in tables):
        message = "the flows have connections only, no bytes, so they have no cost"
        raise CostError(message)
    price = prices.price_function()
    lines: dict[str, CostLine] = {}
    unpriced: dict[str, int] = {}
    total = CostLine("total")
    # NB: a file without traffic that follows another one says that its source sent nothing.
    sources = [source for source in _join_successive(tables) if any(map(len, source))]
    for source in sources:
        hours = sum(table.seconds for table in source) / HOUR_S
        for key, counts in (row for table in source for row in table):
            if key.kind in UNSUMMED_KINDS:
                continue
            for start, end, amount in _directions(key, counts):
                rate = price(start, end)
                if rate is None:
                    reason = _reason(start, end)
                    unpriced[reason] = unpriced.get(reason, 0) + amount
                    continue
                name = _name(key, by, start, end)
                line = lines.setdefault(name, CostLine(name))
                crosses = start != end and is_zone(start) and is_zone(end)
                for entry in (line, total):
                    entry.bytes += amount
                    entry.crossing_bytes += amount if crosses else 0
                    entry.amount += amount * rate
                    entry.hourly += amount * rate / hours if hours else 0.0
    ranked = sorted(
        lines.values(), key=lambda line: (-line.amount, -line.crossing_bytes, line.name)
    )
    report = CostReport(
        by,
        prices.currency,
        min((table.start for table in tables if table.start), default=0.0),
        max((table.end for table in tables), default=0.0),
        ranked,
        total,
        unpriced,
        list(dict.fromkeys(note for table in tables for note in table.notes)),
        _periods(sources),
    )
    report.warnings += _warnings(tables, report)
    return report


def show_duration(seconds: float) -> str:
    """Return a duration in the unit that people would name it in, with three digits."""
    number, unit = seconds, "second"
    if seconds >= _LONG_H * HOUR_S:
        number, unit = seconds / HOUR_S / 24, "day"
    elif seconds >= HOUR_S:
        number, unit = seconds / HOUR_S, "hour"
    elif seconds >= _MINUTE_S:
        number, unit = seconds / _MINUTE_S, "minute"
    text = f"{number:.3g}"
    return f"{text} {unit}" if text == "1" else f"{text} {unit}s"


def _join_successive(tables: Sequence[FlowTable]) -> list[list[FlowTable]]:
    """Return the tables by source: those whose periods do not overlap may be of the same source."""
    sources: list[list[FlowTable]] = []
    for table in sorted(tables, key=lambda table: (table.start, table.end)):
        fitting = [source for source in sources if _follows(table, source[-1])]
        if fitting:
            max(fitting, key=lambda source: source[-1].end).append(table)
        else:
            sources.append([table])
    return sources


def _follows(table: FlowTable, before: FlowTable) -> bool:
    shorter = min(table.seconds, before.seconds)
    return shorter > 0 and before.end - table.start <= _SAME * shorter


def _periods(sources: list[list[FlowTable]]) -> list[ObservedPeriod]:
    """Return the periods of sources, those that are about the same as one."""
    periods: list[ObservedPeriod] = []
    for source in sources:
        seconds = sum(table.seconds for table in source)
        if not seconds:
            return []
        start, end = source[0].start, source[-1].end
        most = _SAME * seconds
        for known in periods:
            differs = abs(known.hours * HOUR_S - seconds)
            if max(abs(known.start - start), abs(known.end - end), differs) <= most:
                known.sources += 1
                break
        else:
            periods.append(ObservedPeriod(start, end, seconds / HOUR_S))
    return sorted(periods, key=lambda period: -period.hours)


def _directions(key: FlowKey, counts: FlowCounts) -> Iterator[tuple[str, str, int]]:
    if counts.request_bytes:
        yield key.client_zone, key.endpoint_zone, counts.request_bytes
    if counts.response_bytes:
        yield key.endpoint_zone, key.client_zone, counts.response_bytes


def _name(key: FlowKey, by: CostGrouping, source: str, destination: str) -> str:
    match by:
        case CostGrouping.SERVICE if key.service:
            return f"{key.namespace}/{key.service}" if key.namespace else key.service
        case CostGrouping.NAMESPACE if key.namespace:
            return key.namespace
        case CostGrouping.SERVICE | CostGrouping.NAMESPACE:
            return f"({key.kind.value})"
        case CostGrouping.ZONES:
            return f"{source} -> {destination}"
        case CostGrouping.CLIENT:
            return key.client or _NO_CLIENT


def _reason(source: str, destination: str) -> str:
    for zone, reason in _REASONS.items():
        if zone in (source, destination):
            return reason
    return _NO_SAME_ZONE if source == destination else _NO_ENTRY


def _warnings(tables: Sequence[FlowTable], report: CostReport) -> Iterator[str]:
    short = [period for period in report.periods if period.hours < 1]
    if not report.periods:
        yield "the flows do not say their period, so nothing is extrapolated: name it with --period"
    elif short:
        shown = show_duration(min(period.hours for period in short) * HOUR_S)
        number = sum(period.sources for period in short)
        of_all = sum(period.sources for period in report.periods)
        whose = "" if number == of_all else f" of {number:,} of {of_all:,} sources"
        yield f"the period{whose} is short, {shown}: traffic of other hours may differ much"
    if _has_repeated(tables):
        yield (
            "two tables begin at the same moment and the later has all that the other has: if they "
            "are readings of one agent, its traffic counts twice; name the later alone"
        )
    if report.by is CostGrouping.CLIENT and report.lines and _are_unnamed(report):
        yield "the flows do not name clients: run the agents with --detail workloads"
    if any(key.kind is FlowKind.TUNNEL for table in tables for key, _ in table):
        yield "packets of an overlay are not priced: their content is; headers add to the bill"


def _has_repeated(tables: Sequence[FlowTable]) -> bool:
    """Whether two tables seem to be readings of one agent: one has all that the other has."""
    dated = [table for table in tables if table.start and table.rows and not table.is_window]
    ranked = sorted(dated, key=lambda table: (table.start, table.end))
    for earlier, later in pairwise(ranked):
        if earlier.start != later.start or earlier.end >= later.end:
            continue
        rows = later.rows
        if all(key in rows and not rows[key].has_fallen_since(counts) for key, counts in earlier):
            return True
    return False


def _are_unnamed(report: CostReport) -> bool:
    return all(line.name == _NO_CLIENT for line in report.lines)
