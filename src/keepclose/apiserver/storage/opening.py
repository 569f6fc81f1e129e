"""Opens a store: checks its files, reads them and compares them with the mark before any write.

A store that has lost acknowledged writes is rejected with an error that names the damaged file, and
its files stay as they are, to the byte. A commit that a crash tore was never acknowledged and lies
beyond the mark; it is dropped silently.

SQLite takes the first frame of its write-ahead log whose checksum does not match for the end of the
log. `find_wal_damage` reads the frames without SQLite, so that the error can name the file and the
byte. It runs only when acknowledged writes are missing: the checksum loops over all words of the
file.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Final

from keepclose.apiserver.storage.errors import DamagedError, StorageError
from keepclose.apiserver.storage.files import (
    DATA_FILE,
    FORMAT,
    FORMAT_WITHOUT_SUMMARY,
    SELECT_SCHEMA,
    START_EMPTY,
    SUMMARY_TABLE,
    Lock,
    Mark,
    check_file,
    create_file,
    create_mark,
    damaged_error,
    expected_schema,
    has_wal,
    mark_path,
    read_mark,
    reject_irregular_files,
    reject_orphaned_wal,
)
from keepclose.apiserver.storage.history import FIRST_VERSION
from keepclose.apiserver.storage.log import Log, Synchronous, write_summary
from keepclose.apiserver.storage.recovery import (
    SELECT_FLOORS,
    Recovered,
    RecoverySummary,
    read_summary,
    recover,
    salvage,
)

_WAL_HEADER_SIZE: Final = 32
_WAL_FRAME_HEADER_SIZE: Final = 24
# The last bit of the magic number says in which byte order checksums are computed.
_WAL_MAGIC: Final = 0x377F0682
_WORD_MASK: Final = 0xFFFFFFFF
# Seconds that a write waits for another program to release the file.
_BUSY_TIMEOUT: Final = 0.5
# SQLite truncates the write-ahead log to this size after a large transaction.
_WAL_BYTES_KEPT: Final = 16 << 20
_SELECT_ROWS: Final = "SELECT * FROM log ORDER BY version"


def find_wal_damage(wal: Path) -> str:
    """Return the first damaged place of the write-ahead log, "" when it is intact or empty."""
    content = wal.read_bytes() if wal.exists() else b""
    if not content:
        return ""
    if len(content) < _WAL_HEADER_SIZE:
        return "it ends within its header"
    magic, _, page_size, _ = struct.unpack_from(">IIII", content)
    order = ">" if magic & 1 else "<"
    sums = _add_words((0, 0), content[:24], order)
    if magic & ~1 != _WAL_MAGIC or sums != struct.unpack_from(">II", content, 24):
        return "its header does not match its checksum"
    salts = content[16:24]
    frame_size = _WAL_FRAME_HEADER_SIZE + page_size
    for number, start in enumerate(range(_WAL_HEADER_SIZE, len(content), frame_size), start=1):
        place = f"frame {number} at byte {start}"
        frame = content[start : start + frame_size]
        if len(frame) < frame_size:
            return f"it ends within {place}"
        if frame[8:16] != salts:
            # SQLite has restarted the log from its beginning; older frames follow.
            return (
                ""
                if number > 1 and not _has_frames(content, start, frame_size, salts)
                else (f"{place} belongs to another log")
            )
        sums = _add_words(sums, frame[:8] + frame[_WAL_FRAME_HEADER_SIZE:], order)
        if sums != struct.unpack_from(">II", frame, 16):
            return f"{place} does not match its checksum"
    return ""


def _has_frames(content: bytes, start: int, frame_size: int, salts: bytes) -> bool:
    """Return whether frames of this log follow the start."""
    return any(
        content[place + 8 : place + 16] == salts for place in range(start, len(content), frame_size)
    )


def _add_words(sums: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Return the checksum of SQLite's write-ahead log with more data."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for word in words:
        first = (first + word + second) & _WORD_MASK
        second = (second + next(words) + first) & _WORD_MASK
    return first, second


class _Contents:
    """The decoded content of the files of a store."""

    def __init__(self, recovered: Recovered, summary: RecoverySummary, *, is_old: bool) -> None:
        """Hold the rows, the summary of all of them, and whether the file is of format 1."""
        self.recovered = recovered
        self.summary = summary
        self.is_old = is_old


def open_log(
    directory: Path, *, synchronous: Synchronous = "normal", recovers: bool = False
) -> tuple[Log, Recovered]:
    """Return the log of the directory and its content; an empty store is created where none is.

    Raises StorageError and leaves the files untouched when they cannot be used. With `recovers`
    the intact rows of damaged files become a new store.
    """
    lock = Lock(directory)
    path = directory / DATA_FILE
    try:
        reject_irregular_files(path)
        _create_missing(path)
        try:
            contents = _read_contents(path, lock)
        except DamagedError as damage:
            if not recovers:
                raise
            salvage(path, damage)
            contents = _read_contents(path, lock)
        connection = _connect(path, synchronous)
        try:
            return _open_for_writing(path, connection, lock, contents), contents.recovered
        except BaseException:
            connection.close()
            raise
    except BaseException:
        lock.release()
        raise


def _create_missing(path: Path) -> None:
    if path.exists():
        return
    reject_orphaned_wal(path)
    mark = read_mark(path)
    if mark is not None and mark.version > FIRST_VERSION:
        what = f"is missing, while {mark_path(path).name} records version {mark.version}"
        raise StorageError(path, what, f"put the file back, or {START_EMPTY}")
    summary = RecoverySummary(os.urandom(16))
    try:
        # NB: the mark comes first: without a store it claims no write.
        create_mark(path, Mark(summary.identity, summary.version, summary.chain))
    except OSError as error:
        advice = "make room, or choose another directory"
        raise StorageError(path, f"cannot be created: {error}", advice) from error
    create_file(path, (*summary, summary.checksum({})), ())


def _read_contents(path: Path, lock: Lock) -> _Contents:
    """Return the content of the files, without writing to them."""
    file_format = check_file(path)
    lock.take_file(path)
    is_old = file_format == FORMAT_WITHOUT_SUMMARY
    # NB: a mark beside an old file was left by a crash during the upgrade of its format.
    mark = None if is_old else read_mark(path)
    if mark is None and not is_old:
        raise damaged_error(mark_path(path), "it is missing")
    shm = path.with_name(path.name + "-shm")
    had_shm = shm.exists()
    # Without a write-ahead log SQLite need not touch any other file.
    mode = "mode=ro" if has_wal(path) else "immutable=1"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
        with closing(connection):
            contents = _read_rows(path, connection, mark, is_old=is_old)
            if mark is not None:
                _check_against_mark(path, contents, mark)
            return contents
    except sqlite3.Error as error:
        raise damaged_error(path, str(error)) from error
    finally:
        if not had_shm:
            shm.unlink(missing_ok=True)


def _read_rows(
    path: Path, connection: sqlite3.Connection, mark: Mark | None, *, is_old: bool
) -> _Contents:
    floors = dict(connection.execute(SELECT_FLOORS))
    summary, stored = (None, 0) if is_old else read_summary(path, connection)
    recovered = recover(
        connection.execute(_SELECT_ROWS),
        floors,
        path=path,
        summary=summary,
        marked=0 if mark is None else mark.version,
    )
    if summary is not None and summary.checksum(recovered.floors) != stored:
        raise damaged_error(path, "its summary or its floors do not match their checksum")
    if connection.execute(SELECT_SCHEMA).fetchall() != expected_schema(
        FORMAT_WITHOUT_SUMMARY if is_old else FORMAT
    ):
        raise damaged_error(path, "its tables are not those of a store")
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise damaged_error(path, result)
    identity = os.urandom(16) if summary is None else summary.identity
    whole = RecoverySummary(
        identity,
        recovered.base,
        recovered.version,
        recovered.rows,
        recovered.total,
        recovered.chain,
    )
    return _Contents(recovered, whole, is_old=is_old)


def _check_against_mark(path: Path, contents: _Contents, mark: Mark) -> None:
    """Reject a store that ends before the mark, or one to which the mark does not belong."""
    if mark.identity != contents.summary.identity:
        raise damaged_error(path, f"{mark_path(path).name} belongs to another store")
    version = contents.summary.version
    if version < mark.version:
        lost = f"versions {version + 1} to {mark.version} were acknowledged and are missing"
        wal = path.with_name(path.name + "-wal")
        broken = find_wal_damage(wal)
        raise damaged_error(wal, f"{broken}; {lost}") if broken else damaged_error(path, lost)
    chain = contents.recovered.chain_at_mark
    if chain is not None and chain != mark.chain:
        what = f"version {mark.version} is not the one that was acknowledged"
        raise damaged_error(path, what)


def _connect(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=_BUSY_TIMEOUT, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}")
        # A file is rewritten only when the disk is full, and temporary files may be on that disk.
        connection.execute("PRAGMA temp_store = MEMORY")
        # Some builds of SQLite overwrite deleted rows, at the price of more writes.
        connection.execute("PRAGMA secure_delete = OFF")
        # A read-only file fails here rather than at the first write.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        connection.close()
        advice = "let only this user write to it, or choose another directory"
        raise StorageError(path, f"cannot be written: {error}", advice) from error
    return connection


def _open_for_writing(
    path: Path, connection: sqlite3.Connection, lock: Lock, contents: _Contents
) -> Log:
    summary, floors = contents.summary, contents.recovered.floors
    try:
        if contents.is_old:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(SUMMARY_TABLE)
            write_summary(connection, summary, floors)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            # NB: the mark comes before the commit: without the summary it is ignored.
            create_mark(path, Mark(summary.identity, summary.version, summary.chain))
            connection.execute("COMMIT")
            # NB: before the first response, since without its write-ahead log the file would still
            # have the old format, for which the mark is ignored.
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                raise sqlite3.OperationalError("another program reads it")
        mark_handle = lock.take_file(mark_path(path))
        log = Log(
            path,
            connection,
            lock,
            summary=summary,
            floors=dict(floors),
            mark_handle=mark_handle,
        )
    except (OSError, sqlite3.Error) as error:
        advice = "make room, or choose another directory"
        raise StorageError(path, f"cannot be written: {error}", advice) from error
    # Clients see commits that a crash left unanswered from here on, so the mark must cover them.
    log.acknowledge()
    return log
