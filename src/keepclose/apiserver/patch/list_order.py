"""In which order a strategic merge patch leaves the items of a list.

What the patch names stands in the order of the patch; what only the live list has keeps its place
relative to the others as far as that is possible. Items are looked up by what identifies them, so
that lists of thousands of items cost no more than their length.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cmp_to_key
from typing import Any

from keepclose.apiserver.patch.go_format import encode_sorted, name_type, show
from keepclose.model.json_values import JsonObject


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


def identify(value: Any) -> Hashable:
    """Return what is equal for equal JSON values and can be looked up, so that no list is walked.

    NB: Python holds true for equal to 1, as a key of a dict and otherwise alike.
    """
    return ("json", encode_sorted(value)) if isinstance(value, dict | list) else value


class KeyIndex:
    """Where the items of a list stand, by the value of their merge key."""

    def __init__(self, items: list[Any], key: str) -> None:
        self._key = key
        self._first: dict[Hashable, int] = {}
        # Where the first item stands that is no object: what stands behind it is never found.
        self._broken: int | None = None
        for at, item in enumerate(items):
            if not isinstance(item, dict):
                self._broken = at
                break
            if key in item:
                self._first.setdefault(identify(item[key]), at)

    def find(self, value: Any) -> int | None:
        """Return where the first item with this value of its merge key stands."""
        at = self._first.get(identify(value))
        if at is None and self._broken is not None:
            raise ListError(f"value for key {self._broken} is not a map")
        return at

    def place(self, value: Any, at: int, item: JsonObject) -> None:
        """Take note that an item with this value now stands at a place, with or without its key."""
        if self._key in item:
            self._first[identify(value)] = at
        else:
            self._first.pop(identify(value), None)


def split_by_presence(items: list[Any], others: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Return the items that the other list names, and those it does not."""
    named: list[Any] = []
    rest: list[Any] = []
    index = KeyIndex(others, key) if key else None
    values = frozenset() if key else frozenset(map(identify, others))
    for item in items:
        value = _identify(item, key)
        present = identify(value) in values if index is None else index.find(value) is not None
        (named if present else rest).append(item)
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
    places, size = _delete_in_place(live, changes, key)
    if any(item.get("$patch") == "replace" for item in changes):
        return places
    present = {identify(item[key]) for item in places[:size] if key in item}
    for item in changes:
        if "$patch" not in item and identify(item.get(key)) not in present:
            if size == len(places):
                break
            places[size] = item
            size += 1
            if key in item:
                present.add(identify(item[key]))
    return places


def _delete_in_place(live: list[Any], changes: list[Any], key: str) -> tuple[list[Any], int]:
    """Return the list after the deletions, with what stays behind its end, and where it ends.

    Each deletion moves the items behind it one place ahead, so that the last item is then behind
    the end once more.
    """
    positions: dict[Hashable, list[int]] = {}
    for at, item in enumerate(live):
        if key in item:
            positions.setdefault(identify(item[key]), []).append(at)
    deleted: set[int] = set()
    behind: list[Any] = []
    last = len(live) - 1
    for item in changes:
        if item.get("$patch") != "delete":
            continue
        for at in positions.pop(identify(item.get(key)), ()):
            behind.append(live[last])
            deleted.add(at)
            while last in deleted:
                last -= 1
    left = [item for at, item in enumerate(live) if at not in deleted]
    return left + behind[::-1], len(left)


def order_elements(
    patched: list[Any], others: list[Any], *, wanted: list[Any], live: list[Any], key: str
) -> list[Any]:
    """Return all items: the patched ones as wanted, the others among them as they were live."""
    right = _sort(patched, wanted, key)
    left = _sort(others, live, key)
    places = _places(live, key)
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
    places = _places(order, key)
    placed = [(_place(item, places, key), item) for item in items]

    def compare(one: tuple[int, Any], two: tuple[int, Any]) -> int:
        first, second = one[0], two[0]
        return first - second if first >= 0 and second >= 0 else 0

    return [item for _, item in sorted(placed, key=cmp_to_key(compare))]


def _places(items: list[Any], key: str) -> dict[Hashable, int]:
    """Return where each value stands first."""
    places: dict[Hashable, int] = {}
    for at, item in enumerate(items):
        places.setdefault(_value(item, key), at)
    return places


def _place(item: Any, places: dict[Hashable, int], key: str) -> int:
    return places.get(_value(item, key), -1)


def _value(item: Any, key: str) -> Hashable:
    return identify(item.get(key) if key and isinstance(item, dict) else item)
