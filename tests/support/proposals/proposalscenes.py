"""Clusters in memory: nodes in zones, pods on them, and what controller and proxies make of it.

    scene = Scene({"n1": "zone-a", "n2": "zone-b"}, {"n1": 2, "n2": 1})
    plan = scene.plan(service(traffic_distribution="PreferClose"))
    assert scene.hints(plan) == {"n1-1": "zone-a", "n1-2": "zone-a", "n2-1": "zone-b"}
    assert scene.routes(plan)["n1"] == {"n1-1", "n1-2"}

Nothing is decided here: plans are those of the controller, routes those of the proxies, each with
the feature gates that it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.gates import DEFAULT_GATES, FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.routing.heuristics import HeuristicRegistry
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import Selection, select
from keepclose.routing.service_ports import routed_ports
from keepclose.slices.service_planner import ServicePlan, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod, service

GATES: Final = DEFAULT_GATES
NO_FIELD: Final = GATES.without(
    Gate.SERVICE_TRAFFIC_DISTRIBUTION, Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION
)
"""The gates of a component from before KEP-4444."""
NO_SAME_NODE: Final = GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
"""The gates of a component from before KEP-3015."""
THREE_ZONES: Final = {
    "n1": "zone-a",
    "n2": "zone-a",
    "n3": "zone-b",
    "n4": "zone-b",
    "n5": "zone-c",
}
"""Two zones of two nodes and one of one node."""
UNEVEN: Final = {"n1": 2, "n2": 1, "n3": 1}
"""Pods on three of the nodes: three in zone-a, one in zone-b, none in zone-c."""


def asking(value: str | None, *, mode: str | None = None, **spec: Any) -> Service:
    """Return a Service with this trafficDistribution and this topology mode."""
    annotations = {} if mode is None else {"service.kubernetes.io/topology-mode": mode}
    return service("web", annotations=annotations, traffic_distribution=value, **spec)


class Scene:
    """Nodes in zones and pods on nodes; pods go by the names <node>-<number>."""

    def __init__(
        self,
        zones: Mapping[str, str | None],
        pods: Mapping[str, int],
        *,
        not_ready: Collection[str] = (),
    ) -> None:
        self.nodes = [node(name, zone) for name, zone in zones.items()]
        self.pods = [
            pod(
                f"{name}-{number}",
                name,
                ip=f"10.0.{index}.{number}",
                ready=f"{name}-{number}" not in not_ready,
            )
            for index, name in enumerate(zones)
            for number in range(1, pods.get(name, 0) + 1)
        ]
        self._names = {one.status.pod_ip: one.metadata.name for one in self.pods}

    def plan(
        self,
        wanted: Service,
        *,
        gates: FeatureGates = GATES,
        slices: Iterable[EndpointSlice] = (),
        max_endpoints: int = 100,
        heuristics: HeuristicRegistry | None = None,
        condition_prefix: str = "",
    ) -> ServicePlan:
        """Return what the controller plans for a Service over all pods."""
        settings = PlannerSettings(
            gates=gates,
            max_endpoints=max_endpoints,
            heuristics=heuristics or {},
            condition_prefix=condition_prefix,
        )
        return plan_service(
            wanted,
            pods=self.pods,
            slices=named(slices),
            cluster=ClusterNodes.of(self.nodes),
            settings=settings,
        )

    def hints(self, plan: ServicePlan) -> dict[str, str]:
        """Return the hints of endpoints by pod: "zone-a", "zone-a on n1", "on n1" or "none"."""
        return {
            self.name_of(endpoint): hint_text(endpoint)
            for endpoint_slice in plan.slices
            for endpoint in endpoint_slice.endpoints
        }

    def name_of(self, endpoint: Endpoint) -> str:
        """Return the name of the pod behind an endpoint."""
        return self._names[endpoint.addresses[0]]

    def selections(
        self,
        slices: Iterable[EndpointSlice],
        wanted: Service | None = None,
        *,
        gates: FeatureGates = GATES,
    ) -> dict[str, Selection]:
        """Return what each node selects for the Service, by node."""
        (port,) = routed_ports(wanted or service("web"), "IPv4", gates=gates)
        endpoints = collect_endpoints(named(slices), "IPv4", gates=gates).get(port.key, ())
        return {
            one.name: select(port, endpoints, node=NodeView.of(one), gates=gates)
            for one in self.nodes
        }

    def routes(
        self,
        plan: ServicePlan,
        wanted: Service | None = None,
        *,
        gates: FeatureGates = GATES,
        external: bool = False,
    ) -> dict[str, set[str]]:
        """Return the pods to which each node routes new connections once a plan is written."""
        chosen = self.selections(plan.slices, wanted, gates=gates)
        return {
            name: {
                self._names[endpoint.address]
                for endpoint in (one.external if external else one.internal).endpoints
            }
            for name, one in chosen.items()
        }

    def routed(
        self, wanted: Service, *, controller: FeatureGates = GATES, proxy: FeatureGates = GATES
    ) -> dict[str, set[str]]:
        """Return the routes that controller and proxies of these gates arrive at together."""
        return self.routes(self.plan(wanted, gates=controller), wanted, gates=proxy)

    def everywhere(self) -> dict[str, set[str]]:
        """Return the routes under which every node uses all pods."""
        return {one.name: set(self._names.values()) for one in self.nodes}

    def loads(
        self, routes: Mapping[str, set[str]], clients: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the load of each pod in multiples of its fair share.

        `clients` says how much traffic comes from each node; the same from all, if left out.
        """
        traffic = clients or dict.fromkeys(routes, 1.0)
        got = dict.fromkeys(self._names.values(), 0.0)
        for name, used in routes.items():
            for one in used:
                got[one] += traffic.get(name, 0.0) / len(used)
        fair = sum(traffic.values()) / len(got)
        return {name: load / fair for name, load in got.items()}


def named(slices: Iterable[EndpointSlice]) -> list[EndpointSlice]:
    """Return slices with the names that an API server would have given new ones."""
    return [
        one
        if one.metadata.name
        else replace(one, metadata=replace(one.metadata, name=f"web-{number}"))
        for number, one in enumerate(slices, start=1)
    ]


def hint_text(endpoint: Endpoint) -> str:
    """Return an endpoint's hints as text, "none" where there are none."""
    if endpoint.hints is None:
        return "none"
    zones = [one.name for one in endpoint.hints.for_zones]
    nodes = [f"on {one.name}" for one in endpoint.hints.for_nodes]
    return " ".join((*zones, *nodes)) or "none"


def own_zones(scene: Scene) -> dict[str, str]:
    """Return the hints by pod of a Service whose endpoints are each hinted to their own zone."""
    zones = {one.name: one.zone for one in scene.nodes}
    return {one.metadata.name: zones[one.spec.node_name] for one in scene.pods}


def own_nodes(scene: Scene) -> dict[str, str]:
    """Return the hints by pod where each endpoint is hinted to its zone and its node."""
    places = {one.metadata.name: one.spec.node_name for one in scene.pods}
    return {name: f"{zone} on {places[name]}" for name, zone in own_zones(scene).items()}
