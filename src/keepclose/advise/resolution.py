"""What would happen to each Service: mechanism, slices, events, and what every node would use.

This module only combines: the plan comes from the slices package, the result for each node from the
selection, and the reasons from both. Changes that may help are tried here, and judged by `advice`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

import msgspec
from msgspec.structs import replace

from keepclose.advise.advice import find_advice, overload_bound
from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory, adopt, pods_in_slices
from keepclose.advise.mechanism_changes import OVERRIDES, MechanismChange
from keepclose.advise.routed_traffic import PortWithEndpoints, RoutedTraffic, measure_traffic
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

DUMP_COMMAND = "kubectl get nodes,pods,services,endpointslices -A -o yaml > cluster.yaml"
"""The command that dumps all objects that a resolution needs."""
_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


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
    ports = _ports_with_endpoints(service, slices, gates)
    return measure_traffic(ports, clients, gates=gates, bound=bound)


def plan_slices(
    service: Service, inventory: Inventory, cluster: ClusterNodes, settings: PlannerSettings
) -> ResolvedService:
    """Return the mechanism and the slices that the Service would have; `nodes` is empty.

    The Service must have been admitted.
    """
    present = inventory.slices.get(service.key, ())
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
        return _plan_by_hand(service, inventory, present, strategy)
    ours = [
        adopt(endpoint_slice, service)
        for endpoint_slice in present
        if endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL) == settings.managed_by
    ]
    foreign = [
        endpoint_slice
        for endpoint_slice in present
        if endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL) != settings.managed_by
    ]
    pods: list[Pod] = inventory.pods_of(service)
    missing: tuple[Reason, ...] = ()
    if not pods and (slice_pods := pods_in_slices(service, ours)):
        missing = (_pods_missing(service, inventory, len(slice_pods)),)
        if not inventory.pods.get(service.metadata.namespace):
            pods = slice_pods
    plan = plan_service(
        service,
        pods=pods,
        slices=ours,
        cluster=cluster,
        settings=settings,
    )
    return ResolvedService(
        service,
        plan.strategy,
        reasons=(*missing, *plan.reasons),
        slices=_with_names(
            plan.slices, taken=(endpoint_slice.metadata.name for endpoint_slice in present)
        )
        + tuple(foreign),
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


def _pods_missing(service: Service, inventory: Inventory, count: int) -> Reason:
    """Return the reason that reports endpoints without Pods.

    An input without any Pod of the namespace was made without its Pods. Among other Pods of the
    namespace, those of this Service are deleted, and a controller would empty its slices.
    """
    counted = f"{count} endpoint" + ("" if count == 1 else "s")
    namespace = service.metadata.namespace
    if not inventory.pods.get(namespace):
        where = f" of namespace {namespace}" if inventory.pods else ""
        were = "was" if count == 1 else "were"
        message = f"the input has no Pods{where}, so {counted} {were} taken from the EndpointSlices"
    else:
        message = (
            f"the EndpointSlices have {counted} and the input has none of their Pods, "
            "so they count as deleted"
        )
    return Reason(
        ReasonCode.PODS_MISSING, message, subject=f"Service {service.key}", fix=DUMP_COMMAND
    )


def _plan_by_hand(
    service: Service,
    inventory: Inventory,
    present: tuple[EndpointSlice, ...],
    strategy: Strategy,
) -> ResolvedService:
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
        _with_names(slices, taken=(endpoint_slice.metadata.name for endpoint_slice in present))
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
    ports = _ports_with_endpoints(service, slices, gates)
    return {
        view.name: tuple(
            ResolvedPort(port, family, select(port, endpoints, node=view, gates=gates))
            for port, family, endpoints in ports
        )
        for view in views
    }


def _ports_with_endpoints(
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


def _with_names(
    slices: Iterable[EndpointSlice], *, taken: Iterable[str]
) -> tuple[EndpointSlice, ...]:
    """Return the slices with names for new ones, as an API server would generate them.

    The names depend on the position of a slice alone, so that the same input gives the same output.
    """
    used = set(taken)
    named: list[EndpointSlice] = []
    for endpoint_slice in slices:
        meta = endpoint_slice.metadata
        if not meta.name:
            number = 0
            while True:
                name = meta.generate_name + _suffix(f"{meta.generate_name}{len(named)}/{number}")
                if name not in used:
                    break
                number += 1
            used.add(name)
            meta = replace(meta, name=name)
        if any(not owner.uid for owner in meta.owner_references):
            # The Service has no uid, and an owner reference without a uid would be invalid.
            meta = replace(meta, owner_references=())
        if meta is not endpoint_slice.metadata:
            endpoint_slice = replace(endpoint_slice, metadata=meta)  # noqa: PLW2901 (the same slice, named)
        named.append(endpoint_slice)
    return tuple(named)


def _suffix(seed: str) -> str:
    digest = hashlib.sha256(seed.encode()).digest()
    return "".join(_NAME_ALPHABET[byte % len(_NAME_ALPHABET)] for byte in digest[:5])
