"""What a plan depends on besides the Service and its pods: the nodes and the settings.

All Services of a cluster share both values, so the traffic shares of the nodes are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

import msgspec

from keepclose.model.gates import FeatureGates
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER
from keepclose.model.workload import Node
from keepclose.routing.heuristics import HeuristicRegistry
from keepclose.routing.node_level import NodeLevelMode, NodeLevelOptions
from keepclose.routing.subsets import SubsetOptions
from keepclose.routing.traffic_shares import (
    CpuRatios,
    Shares,
    ZoneNodes,
    count_zone_nodes,
    cpu_ratios,
    region_shares,
    traffic_shares,
)


class ClusterNodes(msgspec.Struct, frozen=True):
    """The nodes by name, and the traffic shares of their zones and regions."""

    nodes: dict[str, Node]
    ratios: CpuRatios
    shares: Shares
    regions: Shares
    """The shares by region, for Services that are divided by regions."""
    weighted_zones: frozenset[str] = frozenset()
    """The zones in which all nodes acknowledge that they follow weights."""
    zone_nodes: Callable[[], Mapping[str, ZoneNodes]] = dict
    """Counts the nodes by zone, once and only if a custom heuristic is asked."""

    @classmethod
    def of(
        cls, nodes: Iterable[Node], *, weighted_zones: frozenset[str] = frozenset()
    ) -> ClusterNodes:
        """Return the cluster of these nodes; there may be none."""
        listed = tuple(nodes)
        return cls(
            {node.name: node for node in listed},
            cpu_ratios(listed),
            traffic_shares(listed),
            region_shares(listed),
            weighted_zones,
            zone_nodes=lru_cache(maxsize=1)(partial(count_zone_nodes, listed)),
        )


class PlannerSettings(msgspec.Struct, frozen=True):
    """Settings of the controller; the defaults are those of Kubernetes."""

    gates: FeatureGates = FeatureGates()
    max_endpoints: int = 100
    managed_by: str = ENDPOINTSLICE_CONTROLLER
    subsets: SubsetOptions = SubsetOptions()
    node_level_mode: NodeLevelMode = NodeLevelMode.MANUAL
    node_level: NodeLevelOptions = NodeLevelOptions()
    heuristics: HeuristicRegistry = {}
    condition_prefix: str = ""
