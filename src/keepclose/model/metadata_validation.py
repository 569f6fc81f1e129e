"""Checks on names, labels and ports, worded as the Kubernetes API words them.

Each check takes a string and returns its messages, in the order in which the API gives them; the
empty list means that the string is fine. Lengths are counted in bytes, as Go counts them. No check
raises, whatever the string holds.
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
ANNOTATIONS_MAX_BYTES: Final = 256 * 1024
IMMUTABLE: Final = "field is immutable"

NameCheck = Callable[[str], list[str]]
"""Returns the messages for a name; the empty list when the name is fine."""


def _explain(rule: str, form: str, *examples: str) -> str:
    """Return the sentence for a string of the wrong form.

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
    """Return how many bytes the string takes on the wire."""
    return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))


def dns1123_label(value: str) -> list[str]:
    """Return what keeps the string from being one label of a DNS name."""
    messages = _overlong(value, DNS1123_LABEL_MAX)
    if not _is_label(value):
        messages.append("must not contain dots" if _is_subdomain(value) else LABEL_SENTENCE)
    return messages


def dns1123_subdomain(value: str) -> list[str]:
    """Return what keeps the string from being labels joined by dots, as most names are."""
    messages = _overlong(value, DNS1123_SUBDOMAIN_MAX)
    if not _is_subdomain(value):
        messages.append(SUBDOMAIN_SENTENCE)
    return messages


def dns1035_label(value: str) -> list[str]:
    """Return what keeps the string from being a label that starts with a letter."""
    messages = _overlong(value, DNS1035_LABEL_MAX)
    if not _is_dns1035(value):
        messages.append(DNS1035_SENTENCE)
    return messages


def label_value(value: str) -> list[str]:
    """Return what keeps the string from being the value of a label; "" is one."""
    messages = _overlong(value, LABEL_VALUE_MAX, unit="bytes")
    if not _is_label_value(value):
        messages.append(LABEL_VALUE_SENTENCE)
    return messages


def qualified_name(value: str) -> list[str]:
    """Return what keeps the string from being a label key: a name, or domain/name."""
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
    """Return what keeps the number from being a port."""
    return [] if 1 <= number <= PORT_MAX else [f"must be between 1 and {PORT_MAX}, inclusive"]


def port_name(value: str) -> list[str]:
    """Return what keeps the string from naming a container's port (RFC 6335, lower case)."""
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
    """Return what keeps the string from being a domain of two labels or more.

    One trailing dot is tolerated. The first rule that fails ends the check, and its messages come
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
    """Return a generateName as it is to be checked: a trailing dash does no harm there.

    NB: the API replaces the last two characters by an "a"; a prefix such as "a.-" passes by that.
    """
    return f"{value[:-2]}a" if len(value) > 1 and value.endswith("-") else value


def _name_part(name: str) -> list[str]:
    messages = [_NON_EMPTY] if not name else _overlong(name, QUALIFIED_NAME_MAX, unit="bytes")
    if not _is_name_part(name):
        messages.append(_NAME_PART_SENTENCE)
    return [f"name part {message}" for message in messages]


def _overlong(value: str, limit: int, *, unit: str = "characters") -> list[str]:
    # NB: label keys and values are said to be limited in bytes, all other names in characters.
    return [f"must be no more than {limit} {unit}"] if byte_length(value) > limit else []


def path_segment(value: str) -> list[str]:
    """Return what keeps the string from being one segment of a path."""
    if value in (".", ".."):
        return [f"may not be '{value}'"]
    return [f"may not contain '{sign}'" for sign in "/%" if sign in value]


def plain_line(text: str, *, longest: int) -> str:
    """Return a text of others on one line, cut, without what terminals and logs would act on."""
    if len(text) <= longest and text.isprintable():
        return " ".join(text.split())
    begin = text[: 4 * longest]
    shown = "".join([letter if letter.isprintable() else " " for letter in begin])
    return " ".join(shown.split())[:longest]


def validate_metadata(
    meta: ObjectMeta, *, namespaced: bool, name_check: NameCheck, field: str = "metadata"
) -> list[FieldError]:
    """Return what is wrong with the metadata of a new or changed object.

    A generateName stands in for a missing name, because the store makes the name from it.
    """
    causes: list[FieldError] = []
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
) -> list[FieldError]:
    """Return what an update changed that must stay; call it beside `validate_metadata`.

    What the system sets (uid and timestamps) may be left out by the client: it then stays as it is.
    """
    causes: list[FieldError] = []
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


def validate_labels(labels: Mapping[str, str], field: str) -> list[FieldError]:
    """Return what is wrong with the keys and values of labels."""
    causes: list[FieldError] = []
    for key in sorted(labels):
        value = labels[key]
        causes += _invalid_for_each(field, key, qualified_name(key))
        causes += _invalid_for_each(field, value, label_value(value))
    return causes


def validate_annotations(annotations: Mapping[str, str], field: str) -> list[FieldError]:
    """Return what is wrong with annotations: their keys, or the size of all together."""
    causes: list[FieldError] = []
    for key in sorted(annotations):
        # NB: the case of an annotation's domain does not matter, unlike that of a label's.
        causes += _invalid_for_each(field, key, qualified_name(key.lower()))
    size = sum(byte_length(key) + byte_length(value) for key, value in annotations.items())
    if size > ANNOTATIONS_MAX_BYTES:
        causes.append(too_long(field, ANNOTATIONS_MAX_BYTES))
    return causes


def _validate_namespace(namespace: str, field: str, *, namespaced: bool) -> list[FieldError]:
    if not namespaced:
        return [forbidden_field(field, "not allowed on this type")] if namespace else []
    if not namespace:
        return [required(field)]
    return _invalid_for_each(field, namespace, dns1123_label(namespace))


def _validate_owners(owners: tuple[OwnerReference, ...], field: str) -> list[FieldError]:
    causes: list[FieldError] = []
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


def _invalid_for_each(field: str, value: str, messages: list[str]) -> list[FieldError]:
    return [invalid(field, value, message) for message in messages]
