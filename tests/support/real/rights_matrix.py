"""Every verb on every kind and subresource, as requests, and what the published rules say of each.

The requests are dry runs against objects that `prepare` creates, so that they can be sent as each
identity in turn. `wants_refusal` reads the rules that a SelfSubjectRulesReview shows as RBAC reads
rules; it does not call what the server decides with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.apiserver.auth.authorization import RoleRule, list_rules
from keepclose.apiserver.auth.users import (
    ANONYMOUS,
    RequestUser,
    UserRole,
    authenticated_user,
    node_user,
    role_user,
)
from keepclose.apiserver.resources import RESOURCES, SUBRESOURCE_VERBS, Resource
from keepclose.testing.api_server import Api, Reply

JsonObject = dict[str, Any]
IDENTITIES: Final[dict[str, RequestUser]] = {
    **{str(role): role_user(role) for role in UserRole},
    "node-n1": node_user("n1"),
    "stranger": authenticated_user("joe", "ops"),
    "anonymous": ANONYMOUS,
}
THERE: Final = "there"
NEWER: Final = "newer"
ABSENT: Final = "absent"
FRESH: Final = "fresh"
LEASE_NAMESPACE: Final = "kube-node-lease"
ACK_NAMESPACE: Final = "kube-system"
APPLY: Final = "application/apply-patch+yaml"
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_PATCHES: Final = {
    _MERGE: {"metadata": {"annotations": {"example.com/a": "b"}}},
    "application/strategic-merge-patch+json": {"metadata": {"annotations": {"example.com/a": "b"}}},
    "application/json-patch+json": [
        {"op": "add", "path": "/metadata/annotations", "value": {"example.com/a": "b"}}
    ],
}
# Kinds of which an update creates the object that it names.
CREATED_BY_UPDATE: Final = frozenset(("services", "endpoints", "events", "leases"))
_POD_SPEC: Final = {"containers": [{"name": "main", "image": "web:1"}]}
_SELECTED: Final = {
    "selector": {"matchLabels": {"app": "x"}},
    "template": {"metadata": {"labels": {"app": "x"}}, "spec": _POD_SPEC},
}
_CONTENTS: Final[dict[str, JsonObject]] = {
    "pods": {"spec": _POD_SPEC},
    "services": {"spec": {"ports": [{"port": 80}]}},
    "events": {"involvedObject": {"namespace": "default"}, "reason": "Tested", "type": "Normal"},
    "deployments.apps": {"spec": _SELECTED},
    "replicasets.apps": {"spec": _SELECTED},
    "daemonsets.apps": {"spec": _SELECTED},
    "endpointslices.discovery.k8s.io": {"addressType": "IPv4", "endpoints": []},
    "events.events.k8s.io": {
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/tester",
        "reportingInstance": "tester-1",
        "action": "Testing",
        "reason": "Tested",
        "type": "Normal",
        "regarding": {"namespace": "default"},
    },
    "servicecidrs.networking.k8s.io": {"spec": {"cidrs": ["10.200.0.0/24"]}},
}


class Ask(NamedTuple):
    """One request, and which rights it takes by the rules of Kubernetes."""

    method: str
    path: str
    verbs: tuple[str, ...]
    resource: Resource
    subresource: str
    namespace: str
    name: str
    body: object = None
    type: str = _JSON

    def __str__(self) -> str:
        """Return the request as a test shows it."""
        return f"{self.method} {self.path} {self.type if self.method == 'PATCH' else ''}".strip()


def render(resource: Resource, name: str, namespace: str = "default") -> JsonObject:
    """Return a valid object of the kind."""
    metadata: JsonObject = {"name": name}
    if resource.namespaced:
        metadata["namespace"] = namespace
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return {**head, **_CONTENTS.get(resource.qualified, {})}


def collection(resource: Resource, namespace: str = "default") -> str:
    """Return the path of the objects of a kind."""
    root = f"/apis/{resource.group}" if resource.group else "/api"
    inner = f"/namespaces/{namespace}" if resource.namespaced else ""
    return f"{root}/{resource.version}{inner}/{resource.plural}"


def _places() -> Iterator[tuple[Resource, str, str]]:
    """Yield each kind with a namespace and the name of an object there."""
    for resource in RESOURCES:
        # The kind that is served in two groups has an object of each.
        name = NEWER if resource.stored_as else THERE
        yield resource, "default" if resource.namespaced else "", name
        if resource.plural == "nodes":
            yield resource, "", "n1"
            yield resource, "", "n2"
        if resource.plural == "leases":
            yield resource, LEASE_NAMESPACE, "n1"
            yield resource, LEASE_NAMESPACE, "n2"
            yield resource, "default", "n1"
        if resource.plural == "configmaps":
            yield resource, ACK_NAMESPACE, "keepclose-ack-n1"
            yield resource, ACK_NAMESPACE, "keepclose-ack-n2"
            yield resource, "default", "keepclose-ack-n1"


async def prepare(api: Api) -> None:
    """Create the objects that the requests are about."""
    for resource, namespace, name in _places():
        path = collection(resource, namespace)
        reply = await api.call("POST", path, render(resource, name, namespace))
        if reply.status not in (201, 409):
            raise AssertionError(f"{path} {name}: {reply.body.decode()}")


async def asks(api: Api) -> list[Ask]:
    """Return every request; reads what is stored, to send it back."""
    found: list[Ask] = []
    for resource, namespace, name in _places():
        path = collection(resource, namespace)
        stored = (await api.call("GET", f"{path}/{name}")).json
        stored["metadata"].pop("managedFields", None)
        found += _collection_asks(resource, namespace, name)
        found += _object_asks(resource, namespace, name, stored)
        if name in (THERE, NEWER):
            found += _object_asks(resource, namespace, ABSENT, render(resource, ABSENT, namespace))
        for subresource in resource.subresources:
            found += _subresource_asks(resource, subresource, namespace, name, stored)
    return found


def _collection_asks(resource: Resource, namespace: str, name: str) -> Iterator[Ask]:
    path = collection(resource, namespace)
    fresh = FRESH if name in (THERE, NEWER) else name
    body = render(resource, fresh, namespace)
    yield Ask("POST", _dry(path), ("create",), resource, "", namespace, fresh, body)
    if name not in (THERE, NEWER):
        return
    yield Ask("GET", path, ("list",), resource, "", namespace, "")
    watch = f"{path}?watch=true&timeoutSeconds=1"
    yield Ask("GET", watch, ("watch",), resource, "", namespace, "")
    if "deletecollection" in resource.verbs:
        yield Ask("DELETE", _dry(path), ("deletecollection",), resource, "", namespace, "")


def _object_asks(resource: Resource, namespace: str, name: str, body: JsonObject) -> Iterator[Ask]:
    path = f"{collection(resource, namespace)}/{name}"
    place = (resource, "", namespace, name)
    creates = ("create",) if name == ABSENT else ()
    updates = ("update", *(creates if resource.plural in CREATED_BY_UPDATE else ()))
    yield Ask("GET", path, ("get",), *place)
    yield Ask("PUT", _dry(path), updates, *place, body)
    for kind, patch in _PATCHES.items():
        yield Ask("PATCH", _dry(path), ("patch",), *place, patch, kind)
    applied = render(resource, name, namespace)
    yield Ask("PATCH", _dry_apply(path), ("patch", *creates), *place, applied, APPLY)
    yield Ask("DELETE", _dry(path), ("delete",), *place)


def _subresource_asks(
    resource: Resource, subresource: str, namespace: str, name: str, stored: JsonObject
) -> Iterator[Ask]:
    path = f"{collection(resource, namespace)}/{name}/{subresource}"
    place = (resource, subresource, namespace, name)
    verbs = SUBRESOURCE_VERBS.get(subresource, ("get", "patch", "update"))
    body: JsonObject = stored
    if subresource == "scale":
        metadata = {"name": name, "namespace": namespace}
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": metadata,
            "spec": {"replicas": 1},
        }
    if subresource == "binding":
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": "n1"},
        }
        yield Ask("POST", _dry(path), ("create",), *place, body)
        return
    if "get" in verbs:
        yield Ask("GET", path, ("get",), *place)
    yield Ask("PUT", _dry(path), ("update",), *place, body)
    if "patch" not in verbs:
        return
    for kind, patch in _PATCHES.items():
        sent: object = {"spec": {"replicas": 1}} if subresource == "scale" else patch
        if kind.startswith("application/json-patch") and subresource == "scale":
            sent = [{"op": "replace", "path": "/spec/replicas", "value": 1}]
        yield Ask("PATCH", _dry(path), ("patch",), *place, sent, kind)
    if subresource == "status":
        applied = render(resource, name, namespace)
        yield Ask("PATCH", _dry_apply(path), ("patch",), *place, applied, APPLY)


def _dry(path: str) -> str:
    return f"{path}?dryRun=All"


def _dry_apply(path: str) -> str:
    return f"{path}?dryRun=All&fieldManager=tester&force=true"


def wants_refusal(user: RequestUser, ask: Ask) -> bool:
    """Return whether the rules of the user allow less than the request takes."""
    rules = list_rules(user, ask.namespace or "default")
    return not all(any(_matches(rule, verb, ask) for rule in rules) for verb in ask.verbs)


def _matches(rule: RoleRule, verb: str, ask: Ask) -> bool:
    full = f"{ask.resource.plural}/{ask.subresource}" if ask.subresource else ask.resource.plural
    return (
        bool(rule.resource)
        and (verb in rule.verbs or "*" in rule.verbs)
        and rule.group in ("*", ask.resource.group)
        and rule.resource in ("*", full)
        and rule.name in ("", ask.name)
    )


def impersonating(user: RequestUser) -> dict[str, str]:
    """Return headers by which an administrator acts as a user of at most one group of its own."""
    headers = {"Impersonate-User": user.name}
    groups = [group for group in user.groups if not group.startswith("system:authenticated")]
    return headers | ({"Impersonate-Group": groups[0]} if groups else {})


async def send(api: Api, ask: Ask, *, token: str | None, headers: dict[str, str]) -> Reply:
    """Send a request and return the answer; of a watch the status alone is waited for."""
    if "watch" not in ask.verbs:
        return await api.call(
            ask.method, ask.path, ask.body, type=ask.type, token=token, headers=headers
        )
    used = api.token if token is None else token
    credentials = {"Authorization": f"Bearer {used}"} if used else {}
    async with api.session.get(api.url + ask.path, headers=credentials | headers) as response:
        return Reply(response.status, response.headers, [], b"")


def roles_for(users: Sequence[RequestUser], namespaces: Sequence[str]) -> Iterator[JsonObject]:
    """Yield the ClusterRoles, Roles and bindings that give users the same rights in Kubernetes.

    RBAC knows no name of what is created, so that a create of one name becomes one of any; the
    admission plugin NodeRestriction then limits Nodes and Leases, and ConfigMaps stay unlimited.
    """
    for number, user in enumerate(users):
        everywhere = [rule for rule in list_rules(user, "default") if rule.resource]
        yield from _role(f"tested-{number}", "", user, everywhere)
        for namespace in namespaces:
            known = set(everywhere)
            inside = [r for r in list_rules(user, namespace) if r.resource and r not in known]
            if inside:
                yield from _role(f"tested-{number}", namespace, user, inside)


def _role(
    name: str, namespace: str, user: RequestUser, rules: Sequence[RoleRule]
) -> Iterator[JsonObject]:
    prefix = "" if namespace else "Cluster"
    group = "rbac.authorization.k8s.io"
    metadata: JsonObject = {"name": name} | ({"namespace": namespace} if namespace else {})
    written: list[JsonObject] = []
    for rule in rules:
        common: JsonObject = {"apiGroups": [rule.group], "resources": [rule.resource]}
        if rule.resource == "*":
            common["resources"] = ["*", "*/*"]
        if not rule.name:
            written.append({**common, "verbs": rule.verbs})
            continue
        named = [verb for verb in rule.verbs if verb != "create"]
        written.append({**common, "verbs": named, "resourceNames": [rule.name]})
        if "create" in rule.verbs:
            written.append({**common, "verbs": ["create"]})
    head = {"apiVersion": f"{group}/v1", "metadata": metadata}
    yield {**head, "kind": f"{prefix}Role", "rules": written}
    yield {
        **head,
        "kind": f"{prefix}RoleBinding",
        "roleRef": {"apiGroup": group, "kind": f"{prefix}Role", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user.name}],
    }


def encode(value: object) -> str:
    """Return a value as one line, for messages of tests."""
    return msgspec.json.encode(value).decode()
