"""Connections over real sockets: parsing, order, limits, streams."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from unittest import mock

import pytest
import structlog

from keepclose.apiserver.http import connection
from keepclose.apiserver.http.request_parser import BLOCK_BYTES
from keepclose.apiserver.http.server import HttpsServer
from keepclose.apiserver.serving.http_messages import (
    HttpRequest,
    HttpResponse,
    PendingResponse,
    ResponseStream,
)
from keepclose.testing.api_server import PATIENCE


class Numbers:
    """A stream of three frames, the last of which waits to be let go."""

    content_type = b"application/json"

    def __init__(self, *, endless: bool = True) -> None:
        self.endless = endless
        self.go = asyncio.Event()
        self.closed = asyncio.Event()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames."""
        yield b"one\n"
        yield b"two\n"
        await self.go.wait()
        yield b"three\n"

    def close(self) -> None:
        """Note the end."""
        self.closed.set()


class Broken:
    """A stream with a fault after its first frame."""

    content_type = b"application/json"
    endless = False
    closed = False

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield one frame and fail."""
        yield b"one\n"
        raise ValueError("a fault")

    def close(self) -> None:
        """Note the end."""
        Broken.closed = True


async def _answer_later() -> HttpResponse:
    await asyncio.sleep(0.01)
    return HttpResponse(200, b"later")


class Echo:
    """Answers with what it was asked; remembers it."""

    def __init__(self) -> None:
        self.seen: list[HttpRequest] = []
        self.stream = Numbers()

    def __call__(self, request: HttpRequest) -> HttpResponse | ResponseStream | PendingResponse:
        """Answer."""
        self.seen.append(request)
        if request.path == "/stream":
            return self.stream
        if request.path == "/broken":
            return Broken()
        if request.path == "/later":
            return PendingResponse(_answer_later)
        if request.path == "/large":
            return HttpResponse(200, b"x" * 1_000_000)
        return HttpResponse(200, f"{request.method} {request.path}".encode(), b"text/plain")


@pytest.fixture
async def served() -> AsyncIterator[tuple[Echo, int, HttpsServer]]:
    """Serve an echo on a free port."""
    echo = Echo()
    server = HttpsServer(echo, context=None)
    port = await server.start("127.0.0.1", 0)
    yield echo, port, server
    await server.stop()


Served = tuple[Echo, int, HttpsServer]


async def _exchange(port: int, data: bytes) -> bytes:
    """Send the bytes and return everything until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_request_is_read_whole(served: Served) -> None:
    """Method, path, query, headers and body arrive as sent, with escapes in the path undone."""
    echo, port, _ = served
    await _exchange(
        port,
        b"POST /a%2Fb?x=%20y HTTP/1.1\r\nHost: h\r\nX-Thing: 1\r\nContent-Length: 4\r\n"
        b"Connection: close\r\n\r\nbody",
    )
    (request,) = echo.seen
    assert (request.method, request.path, request.query) == ("POST", "/a/b", "x=%20y")
    assert request.header(b"x-thing") == "1"
    assert request.body == b"body"


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    """Several requests in one write get their answers one after the other."""
    _, port, _ = served
    head = b" HTTP/1.1\r\nHost: h\r\n"
    data = b"GET /1" + head + b"\r\nGET /2" + head + b"\r\nGET /3" + head
    answer = await _exchange(port, data + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b"GET /1") < answer.index(b"GET /2") < answer.index(b"GET /3")


@pytest.mark.parametrize("count", [1, 8, 9, 63, 64, 200])
async def test_a_request_that_is_refused_takes_no_other_along(served: Served, count: int) -> None:
    """All requests before it in one write are answered first, then the refusal."""
    echo, port, _ = served
    good = b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number for number in range(count))
    answer = await _exchange(port, good + b"NONSENSE\r\n\r\n" + b"x" * 100_000)
    assert [request.path for request in echo.seen] == [f"/{number}" for number in range(count)]
    assert answer.count(b"HTTP/1.1 200 OK") == count
    assert answer.index(b"HTTP/1.1 400 ") > answer.rindex(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("path", [b"/later", b"/large"])
async def test_a_refusal_waits_for_an_answer_that_takes_long(served: Served, path: bytes) -> None:
    """The same where the request before it is answered later, or has more than is sent at once."""
    echo, port, _ = served
    asked = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n" % path
    answer = await _exchange(port, asked + b"NONSENSE\r\n\r\n")
    assert len(echo.seen) == 2
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"HTTP/1.1 400 " in answer


async def test_a_refusal_ends_a_stream(served: Served) -> None:
    """A watch may never end, so that what cannot be read behind it closes the connection."""
    echo, port, _ = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"two\n\r\n")
    writer.write(b"NONSENSE\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        await echo.stream.closed.wait()
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1 400" not in await reader.read()
    writer.close()


@pytest.mark.parametrize("count", [0, 8, 9, 30])
@pytest.mark.parametrize(
    "behind", [b"NONSENSE\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 70]
)
async def test_a_watch_is_not_kept_by_what_waits_behind_it(
    served: Served, count: int, behind: bytes
) -> None:
    """Neither by what cannot be read nor by more than may wait: its client may have left."""
    echo, port, _ = served
    good = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * count
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(good + b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n" + behind)
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        await echo.stream.closed.wait()
    writer.close()
    assert sum(request.path == "/stream" for request in echo.seen) == 1


async def test_large_heads_behind_a_watch_end_it(served: Served) -> None:
    """Heads count as bodies do among what may wait."""
    echo, port, server = served
    large = b"GET /a HTTP/1.1\r\nHost: h\r\nX-Large: " + b"x" * 40_000 + b"\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n" + large)
    async with asyncio.timeout(PATIENCE):
        await reader.readuntil(b"two\n")
        while server.transfers.held < len(large):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        writer.write(large)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        await echo.stream.closed.wait()
    writer.close()
    assert server.transfers.held == 0


async def test_a_closed_connection_is_freed_at_once(served: Served) -> None:
    """Neither its requests nor its buffers wait for the garbage collector."""
    _, port, server = served
    gc.collect()
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nPUT /x HTTP/1.1\r\nHost: h\r\n")
        await reader.readuntil(b"GET /a")
        [connected] = server.table
        freed = weakref.ref(connected)
        del connected
        writer.close()
        async with asyncio.timeout(PATIENCE):
            while freed() is not None:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_what_is_behind_a_stream_that_ends_is_answered(served: Served) -> None:
    """A long list in parts is no watch: requests and a refusal behind it have their turn."""
    echo, port, _ = served
    echo.stream = Numbers(endless=False)
    echo.stream.go.set()
    good = b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n" + b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 70
    answer = await _exchange(port, good + b"NONSENSE\r\n\r\n")
    assert b"three\n" in answer
    assert answer.count(b"HTTP/1.1 200 OK") == 71
    assert b"HTTP/1.1 400 " in answer


async def test_a_stream_whose_client_is_gone_at_once_is_closed() -> None:
    """A task that is cancelled before it began runs nothing, and must not hold a watch."""
    stream = Numbers()
    gone = connection.Connection(HttpsServer(lambda _: stream, context=None), "")
    transport = mock.create_autospec(asyncio.Transport, instance=True)
    transport.get_extra_info.return_value = None
    gone.connection_made(transport)
    gone.data_received(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
    gone.connection_lost(ConnectionResetError())
    async with asyncio.timeout(PATIENCE):
        await stream.closed.wait()


async def test_a_request_in_single_bytes_is_the_same(served: Served) -> None:
    """How the network cuts a request does not matter."""
    echo, port, _ = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = b"PUT /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    for position in range(len(sent)):
        writer.write(sent[position : position + 1])
        await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert echo.seen[0].body == b"abc"
    writer.close()


@pytest.mark.parametrize("size", [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 1_000_003])
@pytest.mark.parametrize("chunk_bytes", [1_000, BLOCK_BYTES, 100_000])
async def test_a_long_body_arrives_whole(served: Served, size: int, chunk_bytes: int) -> None:
    """A body that is collected in blocks is the one that was sent, and so is the next."""
    echo, port, _ = served
    head = b"PUT /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
    bodies = [bytes((seed + number * 7) % 251 for number in range(size)) for seed in (1, 2)]
    sent = b""
    for body, end in zip(bodies, (b"\r\n", b"Connection: close\r\n\r\n"), strict=True):
        chunks = [body[start : start + chunk_bytes] for start in range(0, size, chunk_bytes)]
        sent += head + end + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (*chunks, b""))
    await _exchange(port, sent)
    assert [request.body for request in echo.seen] == bodies


async def test_credentials_are_asked_of_each_request_with_a_body() -> None:
    """That a connection has authenticated does not let the body of another request in."""
    seen: list[HttpRequest] = []

    def answer(request: HttpRequest) -> HttpResponse:
        seen.append(request)
        request.caller = request.header(b"authorization")
        return HttpResponse(200 if request.caller else 401, b"{}")

    server = HttpsServer(
        answer, context=None, has_credentials=lambda request: b"authorization" in request.headers
    )
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: a\r\n\r\n")
    assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 401 ")
    assert seen[-1].body == b""
    writer.close()
    await server.stop()


async def test_a_head_request_gets_no_body(served: Served) -> None:
    """HEAD is told the length and sent nothing."""
    _, port, _ = served
    answer = await _exchange(port, b"HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert b"Content-Length: 7\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_client_may_ask_before_it_sends_a_body(served: Served) -> None:
    """Expect: 100-continue is answered before the body is there."""
    _, port, _ = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ok")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    writer.close()


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(b"NONSENSE\r\n\r\n", b"HTTP/1.1 400 ", id="no HTTP"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n",
            b"HTTP/1.1 413 ",
            id="a body that is announced too large",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"100000\r\n" + b"x" * 0x100000 + b"\r\n" + b"300000\r\n" + b"x" * 0x200001,
            b"HTTP/1.1 413 ",
            id="a body that becomes too large",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
            b"HTTP/1.1 431 ",
            id="headers that are too large",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            b"HTTP/1.1 400 ",
            id="an upgrade",
        ),
    ],
)
async def test_what_is_too_much_is_refused(served: Served, data: bytes, want: bytes) -> None:
    """A refusal says why and closes; the server goes on."""
    echo, port, _ = served
    answer = await _exchange(port, data)
    assert answer.startswith(want)
    assert echo.seen == []
    again = await _exchange(port, b"GET /y HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert again.endswith(b"GET /y")


async def test_a_stream_is_sent_as_it_comes(served: Served) -> None:
    """Frames arrive before the stream ends, and the connection is used again afterwards."""
    echo, port, _ = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readuntil(b"two\n\r\n") == b"4\r\none\n\r\n4\r\ntwo\n\r\n"
    assert len(echo.seen) == 1
    echo.stream.go.set()
    assert await reader.readuntil(b"0\r\n\r\n") == b"6\r\nthree\n\r\n0\r\n\r\n"
    assert echo.stream.closed.is_set()
    assert b"200 OK" in await reader.readuntil(b"/next")
    writer.close()


async def test_a_client_that_leaves_ends_its_stream(served: Served) -> None:
    """Nothing is kept for a watcher who hung up."""
    echo, port, _ = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"two\n\r\n")
    writer.close()
    async with asyncio.timeout(PATIENCE):
        await echo.stream.closed.wait()


async def test_a_server_that_stops_ends_streams_cleanly(served: Served) -> None:
    """Watchers see the end of their stream and not a torn connection."""
    _, port, server = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"two\n\r\n")
    await server.stop()
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b"0\r\n\r\n"
    writer.close()


@pytest.mark.parametrize("pieces", [1, 200])
async def test_a_client_that_does_not_read_is_not_served(served: Served, pieces: int) -> None:
    """Requests of a client who takes no answers wait, whether they come one by one or at once."""
    echo, port, _ = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(pieces):
        writer.write(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" * (200 // pieces))
    await writer.drain()
    await asyncio.sleep(0.2)
    assert len(echo.seen) < 200
    total = 0
    async with asyncio.timeout(2 * PATIENCE):
        while total < 200 * 1_000_000:
            total += len(await reader.read(1 << 20))
    assert len(echo.seen) == 200
    writer.close()


async def test_a_request_that_never_ends_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a request does not hold a connection for ever."""
    _, port, server = served
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /x HTTP/1.1\r\nHost:")
    await writer.drain()
    while not server.sweep():  # noqa: ASYNC110 - the kernel tells nobody that bytes arrived
        await asyncio.sleep(0.01)
    assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_stream_that_fails_is_broken_off(served: Served) -> None:
    """A fault in a stream ends the connection without the end of the answer, and is logged."""
    _, port, _ = served
    with structlog.testing.capture_logs() as logs:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /broken HTTP/1.1\r\nHost: h\r\n\r\n")
        got = b""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE):
                while data := await reader.read(2**16):
                    got += data
        writer.close()
    assert not got.endswith(b"0\r\n\r\n")
    assert [one["event"] for one in logs] == ["stream failed"]
    assert Broken.closed
