"""Requests as they are read and answers as they are sent, without the connection between.

An answer is sent at once; a stream bit by bit, for as long as somebody listens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from keepclose.apiserver.security.write_rights import WriteRights

_REASONS: Final = {
    200: b"OK",
    201: b"Created",
    202: b"Accepted",
    304: b"Not Modified",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    406: b"Not Acceptable",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    413: b"Request Entity Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    422: b"Unprocessable Entity",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}


class Request(msgspec.Struct):
    """A complete request."""

    method: str
    path: str
    query: str
    # By lower-case name.
    headers: dict[bytes, bytes]
    body: bytes = b""
    # What TLS knows of the client, as `ssl.SSLSocket.getpeercert` gives it.
    peer: dict[str, Any] | None = None
    # Set when the request is admitted; None for administrators, whose writes are not checked.
    rights: WriteRights | None = None
    version: str = "1.1"
    # The name of the user whose credentials the request has, once they are found valid.
    caller: str = ""

    def header(self, name: bytes) -> str:
        """Return a header, or ""."""
        return self.headers.get(name, b"").decode("latin-1")


class Answer(msgspec.Struct):
    """What is sent back at once."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Stream(Protocol):
    """What is sent back bit by bit."""

    content_type: bytes
    # Whether it goes on for as long as the client wants, as a watch does.
    endless: bool

    def frames(self) -> AsyncIterator[bytes]:
        """Yield what to send."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Pending(msgspec.Struct):
    """What is sent back later: `begin` starts the work and returns its outcome."""

    begin: Callable[[], Awaitable[Answer | Stream]]


Handler = Callable[[Request], Answer | Stream | Pending]
# Whether a request has valid credentials.
Knows = Callable[[Request], bool]


def encode_head(answer: Answer, *, keep: bool) -> bytes:
    """Return everything that is sent before the body; `keep` leaves the connection open."""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n" % (
        answer.status,
        _REASONS.get(answer.status, b"-"),
        answer.content_type,
        len(answer.body),
    )
    extra = b"".join([b"%b: %b\r\n" % pair for pair in answer.headers])
    close = b"" if keep else b"Connection: close\r\n"
    return b"".join((head, extra, b"Cache-Control: no-cache, private\r\n", close, b"\r\n"))


def encode_stream_head(stream: Stream, *, chunked: bool) -> bytes:
    """Return everything that is sent before the first frame of a stream."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nCache-Control: no-cache, private\r\n" % (
        stream.content_type
    )
    return head + (
        b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Connection: close\r\n\r\n"
    )
