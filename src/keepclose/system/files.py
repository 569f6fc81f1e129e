"""The files that the user names: read whole, within limits, and opened for writing without a hang.

A path may name anything: a pipe without a writer, an endless device, a file of terabytes. Each is
rejected at once by an `InputError` that says what it is and what to do. A pipe that a program
writes to is read to its end, as `-f <(kubectl get ...)` needs. A pipe that no program reads is
rejected as an output.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import stat
import sys
import time
import zlib
from pathlib import Path
from typing import BinaryIO, Final

MAX_SETTINGS_BYTES: Final = 8 << 20
"""The largest file of settings, such as a kubeconfig with certificates."""
MAX_MANIFEST_BYTES: Final = 16 << 20
"""The largest manifest of a lab, which has 200 nodes at most; as YAML it is parsed in seconds."""
_MAX_BYTES: Final = 1 << 30
"""The largest input: a dump of a cluster of 5,000 nodes has a tenth of it; parsed, it needs many
times its size in memory."""
_PIPE_WAIT_S: Final = 0.5
"""How long a pipe may be without a program at its other end."""
_CHUNK: Final = 1 << 20
_MOST_LINKS: Final = 40
"""How many links are followed, as by the kernel."""
_GZIP: Final = b"\x1f\x8b"
_NULL: Final = os.makedev(1, 3)
_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class InputError(OSError):
    """The reason why an input cannot be read, and the fix, "" where there is none."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(errno.EINVAL, text)
        self.fix = fix

    def __str__(self) -> str:
        return str(self.strerror)


def read_input(
    path: str | os.PathLike[str], *, most: int = _MAX_BYTES, takes_pipes: bool = True
) -> bytes:
    """Return the content of a file that the user named or a directory contains; raise InputError.

    Only a named file may be a pipe; for one in a directory use `takes_pipes=False`.
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
    """Return the path of a regular file, or the content of a pipe; raise InputError."""
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - as os.open below
    except (OSError, ValueError) as error:
        raise _explain(error) from error
    return Path(path) if is_file else read_input(path)


def read_standard_input(*, most: int = _MAX_BYTES) -> bytes:
    """Return all of standard input; raise InputError when it is closed or a terminal."""
    fix = "pipe the text into the command, or name a file"
    # NB: None when the parent process closed it.
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
    # NB: files below /proc report a size of 0, and others may grow meanwhile.
    chunks: list[bytes] = []
    left = most + 1
    while left > 0 and (chunk := os.read(number, min(left, max(_CHUNK, status.st_size)))):
        chunks.append(chunk)
        left -= len(chunk)
    return _check_size(b"".join(chunks), most)


def _read_pipe(number: int, most: int) -> bytes:
    """Return what programs write into a pipe until the last one closes it."""
    chunks: list[bytes] = []
    left = most + 1
    until = time.monotonic() + _PIPE_WAIT_S
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
            # NB: a pipe also returns nothing before the first writer has opened it.
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


def unpack_input(data: bytes, *, most: int = _MAX_BYTES) -> bytes:
    """Return the content of a gzip file, other data as it is; raise InputError if it is damaged."""
    if not data.startswith(_GZIP):
        return data
    # NB: a file of a kilobyte may unpack to a gigabyte, so no more than allowed is unpacked.
    decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = decoder.decompress(data, most + 1)
    except zlib.error:
        raise InputError("it is a damaged gzip file") from None
    if len(content) <= most and not decoder.eof:
        raise InputError("it is a gzip file that ends early", "make or copy it again")
    return _check_size(content, most)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, as a whole or not at all; raise OSError.

    An existing file is replaced; anything else of that name is an error. So is a link that another
    user made where everyone can write, such as /tmp: it could lead to any file of this user.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it exists and is no file", str(path))
    target = _follow_links(path)
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _follow_links(path: Path) -> Path:
    """Return the file that a path leads to; raise OSError for a link that cannot be trusted.

    A link is followed, or it would be replaced and its target would keep the old content. NB: the
    kernel refuses foreign links in such directories only to those who open them, and a file that
    takes the place of another one is not opened.
    """
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path
        owner, parent = path.lstat().st_uid, path.parent.stat()
        is_common = parent.st_mode & stat.S_ISVTX and parent.st_mode & stat.S_IWOTH
        if is_common and owner not in (os.geteuid(), parent.st_uid):
            raise OSError(errno.EACCES, "it is a link of another user", str(path))
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def open_output(path: Path) -> BinaryIO:
    """Open a file for writing, truncated; raise OSError, also for a pipe that no program reads."""
    until = time.monotonic() + _PIPE_WAIT_S
    while True:
        try:
            file = open(path, "wb", opener=_open_without_blocking)  # noqa: SIM115 - Path has no opener
        except OSError as error:
            # NB: a pipe also fails so before its reader has opened it.
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > until:
                text = "it is a pipe from which nothing reads"
                raise OSError(errno.ENXIO, text, str(path)) from error
            time.sleep(0.01)
            continue
        os.set_blocking(file.fileno(), True)
        return file


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
