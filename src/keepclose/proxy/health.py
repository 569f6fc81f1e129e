"""Health of the proxy (/healthz, /livez) and health-check node ports of Services.

As in kube-proxy, an address family is unhealthy if a change has waited too long to be written. A
node that is about to be removed (unknown, being deleted, or tainted by the cluster autoscaler)
fails /healthz, so that load balancers stop using it, but not /livez, so that the kubelet does not
restart a proxy that still works.

Health-check node ports report to load balancers whether this node has endpoints of a Service: one
listener for each Service and address at which node ports answer. A port is closed when its Service
is deleted or gets another port, and opened when it is new. A port that cannot be opened is reported
once and retried at every sync; it never affects another Service. Sockets open through one function,
`Listen`, so that a test can open them in the network namespace of a node.
"""

from __future__ import annotations

import contextlib
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
from keepclose.runtime.pages import PageConnections, PageServer, naming_address

TO_BE_DELETED_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
HEADERS: Final = {
    "Content-Type": "application/json",
    "X-Content-Type-Options": "nosniff",
    # Otherwise the library sends its own name and version.
    "Server": "keepclose",
}
WEIGHT_HEADER: Final = "X-Load-Balancing-Endpoint-Weight"
FAILED_REASON: Final = "FailedToStartServiceHealthcheck"
RETRY_SECONDS: Final = 5.0
_NEVER: Final = "0001-01-01T00:00:00Z"

_log = structlog.get_logger(__name__)


class Listen(Protocol):
    """Opens a listening socket.

    The socket stays in the network namespace in which it was opened.
    """

    def __call__(self, host: str, port: int, /) -> socket.socket:
        """Return a TCP socket that listens; port 0 takes any free port. Raises OSError."""
        ...


def listen_here(host: str, port: int) -> socket.socket:
    """Return a socket that listens in the namespace of the calling thread; raises OSError.

    The host is an address. An IPv6 socket accepts no IPv4 connections, so that each family has its
    own socket.
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


def _ignore_response(_page: str, _code: int) -> None:
    """Do nothing."""


def _ignore_failure(_service: NamespacedName, _message: str) -> None:
    """Do nothing."""


class FamilyHealth(NamedTuple):
    """The health of one address family."""

    last_updated: float
    healthy: bool


class Health(NamedTuple):
    """The health of the proxy; `last_updated` is the latest update of a family, None for none."""

    now: float
    last_updated: float | None
    families: dict[str, FamilyHealth]

    @property
    def healthy(self) -> bool:
        """Whether all families are healthy; true without families."""
        return all(family.healthy for family in self.families.values())


class HealthState:
    """The state of the sync loops of the families."""

    def __init__(self, *, clock: Clock, patience: float = 60.0) -> None:
        self._clock = clock
        self._patience = patience
        self._updated: dict[str, float] = {}
        self._pending: dict[str, float] = {}

    def record_update(self, family: str) -> None:
        """Record that all changes of a family ("IPv4", "IPv6") are written, or that it starts."""
        self._pending.pop(family, None)
        self._updated[family] = self._clock.now()

    def record_queued(self, family: str) -> None:
        """Record that a change of a family waits to be written."""
        # NB: the monotonic clock never jumps; only the oldest change counts.
        self._pending.setdefault(family, self._clock.monotonic())

    def health(self) -> Health:
        """Return the current health; a family counts after its first update."""
        monotonic = self._clock.monotonic()
        families = {}
        for family, updated in sorted(self._updated.items()):
            pending = self._pending.get(family)
            late = pending is not None and monotonic - pending >= self._patience
            families[family] = FamilyHealth(updated, healthy=not late)
        latest = max(self._updated.values(), default=None)
        return Health(self._clock.now(), latest, families)


def is_eligible(node: Node | None) -> bool:
    """Return whether load balancers may send traffic to a node."""
    if node is None or node.metadata.deletion_timestamp:
        return False
    return all(taint.key != TO_BE_DELETED_TAINT for taint in node.spec.taints)


def render_health(health: Health, *, ok: bool, eligible: bool | None) -> bytes:
    """Return the body of a response; /livez has no field for the node (None).

    If all is healthy, the time of the last update is now: older proxies synced periodically, and
    some clients still expect a recent time.
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
            name: {"lastUpdated": format_time(family.last_updated), "healthy": family.healthy}
            for name, family in health.families.items()
        }
    return msgspec.json.encode(body)


def format_time(seconds: float) -> str:
    """Return a time as RFC 3339 in UTC, without trailing zeros."""
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    fraction = f".{moment.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


class HealthServer:
    """Serves /healthz and /livez."""

    def __init__(
        self,
        state: HealthState,
        *,
        node: Callable[[], Node | None],
        clock: Clock,
        count: Callable[[str, int], None] = _ignore_response,
        listen: Listen = listen_here,
    ) -> None:
        """Take `count`, which gets the page ("healthz", "livez") and code of every response."""
        self._state = state
        self._node = node
        self._clock = clock
        self._count = count
        self._listen = listen
        app = web.Application()
        app.router.add_route("*", "/healthz", self._show_healthz)
        app.router.add_route("*", "/livez", self._show_livez)
        self._server = PageServer(app)

    async def start(self, host: str, port: int) -> int:
        """Start to listen and return the port; raises ListenError."""
        with naming_address(host, port):
            listener = self._listen(host, port)
        return await self._server.start_on(listener)

    async def start_eventually(self, host: str, port: int) -> int:
        """Retry every few seconds until the port is free; return the port."""
        while True:
            try:
                return await self.start(host, port)
            except OSError as error:
                _log.error("health pages not served yet", host=host, port=port, error=str(error))
            await self._clock.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    async def _show_healthz(self, request: web.Request) -> web.Response:
        del request
        health = self._state.health()
        eligible = is_eligible(self._node())
        ok = health.healthy and eligible
        return self._respond("healthz", ok, render_health(health, ok=ok, eligible=eligible))

    async def _show_livez(self, request: web.Request) -> web.Response:
        del request
        health = self._state.health()
        ok = health.healthy
        return self._respond("livez", ok, render_health(health, ok=ok, eligible=None))

    def _respond(self, page: str, ok: bool, body: bytes) -> web.Response:
        code = 200 if ok else 503
        self._count(page, code)
        return web.Response(status=code, body=body, headers=HEADERS)


def render_check(service: NamespacedName, endpoints: int, *, proxy_healthy: bool) -> str:
    """Return the body of a response, byte for byte as kube-proxy sends it."""
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


class _HealthCheck:
    """The listeners of one Service and its number of local endpoints."""

    def __init__(self, port: int, addresses: tuple[str, ...], server: PageServer) -> None:
        self.port = port
        self.addresses = addresses
        self.server = server
        self.endpoints = 0


class HealthChecks:
    """The health-check node ports of one family."""

    def __init__(
        self,
        *,
        node: str,
        addresses: tuple[str, ...],
        is_proxy_healthy: Callable[[], bool],
        on_failure: Callable[[NamespacedName, str], None] = _ignore_failure,
        listen: Listen = listen_here,
    ) -> None:
        """Take the addresses to listen on; `on_failure` gets the message of an Event."""
        self._node = node
        self._addresses = addresses
        self._is_proxy_healthy = is_proxy_healthy
        self._on_failure = on_failure
        self._listen = listen
        # NB: shared, so that many Services do not multiply the limit of connections.
        self._connections = PageConnections()
        self._checks: dict[NamespacedName, _HealthCheck] = {}
        self._reported: dict[NamespacedName, str] = {}

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """Set the addresses for the next sync; having no address is reported as a failure."""
        self._addresses = addresses

    @property
    def ports(self) -> dict[NamespacedName, int]:
        """The ports that are open."""
        return {service: check.port for service, check in self._checks.items()}

    async def sync(
        self, ports: Mapping[NamespacedName, int], endpoints: Mapping[NamespacedName, int]
    ) -> None:
        """Listen for exactly these Services, and serve their numbers of ready local endpoints.

        A Service without a number has no endpoints.
        """
        # A port that another Service released must be closed before it is opened again.
        for service, check in list(self._checks.items()):
            if ports.get(service) != check.port or check.addresses != self._addresses:
                _log.info("health check closed", service=str(service), port=check.port)
                del self._checks[service]
                await check.server.stop()
        self._reported = {
            service: message for service, message in self._reported.items() if service in ports
        }
        for service, port in ports.items():
            if service not in self._checks:
                await self._open(service, port)
        for service, check in self._checks.items():
            check.endpoints = endpoints.get(service, 0)

    async def close(self) -> None:
        """Stop listening."""
        await self.sync({}, {})

    async def _open(self, service: NamespacedName, port: int) -> None:
        async def respond(_request: web.BaseRequest) -> web.StreamResponse:
            return self._respond(service)

        with contextlib.ExitStack() as cleanup:
            try:
                if not self._addresses:
                    raise OSError("the node has none of the addresses of node ports")  # noqa: TRY301
                listening = [
                    cleanup.enter_context(self._listen(address, port))
                    for address in self._addresses
                ]
            except (OSError, OverflowError) as error:
                # NB: a number out of range raises OverflowError, a port in use raises OSError.
                self._report_failure(service, port, str(error))
                return
            cleanup.pop_all()
        server = PageServer(web.Server(respond), connections=self._connections)
        await server.start_on(*listening)
        _log.info("health check opened", service=str(service), port=port)
        self._reported.pop(service, None)
        self._checks[service] = _HealthCheck(port, self._addresses, server)

    def _report_failure(self, service: NamespacedName, port: int, error: str) -> None:
        message = f'node {self._node} failed to start healthcheck "{service}" on port {port}: '
        message += error
        if self._reported.get(service) != message:
            self._reported[service] = message
            _log.error(
                "health check cannot be opened", service=str(service), port=port, error=error
            )
            self._on_failure(service, message)

    def _respond(self, service: NamespacedName) -> web.Response:
        check = self._checks.get(service)
        count = check.endpoints if check else 0
        healthy = self._is_proxy_healthy()
        return web.Response(
            status=200 if count and healthy else 503,
            # NB: a text body would add a charset to the content type, which kube-proxy does not.
            body=render_check(service, count, proxy_healthy=healthy).encode(),
            headers={**HEADERS, WEIGHT_HEADER: str(count)},
        )
