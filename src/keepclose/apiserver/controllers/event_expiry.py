"""Deletes Events an hour after their last write, as kube-apiserver does.

Kubernetes stores Events with a time to live that each write renews and that ignores finalizers.
Here the server follows the changes of Events and deletes expired ones. A restart renews the time of
all stored Events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from keepclose.apiserver.controllers.store_follower import follow_deadlines
from keepclose.apiserver.storage.entries import DELETED, Entry, StoredChange
from keepclose.apiserver.storage.store import Store

EVENT_STORE: Final = "events"
EVENT_SECONDS: Final = 3600.0
"""The time to live of an Event; the default of kube-apiserver's --event-ttl."""
# After this much work the expiry yields to the event loop.
_TURN_SECONDS: Final = 0.005


class _Expiry(NamedTuple):
    """When the Event of that version expires."""

    at: float
    version: int


class EventExpiry:
    """The stored Events in the order of their expiry, and their deletion."""

    def __init__(
        self,
        store: Store,
        *,
        seconds: float = EVENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold the store; `run` does the work."""
        self._store = store
        self._seconds = seconds
        self._clock = clock
        # By namespace and name, in the order of their expiry: all have the same time to live.
        self._expiries: dict[tuple[str, str], _Expiry] = {}

    async def run(self) -> None:
        """Delete Events when they expire, until the store is closed."""
        await follow_deadlines(
            self._store,
            EVENT_STORE,
            resume=self.resume,
            handle=self._on_change,
            end_due=self.delete_due,
        )

    def resume(self) -> Iterator[None]:
        """Track all stored Events, in steps; unchanged ones keep their expiry."""
        for entry in self._store.entries(EVENT_STORE):
            tracked = self._expiries.get((entry.namespace, entry.name))
            if tracked is None or tracked.version < entry.version:
                self._track(entry)
            yield
        for key in list(self._expiries):
            if self._store.get(EVENT_STORE, *key) is None:
                self._expiries.pop(key, None)
            yield

    def delete_due(self) -> float | None:
        """Delete expired Events; return the seconds until the next one expires.

        After a few milliseconds the rest is left for the next call, and 0 or less is returned.
        """
        stop = time.perf_counter() + _TURN_SECONDS
        while self._expiries:
            key, expiry = next(iter(self._expiries.items()))
            left = expiry.at - self._clock()
            if left > 0 or time.perf_counter() > stop:
                return left
            entry = self._store.get(EVENT_STORE, *key)
            # NB: a newer version is a change that is about to be handled.
            if entry is not None and entry.version == expiry.version:
                self._store.delete(EVENT_STORE, *key, expected=entry.version)
            # NB: not before, so that an Event whose delete fails is retried soon.
            del self._expiries[key]
        return None

    def _on_change(self, change: StoredChange) -> None:
        if change.type != DELETED:
            self._track(change.entry)
        else:
            self._expiries.pop((change.entry.namespace, change.entry.name), None)

    def _track(self, entry: Entry) -> None:
        key = entry.namespace, entry.name
        self._expiries.pop(key, None)
        self._expiries[key] = _Expiry(self._clock() + self._seconds, entry.version)
