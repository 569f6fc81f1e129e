"""The condition TrafficDistributionHonored: whether all ready nodes use the hints of a Service.

Also the reasons of all conditions of a Service. Honored is True only if every ready node
acknowledges the hints of this Service, at their level. If hints do not govern the traffic of the
Service at all, no node can acknowledge them, and the condition says why. Messages name a few nodes
and count more than nine others only by the power of ten, so that small changes of the number cause
no write.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from keepclose.model.acknowledgements import HintLevel
from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition
from keepclose.model.service.types import Service
from keepclose.model.well_known import PROXY_NAME_LABEL
from keepclose.routing.service_ports import TrafficPolicy, routed_ports

HONORED: Final = "TrafficDistributionHonored"
MAX_NAMED_NODES: Final = 3
_MAX_EXACT_COUNT: Final = 9
_GATES: Final = {
    HintLevel.ZONES: Gate.SERVICE_TRAFFIC_DISTRIBUTION,
    HintLevel.NODES: Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
}


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


def hint_levels(slices: Iterable[EndpointSlice]) -> frozenset[HintLevel]:
    """Return the levels of hints that endpoints of the slices have."""
    levels: set[HintLevel] = set()
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints:
            hints = endpoint.hints
            if hints is None:
                continue
            if hints.for_zones:
                levels.add(HintLevel.ZONES)
            if hints.for_nodes:
                levels.add(HintLevel.NODES)
            if len(levels) == len(HintLevel):
                return frozenset(levels)
    return frozenset(levels)


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
    return Condition(type=HONORED, status=status, reason=reason, message=message)
