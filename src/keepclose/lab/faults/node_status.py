"""The patches of Nodes and pods that faults and their end need.

They follow the node lifecycle controller: an unreachable node gets its conditions set to Unknown
and two taints, and its pods become unready. No pod is evicted, which would happen only after five
minutes. Zones and cordons that the lab changed are recorded in annotations, so that they can be
undone after a restart too. Nothing here calls a server or reads a clock.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.kube.requests import Kind
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ApiStruct
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import Node, NodeSpec, NodeStatus, Taint
from keepclose.model.workloads.constraints import NO_EXECUTE, NO_SCHEDULE

ZONE_ANNOTATION: Final = "keepclose.dev/lab-zone"
"""The zone that a relabelled node had before; "" for none."""
CORDON_ANNOTATION: Final = "keepclose.dev/lab-cordon"
"""Present on a node that the lab cordoned."""
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_UNKNOWN: Final = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
_HEALTHY: Final = {
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    "MemoryPressure": (
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


class _TimedTaint(Taint, frozen=True):
    """A taint with its time, which a patch of other taints must keep."""

    time_added: str | None = None


class _LifecycleNodeSpec(NodeSpec, frozen=True):
    """The spec of a node, with the times of its taints."""

    taints: tuple[_TimedTaint, ...] = ()


class _NodeInfo(ApiStruct, frozen=True):
    """The software of a node."""

    os_image: str = ""


class _LifecycleNodeStatus(NodeStatus, frozen=True):
    """The status of a node, with its software."""

    node_info: _NodeInfo = _NodeInfo()


class LifecycleNode(Node, frozen=True):
    """A node, with the fields that registration and faults change."""

    spec: _LifecycleNodeSpec = _LifecycleNodeSpec()
    status: _LifecycleNodeStatus = _LifecycleNodeStatus()

    @property
    def own_zone(self) -> str:
        """The zone that the node had before `lab relabel`."""
        return self.metadata.annotations.get(ZONE_ANNOTATION, self.zone)

    @property
    def is_relabelled(self) -> bool:
        """Whether the lab moved the node to another zone."""
        return ZONE_ANNOTATION in self.metadata.annotations

    @property
    def is_unreachable(self) -> bool:
        """Whether the node has the taint of an unreachable node."""
        return any(taint.key == UNREACHABLE for taint in self.spec.taints)


LIFECYCLE_NODES: Final = Kind("", "v1", "nodes", "Node", False, LifecycleNode)


def unreachable_status_patch(node: LifecycleNode, *, time: str) -> JsonObject | None:
    """Return the status patch of an unreachable node, None if nothing changes."""
    reason, message = _UNKNOWN
    return _conditions(
        node, dict.fromkeys(_condition_types(node), ("Unknown", reason, message)), time=time
    )


def ready_status_patch(node: LifecycleNode, *, time: str) -> JsonObject | None:
    """Return the status patch of a node that is ready again, None if nothing changes."""
    return _conditions(node, {kind: _HEALTHY[kind] for kind in _condition_types(node)}, time=time)


def taint_patch(node: LifecycleNode, *, time: str) -> JsonObject | None:
    """Return the patch that taints an unreachable node, None if it has both taints."""
    others = _other_taints(node)
    taints = [
        {"key": UNREACHABLE, "effect": effect, "timeAdded": time}
        for effect in (NO_SCHEDULE, NO_EXECUTE)
    ]
    if len(node.spec.taints) - len(others) == len(taints):
        return None
    return _taints(node, [*others, *taints])


def untaint_patch(node: LifecycleNode) -> JsonObject | None:
    """Return the patch that removes the taints of an unreachable node, None if it has none."""
    return _taints(node, _other_taints(node)) if node.is_unreachable else None


def cordon_patch(node: LifecycleNode) -> JsonObject | None:
    """Return the patch that cordons a node, None if it is cordoned."""
    if node.spec.unschedulable:
        return None
    return {
        "metadata": {"annotations": {CORDON_ANNOTATION: "true"}},
        "spec": {"unschedulable": True},
    }


def uncordon_patch(node: LifecycleNode, *, only_ours: bool = False) -> JsonObject | None:
    """Return the patch that uncordons a node, None if it is not cordoned.

    With `only_ours` a cordon that the lab did not set stays.
    """
    ours = CORDON_ANNOTATION in node.metadata.annotations
    if not ours and (only_ours or not node.spec.unschedulable):
        return None
    return {
        "metadata": {"annotations": {CORDON_ANNOTATION: None}},
        "spec": {"unschedulable": None},
    }


def zone_patch(node: LifecycleNode, zone: str) -> JsonObject | None:
    """Return the patch that moves a node to a zone, "" for none; None if nothing changes."""
    if node.zone == zone:
        return None
    # NB: the annotation keeps the first zone, however often the node is moved.
    original = None if zone == node.own_zone else node.own_zone
    return {
        "metadata": {
            "labels": {ZONE_LABEL: zone or None},
            "annotations": {ZONE_ANNOTATION: original},
        }
    }


def original_zone_patch(node: LifecycleNode) -> JsonObject | None:
    """Return the patch that moves a node back to its own zone, None if it was not moved."""
    if not node.is_relabelled:
        return None
    moved = zone_patch(node, node.own_zone)
    return moved or {"metadata": {"annotations": {ZONE_ANNOTATION: None}}}


def pod_unready_patch(uid: str, *, time: str) -> JsonObject:
    """Return the strategic patch of the status of a pod on an unreachable node."""
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": time}
    return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}


def _condition_types(node: LifecycleNode) -> list[str]:
    """Return the types of conditions that the kubelet reports; Ready always."""
    there = {condition.type for condition in node.status.conditions} | {"Ready"}
    return [kind for kind in _HEALTHY if kind in there]


def _conditions(
    node: LifecycleNode, desired: dict[str, tuple[str, str, str]], *, time: str
) -> JsonObject | None:
    present = {condition.type: condition.status for condition in node.status.conditions}
    changed = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": time,
        }
        for kind, (status, reason, message) in desired.items()
        if present.get(kind) != status
    ]
    return {"status": {"conditions": changed}} if changed else None


def _other_taints(node: LifecycleNode) -> list[JsonObject]:
    taints = [taint for taint in node.spec.taints if taint.key != UNREACHABLE]
    plain: list[JsonObject] = msgspec.to_builtins(taints)
    return plain


def _taints(node: LifecycleNode, taints: list[JsonObject]) -> JsonObject:
    # The whole list is replaced, so the patch must conflict with any change since.
    return {
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": taints or None},
    }
