"""What would happen to each Service: mechanism, slices, events, and what every node would use.

This module only combines: the plan comes from the slices package, the result for each node from the
selection, and the reasons from both. Changes that may help are tried here, and judged by `advice`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
from msgspec.structs import replace

from keepclose.advise.advice import find_advice, overload_bound
from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import OVERRIDES, MechanismChange
from keepclose.advise.routed_traffic import PortWithEndpoints, RoutedTraffic, measure_traffic
from keepclose.advise.service_objects import DUMP_COMMAND, gather_objects, name_slices
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
    PROXY_NAME_LABEL,
)
from keepclose.model.workload import Pod
from keepclose.routing.port_endpoints import NodeView, collect_endpoints, labels_by_node
from keepclose.routing.reasons import NO_EFFECT_CODES, Reason, ReasonCode, TopologyEvent
from keepclose.routing.selection import Selection, select
from keepclose.routing.service_ports import RoutedPort, routed_ports
from keepclose.routing.strategy import Strategy, choose_strategy
from keepclose.slices.mirroring import plan_mirroring
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.slices.slice_metadata import address_types

__all__ = [
    "DUMP_COMMAND",
    "ResolvedPort",
    "ResolvedService",
    "advise_changes",
    "ignored_reasons",
    "measure_slices",
    "plan_as_asked",
    "plan_slices",
    "resolve_services",
]


class ResolvedPort(msgspec.Struct, frozen=True):
    """The endpoints that one node uses for one port of a Service, in one address family."""

    port: RoutedPort
    family: str
    selection: Selection

    @property
    def title(self) -> str:
        """The port as results are keyed by it, such as "IPv4 tcp/http"."""
        return f"{self.family} {self.port.transport}/{self.port.name}"


class ResolvedService(msgspec.Struct, frozen=True):
    """One Service, the slices that it would have, and what each node would select from them."""

    service: Service
    strategy: Strategy
    reasons: tuple[Reason, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    events: tuple[TopologyEvent, ...] = ()
    conditions: tuple[Condition, ...] = ()
    errors: tuple[str, ...] = ()
    nodes: dict[str, tuple[ResolvedPort, ...]] = {}


def resolve_services(
    inventory: Inventory,
    *,
    settings: PlannerSettings,
    service: NamespacedName | None = None,
    node: str | None = None,
) -> tuple[ResolvedService, ...]:
    """Return the result for every Service, or for one of them, on every node or one of them.

    Services must have been admitted. A Service that does not exist gives ().
    """
    cluster = ClusterNodes.of(inventory.nodes)
    nodes, labels = inventory.nodes, labels_by_node(inventory.nodes)
    views = [NodeView.of(each, labels) for each in nodes if node in (None, each.name)]
    senders = ClientNodes(NodeView.of(each, labels) for each in nodes if each.is_ready)
    return tuple(
        _resolve_service(each, inventory, cluster, settings=settings, views=views, senders=senders)
        for each in inventory.services
        if service in (None, each.key)
    )


def _resolve_service(
    service: Service,
    inventory: Inventory,
    cluster: ClusterNodes,
    *,
    settings: PlannerSettings,
    views: list[NodeView],
    senders: ClientNodes,
) -> ResolvedService:
    planned = plan_slices(service, inventory, cluster, settings)
    planned = advise_changes(planned, inventory, cluster, settings=settings, senders=senders)
    return replace(planned, nodes=_route(service, planned.slices, views, settings))


def advise_changes(
    planned: ResolvedService,
    inventory: Inventory,
    cluster: ClusterNodes,
    *,
    settings: PlannerSettings,
    senders: Iterable[NodeView] | ClientNodes,
) -> ResolvedService:
    """Return the result with the command of every change that helps without harm, and its effect.

    The command replaces the `fix` of the reason that it helps against, and `effect` of the reason
    says what becomes of the traffic. `senders` are the nodes that clients run on, whichever nodes
    the result is about; each sends the same amount, unless `ClientNodes` weigh them. Changes are
    tried from the planned slices on, as in a cluster whose controller has written them.
    """
    reasons = (*planned.strategy.reasons, *planned.reasons)
    clients = senders if isinstance(senders, ClientNodes) else ClientNodes(senders)
    bound = overload_bound(planned.service)
    written = replace(inventory, slices={planned.service.key: planned.slices})

    def measure(change: MechanismChange) -> RoutedTraffic:
        trial = plan_slices(change.service, written, cluster, change.settings)
        return measure_slices(
            change.service, trial.slices, clients, gates=change.settings.gates, bound=bound
        )

    @cache
    def now() -> RoutedTraffic:
        return measure_slices(
            planned.service, planned.slices, clients, gates=settings.gates, bound=bound
        )

    advice = find_advice(planned.service, reasons, settings, now=now, measure=measure)
    if not advice:
        return planned

    def advised(untried: tuple[Reason, ...]) -> tuple[Reason, ...]:
        return tuple(
            replace(reason, fix=advice[reason].command, effect=advice[reason].effect)
            if reason in advice
            else reason
            for reason in untried
        )

    return replace(
        planned,
        strategy=replace(planned.strategy, reasons=advised(planned.strategy.reasons)),
        reasons=advised(planned.reasons),
    )


def measure_slices(
    service: Service,
    slices: Iterable[EndpointSlice],
    clients: ClientNodes,
    *,
    gates: FeatureGates,
    bound: float,
) -> RoutedTraffic:
    """Return where the traffic of a Service with these slices goes, see `measure_traffic`."""
    ports = ports_with_endpoints(service, slices, gates)
    return measure_traffic(ports, clients, gates=gates, bound=bound)


def plan_slices(
    service: Service,
    inventory: Inventory,
    cluster: ClusterNodes,
    settings: PlannerSettings,
    *,
    pods: Sequence[Pod] | None = None,
) -> ResolvedService:
    """Return the mechanism and the slices that the Service would have; `nodes` is empty.

    The Service must have been admitted. `pods` are those that it selects, if the caller knows them.
    """
    strategy = choose_strategy(
        service,
        gates=settings.gates,
        default_subsetting=settings.subsets.default,
        heuristics=settings.heuristics,
    )
    if service.spec.type == "ExternalName":
        reason = Reason(ReasonCode.EXTERNAL_NAME, "an ExternalName Service is only a DNS name")
        return ResolvedService(service, strategy, (reason,))
    if service.spec.selector is None:
        return _plan_by_hand(service, inventory, strategy)
    objects = gather_objects(service, inventory, settings.managed_by, pods)
    plan = plan_service(
        service, pods=objects.pods, slices=objects.ours, cluster=cluster, settings=settings
    )
    return ResolvedService(
        service,
        plan.strategy,
        reasons=(*objects.missing, *plan.reasons),
        slices=objects.name_planned(plan.slices),
        events=plan.events,
        conditions=plan.conditions,
        errors=plan.errors,
    )


def plan_as_asked(
    planned: ResolvedService,
    inventory: Inventory,
    cluster: ClusterNodes,
    settings: PlannerSettings,
) -> tuple[ResolvedService, PlannerSettings]:
    """Return the plan as if every field and annotation of the Service had an effect."""
    reasons = ignored_reasons(planned)
    if not reasons:
        return planned, settings
    subjects = {reason.subject for reason in reasons}
    gates = settings.gates
    for gate in Gate:
        if f"FeatureGate {gate}" in subjects:
            gates = gates.with_gates(gate)
    changed, service = replace(settings, gates=gates), planned.service
    if any(reason.code is ReasonCode.OVERRIDDEN for reason in reasons):
        kept = {
            key: text for key, text in service.metadata.annotations.items() if key not in OVERRIDES
        }
        service = replace(
            service,
            metadata=replace(service.metadata, annotations=kept),
            spec=replace(service.spec, topology_keys=()),
        )
    return plan_slices(service, inventory, cluster, changed), changed


def ignored_reasons(planned: ResolvedService) -> list[Reason]:
    """Return why fields or annotations of the Service have no effect."""
    return [reason for reason in planned.strategy.reasons if reason.code in NO_EFFECT_CODES]


def _plan_by_hand(service: Service, inventory: Inventory, strategy: Strategy) -> ResolvedService:
    present = inventory.slices.get(service.key, ())
    reason = Reason(
        ReasonCode.NO_SELECTOR,
        "the Service has no selector, so its endpoints and their hints are managed by hand",
        subject=f"Service {service.key}",
    )
    mirrored = [
        endpoint_slice
        for endpoint_slice in present
        if endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL) == MIRRORING_CONTROLLER
    ]
    others = tuple(endpoint_slice for endpoint_slice in present if endpoint_slice not in mirrored)
    if service.key not in inventory.endpoints:
        # Few inputs have Endpoints. Without them nothing says that the mirrored slices are stale.
        return ResolvedService(service, strategy, (reason,), (*mirrored, *others))
    result = plan_mirroring(inventory.endpoints.get(service.key), service, existing=mirrored)
    slices = (*result.plan.update, *result.plan.unchanged, *result.plan.create)
    return ResolvedService(
        service,
        strategy,
        (reason,),
        name_slices(slices, taken=(endpoint_slice.metadata.name for endpoint_slice in present))
        + others,
        events=tuple(TopologyEvent("Warning", e.reason, e.message) for e in result.events),
    )


def _route(
    service: Service,
    slices: Iterable[EndpointSlice],
    views: list[NodeView],
    settings: PlannerSettings,
) -> dict[str, tuple[ResolvedPort, ...]]:
    gates = settings.gates
    ports = ports_with_endpoints(service, slices, gates)
    return {
        view.name: tuple(
            ResolvedPort(port, family, select(port, endpoints, node=view, gates=gates))
            for port, family, endpoints in ports
        )
        for view in views
    }


def ports_with_endpoints(
    service: Service, slices: Iterable[EndpointSlice], gates: FeatureGates
) -> list[PortWithEndpoints]:
    """Return the ports that nodes route; none if another proxy serves the Service."""
    if PROXY_NAME_LABEL in service.metadata.labels:
        return []
    listed = tuple(slices)
    ports: list[PortWithEndpoints] = []
    for family in address_types(service):
        endpoints_by_port = collect_endpoints(listed, family, gates=gates)
        ports.extend(
            PortWithEndpoints(port, family, endpoints_by_port.get(port.key, ()))
            for port in routed_ports(service, family, gates=gates, assume_allocated=True)
        )
    return ports
