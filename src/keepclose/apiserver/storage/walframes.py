"""The frames of SQLite's write-ahead log, read without SQLite to find out where one is damaged.

SQLite takes the first frame whose checksum does not fit for the end of the log. This tells the
place, so that the file and the byte can be named when acknowledged writes turn out to be missing.
It runs only then: the checksum is a loop over all words of the file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

_HEADER_SIZE: Final = 32
_FRAME_HEADER_SIZE: Final = 24
# The last bit of the magic number says in which byte order checksums are computed.
_MAGIC: Final = 0x377F0682
_MASK: Final = 0xFFFFFFFF


def find_wal_damage(wal: Path) -> str:
    """Return where the write-ahead log stops being usable, "" when all of it can be read."""
    content = wal.read_bytes() if wal.exists() else b""
    if not content:
        return ""
    if len(content) < _HEADER_SIZE:
        return "it ends within its header"
    magic, _, page_size, _ = struct.unpack_from(">IIII", content)
    order = ">" if magic & 1 else "<"
    sums = _add_words((0, 0), content[:24], order)
    if magic & ~1 != _MAGIC or sums != struct.unpack_from(">II", content, 24):
        return "its header does not fit its checksum"
    salts = content[16:24]
    frame_size = _FRAME_HEADER_SIZE + page_size
    for number, start in enumerate(range(_HEADER_SIZE, len(content), frame_size), start=1):
        place = f"frame {number} at byte {start}"
        frame = content[start : start + frame_size]
        if len(frame) < frame_size:
            return f"it ends within {place}"
        if frame[8:16] != salts:
            # The log was begun again from its start; what follows is what it held before.
            return (
                ""
                if number > 1 and not _has_frames(content, start, frame_size, salts)
                else (f"{place} belongs to another log")
            )
        sums = _add_words(sums, frame[:8] + frame[_FRAME_HEADER_SIZE:], order)
        if sums != struct.unpack_from(">II", frame, 16):
            return f"{place} does not fit its checksum"
    return ""


def _has_frames(content: bytes, start: int, frame_size: int, salts: bytes) -> bool:
    """Return whether frames of this log follow the place."""
    return any(
        content[place + 8 : place + 16] == salts for place in range(start, len(content), frame_size)
    )


def _add_words(sums: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Return the checksum of SQLite's write-ahead log with more data."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for word in words:
        first = (first + word + second) & _MASK
        second = (second + next(words) + first) & _MASK
    return first, second
