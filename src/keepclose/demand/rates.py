"""Rates by Service and zone of the client, from what sources answer; pure.

A rate is what it is: negative, infinite and absurd ones are passed on, because `routing.demand`
rejects them for each Service by itself, so that one broken series does no harm to others. In a file
that something else writes, a cell that cannot be read rejects its Service in the same way.
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from keepclose.accounting.flow_files import MAX_ROWS, bounded_lines, check_rows, page_lines
from keepclose.accounting.flow_table import FlowKey, FlowKind, FlowTable, is_zone
from keepclose.demand.prometheus_queries import FIELDS
from keepclose.demand.settings import DemandMeasure
from keepclose.model.meta import NamespacedName
from keepclose.model.plain_text import make_plain

ServiceRates = dict[NamespacedName, dict[str, float]]
"""The rate of each zone by Service."""
MAX_DEMAND_BYTES: Final = 32 << 20
"""The largest file of demand, and the largest answer of a Prometheus about it."""
_HEAD: Final = 4096
"""The first character of a file of JSON is within so many bytes."""
_COLUMNS: Final = ("namespace", "service", "zone", "rate")
_SHOWN_CELL: Final = 40
_SHOWN_ERRORS: Final = 3


class FileRates(NamedTuple):
    """The rates of a file, and what of it cannot be used."""

    rates: ServiceRates
    rejected: Mapping[NamespacedName, str] = {}
    """Why the rates of a Service are not used, which are not among `rates`."""
    notes: tuple[str, ...] = ()
    """The same for a log, of the first few Services."""


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


def parse_rates(data: bytes, *, name: str) -> FileRates:
    """Return the rates of a file, JSON or CSV as its first character says.

    What is wrong with one Service rejects that Service alone. Raises ValueError for a file that
    has no rates at all: other columns, no JSON, or too many rows.
    """
    rows = _RateRows(name)
    data = data.removeprefix(BOM_UTF8)
    if data[:_HEAD].lstrip().startswith(b"{"):
        _read_json(data, name, rows)
    else:
        _read_csv(data, name, rows)
    return rows.finish()


class _RateRows:
    """The rates of the rows so far, and the first error of each Service."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rates: ServiceRates = {}
        self._rejected: dict[NamespacedName, str] = {}
        self._nameless: list[str] = []
        """Why the first rows that name no Service cannot be used."""
        self._left_out = 0

    def zones_of(self, key: NamespacedName) -> dict[str, float]:
        """Return the rates of a Service by zone, to add to."""
        return self._rates.setdefault(key, {})

    def reject(self, key: NamespacedName | None, why: str) -> None:
        """Use no rates of a Service; None for a row that names no Service, which is left out."""
        if key is None:
            self._left_out += 1
            if len(self._nameless) < _SHOWN_ERRORS:
                self._nameless.append(why)
        else:
            self._rejected.setdefault(key, why)

    def finish(self) -> FileRates:
        """Return what is there."""
        for key in self._rejected:
            self._rates.pop(key, None)
        named = [
            f"{self._name}, {why}; the rates of {_show_key(key)} are not used"
            for key, why in self._rejected.items()
        ]
        left_out = [f"{self._name}, {why}; the row is not used" for why in self._nameless]
        notes = [*named[:_SHOWN_ERRORS], *left_out]
        if len(named) > _SHOWN_ERRORS:
            notes.append(f"{self._name}: {len(named):,} Services have errors; the first are logged")
        if self._left_out > _SHOWN_ERRORS:
            notes.append(
                f"{self._name}: {self._left_out:,} rows name no Service; the first are logged"
            )
        return FileRates(self._rates, self._rejected, tuple(notes))


def _read_json(data: bytes, name: str, rows: _RateRows) -> None:
    # NB: each Service and each rate has a colon, and no name has one. They are counted before they
    # take many times their bytes in memory.
    if data.count(b":") > 2 * MAX_ROWS:
        raise _too_many_rates(name)
    try:
        document = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = f'{name}: {error}; expected {{"NAMESPACE/SERVICE": {{"ZONE": RATE}}}}'
        raise ValueError(message) from None
    count = 0
    for service, raw in document.items():
        namespace, slash, base = service.partition("/")
        if not slash or not namespace or not base:
            rows.reject(None, f"{_show(service)} is no NAMESPACE/SERVICE")
            continue
        key = NamespacedName(namespace, base)
        try:
            zones = msgspec.json.decode(raw, type=dict[str, float])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            why = make_plain(str(error), most=100)
            rows.reject(key, f'{_show(service)}: {why}; expected {{"ZONE": RATE}}')
            continue
        count += max(1, len(zones))
        if count > MAX_ROWS:
            raise _too_many_rates(name)
        rows.zones_of(key).update(zones)


def _read_csv(data: bytes, name: str, rows: _RateRows) -> None:
    columns: list[str] = []
    count = 0
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    for line, row in bounded_lines(page_lines(data), name):
        if line > 2 * MAX_ROWS:
            message = (
                f"{name}, line {line}: more than {2 * MAX_ROWS:,} lines: remove the empty ones"
            )
            raise ValueError(message)
        cells = _split_row(row, name, line)
        # Spreadsheets write empty records as commas, and some programs as quotes.
        if not any(cells):
            continue
        if not columns:
            columns = cells
            if sorted(columns) != sorted(_COLUMNS):
                message = (
                    f"{name}, line {line}: the columns must be {','.join(_COLUMNS)}, "
                    f"but are {_show(','.join(columns))}"
                )
                raise ValueError(message)
            continue
        count = check_rows(count + 1, name, line)
        _read_row(dict(zip(columns, cells, strict=False)), len(cells), line, rows)
    if not columns:
        message = f"{name}: it is empty; write the columns {','.join(_COLUMNS)} at least"
        raise ValueError(message)


def _split_row(row: str, name: str, line: int) -> list[str]:
    """Return the cells of a row without blanks around them; raise ValueError."""
    try:
        row.encode()
        return [cell.strip() for cell in next(csv.reader([row]), [])]
    except UnicodeEncodeError:
        message = f"{name}, line {line}: it is no text in UTF-8"
    except csv.Error as error:
        message = f"{name}, line {line}: it is no line of CSV: {error}"
    raise ValueError(message)


def _too_many_rates(name: str) -> ValueError:
    return ValueError(f"{name}: more than {MAX_ROWS:,} rates: measure with a Prometheus instead")


def _read_row(cells: Mapping[str, str], count: int, line: int, rows: _RateRows) -> None:
    """Add the rate of a row, or reject its Service."""
    for column in ("namespace", "service"):
        if not cells.get(column):
            rows.reject(None, f"line {line}, column {column}: it is empty")
            return
    key = NamespacedName(cells["namespace"], cells["service"])
    if count != len(_COLUMNS):
        rows.reject(key, f"line {line}: {count} cells for {len(_COLUMNS)} columns")
        return
    zones, zone, rate = rows.zones_of(key), cells["zone"], cells["rate"]
    if not zone:
        rows.reject(key, f"line {line}, column zone: it is empty")
    elif zone in zones:
        rows.reject(key, f"line {line}, column zone: {_show(zone)} is there twice")
    else:
        try:
            zones[zone] = float(rate)
        except ValueError:
            rows.reject(key, f"line {line}, column rate: {_show(rate)} is no number")


def _show(text: str) -> str:
    return f'"{make_plain(text, most=_SHOWN_CELL)}"'


def _show_key(key: NamespacedName) -> str:
    return make_plain(f"{key.namespace}/{key.name}", most=130)
