"""A demand trace from CSV: the column `time` and one column for each zone, with rates in the cells.

A time is a number of seconds or a duration such as 1m30s; times rise from row to row, and the first
one is the beginning. A cell is a number of at least 0: requests a second, or anything else that is
proportional to the load. A rate holds until the next row; `resample` turns rows into fixed steps.
All bad rows are counted, the first ones are described with line and column, and nothing raises.
"""

from __future__ import annotations

import csv
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Final

import msgspec

from keepclose.model.metadata_validation import label_value
from keepclose.simulate.csv.rows import RowError
from keepclose.simulate.traces import MAX_TRACE_ZONES, DemandStep, DemandTrace, count_steps

MAX_TRACE_BYTES: Final = 1 << 24
MAX_DEMAND_ROWS: Final = 100_000
LARGEST_RATE: Final = 1e12
TIME_COLUMN: Final = "time"
_SHOWN: Final = 10
_SHOWN_CHARACTERS: Final = 63
_HEADER_FIX: Final = "the first line must be time,<zone>,<zone>,..."
_TIME_FIX: Final = "write seconds, such as 90, or a duration, such as 1m30s"
_RATE_FIX: Final = f"write a number from 0 to {LARGEST_RATE:g}"
_NUMBER: Final = re.compile(r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?").fullmatch


class DemandRows(msgspec.Struct, frozen=True):
    """The good rows of a file, and the errors of the others."""

    zones: tuple[str, ...] = ()
    times: tuple[float, ...] = ()
    rates: tuple[tuple[float, ...], ...] = ()
    bad: int = 0
    errors: tuple[RowError, ...] = ()
    """The errors of the first bad rows."""

    @property
    def duration_s(self) -> float:
        """The time of all rows; the last row lasts as long as the one before it.

        Less than two rows last no time.
        """
        if len(self.times) < 2:
            return 0.0
        return 2.0 * self.times[-1] - self.times[-2] - self.times[0]


def read_demand_rows(data: bytes, *, parse_duration: Callable[[str], float | None]) -> DemandRows:
    """Return the rows of a file; a broken header or a file without rows is one error."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return _fail(RowError(line, 1, "the file is no text in UTF-8", fix=_HEADER_FIX))
    records = _records(text)
    header = next(records, None)
    if isinstance(header, RowError):
        return _fail(header)
    if header is None or not any(cell.strip() for cell in header[1]):
        what = "the first line is empty" if text else "the file is empty"
        return _fail(RowError(1, 1, f"{what}, where the header should be", fix=_HEADER_FIX))
    zones = _read_zones(header[1])
    if isinstance(zones, RowError):
        return _fail(zones)
    times: list[float] = []
    rates: list[tuple[float, ...]] = []
    errors: list[RowError] = []
    bad = count = 0
    for record in records:
        if isinstance(record, RowError):
            bad += 1
            errors.append(record)
            break
        line, cells = record
        if not any(cell.strip() for cell in cells):
            continue
        count += 1
        if count > MAX_DEMAND_ROWS:
            return _fail(
                RowError(
                    line, 1, f"the file has more than {MAX_DEMAND_ROWS:,} rows", fix="divide it"
                )
            )
        row = _read_row(line, cells, zones, times[-1] if times else None, parse_duration)
        if isinstance(row, RowError):
            bad += 1
            if len(errors) < _SHOWN:
                errors.append(row)
        else:
            times.append(row[0])
            rates.append(row[1:])
    if not errors and len(times) < 2:
        text = "there is one row" if times else "there are no rows"
        errors = [RowError(2, 1, f"{text}, and a trace needs two", fix="add rows of later times")]
    elif not errors and not any(map(any, rates)):
        errors = [RowError(2, 2, "no zone ever sends anything", fix=_RATE_FIX)]
    return DemandRows(zones, tuple(times), tuple(rates), bad or len(errors), tuple(errors))


def resample(
    rows: DemandRows, *, name: str, step_s: float, duration_s: float | None = None
) -> DemandTrace:
    """Return the rows as a trace in fixed steps; each step has the rates of its beginning.

    Beyond the last row its rates hold on. The rows must be good and the number of steps checked.
    """
    lasting = rows.duration_s if duration_s is None else duration_s
    steps = []
    for number in range(count_steps(lasting, step_s)):
        row = bisect_right(rows.times, rows.times[0] + number * step_s + 1e-9) - 1
        steps.append(DemandStep(dict(zip(rows.zones, rows.rates[row], strict=True))))
    return DemandTrace(name, "demand from a file", rows.zones, step_s, tuple(steps))


def _fail(error: RowError) -> DemandRows:
    return DemandRows(bad=1, errors=(error,))


def _records(text: str) -> Iterator[tuple[int, list[str]] | RowError]:
    """Yield the number of the first line and the cells of each record; an error ends the file."""
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            yield line, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field larger" in str(error):
                what = f"a field has more than {csv.field_size_limit():,} characters"
                yield RowError(line, 1, what, fix="write one rate into each field")
                return
            yield RowError(
                line, 1, "the quotes do not match", fix='quote the whole field and write " as ""'
            )
            return


def _read_zones(cells: list[str]) -> tuple[str, ...] | RowError:
    names = [cell.strip() for cell in cells]
    if names[0].lower() != TIME_COLUMN:
        what = f'expected the column "{TIME_COLUMN}" first, got "{names[0][:_SHOWN_CHARACTERS]}"'
        return RowError(1, 1, what, fix=_HEADER_FIX)
    zones = names[1:]
    if not 2 <= len(zones) <= MAX_TRACE_ZONES:
        what = f"the header names {len(zones):,} zones, not 2 to {MAX_TRACE_ZONES}"
        return RowError(1, 1, what, fix=_HEADER_FIX)
    for number, zone in enumerate(zones, 1):
        column = _column(cells, number)
        if not zone:
            return RowError(1, column, f"zone {number} has no name", fix=_HEADER_FIX)
        if problems := label_value(zone):
            what = f'zone "{zone[:_SHOWN_CHARACTERS]}" is no value of a label'
            return RowError(1, column, what, fix=problems[0])
        if zone in zones[: number - 1]:
            what = f'zone "{zone}" has two columns'
            return RowError(1, column, what, fix="rename one of them or remove it")
    return tuple(zones)


def _read_row(
    line: int,
    cells: list[str],
    zones: tuple[str, ...],
    previous: float | None,
    parse_duration: Callable[[str], float | None],
) -> tuple[float, ...] | RowError:
    """Return the time and the rates of a row."""
    first = cells[0].strip()
    subject = first[:40]
    number = _parse(first)
    time = parse_duration(first) if number is None else number
    if time is None or not time <= LARGEST_RATE:
        return RowError(line, 1, f'"{subject}" is no time', subject, _TIME_FIX)
    if previous is not None and time <= previous:
        what = f"its time is not after that of the row before, {previous:g} s"
        return RowError(line, 1, what, subject, "sort the rows by time, each time once")
    if len(cells) != len(zones) + 1:
        what = f"the row has {len(cells) - 1} rates for {len(zones)} zones"
        return RowError(line, 1, what, subject, "write one rate for each zone of the header")
    rates = []
    for zone, (index, cell) in zip(zones, enumerate(cells[1:], 1), strict=True):
        rate = _parse(cell.strip())
        if rate is None or rate > LARGEST_RATE:
            what = f'zone {zone}: "{cell.strip()[:40]}" is no rate'
            return RowError(line, _column(cells, index), what, subject, _RATE_FIX)
        rates.append(rate)
    return (time, *rates)


def _parse(text: str) -> float | None:
    """Return a plain number of at least 0; None for any other text."""
    # NB: a bound on the length, because thousands of digits are slow to read and mean nothing.
    if len(text) > 40 or not _NUMBER(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _column(cells: list[str], index: int) -> int:
    """Return about where a cell begins in its line, counted from 1; quotes are not counted."""
    return sum(len(cell) + 1 for cell in cells[:index]) + 1
