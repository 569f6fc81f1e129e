"""Watch streams: bytes cut anywhere become events, in order, each exactly once.

The framing is one JSON object a line, as every API server writes it. An event is decoded in two
steps: its type first, then the object by its kind. Nothing here reconnects or keeps state between
streams; that is for the reflector. A watchdog ends a silent stream, because a connection whose peer
is gone may stay open forever. It only reads the clock for each event and needs no timer.

    bytes -> lines -> EventDecoder -> WatchEvent
                           `-> ERROR event: the ApiError of its Status
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from keepclose.kube.clock import Clock
from keepclose.kube.errors import BrokenStream, ConnectionLost, TimedOut, error_of
from keepclose.kube.requests import Kind
from keepclose.kube.watch.list_decoding import (
    NOT_JSON,
    kind_and_name_of,
    object_decoder,
    read_metadata,
    read_object,
)
from keepclose.model.decoding import Rejected
from keepclose.model.field_errors import FieldError

_T = TypeVar("_T")
EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]

# An object may have 1.5 MB in etcd; a line far beyond that is no event.
MAX_LINE: Final = 64 << 20
MAX_INITIAL_BYTES: Final = 1 << 30
"""The most bytes before the bookmark that ends the initial events, as much as a list may have."""
_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


class Watchdog:
    """Ends a reader that receives nothing; one reader at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._received_at = clock.monotonic()

    def reset(self) -> None:
        """Record that the reader received something just now."""
        self._received_at = self._clock.monotonic()

    async def guard(
        self, reading: Coroutine[object, object, None], patience_s: Callable[[], float]
    ) -> bool:
        """Run a reader; return whether it ended by itself. Its errors pass through.

        False means that nothing arrived for `patience_s()` seconds, and that the reader was
        cancelled and has ended.
        """
        self.reset()
        task = asyncio.ensure_future(reading)
        try:
            while not task.done():
                left = self._received_at + patience_s() - self._clock.monotonic()
                if left <= 0:
                    return False
                try:
                    await self._clock.wait_for(asyncio.wait((task,)), left)
                except TimeoutError:
                    continue
            task.result()
            return True
        finally:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()


class WatchEvent(msgspec.Struct, Generic[_T], frozen=True, gc=False):
    """One change, or a bookmark.

    `object` is None for a bookmark, and for an object that could not be decoded; then `rejected`
    holds its name ("namespace/name") and the cause. A deleted object that cannot be decoded comes
    with its metadata alone. `resource_version` is the one to continue from, "" if there is none.
    """

    type: EventType
    object: _T | None
    resource_version: str = ""
    initial_events_end: bool = False
    rejected: tuple[str, FieldError] | None = None


class LineSplitter:
    """Splits a stream of chunks into lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, empty ones included."""
        lines = chunk.split(b"\n")
        tail = lines.pop()
        if lines and self._begun:
            # NB: the parts of a long line are joined once, not at each chunk.
            self._begun.append(lines[0])
            lines[0] = b"".join(self._begun)
            self._begun.clear()
            self._size = 0
        if tail:
            self._begun.append(tail)
            self._size += len(tail)
        return lines

    @property
    def size(self) -> int:
        """The number of bytes of the incomplete line."""
        return self._size

    def rest(self) -> bytes:
        """Return the incomplete line; empty when the stream ended with a complete one."""
        return b"".join(self._begun)


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _VersionMeta(msgspec.Struct, gc=False):
    resource_version: str | None = msgspec.field(default=None, name="resourceVersion")


class _Versioned(msgspec.Struct, gc=False):
    metadata: _VersionMeta | None = None


class _BookmarkMeta(_VersionMeta, gc=False):
    annotations: dict[str, str | None] | None = None


class _Bookmark(msgspec.Struct, gc=False):
    metadata: _BookmarkMeta | None = None


_EVENTS: Final = msgspec.json.Decoder(_Event)
_BOOKMARKS: Final = msgspec.json.Decoder(_Bookmark)
# NB: only this field, so that an object with wrong types elsewhere still has a version.
_VERSIONS: Final = msgspec.json.Decoder(_Versioned)


class EventDecoder(Generic[_T]):
    """Turns the lines of one watch into events of one kind."""

    def __init__(self, kind: Kind[_T], *, where: str = "") -> None:
        """Take the kind to decode; errors name the request `where`."""
        self._kind = kind
        self._where = where
        self._decode = object_decoder(kind.struct).decode
        self._typed = issubclass(kind.struct, msgspec.Struct)

    def decode(self, line: bytes) -> WatchEvent[_T]:
        """Return the event of a line.

        Raise the ApiError of an ERROR event, and BrokenStream for a line that is no event.
        """
        try:
            event = _EVENTS.decode(line)
        except NOT_JSON as error:
            raise self._broken(f"a line of the watch is not an event ({error})", line) from error
        kind_of_event = event.type
        if kind_of_event in _CHANGES:
            try:
                decoded: Any = self._decode(event.object)
                version = (
                    decoded.metadata.resource_version if self._typed else _version(event.object)
                )
                return WatchEvent(kind_of_event, decoded, version)  # type: ignore[arg-type]
            except NOT_JSON:
                return self._decode_leniently(kind_of_event, event.object)  # type: ignore[arg-type]
        if kind_of_event == "BOOKMARK":
            return self._decode_bookmark(event.object)
        if kind_of_event == "ERROR":
            failure = error_of(_status(event.object))
            failure.request = self._where
            raise failure
        raise self._broken(f"an event of the unknown type {kind_of_event!r}", line)

    def _decode_bookmark(self, data: msgspec.Raw) -> WatchEvent[_T]:
        try:
            metadata = _BOOKMARKS.decode(data).metadata or _BookmarkMeta()
        except NOT_JSON as error:
            raise self._broken(f"a bookmark without metadata ({error})", bytes(data)) from error
        done = (metadata.annotations or {}).get(_INITIAL_EVENTS_END) == "true"
        return WatchEvent("BOOKMARK", None, metadata.resource_version or "", done)

    def _decode_leniently(self, event_type: EventType, data: msgspec.Raw) -> WatchEvent[_T]:
        """Return the event of an object with nulls or wrong types in it."""
        result = read_object(self._kind, data)
        if result is None:
            raise self._broken("an event without an object", bytes(data))
        if not isinstance(result, Rejected):
            return WatchEvent(event_type, result, _version(data))
        cause = result.cause
        if event_type == "DELETED":
            # Of a deleted object only the name matters.
            result = read_metadata(self._kind, data)
            if not isinstance(result, Rejected):
                return WatchEvent(event_type, result, _version(data))
        return WatchEvent(
            event_type, None, _version(data), rejected=(kind_and_name_of(data), cause)
        )

    def _broken(self, what: str, line: bytes) -> BrokenStream:
        shown = line[:80].decode(errors="replace")
        return BrokenStream(self._where, f"{what}: {shown!r}", fix="watch again from a new list")


async def read_events(
    chunks: AsyncIterator[bytes],
    decoder: EventDecoder[_T],
    *,
    clock: Clock,
    idle_timeout: float | None = None,
    where: str = "",
    is_initial: bool = False,
) -> AsyncGenerator[WatchEvent[_T], None]:
    """Iterate over the events of a stream until the server ends it.

    With `is_initial` it begins with all objects, whose bytes are limited until the bookmark. Raise
    ConnectionLost when the stream ends within a line, and TimedOut when no byte arrived for
    `idle_timeout` seconds: a connection whose peer is gone may stay silent forever.
    """
    lines = LineSplitter()
    decode = decoder.decode
    initial_bytes = 0
    while True:
        try:
            chunk = await clock.wait_for(anext(chunks, None), idle_timeout)
        except TimeoutError as error:
            reason = f"the watch was silent for {idle_timeout:g} s"
            raise TimedOut(where, reason, fix="watch again") from error
        if chunk is None:
            break
        for line in lines.feed(chunk):
            if line and not line.isspace():
                event = decode(line)
                is_initial = is_initial and not event.initial_events_end
                yield event
        initial_bytes += len(chunk)
        if is_initial and initial_bytes > MAX_INITIAL_BYTES:
            reason = f"its initial objects have more than {MAX_INITIAL_BYTES >> 20} MB"
            raise BrokenStream(where, reason)
        if lines.size > MAX_LINE:
            reason = f"a line of the watch has more than {MAX_LINE >> 20} MB"
            raise BrokenStream(where, reason)
    rest = lines.rest()
    if rest and not rest.isspace():
        # The last line may lack its newline. The stream was cut only if it is no complete object.
        try:
            _EVENTS.decode(rest)
        except NOT_JSON as error:
            reason = "the watch was cut in the middle of a line"
            raise ConnectionLost(where, reason, fix="watch again") from error
        yield decode(rest)


def _version(data: msgspec.Raw) -> str:
    try:
        metadata = _VERSIONS.decode(data).metadata
    except NOT_JSON:
        return ""
    return (metadata.resource_version or "") if metadata else ""


def _status(data: msgspec.Raw) -> dict[str, Any]:
    try:
        status = msgspec.json.decode(data)
    except NOT_JSON:
        status = None
    return status if isinstance(status, dict) else {"message": "the watch ended with an error"}
