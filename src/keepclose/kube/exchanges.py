"""One request and its answer, with patience for failures that pass.

Everything typed stands above this module and everything of the network below. A streaming answer
is opened once and never repeated here: only its reader knows from where to go on.
"""

from __future__ import annotations

import msgspec
import structlog

from keepclose.kube.clock import Clock
from keepclose.kube.errors import KubeError, error_from
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import Request, Response, Transport

log = structlog.get_logger()


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

    async def fetch(self, request: Request, *, repeatable: bool) -> bytes:
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
                log.debug("request failed", request=str(request), error=str(error), again_in=delay)
            await self._clock.sleep(delay)

    async def open(self, request: Request) -> Response:
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

    async def _fetch_once(self, request: Request) -> bytes:
        response = await self.open(request)
        try:
            return await response.read()
        finally:
            await response.close()
