"""CSV files of the simulator: nothing raises, and how a file is read in parts changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzbounds import require

from keepclose.simulate.csv.inputs import CsvInputs, open_inputs
from keepclose.simulate.csv.rows import LARGEST, RowError


def seeds() -> Iterator[bytes]:
    """Yield files with good and bad rows."""
    yield b"name,a,b\nx,1 2,3 4\ny,0 0,0 9\n"
    yield b'\xef\xbb\xbfname,b,a\r\n"x,\n""",1 2,"3 4"\r\n\r\nz,1 2\n'
    yield b"name,a\nx,9999999 1\ny,10000000 1\nz, +1\t2 \n"
    yield b'name,a\n"x,1 2\ny,1 2\n'
    yield b"name,a\nx,1 2,3\ny,a b\n,1 1\n"
    yield b"name,\xff\n"
    yield b"name\n"


def check(data: bytes) -> None:
    """Open the bytes as a file, in one part and in small ones."""
    whole = open_inputs(data)
    parts = open_inputs(data, chunk_bytes=7, kept_bytes=0)
    if isinstance(whole, RowError) or isinstance(parts, RowError):
        require(whole == parts, "the header reads differently in parts")
        return
    rows = _rows(whole), _rows(parts)
    # Behind a quote that is not closed any line break may end a record; parts decide which one.
    if b'"' in data and any(map(_may_mismatch, (whole, parts))):
        return
    require(rows[0] == rows[1], "the rows read differently in parts")
    require(whole.condition.bad == parts.condition.bad, "other rows are bad in parts")


def _may_mismatch(inputs: CsvInputs) -> bool:
    """Return whether quotes of a row do not match, as far as rows are told one by one."""
    condition = inputs.condition
    is_cut = condition.bad > len(condition.flaws)
    return is_cut or any("quotes" in flaw.text for flaw in condition.flaws)


def _rows(inputs: CsvInputs) -> list[tuple[str, list[int], list[int]]]:
    found = []
    for row in range(min(inputs.rows, 50)):
        block = inputs.read(row, row + 1)
        nodes, endpoints = list(map(int, block.nodes)), list(map(int, block.endpoints))
        require(
            all(0 <= number <= LARGEST for number in nodes + endpoints), "a number is too large"
        )
        require(any(nodes), "a row without nodes")
        found.append((inputs.label(row), nodes, endpoints))
    return found
