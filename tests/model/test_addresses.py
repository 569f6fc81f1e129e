"""Addresses are read leniently and refused in the words of the API server."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model import addresses
from keepclose.model.metadata_validation import SUBDOMAIN_SENTENCE

NO_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
NO_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
ZEROS = "must not have leading 0s"
MAPPED = "must not be an IPv4-mapped IPv6 address"


@pytest.mark.parametrize(
    ("text", "want_family", "want_canonical"),
    [
        pytest.param("10.0.0.1", "IPv4", "10.0.0.1", id="plain IPv4"),
        pytest.param("010.000.0.0001", "IPv4", "10.0.0.1", id="leading zeros"),
        pytest.param("::ffff:10.0.0.1", "IPv4", "10.0.0.1", id="mapped IPv4"),
        pytest.param("::ffff:a00:1", "IPv4", "10.0.0.1", id="mapped IPv4 in hexadecimal"),
        pytest.param("::ffff:10.0.0.01", "IPv4", "10.0.0.1", id="mapped IPv4 with zeros"),
        pytest.param("2001:db8::1", "IPv6", "2001:db8::1", id="plain IPv6"),
        pytest.param("2001:DB8:0:0:0:0:0:1", "IPv6", "2001:db8::1", id="long IPv6"),
        pytest.param("2001:00db8::1", "IPv6", "2001:db8::1", id="group of five digits"),
        pytest.param("::", "IPv6", "::", id="unspecified IPv6"),
        pytest.param("::1.2.3.4", "IPv6", "::102:304", id="IPv4-compatible is IPv6"),
        pytest.param("", None, None, id="empty"),
        pytest.param("10.0.0", None, None, id="three octets"),
        pytest.param("10.0.0.256", None, None, id="octet too large"),
        pytest.param("10.0.0.", None, None, id="empty octet"),
        pytest.param("10.0.0.0x1", None, None, id="hexadecimal octet"),
        pytest.param("10.0.0.+1", None, None, id="sign"),
        pytest.param("10.0.0.1_0", None, None, id="underscore"),
        pytest.param("10.0.0.\u0661", None, None, id="digit of another script"),
        pytest.param(f"10.0.0.{'9' * 5000}", None, None, id="endless digits"),
        pytest.param("10.0.0.1/8", None, None, id="a range"),
        pytest.param(" 10.0.0.1", None, None, id="blank"),
        pytest.param("fe80::1%eth0", None, None, id="zone of a link"),
        pytest.param("1:2:3:4:5:6:7::8", None, None, id="a double colon stands for no group"),
        pytest.param("10000::1", None, None, id="group too large"),
        pytest.param(":", None, None, id="colon"),
        pytest.param("example.com", None, None, id="a name"),
    ],
)
def test_an_address_has_a_family_and_one_spelling(
    text: str, want_family: str | None, want_canonical: str | None
) -> None:
    """Lax texts still have a family and a canonical form, other texts have neither."""
    assert addresses.family_of(text) == want_family
    assert addresses.canonical(text) == want_canonical


def test_parse_lenient_says_how_a_text_was_lax() -> None:
    """Leading zeros and mapping are told apart."""
    assert addresses.parse_lenient("10.0.0.1") == (
        ipaddress.IPv4Address("10.0.0.1"),
        False,
        False,
    )
    assert addresses.parse_lenient("10.0.0.01") == (ipaddress.IPv4Address("10.0.0.1"), True, False)
    assert addresses.parse_lenient("::ffff:10.0.0.01") == (
        ipaddress.IPv4Address("10.0.0.1"),
        True,
        True,
    )
    assert addresses.parse_lenient("::00001") == (ipaddress.IPv6Address("::1"), True, False)
    assert addresses.parse_lenient("nowhere") is None


@pytest.mark.parametrize(
    ("text", "want_strict", "want_lenient"),
    [
        pytest.param("10.0.0.1", [], [], id="plain IPv4"),
        pytest.param("2001:DB8::1", [], [], id="canonical form is not asked for"),
        pytest.param("10.0.0.01", [ZEROS], [], id="leading zeros"),
        pytest.param("::ffff:1.2.3.4", [MAPPED], [], id="mapped"),
        pytest.param("::ffff:1.2.3.04", [ZEROS], [], id="zeros are told first"),
        pytest.param("x", [NO_IP], [NO_IP], id="no address"),
    ],
)
def test_legacy_fields(text: str, want_strict: list[str], want_lenient: list[str]) -> None:
    """Fields of old take lax texts unless strict validation is on."""
    for strict, want in ((True, want_strict), (False, want_lenient)):
        causes = addresses.legacy_ip_errors("f", text, strict=strict)
        assert [str(cause) for cause in causes] == [
            f'f: Invalid value: "{text}": {detail}' for detail in want
        ]


def test_legacy_fields_leave_stored_values_alone() -> None:
    """What the stored object has is accepted, whatever it is; a different text is not."""
    stored = frozenset({"010.0.0.1", "junk"})
    assert addresses.legacy_ip_errors("f", "010.0.0.1", strict=True, old_values=stored) == []
    assert addresses.legacy_ip_errors("f", "junk", strict=True, old_values=stored) == []
    (cause,) = addresses.legacy_ip_errors("f", "010.0.0.2", strict=True, old_values=stored)
    assert str(cause) == f'f: Invalid value: "010.0.0.2": {ZEROS}'


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("10.0.0.1", [], id="plain IPv4"),
        pytest.param("2001:db8::1", [], id="plain IPv6"),
        pytest.param("10.0.0.01", [ZEROS], id="leading zeros"),
        pytest.param("::ffff:1.2.3.4", [MAPPED], id="mapped"),
        pytest.param("2001:DB8::1", ['must be in canonical form ("2001:db8::1")'], id="capitals"),
        pytest.param("1:0:0:2::", [], id="the longer run of zeros is the one left out"),
        pytest.param("::0:1", ['must be in canonical form ("::1")'], id="needless group"),
        pytest.param("", [NO_IP], id="empty"),
    ],
)
def test_strict_fields(text: str, want: list[str]) -> None:
    """New fields take the canonical form only, and say which it is."""
    assert [str(cause) for cause in addresses.strict_ip_errors("f", text)] == [
        f'f: Invalid value: "{text}": {detail}' for detail in want
    ]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("10.0.0.1", [], id="IPv4"),
        pytest.param("2001:db8::1", [], id="IPv6"),
        pytest.param(
            "0.0.0.0",  # noqa: S104
            ["may not be unspecified (0.0.0.0)"],
            id="unspecified IPv4",
        ),
        pytest.param("::", ["may not be unspecified (::)"], id="unspecified IPv6"),
        pytest.param(
            "127.1.2.3",
            ["may not be in the loopback range (127.0.0.0/8, ::1/128)"],
            id="loopback IPv4",
        ),
        pytest.param(
            "::1", ["may not be in the loopback range (127.0.0.0/8, ::1/128)"], id="loopback IPv6"
        ),
        pytest.param(
            "169.254.169.254",
            ["may not be in the link-local range (169.254.0.0/16, fe80::/10)"],
            id="link-local IPv4",
        ),
        pytest.param(
            "febf::1",
            ["may not be in the link-local range (169.254.0.0/16, fe80::/10)"],
            id="link-local IPv6",
        ),
        pytest.param(
            "224.0.0.251",
            ["may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"],
            id="link-local multicast IPv4",
        ),
        pytest.param(
            "ff12::1",
            ["may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"],
            id="link-local multicast IPv6, with a flag",
        ),
        pytest.param("224.0.1.1", [], id="other multicast IPv4"),
        pytest.param("ff05::1", [], id="other multicast IPv6"),
        pytest.param(
            "::ffff:127.0.0.1",
            ["may not be in the loopback range (127.0.0.0/8, ::1/128)"],
            id="mapped loopback",
        ),
        pytest.param("here", ["must be a valid IP address"], id="no address"),
    ],
)
def test_endpoint_addresses(text: str, want: list[str]) -> None:
    """Traffic is not sent to addresses that mean the own machine or link."""
    assert [str(cause) for cause in addresses.endpoint_ip_errors("f", text)] == [
        f'f: Invalid value: "{text}": {detail}' for detail in want
    ]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("10.0.0.1", [], id="plain IPv4"),
        pytest.param("2001:db8::1", [], id="plain IPv6"),
        pytest.param("host", [], id="no address"),
        pytest.param(
            "010.0.0.1",
            ['f: non-standard IP address "010.0.0.1" is invalid: use "10.0.0.1"'],
            id="leading zeros",
        ),
        pytest.param(
            "::ffff:1.2.3.4",
            ['f: non-standard IP address "::ffff:1.2.3.4" is invalid: use "1.2.3.4"'],
            id="mapped",
        ),
        pytest.param(
            "2001:db8:0::1",
            [
                (
                    'f: IPv6 address "2001:db8:0::1" should be in RFC 5952 canonical format '
                    '("2001:db8::1")'
                )
            ],
            id="not canonical",
        ),
    ],
)
def test_warnings(text: str, want: list[str]) -> None:
    """Accepted but badly spelt addresses give a warning with the better spelling."""
    assert addresses.ip_warnings("f", text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("example.com.", [], id="trailing dot"),
        pytest.param("", ["f: Required value"], id="empty"),
        pytest.param(
            "example",
            [
                (
                    'f: Invalid value: "example": '
                    "should be a domain with at least two segments separated by dots"
                )
            ],
            id="one label",
        ),
        pytest.param(
            "_a.b.",
            [f'f: Invalid value: "_a.b": {SUBDOMAIN_SENTENCE}'],
            id="the trailing dot is not shown",
        ),
        pytest.param(
            f"ok.{'a' * 64}.com",
            [f'f: Invalid value: "{"a" * 64}": must be no more than 63 characters'],
            id="the long label is shown alone",
        ),
    ],
)
def test_names_as_addresses(text: str, want: list[str]) -> None:
    """Slices of names take fully qualified domains."""
    assert [str(cause) for cause in addresses.fqdn_errors("f", text)] == want


@pytest.mark.parametrize(
    ("text", "want_strict", "want_lenient"),
    [
        pytest.param("10.0.0.0/8", [], [], id="IPv4"),
        pytest.param("2001:db8::/32", [], [], id="IPv6"),
        pytest.param("0.0.0.0/0", [], [], id="everything"),
        pytest.param("10.0.0.0", [NO_CIDR], [NO_CIDR], id="no length"),
        pytest.param("10.0.0.0/", [NO_CIDR], [NO_CIDR], id="empty length"),
        pytest.param("10.0.0.0/33", [NO_CIDR], [NO_CIDR], id="length too large"),
        pytest.param("2001:db8::/129", [NO_CIDR], [NO_CIDR], id="IPv6 length too large"),
        pytest.param("10.0.0.0/-1", [NO_CIDR], [NO_CIDR], id="negative length"),
        pytest.param("x/8", [NO_CIDR], [NO_CIDR], id="no address"),
        pytest.param(
            "010.0.0.0/8",
            ["must not have leading 0s in IP or prefix length"],
            [],
            id="zeros in the address",
        ),
        pytest.param(
            "10.0.0.0/08",
            ["must not have leading 0s in IP or prefix length"],
            [],
            id="zeros in the length",
        ),
        pytest.param(
            "10.0.0.1/8",
            ["must not have bits set beyond the prefix length"],
            [],
            id="stray bits",
        ),
        pytest.param(
            "::ffff:10.0.0.0/104",
            ["must not have an IPv4-mapped IPv6 address"],
            [],
            id="mapped",
        ),
        pytest.param(
            "::ffff:10.0.0.1/104",
            ["must not have an IPv4-mapped IPv6 address"],
            [],
            id="mapped with stray bits, of which the first is told",
        ),
    ],
)
def test_cidrs(text: str, want_strict: list[str], want_lenient: list[str]) -> None:
    """Ranges are read like addresses, and strictly without bits past their length."""
    for strict, want in ((True, want_strict), (False, want_lenient)):
        causes = addresses.cidr_errors("f", text, strict=strict)
        assert [str(cause) for cause in causes] == [
            f'f: Invalid value: "{text}": {detail}' for detail in want
        ]


def test_cidrs_leave_stored_values_alone() -> None:
    """A range that the stored object has is accepted unchanged."""
    assert (
        addresses.cidr_errors("f", "10.0.0.1/8", strict=True, old_values=frozenset({"10.0.0.1/8"}))
        == []
    )


@settings(deadline=None, max_examples=200)
@given(text=st.text() | st.text(alphabet="0123456789abcdefA.:/%", max_size=45))
def test_no_text_raises(text: str) -> None:
    """Every text is answered, and all answers agree on whether it is an address."""
    is_address = addresses.family_of(text) is not None
    assert (addresses.canonical(text) is not None) == is_address
    assert (addresses.legacy_ip_errors("f", text, strict=False) == []) == is_address
    assert (addresses.strict_ip_errors("f", text) == []) == (addresses.canonical(text) == text)
    for strict in (True, False):
        assert len(addresses.cidr_errors("f", text, strict=strict)) <= 1
    assert len(addresses.endpoint_ip_errors("f", text)) <= 1
    assert len(addresses.fqdn_errors("f", text)) <= 1


@settings(deadline=None, max_examples=200)
@given(address=st.ip_addresses())
def test_python_and_we_agree(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """What Python writes as an address is one for us too, and exploded IPv6 texts are the same."""
    want = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    assert addresses.canonical(str(address)) == str(want or address)
    assert addresses.canonical(address.exploded) == str(want or address)
