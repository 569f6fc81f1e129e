"""Validation of names, labels, ports and metadata, worded as kube-apiserver words it.

A check of a string returns its messages in the order of the API; the empty list means that the
string is valid. Lengths are counted in bytes, as in Go. Checks of metadata return ordered field
errors; maps are checked in the order of their keys, so that the same object always gives the same
list. Nothing is changed and nothing raises. Whether an update may omit the resourceVersion is
decided by the store, not by these rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from keepclose.model.field_errors import FieldError, forbidden_field, invalid, required, too_long
from keepclose.model.meta import ObjectMeta, OwnerReference

DNS1123_LABEL_MAX: Final = 63
DNS1123_SUBDOMAIN_MAX: Final = 253
DNS1035_LABEL_MAX: Final = 63
LABEL_VALUE_MAX: Final = 63
QUALIFIED_NAME_MAX: Final = 63
PORT_NAME_MAX: Final = 15
PORT_MAX: Final = 65535
ANNOTATIONS_MAX_BYTES: Final = 256 * 1024
IMMUTABLE: Final = "field is immutable"

_ALNUM_END = "with an alphanumeric character"
_LABEL_FORM = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_FORM = rf"{_LABEL_FORM}(\.{_LABEL_FORM})*"
_DNS1035_FORM = "[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME_PART_FORM = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE_FORM = f"({_NAME_PART_FORM})?"

_is_label = re.compile(_LABEL_FORM).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN_FORM).fullmatch
_is_dns1035 = re.compile(_DNS1035_FORM).fullmatch
_is_name_part = re.compile(_NAME_PART_FORM).fullmatch
_is_label_value = re.compile(_LABEL_VALUE_FORM).fullmatch
_is_port_charset = re.compile("[-a-z0-9]+").fullmatch
_has_letter = re.compile("[a-z]").search

NameCheck = Callable[[str], list[str]]
"""A check that returns the messages for a name; none if the name is valid."""


def _explain(rule: str, form: str, *examples: str) -> str:
    """Return the sentence for a string of the wrong format.

    NB: the API leaves two blanks before each "or"; clients compare these texts, so they stay.
    """
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {shown}regex used for validation is '{form}')"


LABEL_SENTENCE: Final = _explain(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    f"and must start and end {_ALNUM_END}",
    _LABEL_FORM,
    "my-name",
    "123-abc",
)
SUBDOMAIN_SENTENCE: Final = _explain(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    f"'.', and must start and end {_ALNUM_END}",
    _SUBDOMAIN_FORM,
    "example.com",
)
DNS1035_SENTENCE: Final = _explain(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    f"alphabetic character, and end {_ALNUM_END}",
    _DNS1035_FORM,
    "my-name",
    "abc-123",
)
LABEL_VALUE_SENTENCE: Final = _explain(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    f"'.', and must start and end {_ALNUM_END}",
    _LABEL_VALUE_FORM,
    "MyValue",
    "my_value",
    "12345",
)
_NAME_PART_SENTENCE: Final = _explain(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    f"{_ALNUM_END}",
    _NAME_PART_FORM,
    "MyName",
    "my.name",
    "123-abc",
)
_LABEL_KEY_SENTENCE: Final = (
    f"a valid label key {_NAME_PART_SENTENCE} with an optional DNS subdomain prefix "
    "and '/' (e.g. 'example.com/MyName')"
)
_NON_EMPTY: Final = "must be non-empty"


def byte_length(value: str) -> int:
    """Return the length of the string in UTF-8 bytes."""
    return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))


def dns1123_label(value: str) -> list[str]:
    """Return why the string is not an RFC 1123 label."""
    messages = _overlong(value, DNS1123_LABEL_MAX)
    if not _is_label(value):
        messages.append("must not contain dots" if _is_subdomain(value) else LABEL_SENTENCE)
    return messages


def dns1123_subdomain(value: str) -> list[str]:
    """Return why the string is not an RFC 1123 subdomain, the form of most names."""
    messages = _overlong(value, DNS1123_SUBDOMAIN_MAX)
    if not _is_subdomain(value):
        messages.append(SUBDOMAIN_SENTENCE)
    return messages


def dns1035_label(value: str) -> list[str]:
    """Return why the string is not an RFC 1035 label, which starts with a letter."""
    messages = _overlong(value, DNS1035_LABEL_MAX)
    if not _is_dns1035(value):
        messages.append(DNS1035_SENTENCE)
    return messages


def label_value(value: str) -> list[str]:
    """Return why the string is not a label value; "" is valid."""
    messages = _overlong(value, LABEL_VALUE_MAX, unit="bytes")
    if not _is_label_value(value):
        messages.append(LABEL_VALUE_SENTENCE)
    return messages


def qualified_name(value: str) -> list[str]:
    """Return why the string is not a qualified name: a name, or domain/name."""
    prefix, slash, name = value.partition("/")
    if not slash:
        return _name_part(value)
    if "/" in name:
        return [_LABEL_KEY_SENTENCE]
    if not prefix:
        return [f"prefix part {_NON_EMPTY}", *_name_part(name)]
    messages = _overlong(prefix, DNS1123_SUBDOMAIN_MAX, unit="bytes")
    if not _is_subdomain(prefix):
        messages.append(SUBDOMAIN_SENTENCE)
    return [f"prefix part {message}" for message in messages] + _name_part(name)


def port_number(number: int) -> list[str]:
    """Return why the number is not a port number."""
    return [] if 1 <= number <= PORT_MAX else [f"must be between 1 and {PORT_MAX}, inclusive"]


def port_name(value: str) -> list[str]:
    """Return why the string is not a port name (RFC 6335, lower case)."""
    messages = _overlong(value, PORT_NAME_MAX)
    if not _is_port_charset(value):
        messages.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not _has_letter(value):
        messages.append("must contain at least one letter (a-z)")
    if "--" in value:
        messages.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        messages.append("must not begin or end with a hyphen")
    return messages


def fqdn(value: str) -> list[str]:
    """Return why the string is not a domain of two labels or more.

    A trailing dot is allowed. The check ends with the first rule that fails, and its messages are
    joined by commas.
    """
    if not value:
        return [_NON_EMPTY]
    name = value.removesuffix(".")
    if problems := dns1123_subdomain(name):
        return [",".join(problems)]
    labels = name.split(".")
    if len(labels) < 2:
        return ["should be a domain with at least two segments separated by dots"]
    return next((problems for label in labels if (problems := dns1123_label(label))), [])


def is_fqdn(value: str) -> bool:
    """Return whether the string is a domain of two labels or more."""
    return not fqdn(value)


def without_prefix_dash(value: str) -> str:
    """Return a generateName in the form to check: a trailing dash is allowed.

    NB: the API replaces the last two characters by an "a"; a prefix such as "a.-" passes therefore.
    """
    return f"{value[:-2]}a" if len(value) > 1 and value.endswith("-") else value


def _name_part(name: str) -> list[str]:
    messages = [_NON_EMPTY] if not name else _overlong(name, QUALIFIED_NAME_MAX, unit="bytes")
    if not _is_name_part(name):
        messages.append(_NAME_PART_SENTENCE)
    return [f"name part {message}" for message in messages]


def _overlong(value: str, limit: int, *, unit: str = "characters") -> list[str]:
    # NB: the API words limits of label keys and values in bytes, all others in characters.
    return [f"must be no more than {limit} {unit}"] if byte_length(value) > limit else []


def path_segment(value: str) -> list[str]:
    """Return why the string is not a path segment."""
    if value in (".", ".."):
        return [f"may not be '{value}'"]
    return [f"may not contain '{char}'" for char in "/%" if char in value]


def plain_line(text: str, *, longest: int) -> str:
    """Return untrusted text on one line, cut, without control characters."""
    if len(text) <= longest and text.isprintable():
        return " ".join(text.split())
    head = text[: 4 * longest]
    shown = "".join([char if char.isprintable() else " " for char in head])
    return " ".join(shown.split())[:longest]


def validate_metadata(
    meta: ObjectMeta, *, namespaced: bool, name_check: NameCheck, field: str = "metadata"
) -> list[FieldError]:
    """Return the errors in the metadata of a new or changed object.

    A generateName may replace the name, because the store generates the name from it.
    """
    errors: list[FieldError] = []
    if meta.generate_name:
        messages = name_check(without_prefix_dash(meta.generate_name))
        errors += _invalid_for_each(f"{field}.generateName", meta.generate_name, messages)
    if meta.name:
        errors += _invalid_for_each(f"{field}.name", meta.name, name_check(meta.name))
    elif not meta.generate_name:
        errors.append(required(f"{field}.name", "name or generateName is required"))
    errors += _validate_namespace(meta.namespace, f"{field}.namespace", namespaced=namespaced)
    if meta.generation < 0:
        errors.append(
            invalid(f"{field}.generation", meta.generation, "must be greater than or equal to 0")
        )
    errors += validate_labels(meta.labels, f"{field}.labels")
    errors += validate_annotations(meta.annotations, f"{field}.annotations")
    errors += _validate_owners(meta.owner_references, f"{field}.ownerReferences")
    return errors


def validate_metadata_update(
    new: ObjectMeta, old: ObjectMeta, field: str = "metadata"
) -> list[FieldError]:
    """Return the errors for changes of immutable metadata; call `validate_metadata` too.

    A client may omit the uid and the timestamps, which the system sets: they then stay.
    """
    errors: list[FieldError] = []
    if new.generation < old.generation:
        errors.append(invalid(f"{field}.generation", new.generation, "must not be decremented"))
    if new.name != old.name:
        errors.append(invalid(f"{field}.name", new.name, IMMUTABLE))
    if new.namespace != old.namespace:
        errors.append(invalid(f"{field}.namespace", new.namespace, IMMUTABLE))
    for name, now, before in (
        ("uid", new.uid, old.uid),
        ("creationTimestamp", new.creation_timestamp, old.creation_timestamp),
        ("deletionTimestamp", new.deletion_timestamp, old.deletion_timestamp),
    ):
        if now and now != before:
            errors.append(invalid(f"{field}.{name}", now, IMMUTABLE))
    return errors


def validate_labels(labels: Mapping[str, str], field: str) -> list[FieldError]:
    """Return the errors in the keys and values of labels."""
    errors: list[FieldError] = []
    for key in sorted(labels):
        value = labels[key]
        errors += _invalid_for_each(field, key, qualified_name(key))
        errors += _invalid_for_each(field, value, label_value(value))
    return errors


def validate_annotations(annotations: Mapping[str, str], field: str) -> list[FieldError]:
    """Return the errors in annotations: their keys, and their total size."""
    errors: list[FieldError] = []
    for key in sorted(annotations):
        # NB: the key of an annotation is case-insensitive, unlike that of a label.
        errors += _invalid_for_each(field, key, qualified_name(key.lower()))
    size = sum(byte_length(key) + byte_length(value) for key, value in annotations.items())
    if size > ANNOTATIONS_MAX_BYTES:
        errors.append(too_long(field, ANNOTATIONS_MAX_BYTES))
    return errors


def _validate_namespace(namespace: str, field: str, *, namespaced: bool) -> list[FieldError]:
    if not namespaced:
        return [forbidden_field(field, "not allowed on this type")] if namespace else []
    if not namespace:
        return [required(field)]
    return _invalid_for_each(field, namespace, dns1123_label(namespace))


def _validate_owners(owners: tuple[OwnerReference, ...], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    controller = ""
    for owner in owners:
        group, version = _group_version(owner.api_version)
        if not version:
            errors.append(
                invalid(f"{field}.apiVersion", owner.api_version, "version must not be empty")
            )
        errors += [
            invalid(f"{field}.{name}", "", "must not be empty")
            for name, value in (("kind", owner.kind), ("name", owner.name), ("uid", owner.uid))
            if not value
        ]
        if (group, version, owner.kind) == ("", "v1", "Event"):
            errors.append(
                invalid(field, owner, "/v1, Kind=Event is disallowed from being an owner")
            )
        if owner.controller:
            reference = f"{owner.kind}/{owner.name}"
            if controller:
                errors.append(invalid(field, owners, _two_controllers(controller, reference)))
            else:
                controller = reference
    return errors


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


def _invalid_for_each(field: str, value: str, messages: list[str]) -> list[FieldError]:
    return [invalid(field, value, message) for message in messages]
