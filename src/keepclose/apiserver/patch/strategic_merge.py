"""Strategic merge patches: merge patches that know the lists of a type.

Lists merge by key or as sets where the type says so. Directives in the patch change that: `$patch`
replaces or deletes, `$retainKeys` removes the fields it does not name, `$deleteFromPrimitiveList`
removes values, `$setElementOrder` orders. Fields that the type does not have merge as plain values.
Neither the document nor the patch is changed.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Any, Final

from keepclose.apiserver.patch.go_format import name_type, show
from keepclose.apiserver.patch.json_patch import drop_nulls, reject_deep
from keepclose.apiserver.patch.list_order import (
    KeyIndex,
    ListError,
    check_order,
    element_kind,
    identify,
    order_elements,
    recall_order,
    split_by_presence,
)
from keepclose.apiserver.schema.types import ANY_TYPE, Type
from keepclose.apiserver.status_errors import StatusError, bad_request
from keepclose.model.json_values import JsonObject

DIRECTIVE: Final = "$patch"
RETAIN: Final = "$retainKeys"
DELETE_PREFIX: Final = "$deleteFromPrimitiveList"
ORDER_PREFIX: Final = "$setElementOrder"
_BAD_ORDER: Final = "invalid patch format of setElementOrder list"
_BAD_RETAIN: Final = "invalid patch format of retainKeys"
_BAD_PRIMITIVES: Final = "invalid patch format of primitive list"


def apply_strategic_patch(
    document: JsonObject,
    patch: JsonObject,
    type: Type,  # noqa: A002 - the name that callers know
) -> JsonObject:
    """Return the document with the patch merged in by the rules of its type.

    Raises a StatusError with the code and the text of kube-apiserver for an invalid patch.
    """
    reject_deep(patch)
    try:
        return _merge_map(document, patch, type)
    except ListError as problem:
        if problem.code == 422:
            message = "the server rejected our request due to an error in our request"
            raise StatusError(422, "Invalid", message, details={}) from None
        raise StatusError(problem.code, "", str(problem)) from None


def _merge_map(original: JsonObject, patch: JsonObject, object_type: Type) -> JsonObject:
    if DIRECTIVE in patch:
        return _replace_map(patch)
    merged = _retain(original, patch)
    patch = {name: value for name, value in patch.items() if name != RETAIN}
    for name in [name for name in patch if name.startswith(ORDER_PREFIX)]:
        _merge_ordered(merged, patch, name, object_type)
    for name, value in patch.items():
        if name.startswith(DELETE_PREFIX):
            _delete_from_list(merged, name, value)
        elif value is None:
            merged.pop(name, None)
        else:
            _merge_field(merged, name, value, object_type)
    return merged


def _merge_field(merged: JsonObject, name: str, value: Any, object_type: Type) -> None:
    present = merged.get(name)
    field = _field(object_type, name)
    if isinstance(present, dict) and isinstance(value, dict):
        if "replace" in field.patch_strategies:
            merged[name] = value
        else:
            merged[name] = _merge_map(present, value, field)
        return
    if isinstance(present, list) and isinstance(value, list):
        merged[name] = _merge_list(present, value, field)
        return
    kept = _strip(drop_nulls(value))
    if kept is _DROPPED:
        merged.pop(name, None)
    else:
        merged[name] = kept


def _field(object_type: Type, name: str) -> Type:
    return object_type.fields.get(name) or object_type.items or ANY_TYPE


def _replace_map(patch: JsonObject) -> JsonObject:
    directive = patch[DIRECTIVE]
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != DIRECTIVE}
    if directive == "delete":
        return {}
    raise ListError(f"unknown patch type: {show(directive)} in map: {show(patch)}")


def _retain(original: JsonObject, patch: JsonObject) -> JsonObject:
    """Return a copy of the original with only the fields that `$retainKeys` names."""
    if RETAIN not in patch:
        return dict(original)
    retained = patch[RETAIN]
    if not isinstance(retained, list):
        raise bad_request(_BAD_RETAIN)
    kept = frozenset(name for name in retained if isinstance(name, str))
    for name, value in patch.items():
        directive = name == RETAIN or name.startswith((DELETE_PREFIX, ORDER_PREFIX))
        if value is not None and not directive and name not in kept:
            raise bad_request(_BAD_RETAIN)
    return {name: value for name, value in original.items() if name in kept}


class _Dropped:
    """Marks a value that a directive removes."""


_DROPPED: Final = _Dropped()


def _strip(value: Any) -> Any:
    """Return a new value without what directives remove."""
    if isinstance(value, dict):
        if DIRECTIVE in value:
            return _DROPPED
        stripped = ((name, _strip(child)) for name, child in value.items())
        return {name: child for name, child in stripped if child is not _DROPPED}
    if isinstance(value, list):
        return [child for child in map(_strip, value) if child is not _DROPPED]
    return value


def _name_after(directive: str, prefix: str, message: str) -> str:
    head, slash, name = directive.partition("/")
    if head != prefix or not slash:
        raise bad_request(message)
    return name


def _delete_from_list(merged: JsonObject, directive: str, values: Any) -> None:
    name = _name_after(directive, DELETE_PREFIX, _BAD_PRIMITIVES)
    if values is None:
        # NB: a null here deletes the whole list, as the Go implementation does.
        merged.pop(name, None)
        return
    present = merged.get(name)
    if isinstance(present, list) and isinstance(values, list) and (present or values):
        element_kind(present, values)
        removed = frozenset(map(identify, values))
        merged[name] = [value for value in present if identify(value) not in removed]


def _merge_ordered(
    merged: JsonObject, patch: JsonObject, directive: str, object_type: Type
) -> None:
    """Merge a list and put it in the order of `$setElementOrder`."""
    wanted = patch.pop(directive)
    if not isinstance(wanted, list):
        raise _wrong_type([], wanted)
    name = _name_after(directive, ORDER_PREFIX, _BAD_ORDER)
    for holder in (merged, patch):
        if name in holder and not isinstance(holder[name], list):
            raise _wrong_type([], holder[name])
    present: list[Any] | None = merged.get(name)
    changes: list[Any] | None = patch.get(name)
    field = _field(object_type, name)
    key = field.merge_key
    check_order(changes or [], wanted, key)
    if not present and not changes:
        return
    if changes is None:
        result = present or []
    elif not present:
        result = _strip(changes)
    else:
        result = _merge_list(present, changes, field)
    patched, others = split_by_presence(result, wanted, key)
    maps = element_kind(present or [], changes or []) is dict
    live = recall_order(present or [], changes or [], key) if maps else present or []
    merged[name] = order_elements(
        patched, others, wanted=wanted, live=live, key=key if maps else ""
    )
    patch.pop(name, None)


def _wrong_type(expected: Any, value: Any) -> ListError:
    return ListError(f"expected a {name_type(expected)}, but received a {name_type(value)}")


def _merge_list(original: list[Any], patch: list[Any], field: Type) -> list[Any]:
    if "merge" not in field.patch_strategies:
        return patch
    if not original and not patch:
        return original
    key = field.merge_key
    if element_kind(original, patch) is not dict:
        both = _deduplicate([*original, *patch])
        patched, others = split_by_presence(both, patch, "")
        return order_elements(patched, others, wanted=patch, live=original, key="")
    if not key:
        raise ListError(f"cannot merge lists without merge key for {field.go_type or 'slice'}")
    original, patch = _apply_directives(original, patch, key)
    merged = list(original)
    index = KeyIndex(merged, key)
    for item in patch:
        if key not in item:
            raise _no_key(item, key)
        position = index.find(item[key])
        if position is None:
            position = len(merged)
            merged.append(item)
        else:
            merged[position] = _merge_map(merged[position], item, field.items or ANY_TYPE)
        index.move(item[key], position, merged[position])
    patched, others = split_by_presence(merged, patch, key)
    return order_elements(patched, others, wanted=patch, live=original, key=key)


def _apply_directives(
    original: list[Any], patch: list[Any], key: str
) -> tuple[list[Any], list[Any]]:
    """Return the list after the deletions, and the patch without its directives."""
    plain: list[Any] = []
    deleted: set[Hashable] = set()
    replaces = False
    for item in patch:
        if DIRECTIVE not in item:
            plain.append(item)
            continue
        match item[DIRECTIVE]:
            case "delete":
                if key not in item:
                    raise _no_key(item, key)
                deleted.add(identify(item[key]))
            case "replace":
                replaces = True
            case "merge":
                raise ListError("merging lists cannot yet be specified in the patch")
            case unknown:
                raise ListError(f"unknown patch type: {show(unknown)} in map: {show(item)}")
    if replaces:
        return plain, []
    if deleted:
        original = [item for item in original if identify(item.get(key)) not in deleted]
    return original, plain


def _no_key(item: JsonObject, key: str) -> ListError:
    return ListError(f"map: {show(item)} does not contain declared merge key: {key}")


def _deduplicate(values: list[Any]) -> list[Any]:
    # NB: the last value moves to the position of a dropped one, as in Go.
    out = list(values)
    # The positions of each value; those at or beyond the end of the list no longer count.
    positions: dict[Hashable, list[int]] = {}
    for position, value in enumerate(out):
        positions.setdefault(identify(value), []).append(position)
    position = 0
    while position < len(out):
        duplicates = positions[identify(out[position])]
        while duplicates:
            duplicate = heappop(duplicates)
            if not position < duplicate < len(out):
                continue
            last = out.pop()
            if duplicate < len(out):
                out[duplicate] = last
                heappush(positions[identify(last)], duplicate)
        position += 1
    return out
