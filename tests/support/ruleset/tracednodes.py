"""A node for packet tests: Services and slices go in, traced packets come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import Service
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import RoutedPort, routed_ports
from keepclose.ruleset import (
    DetectLocal,
    LocalTraffic,
    Ruleset,
    RulesetSettings,
    ServicePortKey,
    Table,
    TableListing,
)
from keepclose.ruleset.tracer import Fate, Packet, Trace, TracedNode, trace_outcomes
from support.ruleset.kerneltables import KernelTable

NODE: Final = "n1"
NODE_IP: Final = "192.168.0.2"
OTHER_NODE_IP: Final = "192.168.1.2"
POD: Final = "10.0.0.2"
OUTSIDE: Final = "203.0.113.2"
BLOCKED: Final = "203.0.113.130"
DROP: Final = "DROP"
REJECT: Final = "REJECT"

SETTINGS: Final = RulesetSettings(
    node_name=NODE,
    node_ip=NODE_IP,
    local_traffic=LocalTraffic(DetectLocal.CIDR, "10.0.0.0/8"),
    nodeport_ips=(NODE_IP,),
    service_cidrs=("172.30.0.0/16",),
)


def make_ruleset(
    services: Iterable[Service] = (),
    slices: Sequence[EndpointSlice] = (),
    *,
    settings: RulesetSettings = SETTINGS,
    gates: FeatureGates | None = None,
    node: NodeView | None = None,
) -> Ruleset:
    """Return a ruleset that has been told of the Services, each with the slices of its name."""
    ruleset = Ruleset(settings)
    tell(ruleset, services, slices, gates=gates, node=node)
    return ruleset


def tell(
    ruleset: Ruleset,
    services: Iterable[Service],
    slices: Sequence[EndpointSlice],
    *,
    gates: FeatureGates | None = None,
    node: NodeView | None = None,
) -> None:
    """Select endpoints as a proxy would and say so to the ruleset."""
    gates = gates or FeatureGates()
    family = ruleset.settings.family
    for service in services:
        own = [
            one
            for one in slices
            if one.metadata.namespace == service.metadata.namespace
            and one.metadata.labels["kubernetes.io/service-name"] == service.metadata.name
        ]
        endpoints = collect_endpoints(own, family, gates=gates)
        for port in routed_ports(service, family, gates=gates):
            tell_port(ruleset, port, endpoints.get(port.key, ()), gates=gates, node=node)


def tell_port(
    ruleset: Ruleset,
    port: RoutedPort,
    endpoints: Sequence[PortEndpoint],
    *,
    gates: FeatureGates | None = None,
    node: NodeView | None = None,
) -> None:
    """Select endpoints for one port and say so to the ruleset."""
    view = node or NodeView(NODE, "zone-a")
    selection = select(port, endpoints, node=view, gates=gates or FeatureGates())
    ruleset.set_port(ServicePortKey.of(port), port, selection)


def load(ruleset: Ruleset) -> KernelTable:
    """Return a kernel that was brought from nothing to what the ruleset wants."""
    kernel = KernelTable(ruleset.settings.family, ruleset.settings.table)
    update = ruleset.reconcile(TableListing())
    kernel.apply(update.transactions)
    kernel.apply(ruleset.sweep_transactions(update.serial))
    return kernel


def follow(
    kernel: KernelTable | Table,
    packet: Packet,
    *,
    addresses: Iterable[str] = (NODE_IP, OTHER_NODE_IP, "2001:db8::1", "2001:db8:1::2"),
) -> tuple[str, bool]:
    """Return where the packet may go, in order, or how it is refused; and if masqueraded.

    "" is a packet that nothing touched.
    """
    own = frozenset(addresses)
    packet = replace(packet, from_node=packet.source in own)
    table = kernel.table() if isinstance(kernel, KernelTable) else kernel
    outcomes = trace_outcomes(table, packet, TracedNode(own))
    assert sum(outcome.probability for outcome in outcomes) == Fraction(1)
    first = outcomes[0].trace
    return ", ".join(dict.fromkeys(shown(outcome.trace) for outcome in outcomes)), first.masqueraded


def shown(trace: Trace) -> str:
    """Return the end of one way as text."""
    if trace.fate is not Fate.PASSED:
        return DROP if trace.fate is Fate.DROPPED else REJECT
    if trace.endpoint is None:
        return ""
    address, port = trace.endpoint
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
