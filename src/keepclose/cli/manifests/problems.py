"""Problems of a command's input: what is wrong, where exactly, and how to fix it.

A problem is rendered as a block of up to three lines: the validation error in the words of the API
server, the place in the file, and a fix if there is one. Nothing here prints or exits; the commands
do.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import msgspec

from keepclose.model.field_errors import FieldError, FieldErrorType
from keepclose.model.plain_text import make_plain

_INDENT: Final = " " * len("error: ")
_SUPPORTED: Final = "supported values: "


class InputPlace(msgspec.Struct, frozen=True):
    """A place in the input; parts are None where they are unknown or do not apply.

    `document`, `line` and `column` count from 1; `item` is the index in a List, from 0.
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
    """One error in the input. `subject` is the object's name, or "" for a file."""

    place: InputPlace
    text: str
    subject: str = ""
    fix: str = ""


def render(problem: InputProblem) -> str:
    """Return the lines of a problem, each made plain, without a newline at the end."""
    what = f"{problem.subject}: {problem.text}" if problem.subject else problem.text
    lines = [f"error: {what}", f"{_INDENT}in {problem.place}"]
    if problem.fix:
        lines.append(f"{_INDENT}{problem.fix}")
    return "\n".join(map(make_plain, lines))


def describe_field_error(error: FieldError, *, place: InputPlace, subject: str) -> InputProblem:
    """Return the problem for a validation error, with a fix if there is one."""
    return InputProblem(place, str(error), subject, suggest_fix(error))


def suggest_fix(error: FieldError) -> str:
    """Return how to fix a validation error, in one line, or "" where its message must do."""
    if error.type is FieldErrorType.NOT_SUPPORTED:
        choice = _closest(str(error.value), error.detail)
        return f"did you mean {choice}?" if choice else ""
    if error.type is FieldErrorType.INVALID:
        if error.detail.startswith("expected a string, got a number"):
            # NB: the value cannot be suggested: the file may say 1.10 where the number is 1.1.
            return "put it in quotes, otherwise it is a number"
        if error.detail.startswith("expected a string, got a boolean"):
            return "put it in quotes, otherwise yes, no, on, off, true and false are booleans"
        is_number = isinstance(error.value, str) and error.value.isdecimal()
        if is_number and error.detail.startswith("expected a number, got a string"):
            return f"write it without quotes: {error.value}"
    return ""


def _closest(value: str, detail: str) -> str:
    """Return the supported value that is nearest to a value, or ""."""
    try:
        supported = msgspec.json.decode(f"[{detail.removeprefix(_SUPPORTED)}]", type=list[str])
    except msgspec.DecodeError:
        return ""
    by_lower = {choice.lower(): choice for choice in supported}
    matches = get_close_matches(value.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else ""
