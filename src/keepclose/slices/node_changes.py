"""Which changes of nodes concern the slices of Services.

A change of zone or region concerns the Services with pods on the node; a change of readiness or CPU
those whose mechanism divides endpoints by the shares of zones. All others are dropped: nodes report
all the time.
"""

from __future__ import annotations

from typing import NamedTuple

from keepclose.model.well_known import NODE_TOPOLOGY_ANNOTATION
from keepclose.model.workload import Node
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.strategy import Strategy, StrategyName
from keepclose.slices.hinting import may_overlay
from keepclose.slices.settings import PlannerSettings

_SHARE_STRATEGIES = frozenset(
    {
        StrategyName.AUTO,
        StrategyName.SUBSETTING,
        StrategyName.CUSTOM,
        StrategyName.NODE_LEVEL,
    }
)


class NodeChange(NamedTuple):
    """Whether the zone of the node's pods changed, and whether CPU shares may differ."""

    moved: bool
    shares: bool

    @property
    def is_nothing(self) -> bool:
        """Whether the event can be dropped."""
        return not (self.moved or self.shares)


def node_change(old: Node | None, new: Node | None) -> NodeChange:
    """Return what changes with a node that is added (old None), removed (new None) or updated."""
    return NodeChange(moved=_location(old) != _location(new), shares=_weight(old) != _weight(new))


def depends_on_shares(
    strategy: Strategy, annotations: dict[str, str], *, settings: PlannerSettings
) -> bool:
    """Return whether a plan may change with the nodes even where no pod of the Service runs."""
    if strategy.name in _SHARE_STRATEGIES:
        return True
    detects = (
        settings.node_level_mode is not NodeLevelMode.MANUAL
        or NODE_TOPOLOGY_ANNOTATION in annotations
    )
    return detects and may_overlay(strategy, settings)


def _location(node: Node | None) -> tuple[str, str] | None:
    return None if node is None else (node.zone, node.region)


def _weight(node: Node | None) -> tuple[str, str, object] | None:
    """Return what a node adds to the CPU shares; None for one that is excluded."""
    if node is None or not node.is_ready or node.is_excluded:
        return None
    return node.zone, node.region, node.status.allocatable.get("cpu")
