"""Patch algorithms beside simple references: RFC 7386 as it is written, and the jsonpatch library.

An input is `merge`, `json` or `strategic`, and a JSON list of a document and a patch. Neither of
them is changed, and what a patch makes does not change when it is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonpatch
import msgspec
from fuzzbounds import require
from fuzzobjects import OBJECTS
from fuzzserver import GATES

from keepclose.apiserver.patch.json_patch import apply_json_patch, apply_merge_patch
from keepclose.apiserver.patch.strategic_merge import apply_strategic_patch
from keepclose.apiserver.schema.checking import check_object
from keepclose.apiserver.schema.types import load_types
from keepclose.apiserver.status_errors import StatusError

MUTATES_JSON = True
_SERVICE = load_types(GATES)["io.k8s.api.core.v1.Service"]


def seeds() -> Iterator[bytes]:
    """Yield pairs of documents and patches."""
    document = {"a": {"b": [1, {"c": None}], "d": "e"}, "f": [{"x": 1}, {"x": 2}], "~/": 0}
    service = OBJECTS["services"]
    pairs: list[tuple[str, object]] = [
        ("merge", [document, {"a": {"b": None, "n": {"m": None}}, "f": [1, {"y": None}]}]),
        ("merge", [service, {"spec": {"ports": [{"port": 1}]}, "metadata": {"labels": None}}]),
        ("json", [document, [{"op": "add", "path": "/a/b/0", "value": {"z": []}}]]),
        ("json", [document, [{"op": "move", "from": "/f/0", "path": "/a/b/-"}]]),
        ("json", [document, [{"op": "copy", "from": "/a", "path": "/a/d"}]]),
        ("json", [document, [{"op": "replace", "path": "/~0~1", "value": 1}]]),
        ("json", [document, [{"op": "test", "path": "/a/d", "value": "e"}]]),
        ("json", [document, [{"op": "remove", "path": "/f/1"}, {"op": "remove", "path": ""}]]),
        ("strategic", [service, {"spec": {"ports": [{"port": 80, "name": "x"}, {"port": 9}]}}]),
        ("strategic", [service, {"spec": {"externalIPs": ["192.0.2.8"], "selector": {"a": None}}}]),
        ("strategic", [service, {"status": {"conditions": [{"type": "A", "status": "True"}]}}]),
    ]
    for head, pair in pairs:
        yield head.encode() + b"\n" + msgspec.json.encode(pair)


def check(data: bytes) -> None:
    """Compare the result with the reference, where there is one."""
    head, _, body = data.partition(b"\n")
    try:
        document, patch = msgspec.json.decode(body, type=tuple[dict[str, Any], Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    before = msgspec.json.encode([document, patch])
    try:
        if head == b"merge" and isinstance(patch, dict):
            _check_merge(document, patch)
        elif head == b"json":
            _check_json(document, patch)
        elif head == b"strategic" and isinstance(patch, dict):
            _check_strategic(document, patch)
    except StatusError:
        pass
    require(msgspec.json.encode([document, patch]) == before, "the document or patch is changed")


def _check_merge(document: dict[str, Any], patch: dict[str, Any]) -> None:
    merged = apply_merge_patch(document, patch)
    # Nulls in lists are the one point in which Go differs from the RFC.
    if not _has_null_in_list(patch, within=False):
        require(merged == _reference_merge(document, patch), "merge differs from RFC 7386")
        require(apply_merge_patch(merged, patch) == merged, "merging again changes something")


def _reference_merge(document: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _reference_merge(merged.get(name), value)
    return merged


def _has_null_in_list(value: Any, *, within: bool) -> bool:
    if isinstance(value, list):
        return any(_has_null_in_list(one, within=True) for one in value)
    if isinstance(value, dict):
        return any(_has_null_in_list(one, within=within) for one in value.values())
    return within and value is None


def _check_json(document: dict[str, Any], patch: Any) -> None:
    patched = apply_json_patch(document, msgspec.json.encode(patch))
    # In a test true equals 1 to the library; a pointer may hold escapes that it refuses.
    if any(one.get("op") == "test" for one in patch or ()):
        return
    try:
        reference = jsonpatch.apply_patch(document, patch)
    except Exception:  # noqa: BLE001 - kube-apiserver allows more, and so do we
        return
    require(patched == reference, "the patch differs from RFC 6902")


def _check_strategic(document: dict[str, Any], patch: dict[str, Any]) -> None:
    # What is stored has the types of its kind; a patch may have any.
    if not _is_typed(document):
        return
    merged = apply_strategic_patch(document, patch, _SERVICE)
    plain = b"$" not in msgspec.json.encode(patch) and not _has_null_in_list(patch, within=False)
    if plain and _is_typed(merged):
        again = apply_strategic_patch(merged, patch, _SERVICE)
        if _repeats_value(patch):
            # Two items with one merge key are both added to no list, but both merged into the
            # first of a list that is there.
            merged, again = again, apply_strategic_patch(again, patch, _SERVICE)
        require(again == merged, "merging strategically again changes something")


def _repeats_value(value: Any) -> bool:
    """Return whether a list has two items that are the same or may have the same merge key."""
    if isinstance(value, dict):
        return any(map(_repeats_value, value.values()))
    if not isinstance(value, list):
        return False
    members = [
        msgspec.json.encode(member)
        for item in value
        for member in (item.items() if isinstance(item, dict) else (item,))
    ]
    return len(set(members)) < len(members) or any(map(_repeats_value, value))


def _is_typed(document: dict[str, Any]) -> bool:
    return not check_object(_SERVICE, msgspec.json.decode(msgspec.json.encode(document))).wrong_type
