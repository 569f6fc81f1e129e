"""What follows from new rules of one family: health checks, forgotten UDP flows, an answer.

Only after the rules stand. Each part may fail without harm to the others or to the next sync: it
is logged, and done again after the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from keepclose.model.addresses import canonical
from keepclose.model.meta import NamespacedName
from keepclose.proxy.conntrack.stale_flows import AddressPort, CleanUp, ConntrackError, Frontends
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.health import HealthChecks
from keepclose.proxy.port_selections import PortState, PortStates

_log = structlog.get_logger(__name__)


class Flows(Protocol):
    """Who can forget flows of the kernel."""

    async def clean(self, frontends: Frontends) -> CleanUp:
        """Delete the UDP flows whose endpoint serves no more; raises ConntrackError."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class Aftermath:
    """Does what follows from a sync of one family."""

    def __init__(
        self,
        family: str,
        *,
        states: PortStates,
        flows: Flows,
        checks: HealthChecks,
        metrics: ProxyMetrics,
        note: Callable[[], None],
    ) -> None:
        self._family = family
        self._states = states
        self._flows = flows
        self._checks = checks
        self._metrics = metrics
        self._note = note
        self._had_udp: set[NamespacedName] = set()
        self._is_clean = False

    async def follow(self, touched: set[NamespacedName]) -> None:
        """Do it all for a sync that touched these Services; raises nothing."""
        self._note()
        await self._sync_checks()
        # NB: whoever has had a UDP port may have left flows, even if it has none any more.
        udp = self._states.udp
        concerned = {key for key in touched if key in udp or key in self._had_udp}
        if concerned or not self._is_clean:
            await self._clean_flows()
        self._had_udp = (self._had_udp - concerned) | (concerned & udp)

    async def close(self) -> None:
        """Close the health checks and let go of the flows."""
        await self._checks.close()
        await self._flows.close()

    async def _sync_checks(self) -> None:
        ports = self._states.health_checks
        if not ports and not self._checks.ports:
            return
        services = self._states.services
        await self._checks.sync(ports, {key: services[key].local_ready for key in ports})

    async def _clean_flows(self) -> None:
        services = self._states.services
        states = (
            state
            for key in self._states.udp
            for state in services[key].ports.values()
            if state.port.protocol == "UDP"
        )
        try:
            done = await self._flows.clean(frontends_of(states))
        except ConntrackError as error:
            # The next sync that touches a UDP port tries again.
            self._is_clean = False
            _log.warning("old UDP flows stay", family=self._family, error=str(error))
            return
        self._is_clean = True
        self._metrics.conntrack_cleaned(self._family, done.seconds, done.deleted)


def frontends_of(states: Iterable[PortState]) -> Frontends:
    """Return where clients of the ports send to, with all endpoints that serve there.

    Policies and topology have no say: a flow stays with an endpoint that would not be chosen now.
    """
    addresses: dict[AddressPort, frozenset[AddressPort]] = {}
    node_ports: dict[int, frozenset[AddressPort]] = {}
    for state in states:
        port = state.port
        serving = frozenset((one.address, one.port) for one in state.endpoints if one.serving)
        for text in (port.cluster_ip, *port.load_balancer_ips, *port.external_ips):
            address = canonical(text)
            if address is not None:
                addresses[address, port.port] = serving
        if port.node_port and serving:
            node_ports[port.node_port] = serving
    return Frontends(addresses, node_ports)
