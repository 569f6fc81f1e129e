"""Which fields differ between two states of an object.

It runs with every write of the server, so it is one walk that stops wherever both sides are equal.
A new field is listed with everything below it, containers too; so is a removed one. Null is a
value: stored objects have none, but the merged objects of an apply do. Names and system metadata of
an object have no owner and are never listed.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Final

from keepclose.apiserver.patch.field_sets import LEAF, FieldSet, sort_steps
from keepclose.apiserver.patch.shapes import Shape, ShapeKind, step_of
from keepclose.model.json_values import JsonObject

UNOWNED: Final = frozenset({"apiVersion", "kind"})
UNOWNED_METADATA: Final = frozenset(
    {
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    }
)
_OBJECT: Final = ShapeKind.OBJECT
_MAP: Final = ShapeKind.MAP
# Null counts as an empty container of either kind.
_MAPPED: Final = (dict, NoneType)
_LISTED: Final = (list, NoneType)


def compare_objects(
    old: JsonObject, new: JsonObject, shape: Shape, ignored: frozenset[str]
) -> tuple[FieldSet, FieldSet]:
    """Return the fields that are new or have changed, and those that were removed.

    `ignored` are names of top-level fields that do not count. Raises StepError when a list has
    items without keys.
    """
    removed: FieldSet = {}
    before = {
        name: value for name, value in old.items() if name not in UNOWNED and name not in ignored
    }
    after = {
        name: value for name, value in new.items() if name not in UNOWNED and name not in ignored
    }
    for side in (before, after):
        if isinstance(metadata := side.get("metadata"), dict):
            side["metadata"] = {
                name: value for name, value in metadata.items() if name not in UNOWNED_METADATA
            }
    changed = _compare_fields(before, after, shape, removed)
    return changed or {}, removed


def add(value: Any, shape: Shape) -> FieldSet:
    """Return the fields of a new value: itself and everything inside."""
    if not value:
        return LEAF
    if type(value) is dict:
        if shape.kind is _OBJECT:
            return _add_object(value, shape)
        return _add_map(value, shape)
    return _add_items(value, shape) if type(value) is list else LEAF


def _add_object(value: JsonObject, shape: Shape) -> FieldSet:
    out: FieldSet = {".": LEAF}
    cached = shape.fields
    for name in sorted(value):
        step, child_shape = cached.get(name) or shape.field(name)
        if child_shape is None or not (child := value[name]):
            out[step] = LEAF
        elif type(child) is list:
            out[step] = _add_items(child, child_shape)
        elif child_shape.kind is _OBJECT:
            out[step] = _add_object(child, child_shape) if type(child) is dict else LEAF
        else:
            out[step] = add(child, child_shape)
    return out


def _add_map(value: JsonObject, shape: Shape) -> FieldSet:
    out: FieldSet = {".": LEAF}
    if shape.kind is not _MAP:
        return LEAF
    child_shape = shape.of
    for name in sorted(value):
        out[f"f:{name}"] = LEAF if child_shape is None else add(value[name], child_shape)
    return out


def _add_items(items: list[Any], shape: Shape) -> FieldSet:
    if shape.kind is _OBJECT or shape.kind is _MAP:
        return LEAF
    out: FieldSet = {".": LEAF}
    item_shape = shape.of
    for item in items:
        step = step_of(item, shape)
        # Duplicate items have one owner, and their fields are not listed.
        out[step] = LEAF if item_shape is None or step in out else add(item, item_shape)
    return out if len(out) <= 2 else sort_steps(out)


def _compare(old: Any, new: Any, shape: Shape, removed: FieldSet) -> FieldSet | None:
    """Return what changed between two unequal values; add to `removed` what was removed."""
    if not old and not new:
        # NB: null against empty is a change although both have no content.
        return LEAF
    if shape.kind is _OBJECT or shape.kind is _MAP:
        if isinstance(new, _MAPPED) and isinstance(old, _MAPPED):
            return _compare_fields(old or {}, new or {}, shape, removed)
    elif isinstance(new, _LISTED) and isinstance(old, _LISTED):
        return _compare_items(old or [], new or [], shape, removed)
    return LEAF


def _compare_fields(
    old: JsonObject, new: JsonObject, shape: Shape, removed: FieldSet
) -> FieldSet | None:
    out: FieldSet = {}
    cached = shape.fields
    for name, value in new.items():
        before = old.get(name)
        if (before is value or before == value) and (value is not None or name in old):
            continue
        step, child_shape = cached.get(name) or shape.field(name)
        if child_shape is None:
            out[step] = LEAF
        elif before is None and name not in old:
            out[step] = add(value, child_shape)
        else:
            inner_removed: FieldSet = {}
            inner_changed = _compare(before, value, child_shape, inner_removed)
            if inner_changed is not None:
                out[step] = inner_changed
            if inner_removed:
                removed[step] = inner_removed
    for name in old:
        if name not in new:
            step, child_shape = cached.get(name) or shape.field(name)
            removed[step] = LEAF if child_shape is None else add(old[name], child_shape)
    if len(out) < 2:
        return out or None
    return {step: out[step] for step in sorted(out)}


def _compare_items(
    old: list[Any], new: list[Any], shape: Shape, removed: FieldSet
) -> FieldSet | None:
    out: FieldSet = {}
    item_shape = shape.of
    before = _group(old, shape)
    after = _group(new, shape)
    for step, values in after.items():
        olds = before.get(step)
        if olds is None:
            out[step] = (
                LEAF if item_shape is None or len(values) > 1 else add(values[0], item_shape)
            )
        elif olds == values:
            continue
        elif len(olds) > 1 and len(values) > 1:
            out[step] = LEAF
        elif len(olds) > 1:
            # The field of the duplicates is removed; the item that is left is new.
            removed[step] = LEAF
            out[step] = LEAF if item_shape is None else add(values[0], item_shape)
        elif len(values) > 1:
            removed[step] = LEAF if item_shape is None else add(olds[0], item_shape)
            out[step] = LEAF
        elif item_shape is not None:
            inner_removed: FieldSet = {}
            inner_changed = _compare(olds[0], values[0], item_shape, inner_removed)
            if inner_changed is not None:
                out[step] = inner_changed
            if inner_removed:
                removed[step] = inner_removed
    for step, values in before.items():
        if step not in after:
            removed[step] = (
                LEAF if item_shape is None or len(values) > 1 else add(values[0], item_shape)
            )
    if len(out) < 2:
        return out or None
    return sort_steps(out)


def _group(items: list[Any], shape: Shape) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for item in items:
        step = step_of(item, shape)
        if step in grouped:
            grouped[step].append(item)
        else:
            grouped[step] = [item]
    return grouped
