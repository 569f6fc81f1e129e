"""Server-side apply: a manager applies its desired fields, and owns them.

Fields that the manager no longer lists are removed unless another manager owns them. A field that
another manager owns with another value is a conflict, unless the apply is forced; the error is that
of kube-apiserver. The rules are those of Kubernetes' structured merge.

kubectl's client-side apply left an annotation behind, with the configuration that was applied last.
Its fields are handed over to server-side apply without conflicts as long as they still have those
values. The annotation is kept up to date, for kubectl alone.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from keepclose.apiserver.patch.comparing import UNOWNED_METADATA, compare_objects
from keepclose.apiserver.patch.field_sets import (
    FieldSet,
    contains,
    difference,
    encode_fields,
    intersection,
    paths,
    set_of,
    show_path,
    union,
    without_subtrees,
)
from keepclose.apiserver.patch.go_format import encode_sorted, go_quote
from keepclose.apiserver.patch.managed_fields import (
    APPLY_OPERATION,
    UPDATE,
    Owner,
    compare_writes,
    make_entry,
    managed_fields,
    owner_of,
    with_fields,
    write_entries,
)
from keepclose.apiserver.patch.shapes import Shape, StepError, shape_of
from keepclose.apiserver.patch.typed_values import (
    find_type_errors,
    list_fields,
    merge_values,
    name_containers,
    remove_fields,
    resolve_nulls,
)
from keepclose.apiserver.patch.zero_values import Resets, resets_of, zero_value_of
from keepclose.apiserver.schema.types import Type
from keepclose.apiserver.status_errors import StatusError, bad_request
from keepclose.model.json_values import JsonObject, decode_json

KUBECTL: Final = "kubectl"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATIONS: Final = 256 * 1024
_NEVER_OWNED: Final = union(
    set_of("apiVersion", "kind", "metadata"),
    set_of(*(f"metadata.{name}" for name in sorted(UNOWNED_METADATA))),
)
_Conflict = tuple[Owner, tuple[str, ...]]


def owner_sort_key(owner: Owner) -> str:
    """Return the text by which kube-apiserver sorts owners."""
    manager, operation, version, subresource = owner
    parts = {"manager": manager, "operation": operation, "apiVersion": version}
    if subresource:
        parts["subresource"] = subresource
    return json.dumps({name: part for name, part in parts.items() if part}, separators=(",", ":"))


def conflict_error(conflicts: list[_Conflict]) -> StatusError:
    """Return the error of an apply that is not forced; conflicts must be sorted by owner."""
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {_describe_owner(owner)}",
            "field": show_path(path),
        }
        for owner, path in conflicts
    ]
    if len(conflicts) == 1:
        cause = causes[0]
        message = f"Apply failed with 1 conflict: {cause['message']}: {cause['field']}"
    else:
        lines: list[str] = []
        for owner in dict.fromkeys(owner for owner, _ in conflicts):
            lines.append(f"conflicts with {_describe_owner(owner)}:")
            lines += (
                f"- {show_path(path)}"
                for conflict_owner, path in conflicts
                if conflict_owner == owner
            )
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", message, details={"causes": causes})


def list_last_applied(live: JsonObject | None, api_version: str, object_type: Type) -> FieldSet:
    """Return the fields of the last client-side apply that still have its values."""
    annotations = ((live or {}).get("metadata") or {}).get("annotations") or {}
    shape = shape_of(object_type)
    try:
        last = decode_json(annotations.get(LAST_APPLIED, ""))
    except ValueError:
        return {}
    if shape is None or not isinstance(last, dict) or last.get("apiVersion") != api_version:
        return {}
    if find_type_errors(last, object_type):
        return {}
    changed, removed = compare_objects(last, live or {}, shape, frozenset())
    return difference(difference(list_fields(last, shape), changed), removed)


def update_last_applied(metadata: JsonObject, applied: JsonObject) -> None:
    """Set an existing annotation to the applied configuration."""
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return
    configuration = dict(applied)
    if isinstance(configuration.get("metadata"), dict):
        inner = dict(configuration["metadata"])
        if isinstance(inner.get("annotations"), dict):
            own = {k: v for k, v in inner["annotations"].items() if k != LAST_APPLIED}
            inner["annotations"] = own
            if not own:
                del inner["annotations"]
        configuration["metadata"] = inner
    updated = {**annotations, LAST_APPLIED: encode_sorted(configuration) + "\n"}
    if sum(len(k.encode()) + len(v.encode()) for k, v in updated.items()) > MAX_ANNOTATIONS:
        del updated[LAST_APPLIED]
    metadata["annotations"] = updated


class _Conflicts(Exception):  # noqa: N818 - no error for a forced apply
    """Fields that other managers own."""

    def __init__(self, conflicts: list[_Conflict]) -> None:
        super().__init__()
        self.conflicts = conflicts


def apply_configuration(
    live: JsonObject | None,
    applied: JsonObject,
    *,
    type: Type,  # noqa: A002 - the name that callers know
    api_version: str,
    manager: str,
    force: bool,
    now: str,
    subresource: str = "",
    ignored: FieldSet | tuple[str, ...] | None = None,
) -> JsonObject:
    """Return the live object with the applied configuration, and with its managedFields.

    `live` is None when the object does not exist; the result is then to be created. Raises a
    StatusError for conflicts (409), and for a configuration that does not match the type.
    """
    shape = _check(applied, type=type, api_version=api_version)
    base: JsonObject = {**zero_value_of(type), "apiVersion": api_version} if live is None else live
    resets = resets_of(type, subresource, ignored)
    entries = {owner_of(entry): entry for entry in managed_fields(live)}
    if live is not None and not entries:
        first: Owner = ("before-first-apply", UPDATE, api_version, subresource)
        try:
            changed, _ = compare_writes(zero_value_of(type), live, shape, resets)
        except StepError:
            doing = "failed to create manager for existing fields: failed to convert new object"
            raise _untyped_error(live, type, doing, " to smd typed") from None
        if changed:
            entry = make_entry(first, changed, api_version=api_version, time=now)
            entries[first] = entry
    owner: Owner = (manager or "unknown", APPLY_OPERATION, "", subresource)
    request = _Request(
        base=base,
        applied=applied,
        desired=without_subtrees(list_fields(applied, shape), resets.all),
        shape=shape,
        resets=resets,
        owner=owner,
        api_version=api_version,
        now=now,
    )
    try:
        result, kept = request.merge(entries, force=force)
    except StepError:
        raise _untyped_error(base, type, "failed to create typed live object") from None
    except _Conflicts as error:
        # kubectl's client-side apply hands its own fields over to server-side apply.
        handed_over = list_last_applied(live, api_version, type) if manager == KUBECTL else {}
        remaining = [
            conflict for conflict in error.conflicts if not contains(handed_over, conflict[1])
        ]
        if remaining:
            raise conflict_error(remaining) from None
        result, kept = request.merge(entries, force=True)
    metadata = {**result.get("metadata", {})}
    result = {**result, "metadata": metadata}
    if manager == KUBECTL:
        update_last_applied(metadata, applied)
    write_entries(metadata, list(kept.values()))
    return result


def _describe_owner(owner: Owner) -> str:
    manager, operation, version, subresource = owner
    text = go_quote(manager)
    if subresource:
        text += f" with subresource {go_quote(subresource)}"
    return f"{text} using {version}" if operation == UPDATE else text


def _check(applied: JsonObject, *, type: Type, api_version: str) -> Shape:  # noqa: A002
    version, kind = applied.get("apiVersion", ""), applied.get("kind", "")
    if version != api_version:
        raise bad_request(f"invalid object type: {_show_kind(version, kind)}")
    metadata = applied.get("metadata") or {}
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    shape = shape_of(type)
    if shape is None or find_type_errors(applied, type):
        raise _untyped_error(applied, type, "failed to create typed patch object")
    return shape


def _untyped_error(named: JsonObject, object_type: Type, doing: str, end: str = "") -> StatusError:
    """Return the error for an object that does not match its type."""
    errors = find_type_errors(named, object_type)
    text = errors[0] if len(errors) == 1 else "\n  ".join(["errors:", *errors])
    metadata = named.get("metadata") or {}
    name = f"{_name(metadata, 'namespace')}/{_name(metadata, 'name')}"
    kind = _show_kind(named.get("apiVersion", ""), named.get("kind", ""))
    return StatusError(500, "", f"{doing} ({name}; {kind}){end}: {text}")


def _show_kind(version: str, kind: str) -> str:
    # NB: the slash is written even when the group is empty.
    return f"{version if '/' in version else f'/{version}'}, Kind={kind}"


def _name(metadata: Any, field: str) -> str:
    return str(metadata.get(field) or "") if isinstance(metadata, dict) else ""


class _Request(msgspec.Struct):
    """One apply: the live object, the applied configuration and its manager."""

    base: JsonObject
    applied: JsonObject
    # The fields that the configuration sets.
    desired: FieldSet
    shape: Shape
    resets: Resets
    owner: Owner
    api_version: str
    now: str

    def merge(
        self, entries: dict[Owner, JsonObject], *, force: bool
    ) -> tuple[JsonObject, dict[Owner, JsonObject]]:
        """Return the merged object and its entries; raise _Conflicts unless forced."""
        previous = entries.get(self.owner)
        last = previous["fieldsV1"] if previous else {}
        sets = {owner: entry["fieldsV1"] for owner, entry in entries.items()}
        sets[self.owner] = self.desired
        merged = merge_values(self.base, self.applied, self.shape)
        if difference(last, self.desired):
            merged = self._prune(merged, last, sets)
        changed, removed = compare_writes(self.base, merged, self.shape, self.resets)
        conflicts: list[_Conflict] = []
        kept: dict[Owner, JsonObject] = {}
        for owner in sorted(entries, key=owner_sort_key):
            entry = entries[owner]
            if owner == self.owner:
                continue
            fields = entry["fieldsV1"]
            if not force:
                conflicts += ((owner, path) for path in paths(intersection(fields, changed)))
            remaining = difference(difference(fields, changed), removed)
            if remaining:
                kept[owner] = entry if remaining is fields else with_fields(entry, remaining)
        if conflicts:
            raise _Conflicts(conflicts)
        own = difference(self.desired, _NEVER_OWNED)
        if own:
            time = previous.get("time") if previous else None
            if merged != self.base:
                time = self.now
            kept[self.owner] = make_entry(
                self.owner, encode_fields(own), api_version=self.api_version, time=time
            )
        return resolve_nulls(merged, self.shape), kept

    def _prune(self, merged: JsonObject, last: FieldSet, sets: dict[Owner, FieldSet]) -> JsonObject:
        """Return the merged object without the fields that only this manager's last apply set."""
        shape = self.shape
        named_last = name_containers(last, shape)
        everything = name_containers(list_fields(merged, shape), shape)
        owned: FieldSet = {}
        for fields in sets.values():
            owned = union(owned, fields)
        cut = remove_fields(merged, named_last, shape)
        remaining = name_containers(list_fields(cut, shape), shape)
        owned = union(remaining, name_containers(owned, shape))
        cut = remove_fields(merged, difference(everything, owned), shape)
        remaining = name_containers(list_fields(cut, shape), shape)
        pruned_fields = intersection(difference(everything, remaining), named_last)
        pruned: JsonObject = remove_fields(merged, pruned_fields, shape) or {}
        return pruned
