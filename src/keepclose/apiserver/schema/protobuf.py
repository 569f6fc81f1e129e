"""Objects that clients send as protobuf, converted to the JSON that they would have sent instead.

Go clients prefer this form for the built-in kinds. A body is four bytes, an envelope that names the
kind, and the object in it. The result follows Go's rules for JSON: an empty value of a field with
omitempty is absent, a pointer to an empty value is not, and embedded structs, nested in protobuf,
are inlined. The fields come from a data file that scripts/protobufs.py writes. Bad input raises
MessageError, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.apiserver.resources import SERVED
from keepclose.apiserver.schema.protobuf_wire import (
    READERS,
    MessageError,
    Value,
    read_bytes,
    read_text,
    split_fields,
    split_numbers,
)
from keepclose.model.json_values import VALUES_MAX, JsonObject

# Converts one value of the wire format.
_Reader = Callable[[Value], Any]
# Writes all values of a field into the object.
Setter = Callable[[JsonObject, list[Value]], None]

_MAGIC: Final = b"k8s\x00"
_DELETE_OPTIONS: Final = "DeleteOptions"
_MESSAGES: Final = {
    (resource.api_version, resource.kind): resource.definition.removeprefix("io.k8s.api.")
    for resource in SERVED
} | {
    ("autoscaling/v1", "Scale"): "autoscaling.v1.Scale",
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): "review.SelfSubjectAccessReview",
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): "review.SelfSubjectRulesReview",
    ("authentication.k8s.io/v1", "SelfSubjectReview"): "review.SelfSubjectReview",
}
# Reviews are answered and never stored, so the data file of served types has none. Fields that no
# rule reads are skipped.
_REVIEWS: Final[dict[str, tuple[str, ...]]] = {
    "review.SelfSubjectReview": ("1 metadata meta.v1.ObjectMeta",),
    "review.SelfSubjectAccessReview": (
        "1 metadata meta.v1.ObjectMeta",
        "2 spec review.SelfSubjectAccessReviewSpec",
    ),
    "review.SelfSubjectAccessReviewSpec": (
        "1 resourceAttributes *review.ResourceAttributes",
        "2 nonResourceAttributes *review.NonResourceAttributes",
    ),
    "review.SelfSubjectRulesReview": (
        "1 metadata meta.v1.ObjectMeta",
        "2 spec review.SelfSubjectRulesReviewSpec",
    ),
    "review.SelfSubjectRulesReviewSpec": ("1 namespace string",),
    "review.ResourceAttributes": (
        "1 namespace string",
        "2 verb string",
        "3 group string",
        "4 version string",
        "5 resource string",
        "6 subresource string",
        "7 name string",
    ),
    "review.NonResourceAttributes": ("1 path string", "2 verb string"),
}
_SCALARS: Final = {"bool": False, "int32": 0, "int64": 0, "string": ""}
_NUMBERS: Final = frozenset({"bool", "int32", "int64"})
_EMPTY_VALUE: Final[list[Value]] = [b""]


class MessageField(NamedTuple):
    """A field of a message as the data file describes it."""

    number: int
    # The name in JSON; empty for an embedded struct, whose members are inlined.
    name: str
    # int32, Time, core.v1.Probe ...
    type: str
    pointer: bool
    list: bool
    map: bool
    # Whether the member is written even when it is empty.
    keep: bool
    # Whether Go's zero time is absent rather than null.
    omitzero: bool


class _Values(threading.local):
    """How many more values the body that a thread decodes may have.

    An empty message is two bytes long, and may expand to an object with other objects in it.
    """

    left = 0

    def take(self, count: int) -> None:
        """Count values; raises MessageError when there are too many."""
        self.left -= count
        if self.left < 0:
            raise MessageError(f"exceeded max values of {VALUES_MAX}")


_values: Final = _Values()


def decode_protobuf(body: bytes) -> JsonObject:
    """Return the object of a body; raises MessageError when the body has none."""
    if not body.startswith(_MAGIC):
        raise MessageError(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    if len(body) == len(_MAGIC):
        raise MessageError("empty body")
    envelope = split_fields(body[len(_MAGIC) :])
    type_meta = split_fields(_join(envelope.get(1, _EMPTY_VALUE)))
    version = read_text(type_meta.get(1, _EMPTY_VALUE)[-1])
    kind = read_text(type_meta.get(2, _EMPTY_VALUE)[-1])
    for name, value in (("Kind", kind), ("apiVersion", version)):
        if not value:
            raise MessageError(f"Object '{name}' is missing in a protobuf body")
    # NB: DeleteOptions belong to every group; clients send the group of the object they delete.
    message = "meta.v1.DeleteOptions" if kind == _DELETE_OPTIONS else _MESSAGES.get((version, kind))
    if message is None:
        raise MessageError(f'no kind "{kind}" is registered for version "{version}"')
    raw = read_bytes(envelope.get(2, _EMPTY_VALUE)[-1])
    _values.left = VALUES_MAX
    members: JsonObject = _message_reader(message)(raw)
    return {"kind": kind, "apiVersion": version, **members}


@cache
def load_messages() -> dict[str, tuple[MessageField, ...]]:
    """Return the fields of every message by names such as core.v1.Service."""
    data = files(__package__).joinpath("protobuf.json").read_bytes()
    texts = msgspec.json.decode(data, type=dict[str, tuple[str, ...]])
    return {name: tuple(_read_field(text) for text in lines) for name, lines in texts.items()}


@cache
def _load_reviews() -> dict[str, tuple[MessageField, ...]]:
    return {name: tuple(_read_field(text) for text in lines) for name, lines in _REVIEWS.items()}


def _read_field(text: str) -> MessageField:
    number, name, shape, *marks = text.split(" ")
    return MessageField(
        number=int(number),
        name="" if name == "-" else name,
        type=shape.removeprefix("*").removeprefix("map").removeprefix("[]"),
        pointer=shape.startswith("*"),
        list=shape.startswith("[]"),
        map=shape.startswith("map[]"),
        keep="keep" in marks,
        omitzero="omitzero" in marks,
    )


@cache
def _message_reader(name: str) -> _Reader:
    """Return the reader of a message; no message contains itself, so the recursion ends."""
    fields = _load_reviews()[name] if name in _REVIEWS else load_messages()[name]
    names = {field.number: field.name for field in fields}
    setters = {field.number: _setter(field) for field in fields}
    # Fields that are present when nothing was sent: structs always are, with their own zero values.
    structs = [
        (field.number, setters[field.number])
        for field in fields
        if not (field.pointer or field.list or field.map or field.type in _SCALARS)
        and field.type != "bytes"
    ]
    zero_values = {
        field.name: _zero_value(field)
        for field in fields
        if field.keep and not any(field.number == number for number, _ in structs)
    }

    def read(value: Value) -> JsonObject:
        _values.take(1)
        sent = split_fields(read_bytes(value))
        obj: JsonObject = zero_values.copy()
        number = 0
        try:
            for number, values in sent.items():
                if number in setters:
                    setters[number](obj, values)
        except MessageError as error:
            if names[number]:
                error.path = (names[number], *error.path)
            raise
        for number, setter in structs:
            if number not in sent:
                setter(obj, _EMPTY_VALUE)
        return obj

    return read


def _zero_value(field: MessageField) -> Any:
    if field.pointer or field.list or field.map:
        return None
    return _SCALARS.get(field.type)


def _setter(field: MessageField) -> Setter:
    read = _reader(field.type)
    if field.map:
        return _map_setter(field, read)
    if field.list:
        return _list_setter(field, read)
    if field.type in _SCALARS or field.type == "bytes":
        return _scalar_setter(field, read)
    return _struct_setter(field, read)


def _reader(type_name: str) -> _Reader:
    return READERS.get(type_name) or _message_reader(type_name)


def _scalar_setter(field: MessageField, read: _Reader) -> Setter:
    name, kept = field.name, field.keep or field.pointer

    def put(obj: JsonObject, values: list[Value]) -> None:
        value = read(values[-1])
        if value or kept:
            obj[name] = value

    return put


def _struct_setter(field: MessageField, read: _Reader) -> Setter:
    name, omitzero = field.name, field.omitzero

    def put(obj: JsonObject, values: list[Value]) -> None:
        # NB: a struct that is sent in parts is the concatenation of the parts.
        value = read(values[0] if len(values) == 1 else _join(values))
        if value is not None or not omitzero:
            obj[name] = value

    def spread(obj: JsonObject, values: list[Value]) -> None:
        obj.update(read(_join(values)))

    return put if name else spread


def _list_setter(field: MessageField, read: _Reader) -> Setter:
    name, numbers = field.name, field.type in _NUMBERS

    def put(obj: JsonObject, values: list[Value]) -> None:
        sent = _unpack(values) if numbers else values
        if sent:
            _values.take(len(sent))
            obj[name] = [read(value) for value in sent]

    return put


def _map_setter(field: MessageField, read: _Reader) -> Setter:
    name = field.name

    def put(obj: JsonObject, values: list[Value]) -> None:
        entries: JsonObject = {}
        _values.take(len(values))
        for value in values:
            entry = split_fields(read_bytes(value))
            key = read_text(entry.get(1, _EMPTY_VALUE)[-1])
            entries[key] = read(entry.get(2, _EMPTY_VALUE)[-1])
        obj[name] = entries

    return put


def _unpack(values: list[Value]) -> list[Value]:
    sent: list[Value] = []
    for value in values:
        if isinstance(value, bytes):
            sent.extend(split_numbers(value))
        else:
            sent.append(value)
    return sent


def _join(values: list[Value]) -> bytes:
    return b"".join([read_bytes(value) for value in values])
