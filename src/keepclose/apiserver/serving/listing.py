"""Streams long lists in portions, so that one list holds neither the event loop nor memory.

The entries of a list are those of one version. A portion is rendered only after the client has
taken the one before. Portions that need computing are rendered in a thread, in the turn of their
user.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

from keepclose.apiserver.serving.negotiation import ListRendering
from keepclose.apiserver.serving.responses import content_type_of
from keepclose.apiserver.storage.entries import Entry

PLAIN_BYTES: Final = 128 * 1024
"""The size of a portion of objects that are sent as they are stored."""
RENDERED_BYTES: Final = 64 * 1024
"""The size of a portion of objects that are rendered first, in bytes of stored JSON."""

_Run = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class ListStream:
    """A list as a stream of portions."""

    def __init__(self, rendering: ListRendering, entries: Sequence[Entry], run: _Run) -> None:
        """Prepare to render; `run` computes a portion, in a thread or in turn with others."""
        self.content_type = content_type_of(rendering.form)
        self._rendering = rendering
        self._entries = entries
        self._run = run

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the portions."""
        rendering, entries = self._rendering, self._entries
        yield rendering.begin(empty=not entries)
        size = PLAIN_BYTES if rendering.is_plain else RENDERED_BYTES
        for start, stop in portions(entries, size):
            render = partial(rendering.items, entries[start:stop], first=start == 0)
            yield await self._run(render)
        end = rendering.end()
        if end:
            yield end

    def close(self) -> None:
        """Release the entries."""
        self._entries = ()


def portions(entries: Sequence[Entry], most: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of portions of at most so many bytes; a larger entry is one by itself."""
    start = total = 0
    for position, entry in enumerate(entries):
        size = len(entry.data)
        if total and total + size > most:
            yield start, position
            start, total = position, 0
        total += size
    if start < len(entries):
        yield start, len(entries)
