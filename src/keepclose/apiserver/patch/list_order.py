"""The order in which a strategic merge patch leaves the items of a list.

Items that the patch names are in the order of the patch; items that only the live list has keep
their position relative to the others as far as possible. Items are looked up by their identity, so
that lists of thousands of items cost no more than their length.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cmp_to_key
from typing import Any

from keepclose.apiserver.patch.go_format import encode_sorted, name_type, show
from keepclose.model.json_values import JsonObject


class ListError(Exception):
    """The reason why a patch cannot be applied, with the status code of kube-apiserver."""

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
    """Return a hashable value that is equal for equal JSON values, so that no list is scanned.

    NB: in Python true equals 1, as a key of a dict too.
    """
    return ("json", encode_sorted(value)) if isinstance(value, dict | list) else value


class KeyIndex:
    """The positions of the items of a list, by the value of their merge key."""

    def __init__(self, items: list[Any], key: str) -> None:
        self._key = key
        self._first: dict[Hashable, int] = {}
        # The position of the first item that is no object: items behind it are never found.
        self._broken: int | None = None
        for at, item in enumerate(items):
            if not isinstance(item, dict):
                self._broken = at
                break
            if key in item:
                self._first.setdefault(identify(item[key]), at)

    def find(self, value: Any) -> int | None:
        """Return the position of the first item with this value of its merge key."""
        at = self._first.get(identify(value))
        if at is None and self._broken is not None:
            raise ListError(f"value for key {self._broken} is not a map")
        return at

    def move(self, value: Any, at: int, item: JsonObject) -> None:
        """Record the new position of an item with this value; the item may have lost its key."""
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
    """Reject an order that contradicts the items of the patch; deletions do not count."""
    if not wanted or not changes:
        return
    left = [item for item in changes if not (isinstance(item, dict) and "$patch" in item)]
    at = 0
    for expected in wanted:
        if at < len(left) and _identify(left[at], key) == _identify(expected, key):
            at += 1
    if at < len(left):
        raise ListError(
            f"The order in patch list:\n{show(changes)}\n doesn't match $setElementOrder list:\n"
            f"{show(wanted)}\n"
        )


def recall_order(live: list[Any], changes: list[Any], key: str) -> list[Any]:
    """Return the live list as kube-apiserver sees it when it orders the merged one.

    NB: kube-apiserver deletes and appends within the same slice that it later reads the order
    from. A deletion leaves a free slot at the end, and a new item fills it; so a new item counts
    as the last live one, but only after a deletion.
    """
    slots, size = _delete_in_place(live, changes, key)
    if any(item.get("$patch") == "replace" for item in changes):
        return slots
    present = {identify(item[key]) for item in slots[:size] if key in item}
    for item in changes:
        if "$patch" not in item and identify(item.get(key)) not in present:
            if size == len(slots):
                break
            slots[size] = item
            size += 1
            if key in item:
                present.add(identify(item[key]))
    return slots


def order_elements(
    patched: list[Any], others: list[Any], *, wanted: list[Any], live: list[Any], key: str
) -> list[Any]:
    """Return all items: the patched ones in the wanted order, the others in the live order."""
    right = _sort(patched, wanted, key)
    left = _sort(others, live, key)
    positions = _positions(live, key)
    out: list[Any] = []
    at = to = 0
    while at < len(left) and to < len(right):
        left_position, right_position = (
            _position_of(left[at], positions, key),
            _position_of(right[to], positions, key),
        )
        if 0 <= left_position < right_position:
            out.append(left[at])
            at += 1
        else:
            out.append(right[to])
            to += 1
    return out + left[at:] + right[to:]


def _identify(item: Any, key: str) -> Any:
    if not key:
        return item
    if not isinstance(item, dict):
        raise ListError(f"expected a {name_type({})}, but received a {name_type(item)}")
    if key not in item:
        raise ListError(f"map: {show(item)} does not contain declared merge key: {key}")
    return item[key]


def _delete_in_place(live: list[Any], changes: list[Any], key: str) -> tuple[list[Any], int]:
    """Return the list after the deletions, with the items left behind its end, and its length.

    Each deletion moves the items behind it one position forward, so that a copy of the last item
    stays behind the end.
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


def _sort(items: list[Any], order: list[Any], key: str) -> list[Any]:
    positions = _positions(order, key)
    placed = [(_position_of(item, positions, key), item) for item in items]

    def compare(left: tuple[int, Any], right: tuple[int, Any]) -> int:
        first, second = left[0], right[0]
        return first - second if first >= 0 and second >= 0 else 0

    return [item for _, item in sorted(placed, key=cmp_to_key(compare))]


def _positions(items: list[Any], key: str) -> dict[Hashable, int]:
    """Return the first position of each value."""
    positions: dict[Hashable, int] = {}
    for at, item in enumerate(items):
        positions.setdefault(_value(item, key), at)
    return positions


def _position_of(item: Any, positions: dict[Hashable, int], key: str) -> int:
    return positions.get(_value(item, key), -1)


def _value(item: Any, key: str) -> Hashable:
    return identify(item.get(key) if key and isinstance(item, dict) else item)
