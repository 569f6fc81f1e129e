"""Decides what a user may do, as a pure function of the user and the request.

Administrators may do everything. The controller reads everything and writes EndpointSlices,
Endpoints, the status of Services, events and leases. A lab reads everything and writes what a
scheduler, workload controllers and the kubelets of its nodes write. A node reads what routing needs
and writes only its own objects. Viewers read. Anonymous users may only request the health of the
server. All other requests are forbidden, with the messages of kube-apiserver.

`WriteRights` checks what a write does beyond its verb. An update or an apply may create the object
that it names; as in kube-apiserver the user then needs the right to create it too. A create names
its object in the body, so it is checked after the body is decoded. A node may change its own Node
only in fields that do not steer workloads to it, as the admission plugin NodeRestriction demands.
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
_WRITE: Final = frozenset(("create", "update", "patch"))
_WRITE_AND_GET: Final = _WRITE | {"get"}
_UPDATE: Final = frozenset(("update", "patch"))
_NODE_EVENTS: Final = frozenset(("create", "patch"))
_PATH_READ: Final = frozenset(("get", "head"))
_HEALTH: Final = ("/healthz", "/livez", "/readyz")
# A path includes the paths below it.
_PATH_SUFFIXES: Final = ("", "/*")
_DISCOVERY: Final = ("/api", "/apis", "/openapi", "/version")

_DISCOVERY_GROUP: Final = "discovery.k8s.io"
_LEASE: Final = ("coordination.k8s.io", "leases", "")
_EVENTS: Final = (("", "events", ""), ("events.k8s.io", "events", ""))

# Group, resource and subresource, with the verbs beside reading.
_CONTROLLER_WRITES: Final[Mapping[tuple[str, str, str], frozenset[str]]] = {
    (_DISCOVERY_GROUP, "endpointslices", ""): _WRITE | {"delete"},
    ("", "endpoints", ""): _WRITE | {"delete"},
    ("", "services", "status"): _UPDATE,
    **dict.fromkeys(_EVENTS, _WRITE),
    _LEASE: _WRITE,
}
_LAB_WRITES: Final[Mapping[tuple[str, str, str], frozenset[str]]] = {
    ("", "pods", ""): _WRITE | {"delete"},
    ("", "pods", "status"): _UPDATE,
    ("", "pods", "binding"): frozenset(("create",)),
    ("", "bindings", ""): frozenset(("create",)),
    ("apps", "replicasets", ""): _WRITE | {"delete"},
    ("apps", "replicasets", "status"): _UPDATE,
    # Users create these; the controllers of a lab record revisions in them.
    ("apps", "deployments", ""): _UPDATE,
    ("apps", "deployments", "status"): _UPDATE,
    ("apps", "daemonsets", ""): _UPDATE,
    ("apps", "daemonsets", "status"): _UPDATE,
    ("", "nodes", ""): _WRITE | {"delete"},
    ("", "nodes", "status"): _UPDATE,
    **dict.fromkeys(_EVENTS, _WRITE),
    _LEASE: _WRITE | {"delete"},
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
    """An object that belongs to a node, with the verbs that the node may use."""

    verbs: frozenset[str]
    namespace: str
    name: str


class RequestAction(msgspec.Struct, frozen=True):
    """What a request does; without a resource it is about the path."""

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
    """Whether an action is allowed, and by which rule; a denial has no rule."""

    allowed: bool
    reason: str = ""


DENIED: Final = Decision(False)


def allowed(
    user: RequestUser, action: RequestAction, body: Mapping[str, Any] | None = None
) -> Decision:
    """Return whether the user may do the action.

    The body of a create holds the name: where a rule allows one name only, a create without a body
    is denied.
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
        return Decision(True, "labs may write nodes and workloads")
    if user.node:
        return _allowed_node(user.node, action, body or {})
    return DENIED


def may_create_unnamed(user: RequestUser, action: RequestAction) -> bool:
    """Return whether the user may create an object whose name is still in the undecoded body.

    Where the rule allows one name only, `allowed` decides as soon as the body is decoded.
    """
    if action.verb != "create" or action.name or not user.node:
        return False
    own = _own_objects(user.node).get(action.target)
    return own is not None and "create" in own.verbs and own.namespace == action.namespace


def deny(user: RequestUser, action: RequestAction) -> StatusError:
    """Return the error for an action that the user may not do."""
    who = f"User {render_value(user.name)} cannot {action.verb}"
    if not action.resource:
        why = _escape_html(f"{who} path {render_value(action.path)}")
        return StatusError(403, "Forbidden", f"forbidden: {why}", details={})
    resource = action.resource + (f"/{action.subresource}" if action.subresource else "")
    what = f"resource {render_value(resource)} in API group {render_value(action.group)}"
    scope = f"in the namespace {render_value(action.namespace)}"
    where = scope if action.namespace else "at the cluster scope"
    return forbidden(
        action.resource, action.group, action.name, _escape_html(f"{who} {what} {where}")
    )


class RoleRule(msgspec.Struct, frozen=True):
    """The allowed verbs on a resource, or on paths when no resource is named."""

    verbs: tuple[str, ...]
    group: str = ""
    resource: str = ""
    name: str = ""
    paths: tuple[str, ...] = ()


def list_rules(user: RequestUser, namespace: str) -> list[RoleRule]:
    """Return what the user may do in a namespace and at the cluster scope, as rules.

    The rules agree with `allowed`: they allow exactly the actions that it allows.
    """
    if MASTERS in user.groups:
        return [RoleRule(("*",), "*", "*"), RoleRule(("*",), paths=("*",))]
    rules: list[RoleRule] = []
    if _reads_everything(user):
        rules += [RoleRule(tuple(sorted(_READ)), "*", "*"), _path_rule("*")]
    writes = [(CONTROLLERS, _CONTROLLER_WRITES), (LABS, _LAB_WRITES)]
    for group, table in writes:
        if group in user.groups:
            rules += [_resource_rule(target, verbs) for target, verbs in table.items()]
    if user.node:
        rules += [_resource_rule(target, _READ) for target in sorted(_NODE_READS)]
        rules += [_resource_rule(target, _NODE_EVENTS) for target in _EVENTS]
        rules += [
            _resource_rule(target, own.verbs, own.name)
            for target, own in _own_objects(user.node).items()
            if own.namespace in ("", namespace)
        ]
    discovery = _DISCOVERY if AUTHENTICATED in user.groups else ()
    return [
        *rules,
        _path_rule(
            *(f"{path}{suffix}" for path in (*_HEALTH, *discovery) for suffix in _PATH_SUFFIXES)
        ),
    ]


def _resource_rule(target: tuple[str, str, str], verbs: frozenset[str], name: str = "") -> RoleRule:
    group, resource, subresource = target
    full = f"{resource}/{subresource}" if subresource else resource
    return RoleRule(tuple(sorted(verbs)), group, full, name)


def _path_rule(*paths: str) -> RoleRule:
    return RoleRule(tuple(sorted(_PATH_READ)), paths=paths)


def _allowed_path(user: RequestUser, action: RequestAction) -> Decision:
    if action.verb not in _PATH_READ:
        return DENIED
    if _is_at_or_below(action.path, _HEALTH):
        return Decision(True, "all users may request the health of the server")
    if AUTHENTICATED in user.groups and _is_at_or_below(action.path, _DISCOVERY):
        return Decision(True, "authenticated users may discover the API")
    if _reads_everything(user):
        return Decision(True, "viewers, controllers and labs may read everything")
    return DENIED


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
        return DENIED
    if (action.namespace, _object_name(action, body)) == (own.namespace, own.name):
        return Decision(True, "nodes may write about themselves")
    return DENIED


def _own_objects(node_name: str) -> dict[tuple[str, str, str], _OwnObject]:
    """Return the objects that belong to a node, by group, resource and subresource."""
    acknowledgement = acknowledgement_name(node_name)
    return {
        ("", "configmaps", ""): _OwnObject(
            _WRITE_AND_GET, ACKNOWLEDGEMENT_NAMESPACE, acknowledgement
        ),
        _LEASE: _OwnObject(_WRITE_AND_GET, NODE_LEASE_NAMESPACE, node_name),
        ("", "nodes", ""): _OwnObject(_WRITE, "", node_name),
        ("", "nodes", "status"): _OwnObject(_UPDATE | {"get"}, "", node_name),
    }


def _object_name(action: RequestAction, body: Mapping[str, Any]) -> str:
    if action.verb != "create":
        return action.name
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _is_at_or_below(path: str, parents: tuple[str, ...]) -> bool:
    # NB: a path with ".." leaves the parent that it seems to start with.
    return ".." not in path and any(
        path == parent or path.startswith(f"{parent}/") for parent in parents
    )


def _escape_html(text: str) -> str:
    # A browser must not render a message as HTML.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class WriteRights(msgspec.Struct, frozen=True):
    """The rights of the user of one write."""

    user: RequestUser
    action: RequestAction

    def check_create(self, new: Json) -> None:
        """Raise StatusError unless the user may create the object."""
        creation = msgspec.structs.replace(self.action, verb="create")
        if not allowed(self.user, creation, new).allowed:
            raise deny(self.user, creation)
        self._check_own_node(new, None)

    def check_update(self, new: Json, old: Json) -> None:
        """Raise StatusError unless the user may change the old object into the new."""
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
    """Return why a node may not write its own Node in this way, or "" when it may.

    `old` is the stored object, None where the node creates it.
    """
    who = f"node {render_value(node_name)} is not allowed to"
    if old is not None:
        for part, field in (("spec", "taints"), ("metadata", "ownerReferences")):
            if (_object_field(new, part).get(field) or []) != (
                _object_field(old, part).get(field) or []
            ):
                return f"{who} modify {field}"
    labels = _object_field(_object_field(new, "metadata"), "labels")
    labels_before = _object_field(_object_field(old or {}, "metadata"), "labels")
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
    is_of_kubernetes = any(_is_within(namespace, parent) for parent in _KUBERNETES_NAMESPACES)
    is_of_kubelet = label in _KUBELET_LABELS or any(
        _is_within(namespace, parent) for parent in _KUBELET_NAMESPACES
    )
    return is_of_kubernetes and not is_of_kubelet


def _is_within(namespace: str, parent: str) -> bool:
    return namespace == parent or namespace.endswith(f".{parent}")


def _object_field(value: Json, name: str) -> Json:
    field = value.get(name)
    return field if isinstance(field, dict) else {}
