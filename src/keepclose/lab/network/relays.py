"""Relays: TCP forwarding from a namespace to a server in the namespace of this process.

A node reaches the API server at the server's own local address, through a relay out of the node's
namespace that can be cut and opened again. Each side receives all that the other sent before it
closed, however slowly it reads; only a cut loses data.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

_T = TypeVar("_T")
MAX_HELD: Final = 16
"""More than a proxy opens; a client that reconnects leaves older connections behind."""


class _Inside(Protocol):
    """A namespace in which functions can be run."""

    def do(self, work: Callable[[], _T]) -> _T:
        """Run the function in the namespace and return its result."""
        ...


class Relay:
    """Forwards connections of a socket in a namespace to a local port of this process."""

    def __init__(self, namespace: _Inside, port: int) -> None:
        self._namespace, self._port = namespace, port
        self._server: asyncio.Server | None = None
        self._is_open = False
        self._transports: set[asyncio.WriteTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_holding = False
        self._held: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    @property
    def connections(self) -> int:
        """How many connections the relay forwards now."""
        return len(self._tasks)

    async def open(self) -> None:
        """Listen at the same port inside the namespace; idempotent."""
        self._is_holding = False
        while self._held:
            self._start(*self._held.popleft())
        if self._server is None:
            address = ("127.0.0.1", self._port)
            listener = self._namespace.do(lambda: socket.create_server(address, backlog=128))
            self._is_open = True
            # NB: if this task is cancelled while the server starts, a server that serves at once
            # could not be closed any more.
            self._server = await asyncio.start_server(
                self._accept, sock=listener, start_serving=False
            )
            await self._server.start_serving()

    async def hold(self) -> None:
        """Break all connections and leave new ones without an answer until `open`."""
        self._is_holding = True
        await self._break()

    async def cut(self) -> None:
        """Break all connections and accept no more."""
        self._is_open = self._is_holding = False
        if self._server is not None:
            self._server.close()
        self._server = None
        while self._held:
            self._held.pop()[1].transport.abort()
        await self._break()

    async def _break(self) -> None:
        for transport in tuple(self._transports):
            transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # NB: a connection that was accepted before the cut may get here after it.
        if not self._is_open:
            writer.transport.abort()
        elif self._is_holding:
            self._held.append((reader, writer))
            if len(self._held) > MAX_HELD:
                self._held.popleft()[1].transport.abort()
        else:
            self._start(reader, writer)

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.add(writer.transport)
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = writer.transport
        try:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
                far = far_writer.transport
                self._transports.add(far)
                try:
                    # NB: the relay may have been cut while it connected to the far end.
                    if not near.is_closing():
                        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
                        await asyncio.gather(_flush(far_writer), _flush(writer))
                finally:
                    self._transports.discard(far)
                    far.abort()
        finally:
            self._transports.discard(near)
            near.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    # NB: the other side may still send data.
    if writer.can_write_eof() and not writer.transport.is_closing():
        writer.write_eof()


async def _flush(writer: asyncio.StreamWriter) -> None:
    """Close a connection once all data is sent, or once it is aborted."""
    writer.close()
    await writer.wait_closed()
