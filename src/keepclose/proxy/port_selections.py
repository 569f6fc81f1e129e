"""The selection of endpoints for each service port of one family on this node.

For a changed Service the module collects the endpoints, has `routing.selection` select for each
port, and passes the result to the rules. It also keeps totals for the metrics, health checks and
the acknowledgement, so that none of them has to read all ports. It never decides anything itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName
from keepclose.proxy.change_tracker import Ports
from keepclose.proxy.validation import usable_endpoints
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.selection import PacketVerdict, Selection, select
from keepclose.routing.service_ports import PortKey, RoutedPort
from keepclose.routing.topology import RoutingMode

EndpointsByPort = dict[PortKey, tuple[PortEndpoint, ...]]
SetPort = Callable[[RoutedPort, Selection | None], None]
"""Sets the rules of a port; None removes them."""

# Why a node does not follow existing hints, the most important reason first.
FALLBACKS: Final = (
    ReasonCode.HINTS_IGNORED,
    ReasonCode.NODE_WITHOUT_ZONE,
    ReasonCode.ZONE_HINT_MISSING,
    ReasonCode.ZONE_NOT_HINTED,
    ReasonCode.NODE_HINT_MISSING,
    ReasonCode.NODE_NOT_HINTED,
)


class PortState(msgspec.Struct, frozen=True):
    """A service port, all its endpoints, and what this node does with them."""

    port: RoutedPort
    endpoints: tuple[PortEndpoint, ...]
    selection: Selection

    @property
    def exception(self) -> ReasonCode | None:
        """Why the node ignores hints of the endpoints; None if it follows them or has none."""
        return _exception(self.endpoints, self.selection)


class PortSelections(msgspec.Struct, frozen=True):
    """The ports of a Service with their endpoints and selections."""

    ports: dict[PortKey, PortState]
    local_ready: int
    """The number of different ready addresses on this node, over all ports."""


class PortStates:
    """The state of all service ports of one family on this node."""

    def __init__(
        self, family: str, *, gates: FeatureGates, node: NodeView, set_port: SetPort
    ) -> None:
        self._family = family
        self._gates = gates
        self._node = node
        self._set_port = set_port
        self._ports: dict[NamespacedName, Ports] = {}
        self._endpoints: dict[NamespacedName, EndpointsByPort] = {}
        self.services: dict[NamespacedName, PortSelections] = {}
        self.modes: Counter[str] = Counter()
        """Service ports by routing mode."""
        self.no_local: Counter[str] = Counter({"internal": 0, "external": 0})
        """Ports whose Local policy finds no endpoint on this node, by direction."""
        self.fallbacks: Counter[str] = Counter()
        """Service ports whose hints this node does not follow, by reason."""
        self.health_checks: dict[NamespacedName, int] = {}
        """The health-check ports of Services."""
        self.udp: set[NamespacedName] = set()
        """Services with a UDP port."""
        self.exceptions: dict[NamespacedName, ReasonCode] = {}
        """Services whose hints this node does not follow."""

    def keys(self) -> list[NamespacedName]:
        """Return all Services that have ports."""
        return list(self._ports)

    def set_node(self, node: NodeView) -> None:
        """Set the view of the own node for later calls of `select`."""
        self._node = node

    def set_ports(self, key: NamespacedName, ports: Ports) -> None:
        """Set the ports of a Service; none removes the Service."""
        if ports:
            self._ports[key] = ports
        else:
            self._ports.pop(key, None)

    def set_endpoints(self, key: NamespacedName, slices: Iterable[EndpointSlice]) -> None:
        """Set the slices of a Service."""
        by_port = collect_endpoints(slices, self._family, gates=self._gates)
        if by_port:
            self._endpoints[key] = {
                port: usable_endpoints(endpoints, self._family)
                for port, endpoints in by_port.items()
            }
        else:
            self._endpoints.pop(key, None)

    def select(self, key: NamespacedName) -> None:
        """Select the endpoints of all ports of a Service again, and update the rules."""
        before = self.services.pop(key, None)
        if before is not None:
            self._count(key, before, -1)
        ports = self._ports.get(key, ())
        by_port = self._endpoints.get(key, {})
        states: dict[PortKey, PortState] = {}
        for port in ports:
            endpoints = by_port.get(port.key, ())
            selection = select(port, endpoints, node=self._node, gates=self._gates)
            states[port.key] = PortState(port, endpoints, selection)
        if before is not None:
            for port_key, state in before.ports.items():
                if port_key not in states:
                    self._set_port(state.port, None)
        for state in states.values():
            self._set_port(state.port, state.selection)
        if states:
            after = PortSelections(states, self._count_local(states))
            self.services[key] = after
            self._count(key, after, 1)

    def replay(self, set_port: SetPort) -> None:
        """Pass the selections of all ports to new rules."""
        self._set_port = set_port
        for service in self.services.values():
            for state in service.ports.values():
                set_port(state.port, state.selection)

    def _count_local(self, states: dict[PortKey, PortState]) -> int:
        name = self._node.name
        return len(
            {
                endpoint.address
                for state in states.values()
                for endpoint in state.endpoints
                if endpoint.node_name == name and endpoint.ready
            }
        )

    def _count(self, key: NamespacedName, service: PortSelections, step: int) -> None:
        is_added = step > 0
        self.exceptions.pop(key, None)
        self.health_checks.pop(key, None)
        self.udp.discard(key)
        for state in service.ports.values():
            port, selection = state.port, state.selection
            self.modes[selection.mode.value] += step
            if selection.internal.verdict is PacketVerdict.DROP:
                self.no_local["internal"] += step
            if selection.external.verdict is PacketVerdict.DROP:
                self.no_local["external"] += step
            exception = state.exception
            if exception is not None:
                self.fallbacks[exception.value] += step
            if is_added:
                if exception is not None:
                    self.exceptions.setdefault(key, exception)
                if port.health_check_node_port:
                    self.health_checks[key] = port.health_check_node_port
                if port.protocol == "UDP":
                    self.udp.add(key)


def _exception(endpoints: tuple[PortEndpoint, ...], selection: Selection) -> ReasonCode | None:
    codes = {reason.code for reason in selection.reasons}
    if selection.mode is RoutingMode.SAME_ZONE and ReasonCode.NODE_HINT_MISSING in codes:
        # NB: the endpoints ask for the node, and the zone is only the fallback.
        return ReasonCode.NODE_HINT_MISSING
    if selection.mode is not RoutingMode.ALL or selection.cluster is None:
        return None
    fallback = next((code for code in FALLBACKS if code in codes), None)
    if fallback is None:
        return None
    # NB: a reason may concern a level for which these endpoints have no hints.
    hints = [endpoint.zone_hints or endpoint.node_hints for endpoint in endpoints if endpoint.ready]
    return fallback if any(hints) else None
