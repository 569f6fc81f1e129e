"""Services of a DaemonSet on six nodes of three zones, as node-level topology sees them.

Node n1 and n4 are in zone-a, n2 and n5 in zone-b, n3 and n6 in zone-c. Of six nodes one may lack
an endpoint for the automatic mode to begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import OwnerReference
from keepclose.model.well_known import (
    NODE_TOPOLOGY_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
)
from keepclose.routing.node_level import NodeLevelMode, NodeLevelOptions
from keepclose.slices.settings import PlannerSettings
from support.builders import node, service
from support.proposals.planned_services import PlannedService

ON: Final = FeatureGates().with_gates(Gate.NODE_LEVEL_TOPOLOGY)
OFF: Final = FeatureGates()
BEFORE: Final = OFF.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
"""The gates of components that know neither this draft nor what came of it."""
DRAFT: Final = BEFORE.with_gates(Gate.NODE_LEVEL_TOPOLOGY)
"""The gates of components that know this draft, and not what came of it."""
NODES: Final = ("n1", "n2", "n3", "n4", "n5", "n6")
HINTS: Final = TOPOLOGY_HINTS_ANNOTATION
OVERLAY: Final = NODE_TOPOLOGY_ANNOTATION


def zone_of(node_name: str) -> str:
    """Return the zone of a node."""
    return f"zone-{'abc'[(int(node_name[1:]) - 1) % 3]}"


def daemon_set(name: str = "dns") -> OwnerReference:
    """Return the reference of a pod to the DaemonSet that owns it."""
    return OwnerReference(
        api_version="apps/v1", kind="DaemonSet", name=name, uid=f"uid-{name}", controller=True
    )


def replica_set(name: str = "web") -> OwnerReference:
    """Return the reference of a pod to the ReplicaSet that owns it."""
    return OwnerReference(
        api_version="apps/v1", kind="ReplicaSet", name=name, uid=f"uid-{name}", controller=True
    )


def daemons(
    mode: NodeLevelMode = NodeLevelMode.MANUAL,
    *,
    annotations: dict[str, str] | None = None,
    on: Iterable[str] = NODES,
    owner: OwnerReference | None = None,
    nodes: Iterable[str] = NODES,
    gates: FeatureGates = ON,
    options: NodeLevelOptions = NodeLevelOptions(),  # noqa: B008 - frozen
    **spec: Any,
) -> PlannedService:
    """Return a synced Service whose pods are on these nodes, one each."""
    planned = PlannedService(
        service(annotations=annotations, **spec),
        [node(name, zone_of(name)) for name in nodes],
        PlannerSettings(gates=gates, node_level_mode=mode, node_level=options),
    )
    for name in on:
        planned.start(name, owner=owner or daemon_set())
    planned.sync()
    return planned


def is_local_first(planned: PlannedService, gates: FeatureGates | None = None) -> bool:
    """Return whether every node with a pod uses its own pods alone."""
    with_pods = {one.spec.node_name for one in planned.pods.values()}
    return all(planned.nodes_used(name, gates) == {name} for name in with_pods)


def uses_all(planned: PlannedService, gates: FeatureGates | None = None) -> bool:
    """Return whether every node uses all pods, as ordinary Cluster semantics are."""
    count = len(planned.pods)
    return all(len(planned.used(one.name, gates)) == count for one in planned.nodes)
