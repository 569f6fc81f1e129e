"""Parses the bytes of a client into requests, and enforces the limits of heads and bodies.

httptools calls back for every part of a request. It buffers an unfinished header of any length, so
bytes are counted as they arrive and not only when the parser reports them. The trailer of a chunked
body is counted and ignored: only the head describes a request.

Version, host, target and framing are checked before the body is read. The errors are those of
kube-apiserver. Where its HTTP server accepts what RFC 9112 forbids, such as folded header lines,
httptools has rejected the request before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn, Protocol
from urllib.parse import unquote

import httptools
import msgspec
import structlog

from keepclose.apiserver.auth.credentials import GROUP_HEADER, GROUP_SEPARATOR
from keepclose.apiserver.serving.http_messages import HttpRequest, HttpResponse
from keepclose.apiserver.serving.subresources import container_request_error
from keepclose.apiserver.status_errors import StatusError, too_large

MAX_BODY_BYTES: Final = 3 * 1024 * 1024
# The limit for request line and headers. kube-apiserver accepts 1 MiB, but httptools concatenates a
# header in many parts again with each part, and the client is not authenticated yet.
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADER_LINES: Final = 1000
# The memory of a header beside its bytes.
HEADER_LINE_BYTES: Final = 200
# The size of the blocks in which the bytes of a body wait for its end.
BLOCK_BYTES: Final = 64 * 1024
# The limits for the framing of a chunked body, per chunk and in all, as in Go.
CHUNK_OVERHEAD_BYTES: Final = 18
MAX_EXCESS_BYTES: Final = 16 * 1024
# The bytes that Go allows in a Host header.
_HOST: Final = re.compile(rb"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
_BAD_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_SCHEMES: Final = ("http://", "https://")
_CONTINUE: Final = b"100-continue"
_CHUNKED: Final = b"chunked"
_log = structlog.get_logger(__name__)


class _Rejection(NamedTuple):
    """The status and the text of the response to a request that is not read any further."""

    status: int
    text: bytes


class BadTargetError(ValueError):
    """The target of a request is invalid."""


_MISSING_HOST: Final = _Rejection(400, b"400 Bad Request: missing required Host header")
_BAD_HOST: Final = _Rejection(400, b"400 Bad Request: malformed Host header")
_BAD_ENCODING: Final = _Rejection(501, b"Unsupported transfer encoding")
_OLD_ENCODING: Final = _Rejection(400, b"400 Bad Request: HTTP/1.0 has no transfer encoding")
_BAD_EXPECTATION: Final = _Rejection(417, b"417 Expectation Failed")
_NO_VERSION: Final = _Rejection(400, b"400 Bad Request")
_BAD_VERSION: Final = _Rejection(
    505, b"505 HTTP Version Not Supported: unsupported protocol version"
)


def check_head(version: str, headers: Mapping[bytes, bytes]) -> _Rejection | None:
    """Return why a request is rejected, or None; header names are lower case."""
    host = headers.get(b"host")
    if version != "1.1":
        if version == "0.9":
            return _NO_VERSION
        if version != "1.0":
            return _BAD_VERSION
    elif host is None:
        return _MISSING_HOST
    if host is not None and _HOST.fullmatch(host) is None:
        return _BAD_HOST
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None:
        # NB: request smuggling: a server must agree with a proxy in front about where a body ends.
        if encoding.lower() != _CHUNKED:
            return _BAD_ENCODING
        if version == "1.0":
            return _OLD_ENCODING
    expectation = headers.get(b"expect")
    if expectation is not None and expectation.lower() != _CONTINUE:
        return _BAD_EXPECTATION
    return None


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a body follows the head."""
    if b"transfer-encoding" in headers:
        return True
    return headers.get(b"content-length", b"0").strip(b"0") != b""


def read_target(url: bytes) -> tuple[str, str]:
    """Return path and query of a target, which may begin with a scheme and a host.

    Raises BadTargetError for invalid escapes.
    """
    path, _, query = url.decode("ascii").partition("?")
    if not path.startswith("/"):
        path = _without_authority(path)
    if "%" in path:
        if _BAD_ESCAPE.search(path):
            raise BadTargetError(path)
        path = unquote(path)
    return path, query


def _without_authority(path: str) -> str:
    for scheme in _SCHEMES:
        if path[: len(scheme)].lower() == scheme:
            _, slash, rest = path[len(scheme) :].partition("/")
            return slash + rest or "/"
    return path


class _RejectedError(Exception):
    """Ends the parsing of a rejected request."""


class _Receiver(Protocol):
    """The connection to which the requests belong."""

    def on_request(self, request: HttpRequest, *, keep: bool) -> None:
        """Answer a complete request; `keep` leaves the connection open after it."""
        ...

    def reject(self, answer: HttpResponse) -> None:
        """Answer a request that is not read any further, and close."""
        ...

    def reject_unauthenticated(self, request: HttpRequest) -> bool:
        """Reject a request before its body is read, if it has no valid credentials."""
        ...

    def send_continue(self) -> None:
        """Answer 100 Continue to a client that waits for it before it sends the body."""
        ...


class _BodyBuffer:
    """The bytes of an incomplete body.

    NB: in blocks. A bytearray for the whole body would allocate an eighth more than it holds.
    """

    __slots__ = ("_blocks", "size")

    def __init__(self) -> None:
        self._blocks: list[bytes | bytearray] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add to the end."""
        blocks = self._blocks
        self.size += len(data)
        if not blocks or len(blocks[-1]) + len(data) > BLOCK_BYTES:
            blocks.append(data)
            return
        # NB: a client may send a byte at a time, so that small pieces share a block.
        last = blocks[-1]
        if isinstance(last, bytes):
            last = blocks[-1] = bytearray(last)
        last += data

    def take(self) -> bytes:
        """Return the whole body, and begin an empty one."""
        blocks = self._blocks
        body = bytes(blocks[0]) if len(blocks) == 1 else b"".join(blocks)
        self.clear()
        return body

    def clear(self) -> None:
        """Free the bytes."""
        self._blocks = []
        self.size = 0


class RequestReader:
    """Parses the requests of one connection."""

    def __init__(self, receiver: _Receiver, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the first request."""
        self._receiver = receiver
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._version = "1.1"
        self._checked_host: bytes | None = None
        self._requests = 0
        self.peer: dict[str, Any] | None = None
        # When the current request began; None between requests.
        self.started: float | None = None
        self.in_head = False
        self._head_bytes = 0
        self._field_bytes = 0
        self._header_lines = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = _BodyBuffer()
        self._chunks = 0
        self._excess_bytes = 0

    @property
    def incomplete_bytes(self) -> int:
        """How many bytes an incomplete request holds."""
        return self.request_bytes + self._body.size if self.started is not None else 0

    @property
    def request_bytes(self) -> int:
        """How many bytes the head of the current request holds as target and headers."""
        return len(self._url) + self._field_bytes + HEADER_LINE_BYTES * self._header_lines

    def detach(self) -> None:
        """Forget the connection, which has closed.

        NB: reader, parser and connection refer to each other; only the garbage collector would free
        them and the buffers of TLS.
        """
        self.abandon()
        del self._parser, self._receiver

    def feed(self, data: bytes) -> None:
        """Parse what the client has sent; complete requests go to the receiver."""
        requests = self._requests
        try:
            if self.started is not None:
                self._feed_more(data)
            else:
                self._parser.feed_data(data)
                # NB: empty lines before a request do not begin one; the connection stays idle.
                if self.started is not None and self.in_head and requests + 1 == self._requests:
                    # NB: a head that begins after another request counts from the next bytes on.
                    self._count_head(len(data))
        except _RejectedError:
            self.started = None
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self.started = None
            fault = error.__context__
            # NB: what the client sent wrong is a ValueError; anything else is a fault of ours.
            if fault is not None and not isinstance(fault, _RejectedError | ValueError):
                _log.error("request failed", exc_info=fault)
            if not isinstance(fault, _RejectedError):
                self._receiver.reject(plain_response(400, b"400 Bad Request"))

    def _feed_more(self, data: bytes) -> None:
        """Parse more of a request that has begun, and count the bytes beside its data."""
        requests, in_head = self._requests, self.in_head
        before, chunks = self._body.size, self._chunks
        self._parser.feed_data(data)
        if self.started is None or requests != self._requests:
            return
        if self.in_head:
            self._count_head(len(data))
        elif not in_head:
            self._count_excess(len(data) - (self._body.size - before), self._chunks - chunks)

    def abandon(self) -> None:
        """Free the buffers of the current request; no more bytes are fed."""
        self.started = None
        self._field_bytes = self._header_lines = 0
        self._body.clear()
        self._url = b""
        self._headers = {}

    # Called by httptools.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.started = self._loop.time()
        self.in_head = True
        self._requests += 1
        self._head_bytes = self._field_bytes = self._header_lines = 0
        self._chunks = self._excess_bytes = 0
        self._url = b""
        self._headers = {}
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        """Add to the target."""
        self._url += url
        if len(self._url) > MAX_HEAD_BYTES:
            self._reject_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; of repeated ones the first counts, as in Go, but all Impersonate-Group."""
        self._header_lines += 1
        self._field_bytes += len(name) + len(value)
        if self._header_lines > MAX_HEADER_LINES or self._field_bytes > MAX_HEAD_BYTES:
            self._reject_head()
        if not self.in_head:
            # NB: a trailer arrives after the head was checked and must not change it.
            return
        name = name.lower()
        headers = self._headers
        if name not in headers:
            headers[name] = value
        elif name == GROUP_HEADER:
            headers[name] += GROUP_SEPARATOR + value
        elif name == b"host":
            self._reject(400, b"400 Bad Request: too many Host headers")

    def on_headers_complete(self) -> None:
        """Check the head before the body is read."""
        headers = self._headers
        self.in_head = False
        self._version = self._parser.get_http_version()
        # NB: a client sends the same host in each request, so it is checked once.
        host = headers.get(b"host")
        if (
            host is None
            or host != self._checked_host
            or self._version != "1.1"
            or b"transfer-encoding" in headers
            or b"expect" in headers
        ):
            rejection = check_head(self._version, headers)
            if rejection is not None:
                self._reject(*rejection)
            self._checked_host = host
        if self._parser.should_upgrade():
            path = self._url.partition(b"?")[0].decode(errors="replace")
            self._reject(400, (container_request_error(path) or "upgrades are not served").encode())
        if (b"content-length" in headers or b"transfer-encoding" in headers) and has_body(headers):
            self._expect_body()

    def on_body(self, body: bytes) -> None:
        """Add to the body."""
        self._chunks += 1
        self._body.add(body)
        if self._body.size > MAX_BODY_BYTES:
            self._reject_large()

    def on_message_complete(self) -> None:
        """Give the complete request to the receiver."""
        self.started = None
        request = self._build_request(self._body.take())
        self._receiver.on_request(request, keep=self._parser.should_keep_alive())

    def _build_request(self, body: bytes) -> HttpRequest:
        try:
            path, query = read_target(self._url)
        except (BadTargetError, UnicodeDecodeError):
            self._reject(400, b"400 Bad Request")
        return HttpRequest(
            method=self._parser.get_method().decode("ascii"),
            path=path,
            query=query,
            headers=self._headers,
            body=body,
            peer=self.peer,
            version=self._version,
        )

    def _expect_body(self) -> None:
        if self._receiver.reject_unauthenticated(self._build_request(b"")):
            raise _RejectedError
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > MAX_BODY_BYTES):
            self._reject_large()
        if b"expect" in self._headers:
            self._receiver.send_continue()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._reject_head()

    def _count_excess(self, size: int, chunks: int) -> None:
        """Count the bytes beside the data: sizes and extensions of chunks, and the trailer."""
        excess = self._excess_bytes + size - chunks * CHUNK_OVERHEAD_BYTES
        self._excess_bytes = max(excess, 0)
        if self._excess_bytes > MAX_EXCESS_BYTES:
            message = "chunked encoding contains too much non-data"
            self._reject_with(StatusError(500, "", message))

    def _reject_head(self) -> NoReturn:
        self._reject(431, b"431 Request Header Fields Too Large")

    def _reject_large(self) -> NoReturn:
        self._reject_with(too_large(MAX_BODY_BYTES))

    def _reject_with(self, failure: StatusError) -> NoReturn:
        self._body.clear()
        self._receiver.reject(HttpResponse(failure.code, msgspec.json.encode(failure.status())))
        raise _RejectedError

    def _reject(self, status: int, text: bytes) -> NoReturn:
        self._receiver.reject(plain_response(status, text))
        raise _RejectedError


def plain_response(status: int, text: bytes) -> HttpResponse:
    """Return the plain response to a request that is not valid HTTP or never became complete."""
    return HttpResponse(status, text + b"\n", b"text/plain; charset=utf-8")
