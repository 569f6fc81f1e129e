"""The store: objects of all kinds under one growing version, and the only access to them.

A write is checked, made durable, and only then visible to readers and watchers, in this order, so
that no client ever acts on a state that a crash could take back. All methods are quick and are
called from the thread of the event loop; `get` and `version` may be called from any thread. Names
of stores are plain strings; the store never interprets the objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from keepclose.apiserver.storage.entries import (
    ADDED,
    DELETED,
    MODIFIED,
    Entry,
    StoredChange,
    decode_entry,
    encode_entry,
    read_key,
)
from keepclose.apiserver.storage.errors import (
    Ahead,
    DiskFullError,
    Exists,
    Malformed,
    Missing,
    NoSpace,
    ObjectTooLarge,
    RevisionCompacted,
    Stale,
    StorageError,
)
from keepclose.apiserver.storage.history import FIRST_VERSION, Subscription
from keepclose.apiserver.storage.log import DroppedChange, Log, Synchronous
from keepclose.apiserver.storage.opening import open_log
from keepclose.apiserver.storage.state import Key, State
from keepclose.model.json_values import JsonObject

__all__ = [
    "Ahead",
    "Exists",
    "Malformed",
    "Missing",
    "ObjectTooLarge",
    "RevisionCompacted",
    "Stale",
    "StorageError",
    "Store",
]

# The limit for all objects of clients together, overhead included, since all are in memory. It is
# the default quota of etcd.
OBJECTS_MAX_BYTES: Final = 2 << 30
# The bounds of a history: changes, age in seconds, bytes of one store and bytes of all stores. The
# bytes are bounded because a node may write 1 MB at a time.
_HISTORY: Final = 20_000
MAX_HISTORY_AGE: Final = 3600.0
HISTORY_BYTES: Final = 64 << 20
TOTAL_HISTORY_BYTES: Final = 256 << 20
# How many changes may wait for a watcher.
PENDING_LIMIT: Final = 10_000
# Compaction removes this many changes from the disk at a time, or fewer when they have this many
# bytes; a step takes about as long as a few writes.
_COMPACTION_STEP: Final = 64
_COMPACTION_BYTES: Final = 4 << 20
# After this many bytes of writes the total of all histories is checked.
_SUM_EVERY_BYTES: Final = 1 << 20

_log = structlog.get_logger(__name__)


class Store:
    """All objects, their latest history and their watchers."""

    def __init__(
        self,
        log: Log | None,
        state: State,
        *,
        history: int,
        history_bytes: int,
        max_history_age: float,
        clock: Callable[[], float],
    ) -> None:
        """Hold what `open` has opened."""
        self._log = log
        self._state = state
        self._history = history
        self._history_bytes = history_bytes
        self._max_history_age = max_history_age
        self._clock = clock
        self._batch: list[StoredChange] | None = None
        self._staged: dict[Key, Entry | None] = {}
        self._uses_reserve = False
        self._dropped: list[DroppedChange] = []
        self._dropped_bytes = self._unsummed_bytes = 0
        self._compact_at, self._compact_at_bytes = _COMPACTION_STEP, _COMPACTION_BYTES
        self._drop(state.trim(keep=history, size=history_bytes, since=self._horizon()))
        self._drop(state.trim_largest(TOTAL_HISTORY_BYTES))

    @classmethod
    def open(
        cls,
        directory: Path | None,
        *,
        synchronous: Synchronous = "normal",
        history: int = _HISTORY,
        history_bytes: int = HISTORY_BYTES,
        max_history_age: float = MAX_HISTORY_AGE,
        recovers: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> Store:
        """Return the store of a directory, created where none is; None keeps it in memory.

        Writes always survive the end of the process, and with `synchronous="full"` a power failure.
        Damaged files are rejected; with `recovers` they are kept aside and their intact objects
        are used. Raises StorageError.
        """
        log, state = None, State()
        if directory is not None:
            log, recovered = open_log(directory, synchronous=synchronous, recovers=recovers)
            state.restore(recovered)
        return cls(
            log,
            state,
            history=history,
            history_bytes=history_bytes,
            max_history_age=max_history_age,
            clock=clock,
        )

    @property
    def version(self) -> int:
        """The version of the latest write; 1 in an empty store."""
        return self._state.version

    @property
    def oldest(self) -> int:
        """The oldest version from which every store can be watched; see `oldest_of` for one."""
        floors = (part.history.floor for part in self._state.parts.values())
        return max(floors, default=FIRST_VERSION)

    @property
    def history_bytes(self) -> int:
        """How many bytes of objects the histories of all stores hold."""
        return sum(part.history.size for part in self._state.parts.values())

    def find_problem(self) -> str:
        """Return why the store cannot be written at present, "" when it can."""
        return "" if self._log is None else self._log.find_problem()

    def oldest_of(self, store: str) -> int:
        """Return the oldest version from which the store can be watched."""
        return self._state.part(store).history.floor

    def get(self, store: str, namespace: str, name: str) -> Entry | None:
        """Return the object, or None."""
        return self._state.get(store, namespace, name)

    def entries(self, store: str, namespace: str = "") -> list[Entry]:
        """Return the objects by namespace and name, of one namespace or ("") of all."""
        return self._state.part(store).objects.entries(namespace)

    def entries_at(self, store: str, version: int, namespace: str = "") -> list[Entry]:
        """Return the objects as they were at the version. Raises RevisionCompacted or Ahead."""
        self._check_reached(version)
        part = self._state.part(store)
        return part.objects.entries_with(part.history.states_at(version, namespace), namespace)

    def count(self, store: str, namespace: str = "") -> int:
        """Return how many objects there are, in one namespace or ("") in all."""
        return self._state.part(store).objects.count(namespace)

    def owned_by(self, uid: str) -> list[Key]:
        """Return store, namespace and name of the objects that name this uid as an owner."""
        return self._state.owned_by(uid)

    def create(self, store: str, obj: JsonObject, *, max_bytes: int | None = None) -> Entry:
        """Store a new object and set its resourceVersion. Raises Exists, ObjectTooLarge, NoSpace.

        After a failure the resourceVersion in the object has no meaning.
        """
        namespace, name = read_key(obj)
        if self._current(store, namespace, name) is not None:
            raise Exists(store, namespace, name)
        return self._write(store, ADDED, obj, None, max_bytes=max_bytes)

    def update(
        self,
        store: str,
        obj: JsonObject,
        *,
        expected: int | None = None,
        max_bytes: int | None = None,
    ) -> Entry:
        """Store a new state of an object and set its resourceVersion.

        Raises Missing, Stale, ObjectTooLarge, NoSpace.
        """
        previous = self._expect((store, *read_key(obj)), expected)
        return self._write(store, MODIFIED, obj, previous, max_bytes=max_bytes)

    def delete(
        self,
        store: str,
        namespace: str,
        name: str,
        *,
        expected: int | None = None,
        final: JsonObject | None = None,
    ) -> Entry:
        """Remove an object; return its last state, or `final`, as watchers receive it.

        Raises Missing, Stale.
        """
        previous = self._expect((store, namespace, name), expected)
        last = decode_entry(previous) if final is None else final
        if read_key(last) != (namespace, name):
            raise Malformed(f"the final state of {name} is that of another object")
        return self._write(store, DELETED, last, previous)

    @contextmanager
    def using_reserve(self) -> Iterator[None]:
        """Let the writes of the block use the reserve for a full disk; deletes always may.

        For writes that lead to a delete, such as setting deletionTimestamp. The block must not
        await.
        """
        before, self._uses_reserve = self._uses_reserve, True
        try:
            yield
        finally:
            self._uses_reserve = before

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make all writes of the block durable and visible at once, or none when it fails.

        Writes within the block build on each other; reads show the state before it. The block must
        not await, because writes of other requests would become part of it.
        """
        if self._batch is not None:
            raise RuntimeError("batches cannot be nested")
        changes = self._batch = []
        try:
            yield
        finally:
            self._batch = None
            self._staged = {}
        if changes:
            self._commit(changes)

    def subscribe(
        self, store: str, *, since: int | None, namespace: str = "", limit: int = PENDING_LIMIT
    ) -> Subscription:
        """Return a subscription to the changes after the version; None is from now on.

        Changes that the history holds come first. Raises RevisionCompacted or Ahead.
        """
        part = self._state.part(store)
        backlog: list[StoredChange] = []
        if since is not None:
            self._check_reached(since)
            backlog = part.history.after(since, namespace)
        return part.subscribers.add(backlog, namespace=namespace, limit=limit)

    def watchers(self, store: str) -> int:
        """Return how many subscriptions there are."""
        return len(self._state.part(store).subscribers)

    def compact(self, keep: int = 0) -> None:
        """Drop the history of each store but its latest changes, in memory and on disk."""
        self._drop(self._state.trim(keep=keep, size=self._history_bytes, since=self._horizon()))
        while self._dropped:
            self._compact_step()

    def close(self) -> None:
        """End all subscriptions and close the file. Idempotent."""
        for part in self._state.parts.values():
            part.subscribers.close()
        if self._log is not None:
            self._log.close()

    def _current(self, store: str, namespace: str, name: str) -> Entry | None:
        """Return the object that a write replaces, with the earlier writes of the batch."""
        if self._staged:
            key = (store, namespace, name)
            if key in self._staged:
                return self._staged[key]
        return self._state.get(store, namespace, name)

    def _expect(self, key: Key, expected: int | None) -> Entry:
        current = self._current(*key)
        if current is None:
            raise Missing(*key)
        if expected is not None and current.version != expected:
            raise Stale(current, expected)
        return current

    def _check_reached(self, version: int) -> None:
        if version > self._state.version:
            raise Ahead(version, self._state.version)

    def _write(
        self,
        store: str,
        kind: str,
        obj: JsonObject,
        previous: Entry | None,
        *,
        max_bytes: int | None = None,
    ) -> Entry:
        batch = self._batch
        version = self._state.version + 1 + (0 if batch is None else len(batch))
        entry = encode_entry(obj, version)
        if max_bytes is not None and len(entry.data) > max_bytes:
            raise ObjectTooLarge(len(entry.data), max_bytes)
        before = 0 if previous is None else previous.size
        if (
            max_bytes is not None
            and entry.size > before
            and self._state.size + entry.size - before > OBJECTS_MAX_BYTES
        ):
            raise NoSpace(f"objects have {self._state.size} bytes, of {OBJECTS_MAX_BYTES}")
        change = StoredChange(version, kind, entry, previous, store, int(self._clock()))
        if batch is None:
            self._commit([change])
        else:
            batch.append(change)
            key = (store, entry.namespace, entry.name)
            self._staged[key] = None if kind == DELETED else entry
        return entry

    def _commit(self, changes: Sequence[StoredChange]) -> None:
        if self._log is not None:
            self._append(self._log, changes)
        self._state.apply(changes)
        horizon = self._horizon()
        for store in {change.store for change in changes}:
            history = self._state.parts[store].history
            self._drop(history.trim(keep=self._history, size=self._history_bytes, since=horizon))
        for change in changes:
            self._unsummed_bytes += change.size
        if self._unsummed_bytes > _SUM_EVERY_BYTES:
            self._unsummed_bytes = 0
            self._drop(self._state.trim_largest(TOTAL_HISTORY_BYTES))
        for _ in range(1 + len(changes) // _COMPACTION_STEP):
            if (
                len(self._dropped) < self._compact_at
                and self._dropped_bytes < self._compact_at_bytes
            ):
                break
            try:
                self._compact_step()
            except StorageError as error:
                # The write itself is durable. Old rows only take space.
                self._compact_at = len(self._dropped) + _COMPACTION_STEP
                self._compact_at_bytes = self._dropped_bytes + _COMPACTION_BYTES
                _log.warning("compaction of the store failed", error=str(error))

    def _append(self, log: Log, changes: Sequence[StoredChange]) -> None:
        try:
            log.append(changes)
        except DiskFullError:
            if not self._uses_reserve and any(change.type != DELETED for change in changes):
                raise
            if not log.release_reserve():
                raise
            # Compaction frees pages that the write can use.
            self.compact()
            log.append(changes)
            # NB: the write is durable by now, so a failure to shrink must not fail it.
            try:
                log.shrink()
            except StorageError as error:
                _log.warning("shrinking the files of the store failed", error=str(error))
            log.refill_reserve()

    def _horizon(self) -> float:
        return self._clock() - self._max_history_age

    def _drop(self, changes: Iterator[StoredChange]) -> None:
        for change in changes:
            if self._log is not None:
                self._dropped.append(DroppedChange.of(change))
                self._dropped_bytes += change.size

    def _compact_step(self) -> None:
        step: list[DroppedChange] = []
        size = 0
        for dropped in self._dropped[:_COMPACTION_STEP]:
            step.append(dropped)
            size += dropped.size
            if size > _COMPACTION_BYTES:
                break
        if self._log is not None:
            self._log.compact(step)
        del self._dropped[: len(step)]
        self._dropped_bytes -= size
        self._compact_at, self._compact_at_bytes = _COMPACTION_STEP, _COMPACTION_BYTES
