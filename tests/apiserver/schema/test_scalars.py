"""Quantities, times and bytes as a kube-apiserver 1.36 reads and writes them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.apiserver.schema.scalars import Unparsable, store_bytes, store_quantity, store_time
from keepclose.model.quantities import MUST_BE_QUANTITY, millis

SUFFIX = "unable to parse quantity's suffix"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1", "1"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        (".5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024Ki", "1Mi"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("0.1Ki", "102400m"),
        ("1.0001Ki", "1024103m"),
        ("-1.5Ki", "-1536"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1000k", "1M"),
        ("100000000000000000000", "100E"),
        ("1e3", "1e3"),
        ("1.5e3", "1500"),
        ("12e-1", "1200e-3"),
        ("1e4", "10e3"),
        ("123e5", "12300e3"),
        ("1E", "1E"),
        ("1n", "1m"),
        ("1e-9", "1e-3"),
        ("-5", "-5"),
        ("0Gi", "0"),
        ("-0", "0"),
        (".", "0"),
        ("1 ", "1"),
        ("12345678901234567890Ki", "9223372036854775807"),
        ("1e99", "1e99"),
    ],
)
def test_quantities_are_written_in_their_canonical_form(text: str, want: str) -> None:
    """The largest unit without a fraction, of the family that was given."""
    assert store_quantity(text) == want
    assert not isinstance(store_quantity(text), Unparsable)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", MUST_BE_QUANTITY),
        (" ", MUST_BE_QUANTITY),
        ("1.1.1", MUST_BE_QUANTITY),
        ("1x", MUST_BE_QUANTITY),
        ("NaN", MUST_BE_QUANTITY),
        ("1e1e1", MUST_BE_QUANTITY),
        ("1mm", SUFFIX),
        ("1e", SUFFIX),
        ("1K", SUFFIX),
        ("--1", SUFFIX),
    ],
)
def test_what_is_no_quantity(text: str, want: str) -> None:
    """The reason is that of a kube-apiserver."""
    assert store_quantity(text) == want
    assert isinstance(store_quantity(text), Unparsable)


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from(["", ".5", ".125", ".0001"]),
    st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "e3", "e-2"]),
)
def test_a_stored_quantity_is_worth_the_same(whole: int, fraction: str, unit: str) -> None:
    """Writing anew changes the text, never the amount."""
    text = f"{whole}{fraction}{unit}"
    stored = store_quantity(text)
    assert millis(stored) == millis(text)
    # NB: 828.125Ki is written 848000, which is read as a decimal and written 848k the next time; a
    # real server does the same. After that it stays.
    again = store_quantity(stored)
    assert millis(again) == millis(text)
    assert store_quantity(again) == again


@pytest.mark.parametrize(
    ("text", "micro", "want"),
    [
        ("2026-01-02T03:04:05Z", False, "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05+02:00", False, "2026-01-02T01:04:05Z"),
        ("2026-01-02T03:04:05.123456789-01:30", False, "2026-01-02T04:34:05Z"),
        ("2026-01-02T3:04:05Z", False, "2026-01-02T03:04:05Z"),
        ("0900-01-02T03:04:05Z", False, "0900-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.000001Z", True, "2026-01-02T03:04:05.000001Z"),
        ("2026-01-02T03:04:05,120000+01:00", True, "2026-01-02T02:04:05.120000Z"),
    ],
)
def test_times_are_written_in_utc(text: str, micro: bool, want: str) -> None:
    """To the second, or to the microsecond where the type has them."""
    assert store_time(text, micro=micro) == want
    assert not isinstance(store_time(text, micro=micro), Unparsable)


SECONDS = "2006-01-02T15:04:05Z07:00"
MICROS = "2006-01-02T15:04:05.000000Z07:00"


@pytest.mark.parametrize(
    ("text", "micro", "want"),
    [
        ("", False, f'parsing time "" as "{SECONDS}": cannot parse "" as "2006"'),
        ("2026-1-2", False, f'parsing time "2026-1-2" as "{SECONDS}": cannot parse "1-2" as "01"'),
        (
            "2026-01-02 03:04:05Z",
            False,
            f'parsing time "2026-01-02 03:04:05Z" as "{SECONDS}": cannot parse " 03:04:05Z" as "T"',
        ),
        (
            "2026-01-02T03:04:05.5",
            False,
            f'parsing time "2026-01-02T03:04:05.5" as "{SECONDS}": cannot parse "" as "Z07:00"',
        ),
        (
            "2026-01-02T03:04:05Zx",
            False,
            'parsing time "2026-01-02T03:04:05Zx": extra text: "x"',
        ),
        ("2026-13-02T03:04:05Z", True, 'parsing time "2026-13-02T03:04:05Z": month out of range'),
        ("2026-02-30T03:04:05Z", False, 'parsing time "2026-02-30T03:04:05Z": day out of range'),
        ("2026-02-20T03:04:60Z", False, 'parsing time "2026-02-20T03:04:60Z": second out of range'),
        (
            "2026-01-02T03:04:05.1Z",
            True,
            f'parsing time "2026-01-02T03:04:05.1Z" as "{MICROS}": cannot parse ".1Z" as ".000000"',
        ),
    ],
)
def test_what_is_no_time(text: str, micro: bool, want: str) -> None:
    """The reason names the first part that does not fit."""
    assert store_time(text, micro=micro) == want
    assert isinstance(store_time(text, micro=micro), Unparsable)


@pytest.mark.parametrize(
    ("text", "want_place"),
    [
        ("???", 0),
        ("YQ", 0),
        ("YWJjZ", 4),
        ("YWJjZA=", 7),
        ("YWJjZA=x", 6),
        ("Y===", 1),
        ("YWJj=A==", 4),
        ("YQ==YQ==", 4),
        ("YWJj=", 4),
        ("YWI=x", 4),
        ("YQ\n=\r\n=\nx", 8),
    ],
)
def test_bad_base64_is_located(text: str, want_place: int) -> None:
    """The place is the one at which Go's decoder stops."""
    assert store_bytes(text) == f"illegal base64 data at input byte {want_place}"
    assert isinstance(store_bytes(text), Unparsable)


@given(st.binary(max_size=40))
def test_base64_is_stored_without_line_breaks(data: bytes) -> None:
    """Text that comes in lines is the same bytes."""
    text = base64.encodebytes(data).decode()
    assert store_bytes(text) == base64.b64encode(data).decode()
    assert not isinstance(store_bytes(text), Unparsable)
