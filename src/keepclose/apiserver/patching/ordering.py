"""In which order a strategic merge patch leaves the items of a list.

What the patch names stands in the order of the patch; what only the live list has keeps its place
relative to the others as far as that is possible.
"""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any

from keepclose.apiserver.patching.texts import name_type, show

JsonObject = dict[str, Any]


class ListError(Exception):
    """A patch that cannot be followed, with the status code of a real server."""

    def __init__(self, message: str, code: int = 500) -> None:
        super().__init__(message)
        self.code = code


def element_kind(*lists: list[Any]) -> type | None:
    """Return the one Python type of all items; None when there are no items."""
    kind: type | None = None
    for items in lists:
        for item in items:
            if kind is None:
                kind = type(item)
                if kind is list:
                    raise ListError("lists of lists are not supported", 422)
            elif type(item) is not kind:
                shown = "[" + " ".join(map(show, lists)) + "]"
                raise ListError(f"list element types are not identical: {shown}")
    if kind is None:
        raise ListError("no elements in any of the given slices")
    return kind


def find_by_key(items: list[Any], key: str, value: Any) -> int | None:
    """Return where the item stands that has this value of its merge key."""
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            raise ListError(f"value for key {at} is not a map")
        if key in item and item[key] == value:
            return at
    return None


def split_by_presence(items: list[Any], others: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Return the items that the other list names, and those it does not."""
    named: list[Any] = []
    rest: list[Any] = []
    for item in items:
        if not key:
            found = item in others
        elif key not in item:
            raise ListError(f"map: {show(item)} does not contain declared merge key: {key}")
        else:
            found = find_by_key(others, key, item[key]) is not None
        (named if found else rest).append(item)
    return named, rest


def check_order(changes: list[Any], wanted: list[Any], key: str) -> None:
    """Refuse an order that does not fit the items of the patch: deletions do not count."""
    if not wanted or not changes:
        return
    left = [item for item in changes if not (isinstance(item, dict) and "$patch" in item)]
    at = 0
    for place in wanted:
        if at < len(left) and _identify(left[at], key) == _identify(place, key):
            at += 1
    if at < len(left):
        raise ListError(
            f"The order in patch list:\n{show(changes)}\n doesn't match $setElementOrder list:\n"
            f"{show(wanted)}\n"
        )


def _identify(item: Any, key: str) -> Any:
    if not key:
        return item
    if not isinstance(item, dict):
        raise ListError(f"expected a {name_type({})}, but received a {name_type(item)}")
    if key not in item:
        raise ListError(f"map: {show(item)} does not contain declared merge key: {key}")
    return item[key]


def recall_order(live: list[Any], changes: list[Any], key: str) -> list[Any]:
    """Return the live list as a real server remembers it when it orders the merged one.

    NB: that server deletes and appends within the very list that it later asks for the order. A
    deleted item leaves a free place at the end, and a new item takes it; so a new item counts as
    the last live one, but only after a deletion.
    """
    places = list(live)
    size = len(places)
    for item in changes:
        if item.get("$patch") == "delete":
            while (at := find_by_key(places[:size], key, item.get(key))) is not None:
                places[at : size - 1] = places[at + 1 : size]
                size -= 1
    if any(item.get("$patch") == "replace" for item in changes):
        return places
    for item in changes:
        if "$patch" not in item and find_by_key(places[:size], key, item.get(key)) is None:
            if size == len(places):
                break
            places[size] = item
            size += 1
    return places


def order_elements(
    patched: list[Any], others: list[Any], *, wanted: list[Any], live: list[Any], key: str
) -> list[Any]:
    """Return all items: the patched ones as wanted, the others among them as they were live."""
    right = _sort(patched, wanted, key)
    left = _sort(others, live, key)
    places = [_value(item, key) for item in live]
    out: list[Any] = []
    at = to = 0
    while at < len(left) and to < len(right):
        one, two = _place(left[at], places, key), _place(right[to], places, key)
        if 0 <= one < two:
            out.append(left[at])
            at += 1
        else:
            out.append(right[to])
            to += 1
    return out + left[at:] + right[to:]


def _sort(items: list[Any], order: list[Any], key: str) -> list[Any]:
    places = [_value(item, key) for item in order]

    def compare(one: Any, two: Any) -> int:
        first, second = _place(one, places, key), _place(two, places, key)
        return first - second if first >= 0 and second >= 0 else 0

    return sorted(items, key=cmp_to_key(compare))


def _place(item: Any, places: list[Any], key: str) -> int:
    value = _value(item, key)
    return places.index(value) if value in places else -1


def _value(item: Any, key: str) -> Any:
    return item.get(key) if key and isinstance(item, dict) else item
