"""CSV files of the reference simulator of KEP-2004: inputs read in chunks, results formatted.

An input has the header `name,<zone>,<zone>,...` and cells "<nodes> <endpoints>"; results have seven
columns with four decimals. Where the reference crashes, hangs or silently drops the rest of a file,
this module skips the row and reports its line and column. Labels are copied byte for byte. Nothing
is printed, and bad rows raise nothing.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from typing import BinaryIO, Final, NamedTuple, cast

from keepclose.simulate.compiling import compile_function
from keepclose.simulate.csv import rows
from keepclose.simulate.csv.decimals import NUMBER_COLUMNS, WIDEST_NUMBER, put_results
from keepclose.simulate.csv.rows import Header, RowError, describe_row_error, unquote
from keepclose.simulate.datasets import load_numpy
from keepclose.system.files import InputError

RESULT_HEADER: Final = (
    b"input name,score,in-zone-traffic score,deviation score,slice score,max deviation,"
    b"mean deviation,SD of deviation\n"
)
CHUNK_BYTES: Final = 1 << 21
MAX_RECORD: Final = 1 << 25
"""The quotes of a record with more bytes than this are assumed not to match."""
MAX_HEADER: Final = 1 << 20
MAX_ZONES: Final = 100
"""Allocators compare each zone with every other one, some of them several times: thousands of zones
would take minutes a row, and no cluster has them."""
SHOWN_ERRORS: Final = 20
"""The number of bad rows of a chunk that are described; the others are only counted."""
_BOM: Final = b"\xef\xbb\xbf"
_CELL: Final = re.compile(r"\s*[-+]?\d+\s+[-+]?\d+\s*")
_LINES_TRIED: Final = 10_000
# A comma, two digits and a blank between them.
_SHORTEST_CELL: Final = 4
_FIELD: Final = re.compile(r'"(?:[^"]|"")*"|[^,\r\n]*')
_HEADER_FIX: Final = "the first line must be name,<zone>,<zone>,..."

Text = memoryview
"""Bytes to write, without a copy."""


class Chunk(NamedTuple):
    """Whole records of a file, their offset in it, and the number of their first line."""

    data: bytes
    offset: int
    line: int


class Labels(NamedTuple):
    """Labels of rows as bytes of a file: row r from `places[2*r]` up to `places[2*r+1]`."""

    data: bytes
    places: Sequence[int]

    def part(self, start: int, rows: int) -> Labels:
        """Return the labels of a range of rows."""
        return Labels(self.data, self.places[2 * start : 2 * (start + rows)])

    def text(self, row: int) -> str:
        """Return the label of a row without quotes."""
        return unquote(self.data[self.places[2 * row] : self.places[2 * row + 1]])


class Rows(NamedTuple):
    """The good rows of a chunk. Numbers are ordered by row, within a row by zone name."""

    rows: int
    nodes: Sequence[int]
    endpoints: Sequence[int]
    labels: Labels
    bad: int
    flaws: tuple[RowError, ...]


def read_header(file: BinaryIO) -> Header | RowError:
    """Read the first line; the rest of the file are the rows."""
    line = file.readline(MAX_HEADER + 1)
    if len(line) > MAX_HEADER:
        return RowError(1, 1, f"the header has more than {MAX_HEADER:,} bytes", fix=_HEADER_FIX)
    try:
        text = line.removeprefix(_BOM).decode()
        names = next(csv.reader([text], strict=True), [])
    except (UnicodeDecodeError, csv.Error):
        return RowError(1, 1, "the header is no CSV in UTF-8", fix=_HEADER_FIX)
    if not text.strip():
        what = "the first line is empty" if line else "the file is empty"
        return RowError(1, 1, f"{what}, where the header should be", fix=_HEADER_FIX)
    if any(map(_CELL.fullmatch, names[1:])):
        return RowError(1, 1, "the header is missing, the first line is a row", fix=_HEADER_FIX)
    if names[0].strip().lower() != "name":
        return RowError(
            1, 1, f'expected the column "name" first, got "{names[0]}"', fix=_HEADER_FIX
        )
    zones = tuple(names[1:])
    if not zones:
        return RowError(1, len(names[0]) + 1, "the header names no zone", fix=_HEADER_FIX)
    if len(zones) > MAX_ZONES:
        message = f"the header names {len(zones):,} zones, more than {MAX_ZONES}"
        return RowError(1, 1, message, fix="remove columns, or merge zones")
    seen: set[str] = set()
    for number, zone in enumerate(zones):
        if not zone.strip():
            column = _header_column(text, number + 1)
            return RowError(1, column, f"zone {number + 1} has no name", fix=_HEADER_FIX)
        if zone in seen:
            column = _header_column(text, number + 1)
            message = f'zone "{zone}" has two columns'
            return RowError(1, column, message, fix="rename one of them or remove it")
        seen.add(zone)
    ranked = {zone: rank for rank, zone in enumerate(sorted(zones, key=str.encode))}
    return Header(zones, tuple(ranked[zone] for zone in zones))


def read_chunks(
    file: BinaryIO, *, size: int = CHUNK_BYTES, longest: int = MAX_RECORD
) -> Iterator[Chunk]:
    """Yield the rest of the file in chunks of whole records; a file without rows gives none.

    Offsets count from the end of the header. Raises InputError for a line that is longer than any
    row can be.

    NB: a line break within quotes ends no record. Where quotes do not match at all, a chunk ends at
    its last line break: the scanner finds the bad row and goes on behind it.
    """
    line = 2
    offset = 0
    pending = b""
    while part := file.read(size):
        buffer = pending + part
        cut = _find_cut(buffer)
        if cut == 0 and len(buffer) > longest:
            cut = buffer.rfind(b"\n") + 1
            if cut == 0:
                raise InputError(
                    f"line {line} has more than {longest:,} bytes", "end each row with a line end"
                )
        if cut:
            yield Chunk(buffer[:cut], offset, line)
            offset += cut
            line += buffer.count(b"\n", 0, cut)
        pending = buffer[cut:]
    if pending:
        yield Chunk(pending, offset, line)


def scan_chunk(chunk: Chunk, header: Header, *, compiled: bool) -> Rows:
    """Return the good rows of a chunk and the errors of the others.

    `compiled` runs machine code and gives arrays; without it the same function runs uncompiled.
    """
    data, _, line = chunk
    width = len(header.order)
    # NB: room for the rows that can be good, and the one that is being read: otherwise a file of
    # many zones and many empty lines would need far more memory than it has bytes.
    most = min(data.count(b"\n") + 1, len(data) // (width * _SHORTEST_CELL) + 1)
    make = _make_array if compiled else _make_plain
    sizes = (width, most * width, most * width, 2 * most, SHOWN_ERRORS * rows.NOTE_WIDTH, 1)
    order, nodes, endpoints, labels, notes, counts = (make(size) for size in sizes)
    for column, index in enumerate(header.order):
        order[column] = index
    scan = compile_function(rows.scan_rows) if compiled else rows.scan_rows
    text = _view(data, compiled=compiled)
    count = scan(text, 0, line, order, nodes, endpoints, labels, notes, counts)
    bad = int(counts[0])
    described = min(bad, SHOWN_ERRORS)
    errors = tuple(describe_row_error(notes, number, data, header) for number in range(described))
    cells = count * width
    names = Labels(data, labels[: 2 * count])
    return Rows(count, nodes[:cells], endpoints[:cells], names, bad, errors)


def format_results(
    rows: int, *, labels: Labels, figures: Sequence[float], valid: Sequence[int], compiled: bool
) -> Text:
    """Return the lines of results for a range of rows; no rows give no bytes.

    `figures[row*7+column]` are score, in-zone, deviation and slice score, largest and mean
    deviation in percent and their spread. A row whose entry in `valid` is 0 is written as invalid.
    With `compiled` figures and validity must be arrays.
    """
    places = labels.places
    size = rows * (NUMBER_COLUMNS * WIDEST_NUMBER + 1)
    if rows > 0:
        size += int(places[2 * rows - 1]) - int(places[0])
    text = _view(labels.data, compiled=compiled)
    if not compiled:
        plain = bytearray(size)
        return memoryview(plain)[: put_results(rows, valid, figures, text, places, plain)]
    numpy = load_numpy("compiled CSV")
    out = numpy.empty(size, dtype="uint8")
    offsets = numpy.asarray(places, dtype="int64")
    return memoryview(out)[
        : compile_function(put_results)(rows, valid, figures, text, offsets, out)
    ]


def make_labels(labels: Sequence[str]) -> Labels:
    """Return labels as bytes of a file, quoted where CSV requires it."""
    texts = [_quote(label).encode() for label in labels]
    places = _make_plain(2 * len(texts))
    at = 0
    for number, text in enumerate(texts):
        places[2 * number] = at
        at += len(text)
        places[2 * number + 1] = at
    return Labels(b"".join(texts), places)


def _find_cut(buffer: bytes) -> int:
    """Return the offset after the last line break with an even number of quotes before it.

    0 means that there is none among the last line breaks.
    """
    cut = buffer.rfind(b"\n") + 1
    quotes = buffer.count(b'"', 0, cut)
    for _ in range(_LINES_TRIED):
        if quotes % 2 == 0:
            return cut
        before = buffer.rfind(b"\n", 0, cut - 1) + 1
        quotes -= buffer.count(b'"', before, cut)
        cut = before
    return 0


def _header_column(text: str, number: int) -> int:
    """Return the column at which a field of the header begins, counted from 1."""
    at = 0
    for _ in range(number):
        field = _FIELD.match(text, at)
        at = (field.end() if field else at) + 1
    return at + 1


def _quote(label: str) -> str:
    if any(char in label for char in ',"\r\n') or label[:1].isspace():
        return '"' + label.replace('"', '""') + '"'
    return label


def _make_array(size: int) -> MutableSequence[int]:
    return cast("MutableSequence[int]", load_numpy("compiled CSV").zeros(size, dtype="int64"))


def _make_plain(size: int) -> MutableSequence[int]:
    return array("q", bytes(8 * size))


def _view(data: bytes, *, compiled: bool) -> Sequence[int]:
    if compiled:
        return cast("Sequence[int]", load_numpy("compiled CSV").frombuffer(data, dtype="uint8"))
    return data
