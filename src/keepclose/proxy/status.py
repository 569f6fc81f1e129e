"""The status of a proxy: what it does with each Service, its metrics and its mode, over HTTP.

`keepclose proxy status` reads the same data. The module only renders decisions of `routing`, in
the words of their reasons. Connections are new connections that the kernel counted, by the zone of
their endpoint. The paths are kube-proxy's; /debug/services.json is ours. The pages are read-only
and have no authentication, so they are meant for loopback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec
from aiohttp import web

from keepclose.accounting.flow_table import NO_ZONE
from keepclose.model.meta import NamespacedName
from keepclose.proxy.counters.metrics import ConnectionCount, UnservedCount, mode_label
from keepclose.proxy.health import Listen, listen_here
from keepclose.proxy.port_selections import PortSelections, PortState
from keepclose.proxy.settings import ProxySettings
from keepclose.routing.reasons import Reason
from keepclose.routing.selection import Outcome, PacketVerdict
from keepclose.runtime.pages import METRICS_TYPE, PageServer, naming_address

_MODE: Final = "nftables"


class EndpointStatus(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint, and whether this node sends new connections to it."""

    address: str
    port: int
    zone: str = ""
    node: str = ""
    state: str = "ready"
    used: bool = False


class PortStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A service port of one family."""

    family: str
    name: str
    protocol: str
    cluster_ip: str
    port: int
    mode: str
    internal: str
    external: str
    endpoints: tuple[EndpointStatus, ...] = ()
    reasons: tuple[Reason, ...] = ()


class ServiceReport(msgspec.Struct, frozen=True, rename="camel"):
    """A Service, its ports, and how many connections went to each zone."""

    namespace: str
    name: str
    ports: tuple[PortStatus, ...] = ()
    connections: dict[str, int] = {}
    unserved: dict[str, int] = {}
    """First packets of connections that found no endpoint, by action: reject or drop."""


class FamilyStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The state of the rules of one family."""

    synced: bool
    failing: bool
    service_ports: int


class ProxyStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a whole proxy."""

    node: str
    zone: str = ""
    families: dict[str, FamilyStatus] = {}
    services: tuple[ServiceReport, ...] = ()
    counted: bool = False
    """Whether the proxy counts connections."""


def describe_services(
    families: Mapping[str, Mapping[NamespacedName, PortSelections]],
    counts: Iterable[ConnectionCount],
    unserved: Iterable[UnservedCount] = (),
    *,
    namespace: str = "",
    name: str = "",
) -> tuple[ServiceReport, ...]:
    """Return the Services sorted by name, or only those with the given namespace or name."""
    connections: dict[NamespacedName, dict[str, int]] = {}
    for count in counts:
        zones = connections.setdefault(NamespacedName(count.namespace, count.service), {})
        zone = "" if count.endpoint_zone == NO_ZONE else count.endpoint_zone
        zones[zone] = zones.get(zone, 0) + count.connections
    packets: dict[NamespacedName, dict[str, int]] = {}
    for unserved_count in unserved:
        key = NamespacedName(unserved_count.namespace, unserved_count.service)
        packets.setdefault(key, {})[unserved_count.action] = unserved_count.packets
    keys = {key for states in families.values() for key in states}
    return tuple(
        ServiceReport(
            key.namespace,
            key.name,
            tuple(
                describe_port(family, state)
                for family, states in families.items()
                if key in states
                for state in states[key].ports.values()
            ),
            dict(sorted(connections.get(key, {}).items())),
            packets.get(key, {}),
        )
        for key in sorted(keys)
        if (not namespace or key.namespace == namespace) and (not name or key.name == name)
    )


def describe_port(family: str, state: PortState) -> PortStatus:
    """Return a port with all its endpoints, and which of them the node uses."""
    port, selection = state.port, state.selection
    used = {endpoint.key for endpoint in selection.internal.endpoints}
    used |= {endpoint.key for endpoint in selection.external.endpoints}
    return PortStatus(
        family=family,
        name=port.name,
        protocol=port.protocol,
        cluster_ip=port.cluster_ip,
        port=port.port,
        mode=mode_label(selection.mode.value),
        internal=_describe(selection.internal),
        external=_describe(selection.external) if port.is_externally_accessible else "",
        endpoints=tuple(
            EndpointStatus(
                endpoint.address,
                endpoint.port,
                endpoint.zone,
                endpoint.node_name,
                _state(
                    ready=endpoint.ready,
                    serving=endpoint.serving,
                    terminating=endpoint.terminating,
                ),
                endpoint.key in used,
            )
            for endpoint in state.endpoints
        ),
        reasons=selection.reasons,
    )


class ProxyPages:
    """The HTTP pages of one proxy."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        metrics: Callable[[], bytes],
        refresh: Callable[[], Awaitable[None]],
        status: Callable[[str, str], ProxyStatus],
        listen: Listen = listen_here,
    ) -> None:
        """Take the sources of the pages; `refresh` reads the counters of the kernel first."""
        self._settings = settings
        self._metrics = metrics
        self._refresh = refresh
        self._status = status
        self._listen = listen
        app = web.Application()
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/healthz", self._show_health)
        app.router.add_get("/proxyMode", self._show_mode)
        app.router.add_get("/configz", self._show_settings)
        app.router.add_get("/debug/services.json", self._show_services)
        self._server = PageServer(app)

    async def start(self, host: str, port: int) -> int:
        """Start to listen and return the port; raises ListenError."""
        with naming_address(host, port):
            listener = self._listen(host, port)
        return await self._server.start_on(listener)

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        del request
        await self._refresh()
        return web.Response(body=self._metrics(), headers={"Content-Type": METRICS_TYPE})

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


def _describe(outcome: Outcome) -> str:
    if outcome.verdict is not PacketVerdict.NONE:
        return outcome.verdict.value
    return f"{len(outcome.endpoints)} endpoint" + ("" if len(outcome.endpoints) == 1 else "s")


def _state(*, ready: bool, serving: bool, terminating: bool) -> str:
    if terminating:
        return "terminating, serving" if serving else "terminating"
    return "ready" if ready else "not ready"
