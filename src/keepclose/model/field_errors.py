"""Field errors: what is wrong with an object, each at one field, worded as Kubernetes words them.

A validator returns an ordered list of errors and never stops at the first one unless its rule says
so. Paths join children with ".", list indexes as "[3]" and map keys as "[the/key]".

Also the names of fields in which two versions of an object differ. An API server silently drops
fields that it does not know or whose feature gate is off; a client that compares what it sent with
what is stored can name the field and the likely gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from keepclose.model.gates import Gate

SLICE_GATES: Final[dict[str, Gate]] = {
    "endpoints[].hints.forNodes": Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
    "endpoints[].hints.forZones": Gate.TOPOLOGY_AWARE_HINTS,
    "endpoints[].hints": Gate.TOPOLOGY_AWARE_HINTS,
    "endpoints[].conditions.serving": Gate.ENDPOINT_SLICE_TERMINATING_CONDITION,
    "endpoints[].conditions.terminating": Gate.ENDPOINT_SLICE_TERMINATING_CONDITION,
}
"""The gate of the API server without which it drops a field of a slice."""

_MAX_NAMED: Final = 5
"""How many fields a message names: a webhook may set any number of labels."""


class FieldErrorType(StrEnum):
    """Machine-readable types of field errors, as in the causes of an API Status."""

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
    FieldErrorType.REQUIRED: "Required value",
    FieldErrorType.INVALID: "Invalid value",
    FieldErrorType.NOT_SUPPORTED: "Unsupported value",
    FieldErrorType.DUPLICATE: "Duplicate value",
    FieldErrorType.FORBIDDEN: "Forbidden",
    FieldErrorType.TOO_MANY: "Too many",
    FieldErrorType.TOO_LONG: "Too long",
    FieldErrorType.INTERNAL: "Internal error",
    FieldErrorType.NOT_FOUND: "Not found",
}
_SHOWS_VALUE = frozenset(
    {
        FieldErrorType.INVALID,
        FieldErrorType.NOT_SUPPORTED,
        FieldErrorType.DUPLICATE,
        FieldErrorType.TOO_MANY,
        FieldErrorType.NOT_FOUND,
    }
)
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


class FieldError(msgspec.Struct, frozen=True):
    """A validation error: its type, the field, a detail and the rejected value."""

    type: FieldErrorType
    field: str
    detail: str = ""
    value: Any = None

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"

    @property
    def body(self) -> str:
        """The error message without the field."""
        parts = [_KIND_TEXT[self.type]]
        if self.type in _SHOWS_VALUE:
            parts.append(render_value(self.value))
        if self.detail:
            parts.append(self.detail)
        return ": ".join(parts)


def render_value(value: Any) -> str:
    """Return a rejected value as the API shows it: strings quoted, the rest as compact JSON.

    Strings are quoted as in Go, so that no character can act on a terminal or a log.
    """
    if isinstance(value, str):
        return f'"{"".join(map(_quote_char, value))}"' if _needs_quoting(value) else f'"{value}"'
    return msgspec.json.encode(value).decode()


def _needs_quoting(text: str) -> bool:
    return not text.isprintable() or '"' in text or "\\" in text


def _quote_char(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    number = ord(char)
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    if 0xD800 <= number < 0xE000:
        # A lone surrogate, which Go replaces.
        return "\\ufffd"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def required(field: str, detail: str = "") -> FieldError:
    """Return the error for a missing value."""
    return FieldError(FieldErrorType.REQUIRED, field, detail)


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """Return the error for a value of the wrong format."""
    return FieldError(FieldErrorType.INVALID, field, detail, value)


def not_supported(field: str, value: Any, supported: Iterable[str]) -> FieldError:
    """Return the error for a value outside a closed set, which is listed in the given order."""
    listed = ", ".join(render_value(choice) for choice in supported)
    return FieldError(FieldErrorType.NOT_SUPPORTED, field, f"supported values: {listed}", value)


def duplicate(field: str, value: Any) -> FieldError:
    """Return the error for a duplicate value."""
    return FieldError(FieldErrorType.DUPLICATE, field, "", value)


def forbidden_field(field: str, detail: str) -> FieldError:
    """Return the error for a value that must not be set."""
    return FieldError(FieldErrorType.FORBIDDEN, field, detail)


def too_many(field: str, actual: int, limit: int) -> FieldError:
    """Return the error for a list that is too long."""
    noun = "item" if limit == 1 else "items"
    return FieldError(FieldErrorType.TOO_MANY, field, f"must have at most {limit} {noun}", actual)


def too_long(field: str, limit: int) -> FieldError:
    """Return the error for a text that is too long."""
    return FieldError(FieldErrorType.TOO_LONG, field, f"may not be more than {limit} bytes")


def internal(field: str, detail: str) -> FieldError:
    """Return the error for an internal inconsistency."""
    return FieldError(FieldErrorType.INTERNAL, field, detail)


def missing_reference(field: str, value: Any) -> FieldError:
    """Return the error for a reference to an object that does not exist."""
    return FieldError(FieldErrorType.NOT_FOUND, field, "", value)


def differing_fields(sent: object, stored: object) -> tuple[str, ...]:
    """Return the paths at which two values differ, as in "endpoints[].hints.forNodes", sorted.

    List indexes are omitted, so that the same field of many elements is named once.
    """
    pair = (msgspec.to_builtins(sent), msgspec.to_builtins(stored))
    return tuple(sorted(set(_differences(*pair, ""))))


def describe_fields(fields: tuple[str, ...]) -> str:
    """Return a sentence that names the fields that an API server dropped, and the likely gates."""
    gates = sorted({gate.value for field in fields if (gate := SLICE_GATES.get(field))})
    named = ", ".join(fields[:_MAX_NAMED])
    others = len(fields) - _MAX_NAMED
    text = f"the API server does not keep {named}{f' and {others} more' if others > 0 else ''}"
    text = f"{text} as written"
    if not gates:
        return text
    verb = "is" if len(gates) == 1 else "are"
    return f"{text}; feature gate {', '.join(gates)} {verb} probably off there"


def _differences(sent: Any, stored: Any, path: str) -> Iterator[str]:
    if sent == stored:
        return
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key in sent.keys() | stored.keys():
            yield from _differences(
                sent.get(key), stored.get(key), f"{path}.{key}" if path else str(key)
            )
    elif (
        isinstance(sent, list | tuple)
        and isinstance(stored, list | tuple)
        and (len(sent) == len(stored))
    ):
        for sent_item, stored_item in zip(sent, stored, strict=True):
            yield from _differences(sent_item, stored_item, f"{path}[]")
    else:
        yield path
