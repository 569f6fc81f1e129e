"""The files of a store: made whole or not at all, and hands off everything that is not ours.

A file is judged by reading its header, without SQLite, because SQLite may write into a file merely
by opening it. Whatever is wrong is said with the name of the file and with what to do; the file
stays as it is, to the byte. A new file comes into being whole, under its final name, or not at
all, so that a crash at this moment leaves nothing half made.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from keepclose.apiserver.storage.errors import DamagedError, StorageError

DATA_FILE: Final = "store.db"
# "KpCl"; tells our files from those of other programs.
APPLICATION_ID: Final = 0x4B70436C
FORMAT: Final = 2
# Files of format 1 have no summary; they get one when they are opened.
FORMAT_WITHOUT_SUMMARY: Final = 1

_TABLES: Final = {
    "log": """CREATE TABLE log (
    version INTEGER PRIMARY KEY,
    store TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    previous INTEGER NOT NULL,
    time INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    data BLOB NOT NULL
)""",
    "floors": (
        "CREATE TABLE floors (store TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
    ),
    "summary": """CREATE TABLE summary (
    identity BLOB NOT NULL,
    base INTEGER NOT NULL,
    version INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    total INTEGER NOT NULL,
    chain INTEGER NOT NULL,
    checksum INTEGER NOT NULL
)""",
}
SUMMARY_TABLE: Final = _TABLES["summary"]
INSERT_ROW: Final = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_SUMMARY: Final = "INSERT INTO summary VALUES (?, ?, ?, ?, ?, ?, ?)"
SELECT_SCHEMA: Final = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"

# Neither by way of a symbolic link nor waiting for the other end of a named pipe.
PLAIN_FILE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_SIZE: Final = 100
# What stands beside the file: of SQLite, and of ours.
_BESIDE: Final = ("-wal", "-shm", "-mark", "-mark.new", "-reserve")
START_EMPTY: Final = f"move {DATA_FILE}* away to start empty"
_ELSEWHERE: Final = f"choose another directory, or {START_EMPTY}"
_RESTORE: Final = (
    "put back a copy from before the damage, start keepclose apiserver once with --recover-store "
    f"to go on with what is intact, or {START_EMPTY}"
)
LOCK_FILE: Final = "store.lock"
_BUSY: Final = (errno.EWOULDBLOCK, errno.EACCES)
MARK_SUFFIX: Final = "-mark"
_MARKS_MAGIC: Final = b"kcmark1\n"
_BODY: Final = struct.Struct(">8s16sQI")
_TOTAL: Final = struct.Struct(">I")
_SIZE: Final = _BODY.size + _TOTAL.size


def damaged(path: Path, what: str) -> DamagedError:
    """Return the error about a file that was ours and is broken."""
    return DamagedError(path, f"is damaged: {what}", _RESTORE)


def expected_schema(file_format: int) -> list[tuple[str, str, str, str]]:
    """Return what SELECT_SCHEMA gives for a whole file of the format."""
    names = sorted(_TABLES)
    if file_format == FORMAT_WITHOUT_SUMMARY:
        names.remove("summary")
    return [("table", name, name, _TABLES[name]) for name in names]


def refuse_odd_files(path: Path) -> None:
    """Raise a StorageError when a file of the store is none, or belongs to another user.

    NB: SQLite, or any open of a file by its name, would wait for ever for a named pipe.
    """
    for suffix in ("", *_BESIDE):
        where = path.with_name(path.name + suffix)
        try:
            status = where.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(where, f"cannot be read: {error.strerror}", _ELSEWHERE) from error
        if stat.S_ISLNK(status.st_mode):
            raise StorageError(where, "is a symbolic link", _ELSEWHERE)
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(where, "is no regular file", _ELSEWHERE)
        if status.st_uid != os.geteuid():
            what = f"belongs to another user ({status.st_uid})"
            raise StorageError(where, what, _ELSEWHERE)


def refuse_remains(path: Path) -> None:
    """Raise a StorageError when there is no file, but something that belongs to one."""
    # NB: SQLite would take the writes of the lost file for those of the new one.
    if has_wal(path):
        what = f"is missing, while {path.name}-wal with its latest writes is there"
        raise StorageError(path, what, f"put the file back, or {START_EMPTY}")


def create_file(path: Path, summary: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """Make a store with a summary and rows, in the place of any file that there is."""
    unfinished = path.with_name(path.name + ".new")
    try:
        for leftover in path.parent.glob(f"{unfinished.name}*"):
            leftover.unlink()
        # For its owner alone, as are the files that SQLite makes beside it: objects hold secrets.
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(unfinished, isolation_level=None)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("BEGIN")
            for statement in _TABLES.values():
                connection.execute(statement)
            connection.execute(INSERT_SUMMARY, summary)
            connection.executemany(INSERT_ROW, rows)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()
        unfinished.rename(path)
        sync_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        advice = "make room, or choose another directory"
        raise StorageError(path, f"cannot be made: {error}", advice) from error


def check_file(path: Path) -> int:
    """Return the format of the file; raise a StorageError when it is not a whole store."""
    try:
        # NB: opened without waiting, for a named pipe would never be opened from the other side.
        with os.fdopen(os.open(path, os.O_RDONLY | PLAIN_FILE), "rb") as file:
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
    file_format = _number(header, 60)
    if file_format > FORMAT:
        raise StorageError(
            path,
            f"was written by a newer keepclose (format {file_format}, known is {FORMAT})",
            "use that version of keepclose, or choose another directory",
        )
    if file_format not in (FORMAT, FORMAT_WITHOUT_SUMMARY):
        raise damaged(path, f"it has format {file_format}, which there never was")
    # NB: SQLite would roll such a journal back into the file; the store never has one.
    if path.with_name(path.name + "-journal").exists():
        what = f"has {path.name}-journal beside it, which a store never has"
        raise StorageError(path, what, f"move {path.name}-journal away")
    page_size = int.from_bytes(header[16:18], "big")
    want_size = _number(header, 28) * (65536 if page_size == 1 else page_size)
    # NB: while there is a write-ahead log, the file may rightly be shorter than its header says.
    if size < want_size and not has_wal(path):
        raise damaged(path, f"it has {size} of {want_size} bytes")
    return file_format


def has_wal(path: Path) -> bool:
    """Return whether there are writes that have not reached the file itself."""
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _number(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def sync_directory(directory: Path) -> None:
    """Wait until the names in the directory are on the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


class Mark(NamedTuple):
    """What was acknowledged of a store."""

    identity: bytes
    version: int
    chain: int


def link(chain: int, version: int, checksum: int) -> int:
    """Return the chain with one more row at its end."""
    return crc32(b"%d %d" % (version, checksum), chain)


def mark_path(path: Path) -> Path:
    """Return where the mark of the store at the path is."""
    return path.with_name(path.name + MARK_SUFFIX)


def read_mark(path: Path) -> Mark | None:
    """Return the mark of the store at the path, None without a file; raises StorageError."""
    where = mark_path(path)
    try:
        # NB: one byte more, so that a longer file is noticed.
        with where.open("rb") as file:
            content = file.read(_SIZE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        advice = "choose another directory, or give this user the right to read the file"
        raise StorageError(where, f"cannot be read: {error.strerror}", advice) from error
    mark = None
    if len(content) == _SIZE:
        mark = Mark(*_BODY.unpack(content[: _BODY.size])[1:])
    if mark is None or content != encode_mark(*mark):
        raise damaged(where, "it does not fit its checksum")
    return mark


def create_mark(path: Path, mark: Mark) -> None:
    """Put the mark of the store at the path in place, whole and synced."""
    where = mark_path(path)
    unfinished = where.with_name(where.name + ".new")
    handle = os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        os.write(handle, encode_mark(*mark))
        os.fsync(handle)
    finally:
        os.close(handle)
    unfinished.replace(where)


def encode_mark(identity: bytes, version: int, chain: int) -> bytes:
    """Return a mark as it stands in its file."""
    body = _BODY.pack(_MARKS_MAGIC, identity, version, chain)
    return body + _TOTAL.pack(crc32(body))
