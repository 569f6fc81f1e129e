"""Whether the proxy itself is well: /healthz for load balancers, /livez for the kubelet.

As kube-proxy: an address family is ill when a change has waited too long to be written. A node
that is about to go (unknown, being deleted, or tainted by the cluster autoscaler) fails /healthz,
so that load balancers leave it, but not /livez, so that nobody restarts a proxy that still serves.
"""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog
from aiohttp import web

from keepclose.kube.clock import Clock
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node

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
FAILED_REASON: Final = "FailedToStartServiceHealthcheck"
FAILED_ACTION: Final = "Listen"
WEIGHT_HEADER: Final = "X-Load-Balancing-Endpoint-Weight"


class Listen(Protocol):
    """Makes a listening socket."""

    def __call__(self, host: str, port: int, /) -> socket.socket:
        """Return a TCP socket that listens; port 0 takes any free one. Raises OSError."""
        ...


def listen_here(host: str, port: int) -> socket.socket:
    """Return a socket that listens in the namespace of the calling thread; raises OSError.

    The host is an address. One of IPv6 takes nothing of IPv4, so that each family has its own.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


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


def render_check(service: NamespacedName, endpoints: int, *, proxy_healthy: bool) -> str:
    """Return the body of an answer, to the byte what kube-proxy answers."""
    return (
        "{\n"
        '\t"service": {\n'
        f'\t\t"namespace": {json.dumps(service.namespace)},\n'
        f'\t\t"name": {json.dumps(service.name)}\n'
        "\t},\n"
        f'\t"localEndpoints": {endpoints},\n'
        f'\t"serviceProxyHealthy": {json.dumps(proxy_healthy)}\n'
        "}"
    )


class _Check:
    """The listeners of one Service."""

    def __init__(self, port: int, addresses: tuple[str, ...], runner: web.ServerRunner) -> None:
        self.port = port
        self.addresses = addresses
        self.runner = runner
        self.endpoints = 0


def _healthchecks_ignore(_service: NamespacedName, _message: str) -> None:
    """Tell nobody."""


class HealthChecks:
    """The health-check node ports of one family."""

    def __init__(
        self,
        *,
        node: str,
        addresses: tuple[str, ...],
        is_proxy_healthy: Callable[[], bool],
        on_failure: Callable[[NamespacedName, str], None] = _healthchecks_ignore,
        listen: Listen = listen_here,
    ) -> None:
        """Listen on every address, such as 0.0.0.0; tell `on_failure` what to put in an event."""
        self._node = node
        self._addresses = addresses
        self._is_proxy_healthy = is_proxy_healthy
        self._on_failure = on_failure
        self._listen = listen
        self._checks: dict[NamespacedName, _Check] = {}
        self._told: dict[NamespacedName, str] = {}

    def move(self, addresses: tuple[str, ...]) -> None:
        """Listen on these addresses from the next sync on; on none, that is told as a failure."""
        self._addresses = addresses

    @property
    def ports(self) -> dict[NamespacedName, int]:
        """The ports that are open."""
        return {service: check.port for service, check in self._checks.items()}

    async def sync(
        self, ports: Mapping[NamespacedName, int], endpoints: Mapping[NamespacedName, int]
    ) -> None:
        """Listen for exactly these Services, and tell these numbers of ready local endpoints.

        A Service without a number has none.
        """
        # Ports that another Service gave up must be free before they are opened.
        for service, check in list(self._checks.items()):
            if ports.get(service) != check.port or check.addresses != self._addresses:
                _log.info("health check closed", service=str(service), port=check.port)
                del self._checks[service]
                await check.runner.cleanup()
        self._told = {service: told for service, told in self._told.items() if service in ports}
        for service, port in ports.items():
            if service not in self._checks:
                await self._open(service, port)
        for service, check in self._checks.items():
            check.endpoints = endpoints.get(service, 0)

    async def close(self) -> None:
        """Listen no more."""
        await self.sync({}, {})

    async def _open(self, service: NamespacedName, port: int) -> None:
        async def answer(_request: web.BaseRequest) -> web.StreamResponse:
            return self._answer(service)

        runner = web.ServerRunner(
            web.Server(answer, access_log=None), handle_signals=False, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            if not self._addresses:
                raise OSError("the node has none of the addresses of node ports")  # noqa: TRY301
            for address in self._addresses:
                await web.SockSite(runner, self._listen(address, port)).start()
        except (OSError, OverflowError) as error:
            # NB: a number that is no port is told in another way than a port that is taken.
            await runner.cleanup()
            self._tell_failure(service, port, str(error))
            return
        _log.info("health check opened", service=str(service), port=port)
        self._told.pop(service, None)
        self._checks[service] = _Check(port, self._addresses, runner)

    def _tell_failure(self, service: NamespacedName, port: int, error: str) -> None:
        message = f'node {self._node} failed to start healthcheck "{service}" on port {port}: '
        message += error
        if self._told.get(service) != message:
            self._told[service] = message
            _log.error(
                "health check cannot be opened", service=str(service), port=port, error=error
            )
            self._on_failure(service, message)

    def _answer(self, service: NamespacedName) -> web.Response:
        check = self._checks.get(service)
        count = check.endpoints if check else 0
        healthy = self._is_proxy_healthy()
        return web.Response(
            status=200 if count and healthy else 503,
            # NB: a text would get a charset into its content type, which kube-proxy does not send.
            body=render_check(service, count, proxy_healthy=healthy).encode(),
            headers={**HEADERS, WEIGHT_HEADER: str(count)},
        )
