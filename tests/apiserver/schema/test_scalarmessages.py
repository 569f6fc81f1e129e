"""Times, quantities and other messages that are plain values in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.schema.protobuf_wire import (
    MessageError,
    read_base64,
    read_bool,
    read_int_or_string,
    read_json,
    read_micro_time,
    read_quantity,
    read_time_message,
)


def fields(*numbers: int) -> bytes:
    """Return a message whose fields 1, 2 ... are numbers of 64 bits."""
    sent = b""
    for field, value in enumerate(numbers, start=1):
        rest = value & ((1 << 64) - 1)
        sent += bytes([field << 3])
        sent += bytes([(rest >> 7 * place) & 0x7F | 0x80 for place in range(9)])
        sent += bytes([rest >> 63])
    return sent


def holding(data: bytes) -> bytes:
    """Return a message whose first field is some bytes."""
    size = len(data)
    return bytes([0x0A, size & 0x7F | 0x80, size >> 7]) + data


@pytest.mark.parametrize(
    ("message", "want", "want_micro"),
    [
        pytest.param(b"", None, None, id="no time"),
        pytest.param(fields(0), "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z", id="epoch"),
        pytest.param(
            fields(1772600767, 890123999),
            "2026-03-04T05:06:07Z",
            "2026-03-04T05:06:07.890123Z",
            id="fractions are cut, not rounded",
        ),
        pytest.param(
            fields(0, -1500),
            "1970-01-01T00:00:00Z",
            "1969-12-31T23:59:59.999999Z",
            id="negative fraction",
        ),
        pytest.param(fields(-62135596800), None, None, id="the zero time of Go"),
        pytest.param(
            fields(-62135596799), "0001-01-01T00:00:01Z", "0001-01-01T00:00:01.000000Z", id="first"
        ),
        pytest.param(
            fields(253402300799), "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000000Z", id="last"
        ),
    ],
)
def test_a_time_is_text(message: bytes, want: str | None, want_micro: str | None) -> None:
    """Seconds since 1970 become RFC 3339 in UTC, with as many digits as the type has."""
    assert (read_time_message(message), read_micro_time(message)) == (want, want_micro)


@pytest.mark.parametrize("seconds", [253402300800, -62135596801, (1 << 63) - 1, -(1 << 63)])
def test_a_time_beyond_the_calendar_is_refused(seconds: int) -> None:
    """RFC 3339 has four digits for the year."""
    with pytest.raises(MessageError, match=r"^a time outside of the years 1 to 9999$"):
        read_time_message(fields(seconds))


@pytest.mark.parametrize(
    ("message", "want"),
    [
        pytest.param(b"", 0, id="nothing is zero"),
        pytest.param(fields(0, 80), 80, id="number"),
        pytest.param(fields(0, -1), -1, id="negative number"),
        pytest.param(fields(0, 80) + b"\x1a\x01x", 80, id="number, text ignored"),
        pytest.param(fields(1, 80) + b"\x1a\x04http", "http", id="text, number ignored"),
        pytest.param(fields(1), "", id="no text"),
    ],
)
def test_a_number_or_text_is_what_its_type_says(message: bytes, want: int | str) -> None:
    """The type field tells which of the two counts."""
    assert read_int_or_string(message) == want


def test_a_value_that_is_neither_number_nor_text_is_refused() -> None:
    """There are but two types."""
    with pytest.raises(MessageError, match=r"^neither a number nor a string, but 2$"):
        read_int_or_string(fields(2))


@pytest.mark.parametrize(
    ("message", "want"),
    [
        pytest.param(b"", "0", id="nothing is zero"),
        pytest.param(holding(b"1500m"), "1500m", id="as written"),
    ],
)
def test_a_quantity_is_its_text(message: bytes, want: str) -> None:
    """Quantities travel as text."""
    assert read_quantity(message) == want


@pytest.mark.parametrize(
    ("message", "want"),
    [
        pytest.param(b"", None, id="nothing is null"),
        pytest.param(holding(b""), None, id="no bytes are null"),
        pytest.param(holding(b'{"f:a":{}}'), {"f:a": {}}, id="an object"),
        pytest.param(holding(b"[" * 99 + b"{}" + b"]" * 99), ..., id="a hundred levels"),
    ],
)
def test_json_within_a_message_is_read(message: bytes, want: Any) -> None:
    """Field sets travel as JSON."""
    found = read_json(message)
    while isinstance(found, list):
        found, want = found[0], {}
    assert found == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(b"[" * 100 + b"{}" + b"]" * 100, "nested deeper than 100", id="101 levels"),
        pytest.param(b"[" * 5000, "nested deeper than 100", id="deeper than the parser goes"),
        pytest.param(b'"\xff"', "not JSON: 'utf-8' codec can't decode byte 0xff", id="no UTF-8"),
        pytest.param(b"{}{}", "not JSON: JSON is malformed: trailing characters", id="two values"),
    ],
)
def test_json_that_is_too_deep_or_none_is_refused(text: bytes, want: str) -> None:
    """What cannot be stored is not taken."""
    with pytest.raises(MessageError) as caught:
        read_json(holding(text))
    assert str(caught.value).startswith(want)


def test_bytes_are_base64_and_any_number_but_zero_is_true() -> None:
    """Plain values follow the rules of JSON."""
    assert read_base64(b"\x00\xff") == "AP8="
    assert (read_bool(0), read_bool(2)) == (False, True)
