"""The wire format of protocol buffers, and the messages that have a form of their own in JSON.

A message is a run of fields, each with a number and one of six encodings. Lengths and ends are
checked here, so that nothing is ever read past the end; the caller knows what a number means.
Groups, long deprecated, are skipped. Times, quantities, int-or-strings and field sets are messages
in protobuf and plain values in JSON: each reader takes one value of the wire format and returns
what a Go client would have written. Bad input raises MessageError, and nothing else.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

# The value of a field: a number, bytes, or None for an encoding that no object of the API uses.
Value = int | bytes | None

MAX_DEPTH: Final = 100
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_START_GROUP: Final = 3
_END_GROUP: Final = 4
_FIXED32: Final = 5
_LAST_NUMBER: Final = (1 << 29) - 1
_MAX_VARINT_BYTES: Final = 10
_MASK32: Final = (1 << 32) - 1
_MASK64: Final = (1 << 64) - 1
# NB: naive on purpose, because all times are UTC and the zone is written as Z.
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001
# Go's zero time, 0001-01-01T00:00:00Z, means no time at all.
_NO_TIME: Final = timedelta(seconds=-62135596800)
_INT: Final = 0
_STRING: Final = 1


class MessageError(ValueError):
    """The reason why a message cannot be decoded."""

    def __init__(self, why: str) -> None:
        """Keep the reason; callers add the path."""
        super().__init__(why)
        self.why = why
        self.path: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the path and the reason."""
        return f"{'.'.join(self.path)}: {self.why}" if self.path else self.why


def split_fields(data: bytes) -> dict[int, list[Value]]:
    """Return the values of a message by field number, in the order of the message."""
    fields: dict[int, list[Value]] = {}
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
        if number in fields:
            fields[number].append(value)
        else:
            fields[number] = [value]
    return fields


def split_numbers(data: bytes) -> list[int]:
    """Return the numbers of a packed list."""
    numbers: list[int] = []
    at, end = 0, len(data)
    while at < end:
        number, at = read_varint(data, at)
        numbers.append(number)
    return numbers


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number that begins at an offset, and the offset after it."""
    value = shift = 0
    for byte in data[at : at + _MAX_VARINT_BYTES]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
    if shift == 7 * _MAX_VARINT_BYTES:
        raise MessageError("integer overflow")
    raise _truncated()


def signed32(value: int) -> int:
    """Return the 32-bit number in two's complement that a varint carries."""
    low = value & _MASK32
    return low - (1 << 32) if low >> 31 else low


def signed64(value: int) -> int:
    """Return the 64-bit number in two's complement that a varint carries."""
    return value - (1 << 64) if value >> 63 else value


def read_text(value: Value) -> str:
    """Return a string."""
    try:
        return read_bytes(value).decode()
    except UnicodeDecodeError:
        raise MessageError("invalid UTF-8") from None


def read_bytes(value: Value) -> bytes:
    """Return bytes as they are."""
    if value.__class__ is not bytes:
        raise _wrong_wire_type()
    return value


def read_base64(value: Value) -> str:
    """Return bytes as JSON carries them."""
    return b64encode(read_bytes(value)).decode()


def read_bool(value: Value) -> bool:
    """Return a boolean."""
    return _number(value) != 0


def read_int32(value: Value) -> int:
    """Return a number of 32 bits."""
    return signed32(_number(value))


def read_int64(value: Value) -> int:
    """Return a number of 64 bits."""
    return signed64(_number(value))


def read_time_message(value: Value) -> str | None:
    """Return a time in whole seconds; None for no time."""
    # NB: fractions are dropped, as Kubernetes does: its JSON has none.
    moment = _moment(value, with_fraction=False)
    return None if moment is None else f"{moment.isoformat()}Z"


def read_micro_time(value: Value) -> str | None:
    """Return a time in microseconds; None for no time."""
    moment = _moment(value, with_fraction=True)
    return None if moment is None else f"{moment.isoformat(timespec='microseconds')}Z"


def read_quantity(value: Value) -> str:
    """Return a quantity as it was written; a message without one is 0."""
    text = split_fields(read_bytes(value)).get(1)
    return read_text(text[-1]) if text else "0"


def read_int_or_string(value: Value) -> int | str:
    """Return the number or the text, as the type field says."""
    fields = split_fields(read_bytes(value))
    kind = read_int64(fields.get(1, [_INT])[-1])
    if kind == _INT:
        return read_int32(fields.get(2, [0])[-1])
    if kind == _STRING:
        return read_text(fields.get(3, [b""])[-1])
    raise MessageError(f"neither a number nor a string, but {kind}")


def read_json(value: Value) -> Any:
    """Return the JSON value that a message carries as bytes; None for no bytes."""
    raw = split_fields(read_bytes(value)).get(1)
    text = read_bytes(raw[-1]) if raw else b""
    if not text:
        return None
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"not JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(decoded)
    return decoded


def _skip(data: bytes, at: int, number: int, wire: int) -> int:
    """Return the offset after a value that is skipped."""
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


READERS: Final[dict[str, Callable[[Value], Any]]] = {
    "FieldsV1": read_json,
    "IntOrString": read_int_or_string,
    "MicroTime": read_micro_time,
    "Quantity": read_quantity,
    "RawExtension": read_json,
    "Time": read_time_message,
    "bool": read_bool,
    "bytes": read_base64,
    "int32": read_int32,
    "int64": read_int64,
    "string": read_text,
}


def _number(value: Value) -> int:
    if value.__class__ is not int:
        raise _wrong_wire_type()
    return value


def _moment(value: Value, *, with_fraction: bool) -> datetime | None:
    data = read_bytes(value)
    if not data:
        return None
    fields = split_fields(data)
    nanos = read_int32(fields.get(2, [0])[-1])
    micros = int(nanos / 1000) if with_fraction else 0
    try:
        since = timedelta(seconds=read_int64(fields.get(1, [0])[-1]), microseconds=micros)
        return None if since == _NO_TIME else _EPOCH + since
    except OverflowError:
        raise MessageError("a time outside of the years 1 to 9999") from None


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            if isinstance(container, dict | list)
            for child in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> MessageError:
    return MessageError(f"nested deeper than {MAX_DEPTH}")


def _wrong_wire_type() -> MessageError:
    return MessageError("wrong wire type")
