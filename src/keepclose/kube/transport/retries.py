"""Whether and when a failed request is sent again: backoff, token buckets and retries.

An idempotent request may be repeated after any transient failure. Any other request is repeated
only when the server certainly did not act on it: nothing was sent, or the server answered 429.
Delays grow exponentially with full jitter, so that clients that failed together do not come back
together; a Retry-After of the server is never cut short. A streaming answer is opened once and
never retried here: only its reader knows where to resume. Typed objects are above this module, and
the network is below.
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
_MAX_DOUBLINGS: Final = 60
_log = structlog.get_logger()


class Backoff:
    """Growing delays between attempts; they are reset after a healthy minute.

    Healthy is the time from the first success after a failure to the last success before the next
    one: silence does not count, however long.
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
        """Record a success."""
        self._alive_until = self._clock.monotonic()
        if self._alive_since is None:
            self._alive_since = self._alive_until

    def next_delay(self, retry_after: float | None = None) -> float:
        """Record a failure; return the delay, at least the server's `retry_after`.

        The n-th delay in a row lies between `first_s` and twice, four times, ... that, up to
        `cap_s`.
        """
        if self._alive_since is not None:
            if self._alive_until - self._alive_since >= self._healthy_s:
                self.failures = 0
            self._alive_since = None
        self.failures += 1
        doublings = min(self.failures, _MAX_DOUBLINGS)
        window_end = min(self._cap_s, self._first_s * 2.0**doublings)
        return max(self._random.uniform(self._first_s, window_end), retry_after or 0.0)


class TokenBucket:
    """A rate limit: `burst` at once, then `rate` a second."""

    def __init__(self, clock: Clock, *, rate: float, burst: int) -> None:
        self._clock = clock
        self._rate, self._burst = rate, burst
        self._tokens = float(burst)
        self._filled_at = clock.monotonic()

    def take(self) -> bool:
        """Take a token; return whether there was one."""
        self._fill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def reserve(self) -> float:
        """Take a present or future token; return the seconds until it is available."""
        self._fill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        earned = (now - self._filled_at) * self._rate
        self._tokens = min(float(self._burst), self._tokens + earned)
        self._filled_at = now


class Retries(msgspec.Struct, frozen=True):
    """The retry policy of a client, in seconds; `max_elapsed` 0 disables retries.

    Seed `random` for reproducible delays.
    """

    first: float = 0.1
    cap: float = 5.0
    max_elapsed: float = 30.0
    random: Random = msgspec.field(default_factory=Random)

    def delay(
        self, error: KubeError, *, failures: int, elapsed: float, repeatable: bool
    ) -> float | None:
        """Return the delay after the given number of failures; None means to give up."""
        if not may_pass(error, repeatable=repeatable):
            return None
        asked = error.retry_after if isinstance(error, ApiError) else None
        # NB: 2 ** failures overflows a float after a thousand failures, 30 doublings are plenty.
        limit = min(self.cap, self.first * 2.0 ** min(failures - 1, 30))
        delay = asked if asked is not None else self.random.uniform(0.0, limit)
        return delay if elapsed + delay < self.max_elapsed else None


def may_pass(error: KubeError, *, repeatable: bool) -> bool:
    """Return whether sending the request again is safe and may succeed."""
    if isinstance(error, TooManyRequests):
        return True
    if isinstance(error, ServerError):
        # 501 is permanent: the server does not implement the request.
        return repeatable and error.code != 501
    if isinstance(error, ConnectionRefused | ConnectionLost | TimedOut):
        return repeatable or not error.sent
    return False


class RequestSender:
    """Sends requests with common headers, timeout and retry policy."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        retries: Retries,
        headers: dict[str, str],
        timeout: float | None,
    ) -> None:
        """Take the transport; `timeout` is for each attempt."""
        self._transport = transport
        self._clock = clock
        self._retries = retries
        self._headers = headers
        self._timeout = timeout

    async def fetch(self, request: ApiRequest, *, repeatable: bool) -> bytes:
        """Return the body of a successful answer; `repeatable` marks an idempotent request."""
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
        """Return the answer to a single attempt, which the caller closes; raise on failure."""
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
        """Close the connections; idempotent."""
        await self._transport.close()

    async def _fetch_once(self, request: ApiRequest) -> bytes:
        response = await self.open(request)
        try:
            return await response.read()
        finally:
            await response.close()
