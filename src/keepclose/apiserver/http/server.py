"""The HTTPS server: listens, hands requests to the application, and ends without losing any.

All of this runs on the event loop. Connections are bounded in number and each in what it may
hold; those whose client takes too long are closed by one sweep over all connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import Final, cast

import structlog

from keepclose.apiserver.http.connection import Connection
from keepclose.apiserver.http.connection_table import (
    NO_DESCRIPTORS,
    ConnectionTable,
    Transfers,
)
from keepclose.apiserver.serving.messages import ConnectionLimits, Knows, RequestHandler
from keepclose.system.listener import ACCEPTS_EACH_TURN, Listener, begin, open_listening_sockets

_log = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 5.0
SERVER_STOP_SECONDS: Final = 5.0
# Taking leave by TLS needs an answer, which idle clients do not give.
LEAVE_SECONDS: Final = 0.1
# A handshake takes two messages of the client, however slow its network is.
HANDSHAKE_SECONDS: Final = 10.0


class HttpsServer:
    """A listening socket and the connections that came of it."""

    def __init__(
        self,
        handler: RequestHandler,
        *,
        context: ssl.SSLContext | None,
        knows: Knows | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Prepare to serve; without a context over plain HTTP.

        Where `knows` is given, clients whom it does not know cannot send bodies.
        """
        self.handler = handler
        self.knows = knows
        self.table = ConnectionTable(limits or ConnectionLimits(), time.monotonic)
        self.transfers = Transfers(time.monotonic)
        self._context = context
        self._listener: Listener | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        sockets = await open_listening_sockets(host, port)
        self._listener = Listener(sockets, self._accept, self._make_room)
        self._listener.start()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return self._listener.port

    async def stop(self) -> None:
        """Stop listening and end every connection; streams end cleanly."""
        if self._listener is not None:
            self._listener.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._connections:
            ending = [asyncio.ensure_future(one.finish()) for one in self._connections]
            await asyncio.wait(ending, timeout=SERVER_STOP_SECONDS)
        await self._cut_the_rest()

    @property
    def _connections(self) -> list[Connection]:
        return [cast("Connection", connection) for connection in self.table]

    async def _cut_the_rest(self) -> None:
        """Return when all connections are closed; clients that take no leave get none."""
        if self._connections:
            await asyncio.sleep(LEAVE_SECONDS)
        for connection in self._connections:
            connection.cut()
        # NB: sockets are closed at the next turn of the loop.
        await asyncio.sleep(0)

    def sweep(self) -> int:
        """Give up connections whose client takes too long, and return how many."""
        now = asyncio.get_running_loop().time()
        return sum(connection.check(now) for connection in self._connections)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    # What the listener calls.

    def _accept(self, accepted: socket.socket, address: str) -> None:
        if not self.table.make_room(address):
            accepted.close()
            return
        connection = Connection(self, address)
        self.table.add(connection)
        has_begun = False

        async def shake_hands() -> bool:
            nonlocal has_begun
            has_begun = True
            return await begin(
                accepted, connection, self._context, handshake_seconds=HANDSHAKE_SECONDS
            )

        def finish(task: asyncio.Task[bool]) -> None:
            connection.handshake = None
            if not has_begun:
                accepted.close()
            if task.cancelled() or task.exception() is not None or not task.result():
                self.table.remove(connection)
            if not task.cancelled() and task.exception() is not None:
                _log.error("a connection could not begin", error=str(task.exception()))

        connection.handshake = asyncio.get_running_loop().create_task(shake_hands())
        connection.handshake.add_done_callback(finish)

    def _make_room(self, error: OSError) -> None:
        del error
        self.table.count(NO_DESCRIPTORS)
        for _ in range(ACCEPTS_EACH_TURN):
            if not self.table.drop_idle(NO_DESCRIPTORS):
                return
