"""Inputs of simulate that would take hours or all memory: refused at once, with the line."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from keepclose.simulate.csv.files import MAX_HEADER, MAX_RECORD, MAX_ZONES

KEEPCLOSE = [sys.executable, "-m", "keepclose"]
SECONDS = 120


def simulate(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command within a gigabyte and a half of memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (3 << 29, 3 << 29))

    return subprocess.run(
        [*KEEPCLOSE, "simulate", "--algorithm", "local", "--input", str(file), *options],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
        preexec_fn=limit,
    )


def write_zones(file: Path, zones: int) -> Path:
    """Write one row for so many zones."""
    names = ",".join(f"z{number}" for number in range(zones))
    file.write_text(f"name,{names}\nrow,{','.join(['1 2'] * zones)}\n")
    return file


@pytest.mark.parametrize("zones", [MAX_ZONES + 1, 3000, 100_000])
def test_more_zones_than_any_cluster_has_are_refused(tmp_path: Path, zones: int) -> None:
    """Thousands of zones end with the limit and a fix, and not after minutes."""
    done = simulate(write_zones(tmp_path / "zones.csv", zones))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the header ")
    assert f"more than {MAX_ZONES}" in done.stderr
    assert f"in {tmp_path}/zones.csv, line 1" in done.stderr


def test_as_many_zones_as_allowed_are_simulated(tmp_path: Path) -> None:
    """The limit itself works, with every algorithm."""
    done = simulate(write_zones(tmp_path / "zones.csv", MAX_ZONES), "--algorithm", "all")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_header_without_an_end_is_refused(tmp_path: Path) -> None:
    """A file of gigabytes without a line end is not read into memory to find the header."""
    file = tmp_path / "header.csv"
    file.write_bytes(b"name,zone-a")
    os.truncate(file, 20 << 30)
    done = simulate(file)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: the header has more than {MAX_HEADER:,} bytes" in done.stderr


def test_a_row_without_an_end_is_refused(tmp_path: Path) -> None:
    """A row of gigabytes ends the reading at the limit for a row, and names its line."""
    file = tmp_path / "row.csv"
    file.write_bytes(b"name,zone-a\nr,1 1\nx")
    os.truncate(file, 20 << 30)
    done = simulate(file)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"line 3 has more than {MAX_RECORD:,} bytes" in done.stderr


@pytest.mark.parametrize(
    "cell",
    [
        f"{'9' * 400} 1",
        f"1 {'9' * 100_000}",
        "nan 1",
        "inf 1",
        "-0 1",
        "-1 5",
        "1 -5",
        "1e308 1",
        "1.5 1",
        "0x10 1",
        "٣ ٤",
        "1 1 1",
        '"1\n1"',
        "1_000 1",
    ],
)
def test_numbers_that_are_no_counts_are_named(tmp_path: Path, cell: str) -> None:
    """A cell that is not two whole numbers within the limits is named with its line."""
    file = tmp_path / "cells.csv"
    file.write_text(f"name,zone-a,zone-b\nfirst,1 1,2 2\nrow,{cell},1 1\n")
    done = simulate(file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: row row: ")
    assert "line 3" in done.stderr
    assert len(done.stderr) < 10_000


def test_the_largest_counts_are_simulated_without_overflow(tmp_path: Path) -> None:
    """Ten million nodes and endpoints in each zone give finite figures."""
    file = tmp_path / "large.csv"
    file.write_text("name,a,b,c\nrow,9999999 9999999,1 9999999,9999999 1\n")
    done = simulate(file, "--algorithm", "local,balanced,original", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert not any(word in done.stdout.lower() for word in ("nan", "inf,", "infinity"))


@pytest.mark.parametrize("name", ["", "missing/out.csv", "."], ids=["empty", "no folder", "folder"])
def test_an_output_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    """A path that takes no file ends with its name and the reason."""
    file = write_zones(tmp_path / "zones.csv", 2)
    done = simulate(file, "--output", str(tmp_path / name))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Results that find no room end with the file and the reason."""
    file = write_zones(tmp_path / "zones.csv", 2)
    done = simulate(file, "--output", "/dev/full")
    assert done.returncode == 2
    assert "/dev/full cannot be written: No space left on device" in done.stderr
