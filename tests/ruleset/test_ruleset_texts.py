"""Quoting and checking of everything that comes from objects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.ruleset.names import (
    plain_address,
    plain_range,
    plain_ranges,
    quote_comment,
    quote_interface,
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("ns/name:port", '"ns/name:port"', id="plain"),
        pytest.param('a "b" c', "\"a 'b' c\"", id="quotes"),
        pytest.param("a\nflush ruleset\r;", '"a flush ruleset ;"', id="lines"),
        pytest.param("\x00\x1b[31m\x7f", '"  [31m "', id="control characters"),
        pytest.param("x" * 200, f'"{"x" * 128}"', id="long"),
        pytest.param("é" * 64, f'"{"é" * 64}"', id="just long enough"),
        pytest.param("x" + "é" * 64, f'"x{"é" * 63}"', id="no half letters"),
        pytest.param("\ud800", '"?"', id="lone surrogate"),
    ],
)
def test_comment_is_quoted(text: str, want: str) -> None:
    """Nothing can leave the quotes, and no more than 128 bytes are in them."""
    assert quote_comment(text) == want


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=400))
def test_comment_of_anything_is_one_short_quotation(text: str) -> None:
    """Two quotes, one line, at most 128 bytes between."""
    quoted = quote_comment(text)
    assert quoted[0] == quoted[-1] == '"'
    assert quoted.count('"') == 2
    assert len(quoted.encode()) <= 130
    assert quoted.splitlines() == [quoted]


@pytest.mark.parametrize(
    ("name", "is_prefix", "want"),
    [
        pytest.param("eth0", False, '"eth0"', id="plain"),
        pytest.param("veth", True, '"veth*"', id="prefix"),
        pytest.param('a"; drop', False, '"a___drop"', id="hostile"),
        pytest.param("br*", False, '"br_"', id="no glob unless asked for"),
        pytest.param("x" * 30, False, f'"{"x" * 15}"', id="long"),
    ],
)
def test_interface_is_quoted(name: str, is_prefix: bool, want: str) -> None:
    """Only letters that a name can have, and a star only for a prefix."""
    assert quote_interface(name, is_prefix=is_prefix) == want


@pytest.mark.parametrize(
    ("text", "family", "want"),
    [
        pytest.param("10.0.0.1", "IPv4", "10.0.0.1", id="IPv4"),
        pytest.param("10.0.0.1", "IPv6", "", id="other family"),
        pytest.param("FD00:0:0::1", "IPv6", "fd00::1", id="IPv6 spelt long"),
        pytest.param("::ffff:10.0.0.1", "IPv4", "10.0.0.1", id="mapped"),
        pytest.param("::ffff:10.0.0.1", "IPv6", "", id="mapped is not IPv6"),
        pytest.param("10.0.0.1 }\nflush ruleset", "IPv4", "", id="hostile"),
        pytest.param("", "IPv4", "", id="empty"),
        pytest.param("255.249.199.0", "IPv4", "255.249.199.0", id="great octets"),
        pytest.param("010.0.0.1", "IPv4", "10.0.0.1", id="leading zero"),
        pytest.param("10.0.0.256", "IPv4", "", id="octet too great"),
        pytest.param("10.0.0.1\n", "IPv4", "", id="line end"),
        pytest.param("١٠.0.0.1", "IPv4", "", id="digits of another script"),  # noqa: RUF001
    ],
)
def test_address_is_plain_or_nothing(text: str, family: str, want: str) -> None:
    """What is no address of the family is left out."""
    assert plain_address(text, family) == want


@pytest.mark.parametrize(
    ("text", "family", "want"),
    [
        pytest.param(" 10.1.2.3/8", "IPv4", "10.0.0.0/8", id="stray bits"),
        pytest.param("fd00::/8", "IPv4", "", id="other family"),
        pytest.param("fe80::1%eth0/64", "IPv6", "", id="scope"),
        pytest.param("10.0.0.0/8, 0.0.0.0/0", "IPv4", "", id="two"),
    ],
)
def test_range_is_plain_or_nothing(text: str, family: str, want: str) -> None:
    """What is no range of the family is left out."""
    assert plain_range(text, family) == want


def test_ranges_do_not_overlap() -> None:
    """Sorted, merged, and single addresses without a length."""
    ranges = ("10.1.0.0/16", "192.0.2.7/32", "10.0.0.0/8", "fd00::/8", "x", "192.0.2.7")
    assert plain_ranges(ranges, "IPv4") == ("10.0.0.0/8", "192.0.2.7")
    assert plain_ranges(("fd00::1", "fd01::/16", "fd00::/16"), "IPv6") == ("fd00::/15",)
    assert plain_ranges((), "IPv4") == ()
