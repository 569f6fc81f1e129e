"""Values of a known type: which fields they set, how two of them merge, what is cut out of one.

Lists merge by the keys of their items or by value, maps and objects by name; what is owned in one
piece is replaced. Merging never removes anything; removal is told by a set of fields. All values
are known to fit their type.
"""

from __future__ import annotations

from typing import Any, Final

from keepclose.apiserver.patch.field_sets import LEAF, FieldSet, show_path
from keepclose.apiserver.patch.go_format import go_quote, name_type, show
from keepclose.apiserver.patch.shapes import Shape, ShapeKind, StepError, shape_of, step_of
from keepclose.apiserver.schema.types import Type, TypeForm
from keepclose.model.json_values import JsonObject

# The steps to a value, innermost first. They are put together for the few values that do not fit.
Path = tuple["Path", str] | None


class _Absent:
    """Stands where there is no value, not even null."""


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
        for name, one in value.items():
            step, below = shape.field(name)
            inside = LEAF if below is None else list_fields(one, below)
            member = below is None or one is None or one == {} or not shape.declares(name)
            if member or inside:
                out[step] = _enter(inside) if member else inside
        return out
    for one in value:
        step = step_of(one, shape)
        # Items that occur twice are owned together, without a look inside.
        out[step] = LEAF if step in out else _enter(list_fields(one, shape.of))
    return out


def _enter(inside: FieldSet) -> FieldSet:
    return {".": LEAF, **inside} if inside else LEAF


def name_containers(fields: FieldSet, shape: Shape | None) -> FieldSet:
    """Return the set with the named fields that lead to its members as members too."""
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
    """Return the live value with the applied one merged in; both may be shared by the result."""
    if live is _ABSENT or shape is None or (not live and not applied):
        return applied
    if shape.kind is ShapeKind.OBJECT or shape.kind is ShapeKind.MAP:
        return _merge_fields(live or {}, applied or {}, shape)
    return _merge_items(live or [], applied or [], shape)


def _merge_fields(live: JsonObject, applied: JsonObject, shape: Shape) -> JsonObject:
    out = dict(live)
    for name, one in applied.items():
        out[name] = merge_values(live.get(name, _ABSENT), one, shape.field(name)[1])
    return out


def _merge_items(live: list[Any], applied: list[Any], shape: Shape) -> list[Any]:
    """Return the items of both: shared ones in the applied order, live ones where they stood."""
    right = [step_of(one, shape) for one in applied]
    theirs = dict(zip(right, applied, strict=True))
    left = [step_of(one, shape) for one in live]
    mine: dict[str, Any] = {}
    for step, one in zip(left, live, strict=True):
        # Twins are not merged with anything.
        mine[step] = None if step in mine else one
    shared = [step for step in right if step in mine]
    shared.reverse()
    awaited = shared.pop() if shared else None
    out: list[Any] = []
    taken: set[str] = set()
    at = to = 0
    while at < len(left) or to < len(right):
        if at < len(left) and to < len(right):
            step = left[at]
            if step == right[to]:
                taken.add(step)
                out.append(merge_values(mine[step], theirs[step], shape.of))
                at += 1
                to += 1
                awaited = shared.pop() if shared else None
                continue
            if step in theirs and awaited is not None and awaited != step:
                # Shared, but another one comes first.
                at += 1
                continue
        if at < len(left):
            step = left[at]
            if step not in theirs:
                out.append(live[at])
                at += 1
                continue
            if step in taken:
                at += 1
        if to < len(right):
            step = right[to]
            taken.add(step)
            out.append(merge_values(mine.get(step, _ABSENT), theirs[step], shape.of))
            to += 1
            if awaited == step:
                awaited = shared.pop() if shared else None
    return out


def settle_nulls(value: Any, shape: Shape | None) -> Any:
    """Return the value as it is once it was stored: fields that are null are not there.

    In a map of strings a null is an empty string.
    """
    if isinstance(value, dict):
        empty = None if shape is None else shape.empty
        out = {}
        for name, one in value.items():
            settled = empty if one is None else one
            if isinstance(settled, dict | list):
                settled = settle_nulls(settled, None if shape is None else shape.field(name)[1])
            if settled is not None:
                out[name] = settled
        return out
    if isinstance(value, list):
        below = None if shape is None else shape.of
        return [settle_nulls(one, below) for one in value]
    return value


def remove_fields(value: Any, fields: FieldSet, shape: Shape | None) -> Any:
    """Return the value without the fields of the set; None when nothing is left of it."""
    if shape is None or not value:
        return None if isinstance(value, dict | list) else value
    if shape.kind is ShapeKind.OBJECT or shape.kind is ShapeKind.MAP:
        out: JsonObject = {}
        for name, one in value.items():
            step, below = shape.field(name)
            marked = fields.get(step)
            if marked is None:
                out[name] = one
            elif marked and "." not in marked:
                # NB: a container that is left with nothing is null, not gone: others may own it.
                out[name] = remove_fields(one, marked, below)
        return out or None
    items = []
    for one in value:
        marked = fields.get(step_of(one, shape))
        if marked is None:
            items.append(one)
        elif marked and "." not in marked:
            items.append(remove_fields(one, marked, shape.of))
    return items or None


def find_misfits(value: Any, described: Type, *, path: Path = None) -> list[str]:
    """Return what is wrong with an applied value, each with its path; null fits everywhere."""
    if value is None:
        return []
    match described.form:
        case TypeForm.OBJECT | TypeForm.MAP if described.fields or described.items is not None:
            return _check_map(value, described, path)
        case TypeForm.LIST:
            return _check_list(value, described, path)
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
        if shape is not None and shape.kind in {ShapeKind.ITEMS, ShapeKind.SET}:
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
    shown = go_quote(value) if isinstance(value, str) else show(value)
    return "&value.valueUnstructured{Value:" + shown + "}"
