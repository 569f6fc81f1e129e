"""CSV files of the reference simulator: reading, what is wrong with them, and writing."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.simulate.csv.files import (
    RESULT_HEADER,
    SHOWN_ERRORS,
    Labels,
    Rows,
    format_results,
    make_labels,
    read_chunks,
    read_header,
    scan_chunk,
)
from keepclose.simulate.csv.rows import Header, RowError

Read = list[tuple[str, list[int], list[int]]]


def read(text: str, *, size: int = 1 << 20) -> tuple[Read, list[RowError], int]:
    """Return the rows of a file by label, nodes and endpoints, its flaws, and the bad rows."""
    file = io.BytesIO(text.encode())
    header = read_header(file)
    assert isinstance(header, Header), header
    found: Read = []
    flaws: list[RowError] = []
    bad = 0
    for chunk in read_chunks(file, size=size):
        rows = scan_chunk(chunk, header, compiled=False)
        found += _rows_of(rows, len(header.zones))
        flaws += rows.flaws
        bad += rows.bad
    return found, flaws, bad


def _rows_of(rows: Rows, width: int) -> Read:
    nodes, endpoints = ([int(n) for n in part] for part in (rows.nodes, rows.endpoints))
    cuts = [slice(row * width, (row + 1) * width) for row in range(rows.rows)]
    return [(rows.labels.text(row), nodes[cut], endpoints[cut]) for row, cut in enumerate(cuts)]


def test_rows_are_filed_by_the_names_of_zones() -> None:
    """The order is that of the names as bytes, not that of the columns: zone10 is before zone2."""
    rows, flaws, bad = read("name,zone2,zone10,zone1\nx,1 2,3 4,5 6\n")
    assert (rows, flaws, bad) == ([("x", [5, 3, 1], [6, 4, 2])], [], 0)


@pytest.mark.parametrize(
    ("line", "want"),
    [
        pytest.param("x,1 2,3 4", ("x", [1, 3], [2, 4]), id="no line break at the end"),
        pytest.param("x,1 2,3 4\r\n", ("x", [1, 3], [2, 4]), id="line break of DOS"),
        pytest.param('"0-(1, 2)",1 2,3 4\n', ("0-(1, 2)", [1, 3], [2, 4]), id="quoted label"),
        pytest.param('"a ""b""",1 2,3 4\n', ('a "b"', [1, 3], [2, 4]), id="quotes in a label"),
        pytest.param('"a\nb",1 2,3 4\n', ("a\nb", [1, 3], [2, 4]), id="line break in a label"),
        pytest.param(",1 2,3 4\n", ("", [1, 3], [2, 4]), id="empty label"),
        pytest.param('x, 1  2 ,"3\t4"\n', ("x", [1, 3], [2, 4]), id="blanks and quoted cells"),
        pytest.param("x,+1 02,3 4\n", ("x", [1, 3], [2, 4]), id="sign and leading zero"),
        pytest.param("\n\r\nx,1 2,3 4\n\n", ("x", [1, 3], [2, 4]), id="empty lines around it"),
        pytest.param("é,1 2,3 9999999\n", ("é", [1, 3], [2, 9999999]), id="the largest number"),
    ],
)
def test_forms_of_a_row(line: str, want: tuple[str, list[int], list[int]]) -> None:
    """Everything that CSV allows is read."""
    assert read("name,a,b\n" + line) == ([want], [], 0)


@pytest.mark.parametrize(
    ("line", "want_column", "want_text"),
    [
        pytest.param("x,3,1 1", 3, 'zone a: expected "<nodes> <endpoints>", got "3"', id="one"),
        pytest.param("x,,1 1", 3, 'zone a: expected "<nodes> <endpoints>", got ""', id="none"),
        pytest.param(
            "x,1 2 3,1 1", 3, 'zone a: expected "<nodes> <endpoints>", got "1 2 3"', id="three"
        ),
        pytest.param(
            "é,1 1,1 x",
            7,
            'zone b: the number of endpoints is no whole number: "x"',
            id="no number, columns count characters",
        ),
        pytest.param(
            "x,1.5 2,1 1", 3, 'zone a: the number of nodes is no whole number: "1.5"', id="fraction"
        ),
        pytest.param("x,-1 2,1 1", 3, "zone a: the number of nodes is negative: -1", id="negative"),
        pytest.param(
            "x,1 -2,1 1", 3, "zone a: the number of endpoints is negative: -2", id="negative second"
        ),
        pytest.param(
            "x,1 10000000,1 1",
            3,
            "zone a: the number of endpoints is too large: 10000000",
            id="too large",
        ),
        pytest.param("x,1 1", 6, "the row ends after 1 of 2 zones", id="a column too few"),
        pytest.param("x", 2, "the row ends after 0 of 2 zones", id="only a label"),
        pytest.param("x,1 1,2 2,3 3", 11, "the row has more cells than its 2 zones", id="too many"),
        pytest.param("x,0 5,0 6", 3, "no zone has a node, so there is no traffic", id="no nodes"),
        pytest.param('x"y,1 1,2 2', 1, "the quotes do not match", id="quote within a field"),
        pytest.param('"x"y,1 1,2 2', 1, "the quotes do not match", id="text behind the quotes"),
        pytest.param(
            'x,"1 1,2 2', 3, 'zone a: expected "<nodes> <endpoints>", got', id="cell left open"
        ),
    ],
)
def test_a_bad_row_is_told_with_its_place(line: str, want_column: int, want_text: str) -> None:
    """Line, column and reason are named, and the rows around are read all the same."""
    rows, flaws, bad = read(f"name,a,b\nbefore,1 1,2 2\n{line}\nafter,3 3,4 4\n")
    assert [row[0] for row in rows] == ["before", "after"]
    assert bad == 1
    (flaw,) = flaws
    assert (flaw.line, flaw.column) == (3, want_column)
    assert flaw.text.startswith(want_text)
    assert flaw.fix


def test_a_row_with_a_label_of_two_lines_is_told_by_the_line_of_its_flaw() -> None:
    """The column counts from the beginning of that line, and the label is the whole one."""
    _, (flaw,), _ = read('name,a\n"x\ny",1 z\n')
    assert (flaw.line, flaw.column, flaw.subject) == (3, 4, "x\ny")


def test_a_quote_left_open_costs_one_row() -> None:
    """The rows behind it are read, although a reader that trusts quotes would swallow them."""
    rows, (flaw,), bad = read('name,a\n"x,1 1\ny,2 2\n"z",3 3\n')
    assert [row[0] for row in rows] == ["y", "z"]
    assert (flaw.line, flaw.column, flaw.subject, bad) == (2, 1, '"x', 1)


def test_a_quote_left_open_does_not_hold_up_a_large_file() -> None:
    """Chunks are cut at some line break then, and every other row is still found."""
    lines = [f"r{number},1 {number}\n" for number in range(60)]
    lines[7] = '"r7,1 1\n'
    file = io.BytesIO("".join(["name,a\n", *lines]).encode())
    header = read_header(file)
    assert isinstance(header, Header)
    chunks = list(read_chunks(file, size=50, longest=100))
    assert len(chunks) > 4
    rows = [scan_chunk(chunk, header, compiled=False) for chunk in chunks]
    assert [n for one in rows for n in one.endpoints] == [n for n in range(60) if n != 7]
    assert [(flaw.line, flaw.text) for one in rows for flaw in one.flaws] == [
        (9, "the quotes do not match")
    ]


def test_only_the_first_flaws_are_described() -> None:
    """A file that is wrong all over is counted, not recited."""
    rows, flaws, bad = read("name,a\n" + "x,1\n" * 50)
    assert (rows, len(flaws), bad) == ([], SHOWN_ERRORS, 50)
    assert [flaw.line for flaw in flaws] == list(range(2, SHOWN_ERRORS + 2))


@pytest.mark.parametrize(
    ("text", "want_column", "want_text"),
    [
        pytest.param("", 1, "the file is empty, where the header should be", id="empty file"),
        pytest.param(
            "\nx,1 1\n", 1, "the first line is empty, where the header should be", id="empty line"
        ),
        pytest.param("name\nx\n", 5, "the header names no zone", id="no zones"),
        pytest.param("x,1 1,2 2\n", 1, "the header is missing, the first line is a row", id="row"),
        pytest.param(
            "zone1,zone2\n", 1, 'expected the column "name" first, got "zone1"', id="no name"
        ),
        pytest.param("name,a,b,a\n", 10, 'zone "a" has two columns', id="a zone twice"),
        pytest.param('name,"a",a\n', 10, 'zone "a" has two columns', id="quoted, twice"),
        pytest.param("name,a,,b\n", 8, "zone 2 has no name", id="a zone without name"),
        pytest.param('name,"a\n', 1, "the header is no CSV in UTF-8", id="quote left open"),
    ],
)
def test_a_bad_header_is_told_with_its_place(text: str, want_column: int, want_text: str) -> None:
    """What the first line lacks is said, and how it should look."""
    flaw = read_header(io.BytesIO(text.encode()))
    assert isinstance(flaw, RowError)
    assert (flaw.line, flaw.column, flaw.text, flaw.subject) == (1, want_column, want_text, "")
    assert flaw.fix


def test_a_header_in_another_encoding_is_told() -> None:
    """Bytes that are no UTF-8 are no reason to fail."""
    flaw = read_header(io.BytesIO(b"name,z\xfcrich\n"))
    assert isinstance(flaw, RowError)
    assert flaw.text == "the header is no CSV in UTF-8"


def test_a_byte_order_mark_is_passed_over() -> None:
    """Files saved by spreadsheets begin with one."""
    assert read_header(io.BytesIO(b"\xef\xbb\xbfName,b,a\r\n")) == Header(("b", "a"), (1, 0))


LABELS = st.text(st.sampled_from('ab,"\n é'), max_size=6)
COUNTS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 120)), min_size=2, max_size=2)


@given(st.lists(st.tuples(LABELS, COUNTS), max_size=12), st.integers(1, 64))
@settings(deadline=None, max_examples=100)
def test_the_cut_into_chunks_does_not_matter(
    rows: list[tuple[str, list[tuple[int, int]]]], size: int
) -> None:
    """Whatever the size of chunks, the rows are those that Python's own reader finds."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["name", "a", "b"])
    for label, counts in rows:
        writer.writerow([label, *(f"{nodes} {endpoints}" for nodes, endpoints in counts)])
    want = [(label, [n for n, _ in counts], [e for _, e in counts]) for label, counts in rows]
    assert read(text.getvalue(), size=size) == (want, [], 0)


def test_machine_code_reads_alike() -> None:
    """Compiled or not, the scanner finds the same rows, labels and flaws."""
    pytest.importorskip("numba")
    file = io.BytesIO(b'name,b,a\n"a, b",1 2,3 4\r\nbad,1 2,x\n\n"\n",5 6,"7 8"\nlast,0 1,0 2\n')
    header = read_header(file)
    assert isinstance(header, Header)
    (chunk,) = read_chunks(file)
    plain = scan_chunk(chunk, header, compiled=False)
    fast = scan_chunk(chunk, header, compiled=True)
    assert [row[0] for row in _rows_of(plain, 2)] == ["a, b", "\n"]
    assert _rows_of(fast, 2) == _rows_of(plain, 2)
    assert (fast.rows, fast.bad, fast.flaws) == (plain.rows, plain.bad, plain.flaws)
    assert [flaw.line for flaw in fast.flaws] == [3, 7]


FIGURES = [100.0, 100.0, 100.0, 100.0, 12.5, 0.25, 0.5]
PRINTED = "100.0000,100.0000,100.0000,100.0000,12.5000%,0.2500%,0.5000"


def test_results_have_the_form_of_the_reference() -> None:
    """A header, labels as they stood in the file, four decimals and percent signs."""
    labels = make_labels(["0-(1, 2, 3)", 'a "b"', " c", "d"])
    lines = format_results(
        4, labels=labels, figures=FIGURES * 4, valid=[1, 1, 0, 1], compiled=False
    )
    want_header = (
        "input name,score,in-zone-traffic score,deviation score,slice score,max deviation,"
        "mean deviation,SD of deviation"
    )
    assert (RESULT_HEADER + lines).decode().splitlines() == [
        want_header,
        f'"0-(1, 2, 3)",{PRINTED}',
        f'"a ""b""",{PRINTED}',
        '" c",invalid,invalid,invalid,invalid,invalid,invalid,invalid',
        f"d,{PRINTED}",
    ]


def test_machine_code_writes_alike() -> None:
    """Compiled or not, some rows out of many have the same text."""
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("numba")
    labels = make_labels(["x", "yy", "z"]).part(1, 2)
    figures = numpy.array(FIGURES * 2)
    valid = numpy.array([1, 0])
    fast = format_results(2, labels=labels, figures=figures, valid=valid, compiled=True)
    plain = format_results(2, labels=labels, figures=FIGURES * 2, valid=[1, 0], compiled=False)
    assert bytes(fast) == bytes(plain)
    assert bytes(plain).startswith(f"yy,{PRINTED}\nz,invalid".encode())


def test_no_rows_give_no_lines() -> None:
    """An empty file of inputs has an empty file of results."""
    assert read("name,a\n") == ([], [], 0)
    none = format_results(0, labels=Labels(b"", []), figures=[], valid=[], compiled=False)
    assert bytes(none) == b""
