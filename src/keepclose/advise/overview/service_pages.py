"""All about one Service: where its traffic goes and why, what would help, and other mechanisms.

The page shows the slices that exist. Causes are those of `explaining`; reasons and advice are those
of the plan that a controller with these settings would make. A preview is the same trial as that of
`advice`: the changed Service is planned from the planned slices on, and every node selects from the
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.advise.advice import find_harm, helps, overload_bound
from keepclose.advise.clients import ClientNodes
from keepclose.advise.explaining.causes import CauseWeight
from keepclose.advise.explaining.explanation import TrafficFlow, explain_service
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import (
    Mechanism,
    MechanismChange,
    is_governed,
    missing_gates,
    switch_to,
    why_unadvisable,
    with_mechanism,
)
from keepclose.advise.overview.service_rows import (
    TrafficState,
    choose_mechanism,
    judge_traffic,
    select_by_group,
    show_arcs,
)
from keepclose.advise.resolution import (
    ResolvedService,
    advise_changes,
    plan_slices,
    ports_with_endpoints,
)
from keepclose.advise.routed_traffic import PortWithEndpoints, RoutedTraffic, measure_traffic
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.plain_text import make_plain
from keepclose.model.service.types import Service
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.selection import Selection
from keepclose.slices.settings import ClusterNodes, PlannerSettings

MAX_SHOWN_ENDPOINTS: Final = 2000
"""How many endpoints a page lists; the figures are about all of them."""
_MAX_REASONS: Final = 40
_MAX_GROUP_REASONS: Final = 6


class ClusterFacts(NamedTuple):
    """What all pages of one state of a cluster share."""

    nodes: ClusterNodes
    clients: ClientNodes
    """The ready nodes."""
    settings: PlannerSettings


class ShownCause(msgspec.Struct, frozen=True, rename="camel"):
    """What is to blame, as text."""

    weight: CauseWeight
    message: str
    fix: str = ""
    effect: str = ""


class ShownReason(msgspec.Struct, frozen=True, rename="camel"):
    """A reason as text."""

    code: ReasonCode
    message: str
    fix: str = ""
    effect: str = ""


class ShownEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint of a Service, and the load that nodes send to it."""

    name: str
    address: str
    node: str
    zone: str
    is_ready: bool
    is_terminating: bool
    hints: tuple[str, ...]
    """The zones and nodes that it is hinted for."""
    load: float
    """The part of the traffic of the Service."""
    near: float
    """The part of this load that comes from its own zone."""


class RoutedNodes(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes that use the same endpoints: one by its name, or all others of a zone and region."""

    zone: str
    region: str
    node: str
    """"" if the group is not one node alone."""
    shares: tuple[tuple[str, float], ...]
    """By the zone of the endpoint; none if connections fail."""
    reasons: tuple[str, ...]


class ServiceTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """Where the traffic of a Service goes with some slices."""

    in_zone: float
    on_node: float
    failed: float
    busiest: float
    busiest_endpoint: str
    bound: float
    """The part above its fair share that an endpoint may carry."""
    ready: int
    arcs: tuple[tuple[str, str, float], ...]
    groups: tuple[RoutedNodes, ...]
    endpoints: tuple[ShownEndpoint, ...]
    unlisted: int = 0
    """How many endpoints are not listed."""


class MechanismChoice(msgspec.Struct, frozen=True, rename="camel"):
    """A mechanism that a preview can be asked for."""

    name: Mechanism
    gates: tuple[str, ...] = ()
    """The feature gates that it needs and that are off."""


class ServicePage(msgspec.Struct, frozen=True, rename="camel"):
    """All about one Service."""

    namespace: str
    name: str
    resource_version: str
    mechanism: str
    source: str
    """The field or annotation that asks for the mechanism; "" if nothing does."""
    state: TrafficState
    flow: TrafficFlow
    """Whether connections arrive, and go as the Service asks."""
    traffic: ServiceTraffic
    causes: tuple[ShownCause, ...]
    reasons: tuple[ShownReason, ...]
    """How the plan was decided, without what causes say."""
    pending: str
    """What a controller would still change; "" if the slices are as planned."""
    choices: tuple[MechanismChoice, ...]
    fixed: str
    """Why nothing can be previewed; "" if it can."""


class ServicePreview(msgspec.Struct, frozen=True, rename="camel"):
    """What a Service would come to with another mechanism."""

    mechanism: Mechanism
    resource_version: str
    command: str
    """What makes the change; "" if the mechanism governs already."""
    effect: str
    harm: str
    """What becomes worse; "" if nothing."""
    is_gain: bool
    """Whether it brings traffic closer, and makes nothing worse."""
    gates: tuple[str, ...]
    """The feature gates that must be switched on first."""
    traffic: ServiceTraffic
    reasons: tuple[ShownReason, ...]


def build_page(service: Service, inventory: Inventory, facts: ClusterFacts) -> ServicePage:
    """Return the page of a Service; the inventory needs its slices and the pods it selects."""
    settings = facts.settings
    slices = inventory.slices.get(service.key, ())
    ports = ports_with_endpoints(service, slices, settings.gates)
    now = _measure(service, ports, facts)
    planned = plan_slices(service, inventory, facts.nodes, settings)
    planned = advise_changes(
        planned, inventory, facts.nodes, settings=settings, senders=facts.clients
    )
    then = _measure(service, ports_with_endpoints(service, planned.slices, settings.gates), facts)
    explained = explain_service(inventory, service, settings=settings)
    causes = tuple(
        ShownCause(
            cause.weight,
            make_plain(cause.message),
            make_plain(cause.fix),
            make_plain(cause.effect),
        )
        for cause in explained.causes[:_MAX_REASONS]
    )
    said = {cause.message for cause in causes}
    reasons = _show_reasons(_reasons_of(planned))
    fixed = why_unadvisable(service)
    return ServicePage(
        namespace=make_plain(service.metadata.namespace),
        name=make_plain(service.metadata.name),
        resource_version=service.metadata.resource_version,
        mechanism=make_plain(planned.strategy.label),
        source=make_plain(planned.strategy.source),
        # NB: by the same mechanism as the line of the Service, so that both have the same word.
        state=judge_traffic(
            now, ports, choose_mechanism(service, settings), facts.clients, settings.gates
        ),
        traffic=_show_traffic(service, ports, now, slices, facts),
        flow=explained.flow,
        causes=causes,
        reasons=tuple(reason for reason in reasons if reason.message not in said),
        pending="" if _is_alike(now, then) else then.describe_change(now),
        choices=() if fixed else tuple(_choices(settings)),
        fixed=fixed,
    )


def preview_mechanism(
    service: Service, mechanism: Mechanism, inventory: Inventory, facts: ClusterFacts
) -> ServicePreview | str:
    """Return what the mechanism would do to the Service, or why that cannot be shown."""
    if fixed := why_unadvisable(service):
        return fixed
    settings = with_mechanism(mechanism, facts.settings)
    if settings is None:
        return "its feature gates and one that is on exclude each other"
    planned = plan_slices(service, inventory, facts.nodes, facts.settings)
    change = switch_to(mechanism, service, settings)
    if change is None:
        if not is_governed(mechanism, service, settings):
            label = make_plain(choose_mechanism(service, settings).label)
            return f"{label} decides about this Service, and a change of mechanism leaves it"
        change = MechanismChange(mechanism, "", service, settings)
    written = replace(inventory, slices={service.key: planned.slices})
    trial = plan_slices(change.service, written, facts.nodes, change.settings)
    bound = overload_bound(service)
    now_ports = ports_with_endpoints(
        service, inventory.slices.get(service.key, ()), facts.settings.gates
    )
    then_ports = ports_with_endpoints(change.service, trial.slices, change.settings.gates)
    now = _measure(service, now_ports, facts)
    changed = facts._replace(settings=change.settings)
    then = _measure(change.service, then_ports, changed)
    return ServicePreview(
        mechanism=mechanism,
        resource_version=service.metadata.resource_version,
        command=make_plain(change.command),
        effect=then.describe_change(now),
        harm=find_harm(then, now, bound=bound),
        is_gain=helps(then, now, bound=bound),
        gates=tuple(gate.value for gate in missing_gates(mechanism, facts.settings)),
        traffic=_show_traffic(change.service, then_ports, then, trial.slices, changed),
        reasons=_show_reasons(_reasons_of(trial)),
    )


def _choices(settings: PlannerSettings) -> Iterable[MechanismChoice]:
    for mechanism in Mechanism:
        if with_mechanism(mechanism, settings) is not None:
            gates = tuple(gate.value for gate in missing_gates(mechanism, settings))
            yield MechanismChoice(mechanism, gates)


def _measure(
    service: Service, ports: Sequence[PortWithEndpoints], facts: ClusterFacts
) -> RoutedTraffic:
    return measure_traffic(
        ports, facts.clients, gates=facts.settings.gates, bound=overload_bound(service)
    )


def _is_alike(now: RoutedTraffic, then: RoutedTraffic) -> bool:
    return now.ready == then.ready and now.describe_change(now) == then.describe_change(now)


def _reasons_of(planned: ResolvedService) -> tuple[Reason, ...]:
    return (*planned.strategy.reasons, *planned.reasons)


def _show_reasons(reasons: Iterable[Reason]) -> tuple[ShownReason, ...]:
    shown = dict.fromkeys(
        ShownReason(
            reason.code,
            make_plain(reason.message),
            # NB: a dump of the objects is for those who read files.
            "" if reason.code is ReasonCode.PODS_MISSING else make_plain(reason.fix),
            make_plain(reason.effect),
        )
        for reason in reasons
    )
    return tuple(shown)[:_MAX_REASONS]


class _Load:
    """What nodes send to one endpoint."""

    __slots__ = ("all", "near")

    def __init__(self) -> None:
        self.all = self.near = 0.0


def _show_traffic(
    service: Service,
    ports: Sequence[PortWithEndpoints],
    traffic: RoutedTraffic,
    slices: Iterable[EndpointSlice],
    facts: ClusterFacts,
) -> ServiceTraffic:
    loads: dict[str, _Load] = {}
    groups: dict[tuple[str, str, str], list[Selection]] = {}
    sent = 0.0
    for port in ports:
        for group, selection in select_by_group(port, facts.clients, facts.settings.gates):
            view = group.view
            key = view.zone, view.region, view.name if group.is_single else ""
            groups.setdefault(key, []).append(selection)
            chosen = selection.internal.endpoints
            sent += group.weight
            whole = sum(endpoint.weight for endpoint in chosen)
            for endpoint in chosen:
                load = loads.setdefault(endpoint.address, _Load())
                part = group.weight * endpoint.weight / whole
                load.all += part
                load.near += part if view.zone and view.zone == endpoint.zone else 0.0
    endpoints = _show_endpoints(slices, loads, sent)
    return ServiceTraffic(
        in_zone=traffic.in_zone,
        on_node=traffic.on_node,
        failed=traffic.failed,
        busiest=traffic.busiest,
        busiest_endpoint=make_plain(traffic.busiest_endpoint),
        bound=overload_bound(service),
        ready=traffic.ready,
        arcs=show_arcs(traffic),
        groups=tuple(_show_group(key, selections) for key, selections in sorted(groups.items())),
        endpoints=endpoints[:MAX_SHOWN_ENDPOINTS],
        unlisted=max(0, len(endpoints) - MAX_SHOWN_ENDPOINTS),
    )


def _show_group(key: tuple[str, str, str], selections: Sequence[Selection]) -> RoutedNodes:
    zones: dict[str, float] = {}
    for selection in selections:
        chosen = selection.internal.endpoints
        whole = sum(endpoint.weight for endpoint in chosen) * len(selections)
        for endpoint in chosen:
            zones[endpoint.zone] = zones.get(endpoint.zone, 0.0) + endpoint.weight / whole
    reasons = dict.fromkeys(
        make_plain(reason.message)
        for selection in selections
        for reason in (*selection.internal_reasons, *selection.other_reasons)
    )
    zone, region, node = map(make_plain, key)
    return RoutedNodes(
        zone,
        region,
        node,
        tuple((make_plain(place), round(share, 6)) for place, share in sorted(zones.items())),
        tuple(reasons)[:_MAX_GROUP_REASONS],
    )


def _show_endpoints(
    slices: Iterable[EndpointSlice], loads: dict[str, _Load], sent: float
) -> tuple[ShownEndpoint, ...]:
    """Return the endpoints by zone, node and name; one that several slices have is listed once."""
    shown: dict[str, ShownEndpoint] = {}
    nothing = _Load()
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints:
            address = "".join(endpoint.addresses[:1])
            target = endpoint.target_ref
            load = loads.get(address, nothing)
            hints = endpoint.hints
            names: list[str] = []
            if hints is not None:
                names += [hint.name for hint in hints.for_zones]
                names += [hint.name for hint in hints.for_nodes]
            name = target.name if target is not None else address
            shown[name] = ShownEndpoint(
                name=make_plain(name),
                address=make_plain(address),
                node=make_plain(endpoint.node_name or ""),
                zone=make_plain(endpoint.zone or ""),
                is_ready=endpoint.conditions.ready is not False,
                is_terminating=endpoint.conditions.terminating is True,
                hints=tuple(map(make_plain, names)),
                load=load.all / sent if sent else 0.0,
                near=load.near / load.all if load.all else 0.0,
            )
    return tuple(sorted(shown.values(), key=lambda each: (each.zone, each.node, each.name)))
