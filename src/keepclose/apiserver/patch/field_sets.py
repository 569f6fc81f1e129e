"""Sets of fields, in the form that objects carry them: FieldsV1.

A set is a tree of dicts. A key names a step: `f:` a field, `k:` an item of a list by its keys, `v:`
an item by its value. An empty dict below a step means that the step itself is in the set; the key
`.` means the same where other steps follow below. The root is the whole object, which is never in a
set: an empty root is the empty set.

Steps are in the order in which kube-apiserver writes them, provided that the sets a new one is
built from are. Sets share parts with the sets they were built from, and are never changed in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from keepclose.apiserver.patch.go_format import encode_sorted, go_quote
from keepclose.model.json_values import decode_json

FieldSet = dict[str, Any]

LEAF: Final[FieldSet] = {}
# Faster than the module json, for steps in canonical form.
_decode_json: Final = msgspec.json.Decoder().decode
_STEP_CACHED: Final = 1024
_ITSELF: Final[FieldSet] = {".": LEAF}


class FieldSetError(ValueError):
    """The reason why a set of fields cannot be decoded."""


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths in either set."""
    if not left:
        return right
    if not right:
        return left
    out = dict(left)
    for step, below in right.items():
        mine = out.get(step)
        out[step] = below if mine is None else _unite(mine, below)
    return out if len(out) == len(left) else sort_steps(out)


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of the first set that are not in the second.

    A path below or above one in the second set stays. The first set itself is returned when
    nothing is removed.
    """
    out: FieldSet | None = None
    if not right:
        return left
    for step, theirs in right.items():
        mine = left.get(step)
        if mine is None:
            continue
        if step == ".":
            kept = LEAF
        else:
            kept = difference(mine or _ITSELF, theirs or _ITSELF)
            if kept is mine or (not mine and kept is _ITSELF):
                continue
        if out is None:
            out = dict(left)
        if not kept:
            del out[step]
        else:
            out[step] = LEAF if len(kept) == 1 and "." in kept else kept
    return left if out is None else out


def without_subtrees(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the first set without the paths of the second and all below them."""
    out: FieldSet = {}
    for step, mine in left.items():
        theirs = right.get(step)
        if theirs is None:
            out[step] = mine
        elif theirs and "." not in theirs:
            kept = without_subtrees(mine or _ITSELF, theirs)
            if kept:
                out[step] = LEAF if len(kept) == 1 and "." in kept else kept
    return out


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths in both sets."""
    out: FieldSet = {}
    for step, mine in left.items():
        theirs = right.get(step)
        if theirs is None:
            continue
        if step == ".":
            out[step] = LEAF
            continue
        shared = intersection(mine or _ITSELF, theirs or _ITSELF)
        if shared:
            out[step] = LEAF if len(shared) == 1 and "." in shared else shared
    return out


def contains(fields: FieldSet, path: Iterable[str]) -> bool:
    """Return whether the path, a sequence of steps, is in the set."""
    node: FieldSet | None = None
    for step in path:
        node = (fields if node is None else node).get(step)
        if node is None:
            return False
    return node is not None and (not node or "." in node)


def paths(fields: FieldSet, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the set, those of one level before those below, sorted."""
    steps = sorted((step for step in fields if step != "."), key=_order)
    for step in steps:
        if not fields[step] or "." in fields[step]:
            yield (*prefix, step)
    for step in steps:
        yield from paths(fields[step], (*prefix, step))


def set_of(*dotted: str) -> FieldSet:
    """Return the set of dotted field names such as metadata.labels."""
    fields: FieldSet = {}
    for name in dotted:
        nested: FieldSet = LEAF
        for part in reversed(name.split(".")):
            nested = {f"f:{part}": nested}
        fields = union(fields, nested)
    return fields


def encode_fields(fields: FieldSet) -> FieldSet:
    """Return the same set with all steps in order."""
    return {step: encode_fields(fields[step]) for step in sorted(fields, key=_order)}


def sort_steps(fields: FieldSet) -> FieldSet:
    """Return the same set with the steps of its first level in order."""
    return {step: fields[step] for step in sorted(fields, key=_order)}


def decode_fields(fields: Any) -> FieldSet:
    """Return the set that a client sent, with every step in canonical form.

    Steps of an unknown kind are dropped. Raises FieldSetError when a step or the tree cannot be
    decoded.
    """
    out = _decode(fields)
    return {step: below for step, below in out.items() if step != "."}


def show_path(path: Iterable[str]) -> str:
    """Return a path as messages show it: .spec.ports[port=80,protocol="TCP"].name."""
    return "".join(map(_show_step, path))


def _unite(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left and not right:
        return LEAF
    return union(left or _ITSELF, right or _ITSELF)


def _decode(fields: Any) -> FieldSet:
    if not isinstance(fields, dict):
        raise FieldSetError("a set of fields is an object")
    out: FieldSet = {}
    for step, below in fields.items():
        if step == ".":
            out["."] = LEAF
            continue
        canonical = _canonical_step(step)
        if canonical:
            node = _decode(below)
            out[canonical] = LEAF if len(node) == 1 and "." in node else node
    return out


def _canonical_step(step: str) -> str:
    # Longer steps are not cached, so that the cache stays small.
    return (
        _canonical_cached(step)
        if len(step) <= _STEP_CACHED
        else _canonical_cached.__wrapped__(step)
    )


@lru_cache(maxsize=8192)
def _canonical_cached(step: str) -> str:
    if step[1:2] != ":":
        raise FieldSetError(f"missing colon: {step}")
    kind, rest = step[0], step[2:]
    if kind == "f":
        return step
    try:
        match kind:
            case "k":
                keys = decode_json(rest)
                if not isinstance(keys, dict):
                    raise FieldSetError(f"not a key: {step}")
                return "k:" + encode_sorted(keys)
            case "v":
                return "v:" + encode_sorted(decode_json(rest))
            case "i":
                return f"i:{int(rest)}"
            case _:
                return ""
    except ValueError as problem:
        raise FieldSetError(f"not a step: {step}: {problem}") from None


def _order(step: str) -> tuple[int, Any]:
    return _order_cached(step) if len(step) <= _STEP_CACHED else _order_cached.__wrapped__(step)


@lru_cache(maxsize=8192)
def _order_cached(step: str) -> tuple[int, Any]:
    # Fields come before keys, keys before values, and numbers are ordered as numbers.
    match step[0]:
        case ".":
            return 0, ()
        case "f":
            return 1, step
        case "k":
            keys = _decode_json(step[2:])
            return 2, tuple((name, *_rank(keys[name])) for name in sorted(keys))
        case "v":
            return 3, _rank(_decode_json(step[2:]))
        case _:
            return 4, int(step[2:])


def _rank(value: Any) -> tuple[int, Any]:
    match value:
        case bool():
            return 2, value
        case int() | float():
            return 0, value
        case str():
            return 1, value
        case _:
            return 3, encode_sorted(value)


def _show_step(step: str) -> str:
    kind, rest = step[0], step[2:]
    match kind:
        case "f":
            return f".{rest}"
        case "k":
            keys = json.loads(rest)
            return "[" + ",".join(f"{name}={_show(keys[name])}" for name in sorted(keys)) + "]"
        case "v":
            return f"[={_show(json.loads(rest))}]"
        case _:
            return f"[{rest}]"


def _show(value: Any) -> str:
    return go_quote(value) if isinstance(value, str) else encode_sorted(value)
