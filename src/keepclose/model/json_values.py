"""JSON text into plain values, and whole numbers in text, within bounds.

A function that recurses for each level of a value needs a bound below that of Python's stack. One
bound holds for everything that clients send: bodies, patches, JSON in annotations and in the paths
of managed fields. Kubernetes' own objects nest fewer than 30 levels. The number of values is bound
too: a value costs far more than its two bytes of text, in memory for itself and its errors, and in
time in which the decoder blocks all other threads.

`int` alone accepts signs, blanks, underscores and digits of other scripts, takes quadratic time,
and raises for more than 4,300 digits. Kubernetes parses such numbers into 64 bits.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

JsonObject = dict[str, Any]

INT64_MAX: Final = 2**63 - 1
# The deepest recursion takes three calls a level, which must fit into a stack of 1,000.
DEPTH_MAX: Final = 200
# The largest EndpointSlice, of 1,000 endpoints, has 20,000; this many take 30 ms to decode.
VALUES_MAX: Final = 100_000
_DIGITS_MAX: Final = 19
_OPENING: Final = (b"[", b"{")
_CLOSING: Final = (b"]", b"}")
_SEPARATORS: Final = (b",", *_OPENING)
_CHUNK_BYTES: Final = 64 * 1024


def parse_natural(text: str) -> int | None:
    """Return a number of ASCII digits that fits into 63 bits; None for anything else."""
    if not text.isascii() or not text.isdecimal():
        return None
    digits = text.lstrip("0")
    if len(digits) > _DIGITS_MAX:
        return None
    number = int(digits or "0")
    return number if number <= INT64_MAX else None


def parse_int64(text: str) -> int | None:
    """Return a decimal 64-bit number with or without a sign; None for anything else."""
    sign = -1 if text[:1] == "-" else 1
    number = parse_natural(text[1:] if text[:1] in ("-", "+") else text)
    return None if number is None else sign * number


class JsonValueError(ValueError):
    """A text that is not JSON, or beyond the bounds."""


class JsonDepthError(JsonValueError):
    """A text that is nested too deeply; the message is that of Go's decoder."""

    def __init__(self) -> None:
        super().__init__("exceeded max depth")


class JsonValuesError(JsonValueError):
    """A text with too many values."""

    def __init__(self) -> None:
        super().__init__(f"exceeded max values of {VALUES_MAX}")


def decode_json(text: bytes | str) -> Any:
    """Return the value of a JSON text; raise JsonValueError if it is invalid."""
    _check_values(text)
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise JsonDepthError from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise JsonValueError(str(error)) from None
    check_depth(value, text)
    return value


def _check_values(text: bytes | str) -> None:
    """Raise JsonValuesError for a text of too many values, before it is decoded.

    Raises JsonDepthError instead if the text is nested too deeply.
    """
    if len(text) <= VALUES_MAX:
        return
    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    if sum(map(data.count, _SEPARATORS)) <= VALUES_MAX:
        return
    # Text between quotes does not count, and escaped quotes end no text.
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    count, depth, is_text = 0, 0, False
    for start in range(0, len(unescaped), _CHUNK_BYTES):
        parts = unescaped[start : start + _CHUNK_BYTES].split(b'"')
        outside = b"".join(parts[is_text::2])
        count += sum(map(outside.count, _SEPARATORS))
        depth += sum(map(outside.count, _OPENING)) - sum(map(outside.count, _CLOSING))
        if count > VALUES_MAX:
            raise JsonDepthError if depth > DEPTH_MAX else JsonValuesError
        is_text ^= len(parts) % 2 == 0


def check_depth(value: Any, text: bytes | str | None = None) -> None:
    """Raise JsonDepthError for a value that is nested too deeply.

    A text with few brackets cannot be nested deeply, so almost every object skips the walk.
    """
    if text is not None:
        brackets = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
        if sum(map(text.count, brackets)) <= DEPTH_MAX:  # type: ignore[arg-type]
            return
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH_MAX):
        if not level:
            return
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) is dict or type(child) is list
        ]
    if level:
        raise JsonDepthError
