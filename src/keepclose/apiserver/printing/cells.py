"""What printers are built from: columns, and functions that read fields and format cells.

A column of priority 1 is shown by `kubectl get -o wide` only; the server always sends all. Cells
are texts or whole numbers: kubectl sorts and aligns by the type of a cell, so a cell has the JSON
type that kube-apiserver gives it, even where the column's type says otherwise. A field that is
absent, null or of another type reads as the empty value of the requested type, as in Go, and
nothing here raises: a table of a thousand rows must not fail because of one object.

Ages have the two or three figures that kubectl shows: seconds up to two minutes, then "5m10s",
"42m", "3h5m", "26h", "3d4h", "200d", "2y5d", "9y". A moment up to a second ahead counts as now,
because clocks differ; a later one is "<invalid>", and a missing one is "<unknown>". Labels are
sorted as pairs, the requirements of a selector by key. An invalid selector has no text; each kind
prints its own placeholder for it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import label_value, qualified_name

UNKNOWN: Final = "<unknown>"
NONE: Final = "<none>"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO: Final = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000
# The longest duration in Go, which counts nanoseconds in 64 bits.
_LONGEST: Final = (2**63 - 1) // 1000
_SETS: Final = {"In": "in", "NotIn": "notin"}
_PRESENCE: Final = {"Exists": "", "DoesNotExist": "!"}

_Cell = str | int
Cells = list[_Cell]


def value_at(value: object, *path: str) -> object:
    """Return the value at the path, or None."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def text_at(value: object, *path: str) -> str:
    """Return the string at the path, or an empty one."""
    text = value_at(value, *path)
    return text if isinstance(text, str) else ""


def number_at(value: object, *path: str, default: int = 0) -> int:
    """Return the whole number at the path, or the default."""
    number = value_at(value, *path)
    return number if isinstance(number, int) and not isinstance(number, bool) else default


def is_set(value: object, *path: str) -> bool:
    """Return whether the flag at the path is true."""
    return value_at(value, *path) is True


def object_at(value: object, *path: str) -> JsonObject | None:
    """Return the object at the path, which may be empty, or None."""
    child = value_at(value, *path)
    return child if isinstance(child, dict) else None


def list_at(value: object, *path: str) -> list[object]:
    """Return the list at the path, or an empty one."""
    items = value_at(value, *path)
    return items if isinstance(items, list) else []


def texts_at(value: object, *path: str) -> list[str]:
    """Return the strings of the list at the path; an item of another type reads as ""."""
    return [text if isinstance(text, str) else "" for text in list_at(value, *path)]


def pairs_at(value: object, *path: str) -> dict[str, str]:
    """Return the map of strings at the path, such as labels, or an empty one."""
    pairs = object_at(value, *path) or {}
    return {key: text if isinstance(text, str) else "" for key, text in pairs.items()}


def parse_creation_time(stamp: object) -> datetime | None:
    """Return the moment of an RFC 3339 text in UTC; None for the zero time and for other texts."""
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.fromisoformat(stamp)
        if moment.tzinfo is None:
            return None
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return None if moment == _ZERO else moment


def age_of(stamp: object, now: float) -> str:
    """Return how long before `now`, in seconds since 1970, the stamp lies."""
    moment = parse_creation_time(stamp)
    return UNKNOWN if moment is None else age_since(moment, now)


def age_since(moment: datetime, now: float) -> str:
    """Return how long before `now` the moment lies."""
    # NB: whole microseconds, because differences of such large doubles are slightly too small.
    passed = round(now * _SECOND) - (moment - _EPOCH) // _MICROSECOND
    return human_duration(min(passed, _LONGEST))


def human_duration(microseconds: int) -> str:
    """Return a duration as kubectl shows it."""
    if microseconds <= -2 * _SECOND:
        return "<invalid>"
    if microseconds < 0:
        return "0s"
    seconds = microseconds // _SECOND
    minutes, hours = seconds // 60, seconds // 3600
    days = hours // 24
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def show_labels(labels: dict[str, str]) -> str:
    """Return labels as "a=b,c=d", or "<none>"."""
    return ",".join(sorted(f"{key}={value}" for key, value in labels.items())) or NONE


def show_selector(item: object, *path: str) -> str | None:
    """Return the selector at the path as a text: "" without requirements, None if it is invalid."""
    selector = object_at(item, *path)
    requirements: list[tuple[str, str]] = []
    for key, value in pairs_at(selector, "matchLabels").items():
        if qualified_name(key) or label_value(value):
            return None
        requirements.append((key, f"{key}={value}"))
    for expression in list_at(selector, "matchExpressions"):
        text = _show_expression(expression)
        if text is None:
            return None
        requirements.append((text_at(expression, "key"), text))
    requirements.sort(key=lambda requirement: requirement[0])
    return ",".join(text for _, text in requirements)


class TableColumn(msgspec.Struct, frozen=True):
    """The definition of a column."""

    name: str
    description: str
    type: str = "string"
    format: str = ""
    priority: int = 0

    def definition(self) -> JsonObject:
        """Return the column as a Table declares it."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def _no_conditions(_: JsonObject) -> list[JsonObject]:
    return []


class Printer(msgspec.Struct, frozen=True):
    """How the objects of one kind are printed."""

    columns: tuple[TableColumn, ...]
    # From an object and the current time in seconds since 1970 to one cell a column.
    cells: Callable[[JsonObject, float], Cells]
    # Conditions of the whole row, such as that its pod has completed.
    conditions: Callable[[JsonObject], list[JsonObject]] = _no_conditions


NAME: Final = TableColumn("Name", "Name of the object, unique within its namespace.", format="name")
AGE: Final = TableColumn("Age", "Time since the object was created.")


def wide(name: str, description: str) -> TableColumn:
    """Return a column that only `-o wide` shows."""
    return TableColumn(name, description, priority=1)


def whole_number(name: str, description: str) -> TableColumn:
    """Return a column of whole numbers."""
    return TableColumn(name, description, type="integer")


def object_name(item: JsonObject) -> str:
    """Return an object's name."""
    return text_at(item, "metadata", "name")


def age(item: JsonObject, now: float) -> str:
    """Return how long ago an object was created."""
    return age_of(value_at(item, "metadata", "creationTimestamp"), now)


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def _show_expression(expression: object) -> str | None:
    key, operator = text_at(expression, "key"), text_at(expression, "operator")
    values = texts_at(expression, "values")
    if qualified_name(key) or any(label_value(value) for value in values):
        return None
    if operator in _PRESENCE and not values:
        return _PRESENCE[operator] + key
    if operator in _SETS and values:
        return f"{key} {_SETS[operator]} ({','.join(sorted(values))})"
    return None
