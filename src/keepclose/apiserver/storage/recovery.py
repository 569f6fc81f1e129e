"""Rebuilds objects and history from the rows of a log, and verifies every row.

Each row must match its checksum; every change must replace exactly the version that it names; and
after the latest compaction the versions must be contiguous. Rows that compaction has kept are not
contiguous, so each compaction writes a summary: the number of rows up to its version, and their
sum. A log that breaks any of this is rejected as a whole: if a server started with half of its
objects, controllers would delete the other half.

`salvage` creates a new store from the intact rows of a damaged one when the operator asks for it.
The damaged files stay, as FILE.damaged-TIME. Of each object the newest row that matches its
checksum is used, and no history. Lost writes that were acknowledged lie below the first version of
the new store, so watches from there get 410 and no version is ever assigned twice.
"""

from __future__ import annotations

import os
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
import structlog

from keepclose.apiserver.storage.entries import ADDED, DELETED, Entry, StoredChange, read_entry
from keepclose.apiserver.storage.errors import DamagedError, Malformed, StorageError
from keepclose.apiserver.storage.files import (
    Mark,
    create_file,
    create_mark,
    damaged_error,
    extend_chain,
    mark_path,
    read_mark,
)
from keepclose.apiserver.storage.history import FIRST_VERSION

# version, store, namespace, name, type, previous version or 0, time
Head = tuple[int, str, str, str, str, int, int]
# The same with checksum and data.
LogRow = tuple[int, str, str, str, str, int, int, int, bytes]

# Sums of rows are limited to what an INTEGER of SQLite holds.
_SUM_MASK: Final = (1 << 62) - 1
# How far beyond the acknowledged versions a salvaged store begins. When the mark is lost too, more
# versions may have been acknowledged: at most those in the write-ahead log, which are far fewer.
VERSION_GAP: Final = 1 << 20
SELECT_FLOORS: Final = "SELECT store, version FROM floors"
_SELECT: Final = "SELECT * FROM log ORDER BY version"
# How many gaps between versions the log line of a recovery names.
_MAX_GAPS: Final = 20
_COLUMNS: Final = 9

_log = structlog.get_logger(__name__)


class RecoverySummary(NamedTuple):
    """Number, sum and chain of the rows of a log up to the version of its latest compaction."""

    identity: bytes
    # No store has history up to this version.
    base: int = FIRST_VERSION
    version: int = FIRST_VERSION
    rows: int = 0
    total: int = 0
    chain: int = 0

    def checksum(self, floors: Mapping[str, int]) -> int:
        """Return the checksum of the summary and the floors."""
        return crc32(repr((tuple(self), sorted(floors.items()))).encode())


class Recovered(msgspec.Struct):
    """The objects and the history of a log."""

    version: int
    objects: dict[str, dict[tuple[str, str], Entry]]
    changes: list[StoredChange]
    floors: dict[str, int]
    base: int = FIRST_VERSION
    # Number and sum of all rows, and the chain up to the version.
    rows: int = 0
    total: int = 0
    chain: int = 0
    # The chain at the version of the mark, None when that was compacted or not reached.
    chain_at_mark: int | None = None


def checksum(head: Head, data: bytes) -> int:
    """Return the checksum of a row."""
    # NB: written out, because this runs for every row that is read or written.
    version, store, namespace, name, kind, previous, time = head
    text = f"{version} {store} {namespace} {name} {kind} {previous} {time}"
    return crc32(data, crc32(text.encode()))


def add_row(total: int, version: int, row_checksum: int) -> int:
    """Return the sum of rows with one row added."""
    return (total + (version << 32 | row_checksum)) & _SUM_MASK


def remove_row(total: int, version: int, row_checksum: int) -> int:
    """Return the sum of rows with one row removed."""
    return (total - (version << 32 | row_checksum)) & _SUM_MASK


def recover(
    rows: Iterable[LogRow],
    floors: Mapping[str, object],
    *,
    path: Path,
    summary: RecoverySummary | None = None,
    marked: int = 0,
) -> Recovered:
    """Return the objects and the history of the rows, which come in the order of their versions.

    `marked` is the version for `chain_at_mark`. Without a summary, as in files of format 1, missing
    rows below the highest floor go undetected. Raises DamagedError.
    """
    checked_floors: dict[str, int] = {}
    for store, floor in floors.items():
        if not isinstance(floor, int):
            raise damaged_error(path, f"{store!r} cannot have been compacted up to {floor!r}")
        checked_floors[store] = floor
    start = RecoverySummary(b"", version=max(checked_floors.values(), default=FIRST_VERSION))
    start = summary or start
    recovered = Recovered(start.version, {}, [], checked_floors, start.base, chain=start.chain)
    if marked == start.version:
        recovered.chain_at_mark = start.chain
    checked = summary is None
    for row in rows:
        try:
            if not checked and row[0] > start.version:
                _check_sum(recovered, start)
                checked = True
            _replay(row, recovered)
            if row[0] == marked:
                recovered.chain_at_mark = recovered.chain
        except (Malformed, TypeError, ValueError) as error:
            what = f"row {row[0]!r} of its log cannot be used: {error}"
            raise damaged_error(path, what) from error
    if not checked:
        try:
            _check_sum(recovered, start)
        except Malformed as error:
            raise damaged_error(path, str(error)) from error
    return recovered


def _check_sum(recovered: Recovered, start: RecoverySummary) -> None:
    if (recovered.rows, recovered.total) != (start.rows, start.total):
        raise Malformed(
            f"up to version {start.version} there are {recovered.rows} rows where {start.rows} "
            "were left, or others than those"
        )


def _replay(row: LogRow, recovered: Recovered) -> None:
    version, store, namespace, name, kind, replaced, time, row_checksum, data = row
    if row_checksum != checksum(row[:7], data):
        raise Malformed("the checksum does not match")
    entry = read_entry(data, version)
    if entry.namespace != namespace or entry.name != name:
        raise Malformed(f"its key is {namespace}/{name}")
    if version > recovered.version:
        if version != recovered.version + 1:
            raise Malformed(f"version {recovered.version + 1} is missing")
        recovered.version = version
        recovered.chain = extend_chain(recovered.chain, version, row_checksum)
    recovered.rows += 1
    recovered.total = add_row(recovered.total, version, row_checksum)
    objects = recovered.objects.setdefault(store, {})
    key = (entry.namespace, name)
    previous = objects.get(key)
    if version <= recovered.floors.get(store, recovered.base):
        # Compaction keeps a row this old only when it is current or was replaced later.
        if previous is not None or kind == DELETED:
            raise Malformed("it should have been removed")
        objects[key] = entry
        return
    if replaced != (0 if previous is None else previous.version) or (kind == ADDED) != (
        previous is None
    ):
        raise Malformed(f"version {replaced}, which it replaced, is not there")
    if kind == DELETED:
        del objects[key]
    else:
        objects[key] = entry
    recovered.changes.append(
        StoredChange(version, intern(kind), entry, previous, intern(store), time)
    )


def salvage(path: Path, damage: DamagedError) -> None:
    """Replace a damaged store by one with its intact rows; the damaged files are kept aside."""
    rows, damaged_rows, before = _read_intact(path)
    if not rows and damaged_rows < 0:
        raise StorageError(path, damage.what, "no row is readable; " + damage.advice)
    mark = None
    with suppress(StorageError):
        mark = read_mark(path)
    newest = max([FIRST_VERSION, *(row[0] for row in rows)])
    acknowledged = max(newest, 0 if mark is None else mark.version)
    base = acknowledged + VERSION_GAP
    current = _current_rows(rows)
    total = 0
    for row in current:
        total = add_row(total, row[0], row[7])
    summary = RecoverySummary(os.urandom(16), base, base, len(current), total)
    kept = _keep_aside(path)
    # NB: from here on a crash leaves a mark that no file matches, never a store that seems intact.
    create_mark(path, Mark(summary.identity, summary.version, summary.chain))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    create_file(path, (*summary, summary.checksum({})), current)
    _log.warning(
        "store recovered from damaged files",
        damage=str(damage.what),
        objects=len(current),
        newest_intact_version=newest,
        lost_versions=_describe_lost([row[0] for row in rows], mark, before),
        damaged_rows=max(damaged_rows, 0),
        next_version=base + 1,
        kept=kept,
    )


def _describe_lost(
    versions: Sequence[int], mark: Mark | None, summary: RecoverySummary | None
) -> str:
    """Return which versions are missing among the intact ones, which are in order.

    Up to the version of the summary only their number is known: compaction has removed others.
    """
    newest = versions[-1] if versions else FIRST_VERSION
    if mark is None:
        return f"unknown: {newest} is the newest that is intact, and the mark is lost"
    if summary is None:
        lost = f"unknown up to {newest}, because the summary of the log is lost"
        return f"{lost}; {newest + 1} to {mark.version}" if mark.version > newest else lost
    lost_rows: list[str] = []
    older = summary.rows - bisect_right(versions, summary.version)
    if older > 0:
        lost_rows.append(f"{older} of the {summary.rows} kept up to {summary.version}")
    expected = summary.version + 1
    later = [version for version in versions if version > summary.version]
    for version in (*later, max(mark.version, newest) + 1):
        if version > expected:
            last = version - 1
            lost_rows.append(f"{expected} to {last}" if last > expected else f"{expected}")
        expected = version + 1
    if len(lost_rows) > _MAX_GAPS:
        lost_rows[_MAX_GAPS:] = [f"{len(lost_rows) - _MAX_GAPS} more gaps"]
    return ", ".join(lost_rows) or "none"


def read_summary(path: Path, connection: sqlite3.Connection) -> tuple[RecoverySummary, int]:
    """Return the summary and its stored checksum; raise DamagedError if there is none."""
    rows = connection.execute("SELECT * FROM summary").fetchall()
    types = (bytes, int, int, int, int, int, int)
    if len(rows) != 1 or tuple(map(type, rows[0])) != types:
        raise damaged_error(path, "its summary cannot be read")
    return RecoverySummary(*rows[0][:-1]), rows[0][-1]


def _read_intact_summary(path: Path, connection: sqlite3.Connection) -> RecoverySummary | None:
    with suppress(sqlite3.Error, DamagedError, TypeError, ValueError):
        summary, stored = read_summary(path, connection)
        if summary.checksum(dict(connection.execute(SELECT_FLOORS))) == stored:
            return summary
    return None


def _read_intact(path: Path) -> tuple[list[LogRow], int, RecoverySummary | None]:
    """Return the rows that match their checksums, how many do not, and the summary if it does.

    -1 rows that do not match mean that none is readable.
    """
    summary: RecoverySummary | None = None
    rows: dict[int, LogRow] = {}
    rejected: set[object] = set()
    shm = path.with_name(path.name + "-shm")
    had_shm = shm.exists()
    is_readable = False
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            summary = _read_intact_summary(path, connection)
            # NB: a damaged page ends a scan; the scan from the other end reads the rows beyond it.
            for order in ("", " DESC"):
                with suppress(sqlite3.Error):
                    for row in connection.execute(_SELECT + order):
                        is_readable = True
                        if _is_intact(row):
                            rows[row[0]] = row
                        else:
                            rejected.add(row[0])
                    is_readable = True
    except sqlite3.Error:
        pass
    finally:
        if not had_shm:
            shm.unlink(missing_ok=True)
    intact = [rows[version] for version in sorted(rows)]
    return intact, len(rejected) if is_readable else -1, summary


def _is_intact(row: Any) -> bool:
    try:
        if len(row) != _COLUMNS or row[7] != checksum(row[:7], row[8]):
            return False
        entry = read_entry(row[8], row[0])
    except (Malformed, TypeError, ValueError):
        return False
    return (entry.namespace, entry.name) == (row[2], row[3])


def _current_rows(rows: list[LogRow]) -> list[LogRow]:
    """Return the newest row of each object that is not deleted, in the order of versions."""
    newest = {row[1:4]: row for row in rows}
    return sorted((row for row in newest.values() if row[4] != DELETED), key=lambda row: row[0])


def _keep_aside(path: Path) -> list[str]:
    """Link the files under second names, which keep them; return those names."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept: list[str] = []
    for source in (path, path.with_name(path.name + "-wal"), mark_path(path)):
        if source.exists():
            aside = source.with_name(f"{source.name}.damaged-{when}")
            aside.unlink(missing_ok=True)
            aside.hardlink_to(source)
            kept.append(aside.name)
    return kept
