"""Whether an applied configuration fits its type, before it is merged.

Unknown fields, values of a wrong form, and list items that have no key or the same key are found
here, with the texts of a real server.
"""

from __future__ import annotations

from typing import Any

from keepclose.apiserver.patch.field_sets import show_path
from keepclose.apiserver.patch.go_format import name_type, quote, show
from keepclose.apiserver.patch.shapes import Kind, StepError, shape_of, step_of
from keepclose.apiserver.schema.types import Form, Type

# The steps to a value, innermost first. They are put together for the few values that do not fit.
Path = tuple["Path", str] | None


def find_misfits(value: Any, described: Type, *, path: Path = None) -> list[str]:
    """Return what is wrong with an applied value, each with its path; null fits everywhere."""
    if value is None:
        return []
    match described.form:
        case Form.OBJECT | Form.MAP if described.fields or described.items is not None:
            return _check_map(value, described, path)
        case Form.LIST:
            return _check_list(value, described, path)
        case Form.STRING | Form.TIME if not isinstance(value, str):
            return [_at(path, f"expected string, got {_go(value)}")]
        case Form.BOOLEAN if not isinstance(value, bool):
            return [_at(path, f"expected boolean, got {_go(value, plain=True)}")]
        case Form.INTEGER | Form.NUMBER if isinstance(value, bool) or not isinstance(
            value, int | float
        ):
            return [_at(path, f"expected numeric (int or float), got {name_type(value)}")]
        case Form.QUANTITY | Form.INT_OR_STRING if isinstance(value, dict | list):
            return [_at(path, f"expected any scalar, got {_go(value, plain=True)}")]
        case _:
            return []


def _check_map(value: Any, described: Type, path: Path) -> list[str]:
    if not isinstance(value, dict):
        return [_at(path, f"expected map, got {_go(value, plain=True)}")]
    found: list[str] = []
    for name, one in value.items():
        below = described.fields.get(name, described.items)
        if below is None:
            found.append(_at((path, f"f:{name}"), "field not declared in schema"))
            break
        found += find_misfits(one, below, path=(path, f"f:{name}"))
    return found


def _check_list(value: Any, described: Type, path: Path) -> list[str]:
    if not isinstance(value, list):
        return [_at(path, f"expected list, got {_go(value, plain=True)}")]
    found: list[str] = []
    shape = shape_of(described)
    seen: set[str] = set()
    for number, one in enumerate(value):
        step = f"i:{number}"
        if shape is not None and shape.kind in {Kind.ITEMS, Kind.SET}:
            try:
                step = step_of(one, shape)
            except StepError as problem:
                found.append(_at(path, f"element {number}: {problem}"))
                break
            if step in seen:
                found.append(_at(path, f"duplicate entries for key {show_path([step])}"))
            seen.add(step)
        if described.items is not None:
            found += find_misfits(one, described.items, path=(path, step))
    return found


def _at(path: Path, text: str) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    return f"{show_path(reversed(steps))}: {text}" if steps else text


def _go(value: Any, *, plain: bool = False) -> str:
    if plain:
        return "&{" + show(value) + "}"
    shown = quote(value) if isinstance(value, str) else show(value)
    return "&value.valueUnstructured{Value:" + shown + "}"
