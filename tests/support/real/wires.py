"""A wire between a client and a server that fails in the ways of real ones."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Self

import yaml


class Wire:
    """Carries bytes from a local port to a server's, until told to fail. Use it as a context."""

    def __init__(self, target: int, *, listener: socket.socket | None = None) -> None:
        """Take the server's port, and a socket to listen at, which may be of another namespace."""
        self._target = target
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.WriteTransport] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._left: int | None = None
        self.port = 0
        self.cuts = 0
        """Connections that were cut."""

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def accept(self) -> None:
        """Listen, at the same port as before."""
        if self._listener is not None:
            self._server = await asyncio.start_server(self._carry, sock=self._listener)
        else:
            self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Cut everything and do not listen any more."""
        if self._server is not None:
            self._server.close()
        self.cut()
        self._server = None
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Break all connections without a farewell."""
        self.cuts += len(self._transports) // 2
        for transport in self._transports:
            transport.abort()
        self._transports.clear()
        self._left = None
        self._flowing.set()

    def stall(self) -> None:
        """Let nothing through from the server, in silence, until the next cut."""
        self._flowing.clear()

    def cut_after(self, size: int) -> None:
        """Let so many more bytes of the server through, then cut."""
        self._left = size

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer.transport, far_writer.transport}
        self._transports |= ends
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, is_answer=False),
                self._pump(far_reader, writer, is_answer=True),
            )
        except OSError:
            pass
        finally:
            self._transports -= ends
            for transport in ends:
                transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            if is_answer:
                await self._flowing.wait()
            if is_answer and self._left is not None:
                data, self._left = data[: self._left], self._left - len(data)
                if self._left <= 0:
                    writer.write(data)
                    with contextlib.suppress(OSError):
                        await writer.drain()
                    # The last bytes must be out before the connection goes.
                    await asyncio.sleep(0.05)
                    self.cut()
                    return
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


def rewired(kubeconfig: Path, copy: Path, port: int) -> Path:
    """Write a copy of a kubeconfig that goes through another local port, and return it."""
    content = yaml.safe_load(kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    copy.write_text(yaml.safe_dump(content))
    return copy
