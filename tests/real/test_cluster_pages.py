"""What the pages about real clusters say, on a real control plane."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.client import Client
from keepclose.kube.requests import ENDPOINTS, NAMESPACES, SERVICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.well_known import MANAGED_BY_LABEL
from support.real.apis import opened, service
from support.real.clusters import create_nodes, create_pods, read_slices
from support.real.controllers import controller_manager
from support.real.programs import (
    ControlPlane,
    free_port,
    program,
    real_control_plane,
    running,
    wait_until_answering,
)

PAGES = Path(__file__).parent.parent.parent / "docs" / "howto"
GATES = (
    "TrafficDistributionCustomHeuristics=true,ServiceTrafficDistributionStatus=true,"
    "TopologyAwareSubsetting=true,NodeLevelTopology=true"
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a control plane for all tests of this file."""
    directory = tmp_path_factory.mktemp("pages")
    # As clusters have it on which kube-proxy runs as a pod.
    with real_control_plane(directory, "--allow-privileged=true") as found:
        yield found


def kubectl(plane: ControlPlane, *arguments: str, text: str = "") -> None:
    """Run kubectl as administrator; it must succeed, and warn of nothing."""
    done = subprocess.run(
        [program("kubectl"), f"--kubeconfig={plane.kubeconfig}", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["controller.yaml", "proxy.yaml", "webhook.yaml"])
def test_manifests_are_accepted(plane: ControlPlane, name: str) -> None:
    """A real API server takes every object, and knows every field."""
    # Nothing is written, so a namespace that is made is not there for what would be in it.
    text = (PAGES / name).read_text().replace("namespace: keepclose", "namespace: default")
    kubectl(plane, "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)


@pytest.mark.parametrize("name", ["traffic-distribution.md"])
def test_manifests_in_pages_are_accepted(plane: ControlPlane, name: str) -> None:
    """A real API server takes every object that a page shows, and knows every field."""
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (PAGES / name).read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 2
    for text in blocks:
        kubectl(plane, "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)


def hinted(slices: list[EndpointSlice]) -> list[bool]:
    """Return for each endpoint whether it has hints."""
    return [one.hints is not None for piece in slices for one in piece.endpoints]


async def wait_for(client: Client, name: str, *, hints: bool, count: int) -> list[EndpointSlice]:
    """Return the slices of a Service once all its endpoints have hints, or none has any."""
    found: list[EndpointSlice] = []
    for _ in range(900):
        found = await read_slices(client, "pages", name)
        if hinted(found) == [hints] * count:
            return found
        await asyncio.sleep(0.1)
    pytest.fail(f"{name}: {hinted(found)}")


def web(name: str, annotation: str, value: str) -> dict[str, Any]:
    """Return a Service over the pods `web` that asks for something by annotation."""
    one = service(name, selector={"app": "web"})
    one["metadata"]["annotations"] = {annotation: value}
    return one


async def test_the_controller_with_the_rights_on_the_page_and_back(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """With these roles alone all is written; afterwards the built-in controllers take it over."""
    kubectl(plane, "apply", "-f", str(PAGES / "controller.yaml"))
    for kind, *where in (("clusterrole",), ("role", "-n", "kube-system")):
        role = f"--{kind}=keepclose-controller"
        kubectl(plane, "create", f"{kind}binding", "try", role, "--user=stranger", *where)
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "keepclose.log"
    keepclose: list[str | Path] = [
        Path(sys.executable).parent / "keepclose",
        "controller",
        f"--kubeconfig={plane.stranger}",
        f"--metrics-address={address}",
        f"--feature-gates={GATES}",
    ]
    async with opened(plane.kubeconfig) as client:
        await create_nodes(client)
        await client.create(NAMESPACES, {"metadata": {"name": "pages"}})
        asks = "keepclose.dev/traffic-distribution"
        subsets = "endpointslice.kubernetes.io/subsetting"
        await client.create(
            SERVICES, web("ours", asks, "keepclose.dev/Balanced"), namespace="pages"
        )
        await client.create(SERVICES, web("divided", subsets, "Require"), namespace="pages")
        await client.create(SERVICES, service("bare", selector=None), namespace="pages")
        await create_pods(client, "pages", "web", range(6))
        with running(keepclose, log) as process:
            wait_until_answering(f"http://{address}/readyz", process, log)
            ours = await wait_for(client, "ours", hints=True, count=6)
            divided = await wait_for(client, "divided", hints=False, count=6)
            assert len(divided) == 3
            endpoints = {
                "metadata": {"name": "bare"},
                "subsets": [{"addresses": [{"ip": "10.9.9.9"}], "ports": [{"port": 80}]}],
            }
            await client.create(ENDPOINTS, endpoints, namespace="pages")
            await wait_for(client, "bare", hints=False, count=1)
            found = await client.get(SERVICES, "ours", namespace="pages")
            assert {one.type: one.status for one in found.status.conditions} == {
                "TrafficDistributionAccepted": "True",
                "TrafficDistributionProgrammed": "True",
            }
        assert "forbidden" not in log.read_text().lower()
        kubectl(plane, "delete", "-f", str(PAGES / "controller.yaml"))

        with controller_manager(plane.kubeconfig, tmp_path / "manager.log"):
            after = await wait_for(client, "ours", hints=False, count=6)
            assert {one.metadata.name for one in after} == {one.metadata.name for one in ours}

            def is_ordinary(slices: list[EndpointSlice]) -> bool:
                own = {"kubernetes.io/service-name", MANAGED_BY_LABEL}
                return all(set(one.metadata.labels) <= own for one in slices)

            assert not is_ordinary(divided)
            for _ in range(900):
                divided = await read_slices(client, "pages", "divided")
                if is_ordinary(divided):
                    break
                await asyncio.sleep(0.1)
            assert is_ordinary(divided)
            assert sorted(one.addresses[0] for piece in divided for one in piece.endpoints) == [
                f"10.244.0.{number}" for number in range(1, 7)
            ]
