"""What a table is made of: columns, and for each kind the way from an object to its cells.

A column of priority 1 is shown by `kubectl get -o wide` only; the server always sends all. Cells
are texts or whole numbers: kubectl sorts and aligns by what it is sent, so a cell has the JSON
type that kube-apiserver gives it, even where the column's type says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from keepclose.apiserver.tables.ages import age_of
from keepclose.apiserver.tables.fields import text_at, value_at
from keepclose.model.json_values import JsonObject

NONE: Final = "<none>"

Cell = str | int
Cells = list[Cell]


class Column(msgspec.Struct, frozen=True):
    """The head of a column."""

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

    columns: tuple[Column, ...]
    # From an object and the current time in seconds since 1970 to one cell a column.
    cells: Callable[[JsonObject, float], Cells]
    # What is to be said of the whole row, such as that its pod is done.
    conditions: Callable[[JsonObject], list[JsonObject]] = _no_conditions


NAME: Final = Column("Name", "Name of the object, unique within its namespace.", format="name")
AGE: Final = Column("Age", "Time since the object was created.")


def wide(name: str, description: str) -> Column:
    """Return a column that is shown on request only."""
    return Column(name, description, priority=1)


def whole_number(name: str, description: str) -> Column:
    """Return a column of whole numbers."""
    return Column(name, description, type="integer")


def name_of(item: JsonObject) -> str:
    """Return an object's name."""
    return text_at(item, "metadata", "name")


def age(item: JsonObject, now: float) -> str:
    """Return how long ago an object was created."""
    return age_of(value_at(item, "metadata", "creationTimestamp"), now)
