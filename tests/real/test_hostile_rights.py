"""Our server and kube-apiserver with the same roles answer the same requests alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keepclose.testing.api_server import Api, Reply, connected, serving
from support.real.programs import real_control_plane
from support.real.rights_matrix import (
    ACK_NAMESPACE,
    IDENTITIES,
    LEASE_NAMESPACE,
    Ask,
    asks,
    impersonating,
    prepare,
    roles_for,
    send,
)

pytestmark = pytest.mark.real
JsonObject = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
# NodeRestriction lets any node change its labels of a zone, as ours does; RBAC cannot limit whose
# ConfigMap a node creates.
_UNLIMITED = "configmaps"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


@asynccontextmanager
async def kubernetes(directory: Path) -> AsyncIterator[Api]:
    """Run kube-apiserver with the plugin NodeRestriction and roles like ours."""
    directory.mkdir()  # noqa: ASYNC240 - nothing else runs yet
    with real_control_plane(directory, "--enable-admission-plugins=NodeRestriction") as plane:
        ca = directory / "certs" / "apiserver.crt"
        async with connected(ca) as session:
            api = Api(plane.url, token=plane.token, ca=ca, session=session)
            users = [
                user for name, user in IDENTITIES.items() if name not in ("admin", "anonymous")
            ]
            for role in roles_for(users, (LEASE_NAMESPACE, ACK_NAMESPACE)):
                namespace = role["metadata"].get("namespace")
                inner = f"/namespaces/{namespace}" if namespace else ""
                await api.create(f"{RBAC}{inner}/{role['kind'].lower()}s", role)
            yield api


async def call_as(api: Api, identity: str, ask: Ask) -> Reply:
    """Send a request as an identity, by way of impersonation."""
    token = "" if identity == "anonymous" else None
    headers = {} if identity in ("admin", "anonymous") else impersonating(IDENTITIES[identity])
    return await send(api, ask, token=token, headers=headers)


async def test_same_matrix(tmp_path: Path) -> None:
    """Every verb on every kind, as every identity, gets the same status from both servers."""
    different = []
    async with (
        serving(tmp_path / "ours", nodes=("n1",)) as ours,
        kubernetes(tmp_path / "real") as theirs,
    ):
        await prepare(ours)
        await prepare(theirs)
        pairs = list(zip(await asks(ours), await asks(theirs), strict=True))
        for identity in IDENTITIES:
            for ask, same in pairs:
                if identity == "node-n1" and _differs_in_rbac(ask):
                    continue
                answers = [
                    await call_as(api, identity, one) for api, one in ((ours, ask), (theirs, same))
                ]
                if answers[0].status != answers[1].status:
                    codes = [answer.status for answer in answers]
                    bodies = [answer.body.decode()[:300] for answer in answers]
                    different.append(f"{identity}: {ask}: ours, theirs {codes} {bodies}")
    assert not different, "\n".join(different)


def _differs_in_rbac(ask: Ask) -> bool:
    return "create" in ask.verbs and ask.resource.plural == _UNLIMITED


NODES = "/api/v1/nodes"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u"}
# As a node: method, path, body, content type.
NODE_REQUESTS: list[tuple[str, str, object, str]] = [
    *(
        ("PATCH", f"{NODES}/n1{subresource}?dryRun=All", patch, MERGE)
        for subresource in ("", "/status")
        for patch in (
            {"metadata": {"labels": {"node-role.kubernetes.io/infra": ""}}},
            {"metadata": {"labels": {"x.node-restriction.kubernetes.io/a": "b"}}},
            {"metadata": {"labels": {"a.k8s.io/b": "c", "kubernetes.io/x": "d"}}},
            {"metadata": {"labels": {"example.com/pool": "x"}}},
            {"metadata": {"labels": {"topology.kubernetes.io/zone": "z9"}}},
            {"metadata": {"labels": {"node.kubernetes.io/a": "b"}}},
            {"metadata": {"labels": {"fixed.kubernetes.io/a": None}}},
            {"metadata": {"labels": {"fixed.kubernetes.io/a": "changed"}}},
            {"metadata": {"ownerReferences": [OWNER]}},
            {"metadata": {"annotations": {"a": "b"}}},
            {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
            {"spec": {"unschedulable": True}},
        )
    ),
    ("POST", f"{LEASES}?dryRun=All", b"no json", "application/json"),
    ("POST", f"{LEASES}?dryRun=All", {"metadata": {"generateName": "n1"}}, "application/json"),
    ("POST", f"{NODES}?dryRun=All", {"metadata": {"name": "n3"}}, "application/json"),
]


async def test_same_node_restriction(tmp_path: Path) -> None:
    """What a node may write about its own Node is the same on both servers, word by word."""
    node = {"metadata": {"name": "n1", "labels": {"fixed.kubernetes.io/a": "x"}}}
    headers = impersonating(IDENTITIES["node-n1"])
    different = []
    async with (
        serving(tmp_path / "ours") as ours,
        kubernetes(tmp_path / "real") as theirs,
    ):
        for api in (ours, theirs):
            await api.create(NODES, node)
        for method, path, body, kind in NODE_REQUESTS:
            mine, other = [
                await api.call(method, path, body, type=kind, headers=headers)
                for api in (ours, theirs)
            ]
            same_words = path.startswith(f"{NODES}/n1") and other.status == 403
            if mine.status != other.status or (same_words and mine.message != other.message):
                different.append(f"{method} {path} {body!r}:\n  {mine.body!r}\n  {other.body!r}")
    assert not different, "\n".join(different)


async def test_same_creation_by_update(tmp_path: Path) -> None:
    """An apply or an update that would create is refused in the same words."""
    headers = impersonating(IDENTITIES["lab"])
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "absent"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    }
    path = "/apis/apps/v1/namespaces/default/deployments/absent?fieldManager=tester"
    broken = {**deployment, "spec": {**deployment["spec"], "replicas": -1}}  # type: ignore[dict-item]
    async with (
        serving(tmp_path / "ours") as ours,
        kubernetes(tmp_path / "real") as theirs,
    ):
        for body in (deployment, broken):
            mine, other = [
                await api.call("PATCH", path, body, type=APPLY, headers=headers)
                for api in (ours, theirs)
            ]
            assert (mine.status, mine.message) == (other.status, other.message)


UNNAMED = [
    {"Impersonate-Group": "system:masters"},
    {"Impersonate-Uid": "1"},
    {"Impersonate-Extra-Scope": "b"},
    {"Impersonate-Extra-a%2Fb": "c"},
    {"Impersonate-User": "", "Impersonate-Extra-a": "b"},
    {"Impersonate-Group": "g", "Impersonate-Uid": "1", "Impersonate-Extra-a": "b"},
    {"Impersonate-Other": "b"},
    {"Impersonate-User": "", "Impersonate-Group": ""},
]


async def test_same_impersonation_without_a_user(tmp_path: Path) -> None:
    """Impersonation headers that name no user are answered alike."""
    async with (
        serving(tmp_path / "ours") as ours,
        kubernetes(tmp_path / "real") as theirs,
    ):
        different = []
        for asked in UNNAMED:
            mine, other = [await api.call("GET", NODES, headers=asked) for api in (ours, theirs)]
            same = mine.status == other.status and (
                other.status == 200 or mine.message == other.message
            )
            if not same:
                different.append(f"{asked}:\n  {mine.body!r}\n  {other.body!r}")
    assert not different, "\n".join(different)
