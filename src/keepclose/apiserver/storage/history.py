"""The latest changes of one store, oldest first, bounded by number, by bytes and by age.

Watches resume from here, and lists of a past version are made by undoing what came after. A
change that has been let go is never asked for again: `floor` is the version of the last one, and
nothing older can be answered for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from keepclose.apiserver.storage.entries import Change, Entry
from keepclose.apiserver.storage.errors import Compacted

# The version of a store into which nothing was written yet.
FIRST_VERSION: Final = 1
# So many of the latest changes keep their line for watchers, as long as the objects in them have no
# more bytes; older ones are rarely asked for, and the line is a second copy of the object.
FRAMES_KEPT: Final = 1024
FRAME_BYTES_KEPT: Final = 8 << 20


class History:
    """What happened to the objects of one store."""

    __slots__ = ("_changes", "_framed", "_framed_size", "floor", "size")

    def __init__(self, floor: int = FIRST_VERSION) -> None:
        """Begin without changes; those up to the floor are not known."""
        self._changes: deque[Change] = deque()
        # Those of the latest changes that may keep their line, and the bytes of their objects.
        self._framed: deque[Change] = deque()
        self._framed_size = 0
        self.floor = floor
        # The bytes of all changes.
        self.size = 0

    def append(self, change: Change) -> None:
        """Add the newest change."""
        self._changes.append(change)
        size = change.entry.size
        self.size += size
        framed = self._framed
        framed.append(change)
        self._framed_size += size
        while len(framed) > FRAMES_KEPT or self._framed_size > FRAME_BYTES_KEPT:
            older = framed.popleft()
            self._framed_size -= older.size
            older.forget_frame()

    def trim(self, *, keep: int, size: int, since: float) -> Iterator[Change]:
        """Let go of the oldest changes beyond number and bytes, or made before the time."""
        changes = self._changes
        while changes and (len(changes) > keep or self.size > size or changes[0].time < since):
            yield self.drop_oldest()

    def drop_oldest(self) -> Change:
        """Let go of the oldest change, which must be there, and return it."""
        dropped = self._changes.popleft()
        self.floor = dropped.version
        self.size -= dropped.size
        return dropped

    def after(self, version: int, namespace: str = "") -> list[Change]:
        """Return what happened after the version, oldest first, in one namespace or ("") in all."""
        if version < self.floor:
            raise Compacted(version, self.floor)
        newer: list[Change] = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            if namespace in ("", change.entry.namespace):
                newer.append(change)
        newer.reverse()
        return newer

    def states_at(self, version: int, namespace: str = "") -> dict[tuple[str, str], Entry | None]:
        """Return, for every object that has changed since the version, what it was then."""
        return {
            (change.entry.namespace, change.entry.name): change.previous
            for change in reversed(self.after(version, namespace))
        }
