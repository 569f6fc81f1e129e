"""Connections that say nothing, say little, or come in numbers."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import gc
import resource
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog

from keepclose.apiserver.auth.certificates import CertificateAuthority
from keepclose.apiserver.http import connection
from keepclose.apiserver.http import server as serving_server
from keepclose.apiserver.http.connection_table import ConnectionTable
from keepclose.apiserver.http.server import HttpsServer
from keepclose.apiserver.serving.http_messages import ConnectionLimits, HttpRequest, HttpResponse
from support.hostile.rawclients import (
    CLOSE,
    ask,
    connect,
    cpu_seconds,
    descriptors,
    dial,
    exchange,
    request,
    resident_bytes,
    status_of,
    wait_until,
)
from support.server_processes import Embedded, embedded_server, start_embedded

NAMESPACES: Final = "/api/v1/namespaces"
CONFIGMAPS: Final = "/api/v1/namespaces/default/configmaps"
# Of 64 connections: 32 without credentials, 16 of one address, 32 of one user.
LIMIT: Final = 64
MEBIBYTE: Final = 1 << 20
_OF_A_CONNECTION: Final = (connection.Connection, asyncio.sslproto.SSLProtocol)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Embedded]:
    """Run a server with few connections."""
    with embedded_server(
        tmp_path / "data", "--node", "n1", "--max-connections", str(LIMIT)
    ) as running:
        yield running


def _is_open(connection: socket.socket) -> bool:
    """Return whether the server has not closed a connection on which it sends nothing."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1 << 16))
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except (ConnectionError, ssl.SSLError):
        return False


def _metric(server: Embedded, name: str) -> float:
    answer = exchange(server, request("GET", "/metrics", token=server.token(), extra=CLOSE))
    lines = answer.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("handshake", [False, True], ids=["silent", "after TLS"])
def test_idle_connections_lock_no_client_out(server: Embedded, *, handshake: bool) -> None:
    """Anonymous connections beyond their share cost the oldest of them, and no other client."""
    token = server.token("node-n1")
    with contextlib.ExitStack() as opened:
        known = opened.enter_context(dial(server))
        known.sendall(request("GET", "/healthz", token=token))
        assert status_of(known.recv(1 << 16)) == 200
        idle: list[socket.socket] = []
        for number in range(3 * LIMIT):
            source = f"127.0.0.{2 + number % 5}"
            opening = dial if handshake else connect
            idle.append(opened.enter_context(opening(server, source=source)))
        status, _ = ask(server, NAMESPACES, token=server.token())
        assert status == 200
        known.sendall(request("GET", "/healthz", token=token))
        assert status_of(known.recv(1 << 16)) == 200
        wait_until(lambda: not _is_open(idle[0]), "the oldest connection is closed")
        assert descriptors(server) < LIMIT + 40
        assert _metric(server, "apiserver_dropped_connections_total") >= LIMIT
        assert _metric(server, 'apiserver_open_connections{authenticated="true"}') >= 1
    log = server.log.read_text()
    assert 1 <= log.count("connections dropped") <= 3


def test_one_address_has_a_share_of_its_own(server: Embedded) -> None:
    """A client without credentials at another address is not closed for the first one's flood."""
    with contextlib.ExitStack() as opened:
        other = opened.enter_context(dial(server, source="127.0.0.9"))
        for _ in range(2 * LIMIT):
            opened.enter_context(dial(server))
        assert _is_open(other)
        other.settimeout(60.0)
        other.sendall(request("GET", "/healthz"))
        assert status_of(other.recv(1 << 16)) == 200


def test_one_user_cannot_take_all_connections(server: Embedded) -> None:
    """A node that opens watches without end is refused more; the administrator gets in."""
    watch = request("GET", "/api/v1/nodes?watch=1", token=server.token("node-n1"))
    with contextlib.ExitStack() as opened:
        watches = []
        for _ in range(LIMIT):
            connection = opened.enter_context(dial(server))
            connection.sendall(watch)
            watches.append(connection)
        status, _ = ask(server, NAMESPACES, token=server.token())
        assert status == 200
        opened_now = 'apiserver_open_connections{authenticated="true"}'
        wait_until(
            lambda: _metric(server, opened_now) <= LIMIT // 2 + 1, "refused watches are closed"
        )
        assert _metric(server, 'apiserver_dropped_connections_total{reason="user limit"}') > 0


def test_a_process_without_descriptors_does_not_spin(tmp_path: Path) -> None:
    """Where the process can open nothing more it closes idle connections and serves on, calmly."""
    with embedded_server(tmp_path / "data") as server:
        used = descriptors(server)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 8, used + 8))
        with contextlib.ExitStack() as opened:
            for _ in range(60):
                opened.enter_context(connect(server))
            before, started = cpu_seconds(server), time.monotonic()
            statuses = [ask(server, "/healthz")[0] for _ in range(5)]
            elapsed = time.monotonic() - started
            assert statuses == [200] * 5
            assert cpu_seconds(server) - before < 0.5 * elapsed + 1.0
        assert "no descriptors" in server.log.read_text()


def test_the_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    """A server started with few descriptors takes as many as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        server = start_embedded(tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        server.stop()


def test_descriptors_are_kept_for_files() -> None:
    """Connections never take all descriptors of a process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        assert ConnectionLimits.for_process() == ConnectionLimits(924, 462, 231, 462)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "kind", ["silent", "half a handshake", "half a head", "half a body", "watch"]
)
def test_sigterm_ends_the_server_whatever_is_connected(server: Embedded, kind: str) -> None:
    """Stuck connections of any kind do not keep the server from ending in its time."""
    token = server.token()
    sent = {
        "half a head": b"GET / HTTP/1.1\r\nHost:",
        "half a body": request("POST", CONFIGMAPS, token=token, extra=b"Content-Length: 9\r\n")
        + b"x",
        "watch": request("GET", f"{CONFIGMAPS}?watch=1", token=token),
    }
    with contextlib.ExitStack() as opened:
        for _ in range(12):
            if kind in sent:
                connection: socket.socket = opened.enter_context(dial(server))
                connection.sendall(sent[kind])
            else:
                connection = opened.enter_context(connect(server))
                if kind != "silent":
                    connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 2 * serving_server.SERVER_STOP_SECONDS


def test_sigterm_ends_the_server_under_a_flood(server: Embedded) -> None:
    """Clients that go on sending and never read do not keep the server from ending."""
    flood = request("GET", "/healthz") * 200
    with contextlib.ExitStack() as opened:
        flooding = [opened.enter_context(dial(server)) for _ in range(8)]
        for connection in flooding:
            connection.setblocking(False)
        server.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        while server.process.poll() is None:
            assert time.monotonic() - started < 4 * serving_server.SERVER_STOP_SECONDS
            for connection in flooding:
                with contextlib.suppress(OSError):
                    connection.send(flood)
        assert server.process.returncode == 0


def test_idle_connections_are_small(tmp_path: Path) -> None:
    """A thousand connections that have sent nothing cost less than 100 MiB."""
    with embedded_server(tmp_path / "data") as server:
        assert ask(server, "/healthz")[0] == 200
        before = resident_bytes(server)
        with contextlib.ExitStack() as opened:
            for _ in range(1000):
                opened.enter_context(dial(server))
            assert ask(server, NAMESPACES, token=server.token())[0] == 200
            assert resident_bytes(server) - before < 100 * MEBIBYTE


def _answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, request.path.encode())


@pytest.mark.parametrize(
    ("constant", "sent", "want"),
    [
        pytest.param("HEADER_SECONDS", b"", b"", id="no first request"),
        pytest.param("HEADER_SECONDS", b"GET / HTTP/1.1\r\nHo", b"HTTP/1.1 408", id="half a head"),
        pytest.param(
            "REQUEST_SECONDS",
            b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx",
            b"HTTP/1.1 408",
            id="half a body",
        ),
        pytest.param(
            "IDLE_SECONDS", b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 200", id="no more"
        ),
    ],
)
async def test_clients_that_take_too_long_are_closed(
    monkeypatch: pytest.MonkeyPatch, constant: str, sent: bytes, want: bytes
) -> None:
    """Every step of a client has its time; afterwards the connection is closed."""
    server = HttpsServer(_answer, context=None)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if constant == "IDLE_SECONDS":
        assert (await reader.readuntil(b"/x")).startswith(want)
        want = b""
    await asyncio.sleep(0.05)
    assert server.sweep() == 0
    monkeypatch.setattr(connection, constant, 0.0)
    async with asyncio.timeout(60):
        while not server.sweep():  # noqa: ASYNC110 - the kernel does not report that bytes arrived
            await asyncio.sleep(0.01)
        assert (await reader.read()).startswith(want)
    writer.close()
    await server.stop()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.0\r\n\r\n", b""], ids=["plain HTTP", "nothing"])
async def test_failed_handshakes_leave_nothing(tmp_path: Path, sent: bytes) -> None:
    """The buffers of a handshake that fails are freed at once, without a garbage collection."""
    authority = CertificateAuthority(tmp_path / "pki", now=time.time())
    authority.ensure_server_certificate()
    server = HttpsServer(_answer, context=authority.server_context())
    port = await server.start("127.0.0.1", 0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            if sent:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        async with asyncio.timeout(60):
            while len(server.table):  # noqa: ASYNC110 - the table reports no change
                await asyncio.sleep(0.01)
            # NB: a future of asyncio keeps its exception until its callbacks have run.
            await asyncio.sleep(0)
        left = [type(one) for one in gc.get_objects() if isinstance(one, _OF_A_CONNECTION)]
    finally:
        gc.enable()
    assert left == []
    await server.stop()


async def test_faults_of_the_server_are_logged() -> None:
    """An error of a handler is logged, although the parser of the request reports it."""

    def fail(_request: HttpRequest) -> HttpResponse:
        raise TypeError("a fault")

    server = HttpsServer(fail, context=None)
    port = await server.start("127.0.0.1", 0)
    with structlog.testing.capture_logs() as logs:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await reader.read()
        writer.close()
    assert [line["event"] for line in logs] == ["request failed"]
    await server.stop()


class _Place:
    """A connection as the table sees it."""

    def __init__(self, table: ConnectionTable, address: str) -> None:
        self.address = address
        self.user: str | None = None
        self.idle_since: float | None = None
        self.reason = ""
        self._table = table
        table.add(self)

    def drop(self, reason: str) -> None:
        """Leave."""
        self.reason = reason
        self._table.remove(self)
        self._table.count(reason)


def test_the_longest_idle_goes_first() -> None:
    """When all places are taken: strangers, then idle users by time; those in use stay."""
    table = ConnectionTable(ConnectionLimits(3, 3, 3, 3), lambda: 0.0)
    stranger, late, early = (_Place(table, address) for address in "abc")
    for place, since in ((late, 2.0), (early, 1.0)):
        assert table.authenticate(place, "user")
        place.idle_since = since
    with structlog.testing.capture_logs() as logs:
        for gone in (stranger, early, late):
            assert table.make_room("d")
            assert gone.reason == "total limit"
            busy = _Place(table, "d")
            assert table.authenticate(busy, "user")
        assert not table.make_room("d")
    assert len(table) == 3
    assert table.dropped == {"total limit": 4}
    assert [(line["event"], line["dropped"]) for line in logs] == [("connections dropped", 1)]
