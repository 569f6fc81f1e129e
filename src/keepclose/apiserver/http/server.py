"""The HTTPS server: it listens, gives requests to the application, and stops gracefully.

It runs on the event loop. The number of connections and the bytes of each are bounded. One periodic
sweep over all connections closes those whose clients have exceeded a timeout.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, cast

import structlog

from keepclose.apiserver.http.connection import Connection
from keepclose.apiserver.http.connection_table import (
    NO_DESCRIPTORS,
    ConnectionTable,
    ParsingTurns,
    Transfers,
)
from keepclose.apiserver.serving.http_messages import (
    ConnectionLimits,
    HasCredentials,
    RequestHandler,
)
from keepclose.system.listener import (
    ACCEPTS_EACH_TURN,
    Listener,
    open_listening_sockets,
    start_protocol,
)

_log = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 5.0
SERVER_STOP_SECONDS: Final = 5.0
# Idle clients do not answer TLS's close_notify, so the server waits for it only this long.
TLS_CLOSE_SECONDS: Final = 0.1
# A handshake takes only two messages of the client, also on a slow network.
HANDSHAKE_SECONDS: Final = 10.0


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class HttpsServer:
    """A listening socket and its connections."""

    def __init__(
        self,
        handler: RequestHandler,
        *,
        context: ssl.SSLContext | None,
        has_credentials: HasCredentials | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Prepare to serve over TLS, or without a context over plain HTTP.

        With `has_credentials`, only clients with valid credentials can send bodies.
        """
        self.handler = handler
        self.has_credentials = has_credentials
        self.table = ConnectionTable(limits or ConnectionLimits(), time.monotonic)
        self.transfers = Transfers(time.monotonic)
        self.turns = ParsingTurns(_call_soon)
        self._context = context
        self._listener: Listener | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        sockets = await open_listening_sockets(host, port)
        self._listener = Listener(sockets, self._accept, self._free_descriptors)
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
            ending = [
                asyncio.ensure_future(connection.close_gracefully())
                for connection in self._connections
            ]
            await asyncio.wait(ending, timeout=SERVER_STOP_SECONDS)
        await self._abort_remaining()

    @property
    def _connections(self) -> list[Connection]:
        return [cast("Connection", connection) for connection in self.table]

    async def _abort_remaining(self) -> None:
        """Close the remaining connections, whose clients have not answered close_notify."""
        if self._connections:
            await asyncio.sleep(TLS_CLOSE_SECONDS)
        for connection in self._connections:
            connection.abort()
        # NB: asyncio closes sockets in the next turn of the event loop.
        await asyncio.sleep(0)

    def sweep(self) -> int:
        """Close connections whose clients have exceeded a timeout, and return how many."""
        now = asyncio.get_running_loop().time()
        return sum(connection.check_timeouts(now) for connection in self._connections)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    # Called by the listener.

    def _accept(self, accepted: socket.socket, address: str) -> None:
        if not self.table.make_room(address):
            accepted.close()
            return
        connection = Connection(self, address)
        self.table.add(connection)

        def end(error: BaseException | None) -> None:
            connection.handshake = None
            if error is not None:
                connection.on_failed_handshake()
            if not isinstance(error, OSError | asyncio.CancelledError | None):
                _log.error("connection failed to start", error=str(error))

        connection.handshake = start_protocol(
            accepted, connection, self._context, handshake_seconds=HANDSHAKE_SECONDS, on_end=end
        )

    def _free_descriptors(self, error: OSError) -> None:
        del error
        self.table.count(NO_DESCRIPTORS)
        for _ in range(ACCEPTS_EACH_TURN):
            if not self.table.drop_idle(NO_DESCRIPTORS):
                return
