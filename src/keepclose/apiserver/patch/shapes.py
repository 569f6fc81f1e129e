"""What ownership needs to know of a type, laid out for quick walks.

A type is turned into a shape once and kept. Scalars, and lists, maps and objects that are applied
as a whole, have no shape: whoever sets them owns them in one piece.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from keepclose.apiserver.patch.go_format import encode_sorted
from keepclose.apiserver.schema.types import ListKind, Type, TypeForm


class ShapeKind(IntEnum):
    """How the parts of a value are told apart."""

    OBJECT = 0  # by the names of its fields
    MAP = 1  # by its keys
    ITEMS = 2  # by the key fields of its items
    SET = 3  # by value


class Shape:
    """The inside of a type: its named fields, or what it holds."""

    __slots__ = ("_named", "defaults", "empty", "fields", "keys", "kind", "of")

    def __init__(self, described: Type, kind: ShapeKind) -> None:
        self.kind = kind
        # A set has no keys.
        self.keys = described.list_keys if kind is ShapeKind.ITEMS else ()
        # What the key fields of an item stand for when they are left out.
        self.defaults: dict[str, Any] = {}
        if described.items is not None and described.list_keys:
            for name in described.list_keys:
                default = _default(described.items.fields.get(name))
                if default is not None:
                    self.defaults[name] = default
        # What a null stands for among the values of a map; None where it is left out.
        of_strings = described.items is not None and described.items.form is TypeForm.STRING
        self.empty = "" if kind is ShapeKind.MAP and of_strings else None
        # Fields that were met, with their step. None stands for what has no inside.
        self.fields: dict[str, tuple[str, Shape | None]] = {}
        self._named = described.fields
        self.of: Shape | None = None

    def field(self, name: str) -> tuple[str, Shape | None]:
        """Return the step to a field and its shape; an unknown field has none."""
        known = self.fields.get(name)
        if known is None:
            described = self._named.get(name)
            below = self.of if described is None else shape_of(described)
            known = f"f:{name}", below
            # NB: keys of maps come from users and must not pile up here.
            if described is not None:
                self.fields[name] = known
        return known

    def declares(self, name: str) -> bool:
        """Tell whether the type itself has a field of that name."""
        return name in self._named


_SHAPES: Final[dict[int, tuple[Type, Shape | None]]] = {}


def shape_of(described: Type) -> Shape | None:
    """Return the shape of a type; None where it is owned in one piece."""
    known = _SHAPES.get(id(described))
    if known is not None:
        return known[1]
    shape = _lay_out(described)
    # The type is kept with its shape, so that its id stays its own.
    _SHAPES[id(described)] = described, shape
    if shape is not None:
        shape.of = None if described.items is None else shape_of(described.items)
    return shape


def _default(key: Type | None) -> Any:
    if key is None:
        return None
    if key.default:
        return key.default
    # What is stored even when it is empty is published with that as its default.
    empty = {TypeForm.STRING: "", TypeForm.INTEGER: 0, TypeForm.BOOLEAN: False}
    return None if key.omits_empty else empty.get(key.form)


def _lay_out(described: Type) -> Shape | None:
    if described.atomic:
        return None
    match described.form:
        case TypeForm.OBJECT if described.fields:
            return Shape(described, ShapeKind.OBJECT)
        case TypeForm.MAP:
            return Shape(described, ShapeKind.MAP)
        case TypeForm.LIST if described.list_kind is ListKind.MAP and described.list_keys:
            return Shape(described, ShapeKind.ITEMS)
        case TypeForm.LIST if described.list_kind is ListKind.SET:
            return Shape(described, ShapeKind.SET)
        case _:
            return None


_PLAIN: Final = frozenset({str, int})
# Texts that are the same within JSON: neither quotes nor what HTML trips over.
_UNESCAPED: Final = re.compile(r"[ !#-%'-;=?-\[\]-~]*").fullmatch


class StepError(ValueError):
    """An item that a list cannot tell from the others."""


def step_of(item: Any, shape: Shape) -> str:
    """Return the step to an item of a list.

    A key field that is left out has its default; without one it is no part of the key. Raises
    StepError with the text of a real server where there is no key at all.
    """
    keys = shape.keys
    if not keys:
        return _step_of_value(item)
    if type(item) is not dict:
        kind = "a null element" if item is None else "non-map elements"
        raise StepError(f"associative list with keys may not have {kind}")
    # The usual lists have one key or two.
    first = item.get(keys[0])
    if type(first) in _PLAIN:
        if len(keys) == 1:
            return _key_step(keys[0], first)
        second = item.get(keys[1])
        if type(second) in _PLAIN and len(keys) == 2:
            return _pair_step(keys[0], first, keys[1], second)
    found = {}
    for name in keys:
        value = item[name] if name in item else shape.defaults.get(name)
        if value is not None:
            found[name] = value
    if not found:
        names = "[" + " ".join(f'"{name}"' for name in keys) + "]"
        raise StepError(
            f"associative list with keys has an element that omits all key fields {names}"
            " (and doesn't have default values for any key fields)"
        )
    return "k:" + encode_sorted(found)


def _step_of_value(item: Any) -> str:
    if isinstance(item, dict):
        raise StepError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise StepError("not supported: associative list with lists as elements")
    if item is None:
        raise StepError("associative list without keys has an element that's an explicit null")
    return _value_step(item)


@lru_cache(maxsize=16384, typed=True)
def _key_step(name: str, value: str | int) -> str:
    return f'k:{{"{name}":{_encode_plain(value)}}}'


@lru_cache(maxsize=16384, typed=True)
def _pair_step(one: str, first: str | int, two: str, second: str | int) -> str:
    if two < one:
        one, first, two, second = two, second, one, first
    return f'k:{{"{one}":{_encode_plain(first)},"{two}":{_encode_plain(second)}}}'


def _encode_plain(value: str | int) -> str:
    """Return a string or a number as JSON; an encoder is asked only where something is escaped."""
    if type(value) is str:
        return f'"{value}"' if _UNESCAPED(value) else encode_sorted(value)
    return str(value)


@lru_cache(maxsize=16384, typed=True)
def _value_step(value: str | float | bool) -> str:
    plain = type(value) in _PLAIN
    return "v:" + (_encode_plain(value) if plain else encode_sorted(value))  # type: ignore[arg-type]
