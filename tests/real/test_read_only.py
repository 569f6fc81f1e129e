"""With docs/howto/read-only.yaml, and no other right, the commands that advise read everything."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from keepclose.kube.client import Client
from keepclose.kube.requests import ENDPOINT_SLICES, NAMESPACES, SERVICES
from support.real.apis import endpoint_slice, opened, service
from support.real.clusters import address_of, create_nodes, create_pods
from support.real.programs import ControlPlane, program, real_control_plane

pytestmark = pytest.mark.real
ROOT = Path(__file__).parent.parent.parent
ROLE = ROOT / "docs" / "howto" / "read-only.yaml"
"""Of the page that promises these rights to be enough."""
SCENARIO = "service: shop/web\nevents: [{at: 1s, drain: {zone: zone-a}}]\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a control plane with a Service, whose user "stranger" has the rights of the page."""
    with real_control_plane(tmp_path_factory.mktemp("real")) as running_plane:
        asyncio.run(_create_objects(running_plane))
        yield running_plane


async def _create_objects(plane: ControlPlane) -> None:
    async with opened(plane.kubeconfig) as client:
        await create_nodes(client)
        await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
        await client.create(SERVICES, service("web"), namespace="shop")
        await create_pods(client, "shop", "web", range(3))
        await _create_slice(client)
    manifest = ROLE.read_text().replace("platform-engineers", "strangers")
    kubectl = await asyncio.create_subprocess_exec(
        *(program("kubectl"), "--kubeconfig", str(plane.kubeconfig), "apply", "-f", "-"),
        stdin=asyncio.subprocess.PIPE,
    )
    await kubectl.communicate(manifest.encode())
    assert kubectl.returncode == 0


async def _create_slice(client: Client) -> None:
    written = endpoint_slice("web-1", "web", *map(address_of, range(3)))
    for number, endpoint in enumerate(written["endpoints"]):
        endpoint["nodeName"] = f"node-{'abc'[number]}"
        endpoint["zone"] = f"zone-{'abc'[number]}"
        endpoint["targetRef"] = {"kind": "Pod", "namespace": "shop", "name": f"web-{number}"}
    written["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = (
        "endpointslice-controller.k8s.io"
    )
    await client.create(ENDPOINT_SLICES, written, namespace="shop")


def run(plane: ControlPlane, home: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command as the stranger; return its exit code, output and errors."""

    async def call() -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "keepclose", *arguments, "--kubeconfig", str(plane.stranger)),
            env={**os.environ, "HOME": str(home), "KEEPCLOSE_DATA_DIR": str(home / "lab")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode(), errors.decode()

    return asyncio.run(call())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(("plan",), 0, id="plan"),
        pytest.param(("explain", "shop/web"), 0, id="explain"),
        pytest.param(("resolve",), 0, id="resolve"),
        pytest.param(("lint",), 0, id="lint"),
        pytest.param(("snapshot",), 0, id="snapshot"),
    ],
)
def test_nothing_is_missing(
    plane: ControlPlane, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    """No command warns of a kind that it may not list, and none needs another right."""
    got, output, errors = run(plane, tmp_path, *arguments)
    assert got == code, output + errors
    assert "denies" not in output + errors
    assert "warning" not in errors
    assert "shop/web" in output or "2 Services" in output or "name: web" in output


def test_a_scenario_is_played_too(plane: ControlPlane, tmp_path: Path) -> None:
    """The notes are about the workload that these pods do not have, not about rights."""
    scenario = tmp_path / "drain.yaml"
    scenario.write_text(SCENARIO)
    code, output, errors = run(plane, tmp_path, "replay", str(scenario))
    assert code == 0, output + errors
    assert "denies" not in errors


def test_commands_agree_on_the_figures(plane: ControlPlane, tmp_path: Path) -> None:
    """One Service has one share in its zone and one busiest endpoint, whichever command says it."""
    plan = json.loads(run(plane, tmp_path, "plan", "-o", "json")[1])
    explained = json.loads(run(plane, tmp_path, "explain", "shop/web", "-o", "json")[1])
    resolved = json.loads(run(plane, tmp_path, "resolve", "-o", "json")[1])
    [now] = [each["mechanisms"][0] for each in plan["services"] if each["name"] == "web"]
    figures = explained["figures"]
    assert now["inZone"] == pytest.approx(figures["inZone"], abs=1e-6)
    assert now["busiest"] == pytest.approx(figures["busiest"], abs=1e-6)
    assert resolved["summary"]["inZone"] == pytest.approx(plan["totals"]["inZone"], abs=1e-6)


def test_the_rights_are_lists() -> None:
    """No verb but list, and no kind that holds secrets."""
    rules = [
        rule
        for document in yaml.safe_load_all(ROLE.read_text())
        for rule in document.get("rules", [])
    ]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list"}
    assert not {"secrets", "*"} & {each for rule in rules for each in rule["resources"]}
