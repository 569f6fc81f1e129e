"""Status conditions of a Service: trafficDistribution accepted, programmed, honored.

KEP-4444 sketches TrafficDistributionAccepted and TrafficDistributionProgrammed for the controller
that writes hints, and leaves TrafficDistributionHonored until a data plane can answer. The
transition time of a condition changes only with its status, so an unchanged decision never causes
a write. Conditions of other controllers are never changed.

The condition TrafficDistributionHonored: whether all ready nodes use the hints of a Service. Also
the reasons of all conditions of a Service. Honored is True only if every ready node acknowledges
the hints of this Service, at their level. If hints do not govern the traffic of the Service at all,
no node can acknowledge them, and the condition says why. Messages name a few nodes and count more
than nine others only by the power of ten, so that small changes of the number cause no write.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from keepclose.model.acknowledgements import HintLevel
from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.field_errors import describe_fields
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition
from keepclose.model.service.types import Service
from keepclose.model.well_known import PROXY_NAME_LABEL
from keepclose.model.zone_weights import hold_weights
from keepclose.routing.hint_facts import FactsOf, slice_facts
from keepclose.routing.hints import SliceSet
from keepclose.routing.service_ports import TrafficPolicy, routed_ports
from keepclose.routing.strategy import DistributionVerdict, Strategy, StrategyName
from keepclose.routing.traffic_shares import Shares

ACCEPTED = "TrafficDistributionAccepted"
PROGRAMMED = "TrafficDistributionProgrammed"
HONORED: Final = "TrafficDistributionHonored"
MAX_NAMED_NODES: Final = 3
_MAX_EXACT_COUNT: Final = 9
_GATES: Final = {
    HintLevel.ZONES: Gate.SERVICE_TRAFFIC_DISTRIBUTION,
    HintLevel.NODES: Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
    HintLevel.WEIGHTS: Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
}


def service_conditions(
    strategy: Strategy,
    slices: SliceSet,
    *,
    prefix: str = "",
    write_failed: str = "",
    dropped: tuple[str, ...] = (),
    heuristic_failed: str = "",
    other_writer: str = "",
    acknowledgements: Acknowledgements | Obstacle | None = None,
    shares: Shares | None = None,
    facts: FactsOf = slice_facts,
) -> tuple[Condition, ...]:
    """Return the conditions without times; none if the Service has no trafficDistribution.

    `slices` are the slices as stored or as planned. `dropped` names their fields that the API
    server did not keep, and `other_writer` a controller that undoes the writes.

    `prefix` is the domain of an implementation beside the EndpointSlice controller, such as
    "keepclose.dev/". `write_failed` and `heuristic_failed` describe a failure, "" for none.
    `shares` are those of the Service by measured demand; their first reason is part of the message
    of Programmed. Honored appears only with acknowledgements, and only if hints are programmed.
    """
    if strategy.distribution is DistributionVerdict.ABSENT:
        return ()
    accepted = _accepted(strategy)
    programmed = _programmed(
        strategy,
        accepted,
        slices,
        write_failed=write_failed,
        dropped=dropped,
        heuristic_failed=heuristic_failed,
        other_writer=other_writer,
        shares=shares if strategy.name is StrategyName.CUSTOM else None,
        facts=facts,
    )
    conditions = tuple(
        msgspec.structs.replace(condition, type=prefix + condition.type)
        for condition in (accepted, programmed)
    )
    return add_honored(conditions, acknowledgements, prefix=prefix)


def is_programmed(conditions: Iterable[Condition], *, prefix: str = "") -> bool:
    """Return whether the condition Programmed is True, so that nodes have hints to honor."""
    programmed = prefix + PROGRAMMED
    return any(
        condition.type == programmed and condition.status == "True" for condition in conditions
    )


def add_honored(
    conditions: tuple[Condition, ...],
    acknowledgements: Acknowledgements | Obstacle | None,
    *,
    prefix: str = "",
) -> tuple[Condition, ...]:
    """Return the conditions with Honored added.

    Without acknowledgements, or if no hints are programmed, they are returned as they are.
    """
    if acknowledgements is None or not is_programmed(conditions, prefix=prefix):
        return conditions
    honored = judge_honored(acknowledgements)
    return (*conditions, msgspec.structs.replace(honored, type=prefix + honored.type))


def has_ours(conditions: Iterable[Condition], *, prefix: str = "") -> bool:
    """Return whether any condition is of a type that keepclose writes, in any process."""
    ours = _own_types(prefix)
    return any(condition.type in ours for condition in conditions)


def merge_conditions(
    present: Iterable[Condition], desired: Iterable[Condition], *, now: str, prefix: str = ""
) -> tuple[Condition, ...]:
    """Return the conditions of the Service with keepclose's replaced in place, others untouched.

    The result equals `present` if nothing differs, so that the caller writes only changes.
    """
    new = {condition.type: condition for condition in desired}
    ours = _own_types(prefix)
    merged = []
    for old in present:
        if old.type in new:
            condition = new.pop(old.type)
            same = old.status == condition.status
            since = old.last_transition_time if same else now
            merged.append(msgspec.structs.replace(condition, last_transition_time=since))
        elif old.type not in ours:
            merged.append(old)
    merged.extend(
        msgspec.structs.replace(added, last_transition_time=now) for added in new.values()
    )
    return tuple(merged)


def _own_types(prefix: str) -> frozenset[str]:
    return frozenset({prefix + name for name in (ACCEPTED, PROGRAMMED, HONORED)})


def _accepted(strategy: Strategy) -> Condition:
    match strategy.distribution:
        case DistributionVerdict.UNSUPPORTED:
            reason, status = ConditionReason.UNSUPPORTED_VALUE, "False"
        case DistributionVerdict.DISABLED:
            reason, status = ConditionReason.FEATURE_DISABLED, "False"
        case _:
            reason, status = ConditionReason.ACCEPTED, "True"
    message = strategy.reasons[-1].message if strategy.reasons else ""
    return Condition(type=ACCEPTED, status=status, reason=reason, message=message)


def _programmed(
    strategy: Strategy,
    accepted: Condition,
    slices: SliceSet,
    *,
    write_failed: str,
    dropped: tuple[str, ...],
    heuristic_failed: str,
    other_writer: str,
    shares: Shares | None,
    facts: FactsOf,
) -> Condition:
    def false(reason: ConditionReason, message: str) -> Condition:
        return Condition(type=PROGRAMMED, status="False", reason=reason, message=message)

    if strategy.distribution is DistributionVerdict.OVERRIDDEN:
        return false(
            ConditionReason.OVERRIDDEN_BY_ANNOTATION, f"{strategy.source} takes precedence"
        )
    if accepted.status == "False":
        return false(ConditionReason.NOT_ACCEPTED, "no hints are written for this value")
    if other_writer:
        return false(
            ConditionReason.CONTENDED, f"{other_writer} keeps undoing what is written to the slices"
        )
    if write_failed:
        return false(ConditionReason.WRITE_FAILED, write_failed)
    if heuristic_failed:
        return false(ConditionReason.HEURISTIC_FAILED, f"{strategy.value}: {heuristic_failed}")
    hint_facts = [facts(endpoint_slice) for endpoint_slice in slices.all]
    ready = sum(slice_fact.ready for slice_fact in hint_facts)
    basis = f"; {shares.reasons[0].message}" if shares is not None and shares.reasons else ""
    if ready == 0:
        return false(ConditionReason.NO_ENDPOINTS, "there is no ready endpoint")
    zones = sum(slice_fact.zone_hinted for slice_fact in hint_facts)
    nodes = sum(slice_fact.node_hinted for slice_fact in hint_facts)
    wants_node = strategy.name is StrategyName.SAME_NODE
    if zones < ready or (wants_node and nodes < ready):
        if dropped:
            return false(ConditionReason.FIELD_DROPPED, describe_fields(dropped))
        if strategy.name is StrategyName.CUSTOM and zones == 0:
            return false(ConditionReason.NOT_ALLOCATED, f"the heuristic gave no allocation{basis}")
        lacking = ready - min(zones, nodes if wants_node else zones)
        return false(
            ConditionReason.MISSING_TOPOLOGY,
            f"{lacking} of {ready} ready endpoints lack the zone or node to be hinted with",
        )
    has_weights = strategy.name is StrategyName.CUSTOM and hold_weights(slices.all)
    weights = ", with weights beside the hints" if has_weights else ""
    return Condition(
        type=PROGRAMMED,
        status="True",
        reason=ConditionReason.HINTS_POPULATED,
        message=f"all {ready} ready endpoints are hinted{weights}{basis}",
    )


class ConditionReason(StrEnum):
    """The reasons of conditions, in CamelCase as in Kubernetes."""

    ACCEPTED = "Accepted"
    UNSUPPORTED_VALUE = "UnsupportedValue"
    FEATURE_DISABLED = "FeatureDisabled"
    OVERRIDDEN_BY_ANNOTATION = "OverriddenByAnnotation"
    NOT_ACCEPTED = "NotAccepted"
    HINTS_POPULATED = "HintsPopulated"
    MISSING_TOPOLOGY = "MissingTopology"
    NO_ENDPOINTS = "NoEndpoints"
    WRITE_FAILED = "WriteFailed"
    FIELD_DROPPED = "FieldDropped"
    CONTENDED = "Contended"
    NOT_ALLOCATED = "NotAllocated"
    HEURISTIC_FAILED = "HeuristicFailed"
    ALL_NODES_ACKNOWLEDGED = "AllNodesAcknowledged"
    PENDING = "Pending"
    PARTIALLY_HONORED = "PartiallyHonored"
    OTHER_PROXY = "OtherProxy"
    HEADLESS = "Headless"
    OVERRIDDEN_BY_POLICY = "OverriddenByPolicy"


class NodeSample(msgspec.Struct, frozen=True):
    """A number of nodes, and the names of a few of them, perhaps with a reason."""

    count: int = 0
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        others = self.count - len(self.names)
        named = ", ".join(self.names)
        if others <= 0:
            return named
        if others > _MAX_EXACT_COUNT:
            return f"{named} and more than {10 ** (len(str(others)) - 1) - 1} others"
        return f"{named} and {others} more"


class Acknowledgements(msgspec.Struct, frozen=True):
    """How many nodes acknowledged the hints as written, and how many of them use the hints.

    `silent` are nodes without an acknowledgement, `refusing` nodes that have the hints and do not
    use them, and `unable` nodes that do not follow hints of the level `lacking`.
    """

    nodes: int
    answered: int
    honoured: int
    silent: NodeSample = NodeSample()
    refusing: NodeSample = NodeSample()
    unable: NodeSample = NodeSample()
    lacking: HintLevel | None = None
    has_weights: bool = False
    """Whether weights are written beside the hints."""


class Obstacle(NamedTuple):
    """Why no node can honor the hints of a Service."""

    status: str
    reason: ConditionReason
    message: str


def find_obstacle(service: Service, *, gates: FeatureGates) -> Obstacle | None:
    """Return why hints do not govern the traffic to the cluster IP; None if they do."""
    proxy_name = service.metadata.labels.get(PROXY_NAME_LABEL)
    if proxy_name is not None:
        return Obstacle(
            "Unknown",
            ConditionReason.OTHER_PROXY,
            f"the label {PROXY_NAME_LABEL} leaves the Service to the proxy {proxy_name!r}, "
            "which does not answer",
        )
    if service.is_headless:
        return Obstacle(
            "False",
            ConditionReason.HEADLESS,
            "the Service is headless: clients choose endpoints themselves, and see no hints",
        )
    ports = [port for family in (IPV4, IPV6) for port in routed_ports(service, family, gates=gates)]
    policy = next(
        (
            port.internal_policy
            for port in ports
            if port.internal_policy is not TrafficPolicy.CLUSTER
        ),
        None,
    )
    if policy is not None:
        return Obstacle(
            "False",
            ConditionReason.OVERRIDDEN_BY_POLICY,
            f"internalTrafficPolicy {policy} governs traffic within the cluster",
        )
    return None


def judge_honored(acks: Acknowledgements | Obstacle) -> Condition:
    """Return the condition, without a time.

    If a node does not follow hints of the level, the condition does not wait for other nodes.
    """
    if isinstance(acks, Obstacle):
        status, reason, message = acks
    elif acks.unable.count and acks.lacking is not None:
        status, reason = "False", ConditionReason.PARTIALLY_HONORED
        message = (
            f"proxies do not follow hints {acks.lacking}, probably with feature gate "
            f"{_GATES[acks.lacking]} off, on nodes {acks.unable}"
        )
    elif acks.nodes == 0 or acks.answered < acks.nodes:
        status, reason = "Unknown", ConditionReason.PENDING
        message = "not all ready nodes have answered for the hints as written"
        if acks.silent.count:
            message = f"no answer for the hints as written from nodes {acks.silent}"
    elif acks.honoured < acks.nodes:
        status, reason = "False", ConditionReason.PARTIALLY_HONORED
        message = f"the hints are not used on nodes {acks.refusing}"
    else:
        status, reason = "True", ConditionReason.ALL_NODES_ACKNOWLEDGED
        message = "all ready nodes use the hints as written"
        if acks.has_weights:
            message = "all ready nodes have programmed the hints and weights as written"
    return Condition(type=HONORED, status=status, reason=reason, message=message)
