"""Calls of `keepclose plan`, and a cluster of even pods in three zones for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from keepclose.cli.main import app

ROOT = Path(__file__).parents[2]
THREE_ZONES = str(ROOT / "examples" / "three-zones.yaml")
SHOP = str(ROOT / "examples" / "flows" / "cluster.yaml")
FLOWS = str(ROOT / "examples" / "flows" / "flows.csv")


def run_plan(*arguments: str) -> Result:
    """Run the command in a terminal of 80 columns and 25 lines."""
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "80", "LINES": "25"})


def plan_answer(*arguments: str) -> dict[str, Any]:
    """Return the answer as JSON."""
    result = run_plan(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def write_even_cluster(tmp_path: Path, *, services: int, name: str = "web") -> str:
    """Return a file with Services over even pods in three zones, none of which asks for one."""
    objects: list[dict[str, Any]] = []
    for number, zone in enumerate(("zone-a", "zone-b", "zone-c")):
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": f"n{number}",
                    "labels": {"topology.kubernetes.io/zone": zone},
                },
                "status": {
                    "allocatable": {"cpu": "4"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"p{number}", "namespace": "shop", "labels": {"app": "web"}},
                "spec": {"nodeName": f"n{number}", "containers": []},
                "status": {
                    "phase": "Running",
                    "podIPs": [{"ip": f"10.0.0.{number + 1}"}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
    objects += [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"{name}-{number}", "namespace": "shop"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        }
        for number in range(services)
    ]
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)
