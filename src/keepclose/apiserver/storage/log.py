"""The log on disk: every version of every object that is still of use, in SQLite.

One row is one write, and it is the change and the object at once: an object's current state is
the newest row of its name. So a write is a single insert at the end of the table, which is
committed before the call returns. Letting go of a change removes the row that it replaced, as
etcd's compaction does. Nothing here decides what may be written.
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
from keepclose.apiserver.storage.files import INSERT_ROW, INSERT_SUMMARY, Lock, encode_mark, link
from keepclose.apiserver.storage.recovery import (
    LogRow,
    RecoverySummary,
    add_row,
    checksum,
    remove_row,
)

RESERVE_SUFFIX: Final = "-reserve"
# The final state of the largest object that a request can hold (3 MiB), in the write-ahead log and
# in the file, with the pages that the removal of old versions changes.
RESERVE_BYTES: Final = 8 << 20
# With so much room beside the reserve a store that ran out of it counts as ready again.
ROOM_BYTES: Final = 4 << 20
__all__ = ["Dropped", "Log", "StorageError", "Synchronous"]

Synchronous = Literal["normal", "full"]

# So often it is looked whether the files are still those that the directory holds.
_LOOK_SECONDS: Final = 1.0
# A file with no more bytes in use may be rewritten to shrink it: they go through the write-ahead
# log, so it takes twice as much room for a moment, which the reserve has.
_REWRITTEN_BYTES: Final = RESERVE_BYTES * 3 // 8
_DELETE: Final = "DELETE FROM log WHERE version = ?"
_SET_FLOOR: Final = "INSERT OR REPLACE INTO floors VALUES (?, ?)"
_NO_ROOM: Final = ("SQLITE_FULL", "SQLITE_IOERR_WRITE")


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


class Dropped(NamedTuple):
    """A change that is no longer known, and the rows of which there is no more use without it."""

    store: str
    version: int
    rows: tuple[int, ...]
    size: int = 0

    @classmethod
    def of(cls, change: StoredChange) -> Dropped:
        """Return what remains to be done about a change; it holds no object."""
        replaced = () if change.previous is None else (change.previous.version,)
        gone = (change.version,) if change.type == DELETED else ()
        return cls(change.store, change.version, replaced + gone, change.size)


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
        """Hold what `open_log` made; the summary is that of all rows there are."""
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
        self._looked_at = self._sought_at = -inf
        self._reserve = Reserve(path)
        self._failure = ""

    def append(self, changes: Sequence[StoredChange]) -> None:
        """Store changes, all or none; they are durable when the call returns."""
        rows = [_row(change) for change in changes]
        self._look_after_files()
        if not self._is_marked:
            self._write_mark()
        self._insert(rows)
        self._count(rows)
        self._write_mark(may_fail=True)
        if self._failure or not self._reserve.is_held:
            self._look_for_room()

    def acknowledge(self) -> None:
        """Say that everything stored so far is known to clients."""
        self._write_mark()

    def compact(self, dropped: Iterable[Dropped]) -> None:
        """Remove what only these changes needed; they are the oldest ones of their stores."""
        versions: list[int] = []
        floors = dict(self._floors)
        for change in dropped:
            floors[change.store] = change.version
            versions += change.rows
        with self._errors("nothing is lost"), self._transaction():
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
        """Give up the room that is kept for a full disk; return whether there was any."""
        return self._reserve.release()

    def refill_reserve(self) -> None:
        """Take the room for a full disk again, as far as there is any."""
        self._reserve.refill()

    def shrink(self) -> None:
        """Give room back: that of the write-ahead log, and of a file that is mostly free pages."""
        with self._errors("nothing is lost"):
            execute = self._connection.execute
            execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            (page_size,) = execute("PRAGMA page_size").fetchone()
            (pages,) = execute("PRAGMA page_count").fetchone()
            (free_pages,) = execute("PRAGMA freelist_count").fetchone()
            if free_pages * 2 > pages and (pages - free_pages) * page_size <= _REWRITTEN_BYTES:
                execute("VACUUM")
                execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def find_problem(self) -> str:
        """Return why writes cannot be made at present, "" when they can."""
        try:
            self._look_after_files(at_once=True)
            if not self._is_marked:
                self._write_mark()
        except StorageError as error:
            return error.what
        if self._failure or not self._reserve.is_held:
            self._look_for_room()
        return self._failure

    def _look_for_room(self) -> None:
        """Take the reserve back, if there is room, and find out without a write whether there is.

        At most once a second, since anonymous clients may ask.
        """
        now = time.monotonic()
        if now - self._sought_at < _LOOK_SECONDS:
            return
        self._sought_at = now
        if self._reserve.refill() and self._reserve.has_room():
            self._failure = ""
        else:
            self._failure = self._failure or "the disk is nearly full"

    def close(self) -> None:
        """Close the file and give it free; a second time does nothing."""
        self._connection.close()
        self._lock.release()

    def _insert(self, rows: Sequence[LogRow]) -> None:
        with self._errors("the write was not made and may be repeated"):
            if len(rows) == 1:
                self._connection.execute(INSERT_ROW, rows[0])
            else:
                with self._transaction():
                    self._connection.executemany(INSERT_ROW, rows)

    def _count(self, rows: Sequence[LogRow]) -> None:
        identity, base, version, number, total, chain = self._summary
        for row in rows:
            version, row_checksum = row[0], row[7]
            total = add_row(total, version, row_checksum)
            chain = link(chain, version, row_checksum)
        self._summary = RecoverySummary(identity, base, version, number + len(rows), total, chain)

    def _write_mark(self, *, may_fail: bool = False) -> None:
        """Say that the latest write is acknowledged; one that cannot be said stops the next."""
        identity, _, version, _, _, chain = self._summary
        try:
            os.pwrite(self._mark_handle, encode_mark(identity, version, chain), 0)
        except OSError as error:
            self._is_marked = False
            self._failure = f"the mark beside {self.path.name} cannot be written: {error.strerror}"
            if not may_fail:
                raise StorageError(self.path, self._failure, "see to the disk") from error
        else:
            self._is_marked = True

    def _look_after_files(self, *, at_once: bool = False) -> None:
        """Refuse to write into files that are no longer in the directory: all would be lost."""
        now = time.monotonic()
        if not at_once and now - self._looked_at < _LOOK_SECONDS:
            return
        for number, (path, known) in enumerate(self._files):
            try:
                status = path.stat()
            except OSError:
                status = None
            if known is None:
                self._files[number] = (path, status)
            elif status is None or not os.path.samestat(status, known):
                self._looked_at = -inf
                what = f"{path.name} was moved, removed or replaced while in use"
                raise StorageError(path, what, "put it back, or stop the server")
        self._looked_at = now

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # NB: a full disk makes SQLite roll back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self, advice: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            what = f"cannot be written: {error}"
            kind = StorageError
            if getattr(error, "sqlite_errorname", "") in _NO_ROOM:
                kind, self._failure = DiskFullError, f"the disk cannot be written: {error}"
            raise kind(self.path, what, f"see to the disk; {advice}") from error


def write_summary(
    connection: sqlite3.Connection, summary: RecoverySummary, floors: dict[str, int]
) -> None:
    """Put the summary in the place of the former one."""
    connection.execute("DELETE FROM summary")
    connection.execute(INSERT_SUMMARY, (*summary, summary.checksum(floors)))


def _row(change: StoredChange) -> LogRow:
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
