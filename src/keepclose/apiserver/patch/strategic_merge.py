"""Strategic merge patches: merge patches that know the lists of a type.

Lists merge by key or as sets where the type says so. Directives in the patch say more: `$patch`
replaces or deletes, `$retainKeys` clears what it does not name, `$deleteFromPrimitiveList` takes
values out, `$setElementOrder` orders. Fields that the type does not have merge as plain values.
Neither the document nor the patch is changed.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Any, Final

from keepclose.apiserver.patch.go_format import name_type, show
from keepclose.apiserver.patch.json_patch import drop_nulls, refuse_deep
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

    Raises a Failure with the code and the text of a real server for a patch that makes no sense.
    """
    refuse_deep(patch)
    try:
        return _merge_map(document, patch, type)
    except ListError as problem:
        if problem.code == 422:
            message = "the server rejected our request due to an error in our request"
            raise StatusError(422, "Invalid", message, details={}) from None
        raise StatusError(problem.code, "", str(problem)) from None


def _merge_map(original: JsonObject, patch: JsonObject, described: Type) -> JsonObject:
    if DIRECTIVE in patch:
        return _replace_map(patch)
    merged = _retain(original, patch)
    patch = {name: value for name, value in patch.items() if name != RETAIN}
    for name in [name for name in patch if name.startswith(ORDER_PREFIX)]:
        _merge_ordered(merged, patch, name, described)
    for name, value in patch.items():
        if name.startswith(DELETE_PREFIX):
            _delete_from_list(merged, name, value)
        elif value is None:
            merged.pop(name, None)
        else:
            _merge_field(merged, name, value, described)
    return merged


def _merge_field(merged: JsonObject, name: str, value: Any, described: Type) -> None:
    present = merged.get(name)
    field = _field(described, name)
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


def _field(described: Type, name: str) -> Type:
    return described.fields.get(name) or described.items or ANY_TYPE


def _replace_map(patch: JsonObject) -> JsonObject:
    directive = patch[DIRECTIVE]
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != DIRECTIVE}
    if directive == "delete":
        return {}
    raise ListError(f"unknown patch type: {show(directive)} in map: {show(patch)}")


def _retain(original: JsonObject, patch: JsonObject) -> JsonObject:
    """Return a copy of the original with the fields only that the patch says to keep."""
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
    """Stands for a value that a directive takes away."""


_DROPPED: Final = _Dropped()


def _strip(value: Any) -> Any:
    """Return a new value without what directives take away."""
    if isinstance(value, dict):
        if DIRECTIVE in value:
            return _DROPPED
        stripped = ((name, _strip(one)) for name, one in value.items())
        return {name: one for name, one in stripped if one is not _DROPPED}
    if isinstance(value, list):
        return [one for one in map(_strip, value) if one is not _DROPPED]
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


def _merge_ordered(merged: JsonObject, patch: JsonObject, directive: str, described: Type) -> None:
    """Merge a list and bring it in the order that the patch states for it."""
    wanted = patch.pop(directive)
    if not isinstance(wanted, list):
        raise _wrong_type([], wanted)
    name = _name_after(directive, ORDER_PREFIX, _BAD_ORDER)
    for holder in (merged, patch):
        if name in holder and not isinstance(holder[name], list):
            raise _wrong_type([], holder[name])
    present: list[Any] | None = merged.get(name)
    changes: list[Any] | None = patch.get(name)
    field = _field(described, name)
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


def _wrong_type(want: Any, value: Any) -> ListError:
    return ListError(f"expected a {name_type(want)}, but received a {name_type(value)}")


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
    original, patch = _follow_directives(original, patch, key)
    merged = list(original)
    index = KeyIndex(merged, key)
    for item in patch:
        if key not in item:
            raise _no_key(item, key)
        at = index.find(item[key])
        if at is None:
            at = len(merged)
            merged.append(item)
        else:
            merged[at] = _merge_map(merged[at], item, field.items or ANY_TYPE)
        index.place(item[key], at, merged[at])
    patched, others = split_by_presence(merged, patch, key)
    return order_elements(patched, others, wanted=patch, live=original, key=key)


def _follow_directives(
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
            case other:
                raise ListError(f"unknown patch type: {show(other)} in map: {show(item)}")
    if replaces:
        return plain, []
    if deleted:
        original = [item for item in original if identify(item.get(key)) not in deleted]
    return original, plain


def _no_key(item: JsonObject, key: str) -> ListError:
    return ListError(f"map: {show(item)} does not contain declared merge key: {key}")


def _deduplicate(values: list[Any]) -> list[Any]:
    # NB: the last value takes the place of one that is dropped, as in Go.
    out = list(values)
    # Where each value stands; what is at or beyond the end of the list counts no more.
    places: dict[Hashable, list[int]] = {}
    for at, value in enumerate(out):
        places.setdefault(identify(value), []).append(at)
    at = 0
    while at < len(out):
        twins = places[identify(out[at])]
        while twins:
            twin = heappop(twins)
            if not at < twin < len(out):
                continue
            last = out.pop()
            if twin < len(out):
                out[twin] = last
                heappush(places[identify(last)], twin)
        at += 1
    return out
