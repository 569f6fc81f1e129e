"""An OpenAPI 2 document as the protobuf message openapi.v2.Document of gnostic.

Only what our own documents hold is written: few kinds of messages, each with strings, booleans and
messages below. Whatever a message has no field for, and begins with "x-", is a vendor extension,
whose value is YAML; JSON is YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from keepclose.model.json_values import JsonObject

Encoder = Callable[[Any], bytes]


def encode_document(document: JsonObject) -> bytes:
    """Return the message of a whole document."""
    return _encode(document, _DOCUMENT)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _delimited(number: int, content: bytes) -> bytes:
    """Return a field whose content is preceded by its length (wire type 2)."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _text(number: int) -> Encoder:
    return lambda value: _delimited(number, value.encode())


def _flag(number: int) -> Encoder:
    return lambda value: _varint(number << 3) + (b"\1" if value else b"\0")


def _texts(number: int) -> Encoder:
    return lambda values: b"".join(_delimited(number, value.encode()) for value in values)


def _message(number: int, fields: dict[str, Encoder]) -> Encoder:
    return lambda value: _delimited(number, _encode(value, fields))


def _wrapped(number: int, encode: Encoder) -> Encoder:
    """Return the encoder of a field whose message only holds another."""
    return lambda value: _delimited(number, encode(value))


def _named(number: int, encode: Encoder) -> Encoder:
    """Return the encoder of a map: a repeated message of a name and a value."""

    def write(values: JsonObject) -> bytes:
        entries = (
            _delimited(1, name.encode()) + _delimited(2, encode(value))
            for name, value in values.items()
        )
        return b"".join(_delimited(number, entry) for entry in entries)

    return write


def _any(number: int) -> Encoder:
    return lambda value: _delimited(number, _yaml(value))


def _yaml(value: Any) -> bytes:
    return _delimited(2, msgspec.json.encode(value))


def _encode(value: JsonObject, fields: dict[str, Encoder]) -> bytes:
    written = bytearray()
    extensions = {}
    for name, below in value.items():
        if name in fields:
            written += fields[name](below)
        elif name.startswith("x-"):
            extensions[name] = below
    if extensions:
        written += fields["x-"](extensions)
    return bytes(written)


def _schema(value: Any) -> bytes:
    return _encode(value, _SCHEMA)


def _parameter(value: JsonObject) -> bytes:
    """Return a ParametersItem: a Parameter, in it a body or one of the others."""
    if value["in"] == "body":
        return _delimited(1, _delimited(1, _encode(value, _BODY_PARAMETER)))
    fields = _QUERY_PARAMETER if value["in"] == "query" else _PATH_PARAMETER
    kind = 3 if value["in"] == "query" else 4
    return _delimited(1, _delimited(2, _delimited(kind, _encode(value, fields))))


def _parameters(number: int) -> Encoder:
    return lambda values: b"".join(_delimited(number, _parameter(value)) for value in values)


def _response(value: JsonObject) -> bytes:
    """Return a ResponseValue: one that is no reference."""
    return _delimited(1, _encode(value, _RESPONSE))


_SCHEMA: Final[dict[str, Encoder]] = {
    "$ref": _text(1),
    "format": _text(2),
    "description": _text(4),
    "default": _any(5),
    "required": _texts(19),
    # A oneof of a schema and a boolean.
    "additionalProperties": _wrapped(21, lambda value: _delimited(1, _schema(value))),
    "type": _wrapped(22, _text(1)),
    "items": _wrapped(23, lambda value: _delimited(1, _schema(value))),
    "properties": _wrapped(25, _named(1, _schema)),
    "x-": _named(31, _yaml),
}
_BODY_PARAMETER: Final[dict[str, Encoder]] = {
    "name": _text(2),
    "in": _text(3),
    "required": _flag(4),
    "schema": _message(5, _SCHEMA),
}
_PATH_PARAMETER: Final[dict[str, Encoder]] = {
    "required": _flag(1),
    "in": _text(2),
    "description": _text(3),
    "name": _text(4),
    "type": _text(5),
}
_QUERY_PARAMETER: Final[dict[str, Encoder]] = {
    "in": _text(2),
    "description": _text(3),
    "name": _text(4),
    "type": _text(6),
    "uniqueItems": _flag(20),
}
_RESPONSE: Final[dict[str, Encoder]] = {
    "description": _text(1),
    "schema": _wrapped(2, lambda value: _delimited(1, _schema(value))),
}
_OPERATION: Final[dict[str, Encoder]] = {
    "tags": _texts(1),
    "description": _text(3),
    "operationId": _text(5),
    "produces": _texts(6),
    "consumes": _texts(7),
    "parameters": _parameters(8),
    "responses": _wrapped(9, _named(1, _response)),
    "x-": _named(13, _yaml),
}
_PATH: Final[dict[str, Encoder]] = {
    "get": _message(2, _OPERATION),
    "put": _message(3, _OPERATION),
    "post": _message(4, _OPERATION),
    "delete": _message(5, _OPERATION),
    "patch": _message(8, _OPERATION),
    "parameters": _parameters(9),
}
_DOCUMENT: Final[dict[str, Encoder]] = {
    "swagger": _text(1),
    "info": _message(2, {"title": _text(1), "version": _text(2)}),
    "paths": _wrapped(8, _named(2, lambda value: _encode(value, _PATH))),
    "definitions": _wrapped(9, _named(1, _schema)),
}
