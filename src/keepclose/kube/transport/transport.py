"""The one seam through which bytes reach an API server and come back.

A transport knows the server, how to trust it and how to prove who we are; it knows nothing of
kinds, retries or watches. It raises TransportErrors, and ConfigErrors over credentials that cannot
be had, and nothing else; an answer of any status is an answer. A fake of two methods is enough to
script every fault of a network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec


class ApiRequest(msgspec.Struct, frozen=True):
    """One request, without the server it goes to.

    The path begins with "/" and is percent-encoded; the query is not. The timeout counts until the
    whole answer is read, or for a streaming one until its headers are; None means no limit.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str] = {}
    body: bytes | None = None
    timeout: float | None = None
    streaming: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Response(Protocol):
    """An answer whose body may still be on its way."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are found in any case."""
        ...

    async def read(self) -> bytes:
        """Return the whole body and free the connection."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives, cut anywhere; end when the server ended it."""
        ...

    async def close(self) -> None:
        """Let go of the connection; what was not read is lost. Twice is once."""
        ...


class Transport(Protocol):
    """Carries requests to one API server."""

    async def send(self, request: ApiRequest) -> Response:
        """Return the answer as soon as its headers are there."""
        ...

    async def close(self) -> None:
        """Close all connections. Twice is once."""
        ...
