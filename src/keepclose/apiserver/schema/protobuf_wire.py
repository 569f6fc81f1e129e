"""The wire format of protocol buffers: numbered values, without knowing what they mean.

A message is a run of fields, each with a number and one of six encodings. Lengths and ends are
checked here, so that nothing is ever read past the end; what a number stands for is for the caller
to say. Groups, long deprecated, are read over.
"""

from __future__ import annotations

from typing import Final

# What a field holds: a number, bytes, or a value of an encoding that no object of the API uses.
Value = int | bytes | None

MAX_DEPTH: Final = 100
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_START_GROUP: Final = 3
_END_GROUP: Final = 4
_FIXED32: Final = 5
_LAST_NUMBER: Final = (1 << 29) - 1
_MOST_VARINT_BYTES: Final = 10
_MASK32: Final = (1 << 32) - 1
_MASK64: Final = (1 << 64) - 1


class MessageError(ValueError):
    """A message that cannot be read."""

    def __init__(self, why: str) -> None:
        """Say what is wrong; where it is wrong is added on the way up."""
        super().__init__(why)
        self.why = why
        self.path: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the field and what is wrong with it."""
        return f"{'.'.join(self.path)}: {self.why}" if self.path else self.why


def split_fields(data: bytes) -> dict[int, list[Value]]:
    """Return the values of a message by their numbers, in the order in which they came."""
    found: dict[int, list[Value]] = {}
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(data, at - 1)
        number, wire = tag >> 3, tag & 7
        value: Value = None
        if wire == _BYTES:
            if at < end and data[at] < 0x80:
                size = data[at]
                at += 1
            else:
                size, at = read_varint(data, at)
            value = data[at : at + size]
            at += size
        elif wire == _VARINT:
            if at < end and data[at] < 0x80:
                value = data[at]
                at += 1
            else:
                value, at = read_varint(data, at)
        else:
            at = _skip(data, at, number, wire)
        if at > end:
            raise _truncated()
        if not 0 < number <= _LAST_NUMBER:
            raise MessageError(f"illegal field number {number}")
        if number in found:
            found[number].append(value)
        else:
            found[number] = [value]
    return found


def split_numbers(data: bytes) -> list[int]:
    """Return the numbers of a packed list."""
    numbers: list[int] = []
    at, end = 0, len(data)
    while at < end:
        number, at = read_varint(data, at)
        numbers.append(number)
    return numbers


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number of 64 bits that begins at a place, and the place after it."""
    value = shift = 0
    for byte in data[at : at + _MOST_VARINT_BYTES]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
    if shift == 7 * _MOST_VARINT_BYTES:
        raise MessageError("integer overflow")
    raise _truncated()


def signed32(value: int) -> int:
    """Return the number of 32 bits in two's complement that a varint carries."""
    low = value & _MASK32
    return low - (1 << 32) if low >> 31 else low


def signed64(value: int) -> int:
    """Return the number of 64 bits in two's complement that a varint carries."""
    return value - (1 << 64) if value >> 63 else value


def _skip(data: bytes, at: int, number: int, wire: int) -> int:
    """Return the place after a value that nobody looks at."""
    # NB: groups may hold groups; a stack instead of recursion, because the sender picks the depth.
    groups: list[int] = []
    while True:
        if wire == _VARINT:
            _, at = read_varint(data, at)
        elif wire == _BYTES:
            size, at = read_varint(data, at)
            at += size
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        elif wire == _START_GROUP:
            groups.append(number)
            if len(groups) > MAX_DEPTH:
                raise MessageError(f"nested deeper than {MAX_DEPTH}")
        elif wire != _END_GROUP:
            raise MessageError(f"illegal wire type {wire}")
        elif not groups or groups.pop() != number:
            raise MessageError("end of a group that did not begin")
        if not groups:
            return at
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7


def _truncated() -> MessageError:
    return MessageError("unexpected end of the message")
