"""The connection of one client: requests go to the application, responses to the client.

Almost every request is answered as soon as it is complete, without a task; a watch is a task of its
own that obeys the flow control of the connection. The body of a request without valid credentials
is never read: its head is enough to reject it.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Hashable
from typing import Final, Protocol, cast

import structlog

from keepclose.apiserver.http.connection_table import (
    ConnectionTable,
    ParsingTurns,
    Transfer,
    Transfers,
)
from keepclose.apiserver.http.request_parser import RequestReader, plain_response
from keepclose.apiserver.http.response_writer import ResponseWriter
from keepclose.apiserver.serving.http_messages import (
    HasCredentials,
    HttpRequest,
    HttpResponse,
    PendingResponse,
    RequestHandler,
    ResponseStream,
    encode_head,
    encode_stream_head,
)
from keepclose.apiserver.serving.responses import respond_error
from keepclose.apiserver.status_errors import too_many_connections, too_many_requests

_log = structlog.get_logger(__name__)

# Pipelined requests that may wait; beyond them the server stops reading from the client.
MAX_WAITING: Final = 64
MAX_WAITING_BYTES: Final = 64 * 1024
# Pipelined requests that are answered in one turn of the event loop.
ANSWERS_EACH_TURN: Final = 8
# Bytes that are parsed at once.
PARSED_BYTES: Final = 16 * 1024
# Timeouts for heads, requests and idle connections are the defaults of kube-apiserver.
# A request whose head is not complete after this time is rejected.
HEADER_SECONDS: Final = 32.0
# A request that is not complete after this time is rejected.
REQUEST_SECONDS: Final = 60.0
# A connection without requests is closed after this time.
IDLE_SECONDS: Final = 90.0
# How long a client may read the rest after the server has closed.
CLOSE_SECONDS: Final = 30.0
# How long a client that still sends may read a rejection.
LINGER_SECONDS: Final = 0.5
# Reasons, as in the label of the metric.
_TIMED_OUT: Final = "timed out"
STALLED: Final = "stalled"
IDLE: Final = "idle"


class _Server(Protocol):
    """The server, as its connections see it."""

    handler: RequestHandler
    # None accepts a body from every client.
    has_credentials: HasCredentials | None
    table: ConnectionTable
    transfers: Transfers
    turns: ParsingTurns


class Connection(asyncio.Protocol):
    """The connection of a client, from the moment it is accepted."""

    def __init__(self, server: _Server, address: str) -> None:
        """Wait for the TLS handshake to complete."""
        self._server = server
        self._handler = server.handler
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self, self._loop)
        self._writer = ResponseWriter(self, server.transfers)
        self._transport: asyncio.Transport | None = None
        # Set by the server during the TLS handshake.
        self.handshake: asyncio.Task[None] | None = None
        self.address = address
        self.user: str | None = None
        self._credentials: bytes | None = None
        self.idle_since: float | None = self._loop.time()
        self._is_new = True
        self._unparsed: collections.deque[bytes] = collections.deque()
        self._unparsed_bytes = 0
        # Whether the unparsed bytes wait for their turn.
        self._is_queued = False
        self._request_transfer: Transfer | None = None
        # Requests, whether the connection stays open after each, and their bytes.
        self._waiting: collections.deque[tuple[HttpRequest, bool, int]] = collections.deque()
        self._waiting_bytes = 0
        self._answered_this_turn = 0
        # The last response, sent after those to the waiting requests.
        self._rejection: HttpResponse | None = None
        self._streaming: asyncio.Task[None] | None = None
        # Whether the stream that is sent may never end.
        self._is_endless = False
        # Whether the connection stays open after the response that is sent.
        self._keeps_open = False
        self._closing = False
        self._closed_at: float | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve the client."""
        # NB: uvloop's transports are not derived from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._writer.attach(self._transport)
        self._reader.peer = transport.get_extra_info("peercert") or None
        self.idle_since = self._loop.time()

    def on_failed_handshake(self) -> None:
        """Leave the table; asyncio reports the end only of a connection that has begun."""
        self._server.table.remove(self)
        if self._transport is None:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the response to this client and release its buffers."""
        del exc
        self._closing = True
        self._server.table.remove(self)
        self._release()
        self._server.transfers.release_buffers(self)
        self._reader.detach()
        self._writer.detach()
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what the client has sent."""
        if self._closing or self._rejection is not None:
            return
        self._answered_this_turn = 0
        turns = self._server.turns
        if len(data) <= PARSED_BYTES and not self._unparsed and turns.has_time():
            started = time.perf_counter()
            self._reader.feed(data)
            turns.spend(started)
        else:
            if len(data) > PARSED_BYTES:
                self._server.transfers.buffer(self, len(data))
            self._unparsed.extend(
                data[start : start + PARSED_BYTES] for start in range(0, len(data), PARSED_BYTES)
            )
            self._unparsed_bytes += len(data)
            self._parse()
        self._account()
        if self._unparsed or self._is_full():
            self._writer.transport.pause_reading()

    def pause_writing(self) -> None:
        """Stop reading requests from a client that does not read its responses."""
        self._writer.pause(self._loop.time())
        self._writer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue with the pending response and the waiting requests."""
        if self._writer.resume():
            self._end_response(keep=self._keeps_open)
        self._continue()

    def eof_received(self) -> bool:
        """Close when the client has closed its side; it does not wait for responses then."""
        return False

    # Called by the request parser.

    def on_request(self, request: HttpRequest, *, keep: bool) -> None:
        """Answer the request, or queue it behind earlier ones."""
        if self._closing or self._rejection is not None:
            return
        self._is_new = False
        # NB: one read may bring many requests, so pausing to read is not enough.
        if (
            not self._waiting
            and self._answered_this_turn < ANSWERS_EACH_TURN
            and not self._is_busy()
        ):
            self._serve(request, keep=keep)
            return
        size = self._reader.request_bytes + len(request.body)
        self._waiting.append((request, keep, size))
        self._waiting_bytes += size
        if self._is_endless and self._is_full():
            # NB: a paused transport does not notice that the client is gone, and the watch would
            # stay open.
            self.abort()
            return
        if len(self._waiting) == 1 and not self._is_busy():
            self._loop.call_soon(self._begin_turn)

    def reject(self, answer: HttpResponse) -> None:
        """Answer a request that is not read any further, after earlier ones, and close."""
        if self._closing or self._rejection is not None:
            return
        if self._is_endless:
            # NB: the rejection would never be sent.
            self.abort()
        elif self._waiting or self._is_busy():
            self._rejection = answer
            self._release_request()
            self._writer.transport.pause_reading()
        else:
            self._send(answer, keep=False, linger=True)

    def reject_unauthenticated(self, request: HttpRequest) -> bool:
        """Reject a request before its body is read, if it has no valid credentials."""
        has_credentials = self._server.has_credentials
        credentials = request.headers.get(b"authorization")
        is_known = credentials is not None and credentials == self._credentials
        if has_credentials is None or (self.user is not None and is_known):
            return False
        if has_credentials(request):
            self._credentials = credentials
            return False
        answer = self._handler(request)
        if isinstance(answer, HttpResponse):
            self.reject(answer)
        elif isinstance(answer, PendingResponse):
            # Unauthenticated clients have used their share, so the request is not queued.
            self.reject(respond_error(too_many_requests()))
        else:
            answer.close()
            self.reject(plain_response(400, b"400 Bad Request"))
        return True

    def send_continue(self) -> None:
        """Answer 100 Continue to a client that waits for it before it sends the body."""
        if not self._waiting and not self._is_busy():
            self._writer.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Called by the server.

    @property
    def resting_since(self) -> float | None:
        """Since when no request is read or answered; None while one is."""
        return None if self._reader.started is not None or self._unparsed else self.idle_since

    @property
    def sender(self) -> Hashable:
        """Whose turn it takes to parse: the user, or what is known of it so far."""
        return self.user or self._credentials or self.address

    def check_timeouts(self, now: float) -> bool:
        """Close the connection when its client has exceeded a timeout; return whether it has."""
        started = self._reader.started
        if self._closed_at is not None or not self._writer.is_writable:
            if self._closed_at is not None:
                is_over = now - self._closed_at > CLOSE_SECONDS
            else:
                is_over = self._writer.is_stalled(now)
            if is_over:
                self.drop(STALLED)
            return is_over
        if started is not None:
            is_over = now - started > REQUEST_SECONDS or (
                self._reader.in_head and now - started > HEADER_SECONDS
            )
            if is_over:
                self._server.table.count(_TIMED_OUT)
                self.reject(plain_response(408, b"the request was not complete in time"))
            return is_over
        if self.idle_since is None or self._transport is None:
            return False
        # NB: the first request must begin within the timeout of a head.
        is_over = now - self.idle_since > (HEADER_SECONDS if self._is_new else IDLE_SECONDS)
        if is_over:
            self._server.table.count(IDLE)
            self._close()
        return is_over

    def drop(self, reason: str) -> None:
        """Leave the table, count the reason there, and close at once."""
        self._server.table.remove(self)
        self._server.table.count(reason)
        self.abort()

    def abort(self) -> None:
        """Close at once, without waiting for the client."""
        self._closing = True
        self._release()
        if self._transport is not None:
            self._transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    async def close_gracefully(self) -> None:
        """Close after a stream has ended cleanly."""
        self._closing = True
        task = self._streaming
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=1)
        if self._transport is None or self._writer.unsent is not None:
            self.abort()
        else:
            self._transport.close()

    # Answering.

    def _is_busy(self) -> bool:
        """Return whether an earlier response is not sent completely yet."""
        return (
            self._streaming is not None
            or self._writer.unsent is not None
            or not self._writer.is_writable
        )

    def _is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES

    def _serve(self, request: HttpRequest, *, keep: bool) -> None:
        self._answered_this_turn += 1
        self.idle_since = None
        answer = self._handler(request)
        if isinstance(answer, PendingResponse):
            self._streaming = self._loop.create_task(self._serve_later(answer, request, keep=keep))
        else:
            self._respond(answer, request, keep=keep)

    async def _serve_later(
        self, pending: PendingResponse, request: HttpRequest, *, keep: bool
    ) -> None:
        try:
            answer = await pending.begin()
        finally:
            self._streaming = None
        if self._closing:
            if not isinstance(answer, HttpResponse):
                answer.close()
            return
        self._respond(answer, request, keep=keep)
        self._continue()

    def _respond(
        self, answer: HttpResponse | ResponseStream, request: HttpRequest, *, keep: bool
    ) -> None:
        if (
            self.user is None
            and request.caller
            and not self._server.table.authenticate(self, request.caller)
        ):
            keep = False
            if not isinstance(answer, HttpResponse):
                answer.close()
                answer = respond_error(too_many_connections())
        if isinstance(answer, HttpResponse):
            self._send(answer, keep=keep, head_only=request.method == "HEAD")
            return
        if answer.endless and (self._rejection is not None or self._is_full()):
            # NB: as if the stream had started before the requests behind it arrived.
            answer.close()
            self.abort()
            return
        # NB: HTTP/1.0 has no chunks; the end of the connection ends the response.
        chunked = request.version != "1.0"
        self._writer.transport.write(encode_stream_head(answer, chunked=chunked))
        self._is_endless = answer.endless
        self._streaming = self._loop.create_task(
            self._stream(answer, keep=keep and chunked, chunked=chunked)
        )
        # NB: not in the task, because a task that is cancelled before its first step runs no code.
        stream = answer
        self._streaming.add_done_callback(lambda _task: stream.close())

    def _send(
        self, answer: HttpResponse, *, keep: bool, head_only: bool = False, linger: bool = False
    ) -> None:
        head = encode_head(answer, keep=keep)
        body = b"" if head_only else answer.body
        self._keeps_open = keep
        if not self._writer.send(head, body):
            return
        if not linger:
            self._end_response(keep=keep)
        else:
            # The client is still sending; an abort would lose the response.
            self._closing = True
            self._release()
            self._loop.call_later(LINGER_SECONDS, self._close)

    def _end_response(self, *, keep: bool) -> None:
        if keep and not self._closing:
            self.idle_since = self._loop.time()
        else:
            self._close()

    def _close(self) -> None:
        """Close after the client has read what was sent."""
        self._closing = True
        self._release()
        if self._transport is not None and self._closed_at is None:
            # NB: counts as idle, so that the table drops it first when it is full.
            self._closed_at = self.idle_since = self._loop.time()
            # NB: a paused transport does not notice that the client has closed its side.
            self._transport.resume_reading()
            self._transport.close()

    async def _stream(self, stream: ResponseStream, *, keep: bool, chunked: bool) -> None:
        ended = False
        try:
            await self._writer.send_frames(stream.frames(), chunked=chunked)
            ended = True
        except TimeoutError:
            self._server.table.count(STALLED)
        except ConnectionResetError:
            _log.debug("client closed the connection of a stream")
        except asyncio.CancelledError:
            ended = not self._writer.transport.is_closing()
        except Exception:  # noqa: BLE001 - logged, and the client gets a 500
            # The status is sent; only an abort can report the failure to the client.
            _log.exception("stream failed")
        finally:
            self._streaming = None
            self._is_endless = False
            self._writer.release_response()
        if not ended:
            self._writer.transport.abort()
        elif not self._writer.transport.is_closing():
            if chunked:
                self._writer.transport.write(b"0\r\n\r\n")
            self._end_response(keep=keep)
            self._continue()

    # Reading.

    def _account(self) -> None:
        """Account for the bytes of requests that are not answered."""
        if self._closing or (
            self._reader.started is None
            and not (self._waiting or self._unparsed or self._request_transfer)
        ):
            return
        size = self._reader.incomplete_bytes + self._waiting_bytes + self._unparsed_bytes
        transfers = self._server.transfers
        if size:
            if self._request_transfer is None:
                self._request_transfer = transfers.receive(self)
            transfers.resize(self._request_transfer, size)
        elif self._request_transfer is not None:
            transfers.release(self._request_transfer)
            self._request_transfer = None

    def _parse(self) -> None:
        """Parse what was read, as long as this turn of the event loop has time for it."""
        turns = self._server.turns
        while self._can_parse() and not self._is_queued:
            if not turns.has_time():
                self._is_queued = True
                turns.enqueue(self)
                return
            started = time.perf_counter()
            self._feed()
            turns.spend(started)

    def _can_parse(self) -> bool:
        return bool(self._unparsed) and not self._closing and not self._is_full()

    def _feed(self) -> None:
        data = self._unparsed.popleft()
        self._unparsed_bytes -= len(data)
        self._reader.feed(data)

    def parse_piece(self) -> bool:
        """Parse one piece; return whether another one can be parsed."""
        if self._can_parse():
            self._answered_this_turn = 0
            self._feed()
            self._account()
        self._is_queued = self._can_parse()
        if not self._is_queued:
            self._read_on()
        return self._is_queued

    def _read_on(self) -> None:
        """Read more from the client, unless what was read has to be answered first."""
        if (
            self._writer.is_writable
            and self._rejection is None
            and not (self._closing or self._unparsed or self._is_full())
        ):
            self._writer.transport.resume_reading()

    def _begin_turn(self) -> None:
        self._answered_this_turn = 0
        self._continue()

    def _continue(self) -> None:
        """Answer waiting requests, a few per turn of the event loop, then read more."""
        while self._waiting and not self._closing and not self._is_busy():
            if self._answered_this_turn >= ANSWERS_EACH_TURN:
                self._loop.call_soon(self._begin_turn)
                return
            request, keep, size = self._waiting.popleft()
            self._waiting_bytes -= size
            self._serve(request, keep=keep)
        if self._rejection is not None:
            if not (self._waiting or self._closing or self._is_busy()):
                # NB: with unread bytes the kernel would reset the connection, and the client
                # might lose the response.
                self._writer.transport.resume_reading()
                self._send(self._rejection, keep=False, linger=True)
            return
        self._parse()
        self._account()
        self._read_on()

    def _release(self) -> None:
        """Release all buffers."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._release_request()
        self._writer.release()

    def _release_request(self) -> None:
        self._unparsed.clear()
        self._unparsed_bytes = 0
        self._reader.abandon()
        if self._request_transfer is not None:
            self._server.transfers.release(self._request_transfer)
            self._request_transfer = None
