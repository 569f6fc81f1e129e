r"""Text of others as one line that a terminal only shows.

Names, zones, messages of servers and names of files come from others. Shown as they are they could
move the cursor, set the title of a terminal, turn the direction of a line around, hide a part of
it, or begin a line of their own that reads like one of ours. Here each such character becomes a
visible escape: ``\n``, ``\x1b``, ``\u202e``. Text that is safe comes back as it is, and so does
text that was made plain already.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

MOST_CHARACTERS: Final = 4096
"""What is shown of one line; the rest of a longer one is counted."""
MOST_MARKS: Final = 4
"""How many combining marks may stand on one character: no script needs more, and a hundred of them
paint over the lines above and below."""

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# Letters and symbols by their category, and nothing to be seen.
_BLANK: Final = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_MARKS: Final = ("Mn", "Me")
_NOT_ASCII: Final = re.compile(r"[^\x20-\x7e]+")


def make_plain(text: str, *, most: int = MOST_CHARACTERS) -> str:
    """Return a text as one line in which every character is visible, cut where it is too long."""
    rest = len(text) - most
    if rest > 0:
        text = text[:most]
    if not (text.isascii() and text.isprintable()):
        text = _NOT_ASCII.sub(lambda match: _replace_hidden(match[0], _name), text)
    return f"{text}... ({rest:,} more characters)" if rest > 0 else text


def escape_hidden(text: str) -> str:
    """Return JSON with the same meaning in which every character is visible, but for line ends."""
    return _NOT_ASCII.sub(lambda match: _replace_hidden(match[0], _escape), text)


def is_hidden(char: str) -> bool:
    """Return whether a character steers what shows it, or is not to be seen."""
    return not char.isprintable() or char in _BLANK


def escape_character(char: str) -> str:
    """Return the escape of a character in JSON; those beyond the first 65,536 have two parts."""
    pairs = char.encode("utf-16-be", "surrogatepass")
    units = (pairs[start : start + 2].hex() for start in range(0, len(pairs), 2))
    return "".join(f"\\u{unit}" for unit in units)


def _replace_hidden(text: str, replace: Callable[[str], str]) -> str:
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in _MARKS else 0
        shown.append(replace(char) if is_hidden(char) or marks > MOST_MARKS else char)
    return "".join(shown)


def _name(char: str) -> str:
    number = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _escape(char: str) -> str:
    return char if char == "\n" else escape_character(char)
