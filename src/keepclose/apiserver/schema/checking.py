"""One function a type, made once, that checks a value and brings it to its stored form.

Every write of every object passes here, so the common cases, a string or a boolean where one is
due, take no call at all. A checker gets the value, and the place that holds it for the rare case
that it is stored otherwise; it returns None when all is well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from keepclose.apiserver.schema.types import ANY, Form, Type
from keepclose.apiserver.schemas.findings import (
    Checker,
    Found,
    Problem,
    find_too_deep,
    find_wrong,
    join_findings,
)
from keepclose.apiserver.schemas.scalarcheckers import SCALAR_CHECKERS

# What null stands for inside a list or a map. Objects are made anew each time.
_EMPTIES: Final[dict[Form, Any]] = {
    Form.STRING: "",
    Form.INTEGER: 0,
    Form.NUMBER: 0,
    Form.BOOLEAN: False,
    Form.QUANTITY: "0",
    Form.INT_OR_STRING: 0,
}


_checkers: dict[int, tuple[Type, Checker]] = {}


class _NoType:
    """The type of no JSON value."""


def checker_of(shape: Type) -> Checker:
    """Return the checker of a type; the same one for the same type."""
    known = _checkers.get(id(shape))
    if known is None:
        # The type is kept beside its checker, so that its id is never given to another.
        known = _checkers[id(shape)] = (shape, _MAKERS[shape.form](shape))
    return known[1]


def _object_checker(shape: Type) -> Checker:
    exact = {Form.STRING: str, Form.BOOLEAN: bool}
    entries = {
        name: (
            _NoType if below.format else exact.get(below.form, _NoType),
            not below.omits_empty,
            checker_of(below),
            f"{below.embedded}.{name}" if below.embedded else name,
        )
        for name, below in shape.fields.items()
    }
    find = entries.get
    struct = shape.go_type[3:]

    def check(value: Any, _holder: Any, _key: Any) -> Found:
        if type(value) is not dict:
            return find_wrong(value, shape.go_type)
        found: Found = None
        dropped: list[str] | None = None
        for key, child in value.items():
            entry = find(key)
            if entry is None:
                inner = find_too_deep(child) or [Problem(is_unknown=True, path=[f".{key}"])]
            else:
                kind, keeps_empty, checker, step = entry
                if type(child) is kind:
                    if child or keeps_empty:
                        continue
                    inner = None
                elif child is not None:
                    inner = checker(child, value, key)
                    if inner is None and (keeps_empty or child):
                        continue
                else:
                    inner = None
                if inner is not None:
                    for problem in inner:
                        problem.struct = problem.struct or struct
                        problem.stack.append(step)
                        problem.path.append(f".{key}")
            if inner is not None:
                found = join_findings(found, inner)
                if inner[-1].final:
                    return found
            if entry is None or inner is None:
                if dropped is None:
                    dropped = []
                dropped.append(key)
        if dropped is not None:
            for key in dropped:
                del value[key]
        return found

    return check


def _list_checker(shape: Type) -> Checker:
    items, below = _items(shape)
    check_item = checker_of(items)
    plain = _is_plain_string(items)

    def check(value: Any, _holder: Any, _key: Any) -> Found:
        if type(value) is not list:
            return find_wrong(value, below)
        found: Found = None
        for index, item in enumerate(value):
            if plain and type(item) is str:
                continue
            if item is None:
                value[index] = _empty(items)
                continue
            inner = check_item(item, value, index)
            if inner is not None:
                found = _within(found, inner, f"[{index}]")
                if inner[-1].final:
                    break
        return found

    return check


def _map_checker(shape: Type) -> Checker:
    items, below = _items(shape)
    check_item = checker_of(items)
    plain = _is_plain_string(items)

    def check(value: Any, _holder: Any, _key: Any) -> Found:
        if type(value) is not dict:
            return find_wrong(value, below)
        found: Found = None
        for key, item in value.items():
            if plain and type(item) is str:
                continue
            if item is None:
                value[key] = _empty(items)
                continue
            inner = check_item(item, value, key)
            if inner is not None:
                found = _within(found, inner, f".{key}")
                if inner[-1].final:
                    break
        return found

    return check


_MAKERS: Final[dict[Form, Callable[[Type], Checker]]] = SCALAR_CHECKERS | {
    Form.LIST: _list_checker,
    Form.MAP: _map_checker,
    Form.OBJECT: _object_checker,
}


def _items(shape: Type) -> tuple[Type, str]:
    return shape.items or ANY, shape.go_type


def _is_plain_string(shape: Type) -> bool:
    return shape.form is Form.STRING and not shape.format


def _empty(shape: Type) -> Any:
    return {} if shape.form is Form.OBJECT else _EMPTIES.get(shape.form)


def _within(found: Found, inner: list[Problem], step: str) -> list[Problem]:
    for problem in inner:
        problem.path.append(step)
    return join_findings(found, inner)
