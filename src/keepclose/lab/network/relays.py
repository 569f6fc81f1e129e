"""Relays: the way from inside a namespace to a server of this process's own world.

A node reaches the API server at the server's own local address, through a relay out of its world
that can be cut and opened again. Each side hears all that the other said before it ended, however
slowly it reads; only a cut loses anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

_T = TypeVar("_T")
MOST_HELD: Final = 16
"""More than a proxy has; whoever gives up and comes again leaves the older ones behind."""


class _Inside(Protocol):
    """A namespace in which work can be done."""

    def do(self, work: Callable[[], _T]) -> _T:
        """Return what the work returns, done inside."""
        ...


class Relay:
    """Carries bytes from a listening socket to a local port of this process's world."""

    def __init__(self, namespace: _Inside, port: int) -> None:
        self._namespace, self._port = namespace, port
        self._server: asyncio.Server | None = None
        self._is_open = False
        self._ends: set[asyncio.WriteTransport] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._is_holding = False
        self._held: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    @property
    def connections(self) -> int:
        """How many connections it carries now."""
        return len(self._carrying)

    async def open(self) -> None:
        """Listen at the same port inside the namespace; nothing changes for one that is open."""
        self._is_holding = False
        while self._held:
            self._begin(*self._held.popleft())
        if self._server is None:
            address = ("127.0.0.1", self._port)
            listener = self._namespace.do(lambda: socket.create_server(address, backlog=128))
            self._is_open = True
            # NB: a server that serves at once is out of reach while its maker is cancelled.
            self._server = await asyncio.start_server(
                self._take, sock=listener, start_serving=False
            )
            await self._server.start_serving()

    async def hold(self) -> None:
        """Break all connections and leave new ones without an answer until it is opened again."""
        self._is_holding = True
        await self._break()

    async def cut(self) -> None:
        """Break all connections and take no more."""
        self._is_open = self._is_holding = False
        if self._server is not None:
            self._server.close()
        self._server = None
        while self._held:
            self._held.pop()[1].transport.abort()
        await self._break()

    async def _break(self) -> None:
        for end in tuple(self._ends):
            end.abort()
        if self._carrying:
            await asyncio.wait(self._carrying)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # NB: one that was accepted before the cut may come here after it.
        if not self._is_open:
            writer.transport.abort()
        elif self._is_holding:
            self._held.append((reader, writer))
            if len(self._held) > MOST_HELD:
                self._held.popleft()[1].transport.abort()
        else:
            self._begin(reader, writer)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer.transport)
        task = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = writer.transport
        try:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
                far = far_writer.transport
                self._ends.add(far)
                try:
                    # NB: it may have been cut while the far end was sought.
                    if not near.is_closing():
                        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
                        await asyncio.gather(_flush(far_writer), _flush(writer))
                finally:
                    self._ends.discard(far)
                    far.abort()
        finally:
            self._ends.discard(near)
            near.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    # NB: the other side may still have much to say.
    if writer.can_write_eof() and not writer.transport.is_closing():
        writer.write_eof()


async def _flush(writer: asyncio.StreamWriter) -> None:
    """Close one end once all is sent, or once it is aborted."""
    writer.close()
    await writer.wait_closed()
