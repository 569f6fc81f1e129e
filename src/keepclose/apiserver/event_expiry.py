"""The expiry of Events: each is removed an hour after it was last written, as by kube-apiserver.

Kubernetes stores Events with a time to live that each write renews, and finalizers do not hold
them. Here the server follows the changes of Events and removes what was not written for so long.
Events that were stored before a restart have the whole time again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from keepclose.apiserver.following import follow_deadlines
from keepclose.apiserver.storage.entries import DELETED, Change, Entry
from keepclose.apiserver.storage.store import Store

EVENTS: Final = "events"
EVENT_SECONDS: Final = 3600.0
"""How long an Event is kept after its last write; the default of kube-apiserver's --event-ttl."""
# The loop goes on after so much work.
_TURN_SECONDS: Final = 0.005


class _Expiry(NamedTuple):
    """When the Event of that version expires."""

    at: float
    version: int


class EventExpiry:
    """The stored Events by the time of their last write."""

    def __init__(
        self,
        store: Store,
        *,
        seconds: float = EVENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold what is needed; nothing happens before `run`."""
        self._store = store
        self._seconds = seconds
        self._clock = clock
        # By namespace and name. All are kept for the same time, so that the last written is last.
        self._expiries: dict[tuple[str, str], _Expiry] = {}

    async def run(self) -> None:
        """Remove Events when they expire, until the store is closed."""
        await follow_deadlines(
            self._store, EVENTS, resume=self.resume, handle=self._handle, end_due=self.remove_due
        )

    def resume(self) -> Iterator[None]:
        """Take note of every stored Event, by steps; those that are known keep their time."""
        for entry in self._store.entries(EVENTS):
            known = self._expiries.get((entry.namespace, entry.name))
            if known is None or known.version < entry.version:
                self._note(entry)
            yield
        for key in list(self._expiries):
            if self._store.get(EVENTS, *key) is None:
                self._expiries.pop(key, None)
            yield

    def remove_due(self) -> float | None:
        """Remove expired Events; return in how many seconds the next one expires.

        After a few milliseconds the rest is left for the next call, and 0 or less is returned.
        """
        stop = time.perf_counter() + _TURN_SECONDS
        while self._expiries:
            key, expiry = next(iter(self._expiries.items()))
            left = expiry.at - self._clock()
            if left > 0 or time.perf_counter() > stop:
                return left
            entry = self._store.get(EVENTS, *key)
            # NB: a newer version is a change that is about to be handled.
            if entry is not None and entry.version == expiry.version:
                self._store.delete(EVENTS, *key, expected=entry.version)
            # NB: not before, so that what cannot be removed now is tried again soon.
            del self._expiries[key]
        return None

    def _handle(self, change: Change) -> None:
        if change.type != DELETED:
            self._note(change.entry)
        else:
            self._expiries.pop((change.entry.namespace, change.entry.name), None)

    def _note(self, entry: Entry) -> None:
        key = entry.namespace, entry.name
        self._expiries.pop(key, None)
        self._expiries[key] = _Expiry(self._clock() + self._seconds, entry.version)
