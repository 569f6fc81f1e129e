"""The files of a store: one server at a time, and hands off everything that is not ours.

A file is judged by reading its header, without SQLite, because SQLite may write into a file merely
by opening it. Whatever is wrong is said with the name of the file and with what to do; the file
stays as it is, to the byte. A new file comes into being whole, under its final name, or not at
all, so that a crash at this moment leaves nothing half made.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from pathlib import Path
from typing import Final

from keepclose.apiserver.storage.errors import StorageError

DATA_FILE: Final = "store.db"
LOCK_FILE: Final = "store.lock"
# "KpCl"; tells our files from those of other programs.
APPLICATION_ID: Final = 0x4B70436C
FORMAT: Final = 1

SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE log (
    version INTEGER PRIMARY KEY,
    store TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    previous INTEGER NOT NULL,
    time INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE floors (store TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA journal_mode = WAL;
"""

# Neither by way of a symbolic link nor waiting for the other end of a named pipe.
_PLAIN_FILE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_SIZE: Final = 100
_START_EMPTY: Final = f"move {DATA_FILE}* away to start empty"
_ELSEWHERE: Final = f"choose another directory, or {_START_EMPTY}"
_RESTORE: Final = f"put back a copy from before the damage, or {_START_EMPTY}"


class Lock:
    """The right of one process to a directory; the kernel ends it with the process."""

    def __init__(self, directory: Path) -> None:
        """Take the lock, making the directory where it is missing."""
        path = directory / LOCK_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN_FILE, 0o600)
        except OSError as error:
            advice = "choose a directory that this user may write to"
            raise StorageError(directory, f"cannot be written: {error.strerror}", advice) from error
        status = os.fstat(self._handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(self._handle)
            raise StorageError(path, "is no regular file of its own", "remove it")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise StorageError(
                directory / DATA_FILE,
                f"is in use by another server, process {holder}",
                "stop that one first, or choose another directory",
            ) from error
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Give the directory free; a second time does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def damaged(path: Path, what: str) -> StorageError:
    """Return the error about a file that was ours and is broken."""
    return StorageError(path, f"is damaged: {what}", _RESTORE)


def create_file(path: Path) -> None:
    """Make an empty store."""
    # NB: SQLite would take the writes of the lost file for those of the new one.
    if has_wal(path):
        what = f"is missing, while {path.name}-wal with its latest writes is there"
        raise StorageError(path, what, f"put the file back, or {_START_EMPTY}")
    unfinished = path.with_name(path.name + ".new")
    try:
        for leftover in path.parent.glob(f"{unfinished.name}*"):
            leftover.unlink()
        # For its owner alone, as are the files that SQLite makes beside it: objects hold secrets.
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(unfinished, isolation_level=None)
        try:
            connection.executescript(SCHEMA)
        finally:
            connection.close()
        unfinished.rename(path)
        _sync_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        advice = "make room, or choose another directory"
        raise StorageError(path, f"cannot be made: {error}", advice) from error


def check_file(path: Path) -> None:
    """Raise a StorageError when the file is not a whole store of a format that is known."""
    try:
        # NB: opened without waiting, for a named pipe would never be opened from the other side.
        with os.fdopen(os.open(path, os.O_RDONLY | _PLAIN_FILE), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StorageError(path, "is no regular file", _ELSEWHERE)
            header = file.read(_HEADER_SIZE)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        advice = "choose another directory, or give this user the right to read the file"
        raise StorageError(path, f"cannot be read: {error.strerror}", advice) from error
    if header[: len(_MAGIC)] != _MAGIC[: len(header)] or not header:
        what = "is not a store of keepclose" if header else "is empty, which a store never is"
        raise StorageError(path, what, _ELSEWHERE)
    if len(header) < _HEADER_SIZE:
        raise damaged(path, "it ends within its header")
    if _number(header, 68) != APPLICATION_ID:
        raise StorageError(path, "is a database of another program", _ELSEWHERE)
    if _number(header, 60) > FORMAT:
        raise StorageError(
            path,
            f"was written by a newer keepclose (format {_number(header, 60)}, known is {FORMAT})",
            "use that version of keepclose, or choose another directory",
        )
    if _number(header, 60) != FORMAT:
        raise damaged(path, f"it has format {_number(header, 60)}, which there never was")
    page_size = int.from_bytes(header[16:18], "big")
    want_size = _number(header, 28) * (65536 if page_size == 1 else page_size)
    # NB: while there is a write-ahead log, the file may rightly be shorter than its header says.
    if size < want_size and not has_wal(path):
        raise damaged(path, f"it has {size} of {want_size} bytes")


def has_wal(path: Path) -> bool:
    """Return whether there are writes that have not reached the file itself."""
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _number(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
