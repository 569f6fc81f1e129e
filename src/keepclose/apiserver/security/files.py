"""Files that hold secrets: readable by their owner alone, and never half written.

A file appears with its final content and mode 0600 in one step, so that a reader beside us sees
the old content or the new. A file that exists but cannot be used stops the start: making a new
secret in its place would lock out everyone who has the old one. `directories` says which files and
directories count as ours.
"""

from __future__ import annotations

from pathlib import Path

from keepclose.system.private_files import BrokenFileError, PrivateDirectory

__all__ = [
    "BrokenFileError",
    "create_private",
    "make_private_directory",
    "read_private",
    "remove_private",
    "write_private",
]


def make_private_directory(path: Path) -> None:
    """Make the directory, with those above it; what it holds is for its owner alone."""
    PrivateDirectory.open(path, make=True).close()


def write_private(path: Path, content: bytes) -> None:
    """Put the content at the path, readable by the owner alone."""
    with PrivateDirectory.open(path.parent) as directory:
        directory.write(path.name, content)


def create_private(path: Path, content: bytes) -> bool:
    """Put the content at the path unless there is a file; return whether there was none.

    Of several that create at the same time one succeeds.
    """
    with PrivateDirectory.open(path.parent) as directory:
        return directory.create(path.name, content)


def read_private(path: Path) -> bytes | None:
    """Return what the file holds, and take it from everyone but its owner; None without a file."""
    try:
        directory = PrivateDirectory.open(path.parent)
    except FileNotFoundError:
        return None
    with directory:
        return directory.read(path.name)


def remove_private(path: Path) -> None:
    """Remove a file; a missing one is fine."""
    with PrivateDirectory.open(path.parent) as directory:
        directory.remove(path.name)
