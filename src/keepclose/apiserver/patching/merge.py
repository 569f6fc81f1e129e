"""JSON merge patches (RFC 7386).

A null deletes, an object is merged, anything else replaces. Nulls below a value that the document
does not have yet are left out, also inside lists, as the Go implementation does.
"""

from __future__ import annotations

from typing import Any

from keepclose.apiserver.failures import bad_request

JsonObject = dict[str, Any]


def apply_merge_patch(document: JsonObject, patch: JsonObject) -> JsonObject:
    """Return the document with the patch merged in; parts that do not change are shared."""
    if not isinstance(patch, dict):
        raise bad_request("Invalid JSON Patch")
    merged = dict(document)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
            continue
        present = merged.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            merged[name] = apply_merge_patch(present, value)
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
