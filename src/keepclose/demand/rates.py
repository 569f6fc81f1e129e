"""Rates by Service and zone of the client, from what sources answer; pure.

A rate is what it is: negative, infinite and absurd ones are passed on, because `routing.demand`
rejects them for each Service by itself, so that one broken series does no harm to others.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from keepclose.accounting.flow_files import MAX_ROWS, bounded_lines, check_rows
from keepclose.accounting.flow_table import FlowKey, FlowKind, FlowTable, is_zone
from keepclose.demand.prometheus_queries import FIELDS
from keepclose.demand.settings import DemandMeasure
from keepclose.model.meta import NamespacedName

ServiceRates = dict[NamespacedName, dict[str, float]]
"""The rate of each zone by Service."""
MAX_DEMAND_BYTES: Final = 32 << 20
"""The largest file of demand, and the largest answer of a Prometheus about it."""
_COLUMNS: Final = ("namespace", "service", "zone", "rate")


def rates_of_flows(
    table: FlowTable, *, measure: DemandMeasure, counted: FlowTable | None = None
) -> ServiceRates:
    """Return the rates of a table of flows over its period; {} if that is not known.

    Only flows to Services count, and only those from a zone. A flow that only `counted` has, with
    all that the source has ever counted, has the rate 0.
    """
    rates: ServiceRates = {}
    if table.seconds <= 0.0:
        return rates
    for key, counts in table:
        if not _is_demand(key):
            continue
        number = counts.total_bytes if measure is DemandMeasure.BYTES else counts.connections
        zones = rates.setdefault(NamespacedName(key.namespace, key.service), {})
        zones[key.client_zone] = zones.get(key.client_zone, 0.0) + number / table.seconds
    for key, _ in () if counted is None else counted:
        if _is_demand(key):
            zones = rates.setdefault(NamespacedName(key.namespace, key.service), {})
            zones.setdefault(key.client_zone, 0.0)
    return rates


def _is_demand(key: FlowKey) -> bool:
    return key.kind is FlowKind.SERVICE and bool(key.service) and is_zone(key.client_zone)


def rates_of_series(
    series: Iterable[tuple[Mapping[str, str], float]],
    labels: Mapping[str, str],
    *,
    zones: Mapping[str, str],
) -> ServiceRates:
    """Return the rates of the series of an answer; series of one Service and zone are summed.

    Without a label for the zone, that of the node counts, which `zones` has by the node's name.
    Series without a Service or zone are left out.
    """
    namespace, service, zone, node = (labels.get(field, field) for field in FIELDS)
    rates: ServiceRates = {}
    for metric, rate in series:
        name = metric.get(service, "")
        place = metric.get(zone, "") or zones.get(metric.get(node, ""), "")
        if name and place:
            # Meshes name a Service by its host name, or by its name alone.
            key = NamespacedName(metric.get(namespace, ""), name.partition(".")[0])
            sums = rates.setdefault(key, {})
            sums[place] = sums.get(place, 0.0) + rate
    return rates


def add_rates(total: ServiceRates, rates: ServiceRates) -> None:
    """Add rates to those of other sources."""
    for key, zones in rates.items():
        sums = total.setdefault(key, {})
        for zone, rate in zones.items():
            sums[zone] = sums.get(zone, 0.0) + rate


def parse_rates(text: str, *, name: str) -> ServiceRates:
    """Return the rates of a file, JSON or CSV as its first character says; raise ValueError."""
    return _parse_json(text, name) if text.lstrip().startswith("{") else _parse_csv(text, name)


def _parse_json(text: str, name: str) -> ServiceRates:
    try:
        document = msgspec.json.decode(text, type=dict[str, dict[str, float]])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = f'{name}: {error}; expected {{"NAMESPACE/SERVICE": {{"ZONE": RATE}}}}'
        raise ValueError(message) from None
    if sum(max(1, len(zones)) for zones in document.values()) > MAX_ROWS:
        message = f"{name}: more than {MAX_ROWS:,} rates"
        raise ValueError(message)
    rates: ServiceRates = {}
    for service, zones in document.items():
        namespace, slash, base = service.partition("/")
        if not slash or not namespace or not base:
            message = f"{name}: {service[:100]!r} is no NAMESPACE/SERVICE"
            raise ValueError(message)
        rates[NamespacedName(namespace, base)] = zones
    return rates


def _parse_csv(text: str, name: str) -> ServiceRates:
    rates: ServiceRates = {}
    columns: list[str] = []
    count = 0
    for line, row in bounded_lines(text.splitlines(), name):
        if not row.strip():
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([row]), [])]
        except csv.Error as error:
            message = f"{name}, line {line}: it is no line of CSV: {error}"
            raise ValueError(message) from None
        if not columns:
            columns = cells
            if sorted(columns) != sorted(_COLUMNS):
                message = f"{name}, line {line}: the columns must be {','.join(_COLUMNS)}"
                raise ValueError(message)
            continue
        count = check_rows(count + 1, name, line)
        if len(cells) != len(columns):
            message = f"{name}, line {line}: {len(cells)} cells for {len(columns)} columns"
            raise ValueError(message)
        values = dict(zip(columns, cells, strict=True))
        zones = rates.setdefault(NamespacedName(values["namespace"], values["service"]), {})
        if values["zone"] in zones:
            message = f"{name}, line {line}: the zone {values['zone'][:100]!r} is there twice"
            raise ValueError(message)
        try:
            zones[values["zone"]] = float(values["rate"])
        except ValueError:
            message = f"{name}, line {line}: the rate {values['rate'][:100]!r} is no number"
            raise ValueError(message) from None
    if not columns:
        message = f"{name}: it is empty"
        raise ValueError(message)
    return rates
