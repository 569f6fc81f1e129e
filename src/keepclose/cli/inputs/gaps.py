"""Gaps of an input: kinds that could not be read, and which answers suffer.

An answer from half of a cluster's objects is useful if it says which half is missing. Where
EndpointSlices show what Nodes and Pods would have told, they are used instead, and the gap says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from keepclose.advise.inventory import Inventory

FROM_SLICES: Final = "endpoints are those of the EndpointSlices, as their controller wrote them"
_CONSEQUENCES: Final = {
    "Service": "no Service can be judged",
    "EndpointSlice": "slices are planned from Pods, without the present ones and those that other "
    "controllers write",
    "Deployment": "Pods of Deployments are judged as they are, without their rollouts",
    "StatefulSet": "Pods of StatefulSets are judged as they are, without their rollouts",
    "DaemonSet": "which Pods run on every node is unknown",
    "ReplicaSet": "which Deployment Pods belong to is unknown",
    "PodDisruptionBudget": "which evictions are allowed is unknown",
    "HorizontalPodAutoscaler": "which numbers of replicas change is unknown",
    "Namespace": "labels of namespaces are unknown",
    "Event": "what controllers reported is unknown",
    "ConfigMap": "which nodes follow hints is unknown",
}
_NODES_FROM_SLICES: Final = (
    "zones are those of the EndpointSlices, and nodes without endpoints are unknown"
)
_NO_NODES: Final = "no node routes a Service, and Pods that have a node are ignored"
_NO_ENDPOINTS: Final = "Services have no endpoints"


class Gap(NamedTuple):
    """A kind that could not be read, in whole or in part, and which answer suffers."""

    kind: str
    reason: str
    consequence: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}, so {self.consequence}"


class Unread(NamedTuple):
    """Why a kind was not read, and how that can be changed."""

    reason: str
    fix: str = ""


def name_gap(kind: str, unread: Unread) -> Gap:
    """Return the gap of a kind that was not read."""
    consequence = {"Node": _NODES_FROM_SLICES, "Pod": FROM_SLICES, **_CONSEQUENCES}.get(kind, "")
    return Gap(kind, unread.reason, consequence or "they are missing", unread.fix)


def fill_gaps(
    inventory: Inventory, unread: dict[str, Unread], name: str
) -> tuple[Inventory, tuple[Gap, ...]]:
    """Return the objects with stand-ins for missing Nodes, and the gap of each missing kind.

    `unread` has the kinds that could not be read. Nodes and Pods that the source does not have
    count as missing too: a cluster without them routes nothing, so a dump is incomplete.
    """
    from msgspec.structs import replace

    from keepclose.advise.inventory import nodes_in_slices
    from keepclose.advise.resolution import DUMP_COMMAND

    empty = Unread(f"there are none in {name}", DUMP_COMMAND)
    missing = dict(unread)
    has_selector = any(service.spec.selector for service in inventory.services)
    if not inventory.nodes:
        missing.setdefault("Node", empty)
    if has_selector and not inventory.pods:
        if not inventory.slices and "Pod" not in missing:
            empty = Unread(f"{empty.reason}, and no EndpointSlices", empty.fix)
        missing.setdefault("Pod", empty)
    gaps: list[Gap] = []
    for kind, (reason, fix) in missing.items():
        consequence = _CONSEQUENCES.get(kind, "they are missing in the answer")
        if kind == "Node":
            stand_ins = nodes_in_slices(inventory.slices)
            inventory = replace(inventory, nodes=stand_ins)
            consequence = _NODES_FROM_SLICES if stand_ins else _NO_NODES
        elif kind == "Pod":
            consequence = FROM_SLICES if inventory.slices else _NO_ENDPOINTS
        gaps.append(Gap(kind, reason, consequence, fix))
    return inventory, tuple(gaps)
