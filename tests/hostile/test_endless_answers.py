"""An API server that answers without end: its clients stop reading and say so."""

from __future__ import annotations

import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from threading import Thread
from typing import Final

import pytest
from aiohttp import web
from typer.testing import CliRunner

from keepclose.cli import proxy_status
from keepclose.cli.main import app
from keepclose.kube import client as kube_client
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import ConnectionSettings, ConnectionUser, connect
from keepclose.kube.errors import BrokenStream
from keepclose.kube.requests import NODES
from keepclose.kube.transport import aiohttp_transport
from keepclose.kube.transport.aiohttp_transport import ServerAddress
from keepclose.kube.transport.retries import Retries
from keepclose.kube.watch import stream

MOST: Final = 4 << 20
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def asking(handler: Handler) -> AsyncIterator[Client]:
    """Serve every path with a handler; give a client that tries once."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = ConnectionSettings(
        ServerAddress(f"http://127.0.0.1:{runner.addresses[0][1]}"), ConnectionUser()
    )
    retries = Retries(max_elapsed=0)
    try:
        async with connect(settings, clock=SystemClock(), retries=retries) as client:
            yield client
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def _lower_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp_transport, "MAX_ANSWER_BYTES", MOST)
    monkeypatch.setattr(aiohttp_transport, "MAX_FAILURE_BYTES", MOST)


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_without_end_is_given_up(status: int) -> None:
    """Neither a list nor a failure is read beyond its limit."""
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        await response.write(b'{"items": [')
        # NB: an end all the same, or a client that reads on would do so for ever.
        while sent < 64 * MOST:
            await response.write(b" " * 65536)
            sent += 65536
        return response

    async with asking(answer) as client:
        with pytest.raises(BrokenStream, match="more than 4 MiB; check that the server"):
            await client.list_all(NODES)
    assert sent < 32 * MOST


async def test_an_answer_that_unpacks_to_too_much_is_given_up() -> None:
    """What counts is what comes out of compression."""
    packed = gzip.compress(b'{"items": [' + b" " * (64 * MOST))

    async def answer(_: web.Request) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        return web.Response(body=packed, headers=headers)

    async with asking(answer) as client:
        with pytest.raises(BrokenStream, match="more than 4 MiB"):
            await client.list_all(NODES)


async def test_pages_that_lead_to_themselves_are_given_up() -> None:
    """A list that has the same next page for ever ends in an error."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"items": [], "metadata": {"continue": "more"}})

    async with asking(answer) as client:
        with pytest.raises(BrokenStream, match="a page continues with itself"):
            await client.list_all(NODES)


def test_the_status_of_a_proxy_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers in the place of a proxy is read up to a limit, and told with exit code 4."""
    monkeypatch.setattr(proxy_status, "MAX_STATUS_BYTES", MOST)

    def answer(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, suppress(OSError):
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            # NB: an end all the same, or a client that reads on would do so for ever.
            for _ in range(64):
                peer.sendall(b" " * MOST)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=answer, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(app, ["proxy", "status", "--metrics-address", address])
        thread.join()
    assert result.exit_code == 4
    want = f"error: the server at {address} is no keepclose proxy: more than 4 MiB\n"
    assert result.output == want


@pytest.mark.parametrize("expires", [False, True])
async def test_a_list_of_endless_pages_is_given_up(
    monkeypatch: pytest.MonkeyPatch, expires: bool
) -> None:
    """Each page leads to another one, or to a list that has to be read anew."""
    monkeypatch.setattr(kube_client, "MAX_PAGES", 20)
    asked = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if expires and request.query.get("continue"):
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        metadata = {"resourceVersion": "1", "continue": f"t{asked}"}
        return web.json_response({"kind": "NodeList", "metadata": metadata, "items": []})

    async with asking(answer) as client:
        with pytest.raises(BrokenStream, match="list of nodes: it has more than 20 pages"):
            await client.list_all(NODES)
    assert asked == 20


async def test_a_streamed_list_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of which the last one never comes do not fill the memory."""
    monkeypatch.setattr(stream, "MAX_INITIAL_BYTES", MOST)
    event = b'{"type":"ADDED","object":{"metadata":{"name":"n","resourceVersion":"1"}}}\n'

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(event * 1000)
        return response

    async with (
        asking(answer) as client,
        client.watch(NODES, send_initial_events=True) as events,
    ):
        with pytest.raises(BrokenStream, match="its initial objects have more than 4 MB"):
            async for _ in events:
                pass


async def test_a_watch_goes_on_behind_the_objects_at_its_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is one of the list and not of the changes that follow."""
    monkeypatch.setattr(stream, "MAX_INITIAL_BYTES", 2000)
    end = (
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1","annotations":'
        b'{"k8s.io/initial-events-end":"true"}}}}\n'
    )
    event = b'{"type":"ADDED","object":{"metadata":{"name":"n","resourceVersion":"2"}}}\n'

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=end + event * 100)

    async with (
        asking(answer) as client,
        client.watch(NODES, send_initial_events=True) as events,
    ):
        assert len([one async for one in events]) == 101
