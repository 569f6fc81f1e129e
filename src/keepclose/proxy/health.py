"""Whether the proxy itself is well: /healthz for load balancers, /livez for the kubelet.

As kube-proxy: an address family is ill when a change has waited too long to be written. A node
that is about to go (unknown, being deleted, or tainted by the cluster autoscaler) fails /healthz,
so that load balancers leave it, but not /livez, so that nobody restarts a proxy that still serves.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import structlog
from aiohttp import web

from keepclose.kube.clock import Clock
from keepclose.model.workload import Node
from keepclose.proxy.listening import Listen, listen_here

TO_BE_DELETED_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
HEADERS: Final = {
    "Content-Type": "application/json",
    "X-Content-Type-Options": "nosniff",
    # Or else the library writes its own name and version.
    "Server": "keepclose",
}
RETRY_SECONDS: Final = 5.0
_NEVER: Final = "0001-01-01T00:00:00Z"

_log = structlog.get_logger(__name__)


class FamilyHealth(NamedTuple):
    """How one address family is."""

    last_updated: float
    healthy: bool


class Health(NamedTuple):
    """How the proxy is; `last_updated` is that of the latest family, None before the first."""

    now: float
    last_updated: float | None
    families: dict[str, FamilyHealth]

    @property
    def healthy(self) -> bool:
        """Whether all families are; so are none."""
        return all(one.healthy for one in self.families.values())


class HealthState:
    """What the sync loops of the families tell about themselves."""

    def __init__(self, *, clock: Clock, patience: float = 60.0) -> None:
        self._clock = clock
        self._patience = patience
        self._updated: dict[str, float] = {}
        self._pending: dict[str, float] = {}

    def note_update(self, family: str) -> None:
        """Take it that all changes of a family ("IPv4", "IPv6") are written, or that it starts."""
        self._pending.pop(family, None)
        self._updated[family] = self._clock.now()

    def note_queued(self, family: str) -> None:
        """Take it that a change of a family waits to be written."""
        # NB: measured by the clock that never jumps; only the oldest change counts.
        self._pending.setdefault(family, self._clock.monotonic())

    def health(self) -> Health:
        """Return how it is; a family counts once it was updated."""
        monotonic = self._clock.monotonic()
        families = {}
        for family, updated in sorted(self._updated.items()):
            pending = self._pending.get(family)
            late = pending is not None and monotonic - pending >= self._patience
            families[family] = FamilyHealth(updated, healthy=not late)
        latest = max(self._updated.values(), default=None)
        return Health(self._clock.now(), latest, families)


def is_eligible(node: Node | None) -> bool:
    """Return whether load balancers may send to a node."""
    if node is None or node.metadata.deletion_timestamp:
        return False
    return all(taint.key != TO_BE_DELETED_TAINT for taint in node.spec.taints)


def render_health(health: Health, *, ok: bool, eligible: bool | None) -> bytes:
    """Return the body of an answer; /livez says nothing about the node (None).

    When all is well, the time of the last update is now: older proxies wrote at intervals, and
    some readers still expect a recent time.
    """
    last = health.now if ok else health.last_updated
    body: dict[str, object] = {
        "lastUpdated": _NEVER if last is None else format_time(last),
        "currentTime": format_time(health.now),
    }
    if eligible is not None:
        body["nodeEligible"] = eligible
    body["healthy"] = health.healthy
    if health.families:
        body["status"] = {
            family: {"lastUpdated": format_time(one.last_updated), "healthy": one.healthy}
            for family, one in health.families.items()
        }
    return msgspec.json.encode(body)


def format_time(seconds: float) -> str:
    """Return a time as RFC 3339 with the digits that it has, in UTC."""
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    fraction = f".{moment.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _ignore(_page: str, _code: int) -> None:
    """Tell nobody."""


class HealthServer:
    """Serves /healthz and /livez."""

    def __init__(
        self,
        state: HealthState,
        *,
        node: Callable[[], Node | None],
        clock: Clock,
        count: Callable[[str, int], None] = _ignore,
        listen: Listen = listen_here,
    ) -> None:
        """Tell `count` the page ("healthz", "livez") and the code of every answer."""
        self._state = state
        self._node = node
        self._clock = clock
        self._count = count
        self._listen = listen
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; raises OSError where that cannot be."""
        app = web.Application()
        app.router.add_route("*", "/healthz", self._show_healthz)
        app.router.add_route("*", "/livez", self._show_livez)
        listener = self._listen(host, port)
        bound: int = listener.getsockname()[1]
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        return bound

    async def start_eventually(self, host: str, port: int) -> int:
        """Listen as soon as that is possible, trying every few seconds; return the port."""
        while True:
            try:
                return await self.start(host, port)
            except OSError as error:
                _log.error(
                    "health pages cannot be served yet", host=host, port=port, error=str(error)
                )
            await self._clock.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _show_healthz(self, request: web.Request) -> web.Response:
        del request
        health = self._state.health()
        eligible = is_eligible(self._node())
        ok = health.healthy and eligible
        return self._answer("healthz", ok, render_health(health, ok=ok, eligible=eligible))

    async def _show_livez(self, request: web.Request) -> web.Response:
        del request
        health = self._state.health()
        ok = health.healthy
        return self._answer("livez", ok, render_health(health, ok=ok, eligible=None))

    def _answer(self, page: str, ok: bool, body: bytes) -> web.Response:
        code = 200 if ok else 503
        self._count(page, code)
        return web.Response(status=code, body=body, headers=HEADERS)
