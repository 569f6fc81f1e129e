"""Which keys the server turned away, and what it said: come back later, or nothing at all.

A failure of the server says nothing about the key. One that was asked to stay away comes back no
sooner; one that found nobody there is tried again as soon as the server is back, even if it had
been given up meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepclose.controller.writes import Outcome
from keepclose.model.meta import NamespacedName


class Setbacks:
    """The setbacks of one queue."""

    def __init__(self) -> None:
        self._waits: dict[NamespacedName, float] = {}
        self._cut_off: set[NamespacedName] = set()

    def note(self, key: NamespacedName, outcome: Outcome) -> None:
        """Note how the writes of a sync went; what was noted of the key before is forgotten."""
        self._waits.pop(key, None)
        self._cut_off.discard(key)
        if outcome.wait_s > 0:
            self._waits[key] = outcome.wait_s
        if outcome.is_cut_off:
            self._cut_off.add(key)

    def forget(self, key: NamespacedName) -> None:
        """Forget a key that needs no writes any more."""
        self.note(key, Outcome())

    def take_wait(self, key: NamespacedName) -> float:
        """Return once for how long the server asked the key to stay away; 0 if it did not."""
        return self._waits.pop(key, 0.0)

    def cut_off(self) -> Iterable[NamespacedName]:
        """Return the keys whose last sync found nobody there."""
        return tuple(self._cut_off)
