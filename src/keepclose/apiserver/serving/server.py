"""The HTTPS server: listens, hands requests to the application, and ends without losing any.

The event loop is the only thread. Connections are bounded in number and each in what it may
hold; requests that never become complete are given up by one sweep over all connections.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from keepclose.apiserver.serving.connections import Connection
from keepclose.apiserver.serving.messages import Handler

SWEEP_SECONDS: Final = 5.0
STOP_SECONDS: Final = 5.0
# Taking leave by TLS needs an answer, which idle clients do not give.
LEAVE_SECONDS: Final = 0.1


class Server:
    """A listening socket and the connections that came of it."""

    def __init__(self, handler: Handler, *, context: ssl.SSLContext | None) -> None:
        """Prepare to serve; without a context over plain HTTP."""
        self._handler = handler
        self._context = context
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handler, self._connections),
            host,
            port,
            ssl=self._context,
            backlog=1024,
            # NB: a server that serves at once is out of reach while its maker is cancelled.
            start_serving=False,
        )
        try:
            await self._server.start_serving()
        except BaseException:
            self._server.close()
            raise
        self._sweeper = loop.create_task(self._sweep())
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and end every connection; streams end cleanly."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._connections:
            ending = [asyncio.ensure_future(one.finish()) for one in tuple(self._connections)]
            await asyncio.wait(ending, timeout=STOP_SECONDS)
        await self._cut_the_rest()

    async def _cut_the_rest(self) -> None:
        """Return when all connections are closed; clients that take no leave get none."""
        if self._connections:
            await asyncio.sleep(LEAVE_SECONDS)
        for one in tuple(self._connections):
            one.cut()
        # NB: sockets are closed at the next turn of the loop.
        await asyncio.sleep(0)

    def sweep(self) -> int:
        """Give up requests that are overdue, and return how many."""
        now = asyncio.get_running_loop().time()
        overdue = [
            one for one in self._connections if one.deadline is not None and one.deadline < now
        ]
        for connection in overdue:
            connection.give_up()
        return len(overdue)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()
