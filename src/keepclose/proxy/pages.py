"""What a running proxy shows over HTTP: metrics, its mode, and what it does with each Service.

The paths are kube-proxy's; /debug/services.json is ours. Reading only, and meant for loopback:
there is nothing to log in to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from keepclose.proxy.listening import Listen, listen_here
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.status import ProxyStatus

_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_MODE: Final = "nftables"


class Pages:
    """The pages of one proxy."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        metrics: Callable[[], bytes],
        refresh: Callable[[], Awaitable[None]],
        status: Callable[[str, str], ProxyStatus],
        listen: Listen = listen_here,
    ) -> None:
        """Take who makes the pages; `refresh` reads what is counted in the kernel before."""
        self._settings = settings
        self._metrics = metrics
        self._refresh = refresh
        self._status = status
        self._listen = listen
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; raises OSError where that cannot be."""
        listener = self._listen(host, port)
        bound: int = listener.getsockname()[1]
        app = web.Application()
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/healthz", self._show_health)
        app.router.add_get("/proxyMode", self._show_mode)
        app.router.add_get("/configz", self._show_settings)
        app.router.add_get("/debug/services.json", self._show_services)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        return bound

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        del request
        await self._refresh()
        return web.Response(body=self._metrics(), headers={"Content-Type": _METRICS})

    async def _show_health(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok")

    async def _show_mode(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text=_MODE)

    async def _show_settings(self, request: web.Request) -> web.Response:
        del request
        return _json(self._settings)

    async def _show_services(self, request: web.Request) -> web.Response:
        await self._refresh()
        query = request.query
        return _json(self._status(query.get("namespace", ""), query.get("service", "")))


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
