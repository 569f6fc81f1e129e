"""Services with traffic policies on two zones of two nodes, selected and traced as packets.

Nodes n1 and n2 are in zone-a, n3 and n4 in zone-b. An endpoint has the address of its node's
network: 10.0.1.x is on n1, 10.0.2.x on n2, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service, ServicePort
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.selection import Outcome
from keepclose.ruleset.tracer import Packet, trace_outcomes
from keepclose.ruleset.tracer import TracedNode as PacketNode
from support.builders import endpoint, endpoint_slice, service
from support.proposals.planned_services import select_on
from support.ruleset.tracednodes import NODE_IP, OUTSIDE, POD, SETTINGS, load, make_ruleset, shown

OFF: Final = FeatureGates()
ON: Final = OFF.with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)
CLUSTER_IP: Final = "172.30.1.1"
NODE_PORT: Final = 30080
NODES: Final = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": "zone-b"}
DROPPED: Final = "DROP"


def exposed(*, external: str = "Cluster", internal: str = "Cluster", **spec: Any) -> Service:
    """Return a NodePort Service with these policies."""
    port = ServicePort(name="http", protocol="TCP", port=80, target_port=8080, node_port=NODE_PORT)
    return service(
        type="NodePort",
        ports=(port,),
        cluster_ip=CLUSTER_IP,
        cluster_ips=(CLUSTER_IP,),
        external_traffic_policy=external,
        internal_traffic_policy=internal,
        **spec,
    )


def on(node_name: str, number: int = 1, **state: Any) -> Endpoint:
    """Return an endpoint on a node; hints and conditions as the builder takes them."""
    address = f"10.0.{node_name[1:]}.{number}"
    return endpoint(address, node_name=node_name, zone=NODES[node_name], **state)


def sliced(*endpoints: Endpoint) -> list[EndpointSlice]:
    """Return the one slice of the Service."""
    return [endpoint_slice(*endpoints)]


def outcomes(
    asked: Service,
    slices: Sequence[EndpointSlice],
    node_name: str,
    gates: FeatureGates = ON,
) -> tuple[Outcome, Outcome]:
    """Return what a node does with traffic from inside and with traffic from outside."""
    view = NodeView(node_name, NODES[node_name])
    selection = select_on(asked, slices, view, gates)
    return selection.internal, selection.external


def internal(
    asked: Service, slices: Sequence[EndpointSlice], node_name: str, gates: FeatureGates = ON
) -> set[str]:
    """Return the addresses to which a node sends traffic to the cluster IP."""
    return {one.address for one in outcomes(asked, slices, node_name, gates)[0].endpoints}


def external(
    asked: Service, slices: Sequence[EndpointSlice], node_name: str, gates: FeatureGates = ON
) -> set[str]:
    """Return the addresses to which a node sends traffic from outside."""
    return {one.address for one in outcomes(asked, slices, node_name, gates)[1].endpoints}


def trace(
    asked: Service,
    slices: Sequence[EndpointSlice],
    node_name: str,
    *,
    is_external: bool,
    gates: FeatureGates = ON,
) -> tuple[dict[str, Fraction], bool]:
    """Return where a packet goes with what chance, and whether its source is replaced.

    From outside it comes to the node port, from inside from a pod to the cluster IP.
    """
    ruleset = make_ruleset(
        [asked],
        slices,
        settings=replace(SETTINGS, node_name=node_name),
        gates=gates,
        node=NodeView(node_name, NODES[node_name]),
    )
    packet = Packet(OUTSIDE, NODE_IP, NODE_PORT) if is_external else Packet(POD, CLUSTER_IP, 80)
    found = trace_outcomes(load(ruleset).table(), packet, PacketNode(frozenset({NODE_IP})))
    chances: dict[str, Fraction] = {}
    for outcome in found:
        target = shown(outcome.trace)
        chances[target] = chances.get(target, Fraction(0)) + outcome.probability
    return chances, found[0].trace.masqueraded
