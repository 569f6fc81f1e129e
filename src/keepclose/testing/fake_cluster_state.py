"""The state of a FakeCluster: objects, one growing version, and a bounded history.

Objects are plain JSON values and are never changed in place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import msgspec

from keepclose.kube.clock import Clock
from keepclose.kube.errors import ConnectionLost, TransportError
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.testing.scripted_streams import HOST, bookmark, status_of

Listener = Callable[["Change"], None]
BOOKMARK_S: Final = 60.0
GARBAGE: Final = b"<html>502 Bad Gateway</html>\n"


class Change(NamedTuple):
    """One write as watches send it."""

    version: int
    type: str
    plural: str
    object: JsonObject


class Compacted(Exception):  # noqa: N818 - as etcd calls it
    """The history does not go back that far."""


class FakeStore:
    """Objects by kind and key, in the current and some earlier versions."""

    def __init__(self, *, history: int) -> None:
        self._history = history
        self._changes: deque[Change] = deque()
        self._objects: dict[tuple[str, NamespacedName], JsonObject] = {}
        self._states: dict[int, dict[tuple[str, NamespacedName], JsonObject]] = {}
        self._forgotten = 0
        self.version = 1
        self.listeners: list[Listener] = []
        self._keep_state()

    def get(self, plural: str, key: NamespacedName) -> JsonObject | None:
        """Return the current object."""
        return self._objects.get((plural, key))

    def at(self, plural: str, version: int) -> dict[NamespacedName, JsonObject]:
        """Return all objects of a kind at a version, sorted by key."""
        if version not in self._states:
            raise Compacted
        state = self._states[version]
        return {key: state[plural, key] for kind, key in sorted(state) if kind == plural}

    def oldest(self, limit: int) -> int:
        """Return the oldest version in the history, at most `limit` writes back."""
        return max(self.version - limit, min(self._states))

    def since(self, plural: str, version: int) -> list[Change]:
        """Return the changes of a kind after a version."""
        if version < self._forgotten:
            raise Compacted
        return [
            change
            for change in self._changes
            if change.plural == plural and change.version > version
        ]

    def put(self, plural: str, key: NamespacedName, obj: JsonObject) -> JsonObject:
        """Write an object and return it with its new version."""
        old = self._objects.get((plural, key))
        self.version += 1
        metadata = {"uid": f"uid-{self.version}", **obj.get("metadata", {})}
        if old is not None:
            metadata["uid"] = old["metadata"]["uid"]
        metadata["resourceVersion"] = str(self.version)
        stored = {**obj, "metadata": metadata}
        self._objects[plural, key] = stored
        self._note(Change(self.version, "ADDED" if old is None else "MODIFIED", plural, stored))
        return stored

    def delete(self, plural: str, key: NamespacedName) -> JsonObject:
        """Delete an object and return it with the version of its deletion; raise KeyError."""
        old = self._objects.pop((plural, key))
        self.version += 1
        ended = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._note(Change(self.version, "DELETED", plural, ended))
        return ended

    def touch(self) -> None:
        """Raise the version by a write to another kind."""
        self.version += 1
        self._keep_state()

    def compact(self) -> None:
        """Drop the history, and keep the current objects."""
        self._changes.clear()
        self._forgotten = self.version
        self._states = {self.version: dict(self._objects)}

    def restore(self, version: int) -> None:
        """Return to an earlier version, as a restored backup does."""
        self._objects = dict(self._states[version])
        self.version = version
        self.compact()

    def _note(self, change: Change) -> None:
        self._changes.append(change)
        while len(self._changes) > self._history:
            self._forgotten = self._changes.popleft().version
        self._keep_state()
        for listener in tuple(self.listeners):
            listener(change)

    def _keep_state(self) -> None:
        self._states[self.version] = dict(self._objects)
        while len(self._states) > self._history + 1:
            del self._states[next(iter(self._states))]


class FakeWatch:
    """One open watch."""

    def __init__(
        self,
        clock: Clock,
        accepts: Callable[[JsonObject], bool],
        *,
        version: Callable[[], str],
        has_bookmarks: bool,
        limit_s: float,
    ) -> None:
        self._clock = clock
        self._accepts = accepts
        self._version = version
        self._has_bookmarks = has_bookmarks
        self._ends_at = clock.monotonic() + limit_s
        self._parts: asyncio.Queue[bytes | TransportError | None] = asyncio.Queue()
        self._last_line = b""
        self.is_stalled = False
        self.is_over = False

    def tell(self, event_type: str, obj: JsonObject) -> None:
        """Send an event if the watch selects the object."""
        if self._accepts(obj):
            self._last_line = msgspec.json.encode({"type": event_type, "object": obj}) + b"\n"
            self._put(self._last_line)

    def send_bookmark(self, *, ends_initial: bool = False) -> None:
        """Send a bookmark if the client asked for them."""
        if self._has_bookmarks:
            self._put(bookmark(self._version(), ends_initial=ends_initial))

    def repeat(self) -> None:
        """Send the last event again."""
        self._put(self._last_line)

    def stall(self) -> None:
        """Send nothing more, and keep the connection open."""
        self.is_stalled = True

    def end(self) -> None:
        """End as a server does when the time of a watch is over."""
        self._put(None)

    def cut(self, *, rest: bytes = b"") -> None:
        """Break the connection, perhaps in the middle of a line."""
        self._put(rest)
        self._put(ConnectionLost(HOST, "reset by peer"))

    def cut_midway(self) -> None:
        """Break the connection after half of the last event was sent again."""
        self.cut(rest=self._last_line[: len(self._last_line) // 2])

    def garble(self) -> None:
        """Send bytes that are not of the API."""
        self._put(GARBAGE)

    def expire(self) -> None:
        """Send the event of an expired version, and end."""
        status = status_of(410, "Expired", "too old resource version")
        self._put(msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n")
        self._put(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the bytes that the client receives."""
        next_bookmark = self._clock.monotonic() + BOOKMARK_S
        try:
            while True:
                due = min(next_bookmark, self._ends_at)
                try:
                    part = await self._clock.wait_for(
                        self._parts.get(),
                        None if self.is_stalled else due - self._clock.monotonic(),
                    )
                except TimeoutError:
                    next_bookmark += BOOKMARK_S
                    self.send_bookmark() if due < self._ends_at else self.end()
                    continue
                if part is None:
                    return
                if isinstance(part, TransportError):
                    raise part
                if part:
                    yield part
        finally:
            self.is_over = True

    def _put(self, part: bytes | TransportError | None) -> None:
        if not self.is_stalled and not self.is_over:
            self._parts.put_nowait(part)
