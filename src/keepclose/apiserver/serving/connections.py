"""One client's connection: requests in, to the application, answers out.

Almost every request is answered in the moment it is complete, without a task; a watch is a task of
its own that obeys the flow of the connection. A large answer is sent a portion at a time, so that
a client which does not read costs little more than a share in the answer. Nothing is read of a body
that comes without valid credentials: its head is enough to refuse it.
"""

from __future__ import annotations

import asyncio
import collections
from typing import Final, Protocol, cast

import structlog

from keepclose.apiserver.failures import too_many_connections, too_many_requests
from keepclose.apiserver.serving.answers import answer_failure
from keepclose.apiserver.serving.connection_table import ConnectionTable
from keepclose.apiserver.serving.incoming import Incoming, plain_answer
from keepclose.apiserver.serving.messages import (
    Answer,
    Handler,
    Knows,
    Pending,
    Request,
    Stream,
    encode_head,
    encode_stream_head,
)
from keepclose.apiserver.serving.transfers import Transfer, Transfers

log = structlog.get_logger(__name__)

# Pipelined requests that wait for their turn; then the client is read no further.
MAX_WAITING: Final = 64
MAX_WAITING_BYTES: Final = 64 * 1024
# Pipelined requests that are answered before other clients have their turn.
ANSWERS_EACH_TURN: Final = 8
# Bytes that are parsed at once, and bytes that are sent at once.
PARSED_BYTES: Final = 16 * 1024
SENT_BYTES: Final = 32 * 1024
# Times for heads, requests and idle connections are the defaults of kube-apiserver.
# A request whose head is not complete after this time is given up.
HEADER_SECONDS: Final = 32.0
# A request that is not complete after this time is given up.
REQUEST_SECONDS: Final = 60.0
# A connection without requests is closed after this time.
IDLE_SECONDS: Final = 90.0
# A client that reads nothing for this long is gone.
STALLED_SECONDS: Final = 60.0
# What a client is given to take the rest after the server has closed.
CLOSE_SECONDS: Final = 30.0
# What a client is given to read a refusal while it still sends.
LINGER_SECONDS: Final = 0.5
# Reasons, as the metric names them.
TIMED_OUT: Final = "timed out"
STALLED: Final = "stalled"
IDLE: Final = "idle"


class Shared(Protocol):
    """What the connections of a server have in common."""

    handler: Handler
    # None takes a body from every client.
    knows: Knows | None
    table: ConnectionTable
    transfers: Transfers


class Connection(asyncio.Protocol):
    """A client's connection, from the moment it is accepted."""

    def __init__(self, server: Shared, address: str) -> None:
        """Wait for the connection to be made, which takes a handshake first."""
        self._server = server
        self._handler = server.handler
        self._loop = asyncio.get_running_loop()
        self._incoming = Incoming(self, self._loop)
        self._transport: asyncio.Transport | None = None
        # Set by the server while TLS is agreed upon.
        self.handshake: asyncio.Task[bool] | None = None
        self.address = address
        self.user: str | None = None
        self._credentials: bytes | None = None
        self.idle_since: float | None = self._loop.time()
        self._is_new = True
        self._unparsed: collections.deque[bytes] = collections.deque()
        self._arriving: Transfer | None = None
        self._waiting: collections.deque[tuple[Request, bool]] = collections.deque()
        self._waiting_bytes = 0
        self._answered = 0
        # What is answered behind the requests that wait, and the last of all.
        self._refusal: Answer | None = None
        self._streaming: asyncio.Task[None] | None = None
        # Whether what is streamed may never end.
        self._is_endless = False
        self._frame = b""
        # What is left of an answer, and whether the connection stays open behind it.
        self._rest: memoryview | None = None
        self._rest_keeps = False
        self._leaving: Transfer | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._stalled_since: float | None = None
        self._stalled: Transfer | None = None
        self._closing = False
        self._closed_at: float | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        # NB: uvloop's transports are not derived from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        # NB: TLS would let half a megabyte wait for a client that does not read.
        self._transport.set_write_buffer_limits(high=SENT_BYTES // 2)
        self._incoming.peer = transport.get_extra_info("peercert") or None
        self.idle_since = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what this client was being sent."""
        del exc
        self._closing = True
        self._server.table.remove(self)
        self._release()
        self._writable.set()
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        """Take in what the client sent."""
        if self._closing or self._refusal is not None:
            return
        self._answered = 0
        if self._unparsed or len(data) > PARSED_BYTES:
            self._unparsed.extend(
                data[start : start + PARSED_BYTES] for start in range(0, len(data), PARSED_BYTES)
            )
            self._parse()
        else:
            self._feed(data)
        if self._unparsed or self._is_full():
            self._out.pause_reading()

    def pause_writing(self) -> None:
        """Stop reading requests from a client that does not read its answers."""
        self._writable.clear()
        self._stalled_since = self._loop.time()
        if self._stalled is None and not self._closing:
            self._stalled = self._server.transfers.stall(self)
        self._out.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable.set()
        self._stalled_since = None
        self._release_stalled()
        self._send_rest()
        self._go_on()

    def eof_received(self) -> bool:
        """Close when the client has nothing more to say; it does not wait for answers then."""
        return False

    # What the reader of requests calls.

    def take(self, request: Request, *, keep: bool) -> None:
        """Answer the request, or put it in line behind the ones before it."""
        if self._closing or self._refusal is not None:
            return
        self._is_new = False
        # NB: many requests may come in one read, so that not to read on is not enough.
        if not self._waiting and self._answered < ANSWERS_EACH_TURN and not self._is_busy():
            self._serve(request, keep=keep)
            return
        self._waiting.append((request, keep))
        self._waiting_bytes += len(request.body)
        if self._is_endless and self._is_full():
            # NB: to read no further would hide that the client has left, and the stream would stay.
            self.cut()
            return
        if len(self._waiting) == 1 and not self._is_busy():
            self._loop.call_soon(self._begin_turn)

    def refuse(self, answer: Answer) -> None:
        """Answer what cannot be read any further, behind the requests before it, and close."""
        if self._closing or self._refusal is not None:
            return
        if self._is_endless:
            # NB: its turn would never come.
            self.cut()
        elif self._waiting or self._is_busy():
            self._refusal = answer
            self._release_incoming()
            self._out.pause_reading()
        else:
            self._send(answer, keep=False, linger=True)

    def refuse_stranger(self, request: Request) -> bool:
        """Refuse a request before its body is read, if it has no valid credentials."""
        knows = self._server.knows
        credentials = request.headers.get(b"authorization")
        is_known = credentials is not None and credentials == self._credentials
        if knows is None or (self.user is not None and is_known):
            return False
        if knows(request):
            self._credentials = credentials
            return False
        answer = self._handler(request)
        if isinstance(answer, Answer):
            self.refuse(answer)
        elif isinstance(answer, Pending):
            # Strangers who ask so often that they would have to wait need not be heard.
            self.refuse(answer_failure(too_many_requests()))
        else:
            answer.close()
            self.refuse(plain_answer(400, b"400 Bad Request"))
        return True

    def invite(self) -> None:
        """Ask for the body of a request that waits for that."""
        if not self._waiting and not self._is_busy():
            self._out.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # What the server calls.

    def check(self, now: float) -> bool:
        """Close a connection whose client takes too long; return whether it does."""
        started = self._incoming.started
        if self._closed_at is not None or self._stalled_since is not None:
            if self._closed_at is not None:
                is_over = now - self._closed_at > CLOSE_SECONDS
            else:
                is_over = now - (self._stalled_since or now) > STALLED_SECONDS
            if is_over:
                self.drop(STALLED)
            return is_over
        if started is not None:
            is_over = now - started > REQUEST_SECONDS or (
                self._incoming.in_head and now - started > HEADER_SECONDS
            )
            if is_over:
                self._server.table.count(TIMED_OUT)
                self.refuse(plain_answer(408, b"the request was not complete in time"))
            return is_over
        if self.idle_since is None or self._transport is None:
            return False
        # NB: the first request gets no more time than any head.
        is_over = now - self.idle_since > (HEADER_SECONDS if self._is_new else IDLE_SECONDS)
        if is_over:
            self._server.table.count(IDLE)
            self._close()
        return is_over

    def drop(self, reason: str) -> None:
        """Leave the table, count the reason there, and close at once."""
        self._server.table.remove(self)
        self._server.table.count(reason)
        self.cut()

    def cut(self) -> None:
        """Close at once, whatever the client does."""
        self._closing = True
        self._release()
        if self._transport is not None:
            self._transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    async def finish(self) -> None:
        """Close; a stream ends cleanly first."""
        self._closing = True
        task = self._streaming
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=1)
        if self._transport is None or self._rest is not None:
            self.cut()
        else:
            self._transport.close()

    # Answering.

    @property
    def _out(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("the connection is not made")
        return self._transport

    def _is_busy(self) -> bool:
        """Return whether the client must take another answer first."""
        return self._streaming is not None or self._rest is not None or not self._writable.is_set()

    def _is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES

    def _serve(self, request: Request, *, keep: bool) -> None:
        self._answered += 1
        self.idle_since = None
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
        self._go_on()

    def _respond(self, answer: Answer | Stream, request: Request, *, keep: bool) -> None:
        if (
            self.user is None
            and request.caller
            and not self._server.table.authenticate(self, request.caller)
        ):
            keep = False
            if not isinstance(answer, Answer):
                answer.close()
                answer = answer_failure(too_many_connections())
        if isinstance(answer, Answer):
            self._send(answer, keep=keep, head_only=request.method == "HEAD")
            return
        if answer.endless and (self._refusal is not None or self._is_full()):
            # NB: as where that comes while the stream runs.
            answer.close()
            self.cut()
            return
        # NB: clients of HTTP/1.0 do not know chunks; the end of the connection ends the answer.
        chunked = request.version != "1.0"
        self._out.write(encode_stream_head(answer, chunked=chunked))
        self._is_endless = answer.endless
        self._streaming = self._loop.create_task(
            self._stream(answer, keep=keep and chunked, chunked=chunked)
        )
        # NB: not in the task: one that is cancelled before its first step runs nothing at all.
        stream = answer
        self._streaming.add_done_callback(lambda _task: stream.close())

    def _send(
        self, answer: Answer, *, keep: bool, head_only: bool = False, linger: bool = False
    ) -> None:
        head = encode_head(answer, keep=keep)
        body = b"" if head_only else answer.body
        if len(body) > SENT_BYTES:
            self._out.write(head)
            self._rest, self._rest_keeps = memoryview(body), keep
            self._send_rest()
            if self._rest is not None:
                self._hold(body)
            return
        self._out.write(head + body)
        if not linger:
            self._end_answer(keep=keep)
        else:
            # The client is still sending; cutting it off would lose it the answer.
            self._closing = True
            self._release()
            self._loop.call_later(LINGER_SECONDS, self._close)

    def _send_rest(self) -> None:
        """Send what is left of an answer for as long as the client reads."""
        rest = self._rest
        if rest is None:
            return
        start = 0
        while start < len(rest) and self._writable.is_set() and not self._out.is_closing():
            self._out.write(rest[start : start + SENT_BYTES])
            start += SENT_BYTES
        if self._leaving is not None and start:
            self._server.transfers.move(self._leaving, start)
        if start < len(rest):
            self._rest = rest[start:]
            return
        self._rest = None
        self._release_leaving()
        self._end_answer(keep=self._rest_keeps)

    def _hold(self, body: bytes) -> None:
        """Account for an answer that waits for the client, and share it with other clients."""
        rest = self._rest
        if rest is None:
            return
        self._leaving = self._server.transfers.hold(self, body)
        self._rest = memoryview(self._leaving.body)[len(body) - len(rest) :]

    def _end_answer(self, *, keep: bool) -> None:
        if keep and not self._closing:
            self.idle_since = self._loop.time()
        else:
            self._close()

    def _close(self) -> None:
        """Close when the client has taken what was sent."""
        self._closing = True
        self._release()
        if self._transport is not None and self._closed_at is None:
            # NB: what only waits for the client to take leave goes first where places are few.
            self._closed_at = self.idle_since = self._loop.time()
            # NB: where nothing is read, the client's leave would not be seen.
            self._transport.resume_reading()
            self._transport.close()

    async def _stream(self, stream: Stream, *, keep: bool, chunked: bool) -> None:
        ended = False
        try:
            async for frame in stream.frames():
                self._frame = frame
                # NB: a frame that waits is exchanged for an equal one that other clients share.
                del frame
                await self._send_frame(chunked=chunked)
            ended = True
        except TimeoutError:
            self._server.table.count(STALLED)
        except asyncio.CancelledError:
            ended = not self._out.is_closing()
        except Exception:
            # The status is sent: breaking off is all that can tell the client.
            log.exception("stream failed")
        finally:
            self._streaming = None
            self._is_endless = False
            self._release_leaving()
        if not ended:
            self._out.abort()
        elif not self._out.is_closing():
            if chunked:
                self._out.write(b"0\r\n\r\n")
            self._end_answer(keep=keep)
            self._go_on()

    async def _send_frame(self, *, chunked: bool) -> None:
        """Send a part of a stream, waiting for the client where it does not read."""
        frame, self._frame = self._frame, b""
        if len(frame) <= SENT_BYTES:
            self._out.write(b"%x\r\n%b\r\n" % (len(frame), frame) if chunked else frame)
            if not self._writable.is_set():
                async with asyncio.timeout(STALLED_SECONDS):
                    await self._writable.wait()
            return
        if chunked:
            self._out.write(b"%x\r\n" % len(frame))
        for start in range(0, len(frame), SENT_BYTES):
            if not self._writable.is_set():
                if self._leaving is None:
                    self._leaving = self._server.transfers.hold(self, frame)
                    frame = self._leaving.body
                async with asyncio.timeout(STALLED_SECONDS):
                    await self._writable.wait()
            self._out.write(memoryview(frame)[start : start + SENT_BYTES])
            if self._leaving is not None:
                self._server.transfers.move(self._leaving, SENT_BYTES)
        if chunked:
            self._out.write(b"\r\n")
        self._release_leaving()

    # Reading.

    def _feed(self, data: bytes) -> None:
        self._incoming.feed(data)
        size = self._incoming.body_bytes
        if size and not self._closing:
            transfers = self._server.transfers
            if self._arriving is None:
                self._arriving = transfers.receive(self)
            transfers.grow(self._arriving, size - self._arriving.size)
        elif self._arriving is not None:
            self._server.transfers.release(self._arriving)
            self._arriving = None

    def _parse(self) -> None:
        while self._unparsed and not self._closing and not self._is_full():
            self._feed(self._unparsed.popleft())

    def _begin_turn(self) -> None:
        self._answered = 0
        self._go_on()

    def _go_on(self) -> None:
        """Answer requests that wait, then read more; others have their turn in between."""
        while self._waiting and not self._closing and not self._is_busy():
            if self._answered >= ANSWERS_EACH_TURN:
                self._loop.call_soon(self._begin_turn)
                return
            request, keep = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            self._serve(request, keep=keep)
        if self._refusal is not None:
            if not (self._waiting or self._closing or self._is_busy()):
                # NB: what is still sent is read, or the kernel would drop the answer with it.
                self._out.resume_reading()
                self._send(self._refusal, keep=False, linger=True)
            return
        self._parse()
        if self._writable.is_set() and not (self._closing or self._unparsed or self._is_full()):
            self._out.resume_reading()

    def _release(self) -> None:
        """Let go of everything that waits."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._rest = None
        self._release_incoming()
        self._release_leaving()
        self._release_stalled()

    def _release_incoming(self) -> None:
        self._unparsed.clear()
        self._incoming.abandon()
        if self._arriving is not None:
            self._server.transfers.release(self._arriving)
            self._arriving = None

    def _release_leaving(self) -> None:
        if self._leaving is not None:
            self._server.transfers.release(self._leaving)
            self._leaving = None

    def _release_stalled(self) -> None:
        if self._stalled is not None:
            self._server.transfers.release(self._stalled)
            self._stalled = None
