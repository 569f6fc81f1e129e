"""Warnings as the headers in which they reach the client.

The limits are those of a kube-apiserver: texts that are more than 4096 characters together are cut
to 256 each, and what does not fit then is left out. A text with control characters, which would
break the header, is left out too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

Headers = tuple[tuple[bytes, bytes], ...]
MOST_CHARACTERS: Final = 4096
MOST_OF_ONE: Final = 256


def warning_headers(texts: Iterable[str]) -> Headers:
    """Return the headers for the warnings, each once; none for none."""
    fit = [text for text in dict.fromkeys(texts) if text and not _has_controls(text)]
    if sum(map(len, fit)) > MOST_CHARACTERS:
        fit = _cut(fit)
    return tuple((b"Warning", _header(text)) for text in fit)


def _cut(texts: list[str]) -> list[str]:
    kept: list[str] = []
    total = 0
    for text in texts:
        if total >= MOST_CHARACTERS:
            break
        kept.append(text[:MOST_OF_ONE])
        total += len(kept[-1])
    return kept


def _has_controls(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(one) == "Cc" for one in text)


def _header(text: str) -> bytes:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'.encode(errors="replace")
