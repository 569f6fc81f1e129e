"""The example of a heuristic as a package: built, installed, followed by resolve and controller."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from keepclose.heuristics.process import HeuristicLimits
from keepclose.testing.api_server import PATIENCE
from support.controllers import opened
from support.server_processes import embedded_server

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "heuristic"
PAGE = (ROOT / "docs" / "howto" / "heuristics.md").read_text()
GATE = "--feature-gates=TrafficDistributionCustomHeuristics=true"
ASKING = {"keepclose.dev/traffic-distribution": "example.dev/LendOne"}
NODE = """
apiVersion: v1
kind: Node
metadata: {name: n%(n)s, labels: {topology.kubernetes.io/zone: zone-%(n)s}}
status: {allocatable: {cpu: "4"}, conditions: [{type: Ready, status: "True"}]}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p%(p)s, labels: {app: web}}
spec: {nodeName: n%(n)s}
status: {phase: Running, podIPs: [{ip: 10.0.0.%(p)s}], conditions: [{type: Ready, status: "True"}]}
---
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {keepclose.dev/traffic-distribution: example.dev/LendOne}}
spec: {selector: {app: web}, ports: [{port: 80}]}
"""


def written_files() -> dict[str, str]:
    """Return the files that the page tells to write."""
    file = re.compile(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)```", re.DOTALL | re.MULTILINE)
    return dict(file.findall(PAGE))


def test_the_page_shows_the_files_of_the_example() -> None:
    """Both files are those in the folder, which people copy."""
    want = {
        f"lend-one/{file.relative_to(PACKAGE)}": file.read_text()
        for file in (PACKAGE / "pyproject.toml", PACKAGE / "src" / "lend_one.py")
    }
    assert written_files() == want


def test_the_example_asks_for_nodes_spread_and_several_zones(site: Path) -> None:
    """It lends from the zone on most nodes, lets little traffic share, and leaves idle zones."""
    script = """
import json, sys
from keepclose.routing.heuristic_answers import ZoneDemand
from keepclose.routing.traffic_shares import ZoneNodes
from lend_one import LEND_ONE
shares = json.loads(sys.argv[1])
nodes = {zone: ZoneNodes(2, 8000) for zone in shares}
demand = ZoneDemand(shares, {"a": 4, "b": 4}, {}, nodes=nodes, spread={"a": {4: 1}, "b": {1: 4}})
print(json.dumps(LEND_ONE.allocate(demand).matrix))
"""

    def allocate(shares: dict[str, float]) -> object:
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps(shares)],
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            check=True,
        )
        return json.loads(done.stdout)

    assert allocate({"a": 0.5, "b": 0.3, "c": 0.2}) == {"a": {"a": 4}, "b": {"b": 3, "c": 1}}
    assert allocate({"a": 0.5, "b": 0.45, "c": 0.05}) == {"a": {"a": 4}, "b": {"b": 3, "b,c": 1}}
    assert allocate({"a": 0.5, "b": 0.5, "c": 0.0}) == {"a": {"a": 4}, "b": {"b": 4}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of the page, build their wheel and unpack it, as installing does."""
    folder = tmp_path_factory.mktemp("dist")
    for name, text in written_files().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    script = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=folder / "lend-one",
        capture_output=True,
        text=True,
        check=True,
    )
    with zipfile.ZipFile(folder / done.stdout.split()[-1]) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_resolve_follows_the_package(site: Path, tmp_path: Path) -> None:
    """Zone-c has no endpoint and is lent one of zone-a, and the heuristic's own words say so."""
    objects = [NODE % {"n": zone} for zone in "abc"]
    objects += [POD % {"p": number, "n": "aaab"[number - 1]} for number in range(1, 5)]
    (tmp_path / "web.yaml").write_text("".join(objects) + SERVICE)
    done = subprocess.run(
        [sys.executable, "-m", "keepclose", "resolve", "-f", "web.yaml", GATE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "example.dev/LendOne (annotation keepclose.dev/traffic-distribution)" in done.stdout
    assert "zone zone-a lends an endpoint to zone zone-c" in done.stdout
    assert re.search(r"zone-c\s+nc\s+1 in zone-a", done.stdout), done.stdout


def test_the_command_of_the_page_asks_the_package(site: Path) -> None:
    """What the page offers to try it has the heuristic govern a Service, and lend an endpoint."""
    (command,) = re.findall(r"^sed .*\n.*keepclose resolve .*$", PAGE, re.MULTILINE)
    done = subprocess.run(
        ["sh", "-c", command.replace("keepclose", f"{sys.executable} -m keepclose", 1)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "spec.trafficDistribution: example.dev/LendOne governs" in done.stdout
    assert "zone zone-a lends an endpoint to zone zone-c" in done.stdout


async def test_a_controller_follows_the_package(site: Path, tmp_path: Path) -> None:
    """The hints that a running controller writes are those of the heuristic."""
    with embedded_server(tmp_path / "data", GATE) as server:
        command = [sys.executable, "-m", "keepclose", "controller", "--metrics-address=none"]
        command += [f"--kubeconfig={server.role('controller')}", "--no-leader-elect", GATE]
        async with opened(server.kubeconfig) as cluster:
            for zone in "abc":
                await cluster.add_node(f"n{zone}", f"zone-{zone}")
            for number, zone in enumerate("aaab", 1):
                await cluster.add_pod(f"p{number}", f"n{zone}", ip=f"10.0.0.{number}")
            await cluster.add_service(annotations=ASKING)
            with subprocess.Popen(  # noqa: ASYNC220 - it is only started here
                command,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(site)},
            ) as process:
                try:
                    deadline = time.monotonic() + 3 * PATIENCE
                    hinted: list[str] = []
                    while hinted != ["zone-a", "zone-a", "zone-b", "zone-c"]:
                        assert time.monotonic() < deadline, hinted
                        hinted = sorted(
                            endpoint.hints.for_zones[0].name if endpoint.hints else ""
                            for endpoint_slice in await cluster.slices()
                            for endpoint in endpoint_slice.endpoints
                        )
                finally:
                    process.terminate()
                    assert process.wait(60) == 0


def test_the_page_tells_the_limits_that_hold() -> None:
    """Seconds, pauses, the entry point and the names of the page are those of the code."""
    limits = HeuristicLimits()
    assert f"longer than {limits.allocate_s:g} seconds" in PAGE
    assert f"or {limits.start_s:g} to be imported" in PAGE
    assert (
        f"for {limits.first_pause_s:g} seconds, then 10, at most {limits.longest_pause_s:g}" in PAGE
    )
