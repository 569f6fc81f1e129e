"""JSON patches (RFC 6902): a list of operations, done in order, all or nothing.

The operations themselves are those of the `jsonpatch` library. What kube-apiserver does
differently is settled before: a replacement may name a field that is missing, an index may count
from the end, and a missing field counts as null where it is tested or copied. Whatever does not
fit the document is refused with one text, because a real server says no more.
"""

from __future__ import annotations

from typing import Any, Final

import jsonpatch

from keepclose.apiserver.failures import Failure, bad_request
from keepclose.apiserver.patching.texts import name_type
from keepclose.model.jsonvalues import JsonValueError, decode_json

JsonObject = dict[str, Any]

MAX_OPERATIONS: Final = 10_000

_OPERATIONS: Final[dict[str, type[jsonpatch.PatchOperation]]] = {
    "add": jsonpatch.AddOperation,
    "remove": jsonpatch.RemoveOperation,
    "replace": jsonpatch.ReplaceOperation,
    "move": jsonpatch.MoveOperation,
    "copy": jsonpatch.CopyOperation,
}


class _UnfitError(Exception):
    """An operation that the document does not allow."""


def apply_json_patch(document: JsonObject, body: bytes) -> JsonObject:
    """Return the document after all operations; it is not changed itself."""
    operations = _read(body)
    patched: Any = copy_json(document)
    try:
        for operation in operations:
            patched = _carry_out(operation, patched)
    except (_UnfitError, jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
        message = "the server rejected our request due to an error in our request"
        raise Failure(422, "Invalid", message, details={}) from None
    if not isinstance(patched, dict):
        raise bad_request("the patched document is not an object")
    return patched


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {name: copy_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [copy_json(one) for one in value]
    return value


def _read(body: bytes) -> list[JsonObject]:
    try:
        patch = decode_json(body)
    except JsonValueError as problem:
        raise bad_request(f"error decoding patch: {problem}") from None
    for value, want in [(patch, list), *((one, dict) for one in patch or [])]:
        if not isinstance(value, want):
            found = {"map[string]interface {}": "object", "[]interface {}": "array"}.get(
                name := name_type(value), "number" if name in {"int64", "float64"} else name
            )
            wanted = "[]handlers.jsonPatchOp" if want is list else "handlers.jsonPatchOp"
            raise bad_request(
                f"error decoding patch: json: cannot unmarshal {found} into Go value of type"
                f" {wanted}"
            )
    operations: list[JsonObject] = patch
    if len(operations) > MAX_OPERATIONS:
        raise Failure(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: The allowed maximum operations in a JSON patch is"
            f" {MAX_OPERATIONS}, got {len(operations)}",
        )
    return operations


def _carry_out(operation: JsonObject, document: Any) -> Any:
    kind = operation.get("op")
    path = operation.get("path")
    if not isinstance(path, str):
        raise _UnfitError
    if kind == "test":
        return _test(operation, path, document)
    if kind == "replace" and not path:
        return copy_json(operation.get("value"))
    if not isinstance(kind, str) or kind not in _OPERATIONS:
        raise _UnfitError
    if kind in {"move", "copy"}:
        source = operation.get("from")
        if not isinstance(source, str):
            raise _UnfitError
        container, key, source = _locate(source, document, room=0)
        operation = {**operation, "from": source}
        if isinstance(container, dict) and key not in container:
            if kind == "move":
                raise _UnfitError
            kind, operation = "add", {"value": None}
    # An addition may name the place behind the last item.
    room = 0 if kind in {"remove", "replace"} else 1
    container, key, path = _locate(path, document, room=room)
    if kind == "replace" and isinstance(container, dict) and key not in container:
        kind = "add"
    if kind in {"add", "replace"}:
        operation = {"value": None, **operation}
    return _OPERATIONS[kind]({**operation, "op": kind, "path": path}).apply(document)


def _test(operation: JsonObject, path: str, document: Any) -> Any:
    want = operation.get("value")
    if not path:
        found = document
    else:
        container, key, _ = _locate(path, document, room=0)
        found = container.get(key) if isinstance(container, dict) else container[int(key)]
    if not _same(found, want):
        raise _UnfitError
    return document


def _same(left: Any, right: Any) -> bool:
    # NB: Python holds true for equal to 1; JSON does not.
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and bool(left == right)


def _locate(path: str, document: Any, *, room: int) -> tuple[Any, str, str]:
    """Return what holds the target, its name there, and the path with plain indices."""
    parts = path.split("/")
    if len(parts) < 2:
        raise _UnfitError
    container = document
    plain = ""
    depth = 1
    while True:
        part = parts[depth]
        depth += 1
        last = depth == len(parts)
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(container, list):
            if not (last and room and key == "-"):
                key = str(_index(key, len(container) + (room if last else 0)))
            plain += f"/{key}"
            if last:
                return container, key, plain
            container = container[int(key)]
        elif isinstance(container, dict):
            plain += f"/{part}"
            if last:
                return container, key, plain
            container = container.get(key)
        else:
            raise _UnfitError


def _index(key: str, length: int) -> int:
    digits = key[1:] if key[:1] in {"-", "+"} else key
    if not (digits.isascii() and digits.isdecimal()):
        raise _UnfitError
    index = int(key)
    if index < 0:
        index += length
    if not 0 <= index < length:
        raise _UnfitError
    return index
