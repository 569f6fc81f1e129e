"""The structure of a type that ownership needs, laid out for quick walks.

A type is converted to a shape once, and the shape is kept. Scalars, and lists, maps and objects
that are atomic, have no shape: the manager that sets such a value owns it as a whole.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from keepclose.apiserver.patch.go_format import encode_sorted
from keepclose.apiserver.schema.types import ListKind, Type, TypeForm

_PLAIN: Final = frozenset({str, int})
# Texts that need no escapes in JSON: neither quotes nor the characters that are unsafe in HTML.
_UNESCAPED: Final = re.compile(r"[ !#-%'-;=?-\[\]-~]*").fullmatch
_SHAPES: Final[dict[int, tuple[Type, Shape | None]]] = {}


class StepError(ValueError):
    """The reason why an item of a list has no identity."""


class ShapeKind(IntEnum):
    """How the parts of a value are identified."""

    OBJECT = 0  # by the names of its fields
    MAP = 1  # by its keys
    ITEMS = 2  # by the key fields of its items
    SET = 3  # by value


class Shape:
    """The structure of a type: its named fields, or the shape of its items."""

    __slots__ = ("_named", "defaults", "empty", "fields", "keys", "kind", "of")

    def __init__(self, object_type: Type, kind: ShapeKind) -> None:
        self.kind = kind
        # A set has no keys.
        self.keys = object_type.list_keys if kind is ShapeKind.ITEMS else ()
        # The values of absent key fields of an item.
        self.defaults: dict[str, Any] = {}
        if object_type.items is not None and object_type.list_keys:
            for name in object_type.list_keys:
                default = _default(object_type.items.fields.get(name))
                if default is not None:
                    self.defaults[name] = default
        # The value that replaces null in a map; None where null is dropped.
        of_strings = object_type.items is not None and object_type.items.form is TypeForm.STRING
        self.empty = "" if kind is ShapeKind.MAP and of_strings else None
        # Fields that were looked up, with their step; None for a field without a shape.
        self.fields: dict[str, tuple[str, Shape | None]] = {}
        self._named = object_type.fields
        self.of: Shape | None = None

    def field(self, name: str) -> tuple[str, Shape | None]:
        """Return the step to a field and its shape; an unknown field has none."""
        cached = self.fields.get(name)
        if cached is None:
            field_type = self._named.get(name)
            child_shape = self.of if field_type is None else shape_of(field_type)
            cached = f"f:{name}", child_shape
            # NB: keys of maps come from users and must not accumulate here.
            if field_type is not None:
                self.fields[name] = cached
        return cached

    def declares(self, name: str) -> bool:
        """Return whether the type itself has a field of that name."""
        return name in self._named


def shape_of(object_type: Type) -> Shape | None:
    """Return the shape of a type; None when it is owned as a whole."""
    cached = _SHAPES.get(id(object_type))
    if cached is not None:
        return cached[1]
    shape = _build_shape(object_type)
    # The type is kept with its shape, so that its id is never reused.
    _SHAPES[id(object_type)] = object_type, shape
    if shape is not None:
        shape.of = None if object_type.items is None else shape_of(object_type.items)
    return shape


def step_of(item: Any, shape: Shape) -> str:
    """Return the step to an item of a list.

    An absent key field has its default; without one it is no part of the key. Raises StepError
    with the text of kube-apiserver when there is no key at all.
    """
    keys = shape.keys
    if not keys:
        return _step_of_value(item)
    if type(item) is not dict:
        kind = "a null element" if item is None else "non-map elements"
        raise StepError(f"associative list with keys may not have {kind}")
    # Most lists have one or two keys.
    first = item.get(keys[0])
    if type(first) in _PLAIN:
        if len(keys) == 1:
            return _key_step(keys[0], first)
        second = item.get(keys[1])
        if type(second) in _PLAIN and len(keys) == 2:
            return _pair_step(keys[0], first, keys[1], second)
    key_values = {}
    for name in keys:
        value = item[name] if name in item else shape.defaults.get(name)
        if value is not None:
            key_values[name] = value
    if not key_values:
        names = "[" + " ".join(f'"{name}"' for name in keys) + "]"
        raise StepError(
            f"associative list with keys has an element that omits all key fields {names}"
            " (and doesn't have default values for any key fields)"
        )
    return "k:" + encode_sorted(key_values)


def _default(key: Type | None) -> Any:
    if key is None:
        return None
    if key.default is not None:
        return key.default
    # A field that is stored even when empty is published with the empty value as its default.
    empty = {TypeForm.STRING: "", TypeForm.INTEGER: 0, TypeForm.BOOLEAN: False}
    return None if key.omits_empty else empty.get(key.form)


def _build_shape(object_type: Type) -> Shape | None:
    if object_type.atomic:
        return None
    match object_type.form:
        case TypeForm.OBJECT if object_type.fields:
            return Shape(object_type, ShapeKind.OBJECT)
        case TypeForm.MAP:
            return Shape(object_type, ShapeKind.MAP)
        case TypeForm.LIST if object_type.list_kind is ListKind.MAP and object_type.list_keys:
            return Shape(object_type, ShapeKind.ITEMS)
        case TypeForm.LIST if object_type.list_kind is ListKind.SET:
            return Shape(object_type, ShapeKind.SET)
        case _:
            return None


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
def _pair_step(first_name: str, first: str | int, second_name: str, second: str | int) -> str:
    if second_name < first_name:
        first_name, first, second_name, second = second_name, second, first_name, first
    return f'k:{{"{first_name}":{_encode_plain(first)},"{second_name}":{_encode_plain(second)}}}'


def _encode_plain(value: str | int) -> str:
    """Return a string or a number as JSON; the encoder runs only for texts with escapes."""
    if type(value) is str:
        return f'"{value}"' if _UNESCAPED(value) else encode_sorted(value)
    return str(value)


@lru_cache(maxsize=16384, typed=True)
def _value_step(value: str | float | bool) -> str:
    plain = type(value) in _PLAIN
    return "v:" + (_encode_plain(value) if plain else encode_sorted(value))  # type: ignore[arg-type]
