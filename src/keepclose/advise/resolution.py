"""What would happen to each Service: mechanism, slices, events, and what every node would use.

This only carries: the plan comes from the slices package, the answer for each node from the
selection, and the reasons from both. What would help is tried here, and judged by `advice`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from keepclose.advise.advice import RoutedTraffic, find_changes, measure_traffic
from keepclose.advise.inventory import Inventory, adopt, pods_in_slices
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import MANAGED_BY_LABEL, MIRRORING_CONTROLLER, PROXY_NAME_LABEL
from keepclose.model.workload import Pod
from keepclose.routing.port_endpoints import (
    NodeView,
    PortEndpoint,
    collect_endpoints,
    labels_by_node,
)
from keepclose.routing.reasons import Reason, ReasonCode, TopologyEvent
from keepclose.routing.selection import Selection, select
from keepclose.routing.service_ports import RoutedPort, routed_ports
from keepclose.routing.strategy import Strategy, choose_strategy
from keepclose.slices.mirroring import mirror
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import Cluster, Settings
from keepclose.slices.slice_metadata import address_types

DUMP_COMMAND = "kubectl get nodes,pods,services,endpointslices -A -o yaml > cluster.yaml"
"""What dumps all objects that an answer needs."""
_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class ResolvedPort(msgspec.Struct, frozen=True):
    """What one node uses for one port of a Service, in one address family."""

    port: RoutedPort
    family: str
    selection: Selection

    @property
    def title(self) -> str:
        """The port as results are filed under it, such as "IPv4 tcp/http"."""
        return f"{self.family} {self.port.transport}/{self.port.name}"


class ResolvedService(msgspec.Struct, frozen=True):
    """One Service, what its slices would hold, and what each node would make of them."""

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
    settings: Settings,
    service: NamespacedName | None = None,
    node: str | None = None,
) -> tuple[ResolvedService, ...]:
    """Return the answer for every Service, or for one of them, on every node or one of them.

    Services must have been admitted. Nothing asked for that exists gives ().
    """
    cluster = Cluster.of(inventory.nodes)
    nodes, labels = inventory.nodes, labels_by_node(inventory.nodes)
    views = [NodeView.of(one, labels) for one in nodes if node in (None, one.name)]
    senders = [NodeView.of(one, labels) for one in nodes if one.is_ready]
    return tuple(
        _resolve_service(one, inventory, cluster, settings=settings, views=views, senders=senders)
        for one in inventory.services
        if service in (None, one.key)
    )


def _resolve_service(
    service: Service,
    inventory: Inventory,
    cluster: Cluster,
    *,
    settings: Settings,
    views: list[NodeView],
    senders: list[NodeView],
) -> ResolvedService:
    planned = _plan(service, inventory, cluster, settings)
    planned = _advise(planned, inventory, cluster, settings=settings, senders=senders)
    return replace(planned, nodes=_route(service, planned.slices, views, settings))


def _advise(
    planned: ResolvedService,
    inventory: Inventory,
    cluster: Cluster,
    *,
    settings: Settings,
    senders: list[NodeView],
) -> ResolvedService:
    """Return the answer with the command of every change that helps without harm.

    `senders` are the nodes that clients run on, whichever nodes the answer is about.
    """
    reasons = (*planned.strategy.reasons, *planned.reasons)
    changes = find_changes(planned.service, reasons, settings)
    if not changes:
        return planned
    now = _measure(planned, senders, settings)
    commands: dict[Reason, str] = {}
    for reason, change in changes.items():
        trial = _plan(change.service, inventory, cluster, change.settings)
        if _measure(trial, senders, change.settings).is_better_than(now):
            commands[reason] = change.command

    def advised(given: tuple[Reason, ...]) -> tuple[Reason, ...]:
        return tuple(replace(one, fix=commands.get(one, one.fix)) for one in given)

    return replace(
        planned,
        strategy=replace(planned.strategy, reasons=advised(planned.strategy.reasons)),
        reasons=advised(planned.reasons),
    )


def _measure(
    planned: ResolvedService, senders: list[NodeView], settings: Settings
) -> RoutedTraffic:
    routed = _route(planned.service, planned.slices, senders, settings)
    return measure_traffic(
        (view, port.title, port.selection) for view in senders for port in routed[view.name]
    )


def _plan(
    service: Service, inventory: Inventory, cluster: Cluster, settings: Settings
) -> ResolvedService:
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
        adopt(one, service)
        for one in present
        if one.metadata.labels.get(MANAGED_BY_LABEL) == settings.managed_by
    ]
    foreign = [
        one for one in present if one.metadata.labels.get(MANAGED_BY_LABEL) != settings.managed_by
    ]
    pods: list[Pod] = inventory.pods_of(service)
    missing: tuple[Reason, ...] = ()
    if not pods and (known := pods_in_slices(service, ours)):
        missing = (_pods_missing(service, inventory, len(known)),)
        if not inventory.pods:
            pods = known
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
        slices=_named(plan.slices, taken=(one.metadata.name for one in present)) + tuple(foreign),
        events=plan.events,
        conditions=plan.conditions,
        errors=plan.errors,
    )


def _pods_missing(service: Service, inventory: Inventory, count: int) -> Reason:
    """Return the reason that tells of endpoints without Pods.

    Without any Pod at all the Pods were not asked for. Among other Pods, those of this Service may
    just be gone, so the slices are taken for old ones; the reason leaves no doubt about it.
    """
    counted = f"{count} endpoint" + ("" if count == 1 else "s")
    if not inventory.pods:
        were = "was" if count == 1 else "were"
        message = f"the input has no Pods, so {counted} {were} taken from the EndpointSlices"
    else:
        message = (
            f"the EndpointSlices have {counted} and the input has none of their Pods, "
            "so they are taken for gone"
        )
    return Reason(
        ReasonCode.PODS_MISSING,
        message,
        subject=f"Service {service.key}",
        fix=DUMP_COMMAND,
    )


def _plan_by_hand(
    service: Service,
    inventory: Inventory,
    present: tuple[EndpointSlice, ...],
    strategy: Strategy,
) -> ResolvedService:
    reason = Reason(
        ReasonCode.NO_SELECTOR,
        "the Service has no selector, so its endpoints and their hints are made by hand",
        subject=f"Service {service.key}",
    )
    mirrored = [
        one for one in present if one.metadata.labels.get(MANAGED_BY_LABEL) == MIRRORING_CONTROLLER
    ]
    others = tuple(one for one in present if one not in mirrored)
    result = mirror(inventory.endpoints.get(service.key), service, existing=mirrored)
    slices = (*result.plan.update, *result.plan.unchanged, *result.plan.create)
    return ResolvedService(
        service,
        strategy,
        (reason,),
        _named(slices, taken=(one.metadata.name for one in present)) + others,
        events=tuple(TopologyEvent("Warning", e.reason, e.message) for e in result.events),
    )


def _route(
    service: Service, slices: Iterable[EndpointSlice], views: list[NodeView], settings: Settings
) -> dict[str, tuple[ResolvedPort, ...]]:
    if PROXY_NAME_LABEL in service.metadata.labels:
        # Another proxy was put in charge of the Service; nodes of ours know nothing of it.
        return {view.name: () for view in views}
    gates = settings.gates
    ports: list[tuple[RoutedPort, str, tuple[PortEndpoint, ...]]] = []
    listed = tuple(slices)
    for family in address_types(service):
        known = collect_endpoints(listed, family, gates=gates)
        ports.extend(
            (port, family, known.get(port.key, ()))
            for port in routed_ports(service, family, gates=gates, assume_allocated=True)
        )
    return {
        view.name: tuple(
            ResolvedPort(port, family, select(port, endpoints, node=view, gates=gates))
            for port, family, endpoints in ports
        )
        for view in views
    }


def _named(slices: Iterable[EndpointSlice], *, taken: Iterable[str]) -> tuple[EndpointSlice, ...]:
    """Return the slices with names for those to create, as an API server would make them up.

    The names follow from the content's place alone, so that the same input gives the same output.
    """
    used = set(taken)
    named: list[EndpointSlice] = []
    for one in slices:
        meta = one.metadata
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
            # The Service came without a uid, and an owner without one would not be valid.
            meta = replace(meta, owner_references=())
        if meta is not one.metadata:
            one = replace(one, metadata=meta)  # noqa: PLW2901 (the same slice, named)
        named.append(one)
    return tuple(named)


def _suffix(seed: str) -> str:
    digest = hashlib.sha256(seed.encode()).digest()
    return "".join(_NAME_ALPHABET[byte % len(_NAME_ALPHABET)] for byte in digest[:5])
