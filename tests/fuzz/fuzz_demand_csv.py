"""CSV files of demand: nothing raises, and what is accepted can be played in steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fuzzbounds import require

from keepclose.cli.options import parse_duration
from keepclose.simulate.csv.demand import read_demand_rows, resample


def seeds() -> Iterator[bytes]:
    """Yield files with good and bad rows."""
    yield b"time,a,b\n0,1,2\n60,3,4\n"
    yield b'\xef\xbb\xbfTime,"a",b\r\n1m30s,.5,1e3\r\n\r\n2m,0,"1"\n'
    yield b"time,a,b\n0,1,x\n-1,1,1\n5,1\n5,1,1,1\n"
    yield b'time,a,b\n0,"1,2\n1,1,1\n'
    yield b'time,a,"b,c"\n0,1,1\n'
    yield b"time,a,b\n0,\xff,1\n"
    yield b"time,a,b\n0,1e999,1\n1,9e11,nan\n"


def check(data: bytes) -> None:
    """Read the bytes as a file, and play it in a few steps."""
    rows = read_demand_rows(data, parse_duration=parse_duration)
    if rows.errors:
        require(0 < len(rows.errors) <= rows.bad, "fewer bad rows than errors")
        require(all(error.line >= 1 and error.column >= 1 for error in rows.errors), "a place")
        return
    require(len(rows.times) == len(rows.rates) >= 2, "less than two rows are accepted")
    duration = rows.duration_s
    require(math.isfinite(duration) and duration > 0.0, "the rows last no time")
    trace = resample(rows, name="file", step_s=duration / 5)
    for step in trace.steps:
        total = math.fsum(step.shares.values())
        require(not step.shares or abs(total - 1.0) < 1e-6, "shares do not add up")
