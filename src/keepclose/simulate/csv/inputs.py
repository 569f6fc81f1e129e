"""A CSV file as a data set: any rows at any time, by any thread, however large the file is.

The file is scanned once from end to end, which finds all its errors before anything is computed.
Rows are kept within a memory limit; others are scanned again when they are read: scanning is about
as fast as copying.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from keepclose.simulate.compiling import is_available
from keepclose.simulate.csv.files import (
    CHUNK_BYTES,
    Chunk,
    Rows,
    read_chunks,
    read_header,
    scan_chunk,
)
from keepclose.simulate.csv.rows import Header, RowError
from keepclose.simulate.datasets import Block, DataSet

KEPT_BYTES: Final = 1 << 29
"""Rows and text up to this size are kept."""
_FEW_BYTES: Final = 1 << 18
"""Below this size, waiting for compiled code takes longer than running without it."""
_SHOWN_ERRORS: Final = 10
_THREADS: Final = 2


class _Part(NamedTuple):
    """Rows of the file that were scanned together; `first` is the number of the first row."""

    first: int
    rows: int
    offset: int
    size: int
    line: int


class _Condition(msgspec.Struct, frozen=True):
    """The number of bad rows of a file, and the errors of the first ones."""

    bad: int = 0
    flaws: tuple[RowError, ...] = ()


class CsvInputs(DataSet):
    """The good rows of a CSV file; `condition` reports the bad ones."""

    def __init__(
        self,
        name: str,
        header: Header,
        read_text: Callable[[int, int], bytes],
        *,
        compiled: bool,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.name = name
        self.zones = header.zones
        self.rows = 0
        self.condition = _Condition()
        self.parts: list[_Part] = []
        self.compiled = compiled
        self._header = header
        self._read_text = read_text
        self._free_bytes = kept_bytes
        self._kept: dict[int, Rows] = {}
        self._recent: deque[tuple[int, Rows]] = deque(maxlen=2 * _THREADS)

    def add(self, chunk: Chunk, rows: Rows) -> None:
        """Add the next part of the file."""
        number = len(self.parts)
        size = len(chunk.data)
        self.parts.append(_Part(self.rows, rows.rows, chunk.offset, size, chunk.line))
        self.rows += rows.rows
        errors = (*self.condition.flaws, *rows.flaws)[:_SHOWN_ERRORS]
        self.condition = _Condition(self.condition.bad + rows.bad, errors)
        cost = size + 16 * rows.rows * (len(self.zones) + 1)
        if cost <= self._free_bytes:
            self._free_bytes -= cost
            self._kept[number] = rows

    def scan(self, number: int) -> Rows:
        """Return the rows of a part."""
        rows = self._kept.get(number)
        if rows is not None:
            return rows
        for recent, rows in list(self._recent):
            if recent == number:
                return rows
        part = self.parts[number]
        text = self._read_text(part.offset, part.size)
        chunk = Chunk(text, part.offset, part.line)
        rows = scan_chunk(chunk, self._header, compiled=self.compiled)
        self._recent.append((number, rows))
        return rows

    def read(self, start: int, stop: int) -> Block:
        """Return the rows from the parts they are in."""
        stop = min(stop, self.rows)
        parts = list(self._find(start, stop))
        nodes = _join([rows.nodes[cells] for rows, cells in parts])
        endpoints = _join([rows.endpoints[cells] for rows, cells in parts])
        return Block(start, max(0, stop - start), nodes, endpoints)

    def pick(self, chosen: Sequence[int]) -> Block:
        """Return copies of the rows."""
        nodes: list[int] = []
        endpoints: list[int] = []
        for row in chosen:
            for rows, cells in self._find(row, row + 1):
                nodes += map(int, rows.nodes[cells])
                endpoints += map(int, rows.endpoints[cells])
        return Block(0, len(chosen), nodes, endpoints)

    def label(self, row: int) -> str:
        """Return the label of a row without quotes."""
        number = self._part_of(row)
        return self.scan(number).labels.text(row - self.parts[number].first)

    def _part_of(self, row: int) -> int:
        return bisect_right(self.parts, row, key=lambda part: part.first) - 1

    def _find(self, start: int, stop: int) -> Iterator[tuple[Rows, slice]]:
        """Yield the parts that hold the rows, and the slice of the rows' numbers in each."""
        width = len(self.zones)
        while start < stop:
            number = self._part_of(start)
            first, length = self.parts[number][:2]
            until = min(stop, first + length)
            yield self.scan(number), slice((start - first) * width, (until - first) * width)
            start = until


def open_inputs(
    file: Path | bytes,
    *,
    name: str = "",
    kept_bytes: int = KEPT_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Callable[[int, int], object] | None = None,
) -> CsvInputs | RowError:
    """Return the inputs in a file or in its contents, or the error in its header.

    Raises OSError when the file cannot be read. `progress` is called with the bytes scanned so far
    and the size of the file.
    """
    total = len(file) if isinstance(file, bytes) else file.stat().st_size
    with _open(file) as opened:
        header = read_header(opened)
        if isinstance(header, RowError):
            return header
        behind_header = opened.tell()

        def read_text(offset: int, size: int) -> bytes:
            with _open(file) as again:
                again.seek(behind_header + offset)
                return again.read(size)

        inputs = CsvInputs(
            name or (file.name if isinstance(file, Path) else "rows"),
            header,
            read_text,
            compiled=is_available() and total >= _FEW_BYTES,
            kept_bytes=kept_bytes,
        )
        for chunk, rows in _scan_ahead(read_chunks(opened, size=chunk_bytes), header, inputs):
            inputs.add(chunk, rows)
            if progress is not None:
                progress(behind_header + chunk.offset + len(chunk.data), total)
    return inputs


def _open(file: Path | bytes) -> BinaryIO:
    return BytesIO(file) if isinstance(file, bytes) else file.open("rb")


def _scan_ahead(
    chunks: Iterator[Chunk], header: Header, inputs: CsvInputs
) -> Iterator[tuple[Chunk, Rows]]:
    """Yield each chunk with its rows, in order, while threads work a few chunks ahead."""
    if not inputs.compiled:
        for chunk in chunks:
            yield chunk, scan_chunk(chunk, header, compiled=False)
        return
    pending: deque[tuple[Chunk, Future[Rows]]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for chunk in chunks:
            pending.append((chunk, pool.submit(scan_chunk, chunk, header, compiled=True)))
            if len(pending) > 2 * _THREADS:
                first, future = pending.popleft()
                yield first, future.result()
        for first, future in pending:
            yield first, future.result()


def _join(sequences: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return sequences of numbers as one, without a copy when there is only one."""
    if len(sequences) == 1:
        return sequences[0]
    joined: list[int] = []
    for sequence in sequences:
        joined += sequence.tolist() if hasattr(sequence, "tolist") else sequence
    return joined
