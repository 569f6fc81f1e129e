"""What comes back over a connection, byte by byte where that matters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from keepclose.lab.kubelet.pod_servers import (
    MAX_HEADER_BYTES,
    DatagramServer,
    HttpServer,
    PodReplies,
)
from keepclose.testing.api_server import PATIENCE

ZONES = ["zone-a"]
WEB = PodReplies(pod="web", node="n1", zone=lambda: ZONES[-1])
NAMED = PodReplies(pod="web", node="n1", zone=lambda: ZONES[-1], names_only=True)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(answers: PodReplies = WEB) -> AsyncIterator[Streams]:
    """Open one connection to an answerer."""
    loop = asyncio.get_running_loop()
    connections: set[asyncio.Transport] = set()
    server = await loop.create_server(lambda: HttpServer(answers, connections), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            yield reader, writer
    finally:
        writer.close()
        for one in tuple(connections):
            one.abort()
        server.close()
        await server.wait_closed()


async def answer_of(
    reader: asyncio.StreamReader, *, body: bool = True
) -> tuple[str, dict[str, str], bytes]:
    """Return status line, headers and body of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    length = int(headers["Content-Length"]) if body else 0
    return head[0], headers, await reader.readexactly(length)


async def test_an_answer_says_who_and_where_and_to_whom() -> None:
    """Pod, node and zone stand in body and headers, the client in a header."""
    async with connected() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")
        line, headers, body = await answer_of(reader)
    assert (line, body) == ("HTTP/1.1 200 OK", b"web n1 zone-a\n")
    want = {"X-Pod": "web", "X-Node": "n1", "X-Zone": "zone-a", "X-Client": "127.0.0.1"}
    assert {name: headers[name] for name in want} == want
    assert headers["Connection"] == "keep-alive"


async def test_the_same_as_json() -> None:
    """The path /json, with a query or without, gives an object."""
    async with connected() as (reader, writer):
        writer.write(b"GET /json?a=b HTTP/1.1\r\n\r\n")
        _, headers, body = await answer_of(reader)
    assert headers["Content-Type"] == "application/json"
    want = {"pod": "web", "node": "n1", "zone": "zone-a", "client": "127.0.0.1"}
    assert msgspec.json.decode(body) == want


async def test_serve_hostname_answers_with_the_name_alone() -> None:
    """As agnhost does, without an end of line; the headers say the rest."""
    async with connected(NAMED) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        _, headers, body = await answer_of(reader)
    assert (body, headers["X-Zone"]) == (b"web", "zone-a")


async def test_a_connection_serves_many_requests_and_pieces_of_them() -> None:
    """Requests may come in pieces or several at once; the zone is that of the moment."""
    async with connected() as (reader, writer):
        for piece in (b"GET", b" / HTTP", b"/1.1\r\n", b"\r", b"\n"):
            writer.write(piece)
            await writer.drain()
        assert (await answer_of(reader))[2] == b"web n1 zone-a\n"
        ZONES.append("zone-b")
        try:
            writer.write(b"GET / HTTP/1.1\r\n\r\nGET /json HTTP/1.1\r\n\r\n")
            assert (await answer_of(reader))[2] == b"web n1 zone-b\n"
            assert (await answer_of(reader))[1]["X-Zone"] == "zone-b"
        finally:
            ZONES.pop()


@pytest.mark.parametrize(
    ("request_bytes", "want_connection"),
    [
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", "close", id="old clients"),
        pytest.param(b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", "close", id="asked to"),
        pytest.param(
            b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
            "close",
            id="after the body",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "close",
            id="after the last chunk",
        ),
    ],
)
async def test_connections_end_when_they_should(request_bytes: bytes, want_connection: str) -> None:
    """The answer says that the connection ends, and it does."""
    async with connected() as (reader, writer):
        writer.write(request_bytes)
        line, headers, _ = await answer_of(reader)
        assert (line, headers["Connection"]) == ("HTTP/1.1 200 OK", want_connection)
        assert await reader.read() == b""


async def test_an_old_client_may_stay() -> None:
    """HTTP/1.0 with keep-alive is answered again on the same connection."""
    async with connected() as (reader, writer):
        for _ in range(2):
            writer.write(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await answer_of(reader))[1]["Connection"] == "keep-alive"


async def test_bodies_are_dropped() -> None:
    """A body of any length is not taken for the next request."""
    async with connected() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 60000)
        assert (await answer_of(reader))[2] == b"web n1 zone-a\n"
        writer.write(b"x" * 40000 + b"GET /json HTTP/1.1\r\n\r\n")
        assert (await answer_of(reader))[1]["Content-Type"] == "application/json"


async def test_a_client_that_waits_for_leave_gets_it() -> None:
    """Expect: 100-continue is answered before the answer itself."""
    async with connected() as (reader, writer):
        writer.write(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"x")
        assert (await answer_of(reader))[0] == "HTTP/1.1 200 OK"


async def test_head_has_no_body() -> None:
    """The length is that of the body which GET would have."""
    async with connected() as (reader, writer):
        writer.write(b"HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        assert (await answer_of(reader, body=False))[1]["Content-Length"] == "14"
        assert (await answer_of(reader))[2] == b"web n1 zone-a\n"


@pytest.mark.parametrize(
    ("request_bytes", "want_line"),
    [
        pytest.param(b"hello\r\n\r\n", "HTTP/1.1 400 Bad Request", id="no HTTP"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", "HTTP/1.1 400 Bad Request", id="a later one"),
        pytest.param(
            b"GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 400 Bad Request",
            id="no length",
        ),
        pytest.param(
            b"x" * (MAX_HEADER_BYTES + 1),
            "HTTP/1.1 431 Request Header Fields Too Large",
            id="no end",
        ),
    ],
)
async def test_what_is_no_request_is_refused(request_bytes: bytes, want_line: str) -> None:
    """A refusal ends the connection."""
    async with connected() as (reader, writer):
        writer.write(request_bytes)
        assert (await answer_of(reader))[0] == want_line
        assert await reader.read() == b""


class Caller(asyncio.DatagramProtocol):
    """Sends a datagram and keeps the answers."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Keep an answer."""
        del addr
        self.answers.put_nowait(data)


async def test_each_datagram_is_answered_by_one() -> None:
    """The answer names the client too, IPv4 as itself on a socket of both families."""
    loop = asyncio.get_running_loop()
    server, _ = await loop.create_datagram_endpoint(
        lambda: DatagramServer(WEB), local_addr=("127.0.0.1", 0)
    )
    address = server.get_extra_info("sockname")
    client, caller = await loop.create_datagram_endpoint(Caller, remote_addr=address)
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                client.sendto(b"who")
                assert await caller.answers.get() == b"web n1 zone-a 127.0.0.1\n"
    finally:
        client.close()
        server.close()
