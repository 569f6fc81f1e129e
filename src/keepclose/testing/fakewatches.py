"""The open watches of a FakeCluster, each with the faults that a connection can have.

Bookmarks come once a minute and the server ends the watch after the time that the client named.
A watch that is stalled takes no notice of anything any more, though it stays open; that is what a
client sees of a server whose machine was switched off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from keepclose.kube.clock import Clock
from keepclose.kube.errors import ConnectionLost, TransportError
from keepclose.model.json_values import JsonObject
from keepclose.testing.scripted_streams import HOST, bookmark, status_of

BOOKMARK_S: Final = 60.0
GARBAGE: Final = b"<html>502 Bad Gateway</html>\n"


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
        """Send an event if the watch is about such objects."""
        if self._accepts(obj):
            self._last_line = msgspec.json.encode({"type": event_type, "object": obj}) + b"\n"
            self._put(self._last_line)

    def send_bookmark(self, *, ends_initial: bool = False) -> None:
        """Send a bookmark if the client asked for them."""
        if self._has_bookmarks:
            self._put(bookmark(self._version(), ends_initial=ends_initial))

    def repeat(self) -> None:
        """Send the last event once more."""
        self._put(self._last_line)

    def stall(self) -> None:
        """Send nothing any more, without a word."""
        self.is_stalled = True

    def end(self) -> None:
        """End as a server ends a watch whose time is over."""
        self._put(None)

    def cut(self, *, rest: bytes = b"") -> None:
        """Break off, perhaps in the middle of a line."""
        self._put(rest)
        self._put(ConnectionLost(HOST, "reset by peer"))

    def cut_midway(self) -> None:
        """Break off after half of the last event was sent once more."""
        self.cut(rest=self._last_line[: len(self._last_line) // 2])

    def garble(self) -> None:
        """Send something that is not the API's."""
        self._put(GARBAGE)

    def expire(self) -> None:
        """Say that the version is too old, and end."""
        status = status_of(410, "Expired", "too old resource version")
        self._put(msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n")
        self._put(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over what the client gets to see."""
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
