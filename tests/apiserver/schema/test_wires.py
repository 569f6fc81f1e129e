"""Numbered values as protocol buffers put them on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.schema.protobuf_wire import (
    MAX_DEPTH,
    MessageError,
    read_varint,
    signed32,
    signed64,
    split_fields,
    split_numbers,
)


def encode(value: int) -> bytes:
    """Return an unsigned number as it is on the wire."""
    sent = bytearray()
    while value >= 0x80:
        sent.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*sent, value])


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.integers(1, (1 << 29) - 1) | st.integers(1, 20),
            st.integers(0, (1 << 64) - 1) | st.binary(max_size=200),
        )
    )
)
def test_fields_come_back_as_they_were_written(fields: list[tuple[int, int | bytes]]) -> None:
    """Splitting undoes writing, and keeps the order of values of one number."""
    sent = b""
    want: dict[int, list[int | bytes]] = {}
    for number, value in fields:
        want.setdefault(number, []).append(value)
        if isinstance(value, int):
            sent += encode(number << 3) + encode(value)
        else:
            sent += encode(number << 3 | 2) + encode(len(value)) + value
    assert split_fields(sent) == want


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_packed_numbers_come_back_as_they_were_written(numbers: list[int]) -> None:
    """A packed list is nothing but its numbers."""
    assert split_numbers(b"".join(map(encode, numbers))) == numbers


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(b"\x09" + bytes(8) + b"\x10\x05", {1: [None], 2: [5]}, id="fixed64"),
        pytest.param(b"\x0d" + bytes(4) + b"\x10\x05", {1: [None], 2: [5]}, id="fixed32"),
        pytest.param(b"\x0b\x0c\x10\x05", {1: [None], 2: [5]}, id="empty group"),
        pytest.param(
            b"\x0b\x10\x05\x1a\x01x\x21" + bytes(8) + b"\x2d" + bytes(4) + b"\x33\x34\x0c\x10\x05",
            {1: [None], 2: [5]},
            id="group of everything",
        ),
        pytest.param(b"", {}, id="nothing"),
    ],
)
def test_encodings_that_no_object_uses_are_read_over(
    data: bytes, want: dict[int, list[int | None]]
) -> None:
    """Their values are not kept, but the fields after them are found."""
    assert split_fields(data) == want


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(b"\x0a", "unexpected end of the message", id="no length"),
        pytest.param(b"\x0a\x02a", "unexpected end of the message", id="fewer bytes than said"),
        pytest.param(b"\x08", "unexpected end of the message", id="no number"),
        pytest.param(b"\x08\x80", "unexpected end of the message", id="half a number"),
        pytest.param(b"\x09" + bytes(7), "unexpected end of the message", id="half a fixed64"),
        pytest.param(b"\x0d" + bytes(3), "unexpected end of the message", id="half a fixed32"),
        pytest.param(b"\x0b", "unexpected end of the message", id="group without an end"),
        pytest.param(b"\x80", "unexpected end of the message", id="half a tag"),
        pytest.param(b"\x08" + b"\x80" * 10 + b"\x01", "integer overflow", id="eleven bytes"),
        pytest.param(b"\x0a" + b"\xff" * 9 + b"\x01", "unexpected end of the message", id="huge"),
        pytest.param(b"\x00\x01", "illegal field number 0", id="number zero"),
        pytest.param(
            encode(1 << 32) + b"\x01", "illegal field number 536870912", id="number too high"
        ),
        pytest.param(b"\x0e", "illegal wire type 6", id="wire type 6"),
        pytest.param(b"\x0f", "illegal wire type 7", id="wire type 7"),
        pytest.param(b"\x0c", "end of a group that did not begin", id="end without a start"),
        pytest.param(b"\x0b\x14", "end of a group that did not begin", id="end of another"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, want: str) -> None:
    """Lengths, numbers and groups that do not fit are errors."""
    with pytest.raises(MessageError) as caught:
        split_fields(data)
    assert str(caught.value) == want


def test_groups_may_nest_only_so_deep() -> None:
    """A hundred levels are read over, one more is refused."""
    assert split_fields(b"\x0b" * MAX_DEPTH + b"\x0c" * MAX_DEPTH) == {1: [None]}
    with pytest.raises(MessageError) as caught:
        split_fields(b"\x0b" * (MAX_DEPTH + 1))
    assert str(caught.value) == "nested deeper than 100"


@settings(deadline=None, max_examples=100)
@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_are_in_twos_complement(value: int) -> None:
    """A negative number of 64 bits comes back; of 32 bits, the low half does."""
    read, after = read_varint(encode(value & ((1 << 64) - 1)), 0)
    assert signed64(read) == value
    assert after <= 10
    low = value & 0xFFFFFFFF
    assert signed32(read) == (low if low < 1 << 31 else low - (1 << 32))
