"""Pages have no credentials, so connections are limited in number, time and bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest
import structlog
from aiohttp import web

from keepclose.runtime import pages
from keepclose.runtime.pages import PageConnections, PageServer, add_health_pages, prolong_request
from keepclose.testing.api_server import PATIENCE

LIMIT: Final = 8
MEBIBYTE: Final = 1 << 20
GET: Final = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
HALF: Final = GET[:-9]
LARGE: Final = 32 * MEBIBYTE
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """Pages on a port, and clients that are closed with them."""

    def __init__(self) -> None:
        self.connections = PageConnections(LIMIT)
        app = web.Application(client_max_size=16 * MEBIBYTE)
        add_health_pages(app, is_ready=lambda: True)
        app.router.add_post("/length", self._show_length)
        app.router.add_get("/large", self._show_large)
        app.router.add_get("/faulty", self._fail)
        app.router.add_get("/endless", self._count_on)
        self.server = PageServer(app, connections=self.connections)
        self.port = 0
        self.read_bodies = 0
        self.large_pages = 0
        self.prolonged_parts = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"") -> _Streams:
        """Return a connection that has sent something."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    def close(self) -> None:
        """Close all clients."""
        for writer in self._writers:
            writer.transport.abort()

    async def _show_length(self, request: web.Request) -> web.Response:
        try:
            return web.Response(text=str(len(await request.read())))
        finally:
            self.read_bodies += 1

    async def _show_large(self, _request: web.Request) -> web.Response:
        self.large_pages += 1
        return web.Response(body=bytes(LARGE))

    async def _count_on(self, request: web.Request) -> web.StreamResponse:
        """Send parts until the client is dropped, and prolong the request after each of some."""
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(1000):
            await response.write(b"%d\n" % number)
            if number < self.prolonged_parts:
                prolong_request(request)
            await asyncio.sleep(0.05)
        return response

    async def _fail(self, _request: web.Request) -> web.Response:
        raise LookupError("of this page")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Serve with few connections."""
    state = Served()
    state.port = await state.server.start("127.0.0.1", 0)
    yield state
    state.close()
    await state.server.stop()


async def answer_to(streams: _Streams, data: bytes = GET) -> tuple[int, bytes]:
    """Return the status and the body of the answer to a request."""
    reader, writer = streams
    writer.write(data)
    async with asyncio.timeout(PATIENCE):
        head = await reader.readuntil(b"\r\n\r\n")
        fields = head.lower().split(b"\r\n")
        length = next(field for field in fields if field.startswith(b"content-length"))
        return int(head.split()[1]), await reader.readexactly(int(length.split()[1]))


async def until_closed(streams: _Streams) -> None:
    """Return when the server has closed a connection."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while await streams[0].read(1 << 16):
                pass


async def until(condition: Callable[[], bool]) -> None:
    """Return when something has happened in the server."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def test_a_probe_is_answered_beside_half_heads(served: Served) -> None:
    """Connections beyond the limit cost the oldest one without an answer, and no other client."""
    scraper = await served.connect()
    assert await answer_to(scraper) == (200, b"ok")
    half = [await served.connect(HALF) for _ in range(3 * LIMIT)]
    assert await answer_to(await served.connect()) == (200, b"ok")
    assert await answer_to(scraper) == (200, b"ok")
    for oldest in half[: 2 * LIMIT]:
        await until_closed(oldest)
    assert len(served.connections) <= LIMIT


async def test_a_probe_is_answered_beside_idle_clients(served: Served) -> None:
    """Where all connections have had answers, the one that rests longest is closed."""
    idle = [await served.connect() for _ in range(LIMIT)]
    for one in idle:
        assert (await answer_to(one))[0] == 200
    assert (await answer_to(idle[0]))[0] == 200
    assert (await answer_to(await served.connect()))[0] == 200
    await until_closed(idle[1])
    assert (await answer_to(idle[0]))[0] == 200


async def test_connections_with_answers_do_not_crowd_out_a_probe(served: Served) -> None:
    """A client that fills the limit with answered requests leaves a half for those without."""
    for one in [await served.connect() for _ in range(LIMIT)]:
        await answer_to(one)
    probe = await served.connect(HALF)
    for _ in range(LIMIT // 2 - 1):
        await served.connect()
    assert (await answer_to(probe, GET[len(HALF) :]))[0] == 200


async def test_a_slow_head_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a head is limited, that of a connection between two requests is not so short."""
    idle = await served.connect()
    assert (await answer_to(idle))[0] == 200
    monkeypatch.setattr(pages, "PAGE_HEAD_SECONDS", 0.2)
    silent, half = await served.connect(), await served.connect(HALF)
    for one in (silent, half):
        await until_closed(one)
    monkeypatch.undo()
    assert (await answer_to(idle))[0] == 200
    monkeypatch.setattr(pages, "PAGE_HEAD_SECONDS", 0.2)
    idle[1].write(HALF)
    await until_closed(idle)


async def test_an_idle_connection_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without further requests is closed in the end."""
    monkeypatch.setattr(pages, "PAGE_IDLE_SECONDS", 0.2)
    idle = await served.connect()
    await answer_to(idle)
    await until_closed(idle)


async def test_a_slow_body_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that never ends is not waited for, and its bytes are freed."""
    monkeypatch.setattr(pages, "PAGE_REQUEST_SECONDS", 0.2)
    await until_closed(await served.connect(_post(100, 10)))
    await until(lambda: served.read_bodies == 1)
    assert len(served.connections) == 0


async def test_an_answer_that_is_not_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read its answer is dropped, and the answer with it."""
    monkeypatch.setattr(pages, "PAGE_REQUEST_SECONDS", 0.2)
    await served.connect(GET.replace(b"healthz", b"large"))
    await until(lambda: served.large_pages == 1)
    await until(lambda: len(served.connections) == 0)


async def test_an_answer_without_end_goes_on_while_it_is_prolonged(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlasts the time limit of a request many times, and ends when it is prolonged no more."""
    monkeypatch.setattr(pages, "PAGE_REQUEST_SECONDS", 1.0)
    served.prolonged_parts = 40
    reader, _ = await served.connect(GET.replace(b"healthz", b"endless"))
    with contextlib.suppress(ConnectionError):
        parts = []
        while part := await reader.readline():
            parts.append(part)
    assert b"39\n" in parts
    assert b"200\n" not in parts


async def test_bodies_that_rest_give_way(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Incomplete bodies beyond the limit of all cost the one that rests longest."""
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", MEBIBYTE)
    held = [await served.connect(_post(MEBIBYTE, 400_000)) for _ in range(4)]
    assert await answer_to(await served.connect(), _post(400_000, 400_000)) == (200, b"400000")
    for one in held[:2]:
        await until_closed(one)


async def test_bodies_within_the_limit(served: Served) -> None:
    """A large body is read whole, a larger one is answered 413, again and again."""
    client = await served.connect()
    for _ in range(6):
        size = 15 * MEBIBYTE
        assert await answer_to(client, _post(size, size)) == (200, str(size).encode())
    size = 17 * MEBIBYTE
    assert (await answer_to(client, _post(size, size)))[0] == 413


async def test_bodies_that_break_off_leave_nothing(served: Served) -> None:
    """A body whose client is gone is freed at once, also where garbage is collected rarely."""
    gc.disable()
    tracemalloc.start()
    try:
        for number in range(4):
            _, writer = await served.connect(_post(9 * MEBIBYTE, 8 * MEBIBYTE))
            writer.close()
            await until(lambda number=number: served.read_bodies == number + 1)  # type: ignore[misc]
        await until(lambda: len(served.connections) == 0)
        await until(lambda: tracemalloc.get_traced_memory()[0] < 8 * MEBIBYTE)
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize(
    "data",
    [
        b"GET http://x:99999999/healthz HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"POST /length HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
    ],
)
async def test_bad_requests_are_logged_rarely(
    served: Served, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Each is answered 400; the log has one line a minute, without a traceback."""
    with structlog.testing.capture_logs() as lines:
        for _ in range(20):
            assert (await answer_to(await served.connect(), data))[0] == 400
    assert [line["reason"] for line in lines] == ["bad request"]
    assert not caplog.records


async def test_a_page_that_fails_is_logged_rarely(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault in a page is logged with its traceback, once a minute."""
    for _ in range(5):
        status, _body = await answer_to(await served.connect(), GET.replace(b"healthz", b"faulty"))
        assert status == 500
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


def _post(length: int, sent: int) -> bytes:
    """Return the head of a request and some of its body."""
    return b"POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % length + bytes(sent)
