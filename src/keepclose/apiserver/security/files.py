"""Files that hold secrets: readable by their owner alone, and never half written.

A file appears with its final content and mode 0600 in one step, so that a reader beside us sees
the old content or the new. A file that exists but cannot be used stops the start: making a new
secret in its place would lock out everyone who has the old one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BrokenFileError(Exception):
    """A file that cannot be used, and what to do about it."""

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        """Name the file, what is wrong with it and the way out."""
        super().__init__(f"{path}: {problem}; {fix}")
        self.path = path


def make_private_directory(path: Path) -> None:
    """Make the directory, with those above it; what it holds is for its owner alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Put the content at the path, readable by the owner alone."""
    with _written_beside(path, content) as beside:
        beside.replace(path)


def create_private(path: Path, content: bytes) -> bool:
    """Put the content at the path unless there is a file; return whether there was none.

    Of several that create at the same time one succeeds.
    """
    with _written_beside(path, content) as beside:
        try:
            path.hardlink_to(beside)
        except FileExistsError:
            return False
        return True


@contextmanager
def _written_beside(path: Path, content: bytes) -> Iterator[Path]:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def read_private(path: Path) -> bytes | None:
    """Return what the file holds, and take it from everyone but its owner; None without a file."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & 0o077 and status.st_uid == os.geteuid():
                os.fchmod(file.fileno(), 0o600)
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise BrokenFileError(path, problem, "make it readable or remove it") from error
