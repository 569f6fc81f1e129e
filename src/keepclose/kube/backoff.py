"""How long to wait before trying again: full jitter over a window that doubles, and token buckets.

The delay is drawn evenly from the whole window, so that many clients that failed together do not
come back together; it is never below the window's lower end, so that nobody hammers a server that
is down. A wait that the server asked for is never cut short. Nothing here sleeps.
"""

from __future__ import annotations

from random import Random
from typing import Final

from keepclose.kube.clock import Clock

FIRST_S: Final = 0.8
CAP_S: Final = 30.0
HEALTHY_S: Final = 60.0
# Beyond this many doublings any window is at its cap; 2.0**n would overflow one day.
_MOST_DOUBLINGS: Final = 60


class Backoff:
    """Delays between attempts of one thing; they start anew after a healthy minute.

    Healthy is the time from the first sign of life after a failure to the last one before the
    next: silence does not count, however long.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        random: Random,
        first_s: float = FIRST_S,
        cap_s: float = CAP_S,
        healthy_s: float = HEALTHY_S,
    ) -> None:
        self._clock = clock
        self._random = random
        self._first_s, self._cap_s, self._healthy_s = first_s, cap_s, healthy_s
        self._alive_since: float | None = None
        self._alive_until = 0.0
        self.failures = 0
        """Failures in a row, without a healthy minute between them."""

    def note_life(self) -> None:
        """Note that the other side did what it should just now."""
        self._alive_until = self._clock.monotonic()
        if self._alive_since is None:
            self._alive_since = self._alive_until

    def next_delay(self, retry_after: float | None = None) -> float:
        """Return how long to wait after one more failure, at least what the server asked for.

        The n-th delay in a row lies between `first_s` and twice that, four times that and so on up
        to `cap_s`.
        """
        if self._alive_since is not None:
            if self._alive_until - self._alive_since >= self._healthy_s:
                self.failures = 0
            self._alive_since = None
        self.failures += 1
        doublings = min(self.failures, _MOST_DOUBLINGS)
        window_end = min(self._cap_s, self._first_s * 2.0**doublings)
        return max(self._random.uniform(self._first_s, window_end), retry_after or 0.0)


class TokenBucket:
    """So many at once, and then so many a second."""

    def __init__(self, clock: Clock, *, rate: float, burst: int) -> None:
        self._clock = clock
        self._rate, self._burst = rate, burst
        self._tokens = float(burst)
        self._filled_at = clock.monotonic()

    def take(self) -> bool:
        """Return whether there was a token, and take it."""
        self._fill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def reserve(self) -> float:
        """Take a token now or one of the future; return the seconds until it is there."""
        self._fill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        earned = (now - self._filled_at) * self._rate
        self._tokens = min(float(self._burst), self._tokens + earned)
        self._filled_at = now
