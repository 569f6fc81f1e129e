"""Requests as bytes, into the connection that production has; how they are cut changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from fuzzbounds import require

from keepclose.apiserver.http.connection import Connection
from keepclose.apiserver.http.server import HttpsServer
from keepclose.apiserver.serving.http_messages import HttpRequest, HttpResponse


class _Transport:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def get_extra_info(self, _name: str) -> None:
        """Return that nothing is known of the client."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Hold nothing back, because all that is written is taken."""

    def write(self, data: bytes) -> None:
        """Take bytes."""
        self.sent.append(data)

    def close(self) -> None:
        """Note the end."""
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.closed

    def pause_reading(self) -> None:
        """Nothing comes before what came is answered; see `_settle`."""

    resume_reading = pause_reading


def seeds() -> Iterator[bytes]:
    """Yield requests, chunked ones, several in one, and wrong ones."""
    yield from (
        b"GET /api/v1/pods?limit=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
        b"POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\n\r\n",
        b"POST /a%20b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\n{}\r\n0\r\nT: 1\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4000000\r\n\r\n",
        b"GET / HTTP/1.1\r\nImpersonate-Group: a\r\nImpersonate-Group: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET http://a/b HTTP/1.1\r\n\r\nHEAD \xff HTTP/1.1\r\n\r\n",
        b"\r\n" * 50
        + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        + b"\n" * 100
        + b"GET /a HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )


def check(data: bytes) -> None:
    """Feed the bytes whole and in two ways of cutting them; the answers must be the same."""
    whole = asyncio.run(_feed([data]))
    cut = max(1, data[0] if data else 1)
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    require(asyncio.run(_feed(pieces)) == whole, "cut into pieces it is another request")
    if len(data) <= 512:
        single = [data[at : at + 1] for at in range(len(data))]
        require(asyncio.run(_feed(single)) == whole, "byte by byte it is another request")


async def _feed(pieces: list[bytes]) -> tuple[list[bytes], list[Any]]:
    """Return the statuses of all answers, and the requests that were answered."""
    seen: list[Any] = []

    def answer(request: HttpRequest) -> HttpResponse:
        seen.append((request.method, request.path, request.query, request.headers, request.body))
        return HttpResponse(200, b"{}")

    transport = _Transport()
    connection = Connection(HttpsServer(answer, context=None), "")
    connection.connection_made(cast("asyncio.BaseTransport", transport))
    for piece in pieces:
        connection.data_received(piece)
        await _settle(transport)
    connection.connection_lost(None)
    sent = b"".join(transport.sent)
    require(sent.count(b"HTTP/1.1 ") >= len(seen) or not sent, "a request has no answer")
    msgspec.json.encode([str(one) for one in seen])
    # NB: the parser tells of a header when the next one begins, or of an error in that instead, so
    # that only the words of a refusal may differ.
    return re.findall(rb"^HTTP/1\.1 [0-9]+", sent, re.MULTILINE), seen


async def _settle(transport: _Transport) -> None:
    """Return when nothing more is sent: of many requests some are answered in later turns."""
    sent = -1
    while sent != len(transport.sent):
        sent = len(transport.sent)
        await asyncio.sleep(0)
