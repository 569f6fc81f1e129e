"""HTTP requests, responses and streams without the connection, and the limits of connections.

A response is sent at once; a stream frame by frame, as long as its client reads.

Of all connections, those without valid credentials get half, one address without credentials a
quarter, and one user half: neither an unauthenticated client nor one node can lock out the others.
kube-apiserver has no such limit; here descriptors and memory are those of one process on the
machine of a user.
"""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from keepclose.apiserver.auth.authorization import WriteRights

# The limit for incomplete request bodies and unread responses together; above it, transfers slower
# than SLOW_BYTES_PER_SECOND are dropped.
SOFT_HELD_BYTES: Final = 64 * 1024 * 1024
# Above this limit, transfers without progress for REST_SECONDS are dropped as well.
HARD_HELD_BYTES: Final = 128 * 1024 * 1024
REST_SECONDS: Final = 0.25
# The bytes in the buffers of TLS and of the event loop for a client that does not read.
STALLED_BYTES: Final = 256 * 1024
# The largest size of the buffers of a connection whose client sends; they grow with what is read at
# once, and stay.
RECEIVE_BUFFER_BYTES: Final = 640 * 1024
# The shortest interval between two scans for slow transfers, and the growth that shortens it.
SCAN_SECONDS: Final = 0.05
SCAN_BYTES: Final = 1024 * 1024
SLOW_BYTES_PER_SECOND: Final = 1024 * 1024
# How long a transfer may be slow.
TRANSFER_GRACE_SECONDS: Final = 1.0
MAX_CONNECTIONS: Final = 4096
# Descriptors that are reserved for the store, certificates, tokens and logs.
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
    """The limits of open connections."""

    total: int = MAX_CONNECTIONS
    # Connections without a request with valid credentials so far.
    unauthenticated: int = MAX_CONNECTIONS // 2
    unauthenticated_per_address: int = MAX_CONNECTIONS // 4
    per_user: int = MAX_CONNECTIONS // 2

    @classmethod
    def for_total(cls, total: int) -> ConnectionLimits:
        """Return the limits that share this many connections."""
        return cls(total, total // 2, total // 4, total // 2)

    @classmethod
    def for_process(cls, most: int = MAX_CONNECTIONS) -> ConnectionLimits:
        """Return the limits that leave this process descriptors for its files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = min(most, soft - RESERVED_DESCRIPTORS)
        return cls.for_total(max(most, MIN_CONNECTIONS))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files and sockets to the hard limit."""
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
    # The client certificate, as `ssl.SSLSocket.getpeercert` returns it.
    peer: dict[str, Any] | None = None
    # Set when the request is authorized; None for administrators, whose writes are not checked.
    rights: WriteRights | None = None
    version: str = "1.1"
    # The name of the authenticated user; "" before authentication.
    caller: str = ""

    def header(self, name: bytes) -> str:
        """Return a header, or ""."""
        return self.headers.get(name, b"").decode("latin-1")


class HttpResponse(msgspec.Struct):
    """A response that is sent at once."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class ResponseStream(Protocol):
    """A response that is sent frame by frame."""

    content_type: bytes
    # Whether it lasts for as long as the client wants, as a watch does.
    endless: bool

    def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames."""
        ...

    def close(self) -> None:
        """Release the resources of the stream."""
        ...


class PendingResponse(msgspec.Struct):
    """A response that is computed later: `begin` starts the work and returns the response."""

    begin: Callable[[], Awaitable[HttpResponse | ResponseStream]]


RequestHandler = Callable[[HttpRequest], HttpResponse | ResponseStream | PendingResponse]
# Whether a request has valid credentials.
HasCredentials = Callable[[HttpRequest], bool]


def encode_head(answer: HttpResponse, *, keep: bool) -> bytes:
    """Return the status line and the headers; `keep` leaves the connection open."""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n" % (
        answer.status,
        _REASONS.get(answer.status, b"-"),
        answer.content_type,
        len(answer.body),
    )
    extra = b"".join([b"%b: %b\r\n" % pair for pair in answer.headers])
    close = b"" if keep else b"Connection: close\r\n"
    return b"".join((head, extra, b"Cache-Control: no-cache, private\r\n", close, b"\r\n"))


def encode_stream_head(stream: ResponseStream, *, chunked: bool) -> bytes:
    """Return the status line and the headers of a stream."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nCache-Control: no-cache, private\r\n" % (
        stream.content_type
    )
    return head + (
        b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Connection: close\r\n\r\n"
    )
