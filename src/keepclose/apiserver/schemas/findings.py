"""What a check of a value finds, and the words for it.

A finding starts where the value is and travels outwards; paths are put together only on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from keepclose.model.json_values import JsonDepthError, check_depth

# So many unknown or doubled fields are named, as by a kube-apiserver.
MAX_FINDINGS: Final = 100
_WORDS: Final = {str: "string", bool: "bool", list: "array", dict: "object"}


class Problem(msgspec.Struct):
    """One finding; the paths grow from the inside to the outside."""

    # Whether the decoder stops here. Otherwise it reads on, and the first finding counts.
    final: bool = False
    is_unknown: bool = False
    # The JSON value that was met, and Go's name of the type that was due.
    word: str = ""
    go_type: str = ""
    # A message that names no place.
    text: str = ""
    struct: str = ""
    stack: list[str] = []
    path: list[str] = []


Found = list[Problem] | None
Checker = Callable[[Any, Any, Any], Found]


def word_of(value: Any) -> str:
    """Return what Go's decoder calls a JSON value."""
    return _WORDS.get(type(value), "number")


def find_wrong(value: Any, go_type: str) -> list[Problem]:
    """Return the finding that a value is of another type than is due."""
    return [Problem(word=word_of(value), go_type=go_type)]


def join_findings(found: Found, inner: list[Problem]) -> list[Problem]:
    """Return all findings; of unknown fields no more than can be named."""
    if found is None:
        return inner
    if len(found) < MAX_FINDINGS:
        found += inner
    else:
        found += [problem for problem in inner if not problem.is_unknown]
    return found


def find_too_deep(value: Any) -> Found:
    """Find whether a value that no type bounds is nested beyond the limit."""
    try:
        check_depth(value)
    except JsonDepthError as error:
        return [Problem(final=True, text=str(error))]
    return None
