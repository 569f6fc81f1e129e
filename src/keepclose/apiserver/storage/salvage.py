"""What is intact of a damaged store, made into a store of its own when its owner asks for it.

The damaged files stay, as FILE.damaged-TIME. Of each object the newest row that fits its checksum
is taken. No history is: whatever was acknowledged and is lost lies below the version at which the
new store begins, so that watches from there get 410 and no version is ever given out twice.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import structlog

from keepclose.apiserver.storage.entries import DELETED, read_entry
from keepclose.apiserver.storage.errors import DamagedError, Malformed, StorageError
from keepclose.apiserver.storage.files import create_file
from keepclose.apiserver.storage.history import FIRST_VERSION
from keepclose.apiserver.storage.marks import Mark, create_mark, mark_path, read_mark
from keepclose.apiserver.storage.recovery import Row, Summary, add_row, checksum

# The new store begins so far beyond all that is known to have been acknowledged. When the mark is
# lost too, more may have been: at most what the write-ahead log held, which is far less.
VERSION_GAP: Final = 1 << 20
_SELECT: Final = "SELECT * FROM log ORDER BY version"
_COLUMNS: Final = 9

_logger = structlog.get_logger(__name__)


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
    summary = Summary(os.urandom(16), base, base, len(current), total)
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


def _read_intact(path: Path) -> tuple[list[Row], int]:
    """Return the rows that fit their checksums, and how many do not; -1 when none can be read."""
    rows: dict[int, Row] = {}
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


def _current(rows: list[Row]) -> list[Row]:
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
