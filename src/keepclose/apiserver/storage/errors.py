"""The errors of the store, one class for each cause.

    StorageError            the file or the disk: an operator must act
      DamagedError          files of the store that have lost acknowledged data
      DiskFullError         a write for which the disk has no space
    _Rejected
      Malformed             an object without a name, or one that cannot be JSON
      ObjectTooLarge        an object of more bytes than the caller allows
      NoSpace               an object for which the limit of all objects leaves no space
      Exists                a create of an object that exists
      Missing               an update or a delete of an object that does not exist
      Stale                 a write based on an old version of the object
      RevisionCompacted     a version whose history was compacted
      Ahead                 a version that the store has not reached
    SubscriptionEnded
      Overflow              a watcher that reads too slowly
      Closed                a watcher that was closed

After a rejected write and after a StorageError the store is as it was before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keepclose.apiserver.storage.entries import Entry


class StorageError(Exception):
    """The file of the store cannot be used or written."""

    def __init__(self, path: Path, what: str, advice: str) -> None:
        """Hold the file, the fault and the advice to the operator."""
        super().__init__(f"{path}: {what}; {advice}")
        self.path = path
        self.what = what
        self.advice = advice


class DamagedError(StorageError):
    """The files of the store have lost writes that were acknowledged."""


class DiskFullError(StorageError):
    """The write was not stored, because the disk is full."""


class _Rejected(Exception):  # noqa: N818 - the names are reasons, as those of the API are
    """A call that the store rejects."""


class Malformed(_Rejected):
    """An object that cannot be stored."""


class ObjectTooLarge(_Rejected):
    """An object of more bytes than the caller allows."""

    def __init__(self, size: int, limit: int) -> None:
        """Hold both sizes, in bytes of JSON."""
        super().__init__(f"the object is {size} bytes, more than {limit}")
        self.size = size
        self.limit = limit


class NoSpace(_Rejected):
    """All objects together have reached the limit of bytes."""


class Exists(_Rejected):
    """An object of this name exists already."""

    def __init__(self, store: str, namespace: str, name: str) -> None:
        """Name the object."""
        super().__init__(f"{_format_key(store, namespace, name)} exists already")


class Missing(_Rejected):
    """No object of this name exists."""

    def __init__(self, store: str, namespace: str, name: str) -> None:
        """Name the object."""
        super().__init__(f"{_format_key(store, namespace, name)} does not exist")


class Stale(_Rejected):
    """The object is not at the version on which the write is based."""

    def __init__(self, current: Entry, expected: int) -> None:
        """Hold the current object and the expected version."""
        super().__init__(f"{current.name} is at version {current.version}, not {expected}")
        self.current = current
        self.expected = expected


class RevisionCompacted(_Rejected):
    """The history of the version was compacted."""

    def __init__(self, asked: int, oldest: int) -> None:
        """Hold the requested version and the oldest one that the history holds."""
        super().__init__(f"version {asked} is no longer known, {oldest} is the oldest")
        self.asked = asked
        self.oldest = oldest


class Ahead(_Rejected):
    """The store has not reached the version."""

    def __init__(self, asked: int, current: int) -> None:
        """Hold the requested version and the current one of the store."""
        super().__init__(f"version {asked} has not been reached, {current} is the current one")
        self.asked = asked
        self.current = current


class SubscriptionEnded(Exception):  # noqa: N818 - not every end is an error
    """The subscription delivers no more changes."""


class Overflow(SubscriptionEnded):
    """The reader was too slow; the pending changes are dropped."""


class Closed(SubscriptionEnded):
    """The reader or the store closed the subscription."""


def _format_key(store: str, namespace: str, name: str) -> str:
    return f"{store} {namespace}/{name}" if namespace else f"{store} {name}"
