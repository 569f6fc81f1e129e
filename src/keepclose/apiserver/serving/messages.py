"""Requests as they are read and answers as they are sent, without the connection between.

An answer is sent at once; a stream bit by bit, for as long as somebody listens.
"""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from keepclose.apiserver.auth.authorization import WriteRights

# The sum of all request bodies that come in slowly and answers that are read slowly; above it,
# transfers slower than SLOW_BYTES_PER_SECOND are dropped.
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
# Above this sum, transfers in which nothing moves for REST_SECONDS are dropped as well.
MOST_HELD_BYTES: Final = 128 * 1024 * 1024
REST_SECONDS: Final = 0.25
# What the buffers of TLS and of the event loop hold for a client that does not read.
STALLED_BYTES: Final = 256 * 1024
# How often slow transfers are looked for at most.
SCAN_SECONDS: Final = 0.05
SLOW_BYTES_PER_SECOND: Final = 1024 * 1024
# What a transfer is given before it is called slow.
TRANSFER_GRACE_SECONDS: Final = 1.0
MAX_CONNECTIONS: Final = 4096
# Descriptors that connections leave to the store, to certificates, tokens and logs.
RESERVED_DESCRIPTORS: Final = 100
MIN_CONNECTIONS: Final = 16
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


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many connections may be open."""

    total: int = MAX_CONNECTIONS
    # Of clients that have not sent a request with valid credentials yet.
    unauthenticated: int = MAX_CONNECTIONS // 2
    unauthenticated_per_address: int = MAX_CONNECTIONS // 4
    per_user: int = MAX_CONNECTIONS // 2

    @classmethod
    def for_total(cls, total: int) -> ConnectionLimits:
        """Return limits that share this many connections."""
        return cls(total, total // 2, total // 4, total // 2)

    @classmethod
    def for_process(cls, most: int = MAX_CONNECTIONS) -> ConnectionLimits:
        """Return limits that leave this process descriptors for its files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = min(most, soft - RESERVED_DESCRIPTORS)
        return cls.for_total(max(most, MIN_CONNECTIONS))


def raise_descriptor_limit() -> None:
    """Let this process open as many files and sockets as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class HttpRequest(msgspec.Struct):
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


class HttpAnswer(msgspec.Struct):
    """What is sent back at once."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Stream(Protocol):
    """What is sent back bit by bit."""

    content_type: bytes

    def frames(self) -> AsyncIterator[bytes]:
        """Yield what to send."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Pending(msgspec.Struct):
    """What is sent back later: `begin` starts the work and returns its outcome."""

    begin: Callable[[], Awaitable[HttpAnswer | Stream]]


RequestHandler = Callable[[HttpRequest], HttpAnswer | Stream | Pending]
# Whether a request has valid credentials.
Knows = Callable[[HttpRequest], bool]


def encode_head(answer: HttpAnswer, *, keep: bool) -> bytes:
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
