"""When a failed request is sent again, and after how long.

A request that changes nothing twice may be repeated after any failure that may pass. Any other is
repeated only when the server certainly did not act on it: nothing was sent, or it asked for
patience (429). Waits grow exponentially with full jitter, so that clients that failed together do
not come back together; a server that names a time is obeyed.
"""

from __future__ import annotations

from random import Random

import msgspec

from keepclose.kube.errors import (
    ApiError,
    ConnectionLost,
    ConnectionRefused,
    KubeError,
    ServerError,
    TimedOut,
    TooManyRequests,
)


class Retries(msgspec.Struct, frozen=True):
    """How patient a client is, in seconds; `max_elapsed` 0 means never to try again.

    Seed `random` to get the same waits every time.
    """

    first: float = 0.1
    cap: float = 5.0
    max_elapsed: float = 30.0
    random: Random = msgspec.field(default_factory=Random)

    def delay(
        self, error: KubeError, *, failures: int, elapsed: float, repeatable: bool
    ) -> float | None:
        """Return how long to wait after the given number of failures; None means to give up."""
        if not may_pass(error, repeatable=repeatable):
            return None
        asked = error.retry_after if isinstance(error, ApiError) else None
        # NB: 2 ** failures overflows a float after a thousand failures, 30 doublings are plenty.
        limit = min(self.cap, self.first * 2.0 ** min(failures - 1, 30))
        delay = asked if asked is not None else self.random.uniform(0.0, limit)
        return delay if elapsed + delay < self.max_elapsed else None


def may_pass(error: KubeError, *, repeatable: bool) -> bool:
    """Tell whether sending the request again is safe and may succeed."""
    if isinstance(error, TooManyRequests):
        return True
    if isinstance(error, ServerError):
        # 501 says that the server will never do it.
        return repeatable and error.code != 501
    if isinstance(error, ConnectionRefused | ConnectionLost | TimedOut):
        return repeatable or not error.sent
    return False
