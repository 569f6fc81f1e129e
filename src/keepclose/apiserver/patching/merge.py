"""JSON merge patches (RFC 7386).

A null deletes, an object is merged, anything else replaces. Nulls below a value that the document
does not have yet are left out, also inside lists, as the Go implementation does.
"""

from __future__ import annotations

from typing import Any

from keepclose.apiserver.status_errors import bad_request
from keepclose.model.json_values import JsonDepthError, JsonObject, check_depth


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
