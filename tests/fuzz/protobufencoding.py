"""Objects as protobuf, from the same description by which the server reads them; for tests."""

from __future__ import annotations

from typing import Any

from keepclose.apiserver.schema.protobuf import MessageField, load_messages

JsonObject = dict[str, Any]


def encode_body(value: JsonObject, message: str) -> bytes:
    """Return the body that a Go client sends for an object; unknown members are left out."""
    kind = _text(1, value["apiVersion"]) + _text(2, value["kind"])
    return b"k8s\0" + _bytes(1, kind) + _bytes(2, encode_message(value, message))


def encode_message(value: JsonObject, message: str) -> bytes:
    """Return the fields of a message, one after another."""
    parts: list[bytes] = []
    for field in load_messages()[message]:
        if not field.name:
            parts.append(_bytes(field.number, encode_message(value, field.type)))
        elif value.get(field.name) is not None:
            parts.append(_field(field, value[field.name]))
    return b"".join(parts)


def _field(field: MessageField, value: Any) -> bytes:
    if field.map:
        return b"".join(
            _bytes(field.number, _text(1, key) + _value(2, field.type, member))
            for key, member in value.items()
        )
    if field.list:
        return b"".join(_value(field.number, field.type, member) for member in value)
    return _value(field.number, field.type, value)


def _value(number: int, type_name: str, value: Any) -> bytes:
    if type_name in ("int32", "int64", "bool"):
        return varint(number << 3) + varint(int(value) & (2**64 - 1))
    if type_name == "string":
        return _text(number, value)
    if type_name == "Quantity":
        return _bytes(number, _text(1, str(value)))
    if type_name == "IntOrString":
        is_text = isinstance(value, str)
        inner = _value(1, "int32", is_text)
        inner += _text(3, value) if is_text else _value(2, "int32", value)
        return _bytes(number, inner)
    if type_name in load_messages():
        return _bytes(number, encode_message(value, type_name))
    # Times, raw JSON and bytes have tests of their own.
    return b""


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())


def _bytes(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return a number as protobuf has it."""
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
