"""The interface through which all bytes to and from an API server pass.

A transport knows the server, how to verify it and how to authenticate; it knows nothing of kinds,
retries or watches. It raises TransportErrors, ConfigErrors for credentials that are not available,
and nothing else; an answer of any status is an answer. A fake of two methods can script every
fault of a network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec


class ApiRequest(msgspec.Struct, frozen=True):
    """One request, without the server it goes to.

    The path begins with "/" and is percent-encoded; the query is not. The timeout covers reading
    the whole answer, or only its headers if it is streaming; None means no limit.
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
    """An answer whose body may still be arriving."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are case-insensitive."""
        ...

    async def read(self) -> bytes:
        """Return the whole body and release the connection."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives, cut at any byte, until the server ends it."""
        ...

    async def close(self) -> None:
        """Release the connection and drop what was not read; idempotent."""
        ...


class Transport(Protocol):
    """Sends requests to one API server."""

    async def send(self, request: ApiRequest) -> Response:
        """Return the answer as soon as its headers have arrived."""
        ...

    async def close(self) -> None:
        """Close all connections; idempotent."""
        ...
