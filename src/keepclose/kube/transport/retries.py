"""When a failed request is sent again, and after how long.

A request that changes nothing twice may be repeated after any failure that may pass. Any other is
repeated only when the server certainly did not act on it: nothing was sent, or it asked for
patience (429). Waits grow exponentially with full jitter, so that clients that failed together do
not come back together; a server that names a time is obeyed.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec
import structlog

from keepclose.kube.clock import Clock
from keepclose.kube.errors import (
    ApiError,
    ConnectionLost,
    ConnectionRefused,
    KubeError,
    ServerError,
    TimedOut,
    TooManyRequests,
    error_from,
)
from keepclose.kube.transport.transport import ApiRequest, Response, Transport

_FIRST_S: Final = 0.8
CAP_S: Final = 30.0
HEALTHY_S: Final = 60.0
# Beyond this many doublings any window is at its cap; 2.0**n would overflow one day.
_MOST_DOUBLINGS: Final = 60
_log = structlog.get_logger()


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
        first_s: float = _FIRST_S,
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


class Exchange:
    """Sends requests with the same headers, limit and patience."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        retries: Retries,
        headers: dict[str, str],
        timeout: float | None,
    ) -> None:
        """Take the way to the server; `timeout` is for each attempt."""
        self._transport = transport
        self._clock = clock
        self._retries = retries
        self._headers = headers
        self._timeout = timeout

    async def fetch(self, request: ApiRequest, *, repeatable: bool) -> bytes:
        """Return the body of a successful answer; `repeatable` if twice does no harm."""
        started = self._clock.monotonic()
        failures = 0
        while True:
            try:
                return await self._fetch_once(request)
            except KubeError as error:
                failures += 1
                delay = self._retries.delay(
                    error,
                    failures=failures,
                    elapsed=self._clock.monotonic() - started,
                    repeatable=repeatable,
                )
                if delay is None:
                    raise
                _log.debug("request failed", request=str(request), error=str(error), again_in=delay)
            await self._clock.sleep(delay)

    async def open(self, request: ApiRequest) -> Response:
        """Return the answer to one attempt, to be closed by the caller; failures are raised."""
        request = msgspec.structs.replace(
            request, headers={**self._headers, **request.headers}, timeout=self._timeout
        )
        response = await self._transport.send(request)
        if 200 <= response.status < 300:
            return response
        try:
            error = error_from(response.status, response.headers, await response.read())
        finally:
            await response.close()
        error.request = str(request)
        raise error

    async def close(self) -> None:
        """Close the connections. Twice is once."""
        await self._transport.close()

    async def _fetch_once(self, request: ApiRequest) -> bytes:
        response = await self.open(request)
        try:
            return await response.read()
        finally:
            await response.close()
