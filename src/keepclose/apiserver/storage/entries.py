"""Stored objects and their changes: JSON bytes beside the few fields that the server needs often.

An object is encoded once, and its bytes are served as they are. The fields that the store needs
are always decoded from those bytes, both at a write and at start: so every object that can be
written can be read again, and no part of the caller's object is retained. Strings that many
objects share (namespaces, labels, uids of owners) are interned.

`ObjectStore` is the part of the store that requests use. With it they run on the event loop
against the store, or in a thread against an attempt.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from sys import intern
from typing import Final, Protocol

import msgspec

from keepclose.apiserver.storage.errors import Malformed
from keepclose.model.json_values import JsonObject

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"

# An estimate of the memory of an entry and its change besides the JSON, and of what each label and
# each owner adds: an object may have many short ones.
OVERHEAD: Final = 1024
LABEL_OVERHEAD: Final = 128
OWNER_OVERHEAD: Final = 448

_NO_LABELS: Final[dict[str, str]] = {}
# What encoding and decoding JSON may raise, also for deep nesting and for lone surrogates.
_JSON_ERRORS: Final = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One version of an object. The labels are shared and must not be changed."""

    version: int
    namespace: str
    name: str
    uid: str
    data: bytes
    labels: dict[str, str]
    owners: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many bytes of memory the entry takes, overhead included."""
        metadata = LABEL_OVERHEAD * len(self.labels) + OWNER_OVERHEAD * len(self.owners)
        return len(self.data) + OVERHEAD + metadata


class StoredChange(msgspec.Struct, gc=False):
    """One write. The entry of a deletion is the last state, at the version of the deletion."""

    version: int
    type: str
    entry: Entry
    previous: Entry | None
    store: str
    # Seconds since 1970.
    time: int
    # The line for watchers; None until it is first requested, b"" when it is not cached.
    _frame: bytes | None = None
    # The lines for watchers whose selectors began or ceased to match the object, by event type.
    _selected_frames: dict[str, bytes] | None = None

    @property
    def size(self) -> int:
        """How many bytes of memory the change takes in a history, overhead included."""
        return self.entry.size

    @property
    def frame(self) -> bytes:
        """The change as one line of a watch; watchers share the line of a recent change."""
        if self._frame:
            return self._frame
        line = b'{"type":"%b","object":%b}\n' % (self.type.encode(), self.entry.data)
        if self._frame is None:
            self._frame = line
        return line

    def selected_frame(self, type_: str) -> bytes:
        """Return the line for a watcher whose selectors give the change this type.

        When an object leaves the selection of a watcher, the watcher gets DELETED with the last
        selected state at the version of the change, as from kube-apiserver.
        """
        if type_ == self.type:
            return self.frame
        frames = self._selected_frames or {}
        if type_ not in frames:
            data = self.entry.data
            if type_ == DELETED and self.previous is not None:
                data = _with_version(self.previous.data, self.version)
            frames[type_] = b'{"type":"%b","object":%b}\n' % (type_.encode(), data)
            if self._frame != b"":
                self._selected_frames = frames
        return frames[type_]

    def forget_frame(self) -> None:
        """Free the memory of the lines; from here on each request encodes them again."""
        self._frame = b""
        self._selected_frames = None


class _Owner(msgspec.Struct, gc=False):
    uid: str = ""


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    name: str
    resource_version: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str | None] | None = None
    owner_references: list[_Owner] | None = None


class _Head(msgspec.Struct, gc=False):
    metadata: _Metadata


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _with_version(data: bytes, version: int) -> bytes:
    """Return the JSON of an object with another version; only its metadata is decoded."""
    parts = _decode_parts(data)
    metadata = _decode_parts(parts["metadata"])
    metadata["resourceVersion"] = msgspec.Raw(_encode(str(version)))
    parts["metadata"] = msgspec.Raw(_encode(metadata))
    return _encode(parts)


def read_key(obj: JsonObject) -> tuple[str, str]:
    """Return namespace and name of an object; the namespace is "" where the kind has none."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise Malformed("metadata must be an object")
    namespace, name = metadata.get("namespace") or "", metadata.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed("metadata.name must be a string and not empty")
    if not isinstance(namespace, str):
        raise Malformed("metadata.namespace must be a string")
    return namespace, name


def encode_entry(obj: JsonObject, version: int) -> Entry:
    """Return the object as it is stored; its metadata.resourceVersion is set to the version."""
    obj["metadata"]["resourceVersion"] = str(version)
    try:
        data = _encode(obj)
    except _JSON_ERRORS as error:
        raise Malformed(f"the object cannot be written as JSON: {error}") from error
    return read_entry(data, version)


def read_entry(data: bytes, version: int) -> Entry:
    """Return the entry that the JSON of an object holds."""
    try:
        metadata = _decode_head(data).metadata
    except _JSON_ERRORS as error:
        raise Malformed(f"the object cannot be read: {error}") from error
    if metadata.resource_version != str(version):
        encoded = metadata.resource_version
        raise Malformed(f"the object has resourceVersion {encoded}, not {version}")
    labels, owners = metadata.labels, metadata.owner_references
    return Entry(
        version,
        intern(metadata.namespace or ""),
        metadata.name,
        metadata.uid or "",
        data,
        {intern(key): intern(value or "") for key, value in labels.items()}
        if labels
        else _NO_LABELS,
        tuple([intern(owner.uid) for owner in owners if owner.uid]) if owners else (),
    )


def decode_entry(entry: Entry) -> JsonObject:
    """Return the object as a new value, which the caller may change."""
    decoded: JsonObject = _decode(entry.data)
    return decoded


class ObjectStore(Protocol):
    """Reads and writes single objects; the methods are those of `Store`."""

    @property
    def version(self) -> int:
        """The version of the latest write."""
        ...

    def get(self, store: str, namespace: str, name: str) -> Entry | None:
        """Return the object, or None."""
        ...

    def entries(self, store: str, namespace: str = "") -> list[Entry]:
        """Return the objects by namespace and name."""
        ...

    def entries_at(self, store: str, version: int, namespace: str = "") -> list[Entry]:
        """Return the objects as they were at the version."""
        ...

    def create(self, store: str, obj: JsonObject, *, max_bytes: int | None = None) -> Entry:
        """Add an object."""
        ...

    def update(
        self,
        store: str,
        obj: JsonObject,
        *,
        expected: int | None = None,
        max_bytes: int | None = None,
    ) -> Entry:
        """Replace the former version of an object."""
        ...

    def delete(
        self,
        store: str,
        namespace: str,
        name: str,
        *,
        expected: int | None = None,
        final: JsonObject | None = None,
    ) -> Entry:
        """Remove an object."""
        ...

    def using_reserve(self) -> AbstractContextManager[None]:
        """Let the writes of the block, which free space, use the reserve for a full disk."""
        ...
