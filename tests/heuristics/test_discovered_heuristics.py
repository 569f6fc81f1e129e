"""Heuristics that other distributions offer."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pytest

from keepclose.heuristics.discovery import GROUP, ExtensionError, find_heuristics, load_heuristic
from keepclose.heuristics.process import IsolatedHeuristic
from keepclose.model.gates import FeatureGates, Gate
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristics import HeuristicFailure, Matrix, ZoneDemand
from support.server_processes import embedded_server

VALUE = "example.dev/Broken"
GATE_ON = f"--feature-gates={Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS}=true"
MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {keepclose.dev/traffic-distribution: example.dev/Broken}}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: zone-a}}
---
apiVersion: v1
kind: Pod
metadata: {name: p1, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: main, image: x}]}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
"""


class Stay:
    """A heuristic that keeps every endpoint for its own zone."""

    def allocate(self, demand: ZoneDemand) -> Matrix:
        """Return the diagonal."""
        return {zone: {zone: number} for zone, number in demand.endpoints.items()}


stay = Stay()


def point(name: str, value: str) -> EntryPoint:
    """Return an entry point of our group."""
    return EntryPoint(name=name, value=value, group=GROUP)


def test_a_heuristic_is_loaded_by_name() -> None:
    """An entry point named <domain>/<name> gives the object that it points to."""
    loaded = load_heuristic(point("example.dev/Stay", f"{__name__}:stay"))
    assert loaded.allocate(ZoneDemand({}, {"a": 2}, {})) == {"a": {"a": 2}}


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        pytest.param("Stay", "x:y", "its name must be <domain>/<name>", id="no domain"),
        pytest.param("a/b/c", "x:y", "its name must be <domain>/<name>", id="two slashes"),
        pytest.param("a.dev/X", "no_such_module:y", "cannot load no_such_module:y", id="no module"),
        pytest.param("a.dev/X", "json:dumps", "json:dumps has no method allocate", id="no method"),
    ],
)
def test_a_heuristic_that_cannot_be_used_is_named(name: str, value: str, want: str) -> None:
    """A broken extension is refused with its name and what is wrong with it."""
    with pytest.raises(ExtensionError, match=want) as caught:
        load_heuristic(point(name, value))
    assert name in str(caught.value)


def test_installed_heuristics_are_found() -> None:
    """Finding works on this machine and every found value has a domain."""
    assert all("/" in name for name in find_heuristics())


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Install a distribution whose heuristics cannot be imported, and hang, and claim our value."""
    folder = tmp_path / "site"
    meta = folder / "broken_heuristics-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-heuristics\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(
        f"[{GROUP}]\n"
        f"{VALUE} = broken_heuristics:heuristic\n"
        "NoDomain = broken_heuristics:heuristic\n"
        "keepclose.dev/Balanced = broken_heuristics:heuristic\n"
    )
    (folder / "broken_heuristics.py").write_text("raise OSError('cannot read its settings')\n")
    return folder


def test_heuristics_of_others_are_found_without_being_imported(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken one is there to be reported by those that ask for it; our own stay ours."""
    monkeypatch.syspath_prepend(str(broken))
    found = find_heuristics()
    assert found["keepclose.dev/Balanced"] is BALANCED
    assert isinstance(found[VALUE], IsolatedHeuristic)
    assert "broken_heuristics" not in sys.modules
    answer = found[VALUE].allocate(ZoneDemand({"a": 1.0}, {"a": 1}, {}))
    assert isinstance(answer, HeuristicFailure)
    assert "cannot load broken_heuristics:heuristic: cannot read its settings" in answer.message
    answer = found["NoDomain"].allocate(ZoneDemand({"a": 1.0}, {"a": 1}, {}))
    assert isinstance(answer, HeuristicFailure)
    assert "its name must be <domain>/<name>" in answer.message


def test_nothing_is_looked_for_while_the_gate_is_off() -> None:
    """Custom heuristics are found only where they can govern."""
    gates = FeatureGates()
    assert find_heuristics(gates) == {}
    assert find_heuristics(gates.with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS))


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        pytest.param([], "GateOff", id="the gate is off"),
        pytest.param([GATE_ON], "HeuristicFailed", id="the gate is on"),
    ],
)
def test_resolve_tells_of_a_broken_heuristic(
    broken: Path, tmp_path: Path, flags: list[str], code: str
) -> None:
    """The command answers for all Services, and the one that asks has all of its endpoints."""
    (tmp_path / "web.yaml").write_text(MANIFEST)
    done = subprocess.run(
        [sys.executable, "-m", "keepclose", "resolve", "-f", "web.yaml", "-o", "json", *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(broken)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert f'"{code}"' in text
    assert "10.0.0.1" in text
    assert ("cannot read its settings" in text) == bool(flags)
    assert msgspec.json.decode(done.stdout)


@pytest.mark.parametrize("flags", [[], [GATE_ON]], ids=["the gate is off", "the gate is on"])
def test_a_controller_starts_beside_a_broken_heuristic(
    broken: Path, tmp_path: Path, flags: list[str]
) -> None:
    """It runs, whether the gate is on or off, and ends as it is told."""
    with embedded_server(tmp_path / "data") as server:
        command = [sys.executable, "-m", "keepclose", "controller", "--metrics-address=none"]
        command += [f"--kubeconfig={server.role('controller')}", "--no-leader-elect", *flags]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(broken), "PYTHONUNBUFFERED": "1"},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "keepclose controller runs\n"
            process.terminate()
            assert process.wait(60) == 0
