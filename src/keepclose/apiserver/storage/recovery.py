"""Objects and history from the rows of a log, with every row held against what must be true.

The bytes must be those that were written, by their checksum; every change must replace the very
version that it says; and after the latest compaction versions must follow one another without a
gap. What compaction left behind is not contiguous, so each compaction writes a summary: how many
rows there are up to its version, and their sum. A log that breaks any of this is refused as a
whole: a server that starts with half of its objects would have the controllers delete the other
half.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Mapping
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
    damaged,
    link,
    mark_path,
    read_mark,
)
from keepclose.apiserver.storage.history import FIRST_VERSION

# version, store, namespace, name, type, previous version or 0, time
Head = tuple[int, str, str, str, str, int, int]
# The same with checksum and data.
LogRow = tuple[int, str, str, str, str, int, int, int, bytes]

# Sums of rows are cut to what an INTEGER of SQLite holds.
_SUM_MASK: Final = (1 << 62) - 1
# The new store begins so far beyond all that is known to have been acknowledged. When the mark is
# lost too, more may have been: at most what the write-ahead log held, which is far less.
VERSION_GAP: Final = 1 << 20
_SELECT: Final = "SELECT * FROM log ORDER BY version"
_COLUMNS: Final = 9

_logger = structlog.get_logger(__name__)


class RecoverySummary(NamedTuple):
    """What a log holds up to a version, as its latest compaction left it."""

    identity: bytes
    # Of no store is anything known up to this version.
    base: int = FIRST_VERSION
    version: int = FIRST_VERSION
    rows: int = 0
    total: int = 0
    chain: int = 0

    def checksum(self, floors: Mapping[str, int]) -> int:
        """Return the number by which damage to the summary or to the floors is noticed."""
        return crc32(repr((tuple(self), sorted(floors.items()))).encode())


class Recovered(msgspec.Struct):
    """What a log holds."""

    version: int
    objects: dict[str, dict[tuple[str, str], Entry]]
    changes: list[StoredChange]
    floors: dict[str, int]
    base: int = FIRST_VERSION
    # Number and sum of all rows, and the chain up to the version.
    rows: int = 0
    total: int = 0
    chain: int = 0
    # The chain at the version that was asked for, None when that was compacted or not reached.
    chain_at_mark: int | None = None


def checksum(head: Head, data: bytes) -> int:
    """Return the number by which damage to a row is noticed."""
    # NB: spelled out, because this runs once for every row that is read or written.
    version, store, namespace, name, kind, previous, time = head
    text = f"{version} {store} {namespace} {name} {kind} {previous} {time}"
    return crc32(data, crc32(text.encode()))


def add_row(total: int, version: int, row_checksum: int) -> int:
    """Return the sum of rows with one more."""
    return (total + (version << 32 | row_checksum)) & _SUM_MASK


def remove_row(total: int, version: int, row_checksum: int) -> int:
    """Return the sum of rows with one less."""
    return (total - (version << 32 | row_checksum)) & _SUM_MASK


def recover(
    rows: Iterable[LogRow],
    floors: Mapping[str, object],
    *,
    path: Path,
    summary: RecoverySummary | None = None,
    marked: int = 0,
) -> Recovered:
    """Return what the rows, in the order of their versions, amount to.

    `marked` is the version at which the chain is wanted. Without a summary, as in files of
    format 1, rows below the highest floor may be missing unnoticed.
    """
    known: dict[str, int] = {}
    for store, floor in floors.items():
        if not isinstance(floor, int):
            raise damaged(path, f"{store!r} cannot have been compacted up to {floor!r}")
        known[store] = floor
    start = RecoverySummary(b"", version=max(known.values(), default=FIRST_VERSION))
    start = summary or start
    found = Recovered(start.version, {}, [], known, start.base, chain=start.chain)
    if marked == start.version:
        found.chain_at_mark = start.chain
    checked = summary is None
    for row in rows:
        try:
            if not checked and row[0] > start.version:
                _check_sum(found, start)
                checked = True
            _replay(row, found)
            if row[0] == marked:
                found.chain_at_mark = found.chain
        except (Malformed, TypeError, ValueError) as error:
            what = f"row {row[0]!r} of its log cannot be used: {error}"
            raise damaged(path, what) from error
    if not checked:
        try:
            _check_sum(found, start)
        except Malformed as error:
            raise damaged(path, str(error)) from error
    return found


def _check_sum(found: Recovered, start: RecoverySummary) -> None:
    if (found.rows, found.total) != (start.rows, start.total):
        raise Malformed(
            f"up to version {start.version} there are {found.rows} rows where {start.rows} "
            "were left, or others than those"
        )


def _replay(row: LogRow, found: Recovered) -> None:
    version, store, namespace, name, kind, replaced, time, total, data = row
    if total != checksum(row[:7], data):
        raise Malformed("the checksum does not fit")
    entry = read_entry(data, version)
    if entry.namespace != namespace or entry.name != name:
        raise Malformed(f"it is filed as {namespace}/{name}")
    if version > found.version:
        if version != found.version + 1:
            raise Malformed(f"version {found.version + 1} is missing")
        found.version = version
        found.chain = link(found.chain, version, total)
    found.rows += 1
    found.total = add_row(found.total, version, total)
    objects = found.objects.setdefault(store, {})
    key = (entry.namespace, name)
    previous = objects.get(key)
    if version <= found.floors.get(store, found.base):
        # What is this old is there only because it is still current or was replaced later.
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
    found.changes.append(StoredChange(version, intern(kind), entry, previous, intern(store), time))


def salvage(path: Path, damage: DamagedError) -> None:
    """Put a store with what is intact in the place of a damaged one, which is kept aside."""
    rows, damaged_rows = _read_intact(path)
    if not rows and damaged_rows < 0:
        raise StorageError(path, damage.what, "nothing of it can be read; " + damage.advice)
    mark = None
    with suppress(StorageError):
        mark = read_mark(path)
    newest = max([FIRST_VERSION, *(row[0] for row in rows)])
    acknowledged = max(newest, 0 if mark is None else mark.version)
    base = acknowledged + VERSION_GAP
    current = _current(rows)
    total = 0
    for row in current:
        total = add_row(total, row[0], row[7])
    summary = RecoverySummary(os.urandom(16), base, base, len(current), total)
    kept = _keep_aside(path)
    # NB: from here on a crash leaves a mark that no file satisfies, never a store that seems whole.
    create_mark(path, Mark(summary.identity, summary.version, summary.chain))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    create_file(path, (*summary, summary.checksum({})), current)
    _logger.warning(
        "store recovered from damaged files",
        damage=str(damage.what),
        objects=len(current),
        newest_intact_version=newest,
        lost_versions=_describe_lost(newest, mark),
        damaged_rows=max(damaged_rows, 0),
        next_version=base + 1,
        kept=kept,
    )


def _describe_lost(newest: int, mark: Mark | None) -> str:
    if mark is None:
        return f"unknown: {newest} is the newest that is intact, and the mark is lost"
    if mark.version > newest:
        return f"{newest + 1} to {mark.version}"
    return "none above the newest that is intact"


def _read_intact(path: Path) -> tuple[list[LogRow], int]:
    """Return the rows that fit their checksums, and how many do not; -1 when none can be read."""
    rows: dict[int, LogRow] = {}
    rejected: set[object] = set()
    shm = path.with_name(path.name + "-shm")
    had_shm = shm.exists()
    is_readable = False
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            # NB: a broken page ends a scan; the scan from the other end finds what is beyond it.
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
    return [rows[version] for version in sorted(rows)], len(rejected) if is_readable else -1


def _is_intact(row: Any) -> bool:
    try:
        if len(row) != _COLUMNS or row[7] != checksum(row[:7], row[8]):
            return False
        entry = read_entry(row[8], row[0])
    except (Malformed, TypeError, ValueError):
        return False
    return (entry.namespace, entry.name) == (row[2], row[3])


def _current(rows: list[LogRow]) -> list[LogRow]:
    """Return the newest row of each object that is not deleted, in the order of versions."""
    newest = {row[1:4]: row for row in rows}
    return sorted((row for row in newest.values() if row[4] != DELETED), key=lambda row: row[0])


def _keep_aside(path: Path) -> list[str]:
    """Give the files second names, under which they stay; return these."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept: list[str] = []
    for source in (path, path.with_name(path.name + "-wal"), mark_path(path)):
        if source.exists():
            aside = source.with_name(f"{source.name}.damaged-{when}")
            aside.unlink(missing_ok=True)
            aside.hardlink_to(source)
            kept.append(aside.name)
    return kept
