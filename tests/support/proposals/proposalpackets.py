"""Nodes and pods as network namespaces, routed as controller and proxies decide together.

Slices are planned as the controller plans them for pods with the addresses that they really have;
tables are written as proxies write them. Connections are real ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import Service
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod
from support.nettopology import NodePlan
from support.packets.packetflows import CLUSTER, Flow, check
from support.packets.tabledbeds import TabledBed, tabled
from support.proposals.proposalscenes import GATES, named

PLAN: Final = (
    NodePlan("n1", "zone-a", 3),
    NodePlan("n2", "zone-a", 2),
    NodePlan("n3", "zone-b", 2),
    NodePlan("n4", "zone-c", 1),
)
CLIENTS: Final = {"n1": "n1-p3", "n2": "n2-p2", "n3": "n3-p2", "n4": "n4-p1"}
"""A pod on each node that is no endpoint."""
SERVERS: Final = ("n1-p1", "n1-p2", "n2-p1", "n3-p1")
"""Pods that may be endpoints: three in zone-a, one in zone-b, none in zone-c."""


class PacketScene:
    """A network with tables, and pods that answer."""

    def __init__(self, bed: TabledBed) -> None:
        self.bed = bed

    def route(
        self,
        wanted: Service,
        servers: Iterable[str] = SERVERS,
        *,
        not_ready: Iterable[str] = (),
        gates: FeatureGates = GATES,
    ) -> None:
        """Have all nodes route the Service to these pods, as its spec asks."""
        failing = set(not_ready)
        pods = [
            pod(
                name,
                self.bed.node_of(name).name,
                ips=(self.bed.pod(name).address, self.bed.pod(name).address6),
                ready=name not in failing,
            )
            for name in servers
        ]
        nodes = [node(one.name, one.zone or None) for one in self.bed.bed.nodes]
        plan = plan_service(
            wanted, pods=pods, cluster=ClusterNodes.of(nodes), settings=PlannerSettings(gates=gates)
        )
        self.bed.write((wanted,), named(plan.slices))

    def expect(
        self, wanted: Service, used: dict[str, tuple[str, ...]], *, udp: bool = False
    ) -> None:
        """Fail unless clients on each node are answered by exactly these pods."""
        flows = [Flow(CLIENTS[name], CLUSTER, wanted, pods, udp=udp) for name, pods in used.items()]
        check(self.bed, flows)


@contextlib.contextmanager
def packet_scene() -> Iterator[PacketScene]:
    """Make the network, or skip the tests with the reason."""
    with tabled(PLAN) as bed:
        yield PacketScene(bed)
