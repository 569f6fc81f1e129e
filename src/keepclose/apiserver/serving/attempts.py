"""Optimistic concurrency for writes that are computed in a thread.

An attempt records the objects that it has read. Its write runs on the event loop, and only if none
of them has changed; otherwise the attempt is dropped and repeated with the current state. So a
write that takes a second is as safe as one that takes no time, and no lock is held meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, TypeVar

from keepclose.apiserver.serving.fair_queue import RequestThreads
from keepclose.apiserver.storage.entries import Entry
from keepclose.apiserver.storage.store import Store
from keepclose.model.json_values import JsonObject

MAX_ATTEMPTS: Final = 5
"""The attempts at a write before the client gets a conflict, as in kube-apiserver."""

_T = TypeVar("_T")


class ConflictingWriteError(Exception):
    """Another write has changed an object that the attempt had read."""


class Attempt:
    """The store as a thread sees it."""

    def __init__(self, store: Store, workers: RequestThreads) -> None:
        """Begin with nothing read."""
        self._store = store
        self._workers = workers
        self._read: dict[tuple[str, str, str], Entry | None] = {}
        self._uses_reserve = False

    @property
    def version(self) -> int:
        """The version of the latest write."""
        return self._store.version

    def get(self, store: str, namespace: str, name: str) -> Entry | None:
        """Return the object, or None; a repeated read returns the same object."""
        key = (store, namespace, name)
        if key not in self._read:
            # NB: safe in a thread: two lookups in dicts, which the event loop changes atomically.
            self._read[key] = self._store.get(store, namespace, name)
        return self._read[key]

    def entries(self, store: str, namespace: str = "") -> list[Entry]:
        """Return the objects by namespace and name."""
        return self._workers.on_loop(lambda: self._store.entries(store, namespace))

    def entries_at(self, store: str, version: int, namespace: str = "") -> list[Entry]:
        """Return the objects as they were at the version."""
        return self._workers.on_loop(lambda: self._store.entries_at(store, version, namespace))

    def create(self, store: str, obj: JsonObject, *, max_bytes: int | None = None) -> Entry:
        """Add an object."""
        return self._commit(lambda: self._store.create(store, obj, max_bytes=max_bytes))

    def update(
        self,
        store: str,
        obj: JsonObject,
        *,
        expected: int | None = None,
        max_bytes: int | None = None,
    ) -> Entry:
        """Replace the former version of an object."""
        return self._commit(
            lambda: self._store.update(store, obj, expected=expected, max_bytes=max_bytes)
        )

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
        return self._commit(
            lambda: self._store.delete(store, namespace, name, expected=expected, final=final)
        )

    @contextmanager
    def using_reserve(self) -> Iterator[None]:
        """Let the writes of the block, which free space, use the reserve for a full disk."""
        self._uses_reserve = True
        try:
            yield
        finally:
            self._uses_reserve = False

    def _commit(self, write: Callable[[], _T]) -> _T:
        def step() -> _T:
            for key, entry in self._read.items():
                if self._store.get(*key) is not entry:
                    raise ConflictingWriteError
            with self._store.using_reserve() if self._uses_reserve else nullcontext():
                return write()

        try:
            return self._workers.on_loop(step)
        finally:
            # Later writes, such as that of the next object of a collection, read again.
            self._read.clear()
