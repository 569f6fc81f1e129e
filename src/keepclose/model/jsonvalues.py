"""JSON texts into plain values that any function may walk: how deep they may be nested.

A function that calls itself for each level of a value needs a bound below that of Python's stack.
The bound is one for everything that clients send: bodies, patches, the texts in annotations and in
the steps of managed fields. Kubernetes' own objects nest fewer than 30 levels.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

# Three calls a level, which is what the greediest walk takes, must fit into a stack of 1,000.
DEPTH_MAX: Final = 200


class JsonValueError(ValueError):
    """A text is no JSON, or nested too deeply."""


class JsonDepthError(JsonValueError):
    """A text is nested too deeply; the message is that of Go's decoder."""

    def __init__(self) -> None:
        super().__init__("exceeded max depth")


def decode_json(text: bytes | str) -> Any:
    """Return the value of a JSON text; raise JsonValueError where it has none."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise JsonDepthError from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise JsonValueError(str(error)) from None
    check_depth(value, text)
    return value


def check_depth(value: Any, text: bytes | str | None = None) -> None:
    """Raise JsonDepthError for a value that is nested too deeply.

    A text with few brackets cannot be, which spares the walk for almost every object.
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
