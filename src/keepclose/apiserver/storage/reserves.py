"""Room on the disk that is kept for deletes: a file that is given up when the disk is full.

Deleting is how room comes back, and it takes room first: a delete is a row too. Without a reserve
a full disk could only be helped from outside.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RESERVE_SUFFIX: Final = "-reserve"
# The final state of the largest object that a request can hold (3 MiB), in the write-ahead log and
# in the file, with the pages that the removal of old versions changes.
RESERVE_BYTES: Final = 8 << 20
# With so much room beside the reserve a store that ran out of it counts as ready again.
ROOM_BYTES: Final = 4 << 20


class Reserve:
    """The file beside a store that holds the room."""

    def __init__(self, path: Path) -> None:
        """Take the room beside the store at the path, if there is any."""
        self._path = path.with_name(path.name + RESERVE_SUFFIX)
        self.is_held = False
        self.refill()

    def refill(self) -> bool:
        """Take the room again; return whether it is held."""
        if self.is_held:
            return True
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return False
        try:
            os.posix_fallocate(handle, 0, RESERVE_BYTES)
            self.is_held = True
        except OSError:
            # NB: what there was of it is room that others need now.
            os.ftruncate(handle, 0)
        finally:
            os.close(handle)
        return self.is_held

    def has_room(self) -> bool:
        """Return whether there is room for a large write beside the reserve."""
        handle = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            # NB: really taken for a moment, because quotas do not show in the figures of a disk.
            os.posix_fallocate(handle, RESERVE_BYTES, ROOM_BYTES)
        except OSError:
            return False
        finally:
            os.ftruncate(handle, RESERVE_BYTES)
            os.close(handle)
        return True

    def release(self) -> bool:
        """Give the room to the store; return whether there was any."""
        was_held, self.is_held = self.is_held, False
        try:
            os.truncate(self._path, 0)
        except OSError:
            return False
        return was_held
