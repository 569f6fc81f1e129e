"""What a Service promises its zones, and whether a placement, a rollout or a drain keeps it.

The promise is that every zone with clients has ready endpoints: one, or as many as
--min-ready-per-zone says, and under topology mode Auto that the count can be divided among the
zones at all. Where pods are given, their placement is judged; else one that the scheduler permits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Final

import msgspec

from keepclose.advise.linting.context import LintContext, ServiceCase
from keepclose.advise.linting.findings import ObjectName
from keepclose.advise.linting.placements import (
    ModelPods,
    can_place,
    measure_placement,
    seeded,
)
from keepclose.advise.linting.rollouts import (
    PlayedShare,
    play_drains,
    play_rollouts,
    runs_for,
)
from keepclose.advise.linting.workload_kinds import LintedWorkload
from keepclose.advise.routed_traffic import SHARE_ROUNDING, RoutedTraffic
from keepclose.routing.allocation.kube_auto import least_endpoints
from keepclose.routing.auto import Infeasible, zone_bounds
from keepclose.routing.reasons import Reason
from keepclose.routing.strategy import StrategyName

MAX_COUNTED: Final = 200
"""Up to how many replicas counts are tried for advice."""
MAX_PODS_MEASURED: Final = 2000
MAX_PODS_PLACED: Final = 100
"""Up to how many replicas are placed one by one; the time grows with their square."""
_ADVISED: Final = 6
_TRIED: Final = 40


class KeptPromise(msgspec.Struct, frozen=True):
    """In what share of rollouts and drains a workload keeps the promise of a Service.

    A share is None where it was not played: the workload is too large, is replaced otherwise, or
    breaks the promise at rest.
    """

    service: ObjectName
    workload: ObjectName
    rollouts: PlayedShare | None
    drains: PlayedShare | None
    basis: str


class ReplicaAdvice(msgspec.Struct, frozen=True):
    """Which numbers of replicas a Service loses its hints with, and which bound the load.

    Pods are spread evenly over the zones but for `by_zone`.
    """

    service: ObjectName
    replicas: int
    without_hints: tuple[int, ...]
    """Numbers up to twice the present one, or four for each zone, with which Auto gives no hints;
    empty for other mechanisms."""
    within_load: tuple[int, ...]
    """The next numbers with which no endpoint carries more than `max_load`."""
    by_zone: dict[str, int]
    """The least pods of each zone, in proportion to its nodes, with which none does; {} if no
    number that was tried will do."""
    max_load: float
    basis: str


class ServicePromise:
    """The promise of one Service, on the nodes of the context."""

    def __init__(self, case: ServiceCase, context: LintContext) -> None:
        """Take a Service that prefers its zone."""
        self.case, self._context = case, context
        self._ratios = context.cluster.ratios.ratios
        self._limits = context.limits
        self._measured: dict[tuple[tuple[str, int], ...], RoutedTraffic] = {}

    @property
    def is_auto(self) -> bool:
        """Whether topology mode Auto governs."""
        return self.case.strategy.name is StrategyName.AUTO

    @property
    def least_per_zone(self) -> int:
        """How many ready endpoints each zone needs."""
        return self._limits.min_ready_per_zone or 1

    @property
    def least_replicas(self) -> int:
        """The least number of replicas with which the promise can be kept."""
        least = max(1, self.least_per_zone * len(self._context.zones))
        if not self.is_auto:
            return least
        return next(
            (count for count in range(least, MAX_COUNTED) if not self.loses_hints(count)), least
        )

    def loses_hints(self, ready: int) -> bool:
        """Return whether topology mode Auto gives no hints for so many ready endpoints."""
        return self.why_no_hints(ready) is not None

    def why_no_hints(self, ready: int) -> Reason | None:
        """Return why topology mode Auto gives no hints for so many ready endpoints.

        None if it gives hints, or another mechanism governs: no other one depends on the count.
        """
        bounds = zone_bounds(self._ratios, ready) if self.is_auto else None
        return bounds.reason if isinstance(bounds, Infeasible) else None

    def keeps(self, ready_by_zone: Mapping[str, int], *, drained: str = "") -> bool:
        """Return whether so many ready endpoints keep the promise.

        A zone whose only node is drained has no clients.
        """
        context = self._context
        drained_zone = context.workers.get(drained, "")
        for zone in context.zones:
            clients = context.nodes_by_zone[zone] - (zone == drained_zone)
            if clients > 0 and ready_by_zone.get(zone, 0) < self.least_per_zone:
                return False
        return not self.loses_hints(sum(ready_by_zone.values()))

    @cached_property
    def given_pods(self) -> Counter[str]:
        """How many ready pods of the input each node has."""
        return Counter(
            pod.spec.node_name
            for pod in self.case.pods
            if pod.spec.node_name and pod.is_ready and not pod.is_terminating
        )

    def pods_by_node(self) -> dict[str, int] | None:
        """Return how many ready pods each node has; None if it is not known.

        Given pods count as they are. Else all workloads are placed by the scheduler's rules.
        """
        context = self._context
        if self.given_pods:
            return dict(self.given_pods)
        if not self.case.workloads or not context.zones:
            return None
        total: Counter[str] = Counter()
        for workload in self.case.workloads:
            if context.replicas_of(workload) > MAX_PODS_MEASURED:
                return None
            total.update(place_evenly(workload, context))
        return dict(total)

    def measure(self, pods_by_node: Mapping[str, int]) -> RoutedTraffic:
        """Return the traffic of a placement."""
        key = tuple(sorted(pods_by_node.items()))
        if key not in self._measured:
            context = self._context
            self._measured[key] = measure_placement(
                self.case.service,
                pods_by_node,
                cluster=context.cluster,
                clients=context.clients,
                settings=context.settings,
            )
        return self._measured[key]

    def advise_replicas(self, max_load: float) -> ReplicaAdvice | None:
        """Return advice about the number of replicas.

        None without zones or a scalable workload, or with one that is bound to zones.
        """
        context = self._context
        scalable = [each for each in self.case.workloads if each.replicas is not None]
        zones = context.zones
        if not scalable or len(zones) < 2 or any(each.zones for each in scalable):
            return None
        replicas = sum(map(context.replicas_of, scalable))
        most = min(MAX_COUNTED, max(2 * replicas, 4 * len(zones)))
        within: list[int] = []
        first = max(replicas, self.least_replicas)
        for count in range(first, min(MAX_COUNTED, first + _TRIED)):
            if len(within) == _ADVISED:
                break
            if self.loses_hints(count):
                continue
            placed = self.measure(spread_over_zones(count, context))
            if 0 < placed.busiest <= max_load * (1 + SHARE_ROUNDING):
                within.append(count)
        return ReplicaAdvice(
            self.case.name,
            replicas,
            tuple(count for count in range(1, most + 1) if self.loses_hints(count)),
            tuple(within),
            self._divide_by_clients(first, max_load),
            max_load,
            context.basis,
        )

    def _divide_by_clients(self, first: int, max_load: float) -> dict[str, int]:
        """Return the first division of at least so many pods that keeps the load."""
        clients = self._context.nodes_by_zone
        total = sum(clients.values())
        for count in range(first, min(MAX_COUNTED, first + _TRIED)):
            pods = {
                zone: least_endpoints(number / total, count, max_load - 1)
                for zone, number in sorted(clients.items())
            }
            for _ in range(count - sum(pods.values())):
                pods[max(pods, key=lambda zone: clients[zone] / (pods[zone] + 1))] += 1
            if sum(pods.values()) != count or self.loses_hints(count):
                continue
            placed = self.measure(place_in_zones(pods, self._context))
            if placed.busiest <= max_load * (1 + SHARE_ROUNDING):
                return pods
        return {}

    def play(self, workload: LintedWorkload, *, workloads: int) -> KeptPromise:
        """Return the shares of rollouts and drains of a workload that keep the promise.

        The more workloads are played in all, the fewer times each.
        """
        context = self._context
        runs = runs_for(workloads, context.replicas_of(workload))
        nodes = context.modelled_nodes
        budgets = context.budgets_of(workload)
        keeps = lru_cache(maxsize=4096)(self._keeps_counts)
        rollouts = play_rollouts(
            workload,
            nodes,
            lambda ready: keeps(frozenset(ready.items()), ""),
            runs=runs,
            has_given_nodes=context.has_given_nodes,
        )
        drains = play_drains(
            workload,
            nodes,
            lambda ready, drained: keeps(frozenset(ready.items()), drained),
            replicas=context.replicas_of(workload),
            budgets=budgets,
            runs=runs,
            has_given_nodes=context.has_given_nodes,
        )
        return KeptPromise(self.case.name, workload.name, rollouts, drains, context.basis)

    def _keeps_counts(self, ready: frozenset[tuple[str, int]], drained: str) -> bool:
        return self.keeps(dict(ready), drained=drained)


def place_evenly(workload: LintedWorkload, context: LintContext) -> Counter[str]:
    """Return how many pods of a workload the scheduler's rules put on each node.

    A DaemonSet has one on each node that runs clients. More pods than can be placed one by one, or
    with more rules, are divided evenly.
    """
    placed = context.placements.get(workload.name)
    if placed is None:
        placed = context.placements[workload.name] = _place(workload, context)
    return placed


def _place(workload: LintedWorkload, context: LintContext) -> Counter[str]:
    if workload.replicas is None:
        return Counter(context.workers.keys())
    replicas = context.replicas_of(workload)
    if replicas > MAX_PODS_PLACED or not can_place(workload.pod):
        return Counter(spread_over_zones(replicas, context))
    model = ModelPods(
        workload, context.modelled_nodes, random=seeded(0), has_given_nodes=context.has_given_nodes
    )
    for _ in range(replicas):
        if not model.add().spec.node_name:
            break
    return Counter(pod.spec.node_name for pod in model.pods if pod.spec.node_name)


def spread_over_zones(count: int, context: LintContext) -> dict[str, int]:
    """Return so many pods, spread evenly over the zones and over the nodes of each zone.

    Where the number cannot be divided, the zones with the fewest clients get more: the scheduler
    may choose so, and then the load is worst.
    """
    zones = sorted(context.zones, key=lambda zone: (context.nodes_by_zone[zone], zone))
    in_zone, rest = divmod(count, max(1, len(zones)))
    return place_in_zones(
        {zone: in_zone + (index < rest) for index, zone in enumerate(zones)}, context
    )


def place_in_zones(by_zone: Mapping[str, int], context: LintContext) -> dict[str, int]:
    """Return so many pods of each zone, spread evenly over its nodes."""
    pods: dict[str, int] = {}
    for zone, count in by_zone.items():
        nodes = context.names_by_zone[zone]
        each, more = divmod(count, len(nodes))
        pods |= {name: each + (number < more) for number, name in enumerate(nodes)}
    return {name: number for name, number in pods.items() if number}
