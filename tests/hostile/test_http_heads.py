"""Heads, bodies and trailers that are made to fool or to exhaust the server."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from keepclose.apiserver.http.request_parser import MAX_HEAD_BYTES, MAX_HEADER_LINES
from support.hostile.rawclients import (
    CLOSE,
    HOST,
    ask,
    cpu_seconds,
    dial,
    exchange,
    peak_bytes,
    read_all,
    request,
    resident_bytes,
    status_of,
)
from support.server_processes import Embedded, embedded_server

CONFIGMAPS: Final = "/api/v1/namespaces/default/configmaps"
NAMESPACES: Final = "/api/v1/namespaces"
BODY: Final = b'{"metadata":{"generateName":"x-"}}'
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
MEBIBYTE: Final = 1 << 20
# What a client without credentials may make the server's memory grow by.
GROWTH: Final = 24 * MEBIBYTE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Run one server for all tests of this module."""
    directory: Path = tmp_path_factory.mktemp("heads") / "data"
    with embedded_server(directory, "--node", "n1") as running:
        assert ask(running, "/healthz")[0] == 200
        yield running


def _chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def _create(server: Embedded, extra: bytes, body: bytes, *, authenticated: bool = True) -> bytes:
    token = server.token() if authenticated else ""
    extra += b"Content-Type: application/json\r\n" + CLOSE
    return exchange(server, request("POST", CONFIGMAPS, token=token, extra=extra) + body)


def _pour(server: Embedded, head: bytes, portion: bytes, total: int) -> bytes:
    """Send a head and then portions without end, until the server has enough; return its answer."""
    with dial(server) as connection:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            connection.sendall(head)
            for _ in range(total // len(portion)):
                connection.sendall(portion)
        return read_all(connection)


@pytest.mark.parametrize(
    ("head", "portion"),
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: ", b"y" * 4096, id="a value"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + HOST, b"y" * 4096, id="a name"),
        pytest.param(b"GET /healthz?", b"y" * 4096, id="a target"),
        pytest.param(b"", b"Y" * 4096, id="a method"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + HOST, b"X: y\r\n" * 700, id="many lines"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + HOST + b"X:", b" " * 4096, id="blanks"),
        pytest.param(b"", b"\r\n" * 2048, id="empty lines"),
    ],
)
def test_a_head_without_an_end_costs_little(server: Embedded, head: bytes, portion: bytes) -> None:
    """However a head goes on, the server stops to read it, keeps its memory and serves others."""
    before = resident_bytes(server)
    worked = cpu_seconds(server)
    answer = _pour(server, head, portion, 32 * MEBIBYTE)
    assert status_of(answer) in (0, 400, 431)
    assert peak_bytes(server) - before < GROWTH
    assert cpu_seconds(server) - worked < 5.0
    status, _ = ask(server, "/healthz")
    assert status == 200


def test_a_head_in_single_bytes_is_counted_too(server: Embedded) -> None:
    """A header whose bytes come one by one is refused at the same size, for a linear price."""

    def spent(size: int) -> float:
        with dial(server) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: ")
            before = cpu_seconds(server)
            for _ in range(size):
                connection.sendall(b"y")
            connection.sendall(b"\r\n" + CLOSE + b"\r\n")
            assert status_of(read_all(connection)) == 200
        return cpu_seconds(server) - before

    spent(500)
    small, large = spent(2_000), spent(8_000)
    assert large < 10 * small + 0.2
    answer = _pour(server, b"GET / HTTP/1.1\r\n" + HOST + b"X: ", b"y" * 101, 2 * MAX_HEAD_BYTES)
    assert status_of(answer) == 431


@pytest.mark.parametrize(
    ("lines", "want"), [(MAX_HEADER_LINES - 2, 200), (MAX_HEADER_LINES + 1, 431)]
)
def test_header_lines_are_counted(server: Embedded, lines: int, want: int) -> None:
    """As many lines as allowed are served, more are refused."""
    answer = exchange(server, request("GET", "/healthz", extra=CLOSE + b"X: y\r\n" * lines))
    assert status_of(answer) == want


@pytest.mark.parametrize(
    ("portion", "want"),
    [
        pytest.param(b"1" + b";x=" + b"y" * 5000 + b"\r\nz\r\n", 500, id="long extensions"),
        pytest.param(b"1;" + b"y" * 5000, 500, id="one extension"),
        pytest.param(b"0\r\nX: " + b"y" * 5000, 500, id="one trailer line"),
        pytest.param(b"1\r\nz\r\n" * 1000, 413, id="chunks of one byte"),
        pytest.param(b"2\r\nzz\r\n" * 1000, 413, id="chunks of two bytes"),
    ],
)
def test_a_chunked_body_without_an_end_costs_little(
    server: Embedded, portion: bytes, want: int
) -> None:
    """Neither what is beside the data nor tiny chunks grow the memory much beyond the body."""
    head = request("POST", CONFIGMAPS, token=server.token("node-n1"), extra=CHUNKED)
    before = resident_bytes(server)
    answer = _pour(server, head, portion, 40 * MEBIBYTE)
    assert status_of(answer) == want
    assert peak_bytes(server) - before < GROWTH


def test_trailer_lines_without_an_end_are_refused(server: Embedded) -> None:
    """Trailers are counted with what is no data."""
    head = request("POST", CONFIGMAPS, token=server.token(), extra=CHUNKED)
    answer = _pour(server, head + _chunk(BODY) + b"0\r\n", b"X: y\r\n" * 500, 4 * MEBIBYTE)
    assert status_of(answer) in (431, 500)


@pytest.mark.parametrize("declared", [b"", b"Trailer: Authorization\r\n"])
def test_a_trailer_does_not_authenticate(server: Embedded, declared: bytes) -> None:
    """Credentials behind the body are no credentials."""
    trailer = b"0\r\nAuthorization: Bearer %b\r\n\r\n" % server.token().encode()
    body = _chunk(BODY) + trailer
    answer = _create(server, CHUNKED + declared, body, authenticated=False)
    assert status_of(answer) == 403
    # The same body with credentials in the head is fine, whatever the trailer says.
    assert status_of(_create(server, CHUNKED + declared, body)) == 201


def test_a_trailer_does_not_change_who_asks(server: Embedded) -> None:
    """A viewer does not become an administrator, nor an administrator another user."""
    for trailer in (
        b"Authorization: Bearer %b" % server.token().encode(),
        b"Impersonate-User: admin",
        b"Content-Type: application/yaml",
    ):
        extra = CHUNKED + CLOSE + b"Content-Type: application/json\r\n"
        head = request("POST", CONFIGMAPS, token=server.token("viewer"), extra=extra)
        answer = exchange(server, head + _chunk(BODY) + b"0\r\n" + trailer + b"\r\n\r\n")
        assert status_of(answer) == 403


def test_the_first_of_repeated_headers_counts(server: Embedded) -> None:
    """Credentials behind others are ignored, as kube-apiserver ignores them."""
    good = b"Authorization: Bearer %b\r\n" % server.token().encode()
    bad = b"Authorization: Bearer wrong\r\n"
    assert status_of(exchange(server, request("GET", NAMESPACES, extra=good + bad + CLOSE))) == 200
    assert status_of(exchange(server, request("GET", NAMESPACES, extra=bad + good + CLOSE))) == 401


@pytest.mark.parametrize(
    "names",
    [b"X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n", b"Impersonate-User: a\r\n"],
)
def test_headers_of_proxies_are_no_credentials(server: Embedded, names: bytes) -> None:
    """No front proxy is configured, so nobody is believed who claims to be one."""
    assert status_of(exchange(server, request("GET", NAMESPACES, extra=names + CLOSE))) == 403


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + CLOSE + b"\r\n", 400, id="no host"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + HOST * 2 + b"\r\n", 400, id="two hosts"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: a b\r\n\r\n", 400, id="a host with a blank"),
        pytest.param(b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n", 505, id="HTTP/2.0"),
        pytest.param(b"GET /healthz\r\n\r\n", 400, id="HTTP/0.9"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="the preface of HTTP/2"),
        pytest.param(b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400, id="a broken escape"),
        pytest.param(
            b"GET http://other/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n",
            200,
            id="absolute form",
        ),
        pytest.param(b"GET /healthz HTTP/1.0\r\n\r\n", 200, id="HTTP/1.0"),
        pytest.param(request("GET", "/healthz", extra=b"X : y\r\n"), 400, id="blank before colon"),
        pytest.param(request("GET", "/healthz", extra=b"X: y\0\r\n"), 400, id="NUL"),
        pytest.param(request("GET", "/healthz", extra=b"X: y\rz\r\n"), 400, id="CR"),
        pytest.param(request("GET", "/healthz", extra=b"X: y\r\n z\r\n"), 400, id="a folded line"),
        pytest.param(request("GET", "/healthz", extra=b"Expect: fries\r\n"), 417, id="expectation"),
    ],
)
def test_heads_that_others_could_read_differently(server: Embedded, data: bytes, want: int) -> None:
    """What is ambiguous is refused with the status of kube-apiserver, or stricter."""
    assert status_of(exchange(server, data)) == want


@pytest.mark.parametrize(
    ("extra", "body", "want"),
    [
        pytest.param(
            b"Content-Length: 5\r\n" + CHUNKED, _chunk(BODY) + b"0\r\n\r\n", 400, id="both lengths"
        ),
        pytest.param(b"Content-Length: 34\r\nContent-Length: 5\r\n", BODY, 400, id="two lengths"),
        pytest.param(b"Content-Length: +34\r\n", BODY, 400, id="a sign"),
        pytest.param(b"Content-Length: 0x22\r\n", BODY, 400, id="hexadecimal"),
        pytest.param(b"Content-Length: " + b"9" * 30 + b"\r\n", BODY, 400, id="too many digits"),
        pytest.param(
            b"Transfer-Encoding: gzip, chunked\r\n", _chunk(BODY) + b"0\r\n\r\n", 501, id="gzip"
        ),
        pytest.param(
            b"Transfer-Encoding: xchunked\r\n", _chunk(BODY) + b"0\r\n\r\n", 501, id="no encoding"
        ),
        pytest.param(CHUNKED, b"zz\r\n" + BODY + b"\r\n0\r\n\r\n", 400, id="no size of a chunk"),
        pytest.param(CHUNKED, b"f" * 17 + b"\r\n" + BODY, 400, id="a size over all bounds"),
    ],
)
def test_bodies_whose_end_is_doubtful(
    server: Embedded, extra: bytes, body: bytes, want: int
) -> None:
    """A body that two readers could end at different bytes is refused with all that follows."""
    smuggled = request("GET", "/healthz", extra=CLOSE)
    answer = _create(server, extra, body + smuggled)
    assert status_of(answer) == want
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("token", "want"), [pytest.param("", 403, id="none"), pytest.param("wrong", 401, id="wrong")]
)
def test_nothing_is_read_from_a_client_without_credentials(
    server: Embedded, token: str, want: int
) -> None:
    """A body is refused by its head, before the client is asked for it, and costs no memory."""
    extra = b"Content-Length: 3000000\r\nExpect: 100-continue\r\n"
    answer = exchange(server, request("POST", CONFIGMAPS, token=token, extra=extra))
    assert status_of(answer) == want
    before = resident_bytes(server)
    with contextlib.ExitStack() as opened:
        for _ in range(40):
            connection = opened.enter_context(dial(server))
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                connection.sendall(request("POST", CONFIGMAPS, token=token, extra=extra[:27]))
                connection.sendall(b"x" * 2_000_000)
    assert peak_bytes(server) - before < GROWTH


def test_refusals_are_not_mixed_into_a_stream(server: Embedded) -> None:
    """Garbage behind a watch ends the connection; no refusal comes among the events."""
    watch = request("GET", f"{CONFIGMAPS}?watch=1", token=server.token())
    with dial(server) as connection:
        connection.sendall(watch)
        received = connection.recv(1 << 16)
        connection.sendall(b"\0garbage\r\n\r\n")
        received += read_all(connection)
    assert received.count(b"HTTP/1.1 ") == 1


def test_a_flood_of_pipelined_requests_lets_others_in(server: Embedded) -> None:
    """Thousands of requests in one write are all answered, and others are served in between."""
    count = 4000
    flood = request("GET", "/healthz") * count + request("GET", "/healthz", extra=CLOSE)
    before = resident_bytes(server)
    with dial(server) as flooding:
        flooding.settimeout(0.0)
        sent = 0
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while sent < len(flood):
                sent += flooding.send(flood[sent:])
        status, _ = ask(server, "/healthz")
        assert status == 200
        flooding.settimeout(60.0)
        received = b""
        while sent < len(flood):
            sent += flooding.send(flood[sent : sent + 4096])
            received += flooding.recv(1 << 16)
        received += read_all(flooding)
    assert received.count(b"HTTP/1.1 200 OK") == count + 1
    assert peak_bytes(server) - before < GROWTH
