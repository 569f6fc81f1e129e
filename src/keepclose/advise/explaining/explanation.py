"""The explanation of one Service: the chain from its fields to each endpoint, and what is to blame.

The verdict says whether connections arrive, and whether they go as the Service asks. A fallback by
design, such as that of a zone without endpoints, is as asked; so is what a Service does not ask
for. Every part is made from the same facts, so no two of them disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from shlex import quote

import msgspec
from msgspec.structs import replace

from keepclose.advise.explaining.causes import (
    CauseWeight,
    TrafficCause,
    TrafficCauseCode,
    order_causes,
    weighs,
)
from keepclose.advise.explaining.controller_numbers import (
    ZoneNumbers,
    describe_thresholds,
    number_zones,
)
from keepclose.advise.explaining.hint_causes import explain_hints
from keepclose.advise.explaining.mechanism_causes import (
    explain_kind,
    explain_mechanism,
    find_plan_causes,
)
from keepclose.advise.explaining.node_causes import explain_nodes, is_refused
from keepclose.advise.explaining.pod_causes import explain_pods
from keepclose.advise.explaining.pod_paths import (
    Clients,
    PodShare,
    explain_client,
    explain_target,
    share_of,
)
from keepclose.advise.explaining.proxy_causes import explain_data_planes
from keepclose.advise.explaining.service_facts import (
    ServiceFacts,
    collect_facts,
    load_endpoints,
    name_address,
)
from keepclose.advise.explaining.slice_causes import (
    compare_slices,
    explain_slice_faults,
    managers_of,
)
from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import ResolvedPort
from keepclose.advise.routed_traffic import RoutedTraffic
from keepclose.model.acknowledgements import NodeAcknowledgement
from keepclose.model.endpointslice.types import Endpoint
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import SERVICE_NAME_LABEL
from keepclose.model.workload import Pod
from keepclose.routing.reasons import NO_EFFECT_CODES, VISIBLE_IN_SELECTION, ReasonCode
from keepclose.routing.service_ports import TrafficPolicy
from keepclose.slices.settings import PlannerSettings


class TrafficFlow(StrEnum):
    """Whether the connections in question arrive, and as the Service asks."""

    AS_ASKED = "as asked"
    NOT_AS_ASKED = "not as asked"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"
    """No node is known that could route the Service."""


class GoverningMechanism(msgspec.Struct, frozen=True):
    """Which mechanism governs, where it is set, and what it overrides."""

    name: str
    source: str
    value: str
    reasons: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Fields and annotations without an effect, with the reason."""
    policies: tuple[str, ...] = ()
    """What traffic policies do; they stand above every mechanism."""
    thresholds: str = ""
    conditions: tuple[Condition, ...] = ()
    """What a controller wrote about it to the status of the Service."""


class SliceOrigin(msgspec.Struct, frozen=True):
    """Whose slices nodes go by."""

    count: int
    managers: tuple[str, ...] = ()
    is_written: bool = False
    """Whether they are in the input; else they are what a controller would write."""
    differs: bool = False
    """Whether a controller would write others now."""


class ExplainedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint, or a selected Pod that is none, with its hints."""

    pod: str
    address: str
    node: str
    zone: str
    state: str
    """ready, terminating, not ready, or no endpoint."""
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    load: float | None = None
    """How many times its fair share it gets; None if nothing."""


class ExplainedNodes(msgspec.Struct, frozen=True):
    """Nodes of one zone that route alike."""

    zone: str
    nodes: tuple[str, ...]
    ports: tuple[ResolvedPort, ...]
    reasons: tuple[str, ...] = ()
    """Why they use what they use, beyond what the endpoints show."""


class Explanation(msgspec.Struct, frozen=True):
    """The whole answer to a question about a Service."""

    service: Service
    flow: TrafficFlow
    clients: Clients
    target: Pod | None
    mechanism: GoverningMechanism
    slices: SliceOrigin
    zones: tuple[ZoneNumbers, ...]
    endpoints: tuple[ExplainedEndpoint, ...]
    nodes: tuple[ExplainedNodes, ...]
    causes: tuple[TrafficCause, ...]
    shares: tuple[PodShare, ...] = ()
    """What the target gets of the clients' connections."""
    traffic: RoutedTraffic | None = None
    """Where the traffic of all ready nodes in question goes; None if no node routes the Service."""
    unknown: tuple[str, ...] = ()
    """What the objects do not say."""


def explain_service(
    inventory: Inventory,
    service: Service,
    *,
    settings: PlannerSettings,
    clients: Clients = Clients(),  # noqa: B008 - immutable
    target: Pod | None = None,
    acknowledgements: Iterable[NodeAcknowledgement] = (),
    unknown: Iterable[str] = (),
) -> Explanation:
    """Return why the connections of the clients to a Service go where they go.

    The Service must have been admitted. `unknown` has sentences about gaps of the input.
    """
    chosen = frozenset(clients.nodes) if clients.nodes else None
    facts = collect_facts(
        service, inventory, settings=settings, nodes=chosen, acknowledgements=acknowledgements
    )
    difference = compare_slices(facts)
    causes = [
        *explain_kind(facts),
        *explain_client(facts, clients),
        *explain_slice_faults(facts, difference),
        *explain_pods(facts),
        *explain_mechanism(facts),
        *find_plan_causes(facts),
        *explain_hints(facts, difference),
        *explain_nodes(facts),
        *explain_data_planes(facts),
    ]
    shares: tuple[PodShare, ...] = ()
    if target is not None:
        shares = share_of(target, facts.groups)
        of_target = [
            replace(cause, message=f"{target.metadata.name}: {cause.message}")
            for cause in explain_target(target, facts, shares, clients)
        ]
        codes = {cause.code for cause in of_target}
        causes = [*of_target, *(cause for cause in causes if cause.code not in codes)]
    causes = _without_repeats(causes)
    if _gets_nothing(facts) and not weighs(causes, CauseWeight.BLOCKS):
        causes.append(_nothing_ready(facts))
    ordered = order_causes(causes)
    return Explanation(
        service,
        _judge(ordered, facts, target, shares),
        clients,
        target,
        _mechanism(facts),
        SliceOrigin(
            len(facts.slices),
            managers_of(facts.slices),
            facts.has_slices,
            difference.is_stale or bool(difference.hints),
        ),
        number_zones(facts),
        _endpoints(facts, load_endpoints(facts)),
        tuple(
            ExplainedNodes(group.zone, group.nodes, group.ports, _reasons(group.ports))
            for group in facts.groups
        ),
        ordered,
        shares,
        facts.traffic if facts.is_routed else None,
        (*unknown, *_unknown(facts)),
    )


def _judge(
    causes: tuple[TrafficCause, ...],
    facts: ServiceFacts,
    target: Pod | None,
    shares: tuple[PodShare, ...],
) -> TrafficFlow:
    is_routable = not facts.service.is_headless and facts.service.spec.type != "ExternalName"
    if not facts.groups and is_routable and not weighs(causes, CauseWeight.BLOCKS):
        return TrafficFlow.UNKNOWN
    if target is not None and not any(share.high > 0.0 for share in shares):
        # Nodes route no headless Service; its Pods get what DNS gives to clients.
        is_by_dns = facts.service.is_headless and not weighs(causes, CauseWeight.BLOCKS)
        return TrafficFlow.AS_ASKED if is_by_dns else TrafficFlow.BLOCKED
    if weighs(causes, CauseWeight.BLOCKS):
        return TrafficFlow.BLOCKED
    if weighs((cause for cause in causes if cause.is_sure), CauseWeight.DEFEATS):
        return TrafficFlow.NOT_AS_ASKED
    return TrafficFlow.AS_ASKED


def _gets_nothing(facts: ServiceFacts) -> bool:
    """Return whether no node of the question leads to any endpoint."""
    routed = [group for group in facts.groups if group.ports]
    return bool(routed) and all(is_refused(group) for group in routed)


def _nothing_ready(facts: ServiceFacts) -> TrafficCause:
    count = sum(len(held.endpoints) for held in facts.slices)
    what = "the Service has no endpoints"
    if count:
        what = (
            "its only endpoint is not ready"
            if count == 1
            else f"of {count} endpoints none is ready"
        )
    if facts.ready_endpoints():
        what = "no ready endpoint can be used on these nodes"
    return TrafficCause(
        TrafficCauseCode.NO_READY_ENDPOINT,
        f"{what}, so connections are refused",
        facts.subject,
        fix=f"kubectl get endpointslices -n {quote(facts.key.namespace)} "
        f"-l {SERVICE_NAME_LABEL}={quote(facts.key.name)} -o yaml",
        weight=CauseWeight.BLOCKS,
    )


def _without_repeats(causes: list[TrafficCause]) -> list[TrafficCause]:
    """Return the causes without those that only repeat another one, seen from the nodes."""
    codes = {cause.code for cause in causes}
    repeated: set[TrafficCauseCode] = set()
    if codes & {
        TrafficCauseCode.HINTS_NOT_WRITTEN,
        TrafficCauseCode.ENDPOINT_WITHOUT_ZONE,
    }:
        repeated.add(TrafficCauseCode.ENDPOINT_WITHOUT_HINT)
    if TrafficCauseCode.SLICES_NOT_WRITTEN in codes:
        repeated.add(TrafficCauseCode.SLICES_STALE)
    zones = [cause.message for cause in causes if cause.code is TrafficCauseCode.ZONE_UNREADY]
    return [
        cause
        for cause in causes
        if cause.code not in repeated
        and not (
            cause.weight is CauseWeight.NOTE and any(text.endswith(cause.message) for text in zones)
        )
    ]


def _mechanism(facts: ServiceFacts) -> GoverningMechanism:
    strategy = facts.planned.strategy
    ignored = [reason for reason in strategy.reasons if reason.code in NO_EFFECT_CODES]
    told = [
        reason
        for reason in (*strategy.reasons, *facts.planned.reasons)
        if reason not in ignored
        and reason.code is not ReasonCode.NO_SELECTOR
        and (reason.fix or reason.code is not ReasonCode.NOT_OPTED_IN)
    ]
    return GoverningMechanism(
        strategy.label,
        strategy.source,
        strategy.value,
        tuple(dict.fromkeys(reason.message for reason in told)),
        tuple(dict.fromkeys(reason.message for reason in ignored)),
        _policies(facts),
        describe_thresholds(facts) if facts.service.spec.type != "ExternalName" else "",
        facts.service.status.conditions,
    )


def _policies(facts: ServiceFacts) -> tuple[str, ...]:
    """Return what traffic policies other than Cluster do."""
    sentences: dict[str, None] = {}
    effects = {
        TrafficPolicy.LOCAL: "only endpoints on the client's node, hints or not",
        TrafficPolicy.PREFER_LOCAL: "endpoints on the client's node, else as Cluster",
    }
    outside = {
        TrafficPolicy.LOCAL: "only endpoints on the node that is entered, hints or not",
        TrafficPolicy.PREFER_LOCAL: "endpoints on the node that is entered, else as Cluster",
    }
    for group in facts.groups[:1]:
        for resolved in group.ports:
            port = resolved.port
            if port.internal_policy in effects:
                sentences[
                    f"internalTrafficPolicy {port.internal_policy}: {effects[port.internal_policy]}"
                ] = None
            if port.is_externally_accessible and port.external_policy in outside:
                sentences[
                    f"externalTrafficPolicy {port.external_policy}: {outside[port.external_policy]}"
                ] = None
    return tuple(sentences)


def _endpoints(facts: ServiceFacts, loads: dict[str, float]) -> tuple[ExplainedEndpoint, ...]:
    """Return the endpoints of the slices and selected Pods that are none, unready ones first."""
    rows: list[ExplainedEndpoint] = []
    known: set[NamespacedName] = set()
    for endpoint_slice in facts.slices:
        for endpoint in endpoint_slice.endpoints:
            target = endpoint.target_ref
            name = target.name if target is not None else ""
            if target is not None:
                known.add(NamespacedName(target.namespace or facts.key.namespace, target.name))
            hints = endpoint.hints
            address = name_address(endpoint)
            rows.append(
                ExplainedEndpoint(
                    name,
                    address,
                    endpoint.node_name or "",
                    endpoint.zone or "",
                    _state(endpoint),
                    () if hints is None else tuple(hint.name for hint in hints.for_zones),
                    () if hints is None else tuple(hint.name for hint in hints.for_nodes),
                    loads.get(address),
                )
            )
    for pod in facts.selected:
        if pod.key not in known:
            node = facts.cluster.nodes.get(pod.spec.node_name)
            zone = "" if node is None else node.zone
            address = pod.status.pod_ip or next((each.ip for each in pod.status.pod_ips), "")
            rows.append(
                ExplainedEndpoint(
                    pod.metadata.name, address, pod.spec.node_name, zone, "no endpoint"
                )
            )
    return tuple(sorted(rows, key=lambda row: row.state == "ready"))


def _state(endpoint: Endpoint) -> str:
    conditions = endpoint.conditions
    if conditions.terminating is True:
        return "terminating"
    return "not ready" if conditions.ready is False else "ready"


def _reasons(ports: Iterable[ResolvedPort]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            reason.message
            for port in ports
            for reason in port.selection.reasons
            if reason.code not in VISIBLE_IN_SELECTION
        )
    )


def _unknown(facts: ServiceFacts) -> Iterable[str]:
    """Yield what no object of the input says."""
    if not facts.has_slices and facts.service.spec.type != "ExternalName":
        yield "the input has no EndpointSlices: these are the ones that a controller would write"
    elif facts.inventory.slices and not facts.knows_pods and facts.service.spec.selector:
        yield "without Pods it is unknown whether the slices are stale"
    if facts.nodes_left_out:
        yield f"{facts.nodes_left_out:,} more nodes were not selected for: the Service is too large"
