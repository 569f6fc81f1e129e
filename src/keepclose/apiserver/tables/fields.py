"""Reading raw JSON of any shape, as Go reads fields that may be missing.

A field that is absent, null or of another type reads as the empty value of the type that was
asked for. What is stored may be older than any rule, and a table of a thousand rows must not fail
because of one of them: nothing here raises.
"""

from __future__ import annotations

from keepclose.model.json_values import JsonObject


def value_at(value: object, *path: str) -> object:
    """Return what lies at the path, or None."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def text_at(value: object, *path: str) -> str:
    """Return the string at the path, or an empty one."""
    found = value_at(value, *path)
    return found if isinstance(found, str) else ""


def number_at(value: object, *path: str, default: int = 0) -> int:
    """Return the whole number at the path, or the default."""
    found = value_at(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else default


def is_set(value: object, *path: str) -> bool:
    """Return whether the flag at the path is true."""
    return value_at(value, *path) is True


def object_at(value: object, *path: str) -> JsonObject | None:
    """Return the object at the path, which may be empty, or None."""
    found = value_at(value, *path)
    return found if isinstance(found, dict) else None


def list_at(value: object, *path: str) -> list[object]:
    """Return the list at the path, or an empty one."""
    found = value_at(value, *path)
    return found if isinstance(found, list) else []


def texts_at(value: object, *path: str) -> list[str]:
    """Return the strings of the list at the path; what is no string reads as an empty one."""
    return [one if isinstance(one, str) else "" for one in list_at(value, *path)]


def pairs_at(value: object, *path: str) -> dict[str, str]:
    """Return the map of strings at the path, such as labels, or an empty one."""
    found = object_at(value, *path) or {}
    return {key: one if isinstance(one, str) else "" for key, one in found.items()}
