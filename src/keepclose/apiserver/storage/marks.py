"""The high-water mark beside a store: how far writes were acknowledged, in a file of its own.

SQLite ends the replay of its write-ahead log at the first frame that does not fit its checksum, as
if the log had ended there, and says nothing. The mark is how a start notices: it is written after
each commit and before the write is answered, so a store that ends below it has lost acknowledged
writes, while a torn commit beyond it was never answered and may go. The chain covers every row up
to the version, in order; the identity is that of the store, which tells its own files from those
of another data directory.

The mark is overwritten in place and not waited for: it survives the end of the process as the
write itself does, and one more wait for the disk would double the price of a durable write.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from keepclose.apiserver.storage.errors import StorageError
from keepclose.apiserver.storage.files import damaged

MARK_SUFFIX: Final = "-mark"
_MAGIC: Final = b"kcmark1\n"
_BODY: Final = struct.Struct(">8s16sQI")
_TOTAL: Final = struct.Struct(">I")
_SIZE: Final = _BODY.size + _TOTAL.size


class Mark(NamedTuple):
    """What was acknowledged of a store."""

    identity: bytes
    version: int
    chain: int


def link(chain: int, version: int, checksum: int) -> int:
    """Return the chain with one more row at its end."""
    return crc32(b"%d %d" % (version, checksum), chain)


def mark_path(path: Path) -> Path:
    """Return where the mark of the store at the path is."""
    return path.with_name(path.name + MARK_SUFFIX)


def read_mark(path: Path) -> Mark | None:
    """Return the mark of the store at the path, None without a file; raises StorageError."""
    where = mark_path(path)
    try:
        # NB: one byte more, so that a longer file is noticed.
        with where.open("rb") as file:
            content = file.read(_SIZE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        advice = "choose another directory, or give this user the right to read the file"
        raise StorageError(where, f"cannot be read: {error.strerror}", advice) from error
    mark = None
    if len(content) == _SIZE:
        mark = Mark(*_BODY.unpack(content[: _BODY.size])[1:])
    if mark is None or content != encode_mark(*mark):
        raise damaged(where, "it does not fit its checksum")
    return mark


def create_mark(path: Path, mark: Mark) -> None:
    """Put the mark of the store at the path in place, whole and synced."""
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
    """Return a mark as it stands in its file."""
    body = _BODY.pack(_MAGIC, identity, version, chain)
    return body + _TOTAL.pack(crc32(body))
