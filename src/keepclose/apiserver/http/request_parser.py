"""From the bytes of a client to its requests, each within limits of its own.

httptools calls back for every part of a request. It keeps a header that has not ended, however long
it gets, so bytes are counted as they come and not only where the parser tells of them. What comes
behind a chunked body, the trailer, is counted and ignored: a request is what its head says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn, Protocol
from urllib.parse import unquote

import httptools
import msgspec

from keepclose.apiserver.auth.credentials import GROUP_HEADER, GROUP_SEPARATOR
from keepclose.apiserver.serving.messages import HttpAnswer, HttpRequest
from keepclose.apiserver.serving.subresources import refusal_of
from keepclose.apiserver.status_errors import StatusError, too_large

# Go's table of bytes that a Host header may have.
_HOST: Final = re.compile(rb"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
_BAD_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_SCHEMES: Final = ("http://", "https://")
_CONTINUE: Final = b"100-continue"
_CHUNKED: Final = b"chunked"
MAX_BODY_BYTES: Final = 3 * 1024 * 1024
# Request line and headers together. kube-apiserver takes 1 MiB, but the parser joins a header that
# comes in many parts again with each part, and a client has not said who it is yet.
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADER_LINES: Final = 1000
# What a chunked body may have beside its data: so much for each chunk and so much in all, as in Go.
CHUNK_OVERHEAD_BYTES: Final = 18
MAX_EXCESS_BYTES: Final = 16 * 1024


class _Refusal(NamedTuple):
    """The status and the text of an answer to a request that is not read any further."""

    status: int
    text: bytes


class BadTargetError(ValueError):
    """The target of a request is none."""


_MISSING_HOST: Final = _Refusal(400, b"400 Bad Request: missing required Host header")
_BAD_HOST: Final = _Refusal(400, b"400 Bad Request: malformed Host header")
_BAD_ENCODING: Final = _Refusal(501, b"Unsupported transfer encoding")
_OLD_ENCODING: Final = _Refusal(400, b"400 Bad Request: HTTP/1.0 has no transfer encoding")
_BAD_EXPECTATION: Final = _Refusal(417, b"417 Expectation Failed")
_NO_VERSION: Final = _Refusal(400, b"400 Bad Request")
_BAD_VERSION: Final = _Refusal(505, b"505 HTTP Version Not Supported: unsupported protocol version")


def check_head(version: str, headers: Mapping[bytes, bytes]) -> _Refusal | None:
    """Return why a request cannot be served, or None; header names are lower case."""
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
        # NB: who disagrees with a proxy about where a body ends reads another client's request.
        if encoding.lower() != _CHUNKED:
            return _BAD_ENCODING
        if version == "1.0":
            return _OLD_ENCODING
    expectation = headers.get(b"expect")
    if expectation is not None and expectation.lower() != _CONTINUE:
        return _BAD_EXPECTATION
    return None


def announces_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a body follows the head."""
    if b"transfer-encoding" in headers:
        return True
    return headers.get(b"content-length", b"0").strip(b"0") != b""


def read_target(url: bytes) -> tuple[str, str]:
    """Return path and query of a target, also of one that begins with a scheme and a host.

    Raises BadTargetError for escapes that are none.
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


class _RefusedError(Exception):
    """Ends the parsing of a request that has been refused."""


class Receiver(Protocol):
    """The connection that requests come in by."""

    def take(self, request: HttpRequest, *, keep: bool) -> None:
        """Answer a complete request; `keep` leaves the connection open behind it."""
        ...

    def refuse(self, answer: HttpAnswer) -> None:
        """Answer a request that is not read any further, and close."""
        ...

    def refuse_stranger(self, request: HttpRequest) -> bool:
        """Refuse a request before its body is read, if it has no valid credentials."""
        ...

    def invite(self) -> None:
        """Ask for the body of a request that waits for that."""
        ...


class Incoming:
    """The requests of one connection."""

    def __init__(self, receiver: Receiver, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the first request."""
        self._receiver = receiver
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._version = "1.1"
        self._checked_host: bytes | None = None
        self._requests = 0
        self.peer: dict[str, Any] | None = None
        # When the request that is coming in began; None between requests.
        self.started: float | None = None
        self.in_head = False
        self._head_bytes = 0
        self._field_bytes = 0
        self._header_lines = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._chunks = 0
        self._excess_bytes = 0

    @property
    def body_bytes(self) -> int:
        """How much of a body is there that is not complete."""
        return len(self._body) if self.started is not None else 0

    def feed(self, data: bytes) -> None:
        """Take in what the client sent, and give the receiver what is complete."""
        requests = self._requests
        try:
            if self.started is not None:
                self._feed_on(data)
            else:
                self._parser.feed_data(data)
                # NB: empty lines before a request begin none, so that the connection stays idle.
                if self.started is not None and self.in_head and requests + 1 == self._requests:
                    # NB: a head that began behind another request counts from the next bytes on.
                    self._count_head(len(data))
        except _RefusedError:
            self.started = None
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self.started = None
            if not isinstance(error.__context__, _RefusedError):
                self._receiver.refuse(plain_answer(400, b"400 Bad Request"))

    def _feed_on(self, data: bytes) -> None:
        """Take in more of a request that has begun, and count what is no data."""
        requests, in_head = self._requests, self.in_head
        before, chunks = len(self._body), self._chunks
        self._parser.feed_data(data)
        if self.started is None or requests != self._requests:
            return
        if self.in_head:
            self._count_head(len(data))
        elif not in_head:
            self._count_excess(len(data) - (len(self._body) - before), self._chunks - chunks)

    def abandon(self) -> None:
        """Free what is there of a request; nothing is fed any more."""
        # NB: reader, parser and connection refer to each other, so that only a collection of
        # garbage would free it.
        self.started = None
        self._body = self._url = b""
        self._headers = {}

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.started = self._loop.time()
        self.in_head = True
        self._requests += 1
        self._head_bytes = self._field_bytes = self._header_lines = 0
        self._chunks = self._excess_bytes = 0
        self._url = b""
        self._headers = {}
        self._body = b""

    def on_url(self, url: bytes) -> None:
        """Gather the target."""
        self._url += url
        if len(self._url) > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header; of repeated ones the first, as in Go, but all groups to impersonate."""
        self._header_lines += 1
        self._field_bytes += len(name) + len(value)
        if self._header_lines > MAX_HEADER_LINES or self._field_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        if not self.in_head:
            # NB: a trailer comes when the head has been acted on: it must not change it.
            return
        name = name.lower()
        headers = self._headers
        if name not in headers:
            headers[name] = value
        elif name == GROUP_HEADER:
            headers[name] += GROUP_SEPARATOR + value
        elif name == b"host":
            self._refuse(400, b"400 Bad Request: too many Host headers")

    def on_headers_complete(self) -> None:
        """Look at what is announced before reading it."""
        headers = self._headers
        self.in_head = False
        self._version = self._parser.get_http_version()
        # NB: a client names the same host in each request.
        host = headers.get(b"host")
        if (
            host is None
            or host != self._checked_host
            or self._version != "1.1"
            or b"transfer-encoding" in headers
            or b"expect" in headers
        ):
            refusal = check_head(self._version, headers)
            if refusal is not None:
                self._refuse(*refusal)
            self._checked_host = host
        if self._parser.should_upgrade():
            path = self._url.partition(b"?")[0].decode(errors="replace")
            self._refuse(400, (refusal_of(path) or "upgrades are not served").encode())
        if (b"content-length" in headers or b"transfer-encoding" in headers) and announces_body(
            headers
        ):
            self._expect_body()

    def on_body(self, body: bytes) -> None:
        """Gather the body."""
        self._chunks += 1
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        if len(self._body) > MAX_BODY_BYTES:
            self._refuse_large()

    def on_message_complete(self) -> None:
        """Hand over the request."""
        self.started = None
        body, self._body = self._body, b""
        request = self._request(body if isinstance(body, bytes) else bytes(body))
        self._receiver.take(request, keep=self._parser.should_keep_alive())

    def _request(self, body: bytes) -> HttpRequest:
        try:
            path, query = read_target(self._url)
        except (BadTargetError, UnicodeDecodeError):
            self._refuse(400, b"400 Bad Request")
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
        if self._receiver.refuse_stranger(self._request(b"")):
            raise _RefusedError
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > MAX_BODY_BYTES):
            self._refuse_large()
        if b"expect" in self._headers:
            self._receiver.invite()

    # Limits.

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def _count_excess(self, size: int, chunks: int) -> None:
        """Count what is no data: sizes and extensions of chunks, and the trailer."""
        excess = self._excess_bytes + size - chunks * CHUNK_OVERHEAD_BYTES
        self._excess_bytes = max(excess, 0)
        if self._excess_bytes > MAX_EXCESS_BYTES:
            message = "chunked encoding contains too much non-data"
            self._refuse_with(StatusError(500, "", message))

    def _refuse_head(self) -> NoReturn:
        self._refuse(431, b"431 Request Header Fields Too Large")

    def _refuse_large(self) -> NoReturn:
        self._refuse_with(too_large(MAX_BODY_BYTES))

    def _refuse_with(self, failure: StatusError) -> NoReturn:
        self._body = b""
        self._receiver.refuse(HttpAnswer(failure.code, msgspec.json.encode(failure.status())))
        raise _RefusedError

    def _refuse(self, status: int, text: bytes) -> NoReturn:
        self._receiver.refuse(plain_answer(status, text))
        raise _RefusedError


def plain_answer(status: int, text: bytes) -> HttpAnswer:
    """Return an answer to a request that is not even HTTP, or never became complete."""
    return HttpAnswer(status, text + b"\n", b"text/plain; charset=utf-8")
