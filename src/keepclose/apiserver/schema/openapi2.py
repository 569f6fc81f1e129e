"""OpenAPI 2: one document for everything, as JSON and as the protobuf that old kubectls require.

kubectl 1.20 reads no other form than protobuf, validates with it on the client side, and looks in
the paths whether PATCH of a kind takes `dryRun`. The protobuf form is the message
openapi.v2.Document of gnostic, of which only the parts are written that our own documents have:
strings, booleans and messages. A member that a message has no field for and that begins with "x-"
is a vendor extension, whose value is YAML; JSON is YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec

from keepclose.apiserver.schema.openapi_types import (
    OPENAPI_2,
    TITLE,
    Document,
    make_document,
    render_schemas,
)
from keepclose.apiserver.schema.operations import (
    PARAMETERS,
    PATCH,
    PATCH_TYPES,
    PATH_PARAMETERS,
    ApiOperation,
    group_paths,
    resource_operations,
)
from keepclose.apiserver.schema.types import META
from keepclose.model.gates import FeatureGates
from keepclose.model.json_values import JsonObject

Encoder = Callable[[Any], bytes]
# NB: clients ask for "...spec.v2@v1.0+protobuf", but a response of that type breaks every kubectl:
# a media type may not contain "@".
OPENAPI2_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_COMMON_DEFINITIONS: Final = tuple(
    META + name
    for name in (
        "APIGroup",
        "APIGroupList",
        "APIResourceList",
        "APIVersions",
        "Status",
        "WatchEvent",
    )
)
_RESPONSE_TYPES: Final = ["application/json", "application/yaml"]


def encode_document(document: JsonObject) -> bytes:
    """Return the message of a whole document."""
    return _encode(document, _DOCUMENT)


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


def _parameters(number: int) -> Encoder:
    return lambda values: b"".join(_delimited(number, _parameter(value)) for value in values)


def _response(value: JsonObject) -> bytes:
    """Return a ResponseValue that is no reference."""
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


@lru_cache(maxsize=4)
def json_document(gates: FeatureGates) -> Document:
    """Return the document as JSON."""
    return make_document(msgspec.json.encode(build_document(gates)))


@lru_cache(maxsize=4)
def protobuf_document(gates: FeatureGates) -> Document:
    """Return the document as protobuf."""
    return make_document(encode_document(build_document(gates)), OPENAPI2_PROTOBUF)


def build_document(gates: FeatureGates) -> JsonObject:
    """Return the document as a JSON value."""
    operations = [
        operation
        for resources in group_paths().values()
        for resource in resources
        for operation in resource_operations(resource)
    ]
    names = {
        name for operation in operations for name in (operation.body, operation.answer) if name
    }
    return {
        "swagger": "2.0",
        "info": TITLE,
        "paths": _paths(operations),
        "definitions": render_schemas(sorted(names.union(_COMMON_DEFINITIONS)), gates, OPENAPI_2),
    }


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _parameter(value: JsonObject) -> bytes:
    """Return a ParametersItem: a Parameter, which holds a body or one of the other kinds."""
    if value["in"] == "body":
        return _delimited(1, _delimited(1, _encode(value, _BODY_PARAMETER)))
    fields = _QUERY_PARAMETER if value["in"] == "query" else _PATH_PARAMETER
    kind = 3 if value["in"] == "query" else 4
    return _delimited(1, _delimited(2, _delimited(kind, _encode(value, fields))))


def _paths(operations: list[ApiOperation]) -> JsonObject:
    paths: JsonObject = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _render_operation(operation)
    for url_path, path in paths.items():
        parameters = [
            {"name": name, "in": "path", "description": text, "required": True, "type": "string"}
            for name, text in PATH_PARAMETERS.items()
            if f"{{{name}}}" in url_path
        ]
        if parameters:
            path["parameters"] = parameters
    return dict(sorted(paths.items()))


def _render_operation(operation: ApiOperation) -> JsonObject:
    parameters: list[JsonObject] = []
    if operation.body:
        body = {"name": "body", "in": "body", "schema": {"$ref": OPENAPI_2.prefix + operation.body}}
        parameters.append(body if operation.method == "delete" else body | {"required": True})
    parameters += [
        {
            "name": name,
            "in": "query",
            "description": PARAMETERS[name][1],
            "type": PARAMETERS[name][0],
            "uniqueItems": True,
        }
        for name in operation.query
    ]
    answer = {"description": "OK", "schema": {"$ref": OPENAPI_2.prefix + operation.answer}}
    responses = {"200": answer, "401": {"description": "Unauthorized"}}
    if operation.method in ("post", "put", "patch"):
        responses["201"] = answer | {"description": "Created"}
    return {
        "tags": [operation.tag],
        "description": operation.description,
        "operationId": operation.id,
        "produces": _RESPONSE_TYPES,
        "consumes": list(PATCH_TYPES) if operation.body == PATCH else ["*/*"],
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {
            "group": operation.group,
            "kind": operation.kind,
            "version": operation.version,
        },
    }
