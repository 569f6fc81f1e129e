"""CSV files that are small and ask for much: what they cost grows with their bytes."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from keepclose.simulate.csv.files import MAX_ZONES
from keepclose.simulate.csv.inputs import CsvInputs, open_inputs
from keepclose.simulate.csv.rows import RowError


def _wide_file(zones: int, *, rows: int = 0, empty_lines: int = 0) -> bytes:
    names = ",".join(f"z{number}" for number in range(zones))
    row = "r" + ",1 2" * zones + "\n"
    return f"name,{names}\n{row * rows}{chr(10) * empty_lines}".encode()


def _open(file: bytes) -> CsvInputs:
    inputs = open_inputs(file)
    assert not isinstance(inputs, RowError)
    return inputs


def test_a_header_of_many_zones_takes_time_as_it_is_long() -> None:
    """Four times as many zones are refused in about four times as long, not sixteen times."""

    def cost(zones: int) -> float:
        file = _wide_file(zones)
        started = time.process_time()
        assert isinstance(open_inputs(file), RowError)
        return time.process_time() - started

    few = min(cost(10_000) for _ in range(3))
    assert min(cost(40_000) for _ in range(3)) < 10 * max(few, 0.005)


@pytest.mark.parametrize("rows", [0, 2])
def test_many_zones_and_many_lines_take_no_more_memory_than_rows_need(rows: int) -> None:
    """A file of 1 MB with all zones and 1,000,000 empty lines needs megabytes, not gigabytes."""
    file = _wide_file(MAX_ZONES, rows=rows, empty_lines=1_000_000)
    tracemalloc.start()
    try:
        inputs = _open(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert inputs.rows == rows
    assert peak < 64 << 20


def test_the_shortest_rows_have_room() -> None:
    """Rows of the fewest bytes that a row can have are all read, and bad ones behind them."""
    for zones in (1, 2, 3):
        rows = b"".join(b",0 1" * (zones - 1) + b",1 0\n" for _ in range(50))
        names = b",".join(b"z%d" % number for number in range(zones))
        inputs = _open(b"name," + names + b"\n" + rows + b",1 1" * zones + b",\n" + rows)
        assert inputs.rows == 100
        assert inputs.condition.bad == 1
