"""A Service whose slices are planned and carried out in memory, and what its nodes then use.

The plan is the controller's, the choice is the proxy's; only the API server between them is left
out, because it decides nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.well_known import FOR_ZONE_LABEL
from keepclose.model.workload import Node, Pod
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import Selection, select
from keepclose.routing.service_ports import routed_ports
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import ServicePlan, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod

Groups = dict[str, int]
"""Numbers of endpoints by the zone that consumes their slices; "" is every zone."""


def nodes_in(**counts: int) -> list[Node]:
    """Return so many nodes in zone-a, zone-b, ...; they are named a1, a2, b1, ..."""
    return [
        node(f"{letter}{number + 1}", f"zone-{letter}")
        for letter, count in counts.items()
        for number in range(count)
    ]


class PlannedService:
    """A Service with pods and nodes; `sync` plans its slices and carries the plan out."""

    def __init__(
        self,
        service: Service,
        nodes: Sequence[Node],
        settings: PlannerSettings = PlannerSettings(),  # noqa: B008 - frozen
    ) -> None:
        self.service = service
        self.nodes = list(nodes)
        self.settings = settings
        self.pods: dict[NamespacedName, Pod] = {}
        self.slices: list[EndpointSlice] = []
        self._started = 0

    def start(
        self, node_name: str, count: int = 1, *, owner: OwnerReference | None = None
    ) -> list[str]:
        """Start ready pods on a node and return their addresses."""
        addresses = []
        for _ in range(count):
            number = self._started
            self._started += 1
            address = f"10.{number // 40_000}.{number // 200 % 200}.{number % 200 + 1}"
            made = pod(f"p{number:05}", node_name, ip=address, owner=owner)
            self.pods[made.key] = made
            addresses.append(address)
        return addresses

    def stop(self, node_name: str, count: int = 1) -> None:
        """Remove the oldest pods of a node."""
        keys = [key for key, one in self.pods.items() if one.spec.node_name == node_name]
        assert len(keys) >= count
        for key in keys[:count]:
            del self.pods[key]

    def annotate(self, key: str, value: str | None) -> None:
        """Set or remove an annotation of the Service."""
        kept = dict(self.service.metadata.annotations)
        kept.pop(key, None)
        if value is not None:
            kept[key] = value
        metadata = replace(self.service.metadata, annotations=kept)
        self.service = replace(self.service, metadata=metadata)

    def specify(self, **spec: Any) -> None:
        """Change fields of the Service's spec, by their Python names."""
        self.service = replace(self.service, spec=replace(self.service.spec, **spec))

    def plan(self) -> ServicePlan:
        """Return the plan of the controller from what is there now."""
        return plan_service(
            self.service,
            pods=self.pods.values(),
            slices=self.slices,
            cluster=ClusterNodes.of(self.nodes),
            settings=self.settings,
        )

    def sync(self) -> ServicePlan:
        """Carry out the plan and return it; a second plan must have nothing left to write."""
        plan = self.plan()
        for family_plan in plan.plans.values():
            self.slices = apply_plan(self.slices, family_plan)
        again = self.plan()
        assert count_writes(again) == 0
        return plan

    def groups(self) -> Groups:
        """Return the size of each group as the slices say."""
        sizes: Counter[str] = Counter()
        for endpoint_slice in self.slices:
            zone = endpoint_slice.metadata.labels.get(FOR_ZONE_LABEL, "")
            sizes[zone] += len(endpoint_slice.endpoints)
        return dict(sorted(sizes.items()))

    def placement(self) -> dict[str, tuple[str, str]]:
        """Return the zone in which each address is, and the zone that consumes it."""
        return {
            endpoint.addresses[0]: (
                endpoint.zone or "",
                endpoint_slice.metadata.labels.get(FOR_ZONE_LABEL, ""),
            )
            for endpoint_slice in self.slices
            for endpoint in endpoint_slice.endpoints
        }

    def select(self, node_name: str, gates: FeatureGates | None = None) -> Selection:
        """Return what the proxy of a node uses for the Service's port."""
        (found,) = [one for one in self.nodes if one.name == node_name]
        return select_on(
            self.service, self.slices, NodeView.of(found), gates or self.settings.gates
        )

    def used(self, node_name: str, gates: FeatureGates | None = None) -> set[str]:
        """Return the addresses to which a node leads new connections to the cluster IP."""
        return addresses(self.select(node_name, gates))

    def zones_used(self, node_name: str, gates: FeatureGates | None = None) -> set[str]:
        """Return the zones in which the endpoints are that a node uses."""
        return {one.zone for one in self.select(node_name, gates).internal.endpoints}

    def nodes_used(self, node_name: str, gates: FeatureGates | None = None) -> set[str]:
        """Return the nodes on which the endpoints are that a node uses."""
        return {one.node_name for one in self.select(node_name, gates).internal.endpoints}


def select_on(
    service: Service, slices: Iterable[EndpointSlice], node_view: NodeView, gates: FeatureGates
) -> Selection:
    """Return what a node uses for the one port of a Service."""
    (port,) = routed_ports(service, "IPv4", gates=gates)
    endpoints = collect_endpoints(slices, "IPv4", gates=gates).get(port.key, ())
    return select(port, endpoints, node=node_view, gates=gates)


def addresses(selection: Selection) -> set[str]:
    """Return the addresses that traffic to the cluster IP goes to."""
    return {one.address for one in selection.internal.endpoints}


def count_writes(plan: ServicePlan) -> int:
    """Return how many slices a plan creates, updates and deletes."""
    return sum(len(one.create) + len(one.update) + len(one.delete) for one in plan.plans.values())


def count_reallocated(plan: ServicePlan) -> int:
    """Return how many endpoints a plan moves from one group to another."""
    return sum(one.reallocated for one in plan.plans.values())


def hints_of(slices: Iterable[EndpointSlice]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the zones and the nodes that each address is hinted for."""
    return {
        endpoint.addresses[0]: (
            tuple(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else (),
            tuple(hint.name for hint in endpoint.hints.for_nodes) if endpoint.hints else (),
        )
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints
    }


def share_of_traffic(
    selections: Mapping[str, Selection], clients: Mapping[str, float]
) -> dict[str, float]:
    """Return the part of all traffic that each address gets, if nodes send as `clients` says."""
    received: dict[str, float] = {}
    for name, selection in selections.items():
        endpoints = selection.internal.endpoints
        for endpoint in endpoints:
            part = clients.get(name, 0.0) / len(endpoints)
            received[endpoint.address] = received.get(endpoint.address, 0.0) + part
    return received
