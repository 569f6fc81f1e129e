"""resolve and snapshot read a real cluster with rights to list alone, and write nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.requests import ENDPOINT_SLICES, NAMESPACES, SERVICES, Kind
from support.real.apis import endpoint_slice, opened, service
from support.real.clusters import address_of, create_nodes, create_pods
from support.real.programs import ControlPlane, real_control_plane

pytestmark = pytest.mark.real
GROUP = "rbac.authorization.k8s.io"
ROLES: Kind[dict[str, Any]] = Kind(GROUP, "v1", "clusterroles", "ClusterRole", False, dict)
BINDINGS: Kind[dict[str, Any]] = Kind(
    GROUP, "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a control plane whose user "stranger" has no rights at first."""
    with real_control_plane(tmp_path_factory.mktemp("real")) as running:
        yield running


async def grant(plane: ControlPlane, name: str, *resources: str) -> None:
    """Let the stranger list some kinds."""
    groups = {"endpointslices": "discovery.k8s.io", "deployments": "apps"}
    rules = [
        {"apiGroups": [groups.get(kind, "")], "resources": [kind], "verbs": ["list"]}
        for kind in resources
    ]
    async with opened(plane.kubeconfig) as client:
        await client.create(ROLES, {"metadata": {"name": name}, "rules": rules})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": GROUP, "kind": "User", "name": "stranger"}],
        }
        await client.create(BINDINGS, binding)


async def run(plane: ControlPlane, home: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command as the stranger; return its exit code, output and errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keepclose", *arguments, "--kubeconfig", str(plane.stranger)),
        env={**os.environ, "HOME": str(home), "KEEPCLOSE_DATA_DIR": str(home / "lab")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_rights_to_list_are_enough(plane: ControlPlane, tmp_path: Path) -> None:
    """Without any right it is an error, with some of them gaps are named, and all give no word."""
    async with opened(plane.kubeconfig) as client:
        await create_nodes(client)
        await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
        made = service("web", trafficDistribution="PreferSameZone")
        await client.create(SERVICES, made, namespace="shop")
        written = endpoint_slice("web-1", "web", *map(address_of, range(3)))
        written["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = (
            "endpointslice-controller.k8s.io"
        )
        for number, endpoint in enumerate(written["endpoints"]):
            endpoint["nodeName"] = f"node-{'abc'[number]}"
            endpoint["zone"] = f"zone-{'abc'[number]}"
            endpoint["targetRef"] = {"kind": "Pod", "namespace": "shop", "name": f"web-{number}"}
        await client.create(ENDPOINT_SLICES, written, namespace="shop")
        await create_pods(client, "shop", "web", range(3))
    resolve = ("resolve", "--service", "shop/web", "-o", "json")

    code, output, errors = await run(plane, tmp_path, *resolve)
    assert (code, output) == (4, "")
    assert 'the cluster denies access: services is forbidden: User "stranger"' in errors

    await grant(plane, "some", "services", "endpointslices")
    code, output, errors = await run(plane, tmp_path, *resolve)
    assert code == 0, errors
    some = json.loads(output)["services"][0]["nodes"]
    warned = [line.split()[1] for line in errors.splitlines() if line.startswith("warning")]
    assert warned == ["Node:", "Pod:"]

    await grant(plane, "rest", "nodes", "pods")
    code, output, errors = await run(plane, tmp_path, *resolve)
    assert (code, errors) == (0, "")
    whole = json.loads(output)["services"][0]["nodes"]
    assert some == whole
    assert len(whole) == 3

    file = tmp_path / "snapshot.yaml.gz"
    code, _, errors = await run(plane, tmp_path, "snapshot", "-o", str(file))
    assert code == 0, errors
    assert "warning: Deployment: the cluster denies access" in errors
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keepclose", *resolve, "-f", str(file)),
        stdout=asyncio.subprocess.PIPE,
    )
    output_bytes, _ = await process.communicate()
    assert json.loads(output_bytes)["services"][0]["nodes"] == whole
