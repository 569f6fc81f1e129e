"""What trouble with a node looks like in its Node object and in its pods: patches, nothing else.

As the node lifecycle controller has it: a node that is silent gets its conditions set to Unknown
and two taints, and its pods are no longer ready; nothing is deleted, which would happen only after
five minutes. Zones and cordons that the lab changed are remembered in annotations, so that they can
be undone after a restart as well. Nothing here asks a server or reads a clock.
"""

from __future__ import annotations

from typing import Final

from keepclose.kube.requests import Kind
from keepclose.lab.workloads.constraints import NO_EXECUTE, NO_SCHEDULE
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import Frozen, ObjectMeta
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import StatusCondition

ZONE_ANNOTATION: Final = "keepclose.dev/lab-zone"
"""The zone that a relabelled node had before; "" for none."""
CORDON_ANNOTATION: Final = "keepclose.dev/lab-cordon"
"""Present on a node that the lab cordoned."""
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_SILENT: Final = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
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


class MarkedStatus(Frozen, frozen=True):
    """The conditions of a node."""

    conditions: tuple[StatusCondition, ...] = ()


class MarkedSpec(Frozen, frozen=True):
    """What keeps pods away; taints stay as they are written, because their times must survive."""

    taints: tuple[JsonObject, ...] = ()
    unschedulable: bool = False


class MarkedNode(Frozen, frozen=True, omit_defaults=False):
    """A node, with what the marks of trouble are made of."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MarkedSpec = MarkedSpec()
    status: MarkedStatus = MarkedStatus()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.metadata.name

    @property
    def zone(self) -> str:
        """The zone of the node's label, "" for none."""
        return self.metadata.labels.get(ZONE_LABEL, "")

    @property
    def own_zone(self) -> str:
        """The zone that the node has when nobody relabelled it."""
        return self.metadata.annotations.get(ZONE_ANNOTATION, self.zone)

    @property
    def is_relabelled(self) -> bool:
        """Whether the lab gave the node another zone."""
        return ZONE_ANNOTATION in self.metadata.annotations

    @property
    def is_unreachable(self) -> bool:
        """Whether the cluster has noticed that the node is silent."""
        return any(taint.get("key") == UNREACHABLE for taint in self.spec.taints)

    @property
    def is_ready(self) -> bool:
        """Whether the node reports Ready."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)


PLAIN_NODES: Final = Kind("", "v1", "nodes", "Node", False, MarkedNode)


def mark_silent(node: MarkedNode, *, time: str) -> JsonObject | None:
    """Return the patch of the status of a node that is no longer heard of, None if it is so."""
    reason, message = _SILENT
    return _conditions(node, dict.fromkeys(_known(node), ("Unknown", reason, message)), time=time)


def mark_heard(node: MarkedNode, *, time: str) -> JsonObject | None:
    """Return the patch of the status of a node that is well again, None if it is so."""
    return _conditions(node, {kind: _HEALTHY[kind] for kind in _known(node)}, time=time)


def taint_unreachable(node: MarkedNode, *, time: str) -> JsonObject | None:
    """Return the patch that keeps pods away from a silent node, None if it has both taints."""
    others = _other_taints(node)
    wanted = [
        {"key": UNREACHABLE, "effect": effect, "timeAdded": time}
        for effect in (NO_SCHEDULE, NO_EXECUTE)
    ]
    if len(node.spec.taints) - len(others) == len(wanted):
        return None
    return _taints(node, [*others, *wanted])


def untaint(node: MarkedNode) -> JsonObject | None:
    """Return the patch that takes the taints of a silent node away, None if it has none."""
    return _taints(node, _other_taints(node)) if node.is_unreachable else None


def cordon_patch(node: MarkedNode) -> JsonObject | None:
    """Return the patch that lets no more pods come, None if none do already."""
    if node.spec.unschedulable:
        return None
    return {
        "metadata": {"annotations": {CORDON_ANNOTATION: "true"}},
        "spec": {"unschedulable": True},
    }


def uncordon_patch(node: MarkedNode, *, only_ours: bool = False) -> JsonObject | None:
    """Return the patch that lets pods come again, None if they do already.

    Cordons of others stay if only ours are asked for.
    """
    ours = CORDON_ANNOTATION in node.metadata.annotations
    if not ours and (only_ours or not node.spec.unschedulable):
        return None
    return {
        "metadata": {"annotations": {CORDON_ANNOTATION: None}},
        "spec": {"unschedulable": None},
    }


def zone_patch(node: MarkedNode, zone: str) -> JsonObject | None:
    """Return the patch that puts a node into a zone, "" for none; None if it is there."""
    if node.zone == zone:
        return None
    # NB: what counts is the first zone, however often the node is moved.
    remembered = None if zone == node.own_zone else node.own_zone
    return {
        "metadata": {
            "labels": {ZONE_LABEL: zone or None},
            "annotations": {ZONE_ANNOTATION: remembered},
        }
    }


def home_patch(node: MarkedNode) -> JsonObject | None:
    """Return the patch that puts a node back into its own zone, None if it never left."""
    if not node.is_relabelled:
        return None
    moved = zone_patch(node, node.own_zone)
    return moved or {"metadata": {"annotations": {ZONE_ANNOTATION: None}}}


def pod_unready_patch(uid: str, *, time: str) -> JsonObject:
    """Return the strategic patch of the status of a pod on a silent node."""
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": time}
    return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}


def _known(node: MarkedNode) -> list[str]:
    """Return the types of conditions that the kubelet reports; Ready always."""
    there = {one.type for one in node.status.conditions} | {"Ready"}
    return [kind for kind in _HEALTHY if kind in there]


def _conditions(
    node: MarkedNode, wanted: dict[str, tuple[str, str, str]], *, time: str
) -> JsonObject | None:
    present = {one.type: one.status for one in node.status.conditions}
    changed = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": time,
        }
        for kind, (status, reason, message) in wanted.items()
        if present.get(kind) != status
    ]
    return {"status": {"conditions": changed}} if changed else None


def _other_taints(node: MarkedNode) -> list[JsonObject]:
    return [taint for taint in node.spec.taints if taint.get("key") != UNREACHABLE]


def _taints(node: MarkedNode, taints: list[JsonObject]) -> JsonObject:
    # The list is replaced whole, so nobody may have changed it meanwhile.
    return {
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": taints or None},
    }
