"""Values as a server written in Go prints them into its messages.

Clients and tests compare these texts, so lists, maps and quotes look as Go's formatter writes them.
Nothing here is ever parsed again.
"""

from __future__ import annotations

import json
from typing import Any


def go_quote(text: str) -> str:
    """Return the text in double quotes, with escapes."""
    return json.dumps(text, ensure_ascii=False)


def show(value: Any) -> str:
    """Return a JSON value as Go prints it by default: map[a:1 b:[x y]]."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return "map[" + " ".join(f"{k}:{show(v)}" for k, v in sorted(value.items())) + "]"
        case list():
            return "[" + " ".join(show(item) for item in value) + "]"
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value)


def name_type(value: Any) -> str:
    """Return the name that Go gives the type of a JSON value."""
    match value:
        case None:
            return "%!s(<nil>)"
        case bool():
            return "bool"
        case int():
            return "int64"
        case float():
            return "float64"
        case str():
            return "string"
        case list():
            return "[]interface {}"
        case _:
            return "map[string]interface {}"


def encode_sorted(value: Any) -> str:
    """Return compact JSON with sorted keys, and with the escapes of a Go encoder."""
    return escape_html(json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True))


def escape_html(text: str) -> str:
    """Return JSON with the characters escaped that are unsafe in HTML and JavaScript."""
    for character in "<>&\u2028\u2029":
        if character in text:
            text = text.replace(character, f"\\u{ord(character):04x}")
    return text
