"""What flows cost: bytes between zones times a price table, by Service, namespace, zones or client.

Requests go from the client's zone to the endpoint's, responses back; each direction has its own
price. Amounts are those of the period that was observed. An hour, a month (730 hours) and a year
(8,760 hours) are extrapolated from it, as if traffic stayed as it was. Bytes without a price are
never taken as free: they are reported beside the costs, with the reason.

Packets of overlays are left out, as their content is counted already, and so is traffic that does
not leave a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
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
_NO_CLIENT: Final = "(not recorded)"
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

    @property
    def hours(self) -> float:
        """The length of the period; 0 if it is not known."""
        return max(0.0, self.end - self.start) / HOUR_S

    def extrapolate(self, amount: float, hours: int) -> float | None:
        """Return an amount of the period for so many hours; None if the period is not known."""
        return amount / self.hours * hours if self.hours else None


def price_flows(table: FlowTable, prices: PriceTable, *, by: CostGrouping) -> CostReport:
    """Return the costs of a table; raise CostError if it has no bytes."""
    if not table.has_bytes:
        message = "the flows have connections only, no bytes, so they have no cost"
        raise CostError(message)
    price = prices.price_function()
    lines: dict[str, CostLine] = {}
    unpriced: dict[str, int] = {}
    total = CostLine("total")
    for key, counts in table:
        if key.kind in UNSUMMED_KINDS:
            continue
        for source, destination, amount in _directions(key, counts):
            rate = price(source, destination)
            if rate is None:
                reason = _reason(source, destination)
                unpriced[reason] = unpriced.get(reason, 0) + amount
                continue
            name = _name(key, by, source, destination)
            line = lines.setdefault(name, CostLine(name))
            crosses = source != destination and is_zone(source) and is_zone(destination)
            for entry in (line, total):
                entry.bytes += amount
                entry.crossing_bytes += amount if crosses else 0
                entry.amount += amount * rate
    ranked = sorted(
        lines.values(), key=lambda line: (-line.amount, -line.crossing_bytes, line.name)
    )
    report = CostReport(
        by, prices.currency, table.start, table.end, ranked, total, unpriced, list(table.notes)
    )
    report.warnings += _warnings(table, report)
    return report


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


def _warnings(table: FlowTable, report: CostReport) -> Iterator[str]:
    if not report.hours:
        yield "the flows do not say their period, so nothing is extrapolated"
    elif report.hours < 1:
        minutes = report.hours * 60
        yield (
            f"the period is short, {minutes:.3g} minutes: traffic of other hours may differ much"
        )
    if report.by is CostGrouping.CLIENT and report.lines and _are_unnamed(report):
        yield "the flows do not name clients: record them with workloads"
    if any(key.kind is FlowKind.TUNNEL for key, _ in table):
        yield "packets of an overlay are not priced: their content is; headers add to the bill"


def _are_unnamed(report: CostReport) -> bool:
    return all(line.name == _NO_CLIENT for line in report.lines)
