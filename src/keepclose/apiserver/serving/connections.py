"""One client's connection: bytes in, requests to the application, bytes out.

HTTP is parsed by httptools; this module bounds what a client may cost: the size of headers and
body, the time to send them, and what waits to be read. Almost every request is answered in the
moment it is complete, without a task; a watch is a task of its own that obeys the flow of the
connection.
"""

from __future__ import annotations

import asyncio
import collections
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
import msgspec
import structlog

from keepclose.apiserver.failures import too_large
from keepclose.apiserver.security.impersonation import GROUP_HEADER, GROUP_SEPARATOR
from keepclose.apiserver.serving.container_requests import refusal_of
from keepclose.apiserver.serving.messages import (
    Answer,
    Handler,
    Pending,
    Request,
    Stream,
    encode_head,
)

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 3 * 1024 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_WAITING: Final = 64
# A request that is not complete after this time is given up.
REQUEST_SECONDS: Final = 60.0
# A client that reads nothing of its stream for this long is gone.
STALLED_SECONDS: Final = 60.0
LINGER_SECONDS: Final = 1.0


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, handler: Handler, open_ones: set[Connection]) -> None:
        """Wait for the connection to be made; `open_ones` is kept up to date."""
        self._handler = handler
        self._open_ones = open_ones
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: collections.deque[tuple[Request, bool]] = collections.deque()
        self._streaming: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = False
        self._head_bytes = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._peer: dict[str, Any] | None = None
        # When the request that is coming in must be complete; None between requests.
        self.deadline: float | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        # NB: uvloop's transports are not derived from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._peer = transport.get_extra_info("peercert") or None
        self._open_ones.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what this client was being sent."""
        del exc
        self._closing = True
        self._open_ones.discard(self)
        self._waiting.clear()
        self._writable.set()
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        """Take in what the client sent."""
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError, UnicodeDecodeError):
            if not self._closing:
                self._refuse(400, b"malformed HTTP request")

    def pause_writing(self) -> None:
        """Stop reading requests from a client that does not read its answers."""
        self._writable.clear()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable.set()
        self._serve_waiting()

    def eof_received(self) -> bool:
        """Close when the client has nothing more to say; it does not wait for answers then."""
        return False

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_bytes = 0
        self._head_bytes = 0
        self.deadline = self._loop.time() + REQUEST_SECONDS

    def on_url(self, url: bytes) -> None:
        """Gather the path."""
        self._count_head(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header; of repeated ones the last, but all groups to impersonate."""
        self._count_head(len(name) + len(value))
        name = name.lower()
        if name == GROUP_HEADER and name in self._headers:
            value = self._headers[name] + GROUP_SEPARATOR + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Look at what is announced before reading it."""
        length = self._headers.get(b"content-length", b"")
        if self._parser.should_upgrade():
            path = self._url.partition(b"?")[0].decode(errors="replace")
            self._refuse(400, (refusal_of(path) or "upgrades are not served").encode())
        elif length.isdigit() and int(length) > MAX_BODY_BYTES:
            self._refuse_large()
        elif self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Gather the body."""
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse_large()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer the request, or put it in line behind the ones before it."""
        self.deadline = None
        if self._closing:
            return
        path, _, query = self._url.partition(b"?")
        text = path.decode("ascii")
        request = Request(
            method=self._parser.get_method().decode("ascii"),
            path=unquote(text) if "%" in text else text,
            query=query.decode("ascii"),
            headers=self._headers,
            body=b"".join(self._body) if self._body else b"",
            peer=self._peer,
        )
        keep = self._parser.should_keep_alive()
        # NB: many requests may come in one piece, so that not to read on is not enough.
        if self._streaming is None and not self._waiting and self._writable.is_set():
            self._serve(request, keep=keep)
            return
        self._waiting.append((request, keep))
        if len(self._waiting) >= MAX_WAITING:
            self._transport.pause_reading()

    # What the server calls.

    def give_up(self) -> None:
        """Close a connection whose request never became complete."""
        self._refuse(408, b"the request was not complete in time")

    def cut(self) -> None:
        """Close at once, whatever the client does."""
        self._transport.abort()

    async def finish(self) -> None:
        """Close; a stream ends cleanly first."""
        self._closing = True
        task = self._streaming
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=1)
        self._transport.close()

    # Answering.

    def _serve(self, request: Request, *, keep: bool) -> None:
        answer = self._handler(request)
        if isinstance(answer, Pending):
            self._streaming = self._loop.create_task(self._serve_later(answer, request, keep=keep))
        else:
            self._respond(answer, request, keep=keep)

    async def _serve_later(self, pending: Pending, request: Request, *, keep: bool) -> None:
        try:
            answer = await pending.begin()
        finally:
            self._streaming = None
        if self._closing:
            if not isinstance(answer, Answer):
                answer.close()
            return
        self._respond(answer, request, keep=keep)
        self._serve_waiting()

    def _respond(self, answer: Answer | Stream, request: Request, *, keep: bool) -> None:
        if isinstance(answer, Answer):
            self._send(answer, keep=keep, head_only=request.method == "HEAD")
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nCache-Control: no-cache, private\r\n" % (
            answer.content_type
        )
        self._transport.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        self._streaming = self._loop.create_task(self._stream(answer, keep=keep))

    def _send(
        self, answer: Answer, *, keep: bool, head_only: bool = False, linger: bool = False
    ) -> None:
        head = encode_head(answer, keep=keep)
        body = b"" if head_only else answer.body
        if len(body) > 65_536:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)
        if not keep:
            self._closing = True
            if linger:
                # The client is still sending; cutting it off would lose it the answer.
                self._loop.call_later(LINGER_SECONDS, self._transport.close)
            else:
                self._transport.close()

    async def _stream(self, stream: Stream, *, keep: bool) -> None:
        ended = False
        try:
            async for frame in stream.frames():
                self._transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                if not self._writable.is_set():
                    async with asyncio.timeout(STALLED_SECONDS):
                        await self._writable.wait()
            ended = True
        except TimeoutError:
            self._transport.abort()
        except asyncio.CancelledError:
            ended = not self._transport.is_closing()
        except Exception:
            # The status is sent: breaking off is all that can tell the client.
            log.exception("stream failed")
        finally:
            stream.close()
            self._streaming = None
        if not ended:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._transport.write(b"0\r\n\r\n")
            if not keep or self._closing:
                self._transport.close()
            else:
                self._serve_waiting()

    def _serve_waiting(self) -> None:
        while (
            self._waiting
            and self._streaming is None
            and self._writable.is_set()
            and not self._closing
        ):
            request, keep = self._waiting.popleft()
            self._serve(request, keep=keep)
        self._resume_reading()

    def _resume_reading(self) -> None:
        if self._writable.is_set() and len(self._waiting) < MAX_WAITING and not self._closing:
            self._transport.resume_reading()

    # Refusing.

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES and not self._closing:
            self._refuse(431, b"the headers are too large")

    def _refuse_large(self) -> None:
        if self._closing:
            return
        status = too_large(MAX_BODY_BYTES).status()
        self._send(Answer(413, msgspec.json.encode(status)), keep=False, linger=True)

    def _refuse(self, status: int, text: bytes) -> None:
        self._send(Answer(status, text + b"\n", b"text/plain; charset=utf-8"), keep=False)
