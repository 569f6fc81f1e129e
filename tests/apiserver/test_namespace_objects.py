"""The ServiceAccount and the ConfigMap that every namespace has."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.apiserver.assembly import NAMESPACES
from keepclose.testing.api_server import Reply, Served, serving

PATHS = ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
MERGE = "application/merge-patch+json"


def _path(namespace: str, rest: str) -> str:
    return f"/api/v1/namespaces/{namespace}/{rest}"


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve with the objects that every cluster has."""
    async with serving(tmp_path / "data", runs_controllers=True) as served:
        yield served


async def test_the_first_namespaces_have_both(full: Served) -> None:
    """A client that comes first finds them, with the certificate authority of the server."""
    for namespace in NAMESPACES:
        await full.get(_path(namespace, PATHS[0]))
        config_map = await full.get(_path(namespace, PATHS[1]))
        assert config_map["data"] == {"ca.crt": full.ca.read_text()}
        assert config_map["metadata"]["annotations"]["kubernetes.io/description"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_new_namespace_gets_both(full: Served, path: str) -> None:
    """They are made for a namespace that a user creates, and made again when they are deleted."""
    await full.create("/api/v1/namespaces", {"metadata": {"name": "mine"}})
    made = (await full.until(_path("mine", path), lambda reply: reply.status == 200)).json
    assert (await full.call("DELETE", _path("mine", path))).status == 200

    def is_back(reply: Reply) -> bool:
        return reply.status == 200 and reply.json["metadata"]["uid"] != made["metadata"]["uid"]

    after = (await full.until(_path("mine", path), is_back)).json
    assert after.get("data") == made.get("data")


async def test_a_namespace_with_them_can_be_deleted(full: Served) -> None:
    """They do not come back in a namespace that is on its way out, and do not hold it."""
    await full.create("/api/v1/namespaces", {"metadata": {"name": "mine"}})
    for path in PATHS:
        await full.until(_path("mine", path), lambda reply: reply.status == 200)
    # Something with a finalizer keeps the namespace terminating for as long as the test looks.
    held = {"metadata": {"name": "held", "finalizers": ["example.com/wait"]}}
    await full.create(_path("mine", "configmaps"), held)
    assert (await full.call("DELETE", "/api/v1/namespaces/mine")).status == 200
    for path in PATHS:
        await full.until_gone(_path("mine", path))
    change = {"metadata": {"finalizers": None}}
    await full.call("PATCH", _path("mine", "configmaps/held"), change, type=MERGE)
    await full.until_gone("/api/v1/namespaces/mine")


async def test_what_another_controller_wrote_is_kept(tmp_path: Path) -> None:
    """Nothing is written over what is there, so kube-controller-manager is not contradicted."""
    async with serving(tmp_path, runs_controllers=True) as api:
        path = _path("default", PATHS[1])
        change = {"data": {"ca.crt": "another one"}}
        changed = (await api.call("PATCH", path, change, type=MERGE)).json
        # What the server does for a namespace made later, it would have done before for this one.
        await api.create("/api/v1/namespaces", {"metadata": {"name": "mine"}})
        await api.until(_path("mine", PATHS[1]), lambda reply: reply.status == 200)
        assert await api.get(path) == changed


async def test_a_restart_publishes_a_new_authority(tmp_path: Path) -> None:
    """The ConfigMap follows when the server has another authority; else nothing is written."""
    path = _path("default", PATHS[1])
    async with serving(tmp_path, runs_controllers=True) as api:
        first = await api.get(path)
    async with serving(tmp_path, runs_controllers=True) as api:
        assert await api.get(path) == first
    shutil.rmtree(tmp_path / "pki")
    async with serving(tmp_path, runs_controllers=True) as api:
        second = await api.get(path)
        assert second["data"] == {"ca.crt": api.ca.read_text()} != first["data"]
