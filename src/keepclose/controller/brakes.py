"""How long to wait before hints are set again that somebody removed past the webhook.

While the webhook is asked, hints are never lost. Where the API server cannot reach it, the built-in
controller removes what we set, and setting it again at once would be an endless war of writes. So
each loss doubles the wait of that Service, and a time of peace forgets it.
"""

from __future__ import annotations

from typing import Final

from keepclose.kube.clock import Clock
from keepclose.model.meta import NamespacedName

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0
PEACE_S: Final = 60.0


class Brake:
    """The waits of all Services."""

    def __init__(self, clock: Clock, *, longest_s: float = LONGEST_S) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._waits: dict[NamespacedName, tuple[float, float]] = {}

    def note_loss(self, key: NamespacedName) -> float:
        """Note that hints of a Service were removed; return the wait in seconds that follows."""
        now = self._clock.monotonic()
        wait, until = self._waits.get(key, (0.0, now))
        if now < until:
            return until - now
        is_war = now - until < max(2 * wait, PEACE_S)
        wait = min(2 * wait, self._longest_s) if wait and is_war else FIRST_S
        self._waits[key] = (wait, now + wait)
        return wait

    def left(self, key: NamespacedName) -> float:
        """Return how many seconds a Service must still wait; 0 when it need not."""
        _, until = self._waits.get(key, (0.0, 0.0))
        return max(0.0, until - self._clock.monotonic())

    def forget(self, key: NamespacedName) -> None:
        """Forget a Service that is gone or none of ours."""
        self._waits.pop(key, None)
