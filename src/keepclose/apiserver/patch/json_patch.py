"""JSON patches (RFC 6902): a list of operations, done in order, all or nothing.

Where kube-apiserver differs from the RFC, it is followed: a replacement may name a field that is
missing, an index may count from the end, and a missing field counts as null where it is tested or
copied. An operation that does not fit the document is refused with one text, because a
kube-apiserver says no more.

A patch of a few bytes must not cost seconds. Copies may add up to so many bytes, as in a
kube-apiserver; items of lists may be shifted so often; neither the patch nor the patched document
may nest deeper than any other object.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from keepclose.apiserver.patch.go_format import name_type
from keepclose.apiserver.status_errors import StatusError, bad_request
from keepclose.model.json_values import (
    JsonDepthError,
    JsonObject,
    JsonValueError,
    check_depth,
    decode_json,
)

MAX_OPERATIONS: Final = 10_000
# All copies of one patch together, as JSON; the limit of a kube-apiserver. Without it each copy of
# a list into itself doubles the document.
MAX_COPIED_BYTES: Final = 3 * 1024 * 1024
# The same in values: bytes alone would let a patch of 1 kB create a million small lists.
MAX_COPIED_VALUES: Final = 100_000
# An insertion or a removal moves all items behind it: so many moves take about 0.1 s, and allow
# to take 5,000 items one by one from the front of a list of 20,000.
MAX_SHIFTED_ITEMS: Final = 100_000_000
# An index of more digits is beyond any list.
_MAX_INDEX_DIGITS: Final = 18

_TEXT_MEMBERS: Final = ("op", "path", "from")


class _UnfitError(Exception):
    """An operation that the document does not allow."""


def apply_json_patch(document: JsonObject, body: bytes) -> JsonObject:
    """Return the document after all operations; it is not changed itself."""
    operations = _read(body)
    patching = _Patching(msgspec.json.decode(msgspec.json.encode(document)))
    try:
        for operation in operations:
            patching.carry_out(operation)
    except (_UnfitError, RecursionError):
        raise _unfit() from None
    patched = patching.document
    if not isinstance(patched, dict):
        raise _unfit()
    try:
        check_depth(patched)
    except JsonDepthError as error:
        message = f'"" is invalid: patch: Invalid value: {error}'
        raise StatusError(422, "Invalid", message) from None
    return patched


def _unfit() -> StatusError:
    message = "the server rejected our request due to an error in our request"
    return StatusError(422, "Invalid", message, details={})


def _read(body: bytes) -> list[JsonObject]:
    try:
        patch = decode_json(body)
    except JsonValueError as problem:
        raise bad_request(f"error decoding patch: {problem}") from None
    if patch is None:
        return []
    if not isinstance(patch, list):
        raise _unreadable(patch, "value of type []handlers.jsonPatchOp")
    if len(patch) > MAX_OPERATIONS:
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: The allowed maximum operations in a JSON patch is"
            f" {MAX_OPERATIONS}, got {len(patch)}",
        )
    for operation in patch:
        if not isinstance(operation, dict):
            raise _unreadable(operation, "value of type handlers.jsonPatchOp")
        for name in _TEXT_MEMBERS:
            if not isinstance(operation.get(name), str | None):
                raise _unreadable(
                    operation[name], f"struct field jsonPatchOp.{name} of type string"
                )
    operations: list[JsonObject] = patch
    return operations


def _unreadable(value: Any, go_value: str) -> StatusError:
    name = name_type(value)
    kinds = {"map[string]interface {}": "object", "[]interface {}": "array"}
    kind = kinds.get(name, "number" if name in {"int64", "float64"} else name)
    return bad_request(f"error decoding patch: json: cannot unmarshal {kind} into Go {go_value}")


class _Patching:
    """A document while it is patched, and what the patch has used of its limits."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self._copied_bytes = 0
        self._copied_values = 0
        self._shifted = 0

    def carry_out(self, operation: JsonObject) -> None:
        """Do one operation; raise _UnfitError when the document or a limit does not allow it."""
        path = operation.get("path")
        if not isinstance(path, str):
            raise _UnfitError
        value = operation.get("value")
        match operation.get("op"):
            case "test":
                if not _same(self._value_at(path), value):
                    raise _UnfitError
            case "replace" if not path:
                self.document = value
            case "replace":
                container, key = self._locate(path)
                container[_index(key, len(container)) if isinstance(container, list) else key] = (
                    value
                )
            case "add":
                self._add(path, value)
            case "remove":
                self._remove(path)
            case "move":
                self._add(path, self._remove(_source_of(operation)))
            case "copy":
                self._add(path, self._copy_of(_source_of(operation)))
            case _:
                raise _UnfitError

    def _value_at(self, path: str) -> Any:
        if not path:
            return self.document
        container, key = self._locate(path)
        if isinstance(container, list):
            return container[_index(key, len(container))]
        return container.get(key)

    def _copy_of(self, path: str) -> Any:
        if not path:
            raise _UnfitError
        value = self._value_at(path)
        self._copied_values += _count_values(value, MAX_COPIED_VALUES + 1 - self._copied_values)
        if self._copied_values > MAX_COPIED_VALUES:
            raise _UnfitError
        text = msgspec.json.encode(value)
        self._copied_bytes += len(text)
        if self._copied_bytes > MAX_COPIED_BYTES:
            raise _UnfitError
        return msgspec.json.decode(text)

    def _add(self, path: str, value: Any) -> None:
        container, key = self._locate(path)
        if isinstance(container, dict):
            container[key] = value
        elif key == "-":
            container.append(value)
        else:
            # The place behind the last item counts too.
            index = _index(key, len(container) + 1)
            self._shift(len(container) - index)
            container.insert(index, value)

    def _remove(self, path: str) -> Any:
        container, key = self._locate(path)
        if isinstance(container, dict):
            if key not in container:
                raise _UnfitError
            return container.pop(key)
        index = _index(key, len(container))
        self._shift(len(container) - index)
        return container.pop(index)

    def _shift(self, items: int) -> None:
        self._shifted += items
        if self._shifted > MAX_SHIFTED_ITEMS:
            raise _UnfitError

    def _locate(self, path: str) -> tuple[Any, str]:
        """Return the object or list that holds the target, and the target's name there."""
        start, *parts = path.split("/")
        if start or not parts:
            raise _UnfitError
        *parents, last = parts
        container = self.document
        for part in parents:
            if isinstance(container, list):
                container = container[_index(_unescape(part), len(container))]
            elif isinstance(container, dict):
                container = container.get(_unescape(part))
            else:
                raise _UnfitError
        if not isinstance(container, dict | list):
            raise _UnfitError
        return container, _unescape(last)


def _source_of(operation: JsonObject) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        raise _UnfitError
    return source


def _count_values(value: Any, limit: int) -> int:
    """Return how many values a JSON value holds, itself among them; counting ends at the limit."""
    waiting = [value]
    count = 0
    while waiting and count < limit:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return count


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part


def _same(left: Any, right: Any) -> bool:
    # NB: Python holds true for equal to 1; JSON does not.
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and bool(left == right)


def _index(key: str, length: int) -> int:
    digits = key[1:] if key[:1] in {"-", "+"} else key
    if len(digits) > _MAX_INDEX_DIGITS or not (digits.isascii() and digits.isdecimal()):
        raise _UnfitError
    index = int(key)
    if index < 0:
        index += length
    if not 0 <= index < length:
        raise _UnfitError
    return index


def apply_merge_patch(document: JsonObject, patch: JsonObject) -> JsonObject:
    """Return the document with the patch merged in; parts that do not change are shared."""
    if not isinstance(patch, dict):
        raise bad_request("Invalid JSON Patch")
    refuse_deep(patch)
    return _merge(document, patch)


def refuse_deep(patch: JsonObject) -> None:
    """Raise a Failure for a patch that nests deeper than any object may: walks of it recurse."""
    try:
        check_depth(patch)
    except JsonDepthError as error:
        raise bad_request(f"error decoding patch: {error}") from None


def _merge(document: JsonObject, patch: JsonObject) -> JsonObject:
    merged = dict(document)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
            continue
        present = merged.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            merged[name] = _merge(present, value)
        elif isinstance(present, dict) and isinstance(value, list):
            # NB: a list over an object is taken as it is, nulls and all.
            merged[name] = value
        else:
            merged[name] = drop_nulls(value)
    return merged


def drop_nulls(value: Any) -> Any:
    """Return the value without the null fields of its objects; nulls in lists stay."""
    if isinstance(value, dict):
        return {name: drop_nulls(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [drop_nulls(one) for one in value]
    return value
