"""Relays: a server of the machine's own world, reached from inside a namespace until it is cut."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest

from keepclose.lab.network.privilege import why_no_packets
from keepclose.lab.network.relays import MAX_HELD, Relay
from keepclose.system.namespaces import NetworkNamespace, create_network_namespace
from support.ports import reserved_port

T = TypeVar("T")
Echo = tuple[NetworkNamespace, int]


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    """Serve whoever calls with what it says, and give a namespace and the port of the server."""
    reason = why_no_packets()
    if reason:
        pytest.skip(reason)

    answering: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        while line := await reader.readline():
            writer.write(b"heard " + line)
        writer.close()

    namespace = create_network_namespace("here")
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield namespace, port
        # All who called before this one are answered then, or have gone.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"last\n")
        await reader.readline()
        writer.transport.abort()
        await asyncio.gather(*(task for task in answering if task))
    namespace.close()


async def _connect(echo: Echo) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    namespace, port = echo
    caller = namespace.open_socket()
    caller.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", port))
    except OSError:
        caller.close()
        raise
    return await asyncio.open_connection(sock=caller)


async def _ask(echo: Echo) -> bytes:
    reader, writer = await _connect(echo)
    writer.write(b"me\n")
    answer = await reader.readline()
    writer.transport.abort()
    return answer


async def _until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; nothing tells when a connection was taken."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - as said
            await asyncio.sleep(0)


async def test_who_is_inside_reaches_the_server(echo: Echo) -> None:
    """A relay listens at the server's own port inside; without it nobody does."""
    with pytest.raises(ConnectionRefusedError):
        await _ask(echo)
    relay = Relay(*echo)
    await relay.open()
    await relay.open()
    assert await asyncio.gather(*(_ask(echo) for _ in range(3))) == [b"heard me\n"] * 3
    await relay.cut()


async def test_cut_and_open_again(echo: Echo) -> None:
    """A cut ends connections that are open and lets nobody in until the relay is opened again."""
    relay = Relay(*echo)
    await relay.open()
    reader, writer = await _connect(echo)
    writer.write(b"me\n")
    assert await reader.readline() == b"heard me\n"
    await relay.cut()
    assert await reader.read() == b""
    with pytest.raises(ConnectionRefusedError):
        await _ask(echo)
    await relay.open()
    assert await _ask(echo) == b"heard me\n"
    await relay.cut()
    await relay.cut()
    writer.transport.abort()


async def test_holding_whoever_comes(echo: Echo) -> None:
    """Held connections break off, new ones wait without an answer and go on once it is open."""
    relay = Relay(*echo)
    await relay.open()
    reader, writer = await _connect(echo)
    writer.write(b"me\n")
    assert await reader.readline() == b"heard me\n"
    assert relay.connections == 1
    await relay.hold()
    assert await reader.read() == b""
    assert relay.connections == 0
    waiting = [asyncio.create_task(_ask(echo)) for _ in range(2)]
    done, _ = await asyncio.wait(waiting, timeout=0.2)
    assert not done
    await relay.open()
    assert await asyncio.gather(*waiting) == [b"heard me\n"] * 2
    await relay.cut()
    writer.transport.abort()


async def test_a_cut_ends_those_that_are_held(echo: Echo) -> None:
    """Whoever waits is sent away when the relay is cut instead of opened."""
    relay = Relay(*echo)
    await relay.open()
    await relay.hold()
    reader, writer = await _connect(echo)
    await _until(lambda: bool(relay._held))
    await relay.cut()
    assert await reader.read() == b""
    writer.transport.abort()
    await relay.open()
    assert await _ask(echo) == b"heard me\n"
    await relay.cut()


async def test_a_cut_while_the_server_is_sought(echo: Echo) -> None:
    """A connection whose far end is not there yet is broken too."""
    relay = Relay(*echo)
    await relay.open()
    reader, writer = await _connect(echo)
    await _until(lambda: bool(relay._transports))
    await relay.cut()
    assert await reader.read() == b""
    writer.transport.abort()


class Narrow:
    """A namespace in which those who listen send through small buffers."""

    def __init__(self, namespace: NetworkNamespace) -> None:
        self._namespace = namespace

    def do(self, work: Callable[[], T]) -> T:
        """Do the work inside."""
        made = self._namespace.do(work)
        assert isinstance(made, socket.socket)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return made


async def test_a_slow_reader_hears_all(echo: Echo) -> None:
    """What the server said before it closed reaches a client that reads it later."""
    said = asyncio.Event()

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 60_000)
        writer.close()
        await writer.wait_closed()
        said.set()

    namespace, _ = echo
    async with asyncio.timeout(60), await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        relay = Relay(Narrow(namespace), port)
        await relay.open()
        with namespace.open_socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(caller, ("127.0.0.1", port))
            await said.wait()
            await asyncio.sleep(0.1)
            heard = 0
            while data := await loop.sock_recv(caller, 1024):
                heard += len(data)
        assert heard == 60_000
        await _until(lambda: relay.connections == 0)
        await relay.cut()


async def test_who_has_said_all_is_still_answered(echo: Echo) -> None:
    """An end of one direction is passed on and leaves the other open."""
    relay = Relay(*echo)
    await relay.open()
    reader, writer = await _connect(echo)
    writer.write(b"me\n")
    writer.write_eof()
    async with asyncio.timeout(60):
        assert await reader.read() == b"heard me\n"
    writer.close()
    await _until(lambda: relay.connections == 0)
    await relay.cut()


async def test_a_cut_breaks_off_whoever_reads_slowly(echo: Echo) -> None:
    """A cut does not wait until what was said is read."""

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 60_000)
        writer.close()

    namespace, _ = echo
    async with asyncio.timeout(60), await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        relay = Relay(Narrow(namespace), port)
        await relay.open()
        with namespace.open_socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(caller, ("127.0.0.1", port))
            await loop.sock_recv(caller, 1)
            assert relay.connections == 1
            await relay.cut()
            assert relay.connections == 0


async def test_only_so_many_are_held(echo: Echo) -> None:
    """Whoever came first is sent away when too many wait, and the others go on at the end."""
    relay = Relay(*echo)
    await relay.open()
    await relay.hold()
    made = [await _connect(echo) for _ in range(MAX_HELD + 3)]
    async with asyncio.timeout(60):
        assert [await reader.read() for reader, _ in made[:3]] == [b""] * 3
        await _until(lambda: len(relay._held) == MAX_HELD)
        await relay.open()
        for reader, writer in made[3:]:
            writer.write(b"me\n")
            assert await reader.readline() == b"heard me\n"
    for _, writer in made:
        writer.transport.abort()
    await relay.cut()


async def test_no_server_behind(echo: Echo) -> None:
    """Who is let in is sent away when nobody serves behind the relay."""
    namespace, _ = echo
    with reserved_port() as port:
        relay = Relay(namespace, port)
        await relay.open()
        reader, writer = await _connect((namespace, port))
        assert await reader.read() == b""
        writer.transport.abort()
        await relay.cut()


async def test_a_relay_whose_opening_is_cancelled_listens_no_more(echo: Echo) -> None:
    """Whenever the opening is cancelled, a cut ends all that listens."""
    namespace, port = echo
    for turns in range(1, 100):
        relay = Relay(namespace, port)
        opening = asyncio.create_task(relay.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = opening.done()
        opening.cancel()
        await asyncio.wait([opening])
        await relay.cut()
        with pytest.raises(ConnectionRefusedError):
            await _connect(echo)
        if is_over:
            return
    pytest.fail("the relay never opened")
