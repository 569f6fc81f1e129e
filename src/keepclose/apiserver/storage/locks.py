"""The right of one server to a data directory, which the kernel ends with the process.

What is locked is the data: the directory itself, and the files of the store in whichever directory
else they have a name. The lock file only tells which process has them. Removing it, replacing it
or moving the directory therefore lets no second server in.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.files import DATA_FILE, PLAIN_FILE

LOCK_FILE: Final = "store.lock"
_BUSY: Final = (errno.EWOULDBLOCK, errno.EACCES)


class Lock:
    """Descriptors whose locks keep other servers off."""

    def __init__(self, directory: Path) -> None:
        """Take the directory, making it where it is missing."""
        self._directory = directory
        self._handles: list[int] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._take(os.open(directory, os.O_RDONLY | os.O_DIRECTORY), directory)
            handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | PLAIN_FILE, 0o600)
            self._take(handle, directory / LOCK_FILE)
            self._write_holder(handle)
        except OSError as error:
            self.release()
            path = Path(error.filename or directory)
            advice = "choose a directory that this user may write to"
            raise StorageError(path, f"cannot be written: {error.strerror}", advice) from error

    def take_file(self, path: Path) -> int:
        """Lock a file of the store as well; return its descriptor, which stays the lock's."""
        try:
            handle = os.open(path, os.O_RDWR | PLAIN_FILE)
        except OSError as error:
            advice = "let only this user write to it, or choose another directory"
            raise StorageError(path, f"cannot be written: {error.strerror}", advice) from error
        self._take(handle, path)
        return handle

    def release(self) -> None:
        """Give everything free; a second time does nothing."""
        while self._handles:
            os.close(self._handles.pop())

    def _take(self, handle: int, path: Path) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            holder = self._holder()
            self.release()
            if error.errno in _BUSY:
                raise StorageError(
                    self._directory / DATA_FILE,
                    f"is in use by another server, process {holder}",
                    "stop that one first, or choose another directory",
                ) from error
            raise StorageError(
                path,
                f"cannot be locked: {error.strerror}",
                "choose a directory on a file system of this machine",
            ) from error
        self._handles.append(handle)

    def _write_holder(self, handle: int) -> None:
        # NB: under its other names the file belongs to something else, which must stay as it is.
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            self.release()
            regular = stat.S_ISREG(status.st_mode)
            what = "is a hard link to another file" if regular else "is no regular file"
            raise StorageError(self._directory / LOCK_FILE, what, "remove it")
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())

    def _holder(self) -> str:
        try:
            with (self._directory / LOCK_FILE).open("rb") as file:
                return file.read(32).decode(errors="replace").strip() or "unknown"
        except OSError:
            return "unknown"
