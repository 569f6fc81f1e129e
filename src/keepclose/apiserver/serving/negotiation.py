"""Negotiates the form of a response and renders it: whole objects, a Table, or metadata alone.

The first acceptable part of the Accept header counts, as in kube-apiserver. The server sends JSON,
or YAML on request; a client that accepts only protobuf gets 406.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import msgspec
import yaml

from keepclose.apiserver.printing.table import Include, make_table
from keepclose.apiserver.registry.events import from_stored
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.status_errors import bad_request, not_acceptable
from keepclose.apiserver.storage.entries import Entry
from keepclose.kube.yaml_nodes import STR, plain_tag

JSON_FORM: Final = "application/json"
YAML_FORM: Final = "application/yaml"
_SERVED: Final = (JSON_FORM, YAML_FORM)
_META: Final = "meta.k8s.io"
# NB: libyaml is about five times as fast.
_SafeDumper: Final[Any] = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


class _Dumper(_SafeDumper):  # type: ignore[misc] # it is one of two classes
    """Quotes every string that a YAML parser would take for another type, such as y or 1e3."""


def _represent_text(dumper: Any, text: str) -> Any:
    # NB: by the rules of the dumper, those of YAML 1.1, these words are strings.
    style = None if plain_tag(text) == STR else '"'
    return dumper.represent_scalar(STR, text, style=style)


_Dumper.add_representer(str, _represent_text)


class ResponseShape(StrEnum):
    """The kind that is sent in place of the objects."""

    OBJECTS = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class ResponseForm(NamedTuple):
    """The shape, its API version and the media type of a response."""

    shape: ResponseShape = ResponseShape.OBJECTS
    version: str = "v1"
    media_type: str = JSON_FORM


_PLAIN: Final = ResponseForm()


@lru_cache(maxsize=256)
def read_accept(header: str) -> ResponseForm:
    """Return the form that the Accept header requests. Raises StatusError 406."""
    if not header:
        return ResponseForm()
    for part in header.split(","):
        # NB: a header may have 60,000 parts, so parts of other media types are skipped early.
        media_type, _, rest = part.partition(";")
        media_type = media_type.strip()
        if media_type in ("*/*", "application/*"):
            media_type = JSON_FORM
        if media_type not in _SERVED:
            continue
        parameters = (parameter.strip() for parameter in rest.split(";"))
        values = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        shape = values.get("as", "")
        if not shape:
            return ResponseForm(media_type=media_type)
        if values.get("g") != _META or values.get("v") not in ("v1", "v1beta1"):
            continue
        if shape in set(ResponseShape):
            return ResponseForm(ResponseShape(shape), values["v"], media_type)
    raise not_acceptable(_SERVED)


def check_include(include: str) -> None:
    """Reject an unknown value of includeObject."""
    if include not in ("", "Metadata", "Object", "None"):
        raise bad_request(f'unrecognized includeObject value: "{include}"')


def encode(value: Any, media_type: str = JSON_FORM) -> bytes:
    """Return a JSON value encoded in the media type."""
    if media_type == YAML_FORM:
        text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True)
        return text.encode()
    return msgspec.json.encode(value)


def render_entry(resource: Resource, entry: Entry, form: ResponseForm, include: str = "") -> bytes:
    """Return one object in the requested form."""
    if form == _PLAIN and not resource.stored_as:
        return entry.data
    obj = from_stored(resource, msgspec.json.decode(entry.data))
    return encode(shape_object(resource, obj, form, include), form.media_type)


def shape_object(
    resource: Resource, obj: dict[str, Any], form: ResponseForm, include: str = ""
) -> dict[str, Any]:
    """Return an object in the requested shape."""
    match form.shape:
        case ResponseShape.OBJECTS:
            return obj
        case ResponseShape.TABLE:
            metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return _table(resource, [obj], form, include, metadata)
        case _:
            return _metadata_of(obj, form.version)


def render_list(
    resource: Resource,
    entries: Sequence[Entry],
    form: ResponseForm,
    metadata: dict[str, Any],
    include: str = "",
) -> bytes:
    """Return a list of objects in the requested form."""
    return ListRendering(resource, form, metadata, include).whole(entries)


class ListRendering:
    """Renders a list in portions: its beginning, some items at a time, its end."""

    def __init__(
        self, resource: Resource, form: ResponseForm, metadata: dict[str, Any], include: str = ""
    ) -> None:
        """Check the requested form."""
        self.form = form
        # NB: plain objects are sent as they are stored, without decoding.
        self.is_plain = form == _PLAIN and not resource.stored_as
        self._resource = resource
        self._include = include
        if form.shape is ResponseShape.TABLE:
            self._head = _table(resource, [], form, include, metadata)
            self._items_key = "rows"
        elif form.shape is ResponseShape.OBJECTS:
            self._head = {
                "kind": resource.list_kind,
                "apiVersion": resource.api_version,
                "metadata": metadata,
            }
            self._items_key = "items"
        else:
            self._head = {
                "kind": ResponseShape.METADATA_LIST.value,
                "apiVersion": f"{_META}/{form.version}",
                "metadata": metadata,
            }
            self._items_key = "items"
        self._head.pop(self._items_key, None)

    def whole(self, entries: Sequence[Entry]) -> bytes:
        """Return the whole list."""
        items = self.items(entries, first=True) if entries else b""
        return b"".join((self.begin(empty=not entries), items, self.end()))

    def begin(self, *, empty: bool) -> bytes:
        """Return the bytes before the items."""
        if self.form.media_type == YAML_FORM:
            # NB: keys are sorted, so some follow the items.
            before = {key: value for key, value in self._head.items() if key < self._items_key}
            return (
                encode(before, YAML_FORM) + f"{self._items_key}:{' []' if empty else ''}\n".encode()
            )
        return encode(self._head)[:-1] + f',"{self._items_key}":['.encode()

    def items(self, entries: Sequence[Entry], *, first: bool) -> bytes:
        """Return some items; those after the first ones begin with a separator."""
        comma = b"" if first else b","
        if self.is_plain:
            return comma + b",".join([entry.data for entry in entries])
        resource = self._resource
        objects = [from_stored(resource, msgspec.json.decode(entry.data)) for entry in entries]
        if self.form.shape is ResponseShape.TABLE:
            items = _table(resource, objects, self.form, self._include, {})["rows"]
        elif self.form.shape is ResponseShape.OBJECTS:
            items = objects
        else:
            items = [_metadata_of(obj, self.form.version) for obj in objects]
        if self.form.media_type == YAML_FORM:
            return encode(items, YAML_FORM)
        return comma + encode(items)[1:-1]

    def end(self) -> bytes:
        """Return the bytes after the items."""
        if self.form.media_type != YAML_FORM:
            return b"]}"
        after = {key: value for key, value in self._head.items() if key > self._items_key}
        return encode(after, YAML_FORM) if after else b""


def _table(
    resource: Resource,
    objects: Sequence[dict[str, Any]],
    form: ResponseForm,
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


def _metadata_of(obj: dict[str, Any], version: str) -> dict[str, Any]:
    return {
        "kind": ResponseShape.METADATA.value,
        "apiVersion": f"{_META}/{version}",
        "metadata": obj["metadata"],
    }
