"""Whether node hints are laid over the mechanism that governs a Service, and what governs then.

From the second draft of KEP-3015. A plan from pods and a look at slices that somebody else packed
ask the same question here. What is costly to know is handed in as functions: most Services are
decided without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from keepclose.model.service.types import Service
from keepclose.model.well_known import NODE_TOPOLOGY_ANNOTATION
from keepclose.routing.node_level import EndpointOwner, NodeLevelDecision, node_overlay
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.strategy import (
    Strategy,
    StrategyName,
    Verdict,
    annotation_path,
    topology_annotation,
)
from keepclose.slices.hinting import may_overlay
from keepclose.slices.settings import Cluster, Settings

DETECTION = "detection"


def decide_overlay(
    service: Service,
    strategy: Strategy,
    *,
    cluster: Cluster,
    settings: Settings,
    endpoints: Callable[[], Sequence[EndpointOwner]],
    previously_on: Callable[[], bool],
) -> NodeLevelDecision | None:
    """Return the decision about node hints; None where the mechanism leaves no room for one.

    `endpoints` gives node and owner of the ready endpoints, each pair once; `previously_on` says
    whether some endpoint has a node hint now.
    """
    if not may_overlay(strategy, settings):
        return None
    wish = strategy.distribution is not Verdict.ABSENT
    return node_overlay(
        annotation=service.metadata.annotations.get(NODE_TOPOLOGY_ANNOTATION),
        mode=settings.node_level_mode,
        explicit=wish or topology_annotation(service)[1] is not None,
        nodes=cluster.nodes.values(),
        endpoints=endpoints(),
        previously_on=previously_on(),
        options=settings.node_level,
    )


def lay_over(strategy: Strategy, overlay: NodeLevelDecision | None) -> Strategy:
    """Return what governs: where nothing else did, node-level topology does once it is on."""
    if overlay is None or not overlay.on or strategy.name is not StrategyName.NONE:
        return strategy
    asked = any(reason.code is ReasonCode.NODE_HINTS_ADDED for reason in overlay.reasons)
    message = "node-level topology was found to suit the Service"
    found = () if asked else (Reason(ReasonCode.NODE_LEVEL_DETECTED, message),)
    return replace(
        strategy,
        name=StrategyName.NODE_LEVEL,
        source=annotation_path(NODE_TOPOLOGY_ANNOTATION) if asked else DETECTION,
        reasons=(*strategy.reasons, *found),
    )
