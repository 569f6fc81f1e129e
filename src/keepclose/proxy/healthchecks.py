"""Health-check node ports: tell load balancers whether this node has endpoints of a Service.

One listener a Service and address, as kube-proxy has them; where node ports answer only at some
addresses, so do these. A port is closed when its Service is gone or wants another, opened when it
is new, and otherwise left alone. A port that cannot be opened is told, once, and tried again at
every sync; it harms no other Service.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from aiohttp import web

from keepclose.model.meta import NamespacedName
from keepclose.proxy.health import HEADERS
from keepclose.proxy.listening import Listen, listen_here

FAILED_REASON: Final = "FailedToStartServiceHealthcheck"
FAILED_ACTION: Final = "Listen"
WEIGHT_HEADER: Final = "X-Load-Balancing-Endpoint-Weight"

_log = structlog.get_logger(__name__)


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


def _ignore(_service: NamespacedName, _message: str) -> None:
    """Tell nobody."""


class HealthChecks:
    """The health-check node ports of one family."""

    def __init__(
        self,
        *,
        node: str,
        addresses: tuple[str, ...],
        is_proxy_healthy: Callable[[], bool],
        on_failure: Callable[[NamespacedName, str], None] = _ignore,
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
