"""The HTTP pages of a running controller: metrics, health, and the reasons of its decisions.

The pages are read-only and have no authentication: they are meant for loopback or the cluster's own
network. Health has the paths of Kubernetes' own components. It is answered without a request to the
API server, so that a slow API server never makes a process look dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from keepclose.model.meta import NamespacedName
from keepclose.slices.service_planner import ServicePlan

Explain = Callable[[NamespacedName], ServicePlan | None]
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


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


class ListenAddress(NamedTuple):
    """The address of the pages of a controller; port 0 takes any free port."""

    host: str
    port: int


class Pages:
    """Serves the pages of one controller."""

    def __init__(
        self,
        *,
        metrics: Callable[[], bytes],
        is_ready: Callable[[], bool],
        explain: Explain,
    ) -> None:
        self._metrics = metrics
        self._is_ready = is_ready
        self._explain = explain
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; raise OSError when the address is not available."""
        app = web.Application()
        app.router.add_get("/metrics", self._show_metrics)
        add_health_pages(app, is_ready=self._is_ready)
        app.router.add_get("/debug/services/{namespace}/{name}", self._show_decision)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(body=self._metrics(), headers={"Content-Type": _METRICS})

    async def _show_decision(self, request: web.Request) -> web.Response:
        key = NamespacedName(request.match_info["namespace"], request.match_info["name"])
        plan = self._explain(key)
        if plan is None:
            text = f"Service {key} is not known, or has no selector"
            return web.Response(status=404, text=text)
        body = msgspec.json.format(msgspec.json.encode(describe_plan(plan)), indent=2)
        return web.Response(body=body, content_type="application/json")


def describe_plan(plan: ServicePlan) -> dict[str, Any]:
    """Return a plan and its reasons as plain values."""
    return {
        "strategy": {"name": plan.strategy.label, "source": plan.strategy.source},
        "reasons": [
            {"code": reason.code.value, "message": reason.message, "fix": reason.fix}
            for reason in (*plan.strategy.reasons, *plan.reasons)
        ],
        "conditions": msgspec.to_builtins(plan.conditions),
        "zones": plan.totals,
        "writes": {
            address_type: {
                "create": len(slice_plan.create),
                "update": len(slice_plan.update),
                "delete": len(slice_plan.delete),
                "unchanged": len(slice_plan.unchanged),
            }
            for address_type, slice_plan in plan.plans.items()
        },
        "endpoints": sum(len(endpoint_slice.endpoints) for endpoint_slice in plan.slices),
        "errors": list(plan.errors),
    }
