"""What can go wrong with the store, each under its own name.

    StorageError        the file or the disk: a person must act
      DamagedError      files that were ours, of which something is lost
      DiskFullError     a write for which the disk has no room
    Refusal
      Malformed         an object without a name, or one that is no JSON
      TooLarge          an object of more bytes than its writer allows
      Exists            a create whose name is taken
      Missing           an update or a delete of what is not there
      Stale             a write made from an old version of the object
      Compacted         a version whose history is no longer known
      Ahead             a version that has not been reached yet
    Ended
      Overflow          a watcher that reads too slowly
      Closed            a watcher that was closed

A refusal leaves the store as it was, and so does a StorageError.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keepclose.apiserver.storage.entries import Entry


class StorageError(Exception):
    """The file of the store cannot be used or written."""

    def __init__(self, path: Path, what: str, advice: str) -> None:
        """Hold the file, what is wrong with it and what to do about that."""
        super().__init__(f"{path}: {what}; {advice}")
        self.path = path
        self.what = what
        self.advice = advice


class DamagedError(StorageError):
    """The files of the store do not hold everything that was acknowledged."""


class DiskFullError(StorageError):
    """The write was not made, because the disk is full."""


class _Refusal(Exception):  # noqa: N818 - the names say what was found, as those of the API do
    """A call that cannot be followed."""


class Malformed(_Refusal):
    """An object that cannot be stored."""


class ObjectTooLarge(_Refusal):
    """An object of more bytes than its writer allows."""

    def __init__(self, size: int, limit: int) -> None:
        """Hold both sizes, in bytes of JSON."""
        super().__init__(f"the object is {size} bytes, more than {limit}")
        self.size = size
        self.limit = limit


class NoSpace(_Refusal):
    """All objects together have so many bytes that no writer may add to them."""


class Exists(_Refusal):
    """There is an object of this name already."""

    def __init__(self, store: str, namespace: str, name: str) -> None:
        """Hold what was asked for."""
        super().__init__(f"{_shown(store, namespace, name)} exists already")


class Missing(_Refusal):
    """There is no object of this name."""

    def __init__(self, store: str, namespace: str, name: str) -> None:
        """Hold what was asked for."""
        super().__init__(f"{_shown(store, namespace, name)} does not exist")


class Stale(_Refusal):
    """The object is not at the version from which the write was made."""

    def __init__(self, current: Entry, expected: int) -> None:
        """Hold the object as it is and the version that was expected."""
        super().__init__(f"{current.name} is at version {current.version}, not {expected}")
        self.current = current
        self.expected = expected


class RevisionCompacted(_Refusal):
    """The history does not reach back to the version any more."""

    def __init__(self, asked: int, oldest: int) -> None:
        """Hold the version asked for and the oldest one that is still known."""
        super().__init__(f"version {asked} is no longer known, {oldest} is the oldest")
        self.asked = asked
        self.oldest = oldest


class Ahead(_Refusal):
    """The version lies in the future."""

    def __init__(self, asked: int, current: int) -> None:
        """Hold the version asked for and the one that the store is at."""
        super().__init__(f"version {asked} has not been reached, {current} is the current one")
        self.asked = asked
        self.current = current


class StoreClosed(Exception):  # noqa: N818 - not every end is an error
    """A subscription that delivers nothing any more."""


class Overflow(StoreClosed):
    """The reader let too many changes wait; what was pending is dropped."""


class Closed(StoreClosed):
    """The subscription was closed, by its reader or with the store."""


def _shown(store: str, namespace: str, name: str) -> str:
    return f"{store} {namespace}/{name}" if namespace else f"{store} {name}"
