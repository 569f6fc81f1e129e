"""Which fields differ between two states of an object.

It runs with every write of the server, so it is one walk that stops wherever the two sides are
equal. What is new is listed with everything below it, containers too; what is gone likewise. Null
is a value: stored objects have none, but the merged ones of an apply do.
Names and bookkeeping of the object belong to no one and are never listed.
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
# Null stands for an empty container of any kind.
_MAPPED: Final = (dict, NoneType)
_LISTED: Final = (list, NoneType)


def compare_objects(
    old: JsonObject, new: JsonObject, shape: Shape, ignored: frozenset[str]
) -> tuple[FieldSet, FieldSet]:
    """Return the fields that are new or have changed, and those that are gone.

    `ignored` are names of top-level fields that do not count. Raises StepError when a list holds
    items without keys.
    """
    gone: FieldSet = {}
    before = {name: one for name, one in old.items() if name not in UNOWNED and name not in ignored}
    after = {name: one for name, one in new.items() if name not in UNOWNED and name not in ignored}
    for side in (before, after):
        if isinstance(metadata := side.get("metadata"), dict):
            side["metadata"] = {
                name: one for name, one in metadata.items() if name not in UNOWNED_METADATA
            }
    changed = _compare_fields(before, after, shape, gone)
    return changed or {}, gone


def add(value: Any, shape: Shape) -> FieldSet:
    """Return the set of a value that was not there before: itself and everything inside."""
    if not value:
        return LEAF
    if type(value) is dict:
        if shape.kind is _OBJECT:
            return _add_object(value, shape)
        return _add_map(value, shape)
    return _add_items(value, shape) if type(value) is list else LEAF


def _add_object(value: JsonObject, shape: Shape) -> FieldSet:
    out: FieldSet = {".": LEAF}
    known = shape.fields
    for name in sorted(value):
        step, below = known.get(name) or shape.field(name)
        if below is None or not (one := value[name]):
            out[step] = LEAF
        elif type(one) is list:
            out[step] = _add_items(one, below)
        elif below.kind is _OBJECT:
            out[step] = _add_object(one, below) if type(one) is dict else LEAF
        else:
            out[step] = add(one, below)
    return out


def _add_map(value: JsonObject, shape: Shape) -> FieldSet:
    out: FieldSet = {".": LEAF}
    if shape.kind is not _MAP:
        return LEAF
    below = shape.of
    for name in sorted(value):
        out[f"f:{name}"] = LEAF if below is None else add(value[name], below)
    return out


def _add_items(items: list[Any], shape: Shape) -> FieldSet:
    if shape.kind is _OBJECT or shape.kind is _MAP:
        return LEAF
    out: FieldSet = {".": LEAF}
    below = shape.of
    for one in items:
        step = step_of(one, shape)
        # Items that occur twice are owned together, without a look inside.
        out[step] = LEAF if below is None or step in out else add(one, below)
    return out if len(out) <= 2 else sort_steps(out)


def _compare(old: Any, new: Any, shape: Shape, gone: FieldSet) -> FieldSet | None:
    """Return what changed between two unequal values; note in `gone` what is gone."""
    if not old and not new:
        # NB: null against empty is a change although both hold nothing.
        return LEAF
    if shape.kind is _OBJECT or shape.kind is _MAP:
        if isinstance(new, _MAPPED) and isinstance(old, _MAPPED):
            return _compare_fields(old or {}, new or {}, shape, gone)
    elif isinstance(new, _LISTED) and isinstance(old, _LISTED):
        return _compare_items(old or [], new or [], shape, gone)
    return LEAF


def _compare_fields(
    old: JsonObject, new: JsonObject, shape: Shape, gone: FieldSet
) -> FieldSet | None:
    out: FieldSet = {}
    known = shape.fields
    for name, value in new.items():
        before = old.get(name)
        if (before is value or before == value) and (value is not None or name in old):
            continue
        step, below = known.get(name) or shape.field(name)
        if below is None:
            out[step] = LEAF
        elif before is None and name not in old:
            out[step] = add(value, below)
        else:
            lost: FieldSet = {}
            found = _compare(before, value, below, lost)
            if found is not None:
                out[step] = found
            if lost:
                gone[step] = lost
    for name in old:
        if name not in new:
            step, below = known.get(name) or shape.field(name)
            gone[step] = LEAF if below is None else add(old[name], below)
    if len(out) < 2:
        return out or None
    return {step: out[step] for step in sorted(out)}


def _compare_items(old: list[Any], new: list[Any], shape: Shape, gone: FieldSet) -> FieldSet | None:
    out: FieldSet = {}
    below = shape.of
    before = _group(old, shape)
    after = _group(new, shape)
    for step, values in after.items():
        olds = before.get(step)
        if olds is None:
            out[step] = LEAF if below is None or len(values) > 1 else add(values[0], below)
        elif olds == values:
            continue
        elif len(olds) > 1 and len(values) > 1:
            out[step] = LEAF
        elif len(olds) > 1:
            # The mark of the twins goes, the one that is left is new.
            gone[step] = LEAF
            out[step] = LEAF if below is None else add(values[0], below)
        elif len(values) > 1:
            gone[step] = LEAF if below is None else add(olds[0], below)
            out[step] = LEAF
        elif below is not None:
            lost: FieldSet = {}
            found = _compare(olds[0], values[0], below, lost)
            if found is not None:
                out[step] = found
            if lost:
                gone[step] = lost
    for step, values in before.items():
        if step not in after:
            gone[step] = LEAF if below is None or len(values) > 1 else add(values[0], below)
    if len(out) < 2:
        return out or None
    return sort_steps(out)


def _group(items: list[Any], shape: Shape) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for one in items:
        step = step_of(one, shape)
        if step in grouped:
            grouped[step].append(one)
        else:
            grouped[step] = [one]
    return grouped
