"""Owners and dependents that no controller would make: nothing is lost, and nobody waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.testing.apiservers import Served, serving

JsonObject = dict[str, Any]
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve without any objects."""
    async with serving(tmp_path / "data") as api:
        yield api


def owned(name: str, kind: str, owner: str, uid: str) -> JsonObject:
    """Return an object that names an owner of the core group."""
    reference = {"apiVersion": "v1", "kind": kind, "name": owner, "uid": uid}
    return {"metadata": {"name": name, "ownerReferences": [reference]}}


@pytest.mark.parametrize("path", [NODES, NAMESPACES])
@pytest.mark.parametrize("is_there", [True, False])
async def test_cluster_scoped_objects_have_no_namespaced_owners(
    served: Served, path: str, is_there: bool
) -> None:
    """A Node or a Namespace with an owner in some namespace stays, as in Kubernetes."""
    uid = "absent"
    if is_there:
        uid = (await served.create(CONFIG_MAPS, {"metadata": {"name": "o"}}))["metadata"]["uid"]
    before = await served.create(path, owned("kept", "ConfigMap", "o", uid))
    # Changes of a kind are looked at one after the other, so the first one was when this one goes.
    await served.create(path, owned("gone", "Node", "absent", "absent"))
    await served.until_gone(f"{path}/gone")
    assert await served.get(f"{path}/kept") == before
