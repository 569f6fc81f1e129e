"""Objects and history from the rows of a log, with every row held against what must be true.

The bytes must be those that were written, by their checksum; every change must replace the very
version that it says; and after the latest compaction versions must follow one another without a
gap. What compaction left behind is not contiguous, so each compaction writes a summary: how many
rows there are up to its version, and their sum. A log that breaks any of this is refused as a
whole: a server that starts with half of its objects would have the controllers delete the other
half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from sys import intern
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from keepclose.apiserver.storage.entries import ADDED, DELETED, Change, Entry, read_entry
from keepclose.apiserver.storage.errors import Malformed
from keepclose.apiserver.storage.files import damaged
from keepclose.apiserver.storage.history import FIRST_VERSION
from keepclose.apiserver.storage.marks import link

# version, store, namespace, name, type, previous version or 0, time
Head = tuple[int, str, str, str, str, int, int]
# The same with checksum and data.
Row = tuple[int, str, str, str, str, int, int, int, bytes]

# Sums of rows are cut to what an INTEGER of SQLite holds.
_SUM_MASK: Final = (1 << 62) - 1


class Summary(NamedTuple):
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
    changes: list[Change]
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
    rows: Iterable[Row],
    floors: Mapping[str, object],
    *,
    path: Path,
    summary: Summary | None = None,
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
    start = Summary(b"", version=max(known.values(), default=FIRST_VERSION))
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


def _check_sum(found: Recovered, start: Summary) -> None:
    if (found.rows, found.total) != (start.rows, start.total):
        raise Malformed(
            f"up to version {start.version} there are {found.rows} rows where {start.rows} "
            "were left, or others than those"
        )


def _replay(row: Row, found: Recovered) -> None:
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
    found.changes.append(Change(version, intern(kind), entry, previous, intern(store), time))
