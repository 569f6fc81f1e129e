"""Checks on names, labels and ports, worded as the Kubernetes API words them.

Each check takes a string and returns its messages, in the order in which the API gives them; the
empty list means that the string is fine. Lengths are counted in bytes, as Go counts them. No check
raises, whatever the string holds.
"""

from __future__ import annotations

import re
from typing import Final

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
