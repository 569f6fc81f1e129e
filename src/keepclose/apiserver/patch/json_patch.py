"""JSON patches (RFC 6902), applied in order, all or nothing, and JSON merge patches (RFC 7386).

Where kube-apiserver differs from RFC 6902, this module follows it: a replacement may name a missing
field, an index may count from the end, and a missing field counts as null where it is tested or
copied. An operation that the document does not allow is rejected with one text, because
kube-apiserver says no more. In a merge patch null deletes, an object is merged, and anything else
replaces. Nulls below a value that is new in the document are dropped, also inside lists, as the Go
implementation does.

A patch of a few bytes must not cost seconds. The bytes and values of copies and the shifts of list
items are limited; neither the patch nor the patched document may be nested deeper than any other
object.
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
# All copies of one patch together, as JSON; the limit of kube-apiserver. Without it each copy of a
# list into itself would double the document.
MAX_COPIED_BYTES: Final = 3 * 1024 * 1024
# The same in values: bytes alone would let a patch of 1 kB create a million small lists.
MAX_COPIED_VALUES: Final = 100_000
# An insertion or a removal shifts all items behind it: so many shifts take about 0.1 s, and allow
# a patch to remove 5,000 items one by one from the front of a list of 20,000.
MAX_SHIFTED_ITEMS: Final = 100_000_000
# An index with more digits is beyond any list.
_MAX_INDEX_DIGITS: Final = 18
_TEXT_MEMBERS: Final = ("op", "path", "from")


class _NotApplicableError(Exception):
    """An operation that the document does not allow."""


def apply_json_patch(document: JsonObject, body: bytes) -> JsonObject:
    """Return the document after all operations; it is not changed itself."""
    operations = _read(body)
    target = _PatchedDocument(msgspec.json.decode(msgspec.json.encode(document)))
    try:
        for operation in operations:
            target.apply(operation)
    except (_NotApplicableError, RecursionError):
        raise _not_applicable() from None
    patched = target.document
    if not isinstance(patched, dict):
        raise _not_applicable()
    try:
        check_depth(patched)
    except JsonDepthError as error:
        message = f'"" is invalid: patch: Invalid value: {error}'
        raise StatusError(422, "Invalid", message) from None
    return patched


class _PatchedDocument:
    """A document that is being patched, and how much of its limits the patch has used."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self._copied_bytes = 0
        self._copied_values = 0
        self._shifted = 0

    def apply(self, operation: JsonObject) -> None:
        """Apply one operation; raise _NotApplicableError if the document or a limit forbids it."""
        path = operation.get("path")
        if not isinstance(path, str):
            raise _NotApplicableError
        value = operation.get("value")
        match operation.get("op"):
            case "test":
                if not _same(self._value_at(path), value):
                    raise _NotApplicableError
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
                raise _NotApplicableError

    def _value_at(self, path: str) -> Any:
        if not path:
            return self.document
        container, key = self._locate(path)
        if isinstance(container, list):
            return container[_index(key, len(container))]
        return container.get(key)

    def _copy_of(self, path: str) -> Any:
        if not path:
            raise _NotApplicableError
        value = self._value_at(path)
        self._copied_values += _count_values(value, MAX_COPIED_VALUES + 1 - self._copied_values)
        if self._copied_values > MAX_COPIED_VALUES:
            raise _NotApplicableError
        text = msgspec.json.encode(value)
        self._copied_bytes += len(text)
        if self._copied_bytes > MAX_COPIED_BYTES:
            raise _NotApplicableError
        return msgspec.json.decode(text)

    def _add(self, path: str, value: Any) -> None:
        container, key = self._locate(path)
        if isinstance(container, dict):
            container[key] = value
        elif key == "-":
            container.append(value)
        else:
            # The position behind the last item is valid too.
            index = _index(key, len(container) + 1)
            self._shift(len(container) - index)
            container.insert(index, value)

    def _remove(self, path: str) -> Any:
        container, key = self._locate(path)
        if isinstance(container, dict):
            if key not in container:
                raise _NotApplicableError
            return container.pop(key)
        index = _index(key, len(container))
        self._shift(len(container) - index)
        return container.pop(index)

    def _shift(self, items: int) -> None:
        self._shifted += items
        if self._shifted > MAX_SHIFTED_ITEMS:
            raise _NotApplicableError

    def _locate(self, path: str) -> tuple[Any, str]:
        """Return the object or list that holds the target, and the target's name there."""
        start, *parts = path.split("/")
        if start or not parts:
            raise _NotApplicableError
        *parents, last = parts
        container = self.document
        for part in parents:
            if isinstance(container, list):
                container = container[_index(_unescape(part), len(container))]
            elif isinstance(container, dict):
                container = container.get(_unescape(part))
            else:
                raise _NotApplicableError
        if not isinstance(container, dict | list):
            raise _NotApplicableError
        return container, _unescape(last)


def apply_merge_patch(document: JsonObject, patch: JsonObject) -> JsonObject:
    """Return the document with the patch merged in; parts that do not change are shared."""
    if not isinstance(patch, dict):
        raise bad_request("Invalid JSON Patch")
    reject_deep(patch)
    return _merge(document, patch)


def reject_deep(patch: JsonObject) -> None:
    """Raise a StatusError for a patch nested deeper than any object may be: walks recurse."""
    try:
        check_depth(patch)
    except JsonDepthError as error:
        raise bad_request(f"error decoding patch: {error}") from None


def drop_nulls(value: Any) -> Any:
    """Return the value without the null fields of its objects; null items of lists stay."""
    if isinstance(value, dict):
        return {name: drop_nulls(child) for name, child in value.items() if child is not None}
    if isinstance(value, list):
        return [drop_nulls(child) for child in value]
    return value


def _not_applicable() -> StatusError:
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


def _source_of(operation: JsonObject) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        raise _NotApplicableError
    return source


def _count_values(value: Any, limit: int) -> int:
    """Return the number of values in a JSON value, itself included; counting ends at the limit."""
    pending = [value]
    count = 0
    while pending and count < limit:
        value = pending.pop()
        count += 1
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return count


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part


def _same(left: Any, right: Any) -> bool:
    # NB: in Python true equals 1; in JSON it does not.
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and bool(left == right)


def _index(key: str, length: int) -> int:
    digits = key[1:] if key[:1] in {"-", "+"} else key
    if len(digits) > _MAX_INDEX_DIGITS or not (digits.isascii() and digits.isdecimal()):
        raise _NotApplicableError
    index = int(key)
    if index < 0:
        index += length
    if not 0 <= index < length:
        raise _NotApplicableError
    return index


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
            # NB: a list that replaces an object is taken as it is, with its nulls.
            merged[name] = value
        else:
            merged[name] = drop_nulls(value)
    return merged
