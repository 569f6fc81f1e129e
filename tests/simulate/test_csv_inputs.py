"""CSV files as data sets, and results written row by row."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from keepclose.simulate.algorithms import PUBLISHED, find_algorithm
from keepclose.simulate.csv.inputs import CsvInputs, open_inputs
from keepclose.simulate.csv.outputs import write_results
from keepclose.simulate.csv.rows import RowError
from keepclose.simulate.datasets import InMemoryRows
from keepclose.simulate.engine import run_simulation

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "simulator.json").read_text()
)


def make_text(rows: int) -> bytes:
    """Return a file with so many rows, all different."""
    lines = [f"r{n},{n % 7 + 1} {n},{n % 5} {2 * n % 90}\n" for n in range(rows)]
    return b"name,zone2,zone1\n" + "".join(lines).encode()


def opened(text: bytes, *, kept_bytes: int = 1 << 24, chunk_bytes: int = 1 << 20) -> CsvInputs:
    """Return the inputs in a text."""
    inputs = open_inputs(text, kept_bytes=kept_bytes, chunk_bytes=chunk_bytes)
    assert isinstance(inputs, CsvInputs)
    return inputs


@pytest.mark.parametrize("kept_bytes", [1 << 20, 3000, 0], ids=["all kept", "some", "none"])
def test_rows_can_be_read_in_any_order(kept_bytes: int) -> None:
    """Blocks across parts, single rows and labels are found, kept in memory or not."""
    inputs = opened(make_text(500), kept_bytes=kept_bytes, chunk_bytes=700)
    assert (inputs.rows, inputs.zones, len(inputs.parts)) == (500, ("zone1", "zone2"), 12)
    block = inputs.read(130, 310)
    want = [(n % 5, n % 7 + 1) for n in range(130, 310)]
    assert (block.start, block.rows) == (130, 180)
    assert list(block.nodes) == [count for pair in want for count in pair]
    assert list(inputs.read(499, 600).endpoints) == [2 * 499 % 90, 499]
    picked = inputs.pick([499, 0, 70])
    assert (picked.rows, list(picked.endpoints)) == (3, [2 * 499 % 90, 499, 0, 0, 140 % 90, 70])
    assert [inputs.label(row) for row in (499, 0, 250)] == ["r499", "r0", "r250"]


def test_a_file_is_read_like_its_contents(tmp_path: Path) -> None:
    """Rows that were not kept are read from the file again."""
    file = tmp_path / "inputs.csv"
    file.write_bytes(make_text(100))
    seen: list[tuple[int, int]] = []
    inputs = open_inputs(
        file, kept_bytes=0, chunk_bytes=500, progress=lambda done, total: seen.append((done, total))
    )
    assert isinstance(inputs, CsvInputs)
    assert list(inputs.read(0, 100).nodes) == list(opened(make_text(100)).read(0, 100).nodes)
    assert (inputs.name, inputs.label(99)) == ("inputs.csv", "r99")
    size = file.stat().st_size
    assert seen[-1] == (size, size)


def test_bad_rows_are_counted_and_the_first_are_told() -> None:
    """The lines are those of the file, whatever part a row is in."""
    text = make_text(200) + b"x,1\n" * 30 + b"good,1 1,1 1\n"
    inputs = opened(text, chunk_bytes=400)
    assert (inputs.rows, inputs.condition.bad) == (201, 30)
    assert [flaw.line for flaw in inputs.condition.flaws] == list(range(202, 212))
    assert inputs.label(200) == "good"


def test_a_bad_header_is_the_answer() -> None:
    """Without a header no row can be understood."""
    flaw = open_inputs(b"x,1 1\n")
    assert isinstance(flaw, RowError)
    assert flaw.line == 1


def test_a_large_file_is_scanned_by_machine_code() -> None:
    """Compiled and plain scanning give the same rows, in the same order."""
    pytest.importorskip("numba")
    text = make_text(30_000)
    inputs = opened(text, chunk_bytes=1 << 16)
    assert inputs.compiled
    assert inputs.rows == 30_000
    assert [int(n) for n in inputs.read(12_345, 12_347).endpoints] == [
        2 * 12_345 % 90,
        12_345,
        2 * 12_346 % 90,
        12_346,
    ]


def test_results_are_written_while_they_are_summed_up() -> None:
    """The summary is that of the engine, and the text has a line for each row, in order."""
    pytest.importorskip("numba")
    inputs = opened(make_text(25_000), chunk_bytes=1 << 16)
    algorithms = [find_algorithm("local"), find_algorithm("original")]
    files = [io.BytesIO(), io.BytesIO()]
    seen: list[int] = []
    summaries = write_results(
        inputs, list(zip(algorithms, files, strict=True)), progress=seen.append
    )
    assert summaries == run_simulation(inputs, algorithms)
    assert seen[-1] == 25_000
    for file in files:
        lines = file.getvalue().decode().splitlines()
        assert len(lines) == 25_001
        assert [line.split(",")[0] for line in lines[1::8000]] == [
            "r0",
            "r8000",
            "r16000",
            "r24000",
        ]


def test_rows_of_any_data_set_can_be_written() -> None:
    """Labels are quoted where they need to be."""
    rows = InMemoryRows(("a", "b"), [1, 1, 2, 2], [4, 4, 9, 3], labels=["x", "y, z"])
    file = io.BytesIO()
    (summary,) = write_results(rows, [(find_algorithm("original"), file)])
    assert (summary.rows, summary.valid) == (2, 2)
    assert file.getvalue().decode().splitlines()[1:] == [
        "x,77.5000,50.0000,100.0000,100.0000,0.0000%,0.0000%,0.0000",
        '"y, z",77.5000,50.0000,100.0000,100.0000,0.0000%,0.0000%,0.0000',
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_text_is_that_of_the_reference(name: str) -> None:
    """Recorded rows come out as the reference printed them, up to the last digit."""
    told = 0
    for case in VECTORS["algorithms"][name]["cases"]:
        zones = case["zones"]
        if not any(nodes for _, nodes, _ in zones):
            continue
        header = ",".join(zone for zone, _, _ in zones)
        cells = ",".join(f"{nodes} {endpoints}" for _, nodes, endpoints in zones)
        file = io.BytesIO()
        inputs = opened(f"name,{header}\r\n{case['note'].replace(',', ';')},{cells}\r\n".encode())
        write_results(inputs, [(find_algorithm(name), file)])
        label, *columns = file.getvalue().decode().splitlines()[1].split(",")
        assert label == case["note"].replace(",", ";")
        want = case["csv"].split(",")
        assert [column.endswith("%") for column in columns] == [one.endswith("%") for one in want]
        if case["valid"]:
            printed = [float(column.rstrip("%")) for column in columns]
            assert printed == pytest.approx(case["expected"], abs=1.01e-4)
        else:
            assert columns == ["invalid"] * 7
        told += 1
    assert told >= 15
