"""`keepclose flows` on the command line: what it refuses, and what it prints and exits with."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from keepclose.flows.checkpoint import CheckpointFile
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import NODES
from keepclose.model.meta import ObjectMeta
from keepclose.model.workload import Node
from support.server_processes import embedded_server

PROGRAM = Path(sys.executable).with_name("keepclose")
WITHOUT_CONNTRACK = Path(__file__).parents[1] / "support" / "commands" / "without_conntrack.py"


def run_flows(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*before, str(PROGRAM), "flows", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(("--detail", "zones"), "--detail: 'zones'", id="detail"),
        pytest.param(("--subnet", "10.0.0.0/8"), "must be CIDR=ZONE", id="subnet without zone"),
        pytest.param(("--cluster-cidr", "ten"), "--cluster-cidr: 'ten' is no CIDR", id="range"),
        pytest.param(("--walk-period", "0s"), "--walk-period must be", id="walk period"),
        pytest.param(("--top", "0"), "--top must be at least 1", id="top"),
        pytest.param(("--checkpoint", "/no/such/file"), "/no/such does not exist", id="directory"),
        pytest.param(
            ("--once", "--checkpoint", "/tmp/flows"),  # noqa: S108 - it is not opened
            "--once and --checkpoint exclude each other",
            id="history of what is open",
        ),
    ],
)
def test_bad_options_are_named(arguments: tuple[str, ...], want: str) -> None:
    """An option that cannot work ends the command with code 2 and its name."""
    done = run_flows(*arguments)
    assert done.returncode == 2
    assert want in done.stderr


def test_a_checkpoint_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """A directory, and a file that another agent has locked, end the command with code 2."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], current-context: c, "
        "contexts: [{name: c, context: {cluster: c}}]}"
    )
    options = ("--kubeconfig", str(kubeconfig), "--metrics-bind-address", "none")
    done = run_flows(*options, "--checkpoint", str(tmp_path))
    assert done.returncode == 2
    assert f"--checkpoint: {tmp_path} is a directory" in done.stderr
    first = CheckpointFile(tmp_path / "flows")
    first.open()
    try:
        done = run_flows(*options, "--checkpoint", str(first.path))
    finally:
        first.close()
    assert done.returncode == 2
    assert f"is used by another agent, process {os.getpid()}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="reading the kernel's connections needs root")
def test_the_present_connections_are_printed(tmp_path: Path) -> None:
    """With --once the command prints a table with its heads, and ends with 0."""
    with embedded_server(tmp_path / "data") as server:
        create_nodes(server.kubeconfig, "n1")
        done = run_flows("--once", "--kubeconfig", str(server.kubeconfig), "--node-name", "n1")
        document = run_flows(
            "--once", "-o", "json", "--kubeconfig", str(server.kubeconfig), "--node-name", "n1"
        )
        csv = run_flows(
            "--once", "-o", "csv", "--kubeconfig", str(server.kubeconfig), "--node-name", "n1"
        )
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["TO", "PORT"])
    # What is wrong is a note of the table, and no record of a log.
    assert (done.stderr, document.stderr) == ("", "")
    assert json.loads(document.stdout)["flows"] is not None
    assert (csv.returncode, csv.stdout.startswith("start,end,kind,")) == (0, True)
    # A file of CSV has no place for notes.
    assert "they have no period" in csv.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="reading the kernel's connections needs root")
def test_a_name_that_no_node_has_is_an_error(tmp_path: Path) -> None:
    """With --once a wrong name ends the command with 3, and the error names the nearest Node."""
    with embedded_server(tmp_path / "data") as server:
        create_nodes(server.kubeconfig, "worker-1", "master")
        done = run_flows("--once", "--kubeconfig", str(server.kubeconfig), "--node-name", "worker1")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no Node has the name worker1" in done.stderr
    assert "--node-name worker-1" in done.stderr


def create_nodes(kubeconfig: Path, *names: str) -> None:
    """Write Nodes."""

    async def write() -> None:
        clock = SystemClock()
        async with connect(load_connection_settings(kubeconfig), clock=clock) as client:
            for name in names:
                await client.create(NODES, Node(metadata=ObjectMeta(name=name)))

    asyncio.run(write())


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping a capability needs root")
def test_without_rights_the_fix_is_told(tmp_path: Path) -> None:
    """Without NET_ADMIN the command ends with code 5 and names the capability."""
    with embedded_server(tmp_path / "data") as server:
        done = run_flows(
            "--once",
            "--kubeconfig",
            str(server.kubeconfig),
            before=("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"),
        )
    assert done.returncode == 5
    assert "NET_ADMIN" in done.stderr


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the filter knows two processors"
)
@pytest.mark.parametrize("mode", ["--once", "--metrics-bind-address=none"])
def test_a_kernel_without_conntrack_is_named(tmp_path: Path, mode: str) -> None:
    """On a kernel that tracks no connections the command ends with code 2 and the module."""
    with embedded_server(tmp_path / "data") as server:
        done = run_flows(
            mode,
            "--kubeconfig",
            str(server.kubeconfig),
            before=(sys.executable, str(WITHOUT_CONNTRACK)),
        )
    assert done.returncode == 2
    assert "this kernel tracks no connections: Protocol not supported" in done.stderr
    assert "modprobe nf_conntrack_netlink" in done.stderr
    assert "Traceback" not in done.stderr
