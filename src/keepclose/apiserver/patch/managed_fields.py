"""metadata.managedFields: which manager owns which fields, read and written as kube-apiserver does.

An entry is identified by manager, operation, subresource and, unless it comes from an apply, by
version. Entries that own nothing are dropped. Applies come first, then by time, then by name. Of
the managers that only update no more than ten are kept: the oldest are merged.

What differs between the stored object and the new one belongs to the manager of the write alone; a
removed field has no owner. This runs with every write: a create is one walk of the object, an
update one walk of what differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from keepclose.apiserver.patch.comparing import compare_objects
from keepclose.apiserver.patch.field_sets import (
    FieldSet,
    FieldSetError,
    decode_fields,
    difference,
    encode_fields,
    union,
    without_subtrees,
)
from keepclose.apiserver.patch.shapes import Shape, StepError, shape_of
from keepclose.apiserver.patch.zero_values import Resets, resets_of, zero_value_of
from keepclose.apiserver.schema.types import Type
from keepclose.model.json_values import JsonObject

# manager, operation, version (empty for an apply), subresource
Owner = tuple[str, str, str, str]

MAX_UPDATE_MANAGERS: Final = 10
APPLY_OPERATION: Final = "Apply"
UPDATE: Final = "Update"


class EntryError(ValueError):
    """The reason why entries of managedFields are invalid."""


def owner_of(entry: JsonObject) -> Owner:
    """Return the identity of an entry."""
    operation = entry["operation"]
    version = "" if operation == APPLY_OPERATION else entry["apiVersion"]
    return entry.get("manager", ""), operation, version, entry.get("subresource", "")


def make_entry(owner: Owner, fields: FieldSet, *, api_version: str, time: str | None) -> JsonObject:
    """Return an entry of managedFields."""
    entry: JsonObject = {"manager": owner[0], "operation": owner[1], "apiVersion": api_version}
    if time is not None:
        entry["time"] = time
    entry["fieldsType"] = "FieldsV1"
    entry["fieldsV1"] = fields
    if owner[3]:
        entry["subresource"] = owner[3]
    return entry


def with_fields(entry: JsonObject, fields: FieldSet, time: str | None = None) -> JsonObject:
    """Return the entry with other fields, and with another time unless it is None."""
    return make_entry(
        owner_of(entry),
        fields,
        api_version=entry["apiVersion"],
        time=entry.get("time") if time is None else time,
    )


def managed_fields(document: JsonObject | None) -> list[JsonObject]:
    """Return the entries of a stored object; none when it has none."""
    metadata = (document or {}).get("metadata")
    if not metadata:
        return []
    entries: list[JsonObject] = metadata.get("managedFields") or []
    return entries


def is_reset(sent: Any) -> bool:
    """Return whether a client resets all owners: an empty list, or one empty entry."""
    return isinstance(sent, list) and (not sent or sent == [{}])


def read_entries(sent: Any) -> list[JsonObject]:
    """Return entries that a client sent, in canonical form.

    Of two entries of one owner the later counts. Raises EntryError for anything that
    kube-apiserver would reject.
    """
    if not isinstance(sent, list):
        raise EntryError("managedFields must be a list")
    read: dict[Owner, JsonObject] = {}
    for number, entry in enumerate(sent):
        if not isinstance(entry, dict):
            raise EntryError("an entry must be an object")
        if entry.get("operation") not in {APPLY_OPERATION, UPDATE}:
            raise EntryError("operation must be `Apply` or `Update`")
        version = entry.get("apiVersion")
        if not isinstance(version, str) or not version:
            raise EntryError("apiVersion must not be empty")
        if entry.get("fieldsType") != "FieldsV1":
            raise EntryError(f"missing fieldsType in managed fields entry {number}")
        try:
            fields = decode_fields(entry.get("fieldsV1") or {})
        except FieldSetError as problem:
            raise EntryError(str(problem)) from None
        owner = owner_of(entry)
        read.pop(owner, None)
        read[owner] = make_entry(
            owner, encode_fields(fields), api_version=version, time=_in_utc(entry.get("time"))
        )
    return list(read.values())


def sort_entries(entries: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the entries in the order in which objects list them."""
    return sorted(entries, key=_order)


def cap_updates(entries: list[JsonObject]) -> list[JsonObject]:
    """Return the entries, with the oldest updates merged when there are too many."""
    updates = [entry for entry in entries if entry["operation"] == UPDATE]
    excess = len(updates) - MAX_UPDATE_MANAGERS
    if excess <= 0:
        return entries
    updates.sort(key=lambda entry: (entry.get("time") or "", owner_of(entry)))
    kept = {owner_of(entry): entry for entry in entries}
    first_by_version: dict[str, Owner] = {}
    for entry in updates:
        if excess <= 0:
            break
        owner = owner_of(entry)
        version = entry["apiVersion"]
        if version not in first_by_version:
            first_by_version[version] = owner
            continue
        merged_owner: Owner = ("ancient-changes", UPDATE, version, "")
        if merged_owner not in kept:
            kept[merged_owner] = kept.pop(first_by_version[version])
        fields = union(entry["fieldsV1"], kept[merged_owner]["fieldsV1"])
        del kept[owner]
        kept[merged_owner] = make_entry(
            merged_owner, fields, api_version=version, time=entry.get("time")
        )
        excess -= 1
    return list(kept.values())


def write_entries(metadata: JsonObject, entries: list[JsonObject]) -> None:
    """Set managedFields; remove the field when there are no entries."""
    if entries:
        metadata["managedFields"] = sort_entries(entries)
    else:
        metadata.pop("managedFields", None)


def restore_times(old: JsonObject, new: JsonObject) -> None:
    """Restore the times of the stored object when nothing but times differs.

    A write that changes nothing else is then recognized as no change. Call it with the object as
    it would be stored.
    """
    before, after = managed_fields(old), managed_fields(new)
    if len(before) != len(after) or before == after:
        return
    timeless = [{**entry, "time": None} for entry in before]
    if timeless != [{**entry, "time": None} for entry in after]:
        return
    metadata = {**new["metadata"], "managedFields": before}
    if {**new, "metadata": metadata} == old:
        new["metadata"]["managedFields"] = before


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

    `old` is None for a create. Entries that the client sent count if they are valid, except on a
    subresource. When nothing changed, nothing is touched, not even times. Entries are shared with
    `old`. An update adds no owner to an object without owners. `now` is None for an entry without
    a time.
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
        changed, removed = compare_writes(
            zero_value_of(type) if old is None else old, new, shape, resets
        )
    except StepError:
        # As in kube-apiserver: no owners are better than wrong ones.
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
    if trusted and not changed and not removed:
        metadata["managedFields"] = entries
        return
    write_entries(metadata, cap_updates(_attribute(entries, owner, changed, removed, now)))


def compare_writes(
    old: JsonObject, new: JsonObject, shape: Shape, resets: Resets
) -> tuple[FieldSet, FieldSet]:
    """Return what a write sets and what it removes, without what its endpoint resets."""
    changed, removed = compare_objects(old, new, shape, resets.top)
    if resets.deeper:
        changed = without_subtrees(changed, resets.deeper)
        removed = without_subtrees(removed, resets.deeper)
    return changed, removed


def _in_utc(time: Any) -> str | None:
    if time is None:
        return None
    try:
        moment = datetime.fromisoformat(time)
    except (TypeError, ValueError):
        raise EntryError("time must be RFC 3339") from None
    if moment.tzinfo is None:
        raise EntryError("time must be RFC 3339")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _order(entry: JsonObject) -> tuple[str, str, str, str, str]:
    return (
        entry["operation"],
        entry.get("time") or "",
        entry.get("manager", ""),
        entry["apiVersion"],
        entry.get("subresource", ""),
    )


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


def _attribute(
    entries: list[JsonObject], owner: Owner, changed: FieldSet, removed: FieldSet, now: str | None
) -> list[JsonObject]:
    kept: list[JsonObject] = []
    needs_entry = bool(changed)
    for entry in entries:
        fields = entry["fieldsV1"]
        remaining = difference(fields, removed)
        if owner_of(entry) == owner and changed:
            kept.append(with_fields(entry, union(remaining, changed), now))
            needs_entry = False
            continue
        remaining = difference(remaining, changed)
        if remaining is fields and remaining:
            kept.append(entry)
        elif remaining:
            kept.append(with_fields(entry, remaining))
    if needs_entry:
        kept.append(make_entry(owner, changed, api_version=owner[2], time=now))
    return kept
