"""Protobuf bodies: bad ones raise MessageError alone, and what is read can be sent again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzzbounds import require
from fuzzobjects import OBJECTS
from fuzzserver import BY_NAME, Bed
from protobufencoding import encode_body

from keepclose.apiserver.schema.protobuf import decode_protobuf
from keepclose.apiserver.schema.protobuf_wire import MessageError

PROTOBUF = "application/vnd.kubernetes.protobuf"


def seeds() -> Iterator[bytes]:
    """Yield every object, and messages that no client sends."""
    for name, value in OBJECTS.items():
        message = BY_NAME[name].definition.removeprefix("io.k8s.api.")
        yield encode_body(value, message)
    yield b"k8s\0"
    yield b"k8s\0\x0a\x02\x0a\x00"
    yield b"k8s\0" + b"\x0b" * 200
    yield b"k8s\0\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"


def check(data: bytes) -> None:
    """Decode the body; encode what was read and decode that; send it to the API."""
    try:
        value = decode_protobuf(data)
    except MessageError as error:
        require(str(error), "an error without a text")
        return
    msgspec.json.encode(value)
    resource = next(
        (
            resource
            for resource in BY_NAME.values()
            if (resource.api_version, resource.kind) == (value["apiVersion"], value["kind"])
        ),
        None,
    )
    if resource is None:
        return
    message = resource.definition.removeprefix("io.k8s.api.")
    once = decode_protobuf(encode_body(value, message))
    twice = decode_protobuf(encode_body(once, message))
    require(once == twice, "what is read reads differently when it is sent again")
    Bed().create(resource, data, media_type=PROTOBUF)
