"""JSON texts, one or several in a row, into plain values.

Strict where Python is not: no NaN, no halves of characters. Keys that stand twice are noted, since
the last one would win silently. Nothing here raises: the error that ends the reading is returned
beside the values before it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Final, NoReturn

import msgspec

from keepclose.model.json_values import JsonDepthError, check_depth

# Kubernetes has whole numbers of 64 bits at most, and quantities with some more digits.
_DIGITS_MAX: Final = 64


class JsonText(msgspec.Struct, frozen=True):
    """One value with its text and first line; `repeated` is a key that stood twice, or ""."""

    text: str
    line: int
    value: object
    repeated: str = ""


class JsonError(msgspec.Struct, frozen=True):
    """What is wrong with a text; lines and columns count from 1."""

    message: str
    line: int
    column: int | None = None


def split_json(text: str) -> tuple[list[JsonText], JsonError | None]:
    """Return the values in a text, one after another, and the error that ended the reading."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.append(next(key for key, count in counts.items() if count > 1))
        return members

    decoder = json.JSONDecoder(
        object_pairs_hook=collect, parse_constant=_refuse_constant, parse_int=_read_int
    )
    documents: list[JsonText] = []
    position, line = _blanks_end(text, 0), 1
    line += text.count("\n", 0, position)
    while position < len(text):
        try:
            value, end = decoder.raw_decode(text, position)
            check_depth(value, text)
            if _surrogate.search(text, position, end):
                # NB: Python keeps half a character, which then cannot be written anywhere.
                msgspec.json.encode(value)
        except (ValueError, RecursionError) as error:
            return documents, _explain(error, line)
        documents.append(JsonText(text[position:end], line, value, "".join(repeated[:1])))
        repeated.clear()
        following = _blanks_end(text, end)
        line += text.count("\n", position, following)
        position = following
    return documents, None


def _explain(error: ValueError | RecursionError, line: int) -> JsonError:
    match error:
        case json.JSONDecodeError():
            text = f"{error.msg[:1].lower()}{error.msg[1:]}".replace("expecting", "expected")
            return JsonError(f"not valid JSON: {text}", error.lineno, error.colno)
        case UnicodeEncodeError():
            text = "a text holds half of a character (a lone surrogate)"
        case RecursionError() | JsonDepthError():
            text = "nested too deeply"
        case _:
            text = str(error)
    return JsonError(f"not valid JSON: {text}", line)


_blanks = re.compile(r"[ \t\r\n]*")
_surrogate = re.compile(r"\\u[dD][89a-fA-F]")


def _blanks_end(text: str, position: int) -> int:
    match = _blanks.match(text, position)
    return match.end() if match else position


def _read_int(digits: str) -> int:
    # NB: Python reads a number in quadratic time, and up to 4,300 digits only.
    if len(digits) > _DIGITS_MAX:
        raise ValueError(f"a number of {len(digits):,} digits; at most {_DIGITS_MAX} can be read")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
