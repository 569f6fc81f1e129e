"""Flow tables as files: CSV for spreadsheets and `verify`, JSON lines for programs.

Both formats hold the same rows. JSON lines also keep the notes and whether bytes were counted, in a
first line; the outputs of several nodes may follow each other in one file.

Files come from outside. A text with a character that is not visible is refused, and so is a number
that is negative, not whole or beyond 63 bits; each error names the file and the line. A spreadsheet
runs a cell that begins with "=", "+", "-" or "@", so the writer puts "'" before it, and the reader
accepts such a cell only with it. No name of Kubernetes begins so.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO, StringIO
from typing import Annotated, Any, Final, NoReturn

import msgspec

from keepclose.accounting.flow_table import (
    UNKNOWN,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
    merge_tables,
    parse_moment,
    show_exact_time,
)
from keepclose.model.json_values import INT64_MAX, JsonObject, parse_natural
from keepclose.model.plain_text import is_hidden, make_plain

MAX_ROWS: Final = 500_000
"""The most rows of a file; in memory they take about 300 MiB."""
MAX_LINE_CHARACTERS: Final = 16_384
"""The longest line of a file of flows or of a flow log."""
MAX_NAME_CHARACTERS: Final = 1_024
"""The longest name in a row; those of Kubernetes have 507 at most, with namespace."""
MAX_PERIODS: Final = 1_000
"""The most periods of a CSV file; with more of them, all rows are of one long period."""
_MAX_NOTES: Final = 100
_FORMULA: Final = ("=", "+", "-", "@")
_GUARD: Final = "'"
_TIMES: Final = ("start", "end")
_COMMENT: Final = "#"
"""How lines may begin that stand above the first line of a file."""
_COUNTS: Final = ("connections", "refused", "unanswered")
_BYTES: Final = ("request_bytes", "response_bytes")
CSV_COLUMNS: Final = (*_TIMES, *FlowKey._fields, *_COUNTS, *_BYTES)
_NEEDED: Final = ("client_zone", "endpoint_zone")
_KINDS: Final = {kind.value: kind for kind in FlowKind}


class FlowFileError(ValueError):
    """A file that cannot be read as flows; `line` is 0 if it is about the whole file."""

    def __init__(self, name: str, line: int, message: str) -> None:
        super().__init__(name, line, message)
        self.name = name
        self.line = line
        self.message = message

    def __str__(self) -> str:
        place = f"{self.name}, line {self.line}" if self.line else self.name
        return f"{place}: {self.message}"


def write_csv(*tables: FlowTable) -> Iterator[str]:
    """Yield the lines of a CSV file, each with its end; a table without bytes leaves them empty."""
    yield _csv_line(CSV_COLUMNS)
    for table in tables:
        times = [show_exact_time(table.start), show_exact_time(table.end)]
        for key, counts in table:
            numbers = _numbers(counts) if table.has_bytes else [*_numbers(counts)[:3], "", ""]
            yield _csv_line([*times, *map(guard_cell, key), *numbers])


def read_csv(lines: Iterable[str], *, name: str) -> FlowTable:
    """Return all flows of a CSV file as one table; raise FlowFileError."""
    return merge_tables(read_csv_tables(lines, name=name))


def read_csv_tables(lines: Iterable[str], *, name: str) -> list[FlowTable]:
    """Return the flows of a CSV file, a table for each period; raise FlowFileError.

    Columns may be in any order and may be missing, except for the zones. Above them there may be
    comments. The kind of a row without
    one is service if it has a Service, else unknown.
    """
    numbered = bounded_lines(lines, name)
    columns = _read_header(numbered, name)
    tables: dict[tuple[str, str], FlowTable] = {}
    whole: FlowTable | None = None
    names = _Names()
    without_bytes = 0
    number_of_rows = 0
    for line, text in numbered:
        if not text.strip():
            continue
        number_of_rows = check_rows(number_of_rows + 1, name, line)
        cells = _split(text, name, line)
        if len(cells) != len(columns):
            message = f"{len(cells)} cells for {len(columns)} columns"
            raise FlowFileError(name, line, message)
        row = dict(zip(columns, cells, strict=True))
        times = (row.get("start", ""), row.get("end", ""))
        table = whole or tables.setdefault(times, FlowTable())
        without_bytes += _add_row(table, row, names, lambda text: _fail(name, line, text))  # noqa: B023 - called at once
        if whole is None and len(tables) > MAX_PERIODS:
            whole = merge_tables(tables.values())
            whole.notes.append(f"{name}: rows of more than {MAX_PERIODS:,} periods count as of one")
    found = [whole] if whole else [*tables.values()] or [FlowTable()]
    if without_bytes:
        for table in found:
            table.has_bytes = False
        if without_bytes < number_of_rows:
            note = f"{name}: {without_bytes:,} of {number_of_rows:,} rows have no bytes"
            found[0].notes.append(note)
    return found


class _Metadata(msgspec.Struct, rename="camel"):
    """The first line of a file of JSON lines."""

    has_bytes: bool
    start: str = ""
    end: str = ""
    notes: list[str] = []


_Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


class _Row(
    msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """A line of a file of JSON lines."""

    kind: str
    namespace: str = ""
    service: str = ""
    port: str = ""
    protocol: str = "TCP"
    client_zone: str
    endpoint_zone: str
    client_node: str = ""
    endpoint_node: str = ""
    client: str = ""
    endpoint: str = ""
    connections: _Count = 0
    refused: _Count = 0
    unanswered: _Count = 0
    request_bytes: _Count = 0
    response_bytes: _Count = 0


_ROW: Final = msgspec.json.Decoder(_Row)
_METADATA: Final = msgspec.json.Decoder(_Metadata)


def write_json_lines(*tables: FlowTable) -> Iterator[str]:
    """Yield the lines of a file of JSON lines, each with its end; rows omit 0 and ""."""
    for table in tables:
        yield from _write_json_lines(table)


def flow_document(table: FlowTable) -> JsonObject:
    """Return a table as one JSON object, with the fields that JSON lines have."""
    flows = [msgspec.to_builtins(_json_row(key, counts)) for key, counts in table]
    return {**_metadata(table), "flows": flows}


def _write_json_lines(table: FlowTable) -> Iterator[str]:
    yield msgspec.json.encode(_metadata(table)).decode() + "\n"
    encode = msgspec.json.Encoder().encode
    for key, counts in table:
        yield encode(_json_row(key, counts)).decode() + "\n"


def _metadata(table: FlowTable) -> JsonObject:
    return {
        "start": show_exact_time(table.start),
        "end": show_exact_time(table.end),
        "hasBytes": table.has_bytes,
        "notes": [make_plain(note) for note in table.notes[:_MAX_NOTES]],
    }


def _json_row(key: FlowKey, counts: FlowCounts) -> _Row:
    fields: dict[str, Any] = dict(zip(FlowKey._fields, map(_plain, key), strict=True))
    fields |= zip((*_COUNTS, *_BYTES), map(int, _numbers(counts)), strict=True)
    return _Row(**fields)


def read_json_lines(lines: Iterable[str], *, name: str) -> FlowTable:
    """Return all flows of a file of JSON lines as one table; raise FlowFileError."""
    return merge_tables(read_json_tables(lines, name=name))


def read_json_tables(lines: Iterable[str], *, name: str) -> list[FlowTable]:
    """Return the flows of JSON lines, a table for each first line; raise FlowFileError."""
    tables: list[FlowTable] = []
    names = _Names()
    number_of_rows = 0
    for line, text in bounded_lines(lines, name):
        if not text.strip() or (not tables and text.startswith(_COMMENT)):
            continue
        number_of_rows = check_rows(number_of_rows + 1, name, line)
        try:
            row = _ROW.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            tables.append(_read_metadata(text, name, line, error, is_first=not tables))
            continue
        if not tables:
            message = 'the first line must be {"start": ..., "end": ..., "hasBytes": ...}'
            raise FlowFileError(name, line, message)
        texts = [names.check(getattr(row, field), field) for field in FlowKey._fields]
        wrong = next((text for text in texts if isinstance(text, _Wrong)), None)
        if wrong is not None:
            raise FlowFileError(name, line, wrong)
        if row.kind not in _KINDS:
            raise FlowFileError(name, line, _wrong_kind(row.kind))
        counts = FlowCounts(
            row.connections, row.refused, row.unanswered, row.request_bytes, row.response_bytes
        )
        tables[-1].add(FlowKey(_KINDS[row.kind], *texts[1:]), counts)
    if not tables:
        raise FlowFileError(name, 0, "it is empty")
    return tables


def bounded_lines(
    lines: Iterable[str], name: str, *, most: int = MAX_LINE_CHARACTERS
) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without ends and byte order mark; raise for a long one."""
    for line, text in enumerate(lines, start=1):
        if len(text) > most:
            raise FlowFileError(name, line, f"the line has more than {most:,} characters")
        yield line, text.removeprefix("\ufeff").rstrip("\r\n") if line == 1 else text.rstrip("\r\n")


def page_lines(data: bytes) -> Iterator[str]:
    """Yield the lines of a page, each decoded when it is read: a list of them is many times larger.

    Only a line feed ends a line. A byte that is not UTF-8 becomes a character that no name may
    have; a line that is longer than readers accept is cut behind their limit.
    """
    with BytesIO(data) as file:
        while line := file.readline(4 * (MAX_LINE_CHARACTERS + 2)):
            yield line.decode("utf-8", "surrogateescape")


def check_rows(count: int, name: str, line: int) -> int:
    """Return the number of rows so far; raise if they are too many."""
    if count > MAX_ROWS:
        raise FlowFileError(name, line, f"more than {MAX_ROWS:,} rows: divide the file")
    return count


def guard_cell(text: str) -> str:
    """Return a text for a cell of CSV: visible, and no formula in a spreadsheet."""
    shown = _plain(text)
    return _GUARD + shown if shown.startswith((*_FORMULA, _GUARD)) else shown


class _Wrong(str):
    """Why a text is no name."""

    __slots__ = ()


class _Names:
    """Names that were checked; each text is kept once, as rows repeat them."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {"": ""}

    def check(self, text: str, field: str) -> str | _Wrong:
        """Return a text, or why it is no name."""
        known = self._known.get(text)
        if known is not None:
            return known
        if len(text) > MAX_NAME_CHARACTERS:
            return _Wrong(f"{field} has more than {MAX_NAME_CHARACTERS:,} characters")
        if any(map(is_hidden, text)):
            return _Wrong(f"{field}: {text!r} has a character that is not visible")
        self._known[text] = text
        return text


def _read_header(numbered: Iterator[tuple[int, str]], name: str) -> list[str]:
    for line, text in numbered:
        if not text.strip() or text.startswith(_COMMENT):
            continue
        columns = [cell.strip() for cell in _split(text, name, line)]
        unknown = [column for column in columns if column not in CSV_COLUMNS]
        if unknown:
            message = f"no column is named {unknown[0]!r}; columns: {', '.join(CSV_COLUMNS)}"
            raise FlowFileError(name, line, message)
        if len(set(columns)) != len(columns):
            raise FlowFileError(name, line, "a column is there twice")
        missing = [column for column in _NEEDED if column not in columns]
        if missing:
            raise FlowFileError(name, line, f"the column {missing[0]} is missing")
        return columns
    raise FlowFileError(name, 0, "it is empty")


def _add_row(
    table: FlowTable, row: dict[str, str], names: _Names, refuse: Callable[[str], NoReturn]
) -> bool:
    """Add a row of a CSV file; return whether its bytes are not known."""
    texts = {field: _unguard(row.get(field, ""), field, names, refuse) for field in FlowKey._fields}
    kind = texts["kind"] or (FlowKind.SERVICE if texts["service"] else FlowKind.UNKNOWN)
    if kind not in _KINDS:
        refuse(_wrong_kind(kind))
    texts["protocol"] = texts["protocol"] or "TCP"
    for field in _NEEDED:
        texts[field] = texts[field] or UNKNOWN
    known = [bool(row.get(field, "").strip()) for field in _BYTES]
    if known[0] != known[1]:
        refuse(f"{_BYTES[known[0]]} is empty, but {_BYTES[known[1]]} is not: name both or neither")
    counts = [_read_count(row.get(field, ""), field, refuse) for field in (*_COUNTS, *_BYTES)]
    fields: dict[str, Any] = {**texts, "kind": _KINDS[kind]}
    table.add(FlowKey(**fields), FlowCounts(*counts))
    start, end = _read_times([row.get(field, "").strip() for field in _TIMES], refuse)
    if start:
        table.start = min(table.start or start, start)
    table.end = max(table.end, end)
    return not known[0]


def _read_times(texts: list[str], refuse: Callable[[str], NoReturn]) -> tuple[float, float]:
    """Return the ends of a period, 0 for one that is not known."""
    moments = []
    for field, text in zip(_TIMES, texts, strict=True):
        moment = parse_moment(text) if text else 0.0
        if moment is None:
            refuse(f"{field}: {text[:100]!r} is no time such as 2026-01-31T12:00:00Z")
        moments.append(moment)
    if 0 < moments[1] < moments[0]:
        refuse("end is before start")
    return moments[0], moments[1]


def _read_count(text: str, field: str, refuse: Callable[[str], NoReturn]) -> int:
    number = parse_natural(text.strip() or "0")
    if number is None:
        refuse(f"{field}: {text!r} is no whole number from 0 to {INT64_MAX}")
    return number


def _read_metadata(
    text: str, name: str, line: int, error: Exception, *, is_first: bool
) -> FlowTable:
    """Return the empty table that a first line describes; raise what is wrong with the line."""
    try:
        metadata = _METADATA.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as other:
        raise FlowFileError(name, line, str(other if is_first else error)) from None
    start, end = _read_times([metadata.start, metadata.end], lambda text: _fail(name, line, text))
    notes = [make_plain(note) for note in metadata.notes[:_MAX_NOTES]]
    return FlowTable(start=start, end=end, has_bytes=metadata.has_bytes, notes=notes)


def _split(text: str, name: str, line: int) -> list[str]:
    """Return the cells of a line; no name has a line break, so each line is a record."""
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise FlowFileError(name, line, f"it is no line of CSV: {error}") from None


def _csv_line(cells: Iterable[str]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _unguard(text: str, field: str, names: _Names, refuse: Callable[[str], NoReturn]) -> str:
    text = text.strip()
    if text.startswith(_FORMULA):
        refuse(f"{field}: {text!r} would be a formula in a spreadsheet, and is no name")
    name = names.check(text.removeprefix(_GUARD), field)
    if isinstance(name, _Wrong):
        refuse(name)
    return name


def _plain(text: str) -> str:
    return make_plain(str(text).strip(), most=MAX_NAME_CHARACTERS // 2)


def _numbers(counts: FlowCounts) -> list[str]:
    return [str(min(INT64_MAX, max(0, number))) for number in msgspec.structs.astuple(counts)]


def _wrong_kind(text: str) -> str:
    return f"kind: {text!r} is none of {', '.join(_KINDS)}"


def _fail(name: str, line: int, message: str) -> NoReturn:
    raise FlowFileError(name, line, message)
