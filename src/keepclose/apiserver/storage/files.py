"""The files of a store: its database, the lock of its directory, and the high-water mark.

A file is checked by reading its header, without SQLite, because SQLite may write into a file merely
by opening it. An error names the file and the remedy, and the file stays as it is, to the byte. A
new file appears whole, under its final name, or not at all, so that a crash leaves no partial file.

The lock gives one server the data directory until its process ends; the kernel releases it. It is
taken on the data: on the directory, and on the files of the store under any other name that they
have. The lock file only names the process that holds it. Removing or replacing it, or moving the
directory, therefore admits no second server.

The mark records up to which version writes were acknowledged. SQLite ends the replay of its
write-ahead log at the first frame that does not match its checksum, as if the log had ended there,
and reports nothing. The mark is written after each commit and before the write is answered. So a
store that ends below it has lost acknowledged writes, while a torn commit beyond it was never
answered and may be dropped. The chain covers every row up to the version, in order; the identity
tells the files of this store from those of another data directory. The mark is overwritten in place
without fsync: it survives the end of the process as the write itself does, and a second fsync would
double the price of a durable write.
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
# "KpCl"; tells files of keepclose from those of other programs.
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

# NB: follows no symbolic link and does not wait for the other end of a named pipe.
PLAIN_FILE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_SIZE: Final = 100
# The suffixes of the files beside the database: those of SQLite and those of keepclose.
_SIDE_FILES: Final = ("-wal", "-shm", "-mark", "-mark.new", "-reserve")
START_EMPTY: Final = f"move {DATA_FILE}* away to start empty"
_USE_OTHER_DIRECTORY: Final = f"choose another directory, or {START_EMPTY}"
_RESTORE: Final = (
    "put back a copy from before the damage, start keepclose apiserver once with --recover-store "
    f"to continue with the intact objects, or {START_EMPTY}"
)
LOCK_FILE: Final = "store.lock"
_LOCKED_ERRNOS: Final = (errno.EWOULDBLOCK, errno.EACCES)
MARK_SUFFIX: Final = "-mark"
_MARK_MAGIC: Final = b"kcmark1\n"
_MARK_BODY: Final = struct.Struct(">8s16sQI")
_MARK_CHECKSUM: Final = struct.Struct(">I")
_MARK_SIZE: Final = _MARK_BODY.size + _MARK_CHECKSUM.size


def damaged_error(path: Path, what: str) -> DamagedError:
    """Return the error for a damaged file of a store."""
    return DamagedError(path, f"is damaged: {what}", _RESTORE)


def expected_schema(file_format: int) -> list[tuple[str, str, str, str]]:
    """Return what SELECT_SCHEMA yields for an intact file of the format."""
    names = sorted(_TABLES)
    if file_format == FORMAT_WITHOUT_SUMMARY:
        names.remove("summary")
    return [("table", name, name, _TABLES[name]) for name in names]


def reject_irregular_files(path: Path) -> None:
    """Raise a StorageError when a file of the store is not regular or belongs to another user.

    NB: SQLite, or any open of a file by its name, would block on a named pipe.
    """
    for suffix in ("", *_SIDE_FILES):
        where = path.with_name(path.name + suffix)
        try:
            status = where.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(
                where, f"cannot be read: {error.strerror}", _USE_OTHER_DIRECTORY
            ) from error
        if stat.S_ISLNK(status.st_mode):
            raise StorageError(where, "is a symbolic link", _USE_OTHER_DIRECTORY)
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(where, "is not a regular file", _USE_OTHER_DIRECTORY)
        if status.st_uid != os.geteuid():
            what = f"belongs to another user ({status.st_uid})"
            raise StorageError(where, what, _USE_OTHER_DIRECTORY)


def reject_orphaned_wal(path: Path) -> None:
    """Raise a StorageError when the database is missing while its write-ahead log is there."""
    # NB: SQLite would replay the writes of the lost file into the new one.
    if has_wal(path):
        what = f"is missing, while {path.name}-wal with its latest writes is there"
        raise StorageError(path, what, f"put the file back, or {START_EMPTY}")


def create_file(path: Path, summary: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """Create a store with a summary and rows; a file at the path is replaced."""
    unfinished = path.with_name(path.name + ".new")
    try:
        for leftover in path.parent.glob(f"{unfinished.name}*"):
            leftover.unlink()
        # Objects hold secrets. SQLite gives the files beside this one the same mode.
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
        raise StorageError(path, f"cannot be created: {error}", advice) from error


def check_file(path: Path) -> int:
    """Return the format of the file; raise a StorageError when it is not an intact store."""
    try:
        # NB: non-blocking, because a named pipe may have no writer.
        with os.fdopen(os.open(path, os.O_RDONLY | PLAIN_FILE), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StorageError(path, "is not a regular file", _USE_OTHER_DIRECTORY)
            header = file.read(_HEADER_SIZE)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        advice = "choose another directory, or give this user the right to read the file"
        raise StorageError(path, f"cannot be read: {error.strerror}", advice) from error
    if header[: len(_MAGIC)] != _MAGIC[: len(header)] or not header:
        what = "is not a store of keepclose" if header else "is empty, which a store never is"
        raise StorageError(path, what, _USE_OTHER_DIRECTORY)
    if len(header) < _HEADER_SIZE:
        raise damaged_error(path, "it ends within its header")
    if _number(header, 68) != APPLICATION_ID:
        raise StorageError(path, "is a database of another program", _USE_OTHER_DIRECTORY)
    file_format = _number(header, 60)
    if file_format > FORMAT:
        raise StorageError(
            path,
            f"was written by a newer keepclose (format {file_format}, known is {FORMAT})",
            "use that version of keepclose, or choose another directory",
        )
    if file_format not in (FORMAT, FORMAT_WITHOUT_SUMMARY):
        raise damaged_error(path, f"it has format {file_format}, which does not exist")
    # NB: SQLite would roll such a journal back into the file; the store never has one.
    if path.with_name(path.name + "-journal").exists():
        what = f"has {path.name}-journal beside it, which a store never has"
        raise StorageError(path, what, f"move {path.name}-journal away")
    page_size = int.from_bytes(header[16:18], "big")
    want_size = _number(header, 28) * (65536 if page_size == 1 else page_size)
    # NB: with a write-ahead log, the file may be shorter than its header says.
    if size < want_size and not has_wal(path):
        raise damaged_error(path, f"it has {size} of {want_size} bytes")
    return file_format


def has_wal(path: Path) -> bool:
    """Return whether the write-ahead log holds writes that are not in the database yet."""
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _number(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def sync_directory(directory: Path) -> None:
    """Sync the names in the directory to the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """The exclusive lock of one server on a data directory and the files of its store."""

    def __init__(self, directory: Path) -> None:
        """Lock the directory, and create it where it is missing."""
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
        """Lock a file of the store as well; return its descriptor, which the lock closes."""
        try:
            handle = os.open(path, os.O_RDWR | PLAIN_FILE)
        except OSError as error:
            advice = "let only this user write to it, or choose another directory"
            raise StorageError(path, f"cannot be written: {error.strerror}", advice) from error
        self._take(handle, path)
        return handle

    def release(self) -> None:
        """Release all locks. Idempotent."""
        while self._handles:
            os.close(self._handles.pop())

    def _take(self, handle: int, path: Path) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            holder = self._holder()
            self.release()
            if error.errno in _LOCKED_ERRNOS:
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
        # NB: a hard-linked file also belongs to another program, which would lose its content.
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            self.release()
            regular = stat.S_ISREG(status.st_mode)
            what = "is a hard link to another file" if regular else "is not a regular file"
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
    """Up to which version the writes of a store were acknowledged."""

    identity: bytes
    version: int
    chain: int


def extend_chain(chain: int, version: int, checksum: int) -> int:
    """Return the chain extended by one row."""
    return crc32(b"%d %d" % (version, checksum), chain)


def mark_path(path: Path) -> Path:
    """Return the path of the mark of a store."""
    return path.with_name(path.name + MARK_SUFFIX)


def read_mark(path: Path) -> Mark | None:
    """Return the mark of the store at the path, None without a file. Raises StorageError."""
    where = mark_path(path)
    try:
        # NB: one byte more, to detect a longer file.
        with where.open("rb") as file:
            content = file.read(_MARK_SIZE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        advice = "choose another directory, or give this user the right to read the file"
        raise StorageError(where, f"cannot be read: {error.strerror}", advice) from error
    mark = None
    if len(content) == _MARK_SIZE:
        mark = Mark(*_MARK_BODY.unpack(content[: _MARK_BODY.size])[1:])
    if mark is None or content != encode_mark(*mark):
        raise damaged_error(where, "it does not match its checksum")
    return mark


def create_mark(path: Path, mark: Mark) -> None:
    """Replace the mark of the store at the path atomically, synced to the disk."""
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
    """Return the content of the file of a mark."""
    body = _MARK_BODY.pack(_MARK_MAGIC, identity, version, chain)
    return body + _MARK_CHECKSUM.pack(crc32(body))
