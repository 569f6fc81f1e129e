"""Values of a type: which fields they set, how two merge, what is removed, and whether they match.

Lists merge by the keys of their items or by value, maps and objects by name; an atomic value is
replaced. Merging never removes anything; a set of fields names what is removed. All these values
must match their type. `find_type_errors` checks that before an applied configuration is merged:
unknown fields, values of a wrong type, and list items without a key or with a duplicate key, with
the texts of kube-apiserver.
"""

from __future__ import annotations

from typing import Any, Final

from keepclose.apiserver.patch.field_sets import LEAF, FieldSet, show_path
from keepclose.apiserver.patch.go_format import go_quote, name_type, show
from keepclose.apiserver.patch.shapes import Shape, ShapeKind, StepError, shape_of, step_of
from keepclose.apiserver.schema.types import Type, TypeForm
from keepclose.model.json_values import JsonObject

# The steps to a value, innermost first. They are joined only for the few values with errors.
Path = tuple["Path", str] | None


class _Absent:
    """Marks a missing value; null is a value."""


_ABSENT: Final = _Absent()


def list_fields(value: Any, shape: Shape | None) -> FieldSet:
    """Return the fields that a value sets.

    Named containers count only when they are empty or null; items of lists and keys of maps
    always do.
    """
    out: FieldSet = {}
    if shape is None or not value:
        return out
    if shape.kind is ShapeKind.OBJECT or shape.kind is ShapeKind.MAP:
        for name, child in value.items():
            step, child_shape = shape.field(name)
            inside = LEAF if child_shape is None else list_fields(child, child_shape)
            # An atomic, null or empty value, or one that the type does not declare by name.
            is_member = (
                child_shape is None or child is None or child == {} or not shape.declares(name)
            )
            if is_member or inside:
                out[step] = _with_itself(inside) if is_member else inside
        return out
    for item in value:
        step = step_of(item, shape)
        # Duplicate items have one owner, and their fields are not listed.
        out[step] = LEAF if step in out else _with_itself(list_fields(item, shape.of))
    return out


def name_containers(fields: FieldSet, shape: Shape | None) -> FieldSet:
    """Return the set with the named fields that contain its members as members too."""
    out: FieldSet = {}
    for step, below in fields.items():
        if not below or shape is None:
            out[step] = below
            continue
        if step.startswith("f:"):
            inside = name_containers(below, shape.field(step[2:])[1])
            named = "." not in inside and shape.declares(step[2:])
            out[step] = {".": LEAF, **inside} if named else inside
        else:
            out[step] = name_containers(below, shape.of)
    return out


def merge_values(live: Any, applied: Any, shape: Shape | None) -> Any:
    """Return the live value with the applied one merged in; the result may share parts of both."""
    if live is _ABSENT or shape is None or (not live and not applied):
        return applied
    if shape.kind is ShapeKind.OBJECT or shape.kind is ShapeKind.MAP:
        return _merge_fields(live or {}, applied or {}, shape)
    return _merge_items(live or [], applied or [], shape)


def resolve_nulls(value: Any, shape: Shape | None) -> Any:
    """Return the value in its stored form: null fields are dropped.

    In a map of strings a null is an empty string.
    """
    if isinstance(value, dict):
        empty = None if shape is None else shape.empty
        out = {}
        for name, child in value.items():
            resolved = empty if child is None else child
            if isinstance(resolved, dict | list):
                resolved = resolve_nulls(resolved, None if shape is None else shape.field(name)[1])
            if resolved is not None:
                out[name] = resolved
        return out
    if isinstance(value, list):
        item_shape = None if shape is None else shape.of
        return [resolve_nulls(child, item_shape) for child in value]
    return value


def remove_fields(value: Any, fields: FieldSet, shape: Shape | None) -> Any:
    """Return the value without the fields of the set; None when nothing is left of it."""
    if shape is None or not value:
        return None if isinstance(value, dict | list) else value
    if shape.kind is ShapeKind.OBJECT or shape.kind is ShapeKind.MAP:
        out: JsonObject = {}
        for name, child in value.items():
            step, child_shape = shape.field(name)
            removed = fields.get(step)
            if removed is None:
                out[name] = child
            elif removed and "." not in removed:
                # NB: an emptied container becomes null and stays: another manager may own it.
                out[name] = remove_fields(child, removed, child_shape)
        return out or None
    items = []
    for item in value:
        removed = fields.get(step_of(item, shape))
        if removed is None:
            items.append(item)
        elif removed and "." not in removed:
            items.append(remove_fields(item, removed, shape.of))
    return items or None


def find_type_errors(value: Any, value_type: Type, *, path: Path = None) -> list[str]:
    """Return the type errors of an applied value, each with its path; null matches every type."""
    if value is None:
        return []
    match value_type.form:
        case TypeForm.OBJECT | TypeForm.MAP if value_type.fields or value_type.items is not None:
            return _check_map(value, value_type, path)
        case TypeForm.LIST:
            return _check_list(value, value_type, path)
        case TypeForm.STRING | TypeForm.TIME if not isinstance(value, str):
            return [_at(path, f"expected string, got {_go(value)}")]
        case TypeForm.BOOLEAN if not isinstance(value, bool):
            return [_at(path, f"expected boolean, got {_go(value, plain=True)}")]
        case TypeForm.INTEGER | TypeForm.NUMBER if isinstance(value, bool) or not isinstance(
            value, int | float
        ):
            return [_at(path, f"expected numeric (int or float), got {name_type(value)}")]
        case TypeForm.QUANTITY | TypeForm.INT_OR_STRING if isinstance(value, dict | list):
            return [_at(path, f"expected any scalar, got {_go(value, plain=True)}")]
        case _:
            return []


def _with_itself(inside: FieldSet) -> FieldSet:
    return {".": LEAF, **inside} if inside else LEAF


def _merge_fields(live: JsonObject, applied: JsonObject, shape: Shape) -> JsonObject:
    out = dict(live)
    for name, child in applied.items():
        out[name] = merge_values(live.get(name, _ABSENT), child, shape.field(name)[1])
    return out


def _merge_items(live: list[Any], applied: list[Any], shape: Shape) -> list[Any]:
    """Return the items of both: common ones in the applied order, live ones at their position."""
    right = [step_of(item, shape) for item in applied]
    applied_items = dict(zip(right, applied, strict=True))
    left = [step_of(item, shape) for item in live]
    live_items: dict[str, Any] = {}
    for step, item in zip(left, live, strict=True):
        # Duplicate items are not merged with anything.
        live_items[step] = None if step in live_items else item
    common = [step for step in right if step in live_items]
    common.reverse()
    awaited = common.pop() if common else None
    out: list[Any] = []
    taken: set[str] = set()
    at = to = 0
    while at < len(left) or to < len(right):
        if at < len(left) and to < len(right):
            step = left[at]
            if step == right[to]:
                taken.add(step)
                out.append(merge_values(live_items[step], applied_items[step], shape.of))
                at += 1
                to += 1
                awaited = common.pop() if common else None
                continue
            if step in applied_items and awaited is not None and awaited != step:
                # In both lists, but another common item comes first.
                at += 1
                continue
        if at < len(left):
            step = left[at]
            if step not in applied_items:
                out.append(live[at])
                at += 1
                continue
            if step in taken:
                at += 1
        if to < len(right):
            step = right[to]
            taken.add(step)
            out.append(merge_values(live_items.get(step, _ABSENT), applied_items[step], shape.of))
            to += 1
            if awaited == step:
                awaited = common.pop() if common else None
    return out


def _check_map(value: Any, value_type: Type, path: Path) -> list[str]:
    if not isinstance(value, dict):
        return [_at(path, f"expected map, got {_go(value, plain=True)}")]
    errors: list[str] = []
    for name, child in value.items():
        child_type = value_type.fields.get(name, value_type.items)
        if child_type is None:
            errors.append(_at((path, f"f:{name}"), "field not declared in schema"))
            break
        errors += find_type_errors(child, child_type, path=(path, f"f:{name}"))
    return errors


def _check_list(value: Any, value_type: Type, path: Path) -> list[str]:
    if not isinstance(value, list):
        return [_at(path, f"expected list, got {_go(value, plain=True)}")]
    errors: list[str] = []
    shape = shape_of(value_type)
    seen: set[str] = set()
    for number, item in enumerate(value):
        step = f"i:{number}"
        if shape is not None and shape.kind in {ShapeKind.ITEMS, ShapeKind.SET}:
            try:
                step = step_of(item, shape)
            except StepError as problem:
                errors.append(_at(path, f"element {number}: {problem}"))
                break
            if step in seen:
                errors.append(_at(path, f"duplicate entries for key {show_path([step])}"))
            seen.add(step)
        if value_type.items is not None:
            errors += find_type_errors(item, value_type.items, path=(path, step))
    return errors


def _at(path: Path, text: str) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    return f"{show_path(reversed(steps))}: {text}" if steps else text


def _go(value: Any, *, plain: bool = False) -> str:
    if plain:
        return "&{" + show(value) + "}"
    shown = go_quote(value) if isinstance(value, str) else show(value)
    return "&value.valueUnstructured{Value:" + shown + "}"
