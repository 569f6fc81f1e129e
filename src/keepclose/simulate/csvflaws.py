"""What is wrong with rows of a CSV file, in words: the text, the place, and how to mend it.

The scanner only notes places; the words are made here, for the few rows that are shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from keepclose.simulate.csv import rows

_NUMBER: Final = re.compile(r"[-+]?[0-9]+")
_CELL_FIX: Final = 'write two whole numbers, such as "3 12": 3 nodes and 12 endpoints'


class Flaw(msgspec.Struct, frozen=True):
    """One thing that is wrong with a file; lines and columns count from 1, in characters."""

    line: int
    column: int
    text: str
    subject: str = ""
    """The row as its label names it, "" for the header."""
    fix: str = ""


class Header(msgspec.Struct, frozen=True):
    """The columns of an input; `order[c]` is the place of column c in the order of zone names."""

    columns: tuple[str, ...]
    order: tuple[int, ...]

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones in the order of their names, which is that of all numbers read."""
        return tuple(sorted(self.columns, key=str.encode))


def describe_flaw(notes: Sequence[int], number: int, data: bytes, header: Header) -> Flaw:
    """Return what the scanner noted of a bad row, in words."""
    at = number * rows.NOTE_WIDTH
    code, line, line_start, row, start, end, column = map(int, notes[at : at + rows.NOTE_WIDTH])
    subject = _label_at(data, row)
    if code == rows.BAD_QUOTES:
        text, fix = "the quotes do not match", 'quote the whole field and write " as ""'
    elif code == rows.TOO_FEW:
        text = f"the row ends after {column} of {len(header.columns)} zones"
        fix = f"add a cell for zone {header.columns[column]}"
    elif code == rows.TOO_MANY:
        text = f"the row goes on behind its {len(header.columns)} zones"
        fix = "name a zone for the column in the header, or remove the cell"
    elif code == rows.NO_NODES:
        text = "no zone has a node, so there is no traffic"
        fix = "give a zone at least one node"
    else:
        text, fix = _judge_cell(_decode(data[start:end]))
        text = f"zone {header.columns[column]}: {text}"
    return Flaw(line, len(_decode(data[line_start:start])) + 1, text, subject, fix)


def _judge_cell(cell: str) -> tuple[str, str]:
    """Return what is wrong with a cell that is not two numbers, and what to do about it."""
    words = unquote(cell.encode()).split()
    for what, word in zip(("nodes", "endpoints"), words, strict=False):
        if not _NUMBER.fullmatch(word):
            return f'the number of {what} is no whole number: "{word}"', _CELL_FIX
        # NB: Python refuses to read a number of thousands of digits.
        digits = word.lstrip("+-0")
        if word.startswith("-") and digits:
            return f"the number of {what} is negative: {word}", _CELL_FIX
        if len(digits) > len(str(rows.LARGEST)) or int(digits or "0") > rows.LARGEST:
            return f"the number of {what} is too large: {word}", f"at most {rows.LARGEST:,}"
    return f'expected "<nodes> <endpoints>", got "{" ".join(words)}"', _CELL_FIX


def _label_at(data: bytes, start: int) -> str:
    """Return the label of the row that begins at a place, however broken the row is."""
    end = rows.find_field_end(data, start)
    if end < 0:
        end = min(place for place in (data.find(b",", start), len(data)) if place >= 0)
    return unquote(data[start:end])


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


def unquote(data: bytes) -> str:
    """Return the text of a field without its quotes."""
    text = _decode(data)
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('""', '"')
    return text
