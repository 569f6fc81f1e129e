"""How long pods wait until their change is in a slice.

The time runs from the moment a cache tells of a pod to the answer to the last write of the sync
that took it in; of several pods of one Service the one that waited longest counts. A sync that
finds nothing to write ends the time without a word; one that fails goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from keepclose.kube.clock import Clock
from keepclose.model.meta import NamespacedName


class PodLatencies:
    """Since when each Service has had a changed pod that no sync has looked at."""

    def __init__(self, clock: Clock, *, on_reached: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_reached = on_reached
        self._since: dict[NamespacedName, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def note(self, services: Iterable[NamespacedName]) -> None:
        """Note that a pod of these Services changed just now."""
        now = self._clock.monotonic()
        for key in services:
            self._since.setdefault(key, now)

    def take(self, service: NamespacedName) -> float | None:
        """Return since when pods have waited, and wait for the next; None when none has."""
        return self._since.pop(service, None)

    def end(self, service: NamespacedName, since: float, *, written: int, is_good: bool) -> None:
        """Say how the sync went that took the time."""
        if not is_good:
            # NB: what changed meanwhile is younger.
            self._since[service] = since
        elif written:
            self._on_reached(self._clock.monotonic() - since)

    def forget(self, service: NamespacedName) -> None:
        """Drop a Service that is gone."""
        self._since.pop(service, None)
