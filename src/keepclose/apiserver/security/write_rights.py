"""What a write may do beyond its verb: create an object on the way, or change a node's own marks.

An update or an apply may create the object that it names. As in kube-apiserver the caller then
needs the right to create it as well, and is refused in the words of a create. A create names its
object in the body, which is known only when the body is read; and what a node writes about its own
Node is limited to fields that do not steer workloads to it, as the admission plugin NodeRestriction
has it. All of these are decided here, about the object as it would be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from keepclose.apiserver.auth.authorization import Action, allowed, refusal
from keepclose.apiserver.auth.users import User
from keepclose.apiserver.status_errors import forbidden
from keepclose.model.field_errors import render_value

_NODES: Final = ("", "nodes")
_RESTRICTED_NAMESPACE: Final = "node-restriction.kubernetes.io"
_KUBERNETES_NAMESPACES: Final = ("kubernetes.io", "k8s.io")
_KUBELET_NAMESPACES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
# Labels of Kubernetes that a kubelet sets on its own Node.
_KUBELET_LABELS: Final = frozenset(
    (
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    )
)
Json = Mapping[str, Any]


class WriteRights(msgspec.Struct, frozen=True):
    """The rights of the caller of one write."""

    user: User
    action: Action

    def check_create(self, new: Json) -> None:
        """Return when the caller may create the object; raises Failure where it may not."""
        creation = msgspec.structs.replace(self.action, verb="create")
        if not allowed(self.user, creation, new).allowed:
            raise refusal(self.user, creation)
        self._check_own_node(new, None)

    def check_update(self, new: Json, old: Json) -> None:
        """Return when the caller may turn the old object into the new; raises Failure if not."""
        self._check_own_node(new, old)

    def _check_own_node(self, new: Json, old: Json | None) -> None:
        action = self.action
        if not self.user.node or (action.group, action.resource) != _NODES:
            return
        why = restrict_own_node(self.user.node, new, old)
        if why:
            name = action.name or str(new["metadata"].get("name") or "")
            raise forbidden(action.resource, action.group, name, why)


def restrict_own_node(node_name: str, new: Json, old: Json | None) -> str:
    """Return why a node may not write its own Node object so, or "" where it may.

    `old` is the stored object, None where the node creates it.
    """
    who = f"node {render_value(node_name)} is not allowed to"
    if old is not None:
        for place, field in (("spec", "taints"), ("metadata", "ownerReferences")):
            if (_part(new, place).get(field) or []) != (_part(old, place).get(field) or []):
                return f"{who} modify {field}"
    labels = _part(_part(new, "metadata"), "labels")
    labels_before = _part(_part(old or {}, "metadata"), "labels")
    changed = {
        key
        for key in (*labels, *labels_before)
        if (key in labels, labels.get(key)) != (key in labels_before, labels_before.get(key))
    }
    refused = ", ".join(sorted(filter(_is_restricted, changed)))
    if not refused:
        return ""
    if old is None:
        return f"{who} set the following labels: {refused}"
    return f"is not allowed to modify labels: {refused}"


def _is_restricted(label: str) -> bool:
    namespace = label.partition("/")[0] if "/" in label else ""
    if _is_within(namespace, _RESTRICTED_NAMESPACE):
        return True
    is_of_kubernetes = any(_is_within(namespace, one) for one in _KUBERNETES_NAMESPACES)
    is_of_kubelet = label in _KUBELET_LABELS or any(
        _is_within(namespace, one) for one in _KUBELET_NAMESPACES
    )
    return is_of_kubernetes and not is_of_kubelet


def _is_within(namespace: str, parent: str) -> bool:
    return namespace == parent or namespace.endswith(f".{parent}")


def _part(value: Json, name: str) -> Json:
    part = value.get(name)
    return part if isinstance(part, dict) else {}
