"""Tests of how quantities are read."""

from __future__ import annotations

from decimal import ROUND_UP, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.field_errors import invalid
from keepclose.model.quantities import millis, quantity_errors

LARGEST = (2**63 - 1) * 1000


@pytest.mark.parametrize(
    ("value", "want_millis"),
    [
        pytest.param("3500m", 3500, id="millis are taken as they are"),
        pytest.param("2", 2000, id="whole units are a thousand each"),
        pytest.param(2, 2000, id="a number counts as its text"),
        pytest.param(-3, -3000, id="a negative number is allowed"),
        pytest.param(0.5, 500, id="a fraction counts as its text"),
        pytest.param(1e22, LARGEST, id="a huge fraction is limited"),
        pytest.param("0.5", 500, id="a decimal point divides"),
        pytest.param(".5", 500, id="digits before the point may be missing"),
        pytest.param("5.", 5000, id="digits after the point may be missing"),
        pytest.param("+1.5", 1500, id="a plus sign changes nothing"),
        pytest.param("-1.5", -1500, id="a minus sign negates"),
        pytest.param("0", 0, id="zero is zero"),
        pytest.param("-0.000", 0, id="negative zero is zero"),
        pytest.param("007", 7000, id="leading zeros do no harm"),
        pytest.param("1e3", 1_000_000, id="a small e starts an exponent"),
        pytest.param("1E3", 1_000_000, id="a big E with digits starts an exponent"),
        pytest.param("1E", 10**21, id="a big E alone is exa"),
        pytest.param("12e-1", 1200, id="exponents may be negative"),
        pytest.param("1e+2", 100_000, id="exponents may have a plus sign"),
        pytest.param(f"1e{'0' * 5000}1", 10_000, id="an exponent may have many zeros before it"),
        pytest.param("1e999999999", LARGEST, id="a huge exponent is limited, and quickly"),
        pytest.param("-1e999999999", -LARGEST, id="a huge negative amount is limited"),
        pytest.param("9" * 5000, LARGEST, id="thousands of digits are limited"),
        pytest.param("1e-999999999", 1, id="a tiny amount is rounded up"),
        pytest.param("100u", 1, id="less than a milli is rounded up"),
        pytest.param("1n", 1, id="a nano is rounded up"),
        pytest.param("1001u", 2, id="a remainder is rounded up"),
        pytest.param("-1001u", -2, id="a negative remainder is rounded away from zero"),
        pytest.param(f"0.001{'0' * 5000}1", 2, id="a remainder after thousands of zeros counts"),
        pytest.param(f"0.001{'0' * 5000}", 1, id="zeros at the end are no remainder"),
        pytest.param("1k", 10**6, id="kilo"),
        pytest.param("1M", 10**9, id="mega"),
        pytest.param("1G", 10**12, id="giga"),
        pytest.param("1T", 10**15, id="tera"),
        pytest.param("1P", 10**18, id="peta"),
        pytest.param("1Ki", 1024 * 1000, id="kibi"),
        pytest.param("1.5Gi", 1536 * 1024**2 * 1000, id="binary suffixes take fractions"),
        pytest.param("1Ei", 2**60 * 1000, id="exbi"),
        pytest.param("8Ei", LARGEST, id="more than 64 bits are limited"),
    ],
)
def test_quantity_is_read(value: str | float, want_millis: int) -> None:
    """A quantity is its value times 1000, rounded away from zero and limited to 64 bits."""
    assert millis(value) == want_millis


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="nothing"),
        pytest.param(".", id="a lone point"),
        pytest.param("-", id="a lone sign"),
        pytest.param("m", id="a lone suffix"),
        pytest.param("abc", id="a word"),
        pytest.param("1 Gi", id="a blank inside"),
        pytest.param(" 1", id="a blank before"),
        pytest.param("1\n", id="a line break after"),
        pytest.param("1.2.3", id="two points"),
        pytest.param("--1", id="two signs"),
        pytest.param("1K", id="a big K without i"),
        pytest.param("1mi", id="a suffix that does not exist"),
        pytest.param("1e", id="an exponent without digits"),
        pytest.param("1e-", id="an exponent of a sign only"),
        pytest.param("1e1.5", id="an exponent with a point"),
        pytest.param(f"1e{'9' * 19}", id="an exponent beyond 64 bits"),
        pytest.param("\u0661", id="a digit of another script"),
        pytest.param("\u00b2m", id="a superscript digit"),
        pytest.param("1_000", id="an underscore"),
        pytest.param("0x10", id="a hexadecimal number"),
        pytest.param(float("nan"), id="not a number"),
        pytest.param(float("inf"), id="infinity"),
    ],
)
def test_text_is_no_quantity(value: str | float) -> None:
    """What is no quantity gives None and one cause with the words of the API."""
    want_detail = (
        "quantities must match the regular expression "
        "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )

    assert millis(value) is None
    assert quantity_errors("f", value) == [invalid("f", value, want_detail)]


def test_quantity_has_no_causes() -> None:
    """A good quantity gives no cause."""
    assert quantity_errors("status.allocatable[cpu]", "3920m") == []


SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(1000),
    "M": Decimal(10**6),
    "Ki": Decimal(1024),
    "Mi": Decimal(1024**2),
    "e2": Decimal(100),
    "E-2": Decimal("0.01"),
}


@given(
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**9),
    st.text("0123456789", max_size=6),
    st.sampled_from(sorted(SUFFIXES)),
)
@settings(deadline=None, max_examples=200)
def test_quantity_equals_exact_arithmetic(
    sign: str, whole: int, fraction: str, suffix: str
) -> None:
    """Any quantity equals its exact decimal value times 1000, rounded away from zero."""
    exact = Decimal(f"{sign}{whole}.{fraction}") * SUFFIXES[suffix] * 1000
    want_millis = int(exact.to_integral_value(rounding=ROUND_UP))

    assert millis(f"{sign}{whole}.{fraction}{suffix}") == want_millis


@given(st.integers(-(10**15), 10**15))
@settings(deadline=None, max_examples=100)
def test_millis_round_trip(amount: int) -> None:
    """An amount written in millis is read as the same amount."""
    assert millis(f"{amount}m") == amount


@given(st.text() | st.text("0123456789.+-eEinumkKMGTP", max_size=30) | st.floats() | st.integers())
@settings(deadline=None, max_examples=200)
def test_reading_never_raises(value: str | float) -> None:
    """Any value gives an amount within the limits or a cause, never both and never an exception."""
    amount = millis(value)

    assert (amount is None) == bool(quantity_errors("f", value))
    assert amount is None or -LARGEST <= amount <= LARGEST
