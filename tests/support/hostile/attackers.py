"""A hostile client of an API server: raw requests over TLS connections of its own.

An attacker goes on whatever the server does: answers of any status are read, refused connections
are opened again. It speaks HTTP by hand, because what it sends need not be HTTP at all.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

NODE: Final = "node-hostile"
"""The node whose identity attackers have, as the server names its token."""
_BACK_OFF_SECONDS: Final = 0.05
_TIMEOUT_SECONDS: Final = 60.0


class Target(NamedTuple):
    """Where the attacked server is and who the attacker may claim to be."""

    port: int
    directory: Path

    def token(self, name: str) -> str:
        """Return the token of a role, or of a node as node-<name>."""
        return (self.directory / "tokens" / name).read_text().strip()

    def context(self) -> ssl.SSLContext:
        """Return a context that trusts the CA of the server."""
        return ssl.create_default_context(cafile=str(self.directory / "pki" / "ca.crt"))


class Reply(NamedTuple):
    """Status and body of an answer; 0 when the server hung up."""

    status: int
    body: bytes = b""


class Wire:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hold both directions."""
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> Reply:
        """Return the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        if status == 100:
            return await self.reply()
        lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            return Reply(status, await self._chunks())
        return Reply(status, await self.reader.readexactly(int(headers[b"content-length"])))

    async def _chunks(self) -> bytes:
        chunks: list[bytes] = []
        while size := int(await self.reader.readline(), 16):
            chunks.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(chunks)

    def close(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


class Attacker:
    """Sends what an attack asks for, as the node unless another name is given."""

    def __init__(self, target: Target) -> None:
        """Begin without a connection."""
        self.target = target
        self.rounds = 0
        # How often each status was answered; 0 stands for connections that were cut.
        self.statuses: dict[int, int] = {}
        self._context = target.context()
        self._tokens: dict[str, str] = {}
        self._kept: Wire | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media_type: str = "application/json",
        accept: str = "application/json",
        who: str = NODE,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the bytes of a request; `who` is a token's name, "" sends none."""
        data = body if isinstance(body, bytes) else b""
        if body is not None and not data:
            data = msgspec.json.encode(body)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Accept: {accept}"]
        if who:
            if who not in self._tokens:
                self._tokens[who] = self.target.token(who)
            lines.append(f"Authorization: Bearer {self._tokens[who]}")
        if body is not None:
            lines += [f"Content-Type: {media_type}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return "\r\n".join([*lines, "", ""]).encode() + data

    async def connect(self) -> Wire:
        """Return a new connection."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.target.port, ssl=self._context, limit=1 << 22
        )
        return Wire(reader, writer)

    async def exchange(self, *requests: bytes) -> list[Reply]:
        """Send requests one after the other over a connection that is kept; return the answers."""
        replies: list[Reply] = []
        for request in requests:
            reply = Reply(0)
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    if self._kept is None:
                        self._kept = await self.connect()
                    await self._kept.send(request)
                    reply = await self._kept.reply()
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError):
                self._drop()
                await asyncio.sleep(_BACK_OFF_SECONDS)
            self.statuses[reply.status] = self.statuses.get(reply.status, 0) + 1
            if reply.status in (400, 408, 413, 431):
                # The server may close after these.
                self._drop()
            if reply.status == 429:
                await asyncio.sleep(_BACK_OFF_SECONDS)
            replies.append(reply)
        return replies

    async def close(self) -> None:
        """Cut the kept connection."""
        self._drop()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
