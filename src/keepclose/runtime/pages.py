"""The HTTP pages of a running program: metrics, health, and the reasons of its decisions.

The pages are read-only and have no authentication: they are meant for loopback or the cluster's own
network. Health has the paths of Kubernetes' own components. It is answered without a request to the
API server, so that a slow API server never makes a process look dead.

Because any client may connect, connections are limited in number, time and bytes. A connection is
new until its first answer. At the limit the oldest new one is dropped where more than half are new,
otherwise the one that has had no request for the longest time. A probe is answered long before it
is the oldest.
"""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket
from typing import Any, Final, NamedTuple, cast

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.system.listener import (
    ACCEPTS_EACH_TURN,
    Listener,
    open_listening_sockets,
    start_protocol,
)

Explain = Callable[[NamespacedName], JsonObject | None]
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_PAGE_CONNECTIONS: Final = 128
# A program has at most four sets of connections, beside its own files and connections.
_SETS_OF_CONNECTIONS: Final = 4
_OTHER_DESCRIPTORS: Final = 100
_MIN_CONNECTIONS: Final = 8
PAGE_HEAD_SECONDS: Final = 10.0
# API servers wait at most 30 s for a webhook.
PAGE_REQUEST_SECONDS: Final = 30.0
# Longer than API servers and Prometheus keep an idle connection, so that they close it first.
PAGE_IDLE_SECONDS: Final = 120.0
MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
# The interval between two log lines of one reason.
PAGE_LOG_SECONDS: Final = 60.0
_BAD_REQUEST: Final = "bad request"
_log = structlog.get_logger(__name__)


class ListenAddress(NamedTuple):
    """The address of an HTTP server; port 0 takes any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ListenError(OSError):
    """A server cannot listen at its address; the message gives address and reason."""

    def __init__(self, address: ListenAddress, error: OSError) -> None:
        # NB: the message of asyncio repeats the address, and gives the reason in brackets.
        is_of_the_kernel = error.errno is not None and error.errno > 0
        reason = os.strerror(error.errno or 0) if is_of_the_kernel else error.strerror or str(error)
        super().__init__(f"cannot listen at {address}: {reason}")
        self.errno = error.errno
        self.address = address

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def naming_address(host: str, port: int) -> Iterator[None]:
    """Turn an OSError of the block into a ListenError of this address."""
    try:
        yield
    except OSError as error:
        raise ListenError(ListenAddress(host, port), error) from error


class PageConnections:
    """The connections of a server, or of several that share a limit, and the bytes they hold."""

    def __init__(self, limit: int | None = None) -> None:
        """Take the limit of connections; by default it depends on that of open files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_PAGE_CONNECTIONS
        if soft != resource.RLIM_INFINITY:
            most = min(most, (soft - _OTHER_DESCRIPTORS) // _SETS_OF_CONNECTIONS)
        self.limit = limit or max(most, _MIN_CONNECTIONS)
        # NB: dictionaries keep an order: arrival, the latest request, the latest bytes.
        self._new: dict[_PageConnection, None] = {}
        self._known: dict[_PageConnection, None] = {}
        self._held: dict[_PageConnection, int] = {}
        self._held_bytes = 0
        self._rejected: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._known)

    def __contains__(self, connection: _PageConnection) -> bool:
        return connection in self._new or connection in self._known

    def add(self, connection: _PageConnection) -> None:
        """Add a new connection; another one is dropped where there are too many."""
        if len(self) >= self.limit:
            self.drop_one("connection limit")
        self._new[connection] = None

    def drop_one(self, reason: str) -> None:
        """Drop a connection, if there is any."""
        has_many_new = len(self._new) > self.limit // 2
        chosen = self._new if has_many_new or not self._known else self._known
        for connection in chosen:
            connection.drop(reason)
            return

    def keep(self, connection: _PageConnection, *, is_answered: bool) -> None:
        """Record a request or an answer; a request alone does not change a new connection."""
        if connection in self._known or (is_answered and connection in self._new):
            self._new.pop(connection, None)
            self._known.pop(connection, None)
            self._known[connection] = None

    def remove(self, connection: _PageConnection) -> None:
        """Remove a connection. Idempotent."""
        self.release(connection)
        self._new.pop(connection, None)
        self._known.pop(connection, None)

    def hold(self, connection: _PageConnection, size: int) -> None:
        """Count more bytes; beyond the limit, connections that rest longest are dropped."""
        if connection not in self:
            return
        self._held[connection] = self._held.pop(connection, 0) + size
        self._held_bytes += size
        while self._held_bytes > MAX_PAGE_BYTES and len(self._held) > 1:
            next(iter(self._held)).drop("held bytes")

    def release(self, connection: _PageConnection) -> None:
        """Forget the bytes of a connection. Idempotent."""
        self._held_bytes -= self._held.pop(connection, 0)

    def reject(self, reason: str, **details: object) -> bool:
        """Count what is not served, and log it at intervals; return whether it was logged."""
        self._rejected[reason] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(reason, -PAGE_LOG_SECONDS) < PAGE_LOG_SECONDS:
            return False
        self._logged_at[reason] = now
        number = self._rejected.pop(reason)
        details |= {"number": number, "open": len(self), "limit": self.limit}
        _log.warning("clients rejected", reason=reason, **details)
        return True


class _PageConnection(web.RequestHandler):
    """A connection whose request must be complete, and its answer read, within a time limit."""

    def __init__(self, server: web.Server, connections: PageConnections) -> None:
        # NB: a small compressed body could become a large one.
        options: dict[str, Any] = {"access_log": None, "auto_decompress": False}
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self.handshake: asyncio.Task[None] | None = None
        # NB: aiohttp forgets its transport before the last bytes are sent.
        self._wire: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = False
        self._is_answered = False

    def drop(self, reason: str) -> None:
        """Leave the table and close at once."""
        self._connections.remove(self)
        if reason:
            self._connections.reject(reason)
        if self._wire is not None:
            self._wire.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect the first request."""
        self._wire = cast("asyncio.Transport", transport)
        self._set_timer(PAGE_HEAD_SECONDS, "timeout")
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Leave the table."""
        self._connections.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a request, and set the time limit of its next part."""
        if self._is_idle and data:
            self._is_idle = False
            self._set_timer(PAGE_HEAD_SECONDS, "timeout")
        # NB: the rest of a body that is answered already is thrown away.
        if self._waiter is not None or not self._is_answered:
            self._connections.hold(self, len(data))
        before = self._request_count
        super().data_received(data)
        if self._request_count > before:
            self._is_answered = False
            self._set_timer(PAGE_REQUEST_SECONDS, "timeout")
            self._connections.keep(self, is_answered=False)

    def prolong(self) -> None:
        """Give the running request the whole time limit again, as if it came now."""
        if self._is_idle or self._is_answered:
            return
        # NB: the client has read a part of the answer, so the connection is not new any more.
        self._connections.keep(self, is_answered=True)
        self._set_timer(PAGE_REQUEST_SECONDS, "timeout")

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; its bytes count until the client has read them."""
        self._connections.release(self)
        self._is_answered = True
        if isinstance(resp, web.Response) and isinstance(resp.body, bytes):
            self._connections.hold(self, len(resp.body))
        if resp.status in (400, 413):
            self._connections.reject(_BAD_REQUEST, peer=request.remote, status=resp.status)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._connections.release(self)
            self._connections.keep(self, is_answered=True)
            self._is_idle = True
            self._set_timer(PAGE_IDLE_SECONDS, "")

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that is not HTTP, or whose page failed."""
        if isinstance(exc, web.RequestPayloadError):
            status, message = 400, "the body cannot be read"
        try:
            return super().handle_error(request, status, exc, message)
        finally:
            if exc is not None:
                # NB: its frames hold the request, in a cycle that a rare collection would free.
                exc.__traceback__ = None

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log failures of pages, at intervals; those of clients are counted as bad requests."""
        client_errors = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
        is_of_page = not isinstance(kw.get("exc_info"), client_errors)
        if is_of_page and self.transport is not None and self._connections.reject("failed page"):
            super().log_exception(*args, **kw)

    def _set_timer(self, seconds: float, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self in self._connections:
            self._timer = self._loop.call_later(seconds, self.drop, reason)


class PageServer:
    """Serves an application from `start` to `stop`."""

    def __init__(
        self,
        app: web.Application | web.Server,
        *,
        stop_within_s: float = 1.0,
        connections: PageConnections | None = None,
    ) -> None:
        """Take the application; requests that run when it stops get `stop_within_s` to end.

        Servers with the same `connections` share their limits.
        """
        self._runner: web.BaseRunner = (
            web.AppRunner(app, shutdown_timeout=stop_within_s)
            if isinstance(app, web.Application)
            else web.ServerRunner(app, shutdown_timeout=stop_within_s)
        )
        self._connections = PageConnections() if connections is None else connections
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._tls: ssl.SSLContext | None = None

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port; raise ListenError when the address is not available."""
        self._tls = tls
        with naming_address(host, port):
            sockets = await open_listening_sockets(host, port)
        return await self.start_on(*sockets)

    async def start_on(self, *listening: socket) -> int:
        """Serve on sockets that listen already, and return the port of the first."""
        await self._runner.setup()
        self._listener = Listener(listening, self._accept, self._free_descriptors)
        self._listener.start()
        return self._listener.port

    async def stop(self) -> None:
        """Stop listening, also if it was never started."""
        if self._listener is not None:
            self._listener.stop()
        for handshake in self._handshakes:
            handshake.cancel()
        await self._runner.cleanup()

    def _accept(self, accepted: socket, _address: str) -> None:
        server = self._runner.server
        if server is None:
            accepted.close()
            return
        connection = _PageConnection(server, self._connections)
        self._connections.add(connection)

        def end(error: BaseException | None) -> None:
            self._handshakes.discard(handshake)
            connection.handshake = None
            if error is not None:
                self._connections.remove(connection)

        handshake = start_protocol(
            accepted, connection, self._tls, handshake_seconds=PAGE_HEAD_SECONDS, on_end=end
        )
        connection.handshake = handshake
        self._handshakes.add(handshake)

    def _free_descriptors(self, _error: OSError) -> None:
        for _ in range(ACCEPTS_EACH_TURN):
            self._connections.drop_one("no descriptors")


def prolong_request(request: web.Request) -> None:
    """Let a page that answers without end go on for another `PAGE_REQUEST_SECONDS`.

    The page calls it after each part that the client has read, so that a client which stops reading
    is dropped like any other.
    """
    connection = request.protocol
    if isinstance(connection, _PageConnection):
        connection.prolong()


def add_health_pages(
    app: web.Application,
    *,
    is_ready: Callable[[], bool],
    find_problem: Callable[[], str] = str,
) -> None:
    """Serve /healthz, which is always ok, and /readyz, which is 503 until the caches are full.

    A problem of a program whose caches are full makes it 503 as well, with its text; "" is none.
    """

    async def show_health(request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok")

    async def show_readiness(request: web.Request) -> web.Response:
        del request
        if not is_ready():
            return web.Response(status=503, text="the caches are not complete yet")
        if problem := find_problem():
            return web.Response(status=503, text=problem)
        return web.Response(text="ok")

    app.router.add_get("/healthz", show_health)
    app.router.add_get("/readyz", show_readiness)


def controller_pages(
    *, metrics: Callable[[], bytes], is_ready: Callable[[], bool], explain: Explain
) -> PageServer:
    """Return the pages of one controller: metrics, health, and the plan of each Service."""

    async def show_metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=metrics(), headers={"Content-Type": METRICS_TYPE})

    async def show_plan(request: web.Request) -> web.Response:
        key = NamespacedName(request.match_info["namespace"], request.match_info["name"])
        plan = explain(key)
        if plan is None:
            text = f"Service {key} is not known, or has no selector"
            return web.Response(status=404, text=text)
        body = msgspec.json.format(msgspec.json.encode(plan), indent=2)
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/metrics", show_metrics)
    add_health_pages(app, is_ready=is_ready)
    app.router.add_get("/debug/services/{namespace}/{name}", show_plan)
    return PageServer(app)
