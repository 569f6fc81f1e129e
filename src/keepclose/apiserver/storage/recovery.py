"""Objects and history from the rows of a log, with every row held against what must be true.

The bytes must be those that were written, by their checksum; every change must replace the very
version that it says; and from the highest floor on, versions must follow one another without a
gap. A log that breaks any of this is refused as a whole: a server that starts with half of its
objects would have the controllers delete the other half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from sys import intern
from zlib import crc32

import msgspec

from keepclose.apiserver.storage.entries import ADDED, DELETED, Change, Entry, read_entry
from keepclose.apiserver.storage.errors import Malformed
from keepclose.apiserver.storage.files import damaged
from keepclose.apiserver.storage.history import FIRST_VERSION

# version, store, namespace, name, type, previous version or 0, time
Head = tuple[int, str, str, str, str, int, int]
# The same with checksum and data.
Row = tuple[int, str, str, str, str, int, int, int, bytes]


class Recovered(msgspec.Struct):
    """What a log holds."""

    version: int
    objects: dict[str, dict[tuple[str, str], Entry]]
    changes: list[Change]
    floors: dict[str, int]


def checksum(head: Head, data: bytes) -> int:
    """Return the number by which damage to a row is noticed."""
    # NB: spelled out, because this runs once for every row that is read or written.
    version, store, namespace, name, kind, previous, time = head
    text = f"{version} {store} {namespace} {name} {kind} {previous} {time}"
    return crc32(data, crc32(text.encode()))


def recover(rows: Iterable[Row], floors: Mapping[str, object], *, path: Path) -> Recovered:
    """Return what the rows, in the order of their versions, amount to."""
    known: dict[str, int] = {}
    for store, floor in floors.items():
        if not isinstance(floor, int):
            raise damaged(path, f"{store!r} cannot have been compacted up to {floor!r}")
        known[store] = floor
    found = Recovered(max(known.values(), default=FIRST_VERSION), {}, [], known)
    for row in rows:
        try:
            _replay(row, found)
        except (Malformed, TypeError, ValueError) as error:
            what = f"row {row[0]!r} of its log cannot be used: {error}"
            raise damaged(path, what) from error
    return found


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
    objects = found.objects.setdefault(store, {})
    key = (entry.namespace, name)
    previous = objects.get(key)
    if version <= found.floors.get(store, 0):
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
