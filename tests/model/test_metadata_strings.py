"""Strings are refused in the words of the API server."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model import metadata_validation

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    r"for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
DNS1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
NAME_PART = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
CHARSET = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("a", [], id="one letter"),
        pytest.param("0-a", [], id="a digit may come first"),
        pytest.param("a" * 63, [], id="just short enough"),
        pytest.param("", [LABEL], id="empty"),
        pytest.param("A", [LABEL], id="capitals"),
        pytest.param("a-", [LABEL], id="dash at the end"),
        pytest.param("a\n", [LABEL], id="line feed at the end"),
        pytest.param("a.b", ["must not contain dots"], id="a subdomain"),
        pytest.param("a" * 64, ["must be no more than 63 characters"], id="too long"),
        pytest.param("_" * 64, ["must be no more than 63 characters", LABEL], id="both"),
        pytest.param("\u00e4" * 32, ["must be no more than 63 characters", LABEL], id="in bytes"),
    ],
)
def test_dns1123_label(value: str, want: list[str]) -> None:
    """A label is short, lower case and has no dots."""
    assert metadata_validation.dns1123_label(value) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("n1", [], id="one label"),
        pytest.param("node-1.eu.example", [], id="three labels"),
        pytest.param("a" * 253, [], id="a single label is not limited to 63"),
        pytest.param("a..b", [SUBDOMAIN], id="empty label"),
        pytest.param("", [SUBDOMAIN], id="empty"),
        pytest.param("Node", [SUBDOMAIN], id="capitals"),
        pytest.param("a" * 254, ["must be no more than 253 characters"], id="too long"),
    ],
)
def test_dns1123_subdomain(value: str, want: list[str]) -> None:
    """A subdomain is labels joined by dots, in all at most 253."""
    assert metadata_validation.dns1123_subdomain(value) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("web-1", [], id="letter first"),
        pytest.param("1-web", [DNS1035], id="digit first"),
        pytest.param("web.a", [DNS1035], id="dots"),
        pytest.param("w" * 64, ["must be no more than 63 characters"], id="too long"),
    ],
)
def test_dns1035_label(value: str, want: list[str]) -> None:
    """An RFC 1035 label starts with a letter."""
    assert metadata_validation.dns1035_label(value) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("", [], id="empty is a value"),
        pytest.param("My_Value.1", [], id="all characters"),
        pytest.param("-a", [LABEL_VALUE], id="dash first"),
        pytest.param("a b", [LABEL_VALUE], id="blank"),
        pytest.param("v" * 64, ["must be no more than 63 bytes"], id="too long"),
    ],
)
def test_label_value(value: str, want: list[str]) -> None:
    """A label value may be empty and has at most 63 bytes."""
    assert metadata_validation.label_value(value) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("app", [], id="name alone"),
        pytest.param("example.com/My.App_1", [], id="with a domain"),
        pytest.param("", ["name part must be non-empty", f"name part {NAME_PART}"], id="empty"),
        pytest.param("a" * 64, ["name part must be no more than 63 bytes"], id="long name"),
        pytest.param("/a", ["prefix part must be non-empty"], id="empty domain"),
        pytest.param("A.b/c", [f"prefix part {SUBDOMAIN}"], id="capitals in the domain"),
        pytest.param(
            f"{'a' * 254}/c", ["prefix part must be no more than 253 bytes"], id="long domain"
        ),
        pytest.param(
            "a/b/c",
            [
                (
                    f"a valid label key {NAME_PART}"
                    " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
                )
            ],
            id="two slashes",
        ),
        pytest.param("^", [f"name part {NAME_PART}"], id="bad character"),
    ],
)
def test_qualified_name(value: str, want: list[str]) -> None:
    """A label key is a name, optionally in a domain."""
    assert metadata_validation.qualified_name(value) == want


@pytest.mark.parametrize(
    ("number", "want"),
    [
        pytest.param(1, [], id="the first"),
        pytest.param(65535, [], id="the last"),
        pytest.param(0, ["must be between 1 and 65535, inclusive"], id="zero"),
        pytest.param(65536, ["must be between 1 and 65535, inclusive"], id="past the last"),
    ],
)
def test_port_number(number: int, want: list[str]) -> None:
    """Ports run from 1 to 65535."""
    assert metadata_validation.port_number(number) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("http", [], id="letters"),
        pytest.param("80-a", [], id="one letter is enough"),
        pytest.param("a" * 16, ["must be no more than 15 characters"], id="too long"),
        pytest.param("", [CHARSET, "must contain at least one letter (a-z)"], id="empty"),
        pytest.param("aB", [CHARSET], id="capitals"),
        pytest.param("80", ["must contain at least one letter (a-z)"], id="digits only"),
        pytest.param("a--b", ["must not contain consecutive hyphens"], id="two hyphens"),
        pytest.param("-a", ["must not begin or end with a hyphen"], id="hyphen first"),
        pytest.param("a-", ["must not begin or end with a hyphen"], id="hyphen last"),
    ],
)
def test_port_name(value: str, want: list[str]) -> None:
    """A port name is short and has a letter."""
    assert metadata_validation.port_name(value) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("example.com", [], id="two labels"),
        pytest.param("example.com.", [], id="a trailing dot is tolerated"),
        pytest.param("", ["must be non-empty"], id="empty"),
        pytest.param(
            "example",
            ["should be a domain with at least two segments separated by dots"],
            id="one label",
        ),
        pytest.param("example..com", [SUBDOMAIN], id="empty label"),
        pytest.param(".", [SUBDOMAIN], id="only a dot"),
        pytest.param(
            f"{'_' * 254}.a",
            [f"must be no more than 253 characters,{SUBDOMAIN}"],
            id="messages of one rule are joined",
        ),
        pytest.param(f"{'a' * 64}.com", ["must be no more than 63 characters"], id="long label"),
    ],
)
def test_fqdn(value: str, want: list[str]) -> None:
    """A fully qualified domain has at least two labels, each at most 63 long."""
    assert metadata_validation.fqdn(value) == want
    assert metadata_validation.is_fqdn(value) == (want == [])


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("web-", "wea", id="the dash and the character before it go"),
        pytest.param("web", "web", id="no dash"),
        pytest.param("-", "-", id="a dash alone stays"),
        pytest.param("", "", id="empty"),
        pytest.param("a.-", "aa", id="even a dot before the dash goes"),
    ],
)
def test_without_prefix_dash(value: str, want: str) -> None:
    """A generateName may end in a dash."""
    assert metadata_validation.without_prefix_dash(value) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("abc", 3, id="ascii"),
        pytest.param("\u00e4b", 3, id="two bytes and one"),
        pytest.param("\ud800", 3, id="a lone surrogate is counted, not raised"),
    ],
)
def test_byte_length(value: str, want: int) -> None:
    """Length is that of the UTF-8 form."""
    assert metadata_validation.byte_length(value) == want


ALL_CHECKS = (
    metadata_validation.dns1123_label,
    metadata_validation.dns1123_subdomain,
    metadata_validation.dns1035_label,
    metadata_validation.label_value,
    metadata_validation.qualified_name,
    metadata_validation.port_name,
    metadata_validation.fqdn,
)


@pytest.mark.parametrize("check", ALL_CHECKS)
@settings(deadline=None, max_examples=100)
@given(value=st.text() | st.text(alphabet="aZ0-_./", max_size=80))
def test_no_string_raises(check: Callable[[str], list[str]], value: str) -> None:
    """Every check answers every string with distinct messages."""
    messages = check(value)
    assert len(messages) == len(set(messages))
    assert all(messages)


@settings(deadline=None, max_examples=200)
@given(value=st.from_regex(re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"), fullmatch=True))
def test_labels_are_names_everywhere(value: str) -> None:
    """What is a label is also a subdomain, a label value and a label key."""
    assert metadata_validation.dns1123_label(value) == []
    assert metadata_validation.dns1123_subdomain(value) == []
    assert metadata_validation.label_value(value) == []
    assert metadata_validation.qualified_name(value) == []
