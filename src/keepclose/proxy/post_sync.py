"""The work after a sync of one family: acknowledgement, health checks, stale UDP flows.

It never runs before the rules are written. A failure of one part is logged, affects neither the
other parts nor the next sync, and is retried after that sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from keepclose.model.addresses import canonical
from keepclose.model.meta import NamespacedName
from keepclose.proxy.conntrack import AddressPort, CleanUp, ConntrackError, Frontends
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.health import HealthChecks
from keepclose.proxy.port_selections import PortState, PortStates

_log = structlog.get_logger(__name__)


class FlowCleaner(Protocol):
    """Deletes flows from the kernel's table."""

    async def clean(self, frontends: Frontends) -> CleanUp:
        """Delete the UDP flows whose endpoint no longer serves; raises ConntrackError."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


class PostSync:
    """Runs the work after each sync of one family."""

    def __init__(
        self,
        family: str,
        *,
        states: PortStates,
        flows: FlowCleaner,
        checks: HealthChecks,
        metrics: ProxyMetrics,
        on_written: Callable[[], None],
    ) -> None:
        self._family = family
        self._states = states
        self._flows = flows
        self._checks = checks
        self._metrics = metrics
        self._on_written = on_written
        self._had_udp: set[NamespacedName] = set()
        self._is_clean = False

    async def run(self, changed: set[NamespacedName]) -> None:
        """Run the work after a sync in which these Services changed; raises nothing."""
        self._on_written()
        await self._sync_checks()
        # NB: a Service that had a UDP port may have stale flows, even if it has none any more.
        udp = self._states.udp
        changed_udp = {key for key in changed if key in udp or key in self._had_udp}
        if changed_udp or not self._is_clean:
            await self._clean_flows()
        self._had_udp = (self._had_udp - changed_udp) | (changed_udp & udp)

    async def close(self) -> None:
        """Close the health checks and the flow cleaner."""
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
            clean_up = await self._flows.clean(frontends_of(states))
        except ConntrackError as error:
            # The next sync tries again.
            self._is_clean = False
            _log.warning("stale UDP flows not deleted", family=self._family, error=str(error))
            return
        self._is_clean = True
        self._metrics.conntrack_cleaned(self._family, clean_up.seconds, clean_up.deleted)


def frontends_of(states: Iterable[PortState]) -> Frontends:
    """Return the addresses to which clients of the ports send, with all serving endpoints.

    Policies and topology do not matter: a flow keeps an endpoint that is no longer selected.
    """
    addresses: dict[AddressPort, frozenset[AddressPort]] = {}
    node_ports: dict[int, frozenset[AddressPort]] = {}
    for state in states:
        port = state.port
        serving = frozenset(
            (endpoint.address, endpoint.port) for endpoint in state.endpoints if endpoint.serving
        )
        for text in (port.cluster_ip, *port.load_balancer_ips, *port.external_ips):
            address = canonical(text)
            if address is not None:
                addresses[address, port.port] = serving
        if port.node_port and serving:
            node_ports[port.node_port] = serving
    return Frontends(addresses, node_ports)
