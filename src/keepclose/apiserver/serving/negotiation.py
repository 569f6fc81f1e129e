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
# About five times as quick where libyaml is there.
_SafeDumper: Final[Any] = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


class _Dumper(_SafeDumper):  # type: ignore[misc] # it is one of two classes
    """Quotes every string that a reader of YAML would take for something else, such as y or 1e3."""


def _represent_text(dumper: Any, text: str) -> Any:
    # NB: the dumper's own rules are those of YAML 1.1, to which these words are strings.
    style = None if plain_tag(text) == STR else '"'
    return dumper.represent_scalar(STR, text, style=style)


_Dumper.add_representer(str, _represent_text)


class ResponseShape(StrEnum):
    """What is sent in place of the objects."""

    OBJECTS = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class ResponseForm(NamedTuple):
    """How to send an answer."""

    shape: ResponseShape = ResponseShape.OBJECTS
    version: str = "v1"
    media_type: str = JSON_FORM


@lru_cache(maxsize=256)
def read_accept(header: str) -> ResponseForm:
    """Return the form that the Accept header asks for."""
    if not header:
        return ResponseForm()
    for part in header.split(","):
        # NB: a header has room for 60,000 parts, of which most cannot be served.
        media_type, _, rest = part.partition(";")
        media_type = media_type.strip()
        if media_type in ("*/*", "application/*"):
            media_type = JSON_FORM
        if media_type not in _SERVED:
            continue
        parameters = (piece.strip() for piece in rest.split(";"))
        named = dict(piece.split("=", 1) for piece in parameters if "=" in piece)
        asked = named.get("as", "")
        if not asked:
            return ResponseForm(media_type=media_type)
        if named.get("g") != _META or named.get("v") not in ("v1", "v1beta1"):
            continue
        if asked in set(ResponseShape):
            return ResponseForm(ResponseShape(asked), named["v"], media_type)
    raise not_acceptable(_SERVED)


def check_include(include: str) -> None:
    """Refuse an includeObject that says nothing of how much of an object its row has."""
    if include not in ("", "Metadata", "Object", "None"):
        raise bad_request(f'unrecognized includeObject value: "{include}"')


def encode(value: Any, media_type: str = JSON_FORM) -> bytes:
    """Return a JSON value as the bytes to send."""
    if media_type == YAML_FORM:
        text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True)
        return text.encode()
    return msgspec.json.encode(value)


def render_entry(resource: Resource, entry: Entry, form: ResponseForm, include: str = "") -> bytes:
    """Return one object in the form asked for."""
    if form == _PLAIN and not resource.stored_as:
        return entry.data
    found = from_stored(resource, msgspec.json.decode(entry.data))
    return encode(shape_object(resource, found, form, include), form.media_type)


def shape_object(
    resource: Resource, found: dict[str, Any], form: ResponseForm, include: str = ""
) -> dict[str, Any]:
    """Return an object, or what stands for it, in the shape asked for."""
    match form.shape:
        case ResponseShape.OBJECTS:
            return found
        case ResponseShape.TABLE:
            metadata = {"resourceVersion": found["metadata"].get("resourceVersion", "")}
            return _table(resource, [found], form, include, metadata)
        case _:
            return _metadata_of(found, form.version)


def render_list(
    resource: Resource,
    entries: Sequence[Entry],
    form: ResponseForm,
    metadata: dict[str, Any],
    include: str = "",
) -> bytes:
    """Return a list of objects in the form asked for."""
    return ListRendering(resource, form, metadata, include).whole(entries)


class ListRendering:
    """How a list is rendered piece by piece: the beginning, some items at a time, the end."""

    def __init__(
        self, resource: Resource, form: ResponseForm, metadata: dict[str, Any], include: str = ""
    ) -> None:
        """Check what is asked for."""
        self.form = form
        # NB: the objects are sent as they are stored; nothing is decoded.
        self.is_plain = form == _PLAIN and not resource.stored_as
        self._resource = resource
        self._include = include
        if form.shape is ResponseShape.TABLE:
            self._list = _table(resource, [], form, include, metadata)
            self._name = "rows"
        elif form.shape is ResponseShape.OBJECTS:
            self._list = {
                "kind": resource.list_kind,
                "apiVersion": resource.api_version,
                "metadata": metadata,
            }
            self._name = "items"
        else:
            self._list = {
                "kind": ResponseShape.METADATA_LIST.value,
                "apiVersion": f"{_META}/{form.version}",
                "metadata": metadata,
            }
            self._name = "items"
        self._list.pop(self._name, None)

    def whole(self, entries: Sequence[Entry]) -> bytes:
        """Return the list in one piece."""
        items = self.items(entries, first=True) if entries else b""
        return b"".join((self.begin(empty=not entries), items, self.end()))

    def begin(self, *, empty: bool) -> bytes:
        """Return all that comes before the items."""
        if self.form.media_type == YAML_FORM:
            # Keys are sorted.
            before = {key: value for key, value in self._list.items() if key < self._name}
            return encode(before, YAML_FORM) + f"{self._name}:{' []' if empty else ''}\n".encode()
        return encode(self._list)[:-1] + f',"{self._name}":['.encode()

    def items(self, entries: Sequence[Entry], *, first: bool) -> bytes:
        """Return some items; the first ones of the list have nothing before them."""
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
            items = [_metadata_of(one, self.form.version) for one in objects]
        if self.form.media_type == YAML_FORM:
            return encode(items, YAML_FORM)
        return comma + encode(items)[1:-1]

    def end(self) -> bytes:
        """Return all that comes after the items."""
        if self.form.media_type != YAML_FORM:
            return b"]}"
        after = {key: value for key, value in self._list.items() if key > self._name}
        return encode(after, YAML_FORM) if after else b""


_PLAIN: Final = ResponseForm()


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


def _metadata_of(found: dict[str, Any], version: str) -> dict[str, Any]:
    return {
        "kind": ResponseShape.METADATA.value,
        "apiVersion": f"{_META}/{version}",
        "metadata": found["metadata"],
    }
