"""Files that commands are given, read whole: within limits, and never for ever.

What is named may be anything: a pipe that nothing writes to, a device without an end, a file of
terabytes. Each becomes an `InputError` that says what it is and what to do, at once. A pipe that a
program writes to is read to its end, as `-f <(kubectl get ...)` needs.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

_MOST_BYTES: Final = 1 << 30
"""The largest input: a dump of a cluster of 5,000 nodes has a tenth of it, and parsed it needs many
times its size in memory."""
MOST_SETTINGS_BYTES: Final = 8 << 20
"""The largest file with settings, such as a kubeconfig with certificates."""
MOST_MANIFEST_BYTES: Final = 16 << 20
"""The largest manifest for a lab, which has 200 nodes at most; as YAML it is read in seconds."""
_PATIENCE_S: Final = 0.5
"""How long a pipe may be without a program that writes to it."""
_CHUNK: Final = 1 << 20
_NULL: Final = os.makedev(1, 3)
_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""How long a pipe may be without a program that reads from it."""


class InputError(OSError):
    """Why an input cannot be read, in a few words, and what to do about it, "" where unknown."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(errno.EINVAL, text)
        self.fix = fix

    def __str__(self) -> str:
        return str(self.strerror)


def read_input(
    path: str | os.PathLike[str], *, most: int = _MOST_BYTES, takes_pipes: bool = True
) -> bytes:
    """Return the contents of a file that a user named or that a directory has; raises InputError.

    Pipes are for files that are named: one that lies in a directory is not waited for.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise _explain(error) from error
    try:
        return _read(number, os.fstat(number), most=most, takes_pipes=takes_pipes)
    except InputError:
        raise
    except OSError as error:
        raise _explain(error) from error
    finally:
        os.close(number)


def open_source(path: str) -> Path | bytes:
    """Return a file that is read piece by piece, or the contents of a pipe; raises InputError."""
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - as os.open below
    except (OSError, ValueError) as error:
        raise _explain(error) from error
    return Path(path) if is_file else read_input(path)


def read_standard_input(*, most: int = _MOST_BYTES) -> bytes:
    """Return all of standard input; raises InputError where it is closed or a terminal."""
    fix = "pipe the text into the command, or name a file"
    # NB: None where the caller closed it.
    if sys.stdin is None or sys.stdin.closed:
        raise InputError("it is closed", fix)
    if sys.stdin.isatty():
        raise InputError("it is a terminal", fix)
    try:
        data = sys.stdin.buffer.read(most + 1)
    except (OSError, ValueError) as error:
        raise _explain(error) from error
    return _check_size(data, most)


def _read(number: int, status: os.stat_result, *, most: int, takes_pipes: bool) -> bytes:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFIFO and takes_pipes:
        return _check_size(_read_pipe(number, most), most)
    if kind == stat.S_IFDIR:
        raise InputError(os.strerror(errno.EISDIR))
    if kind in _KINDS and not (kind == stat.S_IFCHR and status.st_rdev == _NULL):
        raise InputError(f"it is {_KINDS[kind]}", "name a file")
    if status.st_size > most:
        raise _too_large(status.st_size, most)
    # NB: files below /proc say that they are empty, and others may grow meanwhile.
    chunks: list[bytes] = []
    left = most + 1
    while left > 0 and (chunk := os.read(number, min(left, max(_CHUNK, status.st_size)))):
        chunks.append(chunk)
        left -= len(chunk)
    return _check_size(b"".join(chunks), most)


def _read_pipe(number: int, most: int) -> bytes:
    """Return what a program writes into a pipe until it closes it."""
    chunks: list[bytes] = []
    left = most + 1
    until = time.monotonic() + _PATIENCE_S
    has_writer = False
    while left > 0:
        try:
            chunk = os.read(number, min(_CHUNK, left))
        except BlockingIOError:
            has_writer = True
            select.select([number], [], [])
            continue
        if not chunk:
            if has_writer or chunks:
                break
            # NB: also what a pipe says before the first program has opened it.
            if time.monotonic() > until:
                raise InputError("it is a pipe to which nothing writes", "name a file")
            time.sleep(0.01)
            continue
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _check_size(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise _too_large(None, most)
    return data


def _too_large(size: int | None, most: int) -> InputError:
    has = f"it has {size:,} bytes, " if size is not None else "it has "
    return InputError(f"{has}more than {most:,}{'' if size is not None else ' bytes'}", "divide it")


def _explain(error: OSError | ValueError) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else ""
    return InputError(reason or str(error))


def open_output(path: Path) -> BinaryIO:
    """Open a file for writing, empty; raises OSError, also for a pipe from which nothing reads."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            file = open(path, "wb", opener=_open_at_once)  # noqa: SIM115 - Path has no opener
        except OSError as error:
            # NB: also what a pipe says before the program that reads it has opened it.
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > until:
                text = "it is a pipe from which nothing reads"
                raise OSError(errno.ENXIO, text, str(path)) from error
            time.sleep(0.01)
            continue
        os.set_blocking(file.fileno(), True)
        return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
