r"""Untrusted text as one line that a terminal only displays.

Names, zones, server messages and file names are untrusted. Printed as they are they could move the
cursor, set the title of a terminal, reverse the direction of a line, hide a part of it, or start a
line that looks like output of keepclose. Each such character becomes a visible escape: ``\n``,
``\x1b``, ``\u202e``. Safe text is returned unchanged, and so is text that was already escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

MAX_CHARACTERS: Final = 4096
"""How much of one line is shown; the rest of a longer line is counted."""
MAX_MARKS: Final = 4
"""How many combining marks one character may have: no script needs more, and a hundred of them
paint over the lines above and below."""

_SHORT_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# Letters and symbols by category that are invisible.
_INVISIBLE: Final = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_MARK_CATEGORIES: Final = ("Mn", "Me")
_NOT_ASCII: Final = re.compile(r"[^\x20-\x7e]+")


def make_plain(text: str, *, most: int = MAX_CHARACTERS) -> str:
    """Return a text as one line in which every character is visible, cut if too long."""
    rest = len(text) - most
    if rest > 0:
        text = text[:most]
    if not (text.isascii() and text.isprintable()):
        text = _NOT_ASCII.sub(lambda match: _replace_hidden(match[0], _python_escape), text)
    return f"{text}... ({rest:,} more characters)" if rest > 0 else text


def escape_hidden(text: str) -> str:
    """Return equivalent JSON in which every character is visible, except line ends."""
    return _NOT_ASCII.sub(lambda match: _replace_hidden(match[0], _json_escape), text)


def is_hidden(char: str) -> bool:
    """Return whether a character is a control character or invisible."""
    return not char.isprintable() or char in _INVISIBLE


def escape_character(char: str) -> str:
    """Return the JSON escape of a character; beyond U+FFFF it is a surrogate pair."""
    pairs = char.encode("utf-16-be", "surrogatepass")
    units = (pairs[start : start + 2].hex() for start in range(0, len(pairs), 2))
    return "".join(f"\\u{unit}" for unit in units)


def _replace_hidden(text: str, replace: Callable[[str], str]) -> str:
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in _MARK_CATEGORIES else 0
        shown.append(replace(char) if is_hidden(char) or marks > MAX_MARKS else char)
    return "".join(shown)


def _python_escape(char: str) -> str:
    number = ord(char)
    if char in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[char]
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _json_escape(char: str) -> str:
    return char if char == "\n" else escape_character(char)
