"""The log on disk: every version of every object that is still needed, in SQLite.

One row is one write, and it is the change and the object at once: the current state of an object
is the newest row of its name. So a write is a single insert at the end of the table, which is
committed before the call returns. Compacting a change removes the row that it replaced, as in etcd.
The log never decides what may be written.

The reserve is space on the disk that is kept for deletes, in a file that is truncated when the disk
is full. A delete frees space, but it is a row too and needs space first. Without a reserve only an
operator could help a server with a full disk.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Final, Literal, NamedTuple

from keepclose.apiserver.storage.entries import DELETED, StoredChange
from keepclose.apiserver.storage.errors import DiskFullError, StorageError
from keepclose.apiserver.storage.files import (
    INSERT_ROW,
    INSERT_SUMMARY,
    Lock,
    encode_mark,
    extend_chain,
)
from keepclose.apiserver.storage.recovery import (
    LogRow,
    RecoverySummary,
    add_row,
    checksum,
    remove_row,
)

__all__ = ["DroppedChange", "Log", "StorageError", "Synchronous"]

Synchronous = Literal["normal", "full"]

RESERVE_SUFFIX: Final = "-reserve"
# The final state of the largest object that a request can hold (3 MiB), in the write-ahead log and
# in the file, with the pages that the removal of old versions changes.
RESERVE_BYTES: Final = 8 << 20
# With this much space beside the reserve a store on a full disk becomes ready again.
ROOM_BYTES: Final = 4 << 20
# The interval between two checks of the files in the directory, and of the space on the disk.
_CHECK_SECONDS: Final = 1.0
# A file with at most this many bytes in use may be rewritten to shrink it. The bytes go through the
# write-ahead log, so the rewrite needs twice the space for a moment, which the reserve has.
_REWRITTEN_BYTES: Final = RESERVE_BYTES * 3 // 8
_DELETE: Final = "DELETE FROM log WHERE version = ?"
_SET_FLOOR: Final = "INSERT OR REPLACE INTO floors VALUES (?, ?)"
_DISK_FULL_ERRORS: Final = ("SQLITE_FULL", "SQLITE_IOERR_WRITE")


class Reserve:
    """The file beside a store that occupies the space kept for deletes."""

    def __init__(self, path: Path) -> None:
        """Allocate the reserve of the store at the path, if the disk has the space."""
        self._path = path.with_name(path.name + RESERVE_SUFFIX)
        self.is_held = False
        self.refill()

    def refill(self) -> bool:
        """Allocate the reserve again; return whether it is held."""
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
            # NB: a partial reserve would take space that other writes need now.
            os.ftruncate(handle, 0)
        finally:
            os.close(handle)
        return self.is_held

    def has_space(self) -> bool:
        """Return whether the disk has space for a large write beside the reserve."""
        handle = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            # NB: allocated for a moment, because the figures of a disk do not show quotas.
            os.posix_fallocate(handle, RESERVE_BYTES, ROOM_BYTES)
        except OSError:
            return False
        finally:
            os.ftruncate(handle, RESERVE_BYTES)
            os.close(handle)
        return True

    def release(self) -> bool:
        """Release the space to the store; return whether the reserve was held."""
        was_held, self.is_held = self.is_held, False
        try:
            os.truncate(self._path, 0)
        except OSError:
            return False
        return was_held


class DroppedChange(NamedTuple):
    """A change that the history has dropped, and the rows that only this change needed."""

    store: str
    version: int
    rows: tuple[int, ...]
    size: int = 0

    @classmethod
    def of(cls, change: StoredChange) -> DroppedChange:
        """Return what compaction must know of a change; it holds no object."""
        replaced = () if change.previous is None else (change.previous.version,)
        deletion = (change.version,) if change.type == DELETED else ()
        return cls(change.store, change.version, replaced + deletion, change.size)


class Log:
    """The file of a store, held open for writing."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        lock: Lock,
        *,
        summary: RecoverySummary,
        floors: dict[str, int],
        mark_handle: int,
    ) -> None:
        """Hold what `open_log` has opened; the summary covers all rows."""
        self.path = path
        self._connection = connection
        self._lock = lock
        self._summary = summary
        self._floors = floors
        self._mark_handle = mark_handle
        self._is_marked = True
        self._files: list[tuple[Path, os.stat_result | None]] = [
            (path, path.stat()),
            (path.with_name(path.name + "-wal"), None),
        ]
        self._files_checked_at = self._space_checked_at = -inf
        self._reserve = Reserve(path)
        self._failure = ""

    def append(self, changes: Sequence[StoredChange]) -> None:
        """Store changes, all or none; they are durable when the call returns."""
        rows = [_encode_row(change) for change in changes]
        self._check_files()
        if not self._is_marked:
            self._write_mark()
        self._insert(rows)
        self._add_to_summary(rows)
        self._write_mark(may_fail=True)
        if self._failure or not self._reserve.is_held:
            self._check_space()

    def acknowledge(self) -> None:
        """Record in the mark that all writes so far are acknowledged."""
        self._write_mark()

    def compact(self, dropped: Iterable[DroppedChange]) -> None:
        """Remove the rows that only these changes needed, the oldest ones of their stores."""
        versions: list[int] = []
        floors = dict(self._floors)
        for change in dropped:
            floors[change.store] = change.version
            versions += change.rows
        with self._mapped_errors("nothing is lost"), self._transaction():
            connection, summary = self._connection, self._summary
            places = ", ".join("?" * len(versions))
            select = f"SELECT version, checksum FROM log WHERE version IN ({places})"  # noqa: S608
            total, removed = summary.total, 0
            for version, row_checksum in connection.execute(select, versions).fetchall():
                total = remove_row(total, version, row_checksum)
                removed += 1
            connection.executemany(_DELETE, [(version,) for version in versions])
            connection.executemany(_SET_FLOOR, floors.items() - self._floors.items())
            summary = summary._replace(rows=summary.rows - removed, total=total)
            write_summary(connection, summary, floors)
        self._summary, self._floors = summary, floors

    def release_reserve(self) -> bool:
        """Release the reserve for a full disk; return whether it was held."""
        return self._reserve.release()

    def refill_reserve(self) -> None:
        """Allocate the reserve for a full disk again, if the disk has the space."""
        self._reserve.refill()

    def shrink(self) -> None:
        """Truncate the write-ahead log, and rewrite a file that is mostly free pages."""
        with self._mapped_errors("nothing is lost"):
            execute = self._connection.execute
            execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            (page_size,) = execute("PRAGMA page_size").fetchone()
            (pages,) = execute("PRAGMA page_count").fetchone()
            (free_pages,) = execute("PRAGMA freelist_count").fetchone()
            if free_pages * 2 > pages and (pages - free_pages) * page_size <= _REWRITTEN_BYTES:
                execute("VACUUM")
                execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def find_problem(self) -> str:
        """Return why the store cannot be written at present, "" when it can."""
        try:
            self._check_files(at_once=True)
            if not self._is_marked:
                self._write_mark()
        except StorageError as error:
            return error.what
        if self._failure or not self._reserve.is_held:
            self._check_space()
        return self._failure

    def close(self) -> None:
        """Close the file and release the lock. Idempotent."""
        self._connection.close()
        self._lock.release()

    def _check_space(self) -> None:
        """Refill the reserve and find out, without a write, whether the disk has space.

        NB: at most once a second, since anonymous clients can trigger it through /readyz.
        """
        now = time.monotonic()
        if now - self._space_checked_at < _CHECK_SECONDS:
            return
        self._space_checked_at = now
        if self._reserve.refill() and self._reserve.has_space():
            self._failure = ""
        else:
            self._failure = self._failure or "the disk is nearly full"

    def _insert(self, rows: Sequence[LogRow]) -> None:
        with self._mapped_errors("the write was not stored and may be retried"):
            if len(rows) == 1:
                self._connection.execute(INSERT_ROW, rows[0])
            else:
                with self._transaction():
                    self._connection.executemany(INSERT_ROW, rows)

    def _add_to_summary(self, rows: Sequence[LogRow]) -> None:
        identity, base, version, number, total, chain = self._summary
        for row in rows:
            version, row_checksum = row[0], row[7]
            total = add_row(total, version, row_checksum)
            chain = extend_chain(chain, version, row_checksum)
        self._summary = RecoverySummary(identity, base, version, number + len(rows), total, chain)

    def _write_mark(self, *, may_fail: bool = False) -> None:
        """Record that the latest write is acknowledged; after a failure no write is accepted."""
        identity, _, version, _, _, chain = self._summary
        try:
            os.pwrite(self._mark_handle, encode_mark(identity, version, chain), 0)
        except OSError as error:
            self._is_marked = False
            self._failure = f"the mark beside {self.path.name} cannot be written: {error.strerror}"
            if not may_fail:
                raise StorageError(self.path, self._failure, "check the disk") from error
        else:
            self._is_marked = True

    def _check_files(self, *, at_once: bool = False) -> None:
        """Reject writes into files that left the directory: those writes would be lost."""
        now = time.monotonic()
        if not at_once and now - self._files_checked_at < _CHECK_SECONDS:
            return
        for number, (path, opened) in enumerate(self._files):
            try:
                status = path.stat()
            except OSError:
                status = None
            if opened is None:
                self._files[number] = (path, status)
            elif status is None or not os.path.samestat(status, opened):
                self._files_checked_at = -inf
                what = f"{path.name} was moved, removed or replaced while in use"
                raise StorageError(path, what, "put it back, or stop the server")
        self._files_checked_at = now

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # NB: on a full disk SQLite rolls back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _mapped_errors(self, advice: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            what = f"cannot be written: {error}"
            kind = StorageError
            if getattr(error, "sqlite_errorname", "") in _DISK_FULL_ERRORS:
                kind, self._failure = DiskFullError, f"the disk cannot be written: {error}"
            raise kind(self.path, what, f"check the disk; {advice}") from error


def write_summary(
    connection: sqlite3.Connection, summary: RecoverySummary, floors: dict[str, int]
) -> None:
    """Replace the summary."""
    connection.execute("DELETE FROM summary")
    connection.execute(INSERT_SUMMARY, (*summary, summary.checksum(floors)))


def _encode_row(change: StoredChange) -> LogRow:
    entry, previous = change.entry, change.previous
    head = (
        change.version,
        change.store,
        entry.namespace,
        entry.name,
        change.type,
        0 if previous is None else previous.version,
        change.time,
    )
    return (*head, checksum(head, entry.data), entry.data)
