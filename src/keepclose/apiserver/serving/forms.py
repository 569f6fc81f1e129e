"""The form in which a client wants its answer: whole objects, a table, or metadata alone.

Read from the Accept header, of which the first acceptable part counts. JSON is always what is
sent, or YAML where that is asked for; a client that takes only protobuf is refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import msgspec
import yaml

from keepclose.apiserver.conversion import from_stored
from keepclose.apiserver.failures import bad_request, not_acceptable
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.storage.entries import Entry
from keepclose.apiserver.tables.table import Include, make_table

JSON: Final = "application/json"
YAML: Final = "application/yaml"
_SERVED: Final = (JSON, YAML)
_META: Final = "meta.k8s.io"


class Shape(StrEnum):
    """What is sent in place of the objects."""

    OBJECTS = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class Form(NamedTuple):
    """How to send an answer."""

    shape: Shape = Shape.OBJECTS
    version: str = "v1"
    media_type: str = JSON


@lru_cache(maxsize=256)
def read_accept(header: str) -> Form:
    """Return the form that the Accept header asks for."""
    if not header:
        return Form()
    for part in header.split(","):
        media_type, *parameters = (piece.strip() for piece in part.split(";"))
        named = dict(piece.split("=", 1) for piece in parameters if "=" in piece)
        if media_type in ("*/*", "application/*"):
            media_type = JSON
        if media_type not in _SERVED:
            continue
        asked = named.get("as", "")
        if not asked:
            return Form(media_type=media_type)
        if named.get("g") != _META or named.get("v") not in ("v1", "v1beta1"):
            continue
        if asked in set(Shape):
            return Form(Shape(asked), named["v"], media_type)
    raise not_acceptable(_SERVED)


def check_include(include: str) -> None:
    """Refuse an includeObject that says nothing of how much of an object its row has."""
    if include not in ("", "Metadata", "Object", "None"):
        raise bad_request(f'unrecognized includeObject value: "{include}"')


def encode(value: Any, media_type: str = JSON) -> bytes:
    """Return a JSON value as the bytes to send."""
    if media_type == YAML:
        return yaml.safe_dump(value, sort_keys=True).encode()
    return msgspec.json.encode(value)


def render_entry(resource: Resource, entry: Entry, form: Form, include: str = "") -> bytes:
    """Return one object in the form asked for."""
    if form == _PLAIN and not resource.stored_as:
        return entry.data
    found = from_stored(resource, msgspec.json.decode(entry.data))
    return encode(shape_object(resource, found, form, include), form.media_type)


def shape_object(
    resource: Resource, found: dict[str, Any], form: Form, include: str = ""
) -> dict[str, Any]:
    """Return an object, or what stands for it, in the shape asked for."""
    match form.shape:
        case Shape.OBJECTS:
            return found
        case Shape.TABLE:
            metadata = {"resourceVersion": found["metadata"].get("resourceVersion", "")}
            return _table(resource, [found], form, include, metadata)
        case _:
            return _metadata_of(found, form.version)


def render_list(
    resource: Resource,
    entries: Sequence[Entry],
    form: Form,
    metadata: dict[str, Any],
    include: str = "",
) -> bytes:
    """Return a list of objects in the form asked for."""
    if form == _PLAIN and not resource.stored_as:
        # NB: the objects are sent as they are stored; nothing is decoded.
        head = f'{{"kind":"{resource.list_kind}","apiVersion":"{resource.api_version}","metadata":'
        items = b",".join([entry.data for entry in entries])
        return b"".join((head.encode(), encode(metadata), b',"items":[', items, b"]}"))
    objects = [from_stored(resource, msgspec.json.decode(entry.data)) for entry in entries]
    if form.shape is Shape.TABLE:
        body = _table(resource, objects, form, include, metadata)
    elif form.shape is Shape.OBJECTS:
        body = {
            "kind": resource.list_kind,
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": objects,
        }
    else:
        body = {
            "kind": Shape.METADATA_LIST.value,
            "apiVersion": f"{_META}/{form.version}",
            "metadata": metadata,
            "items": [_metadata_of(one, form.version) for one in objects],
        }
    return encode(body, form.media_type)


_PLAIN: Final = Form()


def _table(
    resource: Resource,
    objects: Sequence[dict[str, Any]],
    form: Form,
    include: str,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    check_include(include)
    table = make_table(
        resource,
        objects,
        now=time.time(),
        include=cast("Include", include or "Metadata"),
        list_metadata=metadata,
    )
    table["apiVersion"] = f"{_META}/{form.version}"
    return table


def _metadata_of(found: dict[str, Any], version: str) -> dict[str, Any]:
    return {
        "kind": Shape.METADATA.value,
        "apiVersion": f"{_META}/{version}",
        "metadata": found["metadata"],
    }
