"""Where the pods of a workload may run, and the traffic that each placement gives.

A pod may get any node that the rules of the scheduler permit: the constraints that bind filter the
nodes, the preferred ones order them, and among equals the choice is random. Requests of resources
are ignored, because what other pods use is not known. On assumed nodes node selectors and affinity
are ignored too, but for zones, because the labels of real nodes are not known.

The traffic of a placement is that of the planner and of each node's selection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec
from msgspec.structs import replace

from keepclose.advise.advice import overload_bound
from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory
from keepclose.advise.linting.workload_kinds import LintedWorkload, zone_terms
from keepclose.advise.resolution import measure_slices, plan_slices
from keepclose.advise.routed_traffic import RoutedTraffic
from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import (
    Container,
    ContainerPort,
    Node,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    StatusCondition,
)
from keepclose.model.workloads.constraints import Affinity, NodeAffinity, NodeSelector
from keepclose.model.workloads.node_fit import avoided_taints, node_refusal, preferred_weight
from keepclose.model.workloads.placement import spread_rules
from keepclose.model.workloads.pods import (
    ContainerSpec,
    PodCondition,
    PodMeta,
    Resources,
    WorkloadPod,
    WorkloadPodSpec,
    WorkloadPodStatus,
)
from keepclose.slices.settings import ClusterNodes, PlannerSettings

READY_SINCE = "2026-01-01T00:00:00Z"
MAX_CONSTRAINTS_PLACED = 8
MAX_TERMS_BYTES = 16 << 10
"""Of pods with more topology spread constraints, or larger affinity and tolerations as JSON, no
placement is computed: each pod would be held against each of them on each node."""


def seeded(seed: int) -> Random:
    """Return random numbers that are the same in every run."""
    return Random(seed)  # noqa: S311 - no secret depends on them


class ModelPods:
    """The pods of one workload on nodes, as the scheduler would place them."""

    def __init__(
        self,
        workload: LintedWorkload,
        nodes: Sequence[Node],
        *,
        random: Random,
        has_given_nodes: bool,
    ) -> None:
        """Begin without pods."""
        self.nodes = list(nodes)
        self.zones = {node.name: node.zone for node in nodes}
        self.pods: list[WorkloadPod] = []
        self._workload, self._random = workload, random
        self._spec = simplify_spec(workload.pod, has_given_nodes=has_given_nodes)
        self._number = 0

    def add(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        owner: OwnerReference | None = None,
        is_ready: bool = True,
    ) -> WorkloadPod:
        """Place another pod and return it; where no node is permitted it has none."""
        self._number += 1
        name = f"{self._workload.name.name}-{self._random.randrange(1 << 32):08x}-{self._number}"
        pod = WorkloadPod(
            metadata=PodMeta(
                name=name,
                namespace=self._workload.name.namespace,
                uid=name,
                labels={**self._workload.labels, **(labels or {})},
                creation_timestamp=READY_SINCE,
                owner_references=() if owner is None else (owner,),
            ),
            spec=self._spec,
            status=WorkloadPodStatus(phase="Pending"),
        )
        node = self._choose_node(pod)
        pod = replace(pod, spec=replace(pod.spec, node_name=node))
        if is_ready and node:
            pod = make_ready(pod)
        self.pods.append(pod)
        return pod

    def remove(self, pod: WorkloadPod) -> None:
        """Delete a pod."""
        self.pods = [each for each in self.pods if each.uid != pod.uid]

    def set_ready(self, pod: WorkloadPod) -> None:
        """Let a pod become ready."""
        self.pods = [make_ready(each) if each.uid == pod.uid else each for each in self.pods]

    def ready_by_zone(self) -> dict[str, int]:
        """Return how many ready pods each zone has; zones without any are left out."""
        counts: dict[str, int] = {}
        for pod in self.pods:
            if pod.is_ready:
                zone = self.zones[pod.spec.node_name]
                counts[zone] = counts.get(zone, 0) + 1
        return counts

    def _choose_node(self, pod: WorkloadPod) -> str:
        there: dict[str, list[WorkloadPod]] = {}
        for other in self.pods:
            there.setdefault(other.spec.node_name, []).append(other)
        binding, preferred = spread_rules(pod, nodes=self.nodes, there=there)
        permitted = [
            node
            for node in self.nodes
            if not node_refusal(pod.spec, node)
            and not any(rule.refusal(node) for rule in binding)
            and not (self._workload.is_one_per_node and there.get(node.name))
        ]
        if not permitted:
            return ""
        ranks = [
            (
                avoided_taints(pod.spec, node),
                -preferred_weight(pod.spec, node),
                *(rule.excess(node) for rule in preferred),
            )
            for node in permitted
        ]
        best = min(ranks)
        return self._random.choice(
            [node.name for node, rank in zip(permitted, ranks, strict=True) if rank == best]
        )


def can_place(spec: WorkloadPodSpec) -> bool:
    """Return whether the rules for a pod's node are few enough to place many such pods."""
    constraints = spec.topology_spread_constraints
    if len(constraints) > MAX_CONSTRAINTS_PLACED:
        return False
    terms = (constraints, spec.tolerations, spec.node_selector, spec.affinity)
    return len(msgspec.json.encode(terms)) <= MAX_TERMS_BYTES


def make_ready(pod: WorkloadPod) -> WorkloadPod:
    """Return the pod running and ready."""
    ready = PodCondition(type="Ready", status="True", last_transition_time=READY_SINCE)
    return replace(pod, status=replace(pod.status, phase="Running", conditions=(ready,)))


def simplify_spec(spec: WorkloadPodSpec, *, has_given_nodes: bool) -> WorkloadPodSpec:
    """Return a pod spec without requests, and on assumed nodes without what chooses nodes.

    The zones that a pod is bound to stay.
    """
    spec = replace(
        spec,
        containers=tuple(map(_without_requests, spec.containers)),
        init_containers=(),
        overhead={},
        node_name="",
    )
    if has_given_nodes:
        return spec
    constraints = tuple(
        replace(each, node_affinity_policy="Ignore", node_taints_policy="Ignore")
        for each in spec.topology_spread_constraints
    )
    zone = spec.node_selector.get(ZONE_LABEL)
    return replace(
        spec,
        node_selector={} if zone is None else {ZONE_LABEL: zone},
        affinity=_zone_affinity(spec.affinity),
        topology_spread_constraints=constraints,
    )


def _zone_affinity(affinity: Affinity | None) -> Affinity | None:
    terms = zone_terms(affinity)
    if not terms or not all(term.match_expressions for term in terms):
        return None
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=terms)))


def _without_requests(container: ContainerSpec) -> ContainerSpec:
    return replace(container, resources=Resources())


def measure_placement(
    service: Service,
    pods_by_node: Mapping[str, int],
    *,
    cluster: ClusterNodes,
    clients: ClientNodes,
    settings: PlannerSettings,
) -> RoutedTraffic:
    """Return the traffic to the first port of a Service with ready pods on these nodes."""
    one_port = replace(service, spec=replace(service.spec, ports=service.spec.ports[:1]))
    placed = (node for node, count in sorted(pods_by_node.items()) for _ in range(count))
    pods = tuple(_model_pod(one_port, node, index) for index, node in enumerate(placed))
    inventory = Inventory(services=(one_port,), pods={service.metadata.namespace: pods})
    planned = plan_slices(one_port, inventory, cluster, settings)
    return measure_slices(
        one_port,
        planned.slices,
        clients,
        gates=settings.gates,
        bound=overload_bound(service),
    )


def _model_pod(service: Service, node: str, index: int) -> Pod:
    ports = tuple(
        ContainerPort(port.target_port, 8080, port.protocol or "TCP")
        for port in service.spec.ports
        if isinstance(port.target_port, str)
    )
    name = f"pod-{index}"
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=service.metadata.namespace,
            uid=name,
            labels=service.spec.selector or {},
        ),
        spec=PodSpec(node_name=node, containers=(Container(ports=ports),)),
        status=PodStatus(
            phase="Running",
            pod_ips=(PodIP(_address(service, index)),),
            conditions=(StatusCondition("Ready", "True"),),
        ),
    )


def _address(service: Service, index: int) -> str:
    if "IPv4" in service.spec.ip_families or not service.spec.ip_families:
        return f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"
    return f"fd00::{index:x}"
