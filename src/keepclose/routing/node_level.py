"""Detection of Services with an endpoint on (almost) every node: clients may stay on theirs.

From the second draft of KEP-3015: all ready endpoints belong to one DaemonSet, and almost every
node that sends traffic has one. Each endpoint can then be hinted for its own node, on top of the
zone strategy that governs. Detection never overrides an explicit setting of the Service. Once on,
it stays on through a rolling update, in which nodes lack their endpoint for a moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from keepclose.model.meta import OwnerReference
from keepclose.model.well_known import NODE_TOPOLOGY_ANNOTATION
from keepclose.model.workload import Node
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import considered_nodes

EndpointOwner = tuple[str | None, OwnerReference | None]
"""The node of a ready endpoint and the controller that its pod belongs to."""


class NodeLevelMode(StrEnum):
    """For which Services the controller detects node-level topology."""

    MANUAL = "Manual"
    SEMI_AUTO = "SemiAuto"
    AUTO = "Auto"


class NodeLevelOptions(msgspec.Struct, frozen=True):
    """How many nodes may lack an endpoint: a fraction of the nodes, or a minimum number."""

    max_missing_fraction: float = 0.1
    min_missing: int = 1

    def limit(self, candidates: int) -> int:
        """Return how many of the candidate nodes may lack an endpoint."""
        # NB: 1e-9 is added because 0.29 * 100 is less than 29 in doubles.
        return max(self.min_missing, math.floor(self.max_missing_fraction * candidates + 1e-9))


class NodeLevelDecision(msgspec.Struct, frozen=True):
    """Whether endpoints are hinted for their nodes, and which nodes have no endpoint.

    `missing` is empty if the decision did not need it.
    """

    on: bool
    missing: tuple[str, ...]
    reasons: tuple[Reason, ...]


def detect_node_level(
    *,
    nodes: Iterable[Node],
    endpoints: Sequence[EndpointOwner],
    previously_on: bool,
    options: NodeLevelOptions = NodeLevelOptions(),  # noqa: B008 - frozen
) -> NodeLevelDecision:
    """Return whether the ready endpoints belong to one DaemonSet on nearly all nodes.

    Without ready endpoints, or with none on a node that sends traffic, the decision is off.
    """
    if not endpoints:
        reason = Reason(ReasonCode.NO_READY_ENDPOINTS, "there is no ready endpoint")
        return NodeLevelDecision(False, (), (reason,))
    foreign_owner = _foreign_owner_reason(endpoints)
    if foreign_owner is not None:
        return NodeLevelDecision(False, (), (foreign_owner,))
    candidates = [node.name for node in considered_nodes(nodes)]
    served = {node_name for node_name, _ in endpoints}
    missing = tuple(name for name in candidates if name not in served)
    limit = options.limit(len(candidates))
    count = f"nodes without endpoint: {len(missing)} of {len(candidates)}"
    allowed = 2 * limit if previously_on else limit
    if len(missing) == len(candidates):
        text = "no node that sends traffic has an endpoint"
        reason = Reason(ReasonCode.TOO_MANY_NODES_MISSING, text)
        return NodeLevelDecision(False, missing, (reason,))
    if len(missing) > allowed:
        subject = f"Node {missing[0]}"
        text = f"{count}, at most {allowed} may be"
        reason = Reason(ReasonCode.TOO_MANY_NODES_MISSING, text, subject=subject)
        return NodeLevelDecision(False, missing, (reason,))
    owner = endpoints[0][1]
    name = owner.name if owner is not None else ""
    reasons = [
        Reason(
            ReasonCode.ONE_DAEMON_SET,
            f"all ready endpoints belong to DaemonSet {name}; {count}",
            subject=f"DaemonSet {name}",
        )
    ]
    if len(missing) > limit:
        text = f"{count}; it takes {limit} or fewer to begin, more than {allowed} to end"
        reasons.append(Reason(ReasonCode.HYSTERESIS_HOLDS, text))
    return NodeLevelDecision(True, missing, tuple(reasons))


def node_overlay(
    *,
    annotation: str | None,
    mode: NodeLevelMode,
    explicit: bool,
    nodes: Iterable[Node],
    endpoints: Sequence[EndpointOwner],
    previously_on: bool,
    options: NodeLevelOptions = NodeLevelOptions(),  # noqa: B008 - frozen
) -> NodeLevelDecision:
    """Return whether each endpoint is hinted for its own node in addition to its zone.

    `annotation` is the value of service.kubernetes.io/node-topology (Auto, Enabled or Disabled; any
    other counts as absent). `explicit` says whether the Service sets a traffic distribution or a
    topology mode, even a disabled one; without the annotation such a Service is not detected.
    """
    if annotation == "Enabled":
        reason = Reason(ReasonCode.NODE_HINTS_ADDED, f"{NODE_TOPOLOGY_ANNOTATION}: Enabled")
        return NodeLevelDecision(True, (), (reason,))
    if annotation == "Disabled":
        reason = Reason(ReasonCode.TOPOLOGY_DISABLED, f"{NODE_TOPOLOGY_ANNOTATION}: Disabled")
        return NodeLevelDecision(False, (), (reason,))
    reasons: list[Reason] = []
    if annotation and annotation != "Auto":
        text = f"{NODE_TOPOLOGY_ANNOTATION}: {annotation!r} is treated as absent"
        fix = "use Auto, Enabled or Disabled"
        reasons.append(Reason(ReasonCode.VALUE_NOT_SUPPORTED, text, fix=fix))
    refusal = _detection_refusal(opted_in=annotation == "Auto", mode=mode, explicit=explicit)
    if refusal is not None:
        return NodeLevelDecision(False, (), (*reasons, refusal))
    detected = detect_node_level(
        nodes=nodes, endpoints=endpoints, previously_on=previously_on, options=options
    )
    return msgspec.structs.replace(detected, reasons=(*reasons, *detected.reasons))


def controller_of(owners: Iterable[OwnerReference]) -> OwnerReference | None:
    """Return the owner reference with controller true; None if there is none."""
    return next((owner for owner in owners if owner.controller is True), None)


def _foreign_owner_reason(endpoints: Sequence[EndpointOwner]) -> Reason | None:
    first = endpoints[0][1]
    for node_name, owner in endpoints:
        place = f"the endpoint on node {node_name}" if node_name else "an endpoint without node"
        if owner is None or owner.controller is not True or owner.kind != "DaemonSet":
            text = f"{place} does not belong to a DaemonSet"
        elif not owner.uid or first is None or owner.uid != first.uid:
            text = f"{place} belongs to another DaemonSet ({owner.name})"
        else:
            continue
        return Reason(ReasonCode.NOT_ONE_DAEMON_SET, text)
    return None


def _detection_refusal(*, opted_in: bool, mode: NodeLevelMode, explicit: bool) -> Reason | None:
    if mode is NodeLevelMode.MANUAL:
        text = "the controller does not look for node-level Services by itself (mode Manual)"
        return Reason(ReasonCode.NOT_OPTED_IN, text)
    if opted_in:
        return None
    if mode is NodeLevelMode.SEMI_AUTO:
        text = "detection runs only for Services that ask for it (mode SemiAuto)"
        return Reason(ReasonCode.NOT_OPTED_IN, text)
    if explicit:
        text = "the Service sets a traffic distribution or topology mode, so detection does not run"
        return Reason(ReasonCode.OVERRIDDEN, text)
    return None
