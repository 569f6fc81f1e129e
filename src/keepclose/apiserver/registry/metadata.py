"""Validation of metadata for every kind (names, labels, owners, finalizers), and label selectors.

One function serves all kinds; the kinds differ in which names they allow. The write path calls it
beside the strategy of the kind, which ignores metadata. The rules are those of the model; only
finalizers are validated here, because no other component validates them. The selectors are those of
workloads, with matchLabels and matchExpressions, not those of a query string.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.apiserver.resources import Resource
from keepclose.apiserver.status_errors import bad_request
from keepclose.model.field_errors import (
    FieldError,
    forbidden_field,
    invalid,
    required,
    too_long,
    too_many,
)
from keepclose.model.gates import DEFAULT_GATES, FeatureGates, Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ObjectMeta
from keepclose.model.metadata_validation import (
    NameCheck,
    dns1035_label,
    dns1123_label,
    dns1123_subdomain,
    label_value,
    path_segment,
    qualified_name,
    validate_labels,
    validate_metadata,
    validate_metadata_update,
)

FOREGROUND_FINALIZER: Final = "foregroundDeletion"
ORPHAN_FINALIZER: Final = "orphan"
STANDARD_FINALIZERS: Final = frozenset({"kubernetes", ORPHAN_FINALIZER, FOREGROUND_FINALIZER})
FIELD_MANAGER_MAX: Final = 128
OWNERS_MAX: Final = 1000
"""The limit of owner references; the garbage collector reads all when an owner is deleted."""
NOT_STANDARD: Final = "name is neither a standard finalizer name nor is it fully qualified"

_FINALIZERS: Final = "metadata.finalizers"
# Kinds whose names are DNS labels; the names of all other kinds may have dots.
_LABEL_NAMES: Final = frozenset({"Service", "Namespace"})
# Kinds whose names may be any path segment.
_PATH_NAMES: Final = frozenset({"Event"})
# Kinds that allow any finalizer that is a qualified name.
_ANY_FINALIZERS: Final = frozenset({"Event", "Lease"})
_WITH_VALUES: Final = ("In", "NotIn")
_WITHOUT_VALUES: Final = ("Exists", "DoesNotExist")
_Labels = dict[str, str]


def name_check(resource: Resource, gates: FeatureGates = DEFAULT_GATES) -> NameCheck:
    """Return the function that validates names of the kind."""
    if resource.kind == "Service" and not gates.on(Gate.RELAXED_SERVICE_NAME_VALIDATION):
        return dns1035_label
    if resource.kind in _PATH_NAMES:
        return path_segment
    return dns1123_label if resource.kind in _LABEL_NAMES else dns1123_subdomain


def metadata_causes(
    resource: Resource,
    new: JsonObject,
    old: JsonObject | None,
    *,
    gates: FeatureGates = DEFAULT_GATES,
) -> list[FieldError]:
    """Return the validation errors of the metadata of an object that is to be written.

    `old` is the stored object on update. A name is validated only once, on create.
    """
    meta = read_object_metadata(new)
    before = None if old is None else read_object_metadata(old)
    causes = validate_metadata(
        meta,
        namespaced=resource.namespaced,
        name_check=name_check(resource, gates) if before is None else _accept_stored_name,
    )
    if before is not None:
        causes += validate_metadata_update(meta, before)
    owners = len(meta.owner_references)
    # NB: a stored object with more references stays writable, so that a client can remove them.
    if owners > OWNERS_MAX and (before is None or owners > len(before.owner_references)):
        causes.append(too_many("metadata.ownerReferences", owners, OWNERS_MAX))
    causes += finalizer_causes(new, old, known_only=resource.kind not in _ANY_FINALIZERS)
    for index, entry in enumerate(new["metadata"].get("managedFields") or ()):
        field = f"metadata.managedFields[{index}].manager"
        causes += manager_causes(field, entry.get("manager") or "")
    return causes


def manager_causes(field: str, manager: str) -> list[FieldError]:
    """Return the validation errors of a field manager's name, which logs and events show."""
    if len(manager) > FIELD_MANAGER_MAX or len(manager.encode()) > FIELD_MANAGER_MAX:
        # NB: characters are not checked: each cause repeats the name, which may fill a whole body.
        return [too_long(field, FIELD_MANAGER_MAX)]
    return [
        invalid(
            field,
            manager,
            f"invalid character U+{ord(char):04X} (at position {len(manager[:index].encode())})",
        )
        for index, char in enumerate(manager)
        if not char.isprintable()
    ]


def finalizer_causes(
    new: JsonObject, old: JsonObject | None, *, known_only: bool
) -> list[FieldError]:
    """Return the validation errors of the finalizers of an object that is to be written.

    With `known_only` a finalizer without a domain must be one of Kubernetes' own.
    """
    finalizers = finalizers_of(new)
    causes: list[FieldError] = []
    for finalizer in finalizers:
        causes += [invalid(_FINALIZERS, finalizer, text) for text in qualified_name(finalizer)]
    if FOREGROUND_FINALIZER in finalizers and ORPHAN_FINALIZER in finalizers:
        detail = f"finalizer {ORPHAN_FINALIZER} and {FOREGROUND_FINALIZER} cannot be both set"
        causes.append(invalid(_FINALIZERS, finalizers, detail))
    if old is not None and old["metadata"].get("deletionTimestamp"):
        extra = sorted(set(finalizers) - set(finalizers_of(old)))
        if extra:
            listed = ", ".join(f'"{name}"' for name in extra)
            causes.append(
                forbidden_field(
                    _FINALIZERS,
                    "no new finalizers can be added if the object is being deleted, "
                    f"found new finalizers []string{{{listed}}}",
                )
            )
    if known_only:
        causes += [
            invalid(f"{_FINALIZERS}[{index}]", finalizer, NOT_STANDARD)
            for index, finalizer in enumerate(finalizers)
            if not is_known_finalizer(finalizer)
        ]
    return causes


def is_known_finalizer(finalizer: str) -> bool:
    """Return whether a finalizer has a domain or is one of Kubernetes' own."""
    return "/" in finalizer or finalizer in STANDARD_FINALIZERS


def beyond_metadata(causes: list[FieldError]) -> list[FieldError]:
    """Return the causes of a typed object without those that `metadata_causes` returns too."""
    return [
        cause
        for cause in causes
        if not cause.field.startswith("metadata.")
        or cause.field.startswith("metadata.annotations[")
    ]


def carry_system_metadata(new: JsonObject, old: JsonObject) -> None:
    """Give an update the metadata of the stored object that a client cannot change.

    Call it before the strategy sees the update. A uid or deletion timestamp that the client
    invented stays, so that validation rejects it.
    """
    meta, before = new["metadata"], old["metadata"]
    _copy(meta, before, "generation")
    if not meta.get("uid"):
        _copy(meta, before, "uid")
    if before.get("creationTimestamp"):
        meta["creationTimestamp"] = before["creationTimestamp"]
    if before.get("deletionTimestamp"):
        meta["deletionTimestamp"] = before["deletionTimestamp"]
        if meta.get("deletionGracePeriodSeconds") is None:
            _copy(meta, before, "deletionGracePeriodSeconds")


def read_object_metadata(raw: JsonObject) -> ObjectMeta:
    """Return the metadata of a raw object as a struct."""
    members = {
        key: value for key, value in (raw.get("metadata") or {}).items() if value is not None
    }
    try:
        return msgspec.convert(members, ObjectMeta)
    except msgspec.ValidationError as error:
        raise bad_request(f"metadata: {error}") from error


def finalizers_of(raw: JsonObject) -> list[str]:
    """Return the finalizers of an object."""
    finalizers: list[str] | None = raw["metadata"].get("finalizers")
    return finalizers or []


def selector_causes(selector: JsonObject, field: str) -> list[FieldError]:
    """Return the validation errors of a selector."""
    causes = validate_labels(selector.get("matchLabels") or {}, f"{field}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or ()):
        causes += _expression_causes(expression, f"{field}.matchExpressions[{index}]")
    return causes


def is_empty(selector: JsonObject) -> bool:
    """Return whether a selector has no requirement."""
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


def selector_matches(selector: JsonObject | None, labels: _Labels) -> bool:
    """Return whether a valid selector matches the labels; None matches nothing."""
    if selector is None:
        return False
    match_labels: _Labels = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in match_labels.items()) and all(
        _matches(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def selector_text(selector: JsonObject | None) -> str:
    """Return a selector in the form of the labelSelector query parameter."""
    if selector is None:
        return ""
    parts = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    parts += [
        (expression["key"], _expression_text(expression))
        for expression in selector.get("matchExpressions") or ()
    ]
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _copy(meta: JsonObject, before: JsonObject, key: str) -> None:
    if key in before:
        meta[key] = before[key]
    else:
        meta.pop(key, None)


def _accept_stored_name(_name: str) -> list[str]:
    return []


def _expression_causes(expression: JsonObject, field: str) -> list[FieldError]:
    operator, values = expression.get("operator", ""), expression.get("values") or []
    key = expression.get("key", "")
    causes: list[FieldError] = []
    if operator in _WITH_VALUES:
        if not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            causes.append(required(f"{field}.values", detail))
    elif operator in _WITHOUT_VALUES:
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(forbidden_field(f"{field}.values", detail))
    else:
        causes.append(invalid(f"{field}.operator", operator, "not a valid selector operator"))
    causes += [invalid(f"{field}.key", key, text) for text in qualified_name(key)]
    for index, value in enumerate(values):
        causes += [invalid(f"{field}.values[{index}]", value, text) for text in label_value(value)]
    return causes


def _matches(expression: JsonObject, labels: _Labels) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _expression_text(expression: JsonObject) -> str:
    key, values = expression["key"], ",".join(sorted(expression.get("values") or []))
    match expression["operator"]:
        case "In":
            return f"{key} in ({values})"
        case "NotIn":
            return f"{key} notin ({values})"
        case "Exists":
            return str(key)
        case _:
            return f"!{key}"
