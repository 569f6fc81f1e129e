"""Which Services a webhook keeps the hints of, beside the built-in EndpointSlice controller.

Only a Service that asks by an annotation which the built-in controller does not know is ours, and
only for a mechanism that needs nothing but hints. Whatever the built-in controller understands
itself, the field trafficDistribution and the topology mode Auto, is left to it. What was asked for
and cannot be had in this way is said, never done by halves.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.model.gates import Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    NODE_TOPOLOGY_ANNOTATION,
    SUBSETTING_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.strategy import (
    Strategy,
    StrategyName,
    annotation_path,
    choose_strategy,
    topology_annotation,
)
from keepclose.slices.settings import Settings

_OUR_ANNOTATIONS: Final = frozenset(
    {TRAFFIC_DISTRIBUTION_ANNOTATION, NODE_TOPOLOGY_ANNOTATION, SUBSETTING_ANNOTATION}
)
_BY_HINTS: Final = frozenset(
    {
        StrategyName.SAME_ZONE,
        StrategyName.SAME_NODE,
        StrategyName.CUSTOM,
        StrategyName.NODE_LEVEL,
    }
)


class Claim(msgspec.Struct, frozen=True):
    """What a webhook makes of a Service.

    `asks` says whether it wants anything of us at all, `is_ours` whether its hints are ours to
    set, and `obstacle` why a wish is not followed, "" when it is.
    """

    strategy: Strategy
    asks: bool
    is_ours: bool
    obstacle: str = ""


def claim_service(service: Service, settings: Settings) -> Claim:
    """Return whether the hints of a Service are ours; one without a selector never is."""
    strategy = choose_strategy(service, gates=settings.gates, heuristics=settings.heuristics)
    if service.spec.type == "ExternalName" or service.spec.selector is None:
        return Claim(strategy, asks=False, is_ours=False)
    annotations = service.metadata.annotations
    by_distribution = TRAFFIC_DISTRIBUTION_ANNOTATION in annotations
    by_nodes = (
        NODE_TOPOLOGY_ANNOTATION in annotations or topology_annotation(service)[1] == "Node"
    ) and settings.gates.on(Gate.NODE_LEVEL_TOPOLOGY)
    if not (by_distribution or by_nodes or strategy.name is StrategyName.SUBSETTING):
        return Claim(strategy, asks=False, is_ours=False)
    obstacle = _find_obstacle(strategy)
    if obstacle:
        return Claim(strategy, asks=True, is_ours=False, obstacle=obstacle)
    if strategy.name in _BY_HINTS or by_nodes:
        return Claim(strategy, asks=True, is_ours=True)
    reason = strategy.reasons[-1].message if strategy.reasons else ""
    return Claim(strategy, asks=True, is_ours=False, obstacle=reason)


def without_wishes(service: Service) -> Service:
    """Return the Service as the built-in controller reads it: without the annotations of ours."""
    meta = service.metadata
    kept = {key: value for key, value in meta.annotations.items() if key not in _OUR_ANNOTATIONS}
    return replace(service, metadata=replace(meta, annotations=kept))


def _find_obstacle(strategy: Strategy) -> str:
    match strategy.name:
        case StrategyName.SUBSETTING:
            return (
                f"{strategy.source} needs slices of its own for each zone, which a webhook cannot "
                "make; run the controller with --mode=replace or use "
                f"{annotation_path(TRAFFIC_DISTRIBUTION_ANNOTATION)}"
            )
        case StrategyName.TOPOLOGY_KEYS:
            return f"{strategy.source} governs, and it does without hints"
        case StrategyName.AUTO:
            return (
                f"{strategy.source} takes precedence, and the built-in EndpointSlice controller "
                "follows it by itself"
            )
        case _:
            return ""
