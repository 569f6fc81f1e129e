"""Decodes the bodies of answers: one object, or a page of a list.

A list is decoded at once. When anything in it violates the types of its kind, its items are decoded
one by one: nulls count as absent, as in the API, and an item that still cannot be decoded is
rejected with its cause, so that one bad object never hides the others.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from keepclose.kube.errors import CHECK_SERVER, BrokenStream, UnreadableObject
from keepclose.kube.requests import Kind
from keepclose.model.decoding import WHOLE_OBJECT, Rejected, convert_as
from keepclose.model.field_errors import FieldError, invalid
from keepclose.model.meta import ObjectMeta

# What msgspec raises for bytes that are not JSON.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_object_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_list_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_T = TypeVar("_T")


class Page(msgspec.Struct, Generic[_T]):
    """Some or all objects of a list.

    `resource_version` is that of the list, from which a watch may continue. An empty
    `continue_token` marks the last page; `remaining` is the server's estimate, if it sent one.
    `rejected` names the objects ("namespace/name") that could not be decoded, with the cause.
    """

    items: list[_T]
    resource_version: str = ""
    continue_token: str = ""
    remaining: int | None = None
    rejected: list[tuple[str, FieldError]] = []


class PartialObject(msgspec.Struct, frozen=True):
    """The metadata of an object of any kind."""

    metadata: ObjectMeta = ObjectMeta()


PARTIAL: Final = Kind("meta.k8s.io", "v1", "", "PartialObjectMetadata", True, PartialObject)


class _ListMeta(msgspec.Struct):
    resource_version: str | None = msgspec.field(default=None, name="resourceVersion")
    continue_token: str | None = msgspec.field(default=None, name="continue")
    remaining: int | None = msgspec.field(default=None, name="remainingItemCount")


class _List(msgspec.Struct, Generic[_T]):
    # NB: items has no default. An answer without it, such as that of a proxy, must not pass for an
    # empty list: a cache would drop all objects.
    items: list[_T] | None
    metadata: _ListMeta | None = None


def object_decoder(struct: type[_T]) -> msgspec.json.Decoder[_T]:
    """Return the shared decoder for objects of a struct."""
    decoder = _object_decoders.get(struct)
    if decoder is None:
        decoder = _object_decoders[struct] = msgspec.json.Decoder(struct)
    return decoder


def _list_decoder(struct: type[_T]) -> msgspec.json.Decoder[_List[_T]]:
    decoder = _list_decoders.get(struct)
    if decoder is None:
        decoder = _list_decoders[struct] = msgspec.json.Decoder(_List[struct])  # type: ignore[valid-type]
    return decoder


def decode_object(kind: Kind[_T], body: bytes, *, where: str) -> _T:
    """Return the object of an answer.

    Raise UnreadableObject when it violates the types of its kind, and BrokenStream, with the
    request `where`, when the answer is not a JSON object.
    """
    result = read_object(kind, body)
    if isinstance(result, Rejected):
        raise UnreadableObject(kind_and_name_of(body), result.cause)
    if result is None:
        raise _not_the_api(where, "the answer is not a JSON object")
    return result


def decode_page(kind: Kind[_T], body: bytes, *, where: str) -> Page[_T]:
    """Return the page of an answer; objects that cannot be decoded are in `rejected`."""
    rejected: list[tuple[str, FieldError]] = []
    try:
        decoded = _list_decoder(kind.struct).decode(body)
        items, metadata = decoded.items or [], decoded.metadata
    except NOT_JSON:
        try:
            raw_list = _list_decoder(msgspec.Raw).decode(body)
        except NOT_JSON as error:
            raise _not_the_api(where, f"the answer is not a list: {error}") from error
        items, metadata = [], raw_list.metadata
        for raw in raw_list.items or []:
            result = read_object(kind, raw)
            if result is None:
                rejected.append(
                    (kind_and_name_of(raw), invalid(WHOLE_OBJECT, None, "is not a map"))
                )
            elif isinstance(result, Rejected):
                rejected.append((kind_and_name_of(raw), result.cause))
            else:
                items.append(result)
    metadata = metadata or _ListMeta()
    return Page(
        items=items,
        resource_version=metadata.resource_version or "",
        continue_token=metadata.continue_token or "",
        remaining=metadata.remaining,
        rejected=rejected,
    )


def read_object(kind: Kind[_T], data: bytes | msgspec.Raw) -> _T | Rejected | None:
    """Return the object of a JSON text, why it is rejected, or None when it is not an object."""
    try:
        return object_decoder(kind.struct).decode(data)
    except NOT_JSON:
        plain = _read_plain(data)
    return None if plain is None else convert_as(kind.struct, plain)


def read_metadata(kind: Kind[_T], data: bytes | msgspec.Raw) -> _T | Rejected:
    """Return an object with its metadata alone, whatever the rest of it contains."""
    plain = _read_plain(data) or {}
    return convert_as(kind.struct, {"metadata": plain.get("metadata")})


def kind_and_name_of(data: bytes | msgspec.Raw) -> str:
    """Return "namespace/name" of an object, or "name" outside namespaces; "?" when it has none."""
    metadata = (_read_plain(data) or {}).get("metadata")
    if not isinstance(metadata, dict):
        return "?"
    namespace, name = metadata.get("namespace"), metadata.get("name") or "?"
    return f"{namespace}/{name}" if namespace else str(name)


def _read_plain(data: bytes | msgspec.Raw) -> dict[str, Any] | None:
    try:
        plain = msgspec.json.decode(data)
    except NOT_JSON:
        return None
    return plain if isinstance(plain, dict) else None


def _not_the_api(where: str, reason: str) -> BrokenStream:
    return BrokenStream(where, reason, fix=CHECK_SERVER)
