"""Values that have a form of their own in JSON, from the messages that carry them.

Times, quantities, ports by number or name, and field sets are messages in protobuf and plain
values in JSON. Each function takes one value as it was on the wire and returns what a Go client
would have written.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from keepclose.apiserver.schema.protobuf_wire import (
    MAX_DEPTH,
    MessageError,
    Value,
    signed32,
    signed64,
    split_fields,
)

# NB: naive on purpose, for all is UTC and the zone is written as Z.
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001
# Go's zero time, 0001-01-01T00:00:00Z, stands for no time at all.
_NO_TIME: Final = timedelta(seconds=-62135596800)
_INT: Final = 0
_STRING: Final = 1


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
    """Return a truth value."""
    return _number(value) != 0


def read_int32(value: Value) -> int:
    """Return a number of 32 bits."""
    return signed32(_number(value))


def read_int64(value: Value) -> int:
    """Return a number of 64 bits."""
    return signed64(_number(value))


def read_time(value: Value) -> str | None:
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
    """Return the number or the text, whichever counts."""
    found = split_fields(read_bytes(value))
    kind = read_int64(found.get(1, [_INT])[-1])
    if kind == _INT:
        return read_int32(found.get(2, [0])[-1])
    if kind == _STRING:
        return read_text(found.get(3, [b""])[-1])
    raise MessageError(f"neither a number nor a string, but {kind}")


def read_json(value: Value) -> Any:
    """Return the JSON value that a message carries as bytes; None for no bytes."""
    raw = split_fields(read_bytes(value)).get(1)
    text = read_bytes(raw[-1]) if raw else b""
    if not text:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"not JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(found)
    return found


READERS: Final[dict[str, Callable[[Value], Any]]] = {
    "FieldsV1": read_json,
    "IntOrString": read_int_or_string,
    "MicroTime": read_micro_time,
    "Quantity": read_quantity,
    "RawExtension": read_json,
    "Time": read_time,
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
    found = split_fields(data)
    nanos = read_int32(found.get(2, [0])[-1])
    micros = int(nanos / 1000) if with_fraction else 0
    try:
        since = timedelta(seconds=read_int64(found.get(1, [0])[-1]), microseconds=micros)
        return None if since == _NO_TIME else _EPOCH + since
    except OverflowError:
        raise MessageError("a time outside of the years 1 to 9999") from None


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for one in level
            if isinstance(one, dict | list)
            for below in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> MessageError:
    return MessageError(f"nested deeper than {MAX_DEPTH}")


def _wrong_wire_type() -> MessageError:
    return MessageError("wrong wire type")
