"""Nodes: whether they are ready, what they are for, and which addresses and versions they have.

A role is the end of a label `node-role.kubernetes.io/<role>` or the value of `kubernetes.io/role`.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.printing.cells import (
    AGE,
    NAME,
    NONE,
    Cells,
    Column,
    Printer,
    age,
    name_of,
    wide,
)
from keepclose.apiserver.tables.ages import UNKNOWN
from keepclose.apiserver.tables.fields import is_set, list_at, pairs_at, text_at
from keepclose.model.json_values import JsonObject

_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"


def node_status(node: JsonObject) -> str:
    """Return "Ready", "NotReady" or "Unknown", and whether new pods are kept off."""
    ready = [
        text_at(condition, "status") == "True"
        for condition in list_at(node, "status", "conditions")
        if text_at(condition, "type") == "Ready"
    ]
    status = ("Ready" if ready[-1] else "NotReady") if ready else "Unknown"
    return f"{status},SchedulingDisabled" if is_set(node, "spec", "unschedulable") else status


def node_roles(node: JsonObject) -> str:
    """Return what the labels say that the node is for."""
    labels = pairs_at(node, "metadata", "labels")
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(labels.get(_ROLE_LABEL, ""))
    return ",".join(sorted(roles - {""})) or NONE


def _cells(node: JsonObject, now: float) -> Cells:
    architecture = text_at(node, "status", "nodeInfo", "architecture")
    kernel = _info(node, "kernelVersion")
    return [
        name_of(node),
        node_status(node),
        node_roles(node),
        age(node, now),
        text_at(node, "status", "nodeInfo", "kubeletVersion"),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        _info(node, "osImage"),
        f"{kernel} ({architecture})" if architecture else kernel,
        _info(node, "containerRuntimeVersion"),
    ]


def _address(node: JsonObject, kind: str) -> str:
    for address in list_at(node, "status", "addresses"):
        if text_at(address, "type") == kind:
            return text_at(address, "address")
    return NONE


def _info(node: JsonObject, name: str) -> str:
    return text_at(node, "status", "nodeInfo", name) or UNKNOWN


NODE: Final = Printer(
    columns=(
        NAME,
        Column("Status", "Whether the node is ready and takes new pods."),
        Column("Roles", "What the node is for, by its labels."),
        AGE,
        Column("Version", "Version of the kubelet."),
        wide("Internal-IP", "First address inside the cluster."),
        wide("External-IP", "First address outside the cluster."),
        wide("OS-Image", "Operating system."),
        wide("Kernel-Version", "Kernel and its architecture."),
        wide("Container-Runtime", "What runs the containers."),
    ),
    cells=_cells,
)
