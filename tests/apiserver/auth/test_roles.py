"""Who may do what, and how a refusal reads."""

from __future__ import annotations

from typing import Any, Final

import pytest

from keepclose.apiserver.auth.authorization import (
    RequestAction,
    RoleRule,
    allowed,
    deny,
    list_rules,
)
from keepclose.apiserver.auth.users import (
    ANONYMOUS,
    RequestUser,
    UserRole,
    authenticated_user,
    node_user,
    role_user,
)

USERS: Final = {
    "admin": role_user(UserRole.ADMIN),
    "controller": role_user(UserRole.CONTROLLER),
    "viewer": role_user(UserRole.VIEWER),
    "lab": role_user(UserRole.LAB),
    "node": node_user("n1"),
    "stranger": authenticated_user("joe", "ops"),
    "anonymous": ANONYMOUS,
}
DISCOVERY: Final = "discovery.k8s.io"
LEASES: Final = "coordination.k8s.io"
ACK: Final = "keepclose-ack-n1"


def on(verb: str, resource: str, **rest: str) -> RequestAction:
    """Return what a request on objects wants; "pods/status" names a subresource."""
    resource, _, subresource = resource.partition("/")
    return RequestAction(verb, resource=resource, subresource=subresource, **rest)


def at(path: str, verb: str = "get") -> RequestAction:
    """Return what a request on a path wants."""
    return RequestAction(verb, path=path)


def named(name: str) -> dict[str, Any]:
    """Return the body of an object."""
    return {"metadata": {"name": name}}


@pytest.mark.parametrize(
    ("action", "want_users"),
    [
        (on("get", "services", namespace="shop", name="web"), "admin controller viewer lab node"),
        (on("list", "services"), "admin controller viewer lab node"),
        (on("watch", "endpointslices", group=DISCOVERY), "admin controller viewer lab node"),
        (on("list", "endpoints"), "admin controller viewer lab node"),
        (on("watch", "nodes"), "admin controller viewer lab node"),
        (on("get", "namespaces", name="shop"), "admin controller viewer lab node"),
        (on("list", "servicecidrs", group="networking.k8s.io"), "admin controller viewer lab node"),
        (on("list", "endpointslices", group="other"), "admin controller viewer lab"),
        (on("list", "pods"), "admin controller viewer lab"),
        (on("list", "configmaps"), "admin controller viewer lab"),
        (on("list", "events"), "admin controller viewer lab"),
        (on("get", "services/status", namespace="shop", name="web"), "admin controller viewer lab"),
        (on("list", "deployments", group="apps"), "admin controller viewer lab"),
        (on("create", "services", namespace="shop"), "admin"),
        (on("update", "services", namespace="shop", name="web"), "admin"),
        (on("delete", "services", namespace="shop", name="web"), "admin"),
        (on("deletecollection", "services", namespace="shop"), "admin"),
        (on("update", "services/status", namespace="shop", name="web"), "admin controller"),
        (on("patch", "services/status", namespace="shop", name="web"), "admin controller"),
        (on("delete", "services/status", namespace="shop", name="web"), "admin"),
        (on("create", "endpointslices", group=DISCOVERY, namespace="s"), "admin controller"),
        (on("update", "endpointslices", group=DISCOVERY, name="w"), "admin controller"),
        (on("delete", "endpointslices", group=DISCOVERY, name="w"), "admin controller"),
        (on("deletecollection", "endpointslices", group=DISCOVERY), "admin"),
        (on("patch", "endpoints", namespace="shop", name="web"), "admin controller"),
        (on("delete", "endpoints", namespace="shop", name="web"), "admin controller"),
        (on("create", "events", namespace="shop"), "admin controller lab node"),
        (on("patch", "events", group="events.k8s.io", name="e"), "admin controller lab node"),
        (on("update", "events", namespace="shop", name="e"), "admin controller lab"),
        (on("delete", "events", namespace="shop", name="e"), "admin"),
        (on("create", "leases", group=LEASES, namespace="kube-system"), "admin controller lab"),
        (on("update", "leases", group=LEASES, namespace="s", name="l"), "admin controller lab"),
        (on("delete", "leases", group=LEASES, namespace="s", name="l"), "admin lab"),
        (on("create", "configmaps", namespace="shop"), "admin"),
        (on("update", "pods/status", namespace="shop", name="p"), "admin lab"),
        (on("create", "namespaces"), "admin"),
        (on("delete", "nodes", name="n1"), "admin lab"),
        (on("create", "pods", namespace="shop"), "admin lab"),
        (on("patch", "pods", namespace="shop", name="p"), "admin lab"),
        (on("delete", "pods", namespace="shop", name="p"), "admin lab"),
        (on("deletecollection", "pods", namespace="shop"), "admin"),
        (on("patch", "pods/status", namespace="shop", name="p"), "admin lab"),
        (on("create", "pods/binding", namespace="shop", name="p"), "admin lab"),
        (on("create", "bindings", namespace="shop"), "admin lab"),
        (on("create", "pods/eviction", namespace="shop", name="p"), "admin"),
        (on("create", "replicasets", group="apps", namespace="shop"), "admin lab"),
        (on("delete", "replicasets", group="apps", namespace="shop", name="r"), "admin lab"),
        (on("update", "replicasets/status", group="apps", namespace="s", name="r"), "admin lab"),
        (on("create", "replicasets", namespace="shop"), "admin"),
        (on("update", "deployments", group="apps", namespace="shop", name="d"), "admin lab"),
        (on("patch", "deployments/status", group="apps", namespace="s", name="d"), "admin lab"),
        (on("create", "deployments", group="apps", namespace="shop"), "admin"),
        (on("delete", "deployments", group="apps", namespace="shop", name="d"), "admin"),
        (on("patch", "daemonsets", group="apps", namespace="shop", name="d"), "admin lab"),
        (on("patch", "daemonsets/status", group="apps", namespace="s", name="d"), "admin lab"),
        (on("delete", "daemonsets", group="apps", namespace="shop", name="d"), "admin"),
        (on("create", "nodes"), "admin lab"),
        (on("patch", "nodes/status", name="n2"), "admin lab"),
        (at("/healthz"), "admin controller viewer lab node stranger anonymous"),
        (at("/livez/ping"), "admin controller viewer lab node stranger anonymous"),
        (at("/readyz", "head"), "admin controller viewer lab node stranger anonymous"),
        (at("/readyz", "post"), "admin"),
        (at("/healthzz"), "admin controller viewer lab"),
        (at("/healthz/../metrics"), "admin controller viewer lab"),
        (at("/version"), "admin controller viewer lab node stranger"),
        (at("/api"), "admin controller viewer lab node stranger"),
        (at("/apis/apps/v1"), "admin controller viewer lab node stranger"),
        (at("/openapi/v3"), "admin controller viewer lab node stranger"),
        (at("/metrics"), "admin controller viewer lab"),
        (at("/debug/pprof"), "admin controller viewer lab"),
        (at("/"), "admin controller viewer lab"),
    ],
)
def test_roles_may_do_what_they_are_for(action: RequestAction, want_users: str) -> None:
    """Of all kinds of users exactly these may."""
    found = [name for name, user in USERS.items() if allowed(user, action).allowed]
    assert found == want_users.split()


OWN_ACK: Final = {"namespace": "kube-system", "name": ACK}
OWN_LEASE: Final = {"group": LEASES, "namespace": "kube-node-lease", "name": "n1"}


@pytest.mark.parametrize(
    ("action", "body", "want_allowed"),
    [
        (on("get", "configmaps", **OWN_ACK), None, True),
        (on("update", "configmaps", **OWN_ACK), None, True),
        (on("patch", "configmaps", **OWN_ACK), None, True),
        (on("delete", "configmaps", **OWN_ACK), None, False),
        (on("watch", "configmaps", **OWN_ACK), None, False),
        (on("update", "configmaps", namespace="shop", name=ACK), None, False),
        (on("patch", "configmaps", namespace="kube-system", name=f"{ACK}0"), None, False),
        (on("create", "configmaps", namespace="kube-system"), named(ACK), True),
        (on("create", "configmaps", namespace="kube-system"), named(f"{ACK}0"), False),
        (on("create", "configmaps", **OWN_ACK), named("keepclose-ack-n2"), False),
        (on("create", "configmaps", namespace="kube-system"), None, False),
        (on("create", "configmaps", namespace="kube-system"), {"metadata": 3}, False),
        (on("create", "configmaps", namespace="kube-system"), {"metadata": {}}, False),
        (on("create", "configmaps", namespace="shop"), named(ACK), False),
        (on("get", "leases", **OWN_LEASE), None, True),
        (on("update", "leases", **OWN_LEASE), None, True),
        (on("create", "leases", group=LEASES, namespace="kube-node-lease"), named("n1"), True),
        (on("create", "leases", group=LEASES, namespace="kube-system"), named("n1"), False),
        (
            on("update", "leases", group=LEASES, namespace="kube-node-lease", name="n2"),
            None,
            False,
        ),
        (on("create", "nodes"), named("n1"), True),
        (on("create", "nodes"), named("n2"), False),
        (on("update", "nodes", name="n1"), None, True),
        (on("patch", "nodes", name="n2"), None, False),
        (on("patch", "nodes/status", name="n1"), None, True),
        (on("get", "nodes/status", name="n1"), None, True),
        (on("update", "nodes/status", name="n2"), None, False),
        (on("update", "nodes/proxy", name="n1"), None, False),
        (on("update", "configmaps", namespace="kube-system"), named(ACK), False),
    ],
)
def test_a_node_writes_about_itself_alone(
    action: RequestAction, body: dict[str, Any] | None, *, want_allowed: bool
) -> None:
    """Only its own acknowledgement, lease, object and status; a create is judged by its body."""
    assert allowed(node_user("n1"), action, body).allowed is want_allowed


def test_a_group_without_a_node_name_gives_a_node_nothing() -> None:
    """Nodes need a name and the group; either alone is a stranger."""
    action = on("list", "services")
    for user in (
        authenticated_user("n1", "system:nodes"),
        authenticated_user("system:node:n1", "ops"),
    ):
        assert not allowed(user, action).allowed


def test_groups_of_a_certificate_give_the_same_rights() -> None:
    """A client certificate with the group of a role has the rights of the role."""
    action = on("delete", "services", namespace="shop", name="web")
    decision = allowed(authenticated_user("jane", "system:masters"), action)
    assert (decision.allowed, decision.reason) == (True, "administrators may do everything")
    assert allowed(authenticated_user("jane", "keepclose:viewers"), on("list", "pods")).allowed


@pytest.mark.parametrize(
    ("user", "action", "want_message", "want_details"),
    [
        pytest.param(
            ANONYMOUS,
            on("list", "services", namespace="default"),
            'services is forbidden: User "system:anonymous" cannot list resource "services" in API'
            ' group "" in the namespace "default"',
            {"kind": "services"},
            id="in a namespace",
        ),
        pytest.param(
            ANONYMOUS,
            on("list", "nodes"),
            'nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in API group'
            ' "" at the cluster scope',
            {"kind": "nodes"},
            id="at the cluster scope",
        ),
        pytest.param(
            node_user("n1"),
            on("update", "endpointslices", group=DISCOVERY, namespace="t", name="x"),
            'endpointslices.discovery.k8s.io "x" is forbidden: User "system:node:n1" cannot update'
            ' resource "endpointslices" in API group "discovery.k8s.io" in the namespace "t"',
            {"name": "x", "group": DISCOVERY, "kind": "endpointslices"},
            id="by name and group",
        ),
        pytest.param(
            ANONYMOUS,
            on("get", "services/status", namespace="a<b", name="x"),
            'services "x" is forbidden: User "system:anonymous" cannot get resource'
            ' "services/status" in API group "" in the namespace "a&lt;b"',
            {"name": "x", "kind": "services"},
            id="a subresource, and nothing that looks like HTML",
        ),
        pytest.param(
            RequestUser("x"),
            at("/metrics"),
            'forbidden: User "x" cannot get path "/metrics"',
            {},
            id="a path",
        ),
    ],
)
def test_a_refusal_reads_as_that_of_kubernetes(
    user: RequestUser, action: RequestAction, want_message: str, want_details: dict[str, str]
) -> None:
    """Recorded from kube-apiserver: who cannot do what, and where."""
    failure = deny(user, action)
    assert (failure.code, failure.reason) == (403, "Forbidden")
    assert (failure.message, failure.details) == (want_message, want_details)


VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete", "impersonate")
RESOURCES: Final = (
    ("", "pods"),
    ("", "pods/status"),
    ("", "pods/binding"),
    ("", "bindings"),
    ("", "services"),
    ("", "services/status"),
    ("", "endpoints"),
    ("", "nodes"),
    ("", "nodes/status"),
    ("", "configmaps"),
    ("", "events"),
    ("", "users"),
    ("apps", "deployments"),
    ("apps", "daemonsets/status"),
    ("apps", "replicasets"),
    ("events.k8s.io", "events"),
    (DISCOVERY, "endpointslices"),
    (LEASES, "leases"),
    ("networking.k8s.io", "servicecidrs"),
)
PATHS: Final = ("/healthz", "/healthz/ping", "/healthzz", "/api", "/apis/apps/v1", "/metrics", "/")


def covers(rule: RoleRule, action: RequestAction) -> bool:
    """Return whether a rule allows an action, as a reader of `kubectl auth can-i --list` would."""
    if "*" not in rule.verbs and action.verb not in rule.verbs:
        return False
    if not action.resource:
        ends = [path.removesuffix("*") for path in rule.paths if path.endswith("*")]
        return action.path in rule.paths or any(map(action.path.startswith, ends))
    resource = f"{action.resource}/{action.subresource}".removesuffix("/")
    return (
        rule.group in ("*", action.group)
        and rule.resource in ("*", resource)
        and rule.name in ("", action.name)
    )


@pytest.mark.parametrize("user", USERS.values(), ids=list(USERS))
@pytest.mark.parametrize("namespace", ["default", "kube-system", "kube-node-lease"])
def test_listed_rules_allow_what_is_allowed_and_nothing_else(
    user: RequestUser, namespace: str
) -> None:
    """`kubectl auth can-i --list` shows for every role exactly what its requests meet."""
    rules = list_rules(user, namespace)
    cluster_scoped = ("nodes", "nodes/status", "servicecidrs", "users")
    actions = [at(path, verb) for path in PATHS for verb in ("get", "head", "post")]
    actions += [
        on(verb, resource, group=group, namespace=where, name=name)
        for verb in VERBS
        for group, resource in RESOURCES
        for where in ["" if resource in cluster_scoped else namespace]
        for name in ("n1", "n2", ACK)
    ]
    for action in actions:
        want = allowed(user, action, named(action.name)).allowed
        assert any(covers(rule, action) for rule in rules) is want, action
