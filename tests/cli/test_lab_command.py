"""`keepclose lab` as a command, with a stand-in for the running cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keepclose.cli.exit import name_program
from keepclose.cli.lab import app
from keepclose.lab.access import LabRefusal
from support.commands.labservers import answering

FAILED = {"nodes": ["n1", "n2"], "changed": ["n1"], "unready": ["default/web"], "is_noticed": True}
CUT = {"nodes": ["n1"], "changed": ["n1"], "unready": [], "is_noticed": False}
TRAFFIC = "  try   keepclose traffic SERVICE      undo  keepclose lab heal"


def run(directory: Path, *arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, list(arguments), env={"KEEPCLOSE_DATA_DIR": str(directory)})


def test_hints_name_the_directory_that_was_given(tmp_path: Path) -> None:
    """Commands that are offered can be typed as they are, for the same cluster."""
    directory = tmp_path / "my lab"
    directory.mkdir()
    option = f"--data-dir '{directory}'"
    refusal = LabRefusal("name a node; keepclose lab status lists them")
    with answering(directory, fail=FAILED, cordon=refusal):
        done = CliRunner().invoke(app, ["fail", "--data-dir", str(directory), "zone-a"])
        refused = CliRunner().invoke(app, ["cordon", "--data-dir", str(directory), "n1"])
    assert done.output.splitlines()[-1] == (
        f"  try   keepclose traffic {option} SERVICE      undo  keepclose lab heal {option} zone-a"
    )
    assert refused.output == (f"error: name a node; keepclose lab status {option} lists them\n")
    done = CliRunner().invoke(app, ["cordon", "--data-dir", str(directory), "n1"])
    assert done.output == (
        f"error: no cluster runs in {directory}; start one with keepclose up {option}\n"
    )


@pytest.mark.parametrize(
    ("program", "want"),
    [
        pytest.param("keepclose", "keepclose", id="found by the shell"),
        pytest.param("/opt/venv/bin/keepclose", "/opt/venv/bin/keepclose", id="by its path"),
        pytest.param("/usr/bin/kubectl-keepclose", "kubectl keepclose", id="as a plugin"),
        pytest.param("/usr/lib/keepclose/__main__.py", "keepclose", id="as a module"),
    ],
)
def test_hints_name_the_program_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, program: str, want: str
) -> None:
    """By its path where the shell does not find it by its name."""
    monkeypatch.setattr("sys.argv", [program])
    monkeypatch.setenv("PATH", "/nowhere")
    assert name_program() == want


@pytest.mark.parametrize(
    ("command", "reply", "want_asked", "want"),
    [
        pytest.param(
            ["fail", "zone-a"],
            FAILED,
            {"name": "zone-a"},
            "✓ zone-a (n1, n2) failed; 1 pod no longer ready\n"
            "  pods of a failed node stay for five minutes in Kubernetes, "
            "and here until you heal it\n"
            f"{TRAFFIC} zone-a\n",
            id="a zone fails",
        ),
        pytest.param(
            ["fail", "n1"],
            {**FAILED, "nodes": ["n1"], "changed": []},
            {"name": "n1"},
            "n1 has failed already\n",
            id="a node that failed before",
        ),
        pytest.param(
            ["partition", "n1"],
            CUT,
            {"name": "n1", "notice": False},
            "✓ n1 is cut off from all others and from the API server, "
            "and the cluster has not noticed\n"
            "  its pods still count as ready; after 40 s: keepclose lab partition n1 --notice\n"
            f"{TRAFFIC} n1\n",
            id="a node is cut off",
        ),
        pytest.param(
            ["partition", "n1", "--notice"],
            {**CUT, "changed": [], "unready": ["a/b", "a/c"], "is_noticed": True},
            {"name": "n1", "notice": True},
            "✓ n1 is already cut off from all others and from the API server, "
            "and the cluster has noticed\n"
            "  2 pods no longer ready\n"
            f"{TRAFFIC} n1\n",
            id="a partition is noticed",
        ),
        pytest.param(
            ["drain", "n1", "--force", "--timeout", "5"],
            {"node": "n1", "evicted": ["a/b", "a/c"], "kept": ["a/d"]},
            {"name": "n1", "force": True, "timeout": 5.0},
            "✓ n1 is drained: 2 pods evicted; 1 of DaemonSets stay\n"
            "  try   kubectl get pods -A -o wide      undo  keepclose lab heal n1\n",
            id="a drain",
        ),
        pytest.param(
            ["cordon", "n1"],
            {"node": "n1", "changed": True},
            {"name": "n1"},
            "✓ n1 is cordoned\n  try   kubectl get nodes      undo  keepclose lab uncordon n1\n",
            id="a cordon",
        ),
        pytest.param(
            ["uncordon", "n1"],
            {"node": "n1", "changed": False},
            {"name": "n1"},
            "n1 is not cordoned\n",
            id="nothing to uncordon",
        ),
        pytest.param(
            ["relabel", "n1", "-"],
            {"node": "n1", "before": "zone-a", "zone": "", "changed": True},
            {"name": "n1", "zone": "-"},
            f"✓ n1 moved from zone-a to no zone\n{TRAFFIC} n1\n",
            id="out of all zones",
        ),
        pytest.param(
            ["relabel", "n1", "zone-b"],
            {"node": "n1", "before": "zone-b", "zone": "zone-b", "changed": False},
            {"name": "n1", "zone": "zone-b"},
            "n1 is in zone-b already\n",
            id="nothing to relabel",
        ),
        pytest.param(
            ["heal"],
            {"healed": {"n1": ["fail", "cordon"], "n2": ["relabel"]}, "away": []},
            {"name": ""},
            "✓ healed n1 (fail, cordon), n2 (relabel)\n  try   keepclose lab status\n",
            id="all heals",
        ),
        pytest.param(
            ["heal", "n1"],
            {"healed": {"n1": ["partition"]}, "away": ["n1"]},
            {"name": "n1"},
            "✓ healed n1 (partition)\n"
            "  the proxies of n1 reconnect within half a minute\n"
            "  try   keepclose lab status\n",
            id="a proxy is still away",
        ),
        pytest.param(
            ["heal"],
            {"healed": {}, "away": []},
            {"name": ""},
            "there was nothing to heal\n",
            id="nothing to heal",
        ),
    ],
)
def test_commands(
    tmp_path: Path,
    command: list[str],
    reply: dict[str, Any],
    want_asked: dict[str, Any],
    want: str,
) -> None:
    """Each asks what was meant, and says what changed and what to try next."""
    news = {"waiting": ["n1"]}
    with answering(tmp_path, (news,), **{command[0]: reply}) as lab:
        result = run(tmp_path, *command)
    assert (result.exit_code, result.stdout, result.stderr) == (0, want, "")
    assert lab.asked == [(command[0], want_asked)]


def test_refusals(tmp_path: Path) -> None:
    """What the lab refuses is one line, with its exit code."""
    with answering(tmp_path, fail=LabRefusal("no node is called 'x'", code=3)):
        result = run(tmp_path, "fail", "x")
    assert (result.exit_code, result.stderr) == (3, "error: no node is called 'x'\n")


def test_no_cluster(tmp_path: Path) -> None:
    """Without a cluster the command says how to get one, with exit code 4."""
    result = run(tmp_path, "status")
    assert result.exit_code == 4
    assert "error: no cluster runs in" in result.stderr


NODES = [
    {
        "node": f"n{number}",
        "zone": zone,
        "ownZone": "zone-a",
        "state": "ok",
        "isNoticed": False,
        "isCordoned": False,
        "pods": 10,
        "readyPods": 9,
        "words": words,
    }
    for number, zone, words in ((1, "zone-a", "ok"), (2, "", "was in zone-a"))
]


def test_status(tmp_path: Path) -> None:
    """Nodes are shown in a table, or as they are in JSON."""
    with answering(tmp_path, status={"nodes": NODES}):
        table = run(tmp_path, "status")
        document = run(tmp_path, "status", "-o", "json")
    assert table.exit_code == 0
    assert table.stdout == (
        "NODE  ZONE    STATE          PODS  READY\n"
        "n1    zone-a  ok             10    9\n"
        "n2    -       was in zone-a  10    9\n"
    )
    assert json.loads(document.stdout) == {"nodes": NODES}


PLACES = {"pid": os.getpid(), "user_namespace": False, "fds": {"outside": 7, "n1": 8}}


def test_exec_names_an_unknown_place(tmp_path: Path) -> None:
    """Whoever names no place is told what there is, with exit code 3."""
    with answering(tmp_path, places=PLACES):
        result = run(tmp_path, "exec", "n2", "--", "true")
    assert result.exit_code == 3
    assert (
        result.stderr
        == "error: no node or pod is called 'n2'; name a node (n1), client/NODE for its clients, "
        "a pod, or outside\n"
    )


@pytest.mark.parametrize("dashes", [("--",), ()], ids=["after two dashes", "without them"])
def test_exec_becomes_the_command(tmp_path: Path, dashes: tuple[str, ...]) -> None:
    """The command is run by nsenter with all that stands behind the place."""
    tools = tmp_path / "tools"
    tools.mkdir()
    fake = tools / "nsenter"
    fake.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    fake.chmod(0o755)
    program = [sys.executable, "-m", "keepclose", "lab", "exec", "n1", *dashes, "ip", "-o", "link"]
    env = {
        **os.environ,
        "KEEPCLOSE_DATA_DIR": str(tmp_path),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    with answering(tmp_path, places=PLACES):
        done = subprocess.run(
            program, env=env, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"--net=/proc/{os.getpid()}/fd/8 -- ip -o link\n"
