"""Server-side apply: a manager says what it wants, and owns that.

Fields that it no longer lists are removed unless someone else owns them; a field that another
manager owns with another value is a conflict, unless the apply is forced. The rules are those of
Kubernetes' structured merge.
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
from keepclose.apiserver.patch.shapes import Shape, shape_of
from keepclose.apiserver.patch.typed_values import (
    find_misfits,
    list_fields,
    merge_values,
    name_containers,
    remove_fields,
    settle_nulls,
)
from keepclose.apiserver.patch.zero_values import Resets, blank_of, resets_of
from keepclose.apiserver.schema.types import Type
from keepclose.apiserver.status_errors import StatusError, bad_request
from keepclose.model.json_values import JsonObject, decode_json

_Conflict = tuple[Owner, tuple[str, ...]]
KUBECTL: Final = "kubectl"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATIONS: Final = 256 * 1024
_NEVER_OWNED: Final = union(
    set_of("apiVersion", "kind", "metadata"),
    set_of(*(f"metadata.{name}" for name in sorted(UNOWNED_METADATA))),
)


def spell_owner(owner: Owner) -> str:
    """Return the text by which a server sorts owners."""
    manager, operation, version, subresource = owner
    parts = {"manager": manager, "operation": operation, "apiVersion": version}
    if subresource:
        parts["subresource"] = subresource
    return json.dumps({name: one for name, one in parts.items() if one}, separators=(",", ":"))


def tell_conflicts(conflicts: list[_Conflict]) -> StatusError:
    """Return the answer to an apply that is not forced; conflicts come sorted by owner."""
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {_present(owner)}",
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
            lines.append(f"conflicts with {_present(owner)}:")
            lines += (f"- {show_path(path)}" for other, path in conflicts if other == owner)
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", message, details={"causes": causes})


def _present(owner: Owner) -> str:
    manager, operation, version, subresource = owner
    text = go_quote(manager)
    if subresource:
        text += f" with subresource {go_quote(subresource)}"
    return f"{text} using {version}" if operation == UPDATE else text


def list_last_applied(live: JsonObject | None, api_version: str, described: Type) -> FieldSet:
    """Return the fields of a client-side apply that still have the value it gave them."""
    annotations = ((live or {}).get("metadata") or {}).get("annotations") or {}
    shape = shape_of(described)
    try:
        last = decode_json(annotations.get(LAST_APPLIED, ""))
    except ValueError:
        return {}
    if shape is None or not isinstance(last, dict) or last.get("apiVersion") != api_version:
        return {}
    if find_misfits(last, described):
        return {}
    changed, gone = compare_objects(last, live or {}, shape, frozenset())
    return difference(difference(list_fields(last, shape), changed), gone)


def renew_last_applied(metadata: JsonObject, applied: JsonObject) -> None:
    """Bring the annotation up to date with what was applied, where there is one."""
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return
    stated = dict(applied)
    if isinstance(stated.get("metadata"), dict):
        inner = dict(stated["metadata"])
        if isinstance(inner.get("annotations"), dict):
            own = {k: v for k, v in inner["annotations"].items() if k != LAST_APPLIED}
            inner["annotations"] = own
            if not own:
                del inner["annotations"]
        stated["metadata"] = inner
    renewed = {**annotations, LAST_APPLIED: encode_sorted(stated) + "\n"}
    if sum(len(k.encode()) + len(v.encode()) for k, v in renewed.items()) > MAX_ANNOTATIONS:
        del renewed[LAST_APPLIED]
    metadata["annotations"] = renewed


class _Conflicts(Exception):  # noqa: N818 - no error to the one who forces
    """Fields that other managers own."""

    def __init__(self, found: list[_Conflict]) -> None:
        super().__init__()
        self.found = found


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
    """Return the object that an apply makes of the live one, with its managedFields.

    `live` is None when there is none yet; the result is then to be created. Raises a Failure for
    conflicts (409), and for a configuration that does not fit the type.
    """
    shape = _check(applied, type=type, api_version=api_version)
    base: JsonObject = {**blank_of(type), "apiVersion": api_version} if live is None else live
    resets = resets_of(type, subresource, ignored)
    entries = {owner_of(entry): entry for entry in managed_fields(live)}
    if live is not None and not entries:
        first: Owner = ("before-first-apply", UPDATE, api_version, subresource)
        changed, _ = compare_writes(blank_of(type), live, shape, resets)
        if changed:
            entry = make_entry(first, changed, api_version=api_version, time=now)
            entries[first] = entry
    owner: Owner = (manager or "unknown", APPLY_OPERATION, "", subresource)
    request = _Request(
        base=base,
        applied=applied,
        wanted=without_subtrees(list_fields(applied, shape), resets.all),
        shape=shape,
        resets=resets,
        owner=owner,
        api_version=api_version,
        now=now,
    )
    try:
        result, kept = request.merge(entries, force=force)
    except _Conflicts as conflicts:
        # kubectl's client-side apply hands over to the server what it has applied itself.
        handed = list_last_applied(live, api_version, type) if manager == KUBECTL else {}
        left = [one for one in conflicts.found if not contains(handed, one[1])]
        if left:
            raise tell_conflicts(left) from None
        result, kept = request.merge(entries, force=True)
    metadata = {**result.get("metadata", {})}
    result = {**result, "metadata": metadata}
    if manager == KUBECTL:
        renew_last_applied(metadata, applied)
    write_entries(metadata, list(kept.values()))
    return result


def _check(applied: JsonObject, *, type: Type, api_version: str) -> Shape:  # noqa: A002
    version, kind = applied.get("apiVersion", ""), applied.get("kind", "")
    if version != api_version:
        raise bad_request(f"invalid object type: {_show_kind(version, kind)}")
    metadata = applied.get("metadata") or {}
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    misfits = find_misfits(applied, type)
    shape = shape_of(type)
    if misfits or shape is None:
        text = misfits[0] if len(misfits) == 1 else "\n  ".join(["errors:", *misfits])
        named = f"{_name(metadata, 'namespace')}/{_name(metadata, 'name')}"
        raise StatusError(
            500,
            "",
            f"failed to create typed patch object ({named}; {_show_kind(version, kind)}): {text}",
        )
    return shape


def _show_kind(version: str, kind: str) -> str:
    # NB: the group stands before the slash even when it is empty.
    return f"{version if '/' in version else f'/{version}'}, Kind={kind}"


def _name(metadata: Any, field: str) -> str:
    return str(metadata.get(field) or "") if isinstance(metadata, dict) else ""


class _Request(msgspec.Struct):
    """One apply: what is there, what is wanted, by whom."""

    base: JsonObject
    applied: JsonObject
    # Fields that the configuration sets.
    wanted: FieldSet
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
        sets[self.owner] = self.wanted
        merged = merge_values(self.base, self.applied, self.shape)
        if difference(last, self.wanted):
            merged = self._prune(merged, last, sets)
        changed, gone = compare_writes(self.base, merged, self.shape, self.resets)
        conflicts: list[_Conflict] = []
        kept: dict[Owner, JsonObject] = {}
        for owner in sorted(entries, key=spell_owner):
            entry = entries[owner]
            if owner == self.owner:
                continue
            fields = entry["fieldsV1"]
            if not force:
                conflicts += ((owner, path) for path in paths(intersection(fields, changed)))
            left = difference(difference(fields, changed), gone)
            if left:
                kept[owner] = entry if left is fields else with_fields(entry, left)
        if conflicts:
            raise _Conflicts(conflicts)
        own = difference(self.wanted, _NEVER_OWNED)
        if own:
            time = previous.get("time") if previous else None
            if merged != self.base:
                time = self.now
            kept[self.owner] = make_entry(
                self.owner, encode_fields(own), api_version=self.api_version, time=time
            )
        return settle_nulls(merged, self.shape), kept

    def _prune(self, merged: JsonObject, last: FieldSet, sets: dict[Owner, FieldSet]) -> JsonObject:
        """Return the merged object without what only the last apply of this manager set."""
        shape = self.shape
        named_last = name_containers(last, shape)
        everything = name_containers(list_fields(merged, shape), shape)
        owned: FieldSet = {}
        for fields in sets.values():
            owned = union(owned, fields)
        cut = remove_fields(merged, named_last, shape)
        left = name_containers(list_fields(cut, shape), shape)
        owned = union(left, name_containers(owned, shape))
        cut = remove_fields(merged, difference(everything, owned), shape)
        left = name_containers(list_fields(cut, shape), shape)
        doomed = intersection(difference(everything, left), named_last)
        pruned: JsonObject = remove_fields(merged, doomed, shape) or {}
        return pruned
