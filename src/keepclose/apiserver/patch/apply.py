"""Server-side apply: a manager says what it wants, and owns that.

Fields that it no longer lists are removed unless someone else owns them; a field that another
manager owns with another value is a conflict, unless the apply is forced. The rules are those of
Kubernetes' structured merge.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from keepclose.apiserver.patch.comparing import UNOWNED_METADATA
from keepclose.apiserver.patch.field_sets import (
    FieldSet,
    contains,
    difference,
    encode_fields,
    intersection,
    paths,
    set_of,
    union,
    without_subtrees,
)
from keepclose.apiserver.patch.managed_fields import (
    APPLY,
    UPDATE,
    Owner,
    make_entry,
    managed_fields,
    owner_of,
    with_fields,
    write_entries,
)
from keepclose.apiserver.patch.shapes import Shape, shape_of
from keepclose.apiserver.patch.typed_values import (
    list_fields,
    merge_values,
    name_containers,
    remove_fields,
    settle_nulls,
)
from keepclose.apiserver.patch.zero_values import Resets, blank_of, resets_of
from keepclose.apiserver.patching.checking import find_misfits
from keepclose.apiserver.patching.conflicts import Conflict, spell_owner, tell_conflicts
from keepclose.apiserver.patching.lastapplied import (
    KUBECTL,
    list_last_applied,
    renew_last_applied,
)
from keepclose.apiserver.patching.ownership import compare_writes
from keepclose.apiserver.schema.types import Type
from keepclose.apiserver.status_errors import Failure, bad_request
from keepclose.model.json_values import JsonObject

_NEVER_OWNED: Final = union(
    set_of("apiVersion", "kind", "metadata"),
    set_of(*(f"metadata.{name}" for name in sorted(UNOWNED_METADATA))),
)


class _Conflicts(Exception):  # noqa: N818 - no error to the one who forces
    """Fields that other managers own."""

    def __init__(self, found: list[Conflict]) -> None:
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
    owner: Owner = (manager or "unknown", APPLY, "", subresource)
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
        raise Failure(
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
        conflicts: list[Conflict] = []
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
