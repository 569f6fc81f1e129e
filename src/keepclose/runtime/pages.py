"""The HTTP pages of a running program: metrics, health, and the reasons of its decisions.

The pages are read-only and have no authentication: they are meant for loopback or the cluster's own
network. Health has the paths of Kubernetes' own components. It is answered without a request to the
API server, so that a slow API server never makes a process look dead.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName

Explain = Callable[[NamespacedName], JsonObject | None]
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


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


class PageServer:
    """Serves an application from `start` to `stop`."""

    def __init__(self, app: web.Application, *, stop_within_s: float = 1.0) -> None:
        """Take the application; requests that run when it stops get `stop_within_s` to end."""
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=stop_within_s
        )

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port; raise ListenError when the address is not available."""
        await self._runner.setup()
        with naming_address(host, port):
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def start_on(self, listener: socket) -> int:
        """Serve on a socket that listens already, and return its port."""
        bound: int = listener.getsockname()[1]
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        return bound

    async def stop(self) -> None:
        """Stop listening, also if it was never started."""
        await self._runner.cleanup()


def add_health_pages(app: web.Application, *, is_ready: Callable[[], bool]) -> None:
    """Serve /healthz, which is always ok, and /readyz, which is 503 until the caches are full."""

    async def show_health(request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok")

    async def show_readiness(request: web.Request) -> web.Response:
        del request
        if is_ready():
            return web.Response(text="ok")
        return web.Response(status=503, text="the caches are not complete yet")

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
