"""Tries every mechanism on one Service: its slices, its traffic, and the writes to switch to it.

All trials start from the slices that the Service has now, as its controller would have written
them, and share one planner, so that the pods are looked at once. Mechanisms whose slices and ports
are the same share one measurement.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.advise.advice import overload_bound
from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import adopt
from keepclose.advise.mechanism_changes import (
    Mechanism,
    MechanismChange,
    missing_gates,
    switch_to,
    with_mechanism,
)
from keepclose.advise.resolution import measure_slices
from keepclose.advise.routed_traffic import RoutedTraffic
from keepclose.advise.service_objects import ServiceObjects, name_slices
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    ENDPOINT_WEIGHTS_ANNOTATION,
    FOR_REGION_LABEL,
    FOR_ZONE_LABEL,
    ZONE_WEIGHTS_ANNOTATION,
)
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.service_ports import routed_ports
from keepclose.routing.strategy import Strategy, StrategyName
from keepclose.routing.traffic_shares import Shares
from keepclose.slices.service_planner import ServicePlan, ServicePlanner
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.slices.slice_metadata import address_types

AS_IS: Final = "as is"
BY_DEMAND: Final = "Balanced by demand"
CONTROLLER_DEMAND: Final = "keepclose controller --demand=flows"
"""What Balanced by demand needs besides its gates."""
_EXPLAINING: Final = frozenset(
    {
        ReasonCode.INSUFFICIENT_NODE_INFO,
        ReasonCode.NODES_IN_ONE_ZONE,
        ReasonCode.TOO_FEW_ENDPOINTS,
        ReasonCode.OVERLOAD_BOUND,
        ReasonCode.BELOW_START,
        ReasonCode.DOWNGRADED,
        ReasonCode.PADDING_HOLDS_RANDOM,
        ReasonCode.NO_ZONES,
        ReasonCode.NO_READY_ENDPOINTS,
        ReasonCode.ENDPOINT_WITHOUT_ZONE,
        ReasonCode.ENDPOINT_WITHOUT_NODE,
        ReasonCode.HEURISTIC_FAILED,
        ReasonCode.BOUND_RELAXED,
    }
)
"""Codes of reasons why a mechanism does less than asked."""


class MechanismFigures(msgspec.Struct, frozen=True, rename="camel"):
    """What a mechanism does to a Service; shares are parts of the traffic to it."""

    mechanism: str
    in_zone: float
    on_node: float
    failed: float
    busiest: float
    """How many times its fair share the busiest endpoint gets."""
    overloaded: int
    """How many endpoints get more than the bound."""
    zones_without: tuple[str, ...]
    """The zones with clients none of whose traffic stays there."""
    nodes_without: int
    """How many nodes with clients have no ready endpoint."""
    slices: int
    writes: int
    """How many slices are created, updated or deleted to switch."""
    hints_changed: int
    """How many endpoints get other hints."""
    needs: tuple[str, ...] = ()
    """The feature gates and programs that are missing."""
    command: str = ""
    """What switches to it; "" if it governs already."""
    note: str = ""
    """Why it does less than asked, or why it cannot be had."""


class Trial(NamedTuple):
    """A mechanism that was tried: its figures, and where the traffic goes."""

    figures: MechanismFigures
    traffic: RoutedTraffic


class ServiceTrials:
    """The trials of one Service with a selector."""

    def __init__(
        self,
        service: Service,
        objects: ServiceObjects,
        cluster: ClusterNodes,
        settings: PlannerSettings,
        clients: ClientNodes,
    ) -> None:
        """Plan the Service as it is."""
        self._service = service
        self._settings = settings
        self._clients = clients
        self.bound = overload_bound(service)
        self._measured: dict[Hashable, RoutedTraffic] = {}
        self._planner = ServicePlanner(service, cluster=cluster, settings=settings)
        for endpoint_slice in sorted(objects.ours, key=lambda each: each.metadata.name):
            self._planner.observe(endpoint_slice)
        for pod in objects.pods:
            self._planner.set_pod(pod)
        plan = self._planner.plan()
        self.strategy: Strategy = plan.strategy
        self.reasons: tuple[Reason, ...] = (*objects.missing, *plan.reasons)
        self._foreign = objects.foreign
        self.slices = objects.name_planned(plan.slices)
        self._write(plan, objects)
        self.traffic = self._measure(service, self.slices, settings)
        self._nodes_without = self._count_nodes_without()

    @property
    def now(self) -> Trial:
        """The Service as it is."""
        return Trial(self._figures(AS_IS, self.traffic, slices=len(self.slices)), self.traffic)

    def measure(self, change: MechanismChange) -> RoutedTraffic:
        """Return where the traffic would go after a change."""
        key = _change_key(change)
        known = self._measured.get(key)
        if known is None:
            known = self._try(change.mechanism, change, None).traffic
            self._measured[key] = known
        return known

    def try_all(self, demand: Shares | None = None) -> list[Trial]:
        """Return the trials of all mechanisms that do not govern already, in their order.

        A mechanism whose feature gates are off is tried as if they were on, and names them.
        """
        trials: list[Trial] = []
        for mechanism in Mechanism:
            if mechanism is Mechanism.NONE and self.strategy.name is StrategyName.NONE:
                continue
            trial = self._try_mechanism(mechanism, None)
            if trial is not None:
                trials.append(trial)
            if mechanism is Mechanism.BALANCED and demand is not None:
                trial = self._try_mechanism(mechanism, demand)
                if trial is not None:
                    trials.append(trial)
        return trials

    def _try_mechanism(self, mechanism: Mechanism, demand: Shares | None) -> Trial | None:
        settings = with_mechanism(mechanism, self._settings)
        name = mechanism.value if demand is None else BY_DEMAND
        if settings is None:
            return None
        change = switch_to(mechanism, self._service, settings)
        if change is None and demand is not None and self.strategy.name is StrategyName.CUSTOM:
            change = MechanismChange(name, "", self._service, settings)
        if change is None:
            return None
        missing = missing_gates(mechanism, self._settings)
        needs = (
            [f"--feature-gates {','.join(f'{gate}=true' for gate in missing)}"] if missing else []
        )
        if demand is not None:
            needs.append(CONTROLLER_DEMAND)
        return self._try(name, change, demand, tuple(needs))

    def _try(
        self,
        name: str,
        change: MechanismChange,
        demand: Shares | None,
        needs: tuple[str, ...] = (),
    ) -> Trial:
        plan = self._planner.plan_as(change.service, settings=change.settings, shares=demand)
        taken = [each.metadata.name for each in self.slices]
        slices = (*name_slices(plan.slices, taken=taken), *self._foreign)
        traffic = self._measure(change.service, slices, change.settings)
        if demand is None:
            self._measured[_change_key(change)] = traffic
        notes = [reason.message for reason in plan.reasons if reason.code in _EXPLAINING]
        return Trial(
            self._figures(
                name,
                traffic,
                slices=len(slices),
                plan=plan,
                needs=needs,
                command=change.command,
                note=notes[0] if notes else "",
            ),
            traffic,
        )

    def _write(self, plan: ServicePlan, objects: ServiceObjects) -> None:
        """Let the planner see its own writes."""
        kept = {each.metadata.name for each in self.slices}
        for endpoint_slice in objects.ours:
            if endpoint_slice.metadata.name not in kept:
                self._planner.forget(endpoint_slice.metadata.name)
        if not plan.is_empty:
            for endpoint_slice in self.slices[: len(self.slices) - len(self._foreign)]:
                self._planner.observe(adopt(endpoint_slice, self._service))

    def _measure(
        self, service: Service, slices: tuple[EndpointSlice, ...], settings: PlannerSettings
    ) -> RoutedTraffic:
        key = _routing_key(service, slices, settings)
        known = self._measured.get(key)
        if known is None:
            known = measure_slices(
                service, slices, self._clients, gates=settings.gates, bound=self.bound
            )
            self._measured[key] = known
        return known

    def _count_nodes_without(self) -> int:
        homes = {
            endpoint.node_name
            for endpoint_slice in self.slices
            for endpoint in endpoint_slice.endpoints
            if endpoint.conditions.ready is not False and endpoint.node_name
        }
        return len(self._clients) - sum(self._clients.weight_of(home) > 0 for home in homes)

    def _figures(
        self,
        name: str,
        traffic: RoutedTraffic,
        *,
        slices: int,
        plan: ServicePlan | None = None,
        needs: tuple[str, ...] = (),
        command: str = "",
        note: str = "",
    ) -> MechanismFigures:
        plans = () if plan is None else plan.plans.values()
        return MechanismFigures(
            mechanism=name,
            in_zone=traffic.in_zone,
            on_node=traffic.on_node,
            failed=traffic.failed,
            busiest=traffic.busiest,
            overloaded=traffic.overloaded,
            zones_without=zones_without(traffic, self._clients.by_zone()),
            nodes_without=self._nodes_without,
            slices=slices,
            writes=0 if plan is None else plan.writes,
            hints_changed=sum(each.rehinted for each in plans),
            needs=needs,
            command=command,
            note=note,
        )


def zones_without(traffic: RoutedTraffic, clients: Mapping[str, float]) -> tuple[str, ...]:
    """Return the zones with clients none of whose traffic stays there."""
    own = {source for source, target, share in traffic.zones if source == target and share > 0}
    return tuple(zone for zone in clients if zone and zone not in own)


def _change_key(change: MechanismChange) -> Hashable:
    return (
        "change",
        tuple(sorted(change.service.metadata.annotations.items())),
        change.service.spec.traffic_distribution,
        change.settings.gates.enabled,
    )


def _routing_key(
    service: Service, slices: tuple[EndpointSlice, ...], settings: PlannerSettings
) -> Hashable:
    """Return what the endpoints of nodes depend on, apart from the pods."""
    ports = tuple(
        port
        for family in address_types(service)
        for port in routed_ports(service, family, gates=settings.gates, assume_allocated=True)
    )
    hints: list[Hashable] = []
    is_plain = True
    for endpoint_slice in slices:
        labels, notes = endpoint_slice.metadata.labels, endpoint_slice.metadata.annotations
        marks = (
            labels.get(FOR_ZONE_LABEL),
            labels.get(FOR_REGION_LABEL),
            notes.get(ZONE_WEIGHTS_ANNOTATION),
            notes.get(ENDPOINT_WEIGHTS_ANNOTATION),
        )
        endpoints = endpoint_slice.endpoints
        if any(marks) or any(endpoint.hints is not None for endpoint in endpoints):
            is_plain = False
        hints.append((marks, tuple([(each.addresses, each.hints) for each in endpoints])))
    if is_plain:
        # Nodes have nothing to follow, so it does not matter whether they would.
        return "plain", tuple(
            replace(port, honours_hints=True, follows_weights=False) for port in ports
        )
    return tuple(hints), ports, settings.gates.enabled
