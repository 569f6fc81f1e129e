"""What is wrong with the input of a command: what, where exactly, and what to do about it.

A problem is shown as one block of up to three lines: the cause as the API words it, the place in
the file, and a fix where one can be told. Nothing here prints or exits; the commands do.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import msgspec

from keepclose.model.field_errors import CauseType, FieldError
from keepclose.model.plain_text import make_plain


class InputPlace(msgspec.Struct, frozen=True):
    """Where something stands in the input; None where that is not known or does not apply.

    `document` and `line` and `column` count from 1, `item` is the index in a List, from 0.
    """

    file: str
    document: int | None = None
    item: int | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = ["standard input" if self.file == "-" else self.file]
        if self.document is not None:
            parts.append(f"document {self.document}")
        if self.item is not None:
            parts.append(f"items[{self.item}]")
        if self.line is not None:
            parts.append(f"line {self.line}")
        if self.column is not None:
            parts.append(f"column {self.column}")
        return ", ".join(parts)


class InputProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong with the input. `subject` is the object's name, or "" for a file."""

    place: InputPlace
    text: str
    subject: str = ""
    fix: str = ""


_INDENT: Final = " " * len("error: ")
_SUPPORTED: Final = "supported values: "


def render(problem: InputProblem) -> str:
    """Return the block of lines for a problem, each made plain, without a line end after them."""
    what = f"{problem.subject}: {problem.text}" if problem.subject else problem.text
    lines = [f"error: {what}", f"{_INDENT}in {problem.place}"]
    if problem.fix:
        lines.append(f"{_INDENT}{problem.fix}")
    return "\n".join(map(make_plain, lines))


def describe_cause(cause: FieldError, *, place: InputPlace, subject: str) -> InputProblem:
    """Return the problem that a cause amounts to, with a fix where one is at hand."""
    return InputProblem(place, str(cause), subject, suggest_fix(cause))


def suggest_fix(cause: FieldError) -> str:
    """Return what to do about a cause in one line, or "" when its own words must do."""
    if cause.type is CauseType.NOT_SUPPORTED:
        choice = _closest(str(cause.value), cause.detail)
        return f"did you mean {choice}?" if choice else ""
    if cause.type is CauseType.INVALID:
        if cause.detail.startswith("expected a string, got a number"):
            # NB: the value is no help here: the file may say 1.10 where the number is 1.1.
            return "put it in quotes, otherwise it is a number"
        if cause.detail.startswith("expected a string, got a boolean"):
            return "put it in quotes, otherwise yes, no, on, off, true and false are booleans"
        is_number = isinstance(cause.value, str) and cause.value.isdecimal()
        if is_number and cause.detail.startswith("expected a number, got a string"):
            return f"write it without quotes: {cause.value}"
    return ""


def _closest(value: str, detail: str) -> str:
    """Return the supported value that the given one most likely meant, or ""."""
    try:
        listed = msgspec.json.decode(f"[{detail.removeprefix(_SUPPORTED)}]", type=list[str])
    except msgspec.DecodeError:
        return ""
    by_lower = {choice.lower(): choice for choice in listed}
    matches = get_close_matches(value.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else ""
