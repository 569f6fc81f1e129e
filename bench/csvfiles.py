"""CSV in to CSV out, one million rows, against the Go tool of KEP-2004 on the same kind of file.

The clock runs from the path of the input to the closed output, in a process that has its compiled
code loaded; how long the whole command takes, interpreter and loading included, is printed too.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keepclose.simulate.algorithms import PUBLISHED, find_algorithm
from keepclose.simulate.csv.inputs import open_inputs
from keepclose.simulate.csv.outputs import write_results
from keepclose.simulate.csv.rows import RowError
from keepclose.simulate.datasets import Sample, open_dataset

ROWS = 1_000_000
ZONES = 3
RUNS = 4
MIN_RATIO = 30

# Measured for the Go tool, CSV to CSV over a million rows of the large data set, rows/s, best run.
GO_RATES = {
    "original": 55_592,
    "local": 22_914,
    "local-shared": 15_498,
    "local-weighted": 25_456,
    "local-opt": 25_602,
    "shared-global": 30_947,
    "shared-multizone": 30_231,
}


def write_inputs(path: Path) -> None:
    """Write a million rows of the large data set as the Go tool's input."""
    dataset = Sample(open_dataset("kep2004-large"), rows=ROWS, seed=1)
    with path.open("w", newline="") as file:
        file.write("name,zone1,zone2,zone3\r\n")
        row = 0
        for block in dataset.blocks(1 << 16):
            cells = [f"{n} {e}" for n, e in zip(block.nodes, block.endpoints, strict=True)]
            for place in range(0, len(cells), ZONES):
                line = ",".join(cells[place : place + ZONES])
                file.write(f'"{dataset.label(row)}",{line}\r\n')
                row += 1


def run_once(source: Path, name: str, target: Path) -> float:
    """Return the seconds from the input's path to the closed output."""
    start = time.perf_counter()
    inputs = open_inputs(source, name=source.name)
    if isinstance(inputs, RowError):
        raise SystemExit(str(inputs))
    with target.open("wb") as file:
        write_results(inputs, [(find_algorithm(name), file)])
    return time.perf_counter() - start


def main() -> int:
    """Print all figures; return 1 when a limit was missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.csv", Path(folder) / "out.csv"
        write_inputs(source)
        for name in PUBLISHED:
            seconds = min(run_once(source, name, target) for _ in range(RUNS))
            ratio = ROWS / seconds / GO_RATES[name]
            kept = ratio >= MIN_RATIO
            missed += not kept
            start = time.perf_counter()
            subprocess.run(
                [
                    *(Path(sys.executable).parent / "keepclose", "simulate", "--input", source),
                    *("--algorithm", name, "--output", target),
                ],
                check=True,
                capture_output=True,
            )
            command = time.perf_counter() - start
            print(
                f"{name:<17} {ROWS / seconds / 1e6:5.2f} M rows/s   {ratio:4.0f}x Go "
                f"(limit {MIN_RATIO}x) {'ok' if kept else 'MISSED'}   "
                f"whole command {command:4.1f} s, {ROWS / command / GO_RATES[name]:.0f}x"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
