"""Who owns the fields that a create, an update or a plain patch changes.

What differs between the stored object and the new one belongs to the manager of the write and to
no one else; what is gone belongs to nobody. This runs with every write: a create is one walk of
the object, an update one walk of what differs.
"""

from __future__ import annotations

from typing import Any

from keepclose.apiserver.patch.comparing import compare_objects
from keepclose.apiserver.patch.field_sets import (
    FieldSet,
    difference,
    union,
    without_subtrees,
)
from keepclose.apiserver.patch.managed_fields import (
    UPDATE,
    EntryError,
    Owner,
    cap_updates,
    is_reset,
    make_entry,
    managed_fields,
    owner_of,
    read_entries,
    with_fields,
    write_entries,
)
from keepclose.apiserver.patch.shapes import Shape, StepError, shape_of
from keepclose.apiserver.patch.zero_values import Resets, blank_of, resets_of
from keepclose.apiserver.schema.types import Type
from keepclose.model.json_values import JsonObject


def record_update(
    old: JsonObject | None,
    new: JsonObject,
    *,
    type: Type,  # noqa: A002 - the name that callers know
    api_version: str,
    manager: str,
    now: str | None,
    subresource: str = "",
    ignored: FieldSet | tuple[str, ...] | None = None,
) -> None:
    """Set `new`'s managedFields after a create, an update or a patch that is no apply.

    `old` is None for a create. Entries that the client sent count if they can be read, except on
    a subresource. Nothing is touched, times neither, when nothing changed. Entries are shared
    with `old`. An object that has no owners gets none by an update. Without a time an owner's entry
    has none.
    """
    metadata = new.get("metadata")
    if not isinstance(metadata, dict):
        return
    entries, trusted = _choose_entries(old, metadata.get("managedFields"), subresource)
    if old is not None and not entries:
        metadata.pop("managedFields", None)
        return
    shape = shape_of(type)
    resets = resets_of(type, subresource, ignored)
    if shape is None:
        metadata.pop("managedFields", None)
        return
    try:
        changed, gone = compare_writes(blank_of(type) if old is None else old, new, shape, resets)
    except StepError:
        # As a real server: rather no owners than wrong ones.
        metadata.pop("managedFields", None)
        return
    owner: Owner = (manager or "unknown", UPDATE, api_version, subresource)
    if not entries:
        if changed:
            metadata["managedFields"] = [
                make_entry(owner, changed, api_version=api_version, time=now)
            ]
        else:
            metadata.pop("managedFields", None)
        return
    if trusted and not changed and not gone:
        metadata["managedFields"] = entries
        return
    write_entries(metadata, cap_updates(_attribute(entries, owner, changed, gone, now)))


def _choose_entries(
    old: JsonObject | None, sent: Any, subresource: str
) -> tuple[list[JsonObject], bool]:
    """Return the entries to start from, and whether they are those of the stored object."""
    stored = managed_fields(old)
    if subresource or sent is None or sent == stored:
        return stored, True
    if is_reset(sent):
        return [], False
    try:
        return read_entries(sent), False
    except EntryError:
        return stored, True


def compare_writes(
    old: JsonObject, new: JsonObject, shape: Shape, resets: Resets
) -> tuple[FieldSet, FieldSet]:
    """Return what a write sets or changes and what it removes, but for what its endpoint resets."""
    changed, gone = compare_objects(old, new, shape, resets.top)
    if resets.deeper:
        changed = without_subtrees(changed, resets.deeper)
        gone = without_subtrees(gone, resets.deeper)
    return changed, gone


def _attribute(
    entries: list[JsonObject], owner: Owner, changed: FieldSet, gone: FieldSet, now: str | None
) -> list[JsonObject]:
    kept: list[JsonObject] = []
    missing = bool(changed)
    for entry in entries:
        fields = entry["fieldsV1"]
        left = difference(fields, gone)
        if owner_of(entry) == owner and changed:
            kept.append(with_fields(entry, union(left, changed), now))
            missing = False
            continue
        left = difference(left, changed)
        if left is fields and left:
            kept.append(entry)
        elif left:
            kept.append(with_fields(entry, left))
    if missing:
        kept.append(make_entry(owner, changed, api_version=owner[2], time=now))
    return kept
