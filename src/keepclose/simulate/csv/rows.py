"""Rows of input from the bytes of a CSV file: a label, then "<nodes> <endpoints>" for each zone.

The scanner runs over raw bytes and keeps offsets instead of texts: labels stay where they are and
are copied unchanged. It never stops at a bad row: it skips the row, records its first error with
the offset, and goes on behind the next line break. Only the errors that are shown get a text, with
the line, the column and a fix. The scanning functions are plain and in the subset of Python that
numba compiles.
"""

from __future__ import annotations

import re
from collections.abc import MutableSequence, Sequence
from typing import Final

import msgspec

BAD_CELL: Final = 1
"""A cell is not two whole numbers within the limits."""
BAD_QUOTES: Final = 2
TOO_FEW: Final = 3
TOO_MANY: Final = 4
LARGEST: Final = 9_999_999
NOTE_WIDTH: Final = 7
"""An error is recorded as code, line, starts of line and row, start and end of the cell, column."""
_NO_NODES: Final = 5
"""No zone of the row has a node, so that there is no traffic at all."""
_NUMBER: Final = re.compile(r"[-+]?[0-9]+")
_CELL_FIX: Final = 'write two whole numbers, such as "3 12": 3 nodes and 12 endpoints'
_SHOWN_CHARACTERS: Final = 80
_SHOWN_WORDS: Final = 4
_TAB: Final = 9
_NEWLINE: Final = 10
_RETURN: Final = 13
_SPACE: Final = 32
_QUOTE: Final = 34
_PLUS: Final = 43
_COMMA: Final = 44
_ZERO: Final = 48


class RowError(msgspec.Struct, frozen=True):
    """An error in a file; lines and columns count from 1, in characters."""

    line: int
    column: int
    text: str
    subject: str = ""
    """The label of the row, "" for the header."""
    fix: str = ""


class Header(msgspec.Struct, frozen=True):
    """The columns of an input; `order[c]` is the index of column c in the order of zone names."""

    columns: tuple[str, ...]
    order: tuple[int, ...]

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones in the order of their names, which is that of all numbers read."""
        return tuple(sorted(self.columns, key=str.encode))


def describe_row_error(notes: Sequence[int], number: int, data: bytes, header: Header) -> RowError:
    """Return the error that the scanner recorded for a bad row, as text."""
    at = number * NOTE_WIDTH
    code, line, line_start, row, start, end, column = map(int, notes[at : at + NOTE_WIDTH])
    subject = _label_at(data, row)
    if code == BAD_QUOTES:
        text, fix = "the quotes do not match", 'quote the whole field and write " as ""'
    elif code == TOO_FEW:
        text = f"the row ends after {column} of {len(header.columns)} zones"
        fix = f"add a cell for zone {header.columns[column]}"
    elif code == TOO_MANY:
        text = f"the row has more cells than its {len(header.columns)} zones"
        fix = "name a zone for the column in the header, or remove the cell"
    elif code == _NO_NODES:
        text = "no zone has a node, so there is no traffic"
        fix = "give a zone at least one node"
    else:
        text, fix = _cell_error(_decode(data[start:end]))
        text = f"zone {header.columns[column]}: {text}"
    return RowError(line, len(_decode(data[line_start:start])) + 1, text, subject, fix)


def unquote(data: bytes) -> str:
    """Return the text of a field without its quotes."""
    text = _decode(data)
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('""', '"')
    return text


def scan_rows(  # noqa: PLR0915, PLR0917 - one flat function is what a compiler takes
    data: Sequence[int],
    start: int,
    line: int,
    order: Sequence[int],
    nodes: MutableSequence[int],
    endpoints: MutableSequence[int],
    labels: MutableSequence[int],
    notes: MutableSequence[int],
    counts: MutableSequence[int],
) -> int:
    """Read all rows from `start` to the end of the data; return how many were good.

    `order[column]` is the index of a column's zone in the order of names, and row by row the
    numbers are written at that index. `line` is the number of the first line. `counts[0]` becomes
    the number of bad rows, of which `notes` records as many as it has room for. Empty lines do not
    count as rows.
    """
    end = len(data)
    zones = len(order)
    room = len(notes) // NOTE_WIDTH
    rows = 0
    bad = 0
    at = start
    line_start = start
    while at < end:
        if data[at] == _NEWLINE:
            at += 1
            line += 1
            line_start = at
            continue
        if data[at] == _RETURN and _is_field_end(data, at):
            at += 1
            continue

        code = 0
        column = 0
        total = 0
        begin = at
        part = at
        behind = find_field_end(data, at)
        if behind < 0:
            code = BAD_QUOTES
        else:
            labels[2 * rows] = at
            labels[2 * rows + 1] = behind
            if data[at] == _QUOTE:
                for place in range(at, behind):
                    if data[place] == _NEWLINE:
                        line += 1
                        line_start = place + 1
            at = behind
        while code == 0 and at < end and data[at] == _COMMA:
            part = at + 1
            if column == zones:
                code = TOO_MANY
                break
            first, second, at = scan_cell(data, part)
            if second < 0:
                code = BAD_CELL
                break
            place = rows * zones + order[column]
            nodes[place] = first
            endpoints[place] = second
            total += first
            column += 1
        if code == 0 and column < zones:
            code = TOO_FEW
            part = at
        elif code == 0 and total == 0:
            code = _NO_NODES
            part = behind + 1
        if code == 0:
            rows += 1
            continue

        if bad < room:
            behind = find_field_end(data, part)
            note = bad * NOTE_WIDTH
            notes[note] = code
            notes[note + 1] = line
            notes[note + 2] = line_start
            notes[note + 3] = begin
            notes[note + 4] = part
            notes[note + 5] = max(part, behind)
            notes[note + 6] = column
        bad += 1
        at = part
        while at < end and data[at] != _NEWLINE:
            at += 1
    counts[0] = bad
    return rows


def find_field_end(data: Sequence[int], at: int) -> int:
    """Return the offset of the comma or line break after a field; -1 when its quotes are wrong."""
    end = len(data)
    if at < end and data[at] == _QUOTE:
        at += 1
        while at < end:
            if data[at] != _QUOTE:
                at += 1
            elif at + 1 < end and data[at + 1] == _QUOTE:
                at += 2
            else:
                return at + 1 if _is_field_end(data, at + 1) else -1
        return -1
    while not _is_field_end(data, at):
        if data[at] == _QUOTE:
            return -1
        at += 1
    return at


def scan_cell(data: Sequence[int], at: int) -> tuple[int, int, int]:
    """Return both numbers of a cell and the offset after it; the second is -1 for a bad cell."""
    end = len(data)
    quoted = at < end and data[at] == _QUOTE
    first, gap = _scan_number(data, _skip_blanks(data, at + 1 if quoted else at))
    at = _skip_blanks(data, gap)
    if first < 0 or at == gap:
        return -1, -1, at
    second, at = _scan_number(data, at)
    at = _skip_blanks(data, at)
    if quoted:
        if at == end or data[at] != _QUOTE:
            return -1, -1, at
        at += 1
    return first, second if _is_field_end(data, at) else -1, at


def _cell_error(cell: str) -> tuple[str, str]:
    """Return the error of a cell that is not two numbers, and its fix."""
    words = unquote(cell.encode()).split()
    shown = [_cut(word) for word in words[:_SHOWN_WORDS]]
    for what, word in zip(("nodes", "endpoints"), words, strict=False):
        if not _NUMBER.fullmatch(word):
            return f'the number of {what} is no whole number: "{_cut(word)}"', _CELL_FIX
        # NB: Python refuses to parse a number of thousands of digits.
        digits = word.lstrip("+-0")
        if word.startswith("-") and digits:
            return f"the number of {what} is negative: {_cut(word)}", _CELL_FIX
        if len(digits) > len(str(LARGEST)) or int(digits or "0") > LARGEST:
            return f"the number of {what} is too large: {_cut(word)}", f"at most {LARGEST:,}"
    return f'expected "<nodes> <endpoints>", got "{" ".join(shown)}"', _CELL_FIX


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _label_at(data: bytes, start: int) -> str:
    """Return the label of the row that begins at an offset, however broken the row is."""
    end = find_field_end(data, start)
    if end < 0:
        end = min(place for place in (data.find(b",", start), len(data)) if place >= 0)
    return _cut(unquote(data[start:end]))


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


def _scan_number(data: Sequence[int], at: int) -> tuple[int, int]:
    end = len(data)
    if at < end and data[at] == _PLUS:
        at += 1
    start = at
    number = 0
    while at < end and _ZERO <= data[at] <= _ZERO + 9:
        # A number that is too large stays so, however many digits follow.
        number = min(number * 10 + data[at] - _ZERO, LARGEST + 1)
        at += 1
    return -1 if at == start or number > LARGEST else number, at


def _skip_blanks(data: Sequence[int], at: int) -> int:
    while at < len(data) and (data[at] == _SPACE or data[at] == _TAB):
        at += 1
    return at


def _is_field_end(data: Sequence[int], at: int) -> bool:
    end = len(data)
    if at >= end or data[at] == _COMMA or data[at] == _NEWLINE:
        return True
    return bool(data[at] == _RETURN and (at + 1 >= end or data[at + 1] == _NEWLINE))
