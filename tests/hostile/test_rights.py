"""Each identity gets what its published rules allow, and a 403 for everything else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.auth.authorization import restrict_own_node
from keepclose.apiserver.resources import BY_KIND, RESOURCES, Resource
from keepclose.testing.api_server import Served, serving
from support.real.rights_matrix import (
    ABSENT,
    APPLY,
    IDENTITIES,
    Ask,
    asks,
    collection,
    impersonating,
    prepare,
    render,
    send,
    wants_refusal,
)

JsonObject = dict[str, Any]
NODE = BY_KIND["v1", "Node"]
MERGE = "application/merge-patch+json"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve with tokens for two nodes."""
    async with serving(tmp_path / "data", nodes=("n1", "n2")) as api:
        yield api


def credentials(served: Served, identity: str) -> tuple[str | None, dict[str, str]]:
    """Return the token and the headers by which an identity comes."""
    if identity == "stranger":
        return None, impersonating(IDENTITIES[identity])
    return ("" if identity == "anonymous" else served.token_of(identity)), {}


def _is_good(ask: Ask, status: int) -> bool:
    """Return whether a refusal is about the object: it is not there, or there already."""
    return status == (409 if ask.method == "POST" else 404 if ask.name == ABSENT else 0)


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_matrix(served: Served, identity: str) -> None:
    """Every verb on every kind and subresource is refused exactly where the rules refuse it."""
    await prepare(served)
    user = IDENTITIES[identity]
    token, headers = credentials(served, identity)
    wrong = []
    for ask in await asks(served):
        reply = await send(served, ask, token=token, headers=headers)
        wanted = wants_refusal(user, ask)
        if (reply.status == 403) is not wanted:
            wrong.append(f"{ask}: {reply.status}, should be refused: {wanted}")
        elif not (wanted or reply.status < 300 or _is_good(ask, reply.status)):
            # What the test sends must be good, or else a refusal could hide behind another error.
            wrong.append(f"{ask}: {reply.status} {reply.body.decode()}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.qualified)
async def test_apply_creates_with_the_right_to_create(served: Served, resource: Resource) -> None:
    """A role with patch and without create cannot bring an object into being by apply or PUT."""
    await prepare(served)
    path = f"{collection(resource)}/{ABSENT}"
    creation = next(
        ask for ask in await asks(served) if ask.verbs == ("create",) and ask.resource is resource
    )
    for role in ("lab", "controller", "node-n1"):
        if not wants_refusal(IDENTITIES[role], creation):
            continue
        token = served.token_of(role)
        body = render(resource, ABSENT)
        applied = f"{path}?fieldManager=tester"
        reply = await served.call("PATCH", applied, body, type=APPLY, token=token)
        assert reply.status == 403, role
        reply = await served.call("PUT", path, body, token=token)
        assert reply.status in (403, 404), role
        assert (await served.call("GET", path)).status == 404


async def test_refused_creation_says_create(served: Served) -> None:
    """The refusal of an apply that would create names the verb that is missing."""
    resource = BY_KIND["apps/v1", "Deployment"]
    path = f"{collection(resource)}/{ABSENT}?fieldManager=tester"
    token = served.token_of("lab")
    reply = await served.call("PATCH", path, render(resource, ABSENT), type=APPLY, token=token)
    assert (reply.status, reply.message) == (
        403,
        (
            'deployments.apps "absent" is forbidden: User "keepclose:lab" cannot create resource '
            '"deployments" in API group "apps" in the namespace "default"'
        ),
    )


OTHERS = [
    pytest.param(b'{"metadata":{"name":"n1"},"metadata":{"name":"n2"}}', id="two metadata"),
    pytest.param(b'{"metadata":{"name":"n1","name":"n2"}}', id="two names"),
    pytest.param(b'{"metadata":{"generateName":"n"}}', id="a generated name"),
    pytest.param(b'{"metadata":{"name":"n2"},"Metadata":{"name":"n1"}}', id="a capital letter"),
]


@pytest.mark.parametrize("body", OTHERS)
@pytest.mark.parametrize("type_", ["application/json", "application/yaml"])
async def test_node_creates_no_other_lease(served: Served, body: bytes, type_: str) -> None:
    """A node creates its own Lease alone, in whatever form the body names another."""
    token = served.token_of("node-n1")
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    reply = await served.call("POST", path, body, type=type_, token=token)
    assert reply.status in (400, 403), reply.body
    listed = await served.get(path)
    assert listed["items"] == []


ZONE = "topology.kubernetes.io/zone"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u"}
RESTRICTED = [
    pytest.param({"metadata": {"labels": {"node-role.kubernetes.io/infra": ""}}}, True, id="role"),
    pytest.param(
        {"metadata": {"labels": {"x.node-restriction.kubernetes.io/a": "b"}}}, True, id="restricted"
    ),
    pytest.param({"metadata": {"labels": {"a.k8s.io/b": "c"}}}, True, id="k8s.io"),
    pytest.param({"metadata": {"labels": {"example.com/pool": "x"}}}, False, id="another domain"),
    pytest.param({"metadata": {"labels": {ZONE: "z9"}}}, False, id="zone"),
    pytest.param({"metadata": {"labels": {"node.kubernetes.io/a": "b"}}}, False, id="kubelet's"),
    pytest.param({"metadata": {"labels": {"fixed.kubernetes.io/a": None}}}, True, id="removal"),
    pytest.param({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, True, id="taint"),
    pytest.param({"metadata": {"ownerReferences": [OWNER]}}, True, id="owner"),
    pytest.param({"metadata": {"annotations": {"a": "b"}}}, False, id="annotation"),
]


@pytest.mark.parametrize("subresource", ["", "/status"])
@pytest.mark.parametrize(("patch", "want_refused"), RESTRICTED)
async def test_node_marks_itself(
    served: Served, patch: JsonObject, want_refused: bool, subresource: str
) -> None:
    """A node sets no label, taint or owner of its own Node that would steer workloads to it."""
    node = {"metadata": {"name": "n1", "labels": {"fixed.kubernetes.io/a": "x"}}}
    before = await served.create("/api/v1/nodes", node)
    token = served.token_of("node-n1")
    path = f"/api/v1/nodes/n1{subresource}"
    reply = await served.call("PATCH", path, patch, type=MERGE, token=token)
    assert reply.status == (403 if want_refused else 200), reply.body
    if want_refused:
        assert await served.get("/api/v1/nodes/n1") == before


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_node_registers_without_role_labels(served: Served, method: str) -> None:
    """A node that registers itself, by create or by apply, cannot give itself a role."""
    token = served.token_of("node-n1")
    body = render(NODE, "n1")
    body["metadata"]["labels"] = {"node-role.kubernetes.io/control-plane": "", ZONE: "z"}
    path = "/api/v1/nodes" if method == "POST" else "/api/v1/nodes/n1?fieldManager=kubelet"
    type_ = "application/json" if method == "POST" else APPLY
    reply = await served.call(method, path, body, type=type_, token=token)
    assert (reply.status, reply.message) == (
        403,
        (
            'nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: '
            "node-role.kubernetes.io/control-plane"
        ),
    )
    del body["metadata"]["labels"]["node-role.kubernetes.io/control-plane"]
    assert (await served.call(method, path, body, type=type_, token=token)).status == 201


def test_unchanged_labels_pass() -> None:
    """Labels that a node only sends back are no change, whoever set them."""
    node = {"metadata": {"labels": {"node-role.kubernetes.io/infra": ""}}, "spec": {"taints": []}}
    assert restrict_own_node("n1", node, {"metadata": node["metadata"]}) == ""


@pytest.mark.parametrize("identity", [name for name in IDENTITIES if name != "admin"])
async def test_only_administrators_impersonate(served: Served, identity: str) -> None:
    """Impersonation takes a right of its own, with or without a user named."""
    token, headers = credentials(served, identity)
    if identity == "stranger":
        token, headers = served.token_of("viewer"), {}
    for asked in (
        {"Impersonate-User": "root", "Impersonate-Group": "system:masters"},
        {"Impersonate-User": "keepclose:admin"},
        {"Impersonate-User": "system:node:n2", "Impersonate-Group": "system:nodes"},
        {"Impersonate-User": "system:anonymous"},
    ):
        reply = await served.call("GET", "/api/v1/nodes", token=token, headers=headers | asked)
        assert reply.status == 403, asked
    for unnamed in ({"Impersonate-Group": "system:masters"}, {"Impersonate-Extra-a": "b"}):
        reply = await served.call("GET", "/api/v1/nodes", token=token, headers=headers | unnamed)
        assert reply.status == 400, unnamed


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_reviews_agree_with_what_is_enforced(served: Served, identity: str) -> None:
    """SelfSubjectAccessReview answers as the request itself would be answered."""
    if identity == "anonymous":
        pytest.skip("anonymous requests may not ask for a review")
    await prepare(served)
    token, headers = credentials(served, identity)
    wrong = []
    for ask in await asks(served):
        answers = []
        for verb in ask.verbs:
            attributes = {
                "verb": verb,
                "group": ask.resource.group,
                "resource": ask.resource.plural,
                "subresource": ask.subresource,
                "namespace": ask.namespace,
                "name": ask.name,
            }
            reply = await served.call(
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                {"spec": {"resourceAttributes": attributes}},
                token=token,
                headers=headers,
            )
            answers.append(reply.json["status"]["allowed"])
        enforced = await send(served, ask, token=token, headers=headers)
        if all(answers) is (enforced.status == 403):
            wrong.append(f"{ask}: review says {answers}, the request got {enforced.status}")
    assert not wrong, "\n".join(wrong)
