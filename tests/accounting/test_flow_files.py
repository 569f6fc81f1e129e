"""Flow tables as CSV and JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.accounting.flow_files import (
    FlowFileError,
    read_csv,
    read_csv_tables,
    read_json_lines,
    read_json_tables,
    write_csv,
    write_json_lines,
)
from keepclose.accounting.flow_table import (
    OUTSIDE,
    UNKNOWN,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
)

COLUMNS = "client_zone,endpoint_zone,connections,request_bytes,response_bytes\n"
METADATA = '{"hasBytes":true}\n'
ROW = '{"kind":"service","clientZone":"a","endpointZone":"b",'
Write = Callable[[FlowTable], Iterator[str]]

texts = st.one_of(
    st.sampled_from(["", "shop/web", "zone-a", OUTSIDE, "=1+1", "'quoted", '"a,b"', "-x", "ä"]),
    st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="ᅟᅠ⠀ㅤﾠ"), max_size=20),
)
numbers = st.integers(0, 2**63 - 1)
keys = st.builds(
    FlowKey,
    st.sampled_from(FlowKind),
    *[texts] * 3,
    st.sampled_from(["TCP", "UDP", "132"]),
    *[texts.map(lambda text: text or UNKNOWN)] * 2,
    *[texts] * 4,
)
counts = st.builds(FlowCounts, *[numbers] * 5)
rows = st.dictionaries(keys, counts, min_size=1, max_size=5)


def table_of(flows: dict[FlowKey, FlowCounts], *, has_bytes: bool = True) -> FlowTable:
    """Return a table of an hour."""
    table = FlowTable(start=1_767_225_600.25, end=1_767_229_200.0, has_bytes=has_bytes)
    for key, number in flows.items():
        table.add(key, number)
    return table


@given(rows)
def test_csv_round_trips(flows: dict[FlowKey, FlowCounts]) -> None:
    """A table is the same after CSV, formulas and quotes included."""
    table = table_of(flows)
    copy = read_csv(write_csv(table), name="flows.csv")
    assert (copy.rows, copy.start, copy.end, copy.has_bytes) == (
        table.rows,
        table.start,
        table.end,
        True,
    )


@given(rows, st.booleans())
def test_json_lines_round_trip(flows: dict[FlowKey, FlowCounts], has_bytes: bool) -> None:
    """A table is the same after JSON lines, with its notes."""
    table = table_of(flows, has_bytes=has_bytes)
    table.notes.append("an agent restarted")
    copy = read_json_lines(write_json_lines(table), name="flows.jsonl")
    assert (copy.rows, copy.start, copy.end, copy.has_bytes, copy.notes) == (
        table.rows,
        table.start,
        table.end,
        has_bytes,
        ["an agent restarted"],
    )


def test_csv_of_connections_only_leaves_bytes_empty() -> None:
    """A table without bytes stays one, so that no reader takes them for 0."""
    table = table_of({FlowKey(client_zone="a", endpoint_zone="b"): FlowCounts(7)}, has_bytes=False)
    lines = list(write_csv(table))
    assert lines[1].endswith(",7,0,0,,\n")
    assert not read_csv(lines, name="flows.csv").has_bytes


def test_rows_without_bytes_among_others_are_noted() -> None:
    """One row without bytes makes the bytes of the whole file unknown, and a note says it."""
    table = read_csv([COLUMNS, "a,b,1,,\n", "a,c,1,5,6\n"], name="flows.csv")
    assert not table.has_bytes
    assert table.notes == ["flows.csv: 1 of 2 rows have no bytes"]


@pytest.mark.parametrize("write", [write_csv, write_json_lines])
def test_hidden_characters_are_written_as_escapes(write: Write) -> None:
    """A name that could control a terminal or forge a line is made visible."""
    key = FlowKey(service="web\x1b[2J\nx", client_zone="a", endpoint_zone="b")
    text = "".join(write(table_of({key: FlowCounts(1)})))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 2


def test_no_cell_is_a_formula() -> None:
    """A spreadsheet runs no cell, whatever a Service or zone is named."""
    key = FlowKey(service="=cmd|' /C calc'!A0", client_zone="@a", endpoint_zone="+b")
    line = list(write_csv(table_of({key: FlowCounts(1)})))[1]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in line.split(","))


def test_a_row_may_have_only_zones_and_bytes() -> None:
    """A file written by hand needs no column that it does not know."""
    lines = ["\ufeffclient_zone,endpoint_zone,service,request_bytes,response_bytes\r\n"]
    table = read_csv([*lines, "a,b,web,1,2\r\n", "\n", "a,,,3,4\r\n"], name="flows.csv")
    assert table.rows == {
        FlowKey(service="web", client_zone="a", endpoint_zone="b"): FlowCounts(0, 0, 0, 1, 2),
        FlowKey(FlowKind.UNKNOWN, client_zone="a"): FlowCounts(0, 0, 0, 3, 4),
    }


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", "f: it is empty", id="empty"),
        pytest.param("client_zone\n", "f, line 1: the column endpoint_zone", id="no column"),
        pytest.param("client_zone,zone\n", "f, line 1: no column is named 'zone'", id="unknown"),
        pytest.param("client_zone,client_zone,endpoint_zone\n", "line 1: a column is", id="twice"),
        pytest.param(COLUMNS + "a,b,-1,0,0\n", "f, line 2: connections: '-1'", id="negative"),
        pytest.param(COLUMNS + "a,b,NaN,0,0\n", "f, line 2: connections: 'NaN'", id="NaN"),
        pytest.param(COLUMNS + "a,b,1e9,0,0\n", "f, line 2: connections: '1e9'", id="float"),
        pytest.param(COLUMNS + f"a,b,{2**63},0,0\n", "f, line 2: connections:", id="huge"),
        pytest.param(COLUMNS + "a,b,1,5,\n", "response_bytes is empty, but", id="half"),
        pytest.param(COLUMNS + "a,=b,1,5,5\n", "endpoint_zone: '=b' would be", id="formula"),
        pytest.param(COLUMNS + "a,b\x1b,1,5,5\n", "has a character that is not", id="control"),
        pytest.param(COLUMNS + "a,\udcff,1,5,5\n", "has a character that is not", id="not UTF-8"),
        pytest.param(COLUMNS + "\na,b,1\n", "f, line 3: 3 cells for 5 columns", id="cells"),
        pytest.param(COLUMNS + '"a,b,1,5,5\n', "f, line 2: it is no line of CSV", id="quote"),
        pytest.param(COLUMNS + "x" * 20_000, "f, line 2: the line has", id="long"),
        pytest.param(COLUMNS + "x" * 2000 + ",b,1,5,5", "client_zone has more than", id="name"),
        pytest.param("client_zone,endpoint_zone,kind\na,b,x\n", "kind: 'x' is none", id="kind"),
        pytest.param(
            "client_zone,endpoint_zone,start\na,b,2026-01-01\n", "start: '2026-01-01'", id="time"
        ),
    ],
)
def test_what_is_wrong_with_csv_is_named(text: str, want: str) -> None:
    """Each error has the file, the line and the column."""
    with pytest.raises(FlowFileError) as raised:
        read_csv(text.splitlines(keepends=True), name="f")
    assert want in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        pytest.param([], "f: it is empty", id="empty"),
        pytest.param(["{}"], "f, line 1: Object missing required field `hasBytes`", id="first"),
        pytest.param([ROW + '"port":"1"}'], "f, line 1: the first line must be", id="no metadata"),
        pytest.param([METADATA, "[]"], "f, line 2: Expected `object`", id="array"),
        pytest.param([METADATA, "{"], "f, line 2: Input data was truncated", id="cut"),
        pytest.param([METADATA, ROW + '"connections":-1}'], "f, line 2: Expected", id="negative"),
        pytest.param([METADATA, ROW + '"connections":1e99}'], "f, line 2: Exp", id="huge"),
        pytest.param([METADATA, ROW + '"refused":"1"}'], "f, line 2: Expected `int`", id="text"),
        pytest.param([METADATA, ROW + '"colour":1}'], "unknown field `colour`", id="unknown"),
        pytest.param([METADATA, ROW + '"port":"\\u001b"}'], "port: '\\x1b' has", id="control"),
        pytest.param([METADATA, ROW.replace("service", "x")[:-1] + "}"], "kind: 'x'", id="kind"),
        pytest.param(['{"hasBytes":true,"start":"now"}'], "start: 'now' is no time", id="time"),
        pytest.param([METADATA, "[" * 5000], "f, line 2: ", id="deep"),
    ],
)
def test_what_is_wrong_with_json_lines_is_named(lines: Iterable[str], want: str) -> None:
    """Each error has the file, the line and the field."""
    with pytest.raises(FlowFileError) as raised:
        read_json_lines(lines, name="f")
    assert want in str(raised.value)


def test_outputs_of_agents_may_follow_each_other() -> None:
    """`curl` of two agents into one file is the sum of both."""
    table = table_of({FlowKey(client_zone="a", endpoint_zone="b"): FlowCounts(1, 0, 0, 10, 20)})
    lines = [*write_json_lines(table), *write_json_lines(table)]
    both = read_json_lines(lines, name="flows.jsonl")
    assert both.total() == FlowCounts(2, 0, 0, 20, 40)
    assert (both.start, both.end) == (table.start, table.end)


@pytest.mark.parametrize(
    ("write", "read"), [(write_csv, read_csv_tables), (write_json_lines, read_json_tables)]
)
def test_a_file_keeps_the_periods_of_its_sources(
    write: Callable[..., Iterator[str]], read: Callable[..., list[FlowTable]]
) -> None:
    """An agent of a day and one of an hour stay apart, so that their rates can be added."""
    tables = []
    for start in (1_767_139_200.0, 1_767_222_000.0):
        tables.append(FlowTable(start=start, end=1_767_225_600.0))
        tables[-1].add(FlowKey(client_zone="a", endpoint_zone="b"), FlowCounts(1, 0, 0, 10, 20))
    copies = read(write(*tables), name="f")
    assert [(copy.seconds, copy.total()) for copy in copies] == [
        (86_400.0, FlowCounts(1, 0, 0, 10, 20)),
        (3600.0, FlowCounts(1, 0, 0, 10, 20)),
    ]


def test_a_period_for_each_row_is_one_period() -> None:
    """Thousands of periods are times of connections, not of sources."""
    lines = ["client_zone,endpoint_zone,request_bytes,response_bytes,start,end\n"]
    lines += [
        f"a,b,1,1,2026-01-01T{n // 60:02}:{n % 60:02}:00Z,2026-01-02T00:00:00Z\n"
        for n in range(1200)
    ]
    (table,) = read_csv_tables(lines, name="f")
    assert (table.total().request_bytes, table.seconds) == (1200, 86_400.0)
    assert table.notes == ["f: rows of more than 1,000 periods count as of one"]


@pytest.mark.parametrize(
    ("read", "write"),
    [
        pytest.param(read_csv_tables, write_csv, id="CSV"),
        pytest.param(read_json_tables, write_json_lines, id="JSON lines"),
    ],
)
def test_comments_may_stand_above_flows(read: Any, write: Any) -> None:
    """Lines that begin with # are left out above the first line, and nowhere else."""
    table = FlowTable(start=1_767_225_600.0, end=1_767_229_200.0)
    table.add(FlowKey(namespace="shop", service="web"), FlowCounts(1, 0, 0, 2, 3))
    lines = [*write(table)]
    (again,) = read(["# of January\n", "\n", *lines], name="flows")
    assert again.rows == table.rows
    with pytest.raises(FlowFileError, match="line 3"):
        read([*lines, "# of February\n"], name="flows")
