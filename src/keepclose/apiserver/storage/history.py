"""The latest changes of one store, oldest first, bounded by number and by age.

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
# So many of the latest changes keep their line for watchers; older ones are rarely asked for, and
# the line is a second copy of the object.
_FRAMES_KEPT: Final = 1024


class History:
    """What happened to the objects of one store."""

    __slots__ = ("_changes", "floor")

    def __init__(self, floor: int = FIRST_VERSION) -> None:
        """Begin without changes; those up to the floor are not known."""
        self._changes: deque[Change] = deque()
        self.floor = floor

    def append(self, change: Change) -> None:
        """Add the newest change."""
        changes = self._changes
        changes.append(change)
        if len(changes) > _FRAMES_KEPT:
            changes[-_FRAMES_KEPT - 1].forget_frame()

    def trim(self, *, keep: int, since: float) -> Iterator[Change]:
        """Let go of all but the newest changes, and of those made before the time; return them."""
        changes = self._changes
        while changes and (len(changes) > keep or changes[0].time < since):
            dropped = changes.popleft()
            self.floor = dropped.version
            yield dropped

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
