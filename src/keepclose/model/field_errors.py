"""Causes: what is wrong with an object, each at one field, rendered as Kubernetes renders it.

A validator returns an ordered list of causes and never stops at the first one unless its rule says
so. Paths join children with ".", list positions as "[3]" and map keys as "[the/key]".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec


class CauseType(StrEnum):
    """Machine-readable kinds of causes, as the API names them."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    DUPLICATE = "FieldValueDuplicate"
    FORBIDDEN = "FieldValueForbidden"
    TOO_MANY = "FieldValueTooMany"
    TOO_LONG = "FieldValueTooLong"
    INTERNAL = "InternalError"
    NOT_FOUND = "FieldValueNotFound"


_KIND_TEXT = {
    CauseType.REQUIRED: "Required value",
    CauseType.INVALID: "Invalid value",
    CauseType.NOT_SUPPORTED: "Unsupported value",
    CauseType.DUPLICATE: "Duplicate value",
    CauseType.FORBIDDEN: "Forbidden",
    CauseType.TOO_MANY: "Too many",
    CauseType.TOO_LONG: "Too long",
    CauseType.INTERNAL: "Internal error",
    CauseType.NOT_FOUND: "Not found",
}
_SHOWS_VALUE = frozenset(
    {
        CauseType.INVALID,
        CauseType.NOT_SUPPORTED,
        CauseType.DUPLICATE,
        CauseType.TOO_MANY,
        CauseType.NOT_FOUND,
    }
)


class Cause(msgspec.Struct, frozen=True):
    """One thing that is wrong, where, and why."""

    type: CauseType
    field: str
    detail: str = ""
    value: Any = None

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"

    @property
    def body(self) -> str:
        """What is wrong, without the field."""
        parts = [_KIND_TEXT[self.type]]
        if self.type in _SHOWS_VALUE:
            parts.append(render_value(self.value))
        if self.detail:
            parts.append(self.detail)
        return ": ".join(parts)


_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}


def render_value(value: Any) -> str:
    """Return a bad value as the API shows it: strings quoted, the rest as compact JSON.

    Strings are quoted as Go does it, so that nothing in them can act on a terminal or a log.
    """
    if isinstance(value, str):
        return f'"{"".join(map(_quote_letter, value))}"' if _needs_quoting(value) else f'"{value}"'
    return msgspec.json.encode(value).decode()


def _needs_quoting(text: str) -> bool:
    return not text.isprintable() or '"' in text or "\\" in text


def _quote_letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable():
        return letter
    number = ord(letter)
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    if 0xD800 <= number < 0xE000:
        # Half a letter, which Go does not know.
        return "\\ufffd"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def required(field: str, detail: str = "") -> Cause:
    """Return the cause for a value that is missing."""
    return Cause(CauseType.REQUIRED, field, detail)


def invalid(field: str, value: Any, detail: str) -> Cause:
    """Return the cause for a value of the wrong form."""
    return Cause(CauseType.INVALID, field, detail, value)


def not_supported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """Return the cause for a value outside a closed set; the set is listed in the given order."""
    listed = ", ".join(render_value(choice) for choice in supported)
    return Cause(CauseType.NOT_SUPPORTED, field, f"supported values: {listed}", value)


def duplicate(field: str, value: Any) -> Cause:
    """Return the cause for a value that stands twice."""
    return Cause(CauseType.DUPLICATE, field, "", value)


def forbidden(field: str, detail: str) -> Cause:
    """Return the cause for a value that may not be set here."""
    return Cause(CauseType.FORBIDDEN, field, detail)


def too_many(field: str, actual: int, limit: int) -> Cause:
    """Return the cause for a list that is too long."""
    noun = "item" if limit == 1 else "items"
    return Cause(CauseType.TOO_MANY, field, f"must have at most {limit} {noun}", actual)


def too_long(field: str, limit: int) -> Cause:
    """Return the cause for a text that is too long."""
    return Cause(CauseType.TOO_LONG, field, f"may not be more than {limit} bytes")


def internal(field: str, detail: str) -> Cause:
    """Return the cause for something that should not be possible."""
    return Cause(CauseType.INTERNAL, field, detail)


def not_found(field: str, value: Any) -> Cause:
    """Return the cause for a name that nothing has."""
    return Cause(CauseType.NOT_FOUND, field, "", value)
