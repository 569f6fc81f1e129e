"""The pages that say whether a process lives and whether it can do its work.

Every server of the controller has them, at the paths that Kubernetes' own components use. They
answer without looking at the cluster, so that a slow API server never makes a process look dead.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web


def add_health_pages(app: web.Application, *, is_ready: Callable[[], bool]) -> None:
    """Serve /healthz, which is always well, and /readyz, which refuses until caches are full."""

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
