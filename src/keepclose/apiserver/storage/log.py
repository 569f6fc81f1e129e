"""The log on disk: every version of every object that is still of use, in SQLite.

One row is one write, and it is the change and the object at once: an object's current state is
the newest row of its name. So a write is a single insert at the end of the table, which is
committed before the call returns. Letting go of a change removes the row that it replaced, as
etcd's compaction does. Nothing here decides what may be written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from keepclose.apiserver.storage.entries import DELETED, Change
from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.files import (
    DATA_FILE,
    Lock,
    check_file,
    create_file,
    damaged,
    has_wal,
)
from keepclose.apiserver.storage.recovery import Recovered, Row, checksum, recover

__all__ = ["Dropped", "Log", "StorageError", "Synchronous", "open_log"]

Synchronous = Literal["normal", "full"]

# Seconds that a write waits for somebody who looks into the file with another program.
_BUSY_TIMEOUT: Final = 0.5
_INSERT: Final = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT: Final = "SELECT * FROM log ORDER BY version"
_DELETE: Final = "DELETE FROM log WHERE version = ?"
_SET_FLOOR: Final = "INSERT OR REPLACE INTO floors VALUES (?, ?)"


class Dropped(NamedTuple):
    """A change that is no longer known, and the rows of which there is no more use without it."""

    store: str
    version: int
    rows: tuple[int, ...]

    @classmethod
    def of(cls, change: Change) -> Dropped:
        """Return what remains to be done about a change; it holds no object."""
        replaced = () if change.previous is None else (change.previous.version,)
        gone = (change.version,) if change.type == DELETED else ()
        return cls(change.store, change.version, replaced + gone)


class Log:
    """The file of a store, held open for writing."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: Lock) -> None:
        """Hold what `open_log` made."""
        self.path = path
        self._connection = connection
        self._lock = lock

    def append(self, changes: Sequence[Change]) -> None:
        """Store changes, all or none; they are durable when the call returns."""
        rows = [_row(change) for change in changes]
        with self._errors("the write was not made and may be repeated"):
            if len(rows) == 1:
                self._connection.execute(_INSERT, rows[0])
            else:
                with self._transaction():
                    self._connection.executemany(_INSERT, rows)

    def compact(self, dropped: Iterable[Dropped]) -> None:
        """Remove what only these changes needed; they are the oldest ones of their stores."""
        rows: list[tuple[int]] = []
        floors: dict[str, int] = {}
        for change in dropped:
            floors[change.store] = change.version
            rows += [(version,) for version in change.rows]
        with self._errors("nothing is lost"), self._transaction():
            self._connection.executemany(_DELETE, rows)
            self._connection.executemany(_SET_FLOOR, floors.items())

    def close(self) -> None:
        """Close the file and give it free; a second time does nothing."""
        self._connection.close()
        self._lock.release()

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
            raise StorageError(self.path, what, f"see to the disk; {advice}") from error


def open_log(
    directory: Path, *, synchronous: Synchronous = "normal", check: bool = False
) -> tuple[Log, Recovered]:
    """Return the log of the directory and what it holds, making it where there is none.

    With `check` the whole file is looked through, not only the rows. When the file cannot be used
    it is left untouched.
    """
    lock = Lock(directory)
    path = directory / DATA_FILE
    try:
        if not path.exists():
            create_file(path)
        check_file(path)
        recovered = _read(path, check=check)
        return Log(path, _connect(path, synchronous), lock), recovered
    except BaseException:
        lock.release()
        raise


def _read(path: Path, *, check: bool) -> Recovered:
    """Return what the file holds, without writing to it."""
    shm = path.with_name(path.name + "-shm")
    had_shm = shm.exists()
    # Without a write-ahead log nothing but the file itself need be touched at all.
    mode = "mode=ro" if has_wal(path) else "immutable=1"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
        with closing(connection):
            if check:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    raise damaged(path, found)
            floors = dict(connection.execute("SELECT store, version FROM floors"))
            return recover(connection.execute(_SELECT), floors, path=path)
    except sqlite3.Error as error:
        raise damaged(path, str(error)) from error
    finally:
        if not had_shm:
            shm.unlink(missing_ok=True)


def _connect(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=_BUSY_TIMEOUT, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        # Some builds overwrite what they delete, at the price of more writes.
        connection.execute("PRAGMA secure_delete = OFF")
        # A file that may only be read shows itself here rather than at the first write.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        connection.close()
        advice = "let this user, and nobody else, write to it, or choose another directory"
        raise StorageError(path, f"cannot be written: {error}", advice) from error
    return connection


def _row(change: Change) -> Row:
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
