"""What requests need of the store, so that they can run on the event loop or beside it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from keepclose.apiserver.storage.entries import Entry
from keepclose.model.json_values import JsonObject


class ObjectStore(Protocol):
    """Reads and writes objects, each write by itself; the methods are those of `Store`."""

    @property
    def version(self) -> int:
        """The version of the latest write."""
        ...

    def get(self, store: str, namespace: str, name: str) -> Entry | None:
        """Return the object, or None."""
        ...

    def entries(self, store: str, namespace: str = "") -> list[Entry]:
        """Return the objects by namespace and name."""
        ...

    def entries_at(self, store: str, version: int, namespace: str = "") -> list[Entry]:
        """Return the objects as they were at the version."""
        ...

    def create(self, store: str, obj: JsonObject, *, max_bytes: int | None = None) -> Entry:
        """Add an object."""
        ...

    def update(
        self,
        store: str,
        obj: JsonObject,
        *,
        expected: int | None = None,
        max_bytes: int | None = None,
    ) -> Entry:
        """Put an object in the place of its former version."""
        ...

    def delete(
        self,
        store: str,
        namespace: str,
        name: str,
        *,
        expected: int | None = None,
        final: JsonObject | None = None,
    ) -> Entry:
        """Remove an object."""
        ...

    def using_reserve(self) -> AbstractContextManager[None]:
        """Let the writes of the block, which free room, use what is kept back for a full disk."""
        ...
