"""Who may do what, as a pure function of the caller and the request.

Administrators may do everything. The controller reads everything and writes what follows from
Services: EndpointSlices, Endpoints, the status of Services, events and leases. A lab reads
everything and writes what a scheduler, the controllers of workloads and the kubelets of its nodes
do. A node reads what routing needs and writes about itself alone. Viewers read. Anyone may ask
whether the server is healthy, and nothing else. What no rule allows is refused, in the words of
kube-apiserver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.apiserver.auth.users import (
    AUTHENTICATED,
    CONTROLLERS,
    LABS,
    MASTERS,
    VIEWERS,
    RequestUser,
)
from keepclose.apiserver.status_errors import StatusError, forbidden
from keepclose.model.acknowledgements import ACKNOWLEDGEMENT_NAMESPACE, acknowledgement_name
from keepclose.model.field_errors import render_value

NODE_LEASE_NAMESPACE: Final = "kube-node-lease"

_READ: Final = frozenset(("get", "list", "watch"))
_CHANGE: Final = frozenset(("create", "update", "patch"))
_CHANGE_OWN: Final = _CHANGE | {"get"}
_TEND: Final = frozenset(("update", "patch"))
_NODE_EVENTS: Final = frozenset(("create", "patch"))
_PATH_READ: Final = frozenset(("get", "head"))
_HEALTH: Final = ("/healthz", "/livez", "/readyz")
# A path allows what is below it too.
_ENDS: Final = ("", "/*")
_DISCOVERY: Final = ("/api", "/apis", "/openapi", "/version")

_DISCOVERY_GROUP: Final = "discovery.k8s.io"
_LEASE: Final = ("coordination.k8s.io", "leases", "")
_EVENTS: Final = (("", "events", ""), ("events.k8s.io", "events", ""))

# Group, resource and subresource, and the verbs beyond reading.
_CONTROLLER_WRITES: Final[Mapping[tuple[str, str, str], frozenset[str]]] = {
    (_DISCOVERY_GROUP, "endpointslices", ""): _CHANGE | {"delete"},
    ("", "endpoints", ""): _CHANGE | {"delete"},
    ("", "services", "status"): _TEND,
    **dict.fromkeys(_EVENTS, _CHANGE),
    _LEASE: _CHANGE,
}
_LAB_WRITES: Final[Mapping[tuple[str, str, str], frozenset[str]]] = {
    ("", "pods", ""): _CHANGE | {"delete"},
    ("", "pods", "status"): _TEND,
    ("", "pods", "binding"): frozenset(("create",)),
    ("", "bindings", ""): frozenset(("create",)),
    ("apps", "replicasets", ""): _CHANGE | {"delete"},
    ("apps", "replicasets", "status"): _TEND,
    # People make these; a lab notes revisions in them.
    ("apps", "deployments", ""): _TEND,
    ("apps", "deployments", "status"): _TEND,
    ("apps", "daemonsets", ""): _TEND,
    ("apps", "daemonsets", "status"): _TEND,
    ("", "nodes", ""): _CHANGE | {"delete"},
    ("", "nodes", "status"): _TEND,
    **dict.fromkeys(_EVENTS, _CHANGE),
    _LEASE: _CHANGE | {"delete"},
}
_READERS: Final = (CONTROLLERS, LABS, VIEWERS)
_NODE_READS: Final = frozenset(
    (
        ("", "services", ""),
        ("", "endpoints", ""),
        ("", "nodes", ""),
        ("", "namespaces", ""),
        (_DISCOVERY_GROUP, "endpointslices", ""),
        ("networking.k8s.io", "servicecidrs", ""),
    )
)
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


class _OwnObject(NamedTuple):
    """What a node may do with one object that is about it."""

    verbs: frozenset[str]
    namespace: str
    name: str


class RequestAction(msgspec.Struct, frozen=True):
    """What a request wants; without a resource it is about the path."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def target(self) -> tuple[str, str, str]:
        """Group, resource and subresource."""
        return (self.group, self.resource, self.subresource)


class Decision(msgspec.Struct, frozen=True):
    """Whether, and by which rule; a refusal needs none."""

    allowed: bool
    reason: str = ""


REFUSED: Final = Decision(False)


def allowed(
    user: RequestUser, action: RequestAction, body: Mapping[str, Any] | None = None
) -> Decision:
    """Return whether the user may do it.

    A create carries the name in its body: where a rule is about one name, a create without a body
    is refused.
    """
    if MASTERS in user.groups:
        return Decision(True, "administrators may do everything")
    if not action.resource:
        return _allowed_path(user, action)
    if action.verb in _READ and _reads_everything(user):
        return Decision(True, "viewers, controllers and labs may read everything")
    if CONTROLLERS in user.groups and action.verb in _CONTROLLER_WRITES.get(action.target, ()):
        return Decision(True, "controllers may write what follows from Services")
    if LABS in user.groups and action.verb in _LAB_WRITES.get(action.target, ()):
        return Decision(True, "labs may tend nodes and workloads")
    if user.node:
        return _allowed_node(user.node, action, body or {})
    return REFUSED


def may_create_some(user: RequestUser, action: RequestAction) -> bool:
    """Return whether the user may create an object of a name that is not known yet.

    Where the rule is about one name, `allowed` decides as soon as the object is read.
    """
    if action.verb != "create" or action.name or not user.node:
        return False
    own = _own_objects(user.node).get(action.target)
    return own is not None and "create" in own.verbs and own.namespace == action.namespace


def why_refused(user: RequestUser, action: RequestAction) -> StatusError:
    """Return the answer to what the user may not do."""
    who = f"User {render_value(user.name)} cannot {action.verb}"
    if not action.resource:
        why = _harmless(f"{who} path {render_value(action.path)}")
        return StatusError(403, "Forbidden", f"forbidden: {why}", details={})
    resource = action.resource + (f"/{action.subresource}" if action.subresource else "")
    what = f"resource {render_value(resource)} in API group {render_value(action.group)}"
    scope = f"in the namespace {render_value(action.namespace)}"
    where = scope if action.namespace else "at the cluster scope"
    return forbidden(action.resource, action.group, action.name, _harmless(f"{who} {what} {where}"))


class RoleRule(msgspec.Struct, frozen=True):
    """Verbs that are allowed on a resource, or on paths where no resource is named."""

    verbs: tuple[str, ...]
    group: str = ""
    resource: str = ""
    name: str = ""
    paths: tuple[str, ...] = ()


def list_rules(user: RequestUser, namespace: str) -> list[RoleRule]:
    """Return what the user may do in a namespace and at the cluster scope, as rules.

    They say what `allowed` decides: each allows nothing that it would refuse, and none is missing.
    """
    if MASTERS in user.groups:
        return [RoleRule(("*",), "*", "*"), RoleRule(("*",), paths=("*",))]
    rules: list[RoleRule] = []
    if _reads_everything(user):
        rules += [RoleRule(tuple(sorted(_READ)), "*", "*"), _path_rule("*")]
    writes = [(CONTROLLERS, _CONTROLLER_WRITES), (LABS, _LAB_WRITES)]
    for group, tables in writes:
        if group in user.groups:
            rules += [_resource_rule(target, verbs) for target, verbs in tables.items()]
    if user.node:
        rules += [_resource_rule(target, _READ) for target in sorted(_NODE_READS)]
        rules += [_resource_rule(target, _NODE_EVENTS) for target in _EVENTS]
        rules += [
            _resource_rule(target, own.verbs, own.name)
            for target, own in _own_objects(user.node).items()
            if own.namespace in ("", namespace)
        ]
    known = _DISCOVERY if AUTHENTICATED in user.groups else ()
    return [*rules, _path_rule(*(f"{place}{end}" for place in (*_HEALTH, *known) for end in _ENDS))]


def _resource_rule(target: tuple[str, str, str], verbs: frozenset[str], name: str = "") -> RoleRule:
    group, resource, subresource = target
    full = f"{resource}/{subresource}" if subresource else resource
    return RoleRule(tuple(sorted(verbs)), group, full, name)


def _path_rule(*paths: str) -> RoleRule:
    return RoleRule(tuple(sorted(_PATH_READ)), paths=paths)


def _allowed_path(user: RequestUser, action: RequestAction) -> Decision:
    if action.verb not in _PATH_READ:
        return REFUSED
    if _is_at_or_below(action.path, _HEALTH):
        return Decision(True, "anyone may ask whether the server is healthy")
    if AUTHENTICATED in user.groups and _is_at_or_below(action.path, _DISCOVERY):
        return Decision(True, "whoever is known may ask what is served")
    if _reads_everything(user):
        return Decision(True, "viewers, controllers and labs may read everything")
    return REFUSED


def _reads_everything(user: RequestUser) -> bool:
    return any(group in user.groups for group in _READERS)


def _allowed_node(node_name: str, action: RequestAction, body: Mapping[str, Any]) -> Decision:
    verb, target = action.verb, action.target
    if verb in _READ and target in _NODE_READS:
        return Decision(True, "nodes may read what routing needs")
    if verb in _NODE_EVENTS and target in _EVENTS:
        return Decision(True, "nodes may report events")
    own = _own_objects(node_name).get(target)
    if own is None or verb not in own.verbs:
        return REFUSED
    if (action.namespace, _object_name(action, body)) == (own.namespace, own.name):
        return Decision(True, "nodes may write about themselves")
    return REFUSED


def _own_objects(node_name: str) -> dict[tuple[str, str, str], _OwnObject]:
    """Return the objects that are about a node, by group, resource and subresource."""
    acknowledgement = acknowledgement_name(node_name)
    return {
        ("", "configmaps", ""): _OwnObject(_CHANGE_OWN, ACKNOWLEDGEMENT_NAMESPACE, acknowledgement),
        _LEASE: _OwnObject(_CHANGE_OWN, NODE_LEASE_NAMESPACE, node_name),
        ("", "nodes", ""): _OwnObject(_CHANGE, "", node_name),
        ("", "nodes", "status"): _OwnObject(_TEND | {"get"}, "", node_name),
    }


def _object_name(action: RequestAction, body: Mapping[str, Any]) -> str:
    if action.verb != "create":
        return action.name
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _is_at_or_below(path: str, places: tuple[str, ...]) -> bool:
    # NB: a path that climbs is none of ours, wherever it seems to start.
    return ".." not in path and any(
        path == place or path.startswith(f"{place}/") for place in places
    )


def _harmless(text: str) -> str:
    # Browsers must not take a message for HTML.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class WriteRights(msgspec.Struct, frozen=True):
    """The rights of the caller of one write."""

    user: RequestUser
    action: RequestAction

    def check_create(self, new: Json) -> None:
        """Return when the caller may create the object; raises Failure where it may not."""
        creation = msgspec.structs.replace(self.action, verb="create")
        if not allowed(self.user, creation, new).allowed:
            raise why_refused(self.user, creation)
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
