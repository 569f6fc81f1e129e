"""What a change of a node means for Services.

Kubernetes' own controller queues no Service when a zone label changes, and ignores allocatable CPU.
Here both count: a node that moves, comes or goes concerns the Services with pods on it, and one
that changes the shares of the traffic concerns those whose mechanism depends on shares.
"""

from __future__ import annotations

from typing import NamedTuple

from keepclose.kube.cache import Cache
from keepclose.model.well_known import NODE_TOPOLOGY_ANNOTATION
from keepclose.model.workload import Node
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.strategy import Strategy, StrategyName
from keepclose.slices.hinting import may_overlay
from keepclose.slices.settings import Cluster, Settings

_BY_SHARES = frozenset(
    {
        StrategyName.AUTO,
        StrategyName.SUBSETTING,
        StrategyName.CUSTOM,
        StrategyName.NODE_LEVEL,
    }
)


class NodeChange(NamedTuple):
    """Whether pods of the node are elsewhere now, and whether shares may differ."""

    moved: bool
    shares: bool

    @property
    def is_nothing(self) -> bool:
        """Whether the update can be dropped."""
        return not (self.moved or self.shares)


def node_change(old: Node | None, new: Node | None) -> NodeChange:
    """Return what it means that a node came (old None), went (new None) or changed."""
    return NodeChange(moved=_place(old) != _place(new), shares=_weight(old) != _weight(new))


def depends_on_shares(
    strategy: Strategy, annotations: dict[str, str], *, settings: Settings
) -> bool:
    """Return whether a plan may change with the nodes even where no pod of the Service runs."""
    if strategy.name in _BY_SHARES:
        return True
    detects = (
        settings.node_level_mode is not NodeLevelMode.MANUAL
        or NODE_TOPOLOGY_ANNOTATION in annotations
    )
    return detects and may_overlay(strategy, settings)


class NodeFacts:
    """The cluster that the cached nodes make, worked out again only after a change that counts."""

    def __init__(self, nodes: Cache[Node]) -> None:
        self._nodes = nodes
        self._cluster: Cluster | None = None

    def invalidate(self) -> None:
        """Have the cluster worked out anew when it is asked for next."""
        self._cluster = None

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is now; the same object as long as nothing changed."""
        if self._cluster is None:
            self._cluster = Cluster.of(self._nodes.all())
        return self._cluster


def _place(node: Node | None) -> tuple[str, str] | None:
    return None if node is None else (node.zone, node.region)


def _weight(node: Node | None) -> tuple[str, str, object] | None:
    """Return what a node adds to the shares; None for one that counts for nothing."""
    if node is None or not node.is_ready or node.is_excluded:
        return None
    return node.zone, node.region, node.status.allocatable.get("cpu")
