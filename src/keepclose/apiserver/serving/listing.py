"""Long lists are sent piece by piece, so that neither the loop nor memory is held by one.

The entries of a list are those of one moment; nothing of it is rendered before the piece before it
was taken by the client. Pieces that need computing are made in a thread, in the turn of the
identity that asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

from keepclose.apiserver.serving.answers import content_type_of
from keepclose.apiserver.serving.forms import ListRendering
from keepclose.apiserver.storage.entries import Entry

Run = Callable[[Callable[[], bytes]], Awaitable[bytes]]
PLAIN_BYTES: Final = 128 * 1024
"""Objects that are sent as they are stored go out by pieces of this size."""
RENDERED_BYTES: Final = 64 * 1024
"""Objects that are rendered first are taken by so much of their JSON at a time."""


class ListStream:
    """A list as a stream of pieces."""

    def __init__(self, rendering: ListRendering, entries: Sequence[Entry], run: Run) -> None:
        """Prepare to render; `run` computes a piece, beside the loop or in turn with others."""
        self.content_type = content_type_of(rendering.form)
        self.endless = False
        self._rendering = rendering
        self._entries = entries
        self._run = run

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the pieces."""
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
        """Let go of the entries."""
        self._entries = ()


def portions(entries: Sequence[Entry], most: int) -> Iterator[tuple[int, int]]:
    """Yield from where to where entries together have so many bytes, or one has more."""
    start = total = 0
    for place, entry in enumerate(entries):
        size = len(entry.data)
        if total and total + size > most:
            yield start, place
            start, total = place, 0
        total += size
    if start < len(entries):
        yield start, len(entries)
