"""What rules know: Services with their mechanism, what they select, and nodes, given or assumed.

Files rarely hold Nodes. Rules about placement then assume zones of equal size, and every message
that rests on them says so. A Node without any status, as written by hand, counts as ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory, admit_service
from keepclose.advise.linting.findings import ObjectName
from keepclose.advise.linting.rollouts import MAX_NODES_PLAYED
from keepclose.advise.linting.workload_kinds import Autoscaler, LintedWorkload
from keepclose.model.field_errors import FieldError
from keepclose.model.meta import ObjectMeta
from keepclose.model.selectors import matches
from keepclose.model.service.defaults import default_service
from keepclose.model.service.types import Service
from keepclose.model.well_known import HOSTNAME_LABEL, ZONE_LABEL
from keepclose.model.workload import Node, NodeStatus, Pod, StatusCondition
from keepclose.model.workloads.disruption_budgets import PodDisruptionBudget
from keepclose.model.workloads.pods import PodMeta, WorkloadPod
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.routing.service_ports import TrafficPolicy, traffic_policies
from keepclose.routing.strategy import Strategy, StrategyName, choose_strategy
from keepclose.slices.settings import ClusterNodes, PlannerSettings

MAX_NAMED_ZONES: Final = 26
MIN_NODES_IN_ZONE: Final = 2
MAX_NODES_IN_ZONE: Final = 6
"""How many nodes an assumed zone has: one for each pod of the largest workload, in these bounds.
Fewer nodes would promise too much: a ReplicaSet deletes pods that share a node first."""
_CPU: Final = "4"
_Item = TypeVar("_Item")
_ZONAL: Final = frozenset(
    {
        StrategyName.AUTO,
        StrategyName.SAME_ZONE,
        StrategyName.SAME_NODE,
        StrategyName.CUSTOM,
        StrategyName.SUBSETTING,
    }
)


class LintLimits(msgspec.Struct, frozen=True):
    """The limits that findings of the group 5xx hold a Service to; None is no limit."""

    min_in_zone: float | None = None
    """A share, from 0 to 1."""
    max_load: float | None = None
    """In multiples of the mean load."""
    min_ready_per_zone: int | None = None


class LintedObjects(msgspec.Struct, frozen=True):
    """The objects to lint, each kind in the order of the input."""

    services: tuple[Service, ...] = ()
    workloads: tuple[LintedWorkload, ...] = ()
    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()
    autoscalers: tuple[Autoscaler, ...] = ()


class ServiceCase(msgspec.Struct, frozen=True):
    """A Service, why an API server rejects it, and what it selects."""

    service: Service
    errors: tuple[FieldError, ...]
    strategy: Strategy
    workloads: tuple[LintedWorkload, ...]
    pods: tuple[Pod, ...]
    is_local: bool = False
    """Whether the policy Local has an effect on traffic inside the cluster."""

    @property
    def name(self) -> ObjectName:
        """The name of the Service."""
        return ObjectName.of("Service", self.service.metadata)

    @property
    def has_endpoints_of_pods(self) -> bool:
        """Whether a controller writes slices, and proxies route by them."""
        spec = self.service.spec
        is_routed = spec.type != "ExternalName" and not self.service.is_headless
        return is_routed and spec.selector is not None

    @property
    def prefers_zone(self) -> bool:
        """Whether closeness is asked for, and has an effect."""
        return self.strategy.name in _ZONAL and self.has_endpoints_of_pods and not self.is_local

    @property
    def strategy_field(self) -> str:
        """The field that chose the mechanism."""
        return self.strategy.source or "spec"


class LabelIndex(Generic[_Item]):
    """Objects by namespace and label, so that those of a selector are found without a scan."""

    def __init__(self, labeled: Iterable[tuple[str, dict[str, str], _Item]]) -> None:
        """Take the namespace and the labels of each object."""
        self._all: dict[str, list[tuple[dict[str, str], _Item]]] = {}
        self._by_label: dict[tuple[str, str, str], list[tuple[dict[str, str], _Item]]] = {}
        for namespace, labels, item in labeled:
            self._all.setdefault(namespace, []).append((labels, item))
            for key, value in labels.items():
                self._by_label.setdefault((namespace, key, value), []).append((labels, item))

    def select(self, namespace: str, selector: dict[str, str]) -> tuple[_Item, ...]:
        """Return what the selector of a Service selects, in the order of the input."""
        found = [self._by_label.get((namespace, *pair), []) for pair in selector.items()]
        fewest = min(found, key=len, default=self._all.get(namespace, []))
        return tuple(item for labels, item in fewest if matches(selector, labels))


class LintContext:
    """The objects of one run, indexed, with the settings."""

    def __init__(
        self,
        objects: LintedObjects,
        *,
        settings: PlannerSettings,
        limits: LintLimits,
        assumed_zones: int,
    ) -> None:
        """Admit the Services and find what they select."""
        self.objects, self.settings, self.limits = objects, settings, limits
        self.has_given_nodes = bool(objects.nodes)
        self.nodes = (
            tuple(map(complete_node, objects.nodes))
            if objects.nodes
            else assume_nodes(
                _name_zones(assumed_zones, objects.workloads), _largest(objects.workloads)
            )
        )
        self.cluster = ClusterNodes.of(self.nodes)
        self.placements: dict[ObjectName, Counter[str]] = {}
        """How many pods of a workload each node gets, for workloads that were placed."""
        self._workloads = _grouped((each.name.namespace, each) for each in objects.workloads)
        self._by_label = LabelIndex(
            (each.name.namespace, each.labels, each) for each in objects.workloads
        )
        self._pods = LabelIndex(
            (each.metadata.namespace, each.metadata.labels, each) for each in objects.pods
        )
        self._budgets = _grouped((each.metadata.namespace, each) for each in objects.budgets)
        self._autoscalers = {
            (each.metadata.namespace, *each.spec.scale_target_ref.key): each
            for each in reversed(objects.autoscalers)
        }
        families = Inventory.of((*objects.services, *objects.pods, *objects.nodes)).families()
        self.cases = tuple(self._case(service, families) for service in objects.services)

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """The zones of nodes that run clients, sorted; there may be none."""
        return tuple(sorted(self.nodes_by_zone))

    @cached_property
    def modelled_nodes(self) -> tuple[Node, ...]:
        """The nodes that pods are placed on; of many nodes the same number from each zone."""
        if len(self.nodes) <= MAX_NODES_PLAYED:
            return self.nodes
        each = max(1, MAX_NODES_PLAYED // max(1, len(self.zones)))
        taken: Counter[str] = Counter()
        sample: list[Node] = []
        for node in self.nodes:
            if node.zone and node.is_ready and not node.is_excluded and taken[node.zone] < each:
                taken[node.zone] += 1
                sample.append(node)
        return tuple(sample[:MAX_NODES_PLAYED])

    @cached_property
    def clients(self) -> ClientNodes:
        """The nodes that send traffic: ready ones with a zone, each the same."""
        labels = labels_by_node(self.nodes)
        return ClientNodes(
            NodeView.of(node, labels) for node in self.nodes if node.is_ready and node.zone
        )

    @cached_property
    def zone_of(self) -> dict[str, str]:
        """The zone of each node; "" without one."""
        return {node.name: node.zone for node in self.nodes}

    @cached_property
    def workers(self) -> dict[str, str]:
        """The zone of each node that runs pods and clients: ready ones beside the control plane."""
        return {
            node.name: node.zone for node in self.nodes if node.is_ready and not node.is_excluded
        }

    @cached_property
    def names_by_zone(self) -> dict[str, list[str]]:
        """The names of the nodes that run clients, by zone."""
        return _grouped((zone, name) for name, zone in self.workers.items() if zone)

    @cached_property
    def nodes_by_zone(self) -> Counter[str]:
        """How many nodes that run clients each zone has."""
        return Counter({zone: len(names) for zone, names in self.names_by_zone.items()})

    def count_by_zone(self, pods_by_node: Mapping[str, int]) -> Counter[str]:
        """Return how many of the pods each zone has; every zone with clients is in it."""
        counts: Counter[str] = Counter(dict.fromkeys(self.zones, 0))
        for node, count in pods_by_node.items():
            counts[self.zone_of.get(node, "")] += count
        return counts

    @property
    def basis(self) -> str:
        """What results about placement rest on, for messages."""
        if self.has_given_nodes:
            return f"on the {len(self.nodes)} given nodes"
        each = len(self.nodes) // max(1, len(self.zones))
        return f"on {len(self.zones)} assumed zones of {each} equal nodes each"

    def autoscaler_of(self, workload: LintedWorkload) -> Autoscaler | None:
        """Return the autoscaler of a workload."""
        name = workload.name
        return self._autoscalers.get((name.namespace, name.kind, name.name))

    def workloads_in(self, namespace: str) -> list[LintedWorkload]:
        """Return the workloads of a namespace."""
        return self._workloads.get(namespace, [])

    def budgets_of(self, workload: LintedWorkload) -> list[PodDisruptionBudget]:
        """Return the budgets that cover the pods of a workload."""
        namespace = workload.name.namespace
        pod = WorkloadPod(metadata=PodMeta(namespace=namespace, labels=workload.labels))
        return [budget for budget in self._budgets.get(namespace, ()) if budget.covers(pod)]

    def replicas_of(self, workload: LintedWorkload) -> int:
        """Return how many pods a workload runs: of a DaemonSet one for each node.

        With an autoscaler it is the least number.
        """
        if workload.replicas is None:
            return sum(self.nodes_by_zone.values())
        autoscaler = self.autoscaler_of(workload)
        return workload.replicas if autoscaler is None else autoscaler.least

    def _case(self, service: Service, families: tuple[str, ...]) -> ServiceCase:
        admitted = admit_service(service, families)
        errors: tuple[FieldError, ...] = ()
        if isinstance(admitted, list):
            errors, admitted = tuple(admitted), default_service(service)
        selector, namespace = service.spec.selector, service.metadata.namespace
        return ServiceCase(
            admitted,
            errors,
            choose_strategy(
                admitted,
                gates=self.settings.gates,
                default_subsetting=self.settings.subsets.default,
                heuristics=self.settings.heuristics,
            ),
            () if selector is None else self._by_label.select(namespace, selector),
            () if selector is None else self._pods.select(namespace, selector),
            traffic_policies(admitted, self.settings.gates)[0] is TrafficPolicy.LOCAL,
        )


def complete_node(node: Node) -> Node:
    """Return a Node without any status as a ready one with some CPU; any other as it is."""
    if node.status.conditions or node.status.allocatable:
        return node
    status = replace(
        node.status,
        allocatable={"cpu": _CPU},
        conditions=(StatusCondition(type="Ready", status="True"),),
    )
    return replace(node, status=status)


def assume_nodes(zones: Sequence[str], largest: int) -> tuple[Node, ...]:
    """Return ready nodes in zones of equal size; `largest` is the largest number of replicas."""
    each = min(MAX_NODES_IN_ZONE, max(MIN_NODES_IN_ZONE, largest))
    return tuple(
        Node(
            metadata=ObjectMeta(
                name=f"{zone}-node-{number}",
                labels={ZONE_LABEL: zone, HOSTNAME_LABEL: f"{zone}-node-{number}"},
            ),
            status=NodeStatus(
                allocatable={"cpu": _CPU},
                conditions=(StatusCondition(type="Ready", status="True"),),
            ),
        )
        for zone in zones
        for number in range(1, each + 1)
    )


def _grouped(keyed: Iterable[tuple[str, _Item]]) -> dict[str, list[_Item]]:
    groups: dict[str, list[_Item]] = {}
    for key, item in keyed:
        groups.setdefault(key, []).append(item)
    return groups


def _name_zones(count: int, workloads: Iterable[LintedWorkload]) -> list[str]:
    """Return so many zones, those that workloads name first; more if these are more."""
    named = sorted({zone for workload in workloads for zone in workload.zones})[:MAX_NAMED_ZONES]
    others = (f"zone-{chr(ord('a') + number)}" for number in range(count))
    unnamed = [zone for zone in others if zone not in named]
    return named + unnamed[: max(0, count - len(named))]


def _largest(workloads: Iterable[LintedWorkload]) -> int:
    return max((workload.replicas or 0 for workload in workloads), default=0)
