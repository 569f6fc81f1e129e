"""Demand traces from CSV: what is read, what is refused and where, and fixed steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.cli.options import parse_duration
from keepclose.simulate.csv.demand import MAX_DEMAND_ROWS, DemandRows, read_demand_rows, resample


def read(text: str | bytes) -> DemandRows:
    """Return the rows of a file."""
    data = text.encode() if isinstance(text, str) else text
    return read_demand_rows(data, parse_duration=parse_duration)


def test_rows_hold_until_the_next_one() -> None:
    """Times are seconds or durations, and each step has the rates of the row before it."""
    rows = read('\ufefftime,east,"west"\r\n10,1,2\n\n 1m ,3.5,"0"\n1m20s,1e2,.5\n')
    assert rows == DemandRows(("east", "west"), (10.0, 60.0, 80.0), ((1, 2), (3.5, 0), (100, 0.5)))
    assert rows.duration_s == 90
    trace = resample(rows, name="mine", step_s=20)
    assert [tuple(step.rates.values()) for step in trace.steps] == [(1, 2)] * 3 + [(3.5, 0)]
    longer = resample(rows, name="mine", step_s=25, duration_s=200)
    assert [step.rates["east"] for step in longer.steps] == [1, 1, 3.5] + [100] * 5


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", (1, 1, "the file is empty"), id="nothing"),
        pytest.param("\n0,1,2\n", (1, 1, "the first line is empty"), id="no header"),
        pytest.param("name,a,b\n", (1, 1, 'expected the column "time" first'), id="another column"),
        pytest.param("time,a\n", (1, 1, "the header names 1 zones, not 2 to 12"), id="a zone"),
        pytest.param(f"time{',z' * 13}\n", (1, 1, "the header names 13 zones"), id="many zones"),
        pytest.param("time,a,a\n", (1, 8, 'zone "a" has two columns'), id="twice"),
        pytest.param("time,a,\n", (1, 8, "zone 2 has no name"), id="no name"),
        pytest.param('time,a,"b,c"\n', (1, 8, 'zone "b,c" is no value of a label'), id="a comma"),
        pytest.param("time,a,b\n", (2, 1, "there are no rows"), id="no rows"),
        pytest.param("time,a,b\n0,1,1\n", (2, 1, "there is one row"), id="a row"),
        pytest.param("time,a,b\n0,0,0\n9,0,0\n", (2, 2, "no zone ever sends"), id="no demand"),
        pytest.param("time,a,b\n0,1,1\nx,1,1\n", (3, 1, '"x" is no time'), id="no time"),
        pytest.param("time,a,b\n0,1,1\n-1,1,1\n", (3, 1, '"-1" is no time'), id="before"),
        pytest.param("time,a,b\n5,1,1\n5,1,1\n", (3, 1, "its time is not after"), id="again"),
        pytest.param("time,a,b\n0,1,1\n5,1\n", (3, 1, "the row has 1 rates for 2"), id="few"),
        pytest.param("time,a,b\n0,1,1\n5,1,1,1\n", (3, 1, "the row has 3 rates for 2"), id="more"),
        pytest.param("time,a,b\n0,1,1\n5,1,\n", (3, 5, 'zone b: "" is no rate'), id="empty"),
        pytest.param("time,a,b\n0,1,1\n5,-1,1\n", (3, 3, 'zone a: "-1" is no'), id="negative"),
        pytest.param("time,a,b\n0,1,1\n5,nan,1\n", (3, 3, 'zone a: "nan" is no'), id="nan"),
        pytest.param("time,a,b\n0,1,1\n5,1e13,1\n", (3, 3, 'zone a: "1e13" is no'), id="large"),
        pytest.param('time,a,b\n0,1,1\n5,"1,1\n', (3, 1, "the quotes do not match"), id="quotes"),
        pytest.param(b"time,a,b\n0,1,1\n\xff,1,1\n", (3, 1, "the file is no text"), id="bytes"),
    ],
)
def test_errors_have_a_place_and_a_fix(text: str | bytes, want: tuple[int, int, str]) -> None:
    """The first error names line and column, counted from 1, and says what to do."""
    rows = read(text)
    line, column, message = want
    error = rows.errors[0]
    assert (error.line, error.column) == (line, column)
    assert error.text.startswith(message)
    assert error.fix
    assert rows.bad >= 1


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(f"{'t' * 9999},a,b\n", f'got "{"t" * 63}"', id="a header"),
        pytest.param(f"time,a,{'b' * 9999}\n", f'zone "{"b" * 63}" is no', id="a zone"),
        pytest.param(f"time,a,b\n{'0' * 9999},1,1\n", f'"{"0" * 40}" is no time', id="a time"),
        pytest.param(f"time,a,b\n0,{'9' * 999},1\n", f'"{"9" * 40}" is no rate', id="a rate"),
        pytest.param(
            f"time,a,b\n{'x' * 131_073},1,1\n",
            "a field has more than 131,072 characters",
            id="a field beyond what is read",
        ),
    ],
)
def test_long_values_are_cut_in_errors(text: str, want: str) -> None:
    """An error is short, however long the value is."""
    error = read(text).errors[0]
    assert want in error.text
    assert len(error.text) + len(error.subject) < 200


@pytest.mark.parametrize("blank", [",,", '"","",""', " , ,\t", '""', "", "\r"])
def test_blank_records_are_no_rows(blank: str) -> None:
    """They count neither as bad nor as rows, wherever they are."""
    rows = read(f"time,a,b\n{blank}\n0,1,2\n{blank}\n5,3,4\n{blank}\n")
    assert (rows.times, rows.rates, rows.bad) == ((0.0, 5.0), ((1.0, 2.0), (3.0, 4.0)), 0)


def test_many_bad_rows_are_counted() -> None:
    """Ten are described; good rows between them do not matter."""
    rows = read("time,a,b\n" + "".join(f"{n},{'x' if n % 2 else 1},1\n" for n in range(60)))
    assert (rows.bad, len(rows.errors)) == (30, 10)
    assert [error.line for error in rows.errors] == list(range(3, 23, 2))


def test_a_file_has_a_last_row() -> None:
    """Beyond the limit of rows a file is refused, with the line."""
    rows = "".join(f"{number},1,1\n" for number in range(MAX_DEMAND_ROWS + 1))
    (error,) = read(f"time,a,b\n{rows}").errors
    assert error.line == MAX_DEMAND_ROWS + 2
    assert error.text == f"the file has more than {MAX_DEMAND_ROWS:,} rows"


@given(st.binary(max_size=200) | st.text(alphabet='time,ab01.5ms"\n\r -x', max_size=120))
@settings(max_examples=300, deadline=None)
def test_nothing_raises(text: bytes | str) -> None:
    """Whatever a file holds, there are errors or rows that can be played."""
    data = b"time,a,b\n" + (text.encode() if isinstance(text, str) else text)
    rows = read(data)
    if rows.errors:
        assert rows.bad >= len(rows.errors)
        return
    assert len(rows.times) == len(rows.rates) >= 2
    assert all(after > before for before, after in pairwise(rows.times))
    trace = resample(rows, name="x", step_s=rows.duration_s / 7)
    assert all(len(step.rates) == len(rows.zones) for step in trace.steps)
