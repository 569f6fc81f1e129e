"""Rules for the metadata that all objects share, as the API server checks them.

Nothing is changed here and nothing raises: each check returns the ordered causes of its refusal.
Maps are checked in the order of their keys, so that the same object always gives the same list.
Whether an update may go without a resourceVersion is for the store to say, not for these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from keepclose.model.field_errors import Cause, forbidden, invalid, required, too_long
from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.model.metadata_validation import (
    byte_length,
    dns1123_label,
    label_value,
    qualified_name,
    without_prefix_dash,
)

ANNOTATIONS_MAX_BYTES: Final = 256 * 1024
IMMUTABLE: Final = "field is immutable"

NameCheck = Callable[[str], list[str]]
"""Returns the messages for a name; the empty list when the name is fine."""


def validate_metadata(
    meta: ObjectMeta, *, namespaced: bool, name_check: NameCheck, field: str = "metadata"
) -> list[Cause]:
    """Return what is wrong with the metadata of a new or changed object.

    A generateName stands in for a missing name, because the store makes the name from it.
    """
    causes: list[Cause] = []
    if meta.generate_name:
        messages = name_check(without_prefix_dash(meta.generate_name))
        causes += _invalid_for_each(f"{field}.generateName", meta.generate_name, messages)
    if meta.name:
        causes += _invalid_for_each(f"{field}.name", meta.name, name_check(meta.name))
    elif not meta.generate_name:
        causes.append(required(f"{field}.name", "name or generateName is required"))
    causes += _validate_namespace(meta.namespace, f"{field}.namespace", namespaced=namespaced)
    if meta.generation < 0:
        causes.append(
            invalid(f"{field}.generation", meta.generation, "must be greater than or equal to 0")
        )
    causes += validate_labels(meta.labels, f"{field}.labels")
    causes += validate_annotations(meta.annotations, f"{field}.annotations")
    causes += _validate_owners(meta.owner_references, f"{field}.ownerReferences")
    return causes


def validate_metadata_update(
    new: ObjectMeta, old: ObjectMeta, field: str = "metadata"
) -> list[Cause]:
    """Return what an update changed that must stay; call it beside `validate_metadata`.

    What the system sets (uid and timestamps) may be left out by the client: it then stays as it is.
    """
    causes: list[Cause] = []
    if new.generation < old.generation:
        causes.append(invalid(f"{field}.generation", new.generation, "must not be decremented"))
    if new.name != old.name:
        causes.append(invalid(f"{field}.name", new.name, IMMUTABLE))
    if new.namespace != old.namespace:
        causes.append(invalid(f"{field}.namespace", new.namespace, IMMUTABLE))
    for name, now, before in (
        ("uid", new.uid, old.uid),
        ("creationTimestamp", new.creation_timestamp, old.creation_timestamp),
        ("deletionTimestamp", new.deletion_timestamp, old.deletion_timestamp),
    ):
        if now and now != before:
            causes.append(invalid(f"{field}.{name}", now, IMMUTABLE))
    return causes


def validate_labels(labels: Mapping[str, str], field: str) -> list[Cause]:
    """Return what is wrong with the keys and values of labels."""
    causes: list[Cause] = []
    for key in sorted(labels):
        value = labels[key]
        causes += _invalid_for_each(field, key, qualified_name(key))
        causes += _invalid_for_each(field, value, label_value(value))
    return causes


def validate_annotations(annotations: Mapping[str, str], field: str) -> list[Cause]:
    """Return what is wrong with annotations: their keys, or the size of all together."""
    causes: list[Cause] = []
    for key in sorted(annotations):
        # NB: the case of an annotation's domain does not matter, unlike that of a label's.
        causes += _invalid_for_each(field, key, qualified_name(key.lower()))
    size = sum(byte_length(key) + byte_length(value) for key, value in annotations.items())
    if size > ANNOTATIONS_MAX_BYTES:
        causes.append(too_long(field, ANNOTATIONS_MAX_BYTES))
    return causes


def _validate_namespace(namespace: str, field: str, *, namespaced: bool) -> list[Cause]:
    if not namespaced:
        return [forbidden(field, "not allowed on this type")] if namespace else []
    if not namespace:
        return [required(field)]
    return _invalid_for_each(field, namespace, dns1123_label(namespace))


def _validate_owners(owners: tuple[OwnerReference, ...], field: str) -> list[Cause]:
    causes: list[Cause] = []
    controller = ""
    for owner in owners:
        group, version = _group_version(owner.api_version)
        if not version:
            causes.append(
                invalid(f"{field}.apiVersion", owner.api_version, "version must not be empty")
            )
        causes += [
            invalid(f"{field}.{name}", "", "must not be empty")
            for name, value in (("kind", owner.kind), ("name", owner.name), ("uid", owner.uid))
            if not value
        ]
        if (group, version, owner.kind) == ("", "v1", "Event"):
            causes.append(
                invalid(field, owner, "/v1, Kind=Event is disallowed from being an owner")
            )
        if owner.controller:
            claimant = f"{owner.kind}/{owner.name}"
            if controller:
                causes.append(invalid(field, owners, _two_controllers(controller, claimant)))
            else:
                controller = claimant
    return causes


def _two_controllers(first: str, second: str) -> str:
    return (
        "Only one reference can have Controller set to true. "
        f'Found "true" in references for {first} and {second}'
    )


def _group_version(api_version: str) -> tuple[str, str]:
    """Return group and version; both are "" for a text with more than one slash."""
    match api_version.split("/"):
        case [version]:
            return "", version
        case [group, version]:
            return group, version
        case _:
            return "", ""


def _invalid_for_each(field: str, value: str, messages: list[str]) -> list[Cause]:
    return [invalid(field, value, message) for message in messages]
