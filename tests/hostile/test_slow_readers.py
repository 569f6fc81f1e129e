"""Clients that ask for much and read little, and clients that send slowly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import pytest

from keepclose.apiserver.http import connection_table, response_writer
from keepclose.apiserver.http.connection_table import ParsingTurns, Transfers
from keepclose.apiserver.http.response_writer import ResponseWriter
from keepclose.apiserver.http.server import HttpsServer
from keepclose.apiserver.serving import http_messages
from keepclose.apiserver.serving.http_messages import HttpRequest, HttpResponse, ResponseStream
from support.hostile.rawclients import (
    ask,
    dial,
    exchange,
    peak_bytes,
    request,
    resident_bytes,
    status_of,
)
from support.server_processes import Embedded, embedded_server

CONFIGMAPS: Final = "/api/v1/namespaces/default/configmaps"
MEBIBYTE: Final = 1 << 20
READERS: Final = 150
OBJECTS: Final = 32
OBJECT_BYTES: Final = 100_000
# What the kernel keeps for a client that does not read, so that the server must wait for it.
SMALL_BUFFER: Final = 4096
# A connection whose client does not read holds so much at most, beside its share in the answer.
EACH: Final = 512 * 1024


# How often a peak of memory that seems too high is measured again, in another process.
ATTEMPTS: Final = 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Embedded]:
    """Run a server with 3.2 MB of ConfigMaps."""
    with serve(tmp_path / "data") as running:
        yield running


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[Embedded]:
    """Run a server with 3.2 MB of ConfigMaps in a directory."""
    with embedded_server(directory, "--node", "n1") as running:
        for number in range(OBJECTS):
            _put(running, f"c{number}", "x" * OBJECT_BYTES)
        yield running


def _put(server: Embedded, name: str, text: str, *, method: str = "POST") -> None:
    value = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"t": text},
    }
    body = msgspec.json.encode(value)
    extra = b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n"
    path = CONFIGMAPS if method == "POST" else f"{CONFIGMAPS}/{name}"
    head = request(method, path, token=server.token(), extra=extra % len(body))
    assert status_of(exchange(server, head + body)) in (200, 201)


def _connect(
    server: Embedded, opened: contextlib.ExitStack, path: str, count: int
) -> list[socket.socket]:
    """Let so many clients ask for a path and read nothing."""
    clients: list[socket.socket] = []
    for _ in range(count):
        client = opened.enter_context(dial(server, receive_buffer=SMALL_BUFFER))
        client.sendall(request("GET", path, token=server.token()))
        clients.append(client)
    return clients


def _read_chunked(answer: BinaryIO) -> bytes:
    """Return the body of an answer that is sent in chunks."""
    head = b"".join(iter(answer.readline, b"\r\n")).lower()
    assert b"transfer-encoding: chunked\r\n" in head
    chunks: list[bytes] = []
    while size := int(answer.readline(), 16):
        chunks.append(answer.read(size))
        answer.readline()
    return b"".join(chunks)


def test_readers_of_one_list_share_it(server: Embedded) -> None:
    """A list that 150 clients ask for and do not read is held once; each client costs little."""
    before = resident_bytes(server)
    with contextlib.ExitStack() as opened:
        clients = _connect(server, opened, CONFIGMAPS, READERS)
        assert ask(server, "/healthz")[0] == 200
        assert peak_bytes(server) - before < READERS * EACH + 40 * MEBIBYTE
        # Who reads at last gets the whole list.
        client = clients[-1]
        with client.makefile("rb") as answer:
            body = _read_chunked(answer)
        assert len(body) > OBJECTS * OBJECT_BYTES
        assert len(msgspec.json.decode(body)["items"]) >= OBJECTS
    assert ask(server, "/healthz")[0] == 200


def test_readers_of_different_lists_are_dropped(server: Embedded) -> None:
    """Where each list differs the sum is bounded: the slowest readers are dropped."""
    before = resident_bytes(server)
    with contextlib.ExitStack() as opened:
        for number in range(READERS):
            _put(server, "c0", f"{number}" + "x" * OBJECT_BYTES, method="PUT")
            _connect(server, opened, CONFIGMAPS, 1)
        assert ask(server, "/healthz")[0] == 200
        bound = http_messages.SOFT_HELD_BYTES + READERS * EACH + 60 * MEBIBYTE
        assert peak_bytes(server) - before < bound


def test_watchers_that_do_not_read_cost_little(server: Embedded) -> None:
    """A watch holds one frame for its client, however many changes wait."""
    before = resident_bytes(server)
    with contextlib.ExitStack() as opened:
        _connect(server, opened, f"{CONFIGMAPS}?watch=1", READERS)
        for number in range(10):
            _put(server, "c0", f"{number}" + "x" * OBJECT_BYTES, method="PUT")
        assert ask(server, "/healthz")[0] == 200
        assert peak_bytes(server) - before < READERS * EACH + 60 * MEBIBYTE


def test_requests_that_come_slowly_are_bounded(tmp_path: Path) -> None:
    """Bodies that stop before their end are held up to a sum; then the slowest are dropped."""
    limit = http_messages.HARD_HELD_BYTES + 60 * MEBIBYTE
    grown: list[int] = []
    # What the allocator keeps of freed memory only ever adds, so that the least peak counts.
    while len(grown) < ATTEMPTS and min(grown, default=limit) >= limit:
        with serve(tmp_path / f"data{len(grown)}") as server:
            grown.append(_growth_by_slow_bodies(server))
    assert min(grown) < limit, grown


def _growth_by_slow_bodies(server: Embedded) -> int:
    """Return by how much memory grew at most while 60 bodies stopped before their end."""
    before = resident_bytes(server)
    head = request(
        "POST", CONFIGMAPS, token=server.token("node-n1"), extra=b"Content-Length: 3000000\r\n"
    )
    with contextlib.ExitStack() as opened:
        for _ in range(60):
            client = opened.enter_context(dial(server))
            with contextlib.suppress(OSError):
                client.sendall(head + b" " * 2_900_000)
        assert ask(server, "/healthz")[0] == 200
        return peak_bytes(server) - before


class _Frames:
    """A stream of one large frame."""

    content_type = b"application/json"
    endless = True

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frame."""
        yield b"x" * (16 * MEBIBYTE)

    def close(self) -> None:
        """Note the end."""
        self.closed.set()


async def test_a_reader_that_stops_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an answer nor a stream waits for ever for a client that takes nothing."""
    stream = _Frames()

    def answer(asked: HttpRequest) -> HttpResponse | ResponseStream:
        return stream if asked.path == "/stream" else HttpResponse(200, b"x" * (16 * MEBIBYTE))

    monkeypatch.setattr(response_writer, "STALLED_SECONDS", 0.2)
    server = HttpsServer(answer, context=None)
    port = await server.start("127.0.0.1", 0)
    for path in (b"/answer", b"/stream"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(60):
            while server.table.dropped["stalled"] < 1 or len(server.table):
                server.sweep()
                await asyncio.sleep(0.02)
        assert server.transfers.held == 0
        server.table.dropped.clear()
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < 16 * MEBIBYTE
        writer.close()
    assert stream.closed.is_set()
    await server.stop()


class _Client:
    """The owner of a transfer."""

    def __init__(self, resting_since: float | None = None) -> None:
        self.reason = ""
        self.resting_since = resting_since

    def drop(self, reason: str) -> None:
        """Note it."""
        self.reason = reason


def test_only_slow_transfers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit a transfer that moves stays, also the largest; one that rests goes."""
    monkeypatch.setattr(connection_table, "SOFT_HELD_BYTES", 100)
    now = 0.0
    held = Transfers(lambda: now)
    moving, resting, late = _Client(), _Client(), _Client()
    first = held.hold(moving, b"a" * 90)
    held.hold(resting, b"b" * 60)
    assert (moving.reason, resting.reason) == ("", "")
    now = 2.0
    held.move(first, 4 * http_messages.SLOW_BYTES_PER_SECOND)
    held.hold(late, b"c" * 60)
    assert (moving.reason, resting.reason, late.reason) == ("", "slow", "")
    assert held.held == 150


def test_buffers_of_connections_count() -> None:
    """A connection holds buffers by the most that it has received at once, until it closes."""
    held = Transfers(time.monotonic)
    client, other = _Client(), _Client()
    held.buffer(client, 40_000)
    held.buffer(client, 20_000)
    assert held.held == 100_000
    held.buffer(other, 10 * MEBIBYTE)
    assert held.held == 100_000 + http_messages.RECEIVE_BUFFER_BYTES
    held.release_buffers(client)
    held.release_buffers(client)
    held.release_buffers(other)
    assert held.held == 0


def test_buffers_of_resting_connections_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as many as the limit needs, and none whose request is read or answered."""
    monkeypatch.setattr(connection_table, "SOFT_HELD_BYTES", 3 * http_messages.RECEIVE_BUFFER_BYTES)
    held = Transfers(lambda: 10.0)
    clients = [_Client(resting_since=since) for since in (None, 9.9, 1.0, 2.0, 3.0)]
    for client in clients:
        held.buffer(client, MEBIBYTE)
    held.resize(held.receive(_Client()), 1)
    assert [client.reason for client in clients] == ["", "", "slow", "slow", "slow"]
    assert held.held == 2 * http_messages.RECEIVE_BUFFER_BYTES + 1


def test_fast_growth_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two scans no more than the stated bytes are added before the next."""
    monkeypatch.setattr(connection_table, "SOFT_HELD_BYTES", 0)
    monkeypatch.setattr(connection_table, "HARD_HELD_BYTES", 0)
    now = 0.0
    held = Transfers(lambda: now)
    resting, sending = _Client(), held.receive(_Client())
    # The first byte is scanned for, and a scan is not due again for a while.
    held.resize(sending, 1)
    held.resize(held.receive(resting), 1)
    now = http_messages.REST_SECONDS
    held.resize(sending, 2)
    assert resting.reason == "slow"
    resting.reason = ""
    held.resize(held.receive(resting), 1)
    now += http_messages.SCAN_SECONDS / 2
    monkeypatch.setattr(connection_table, "REST_SECONDS", 0.0)
    held.resize(sending, http_messages.SCAN_BYTES // 4)
    assert resting.reason == ""
    held.resize(sending, 2 * http_messages.SCAN_BYTES)
    assert resting.reason == "slow"


class _Pieces:
    """A connection with pieces to parse, each of which takes a while."""

    def __init__(self, sender: str, pieces: int, parsed: list[str], *, seconds: float) -> None:
        self.sender = sender
        self.pieces = pieces
        self.parsed = parsed
        self.seconds = seconds

    def parse_piece(self) -> bool:
        """Work for the stated time."""
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        self.parsed.append(self.sender)
        self.pieces -= 1
        return self.pieces > 0


def test_senders_take_turns_to_be_parsed() -> None:
    """A sender with many connections has one piece parsed for each of another sender."""
    calls: list[Callable[[], None]] = []
    turns = ParsingTurns(calls.append)
    parsed: list[str] = []
    for _ in range(20):
        turns.enqueue(_Pieces("busy", 10, parsed, seconds=0.0))
    turns.enqueue(_Pieces("other", 3, parsed, seconds=0.0))
    while calls:
        calls.pop()()
    assert parsed[:6] == ["busy", "other"] * 3
    assert len(parsed) == 203


def test_a_turn_of_the_loop_ends() -> None:
    """However much waits, other work of the event loop runs after a few milliseconds."""
    calls: list[Callable[[], None]] = []
    turns = ParsingTurns(calls.append)
    parsed: list[str] = []
    turns.enqueue(_Pieces("busy", 100, parsed, seconds=0.002))
    calls.pop()()
    assert 1 <= len(parsed) <= 3
    assert not turns.has_time()
    assert len(calls) == 1


def test_a_fault_of_one_connection_leaves_the_others_in_turn() -> None:
    """Whatever parsing raises, the bytes of all other connections are parsed."""
    calls: list[Callable[[], None]] = []
    turns = ParsingTurns(calls.append)
    parsed: list[str] = []

    class Faulty(_Pieces):
        def parse_piece(self) -> bool:
            raise RuntimeError

    turns.enqueue(Faulty("busy", 1, parsed, seconds=0.0))
    turns.enqueue(_Pieces("busy", 1, parsed, seconds=0.0))
    turns.enqueue(_Pieces("other", 1, parsed, seconds=0.0))
    with pytest.raises(RuntimeError):
        calls.pop()()
    calls.pop()()
    assert sorted(parsed) == ["busy", "other"]


class _Unread(asyncio.Transport):
    """A transport whose client reads nothing: the first bytes fill its buffer."""

    def __init__(self, writer: ResponseWriter) -> None:
        super().__init__()
        self._writer = writer

    def write(self, _data: bytes | bytearray | memoryview) -> None:
        """Pause the writer, as the event loop does."""
        self._writer.pause(0.0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have one limit."""

    def is_closing(self) -> bool:
        """Stay open."""
        return False


class _Closing(_Unread):
    """A transport whose client has closed; it counts what is still written."""

    written = 0

    def write(self, _data: bytes | bytearray | memoryview) -> None:
        """Count."""
        self.written += 1

    def is_closing(self) -> bool:
        """Close once the first bytes are written."""
        return self.written > 0


@pytest.mark.parametrize("frame", [b"x", b"x" * MEBIBYTE], ids=["small frames", "a large frame"])
async def test_a_stream_ends_when_its_client_closes(frame: bytes) -> None:
    """Nothing more is written to a transport that is closing."""
    writer = ResponseWriter(_Client(), Transfers(time.monotonic))
    transport = _Closing(writer)
    writer.attach(transport)

    async def frames() -> AsyncIterator[bytes]:
        while True:
            yield frame

    async with asyncio.timeout(60):
        with pytest.raises(ConnectionResetError):
            await writer.send_frames(frames(), chunked=False)
    assert transport.written == 1


def test_an_answer_whose_own_client_is_dropped_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Holding an answer may drop its own client, for a request that came slowly."""
    monkeypatch.setattr(connection_table, "SOFT_HELD_BYTES", MEBIBYTE)
    now = 0.0
    held = Transfers(lambda: now)
    client = _Client()
    writer = ResponseWriter(client, held)
    writer.attach(_Unread(writer))
    slow_request = held.receive(client)
    held.resize(slow_request, 50)
    now = 2.0

    def drop(reason: str) -> None:
        client.reason = reason
        held.release(slow_request)
        writer.release()

    monkeypatch.setattr(client, "drop", drop)
    assert writer.send(b"head", b"x" * MEBIBYTE) is False
    assert client.reason == "slow"
    assert held.held == 0


def test_equal_answers_are_held_once() -> None:
    """Two clients with the same answer hold the same bytes, until the last has read them."""
    held = Transfers(time.monotonic)
    text = "x" * 1000
    first, second = held.hold(_Client(), text.encode()), held.hold(_Client(), text.encode())
    assert first.body is second.body
    assert held.held == 1000
    held.release(first)
    held.release(first)
    assert held.held == 1000
    held.release(second)
    assert held.held == 0
