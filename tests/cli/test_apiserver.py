"""The command `keepclose apiserver`."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.request
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from typer.testing import CliRunner, Result

from keepclose.cli.main import app
from keepclose.cli.startup import log_to_standard_error
from support.ports import reserved_port
from support.server_processes import Embedded, embedded_server, start_embedded

JsonObject = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


def _run(*arguments: str) -> Result:
    """Run the command in this process; it must end by itself."""
    return CliRunner().invoke(app, ["apiserver", *arguments], env={"COLUMNS": "100"})


def _call(server: Embedded, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
    """Send a request as the administrator and return the answer."""
    context = ssl.create_default_context(cafile=server.directory / "pki" / "ca.crt")
    request = urllib.request.Request(
        server.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {server.token()}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        found: JsonObject = json.load(answer)
        return found


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        pytest.param(
            ["--feature-gates", "Foo=true"],
            "--feature-gates: unknown feature gate 'Foo'; known: ServiceTrafficDistribution, ",
            id="an unknown gate",
        ),
        pytest.param(
            ["--feature-gates", "TopologyAwareHints=maybe"],
            "--feature-gates: feature gate TopologyAwareHints: 'maybe' must be true or false",
            id="a gate ajar",
        ),
        pytest.param(
            ["--feature-gates", "ServiceTopology=true"],
            "--feature-gates: feature gates TopologyAwareHints and ServiceTopology exclude each",
            id="gates that exclude each other",
        ),
        pytest.param(
            ["--service-cluster-ip-range", "10.0.0.0"],
            "10.0.0.0 is no range of cluster IPs",
            id="a single address",
        ),
        pytest.param(
            ["--service-cluster-ip-range", "10.0.0.0/24,10.1.0.0/24"],
            "there must be one range of cluster IPs, or one of each family",
            id="two ranges of a family",
        ),
        pytest.param(
            ["--service-node-port-range", "30000"],
            "--service-node-port-range: '30000' must be like 30000-32767",
            id="a single port",
        ),
        pytest.param(
            ["--service-node-port-range", "5-4"], "5-4 is no range of ports", id="no ports"
        ),
        pytest.param(
            ["--emulated-version", "1.99"],
            "--emulated-version: '1.99' must be a version from 1.29 to 1.36",
            id="a release to come",
        ),
        pytest.param(["--node", "A_b"], "'A_b' is not a valid node name: ", id="a name of no node"),
        pytest.param(
            ["--bind-address", "a b"], "'a b' is neither a host name nor an address", id="no host"
        ),
        pytest.param(
            ["--bind-address", "192.0.2.1"],
            "cannot listen at 192.0.2.1: not an address of this machine; choose one with --bind-",
            id="another machine",
        ),
        pytest.param(
            ["--advertise-address", "127.0.0.1"],
            "--advertise-address: '127.0.0.1' may not be in the loopback range",
            id="no address for nodes",
        ),
    ],
)
def test_flags_that_cannot_be_followed(tmp_path: Path, flags: list[str], want: str) -> None:
    """A bad flag ends the command with 2 and one line that says which and why."""
    result = _run("--data-dir", str(tmp_path / "data"), "--port", "0", *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {want}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        pytest.param([], "Missing option '--data-dir'", id="no directory"),
        pytest.param(["--data-dir", "x", "--port", "70000"], "'--port'", id="a port too high"),
        pytest.param(["--data-dir", "x", "--port", "-1"], "'--port'", id="a port below zero"),
        pytest.param(
            ["--data-dir", "x", "--durability", "none"], "'--durability'", id="no such durability"
        ),
        pytest.param(["--data-dir", "x", "--nope"], "No such option", id="no such flag"),
    ],
)
def test_flags_that_cannot_be_read(flags: list[str], want: str) -> None:
    """A flag of the wrong form ends the command with 2 and names the flag."""
    result = _run(*flags)
    assert result.exit_code == 2
    assert want in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unusable_directory(tmp_path: Path) -> None:
    """A file where the directory should be is told with what to do."""
    (tmp_path / "data").write_text("")
    result = _run("--data-dir", str(tmp_path / "data"), "--port", "0")
    assert (result.exit_code, result.stderr) == (
        2,
        f"error: {tmp_path}/data: File exists; choose another directory with --data-dir\n",
    )


def test_a_damaged_store(tmp_path: Path) -> None:
    """A store that is no store is told with what to do, and left as it is."""
    (tmp_path / "store.db").write_bytes(b"not a database" * 20)
    result = _run("--data-dir", str(tmp_path), "--port", "0")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path}/store.db: is not a store of keepclose; ")
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "store.db").read_bytes() == b"not a database" * 20


def test_a_port_in_use(tmp_path: Path) -> None:
    """A port that another program has is told."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _run("--data-dir", str(tmp_path), "--port", str(port))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot listen at 127.0.0.1 port {port}: ")
    assert result.stderr.endswith("; choose another with --port, or 0 for any\n")


@pytest.mark.parametrize("address", ["300.1.1.1", "192.0.2.1"])
def test_an_address_to_listen_at_that_is_not_ours(address: str, tmp_path: Path) -> None:
    """An address that this machine does not have is named with its option, not with the port."""
    result = _run("--data-dir", str(tmp_path / "data"), "--port", "0", "--bind-address", address)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: cannot listen at {address}: not an address of this machine; "
        "choose one with --bind-address, such as 127.0.0.1\n"
    )


def test_help_names_every_flag() -> None:
    """The help tells of all flags."""
    result = _run("--help")
    assert result.exit_code == 0
    for flag in ("--data-dir", "--port", "--feature-gates", "--durability", "--node"):
        assert flag in result.stdout


def test_a_server_from_start_to_end(tmp_path: Path) -> None:
    """It says where it is, writes kubeconfigs, keeps others off its files, and ends with 0."""
    directory = tmp_path / "data"
    server = start_embedded(directory, "--durability", "full", "--node", "n1", "--node", "n2")
    try:
        assert _call(server, "GET", "/version")["gitVersion"]
        _call(server, "POST", CONFIGMAPS, {"metadata": {"name": "one"}})
        names = {
            "kubeconfig": ("keepclose:admin", "admin"),
            "controller.kubeconfig": ("keepclose:controller", "controller"),
            "viewer.kubeconfig": ("keepclose:viewer", "viewer"),
            "lab.kubeconfig": ("keepclose:lab", "lab"),
            "node-n1.kubeconfig": ("system:node:n1", "node-n1"),
            "node-n2.kubeconfig": ("system:node:n2", "node-n2"),
        }
        ca = (directory / "pki" / "ca.crt").read_bytes()
        for name, (user, token) in names.items():
            path = directory / name
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert yaml.safe_load(path.read_text()) == {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "keepclose",
                        "cluster": {
                            "server": server.url,
                            "certificate-authority-data": base64.b64encode(ca).decode(),
                        },
                    }
                ],
                "users": [{"name": user, "user": {"token": server.token(token)}}],
                "contexts": [
                    {"name": "keepclose", "context": {"cluster": "keepclose", "user": user}}
                ],
                "current-context": "keepclose",
            }
        second = _run("--data-dir", str(directory), "--port", "0")
        assert (second.exit_code, second.stderr) == (
            2,
            (
                f"error: {directory}/store.db: is in use by another server, process "
                f"{server.process.pid}; stop that one first, or choose another directory\n"
            ),
        )
        assert _call(server, "GET", f"{CONFIGMAPS}/one")["metadata"]["name"] == "one"
    finally:
        assert server.stop() == 0
    assert server.log.read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_watches_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """A watcher of a server that is stopped sees the end of its answer, and the code is 0."""
    with embedded_server(tmp_path / "data") as server:
        context = ssl.create_default_context(cafile=server.directory / "pki" / "ca.crt")
        request = urllib.request.Request(
            f"{server.url}/api/v1/namespaces?watch=true",
            headers={"Authorization": f"Bearer {server.token()}"},
        )
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            assert json.loads(answer.readline())["type"] == "ADDED"
            server.process.send_signal(number)
            # An answer that breaks off would raise IncompleteRead.
            rest = answer.read().splitlines()
        assert all(json.loads(line)["type"] == "ADDED" for line in rest)
        assert server.process.wait(60) == 0
        assert server.log.read_text() == ""


def test_a_killed_server_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """After SIGKILL the next server starts on the same files and port, with what was answered."""
    flags = ("--service-cluster-ip-range", "10.9.0.0/24,fd09::/112")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        server = start_embedded(tmp_path / "data", *flags, port=port)
        _call(server, "POST", CONFIGMAPS, {"metadata": {"name": "one"}})
        server.kill()
        again = stack.enter_context(embedded_server(tmp_path / "data", port=port))
        assert again.url == server.url
        assert _call(again, "GET", f"{CONFIGMAPS}/one")["metadata"]["name"] == "one"
        ranges = _call(again, "GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        assert ranges["spec"]["cidrs"] == ["10.9.0.0/24", "fd09::/112"]


def test_the_advertise_address_reaches_the_server(tmp_path: Path) -> None:
    """The Service kubernetes leads to the address that the flag names."""
    with embedded_server(tmp_path / "data", "--advertise-address", "192.0.2.7") as server:
        path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
        endpoint_slice = _call(server, "GET", path)
        assert endpoint_slice["endpoints"][0]["addresses"] == ["192.0.2.7"]
        assert endpoint_slice["ports"][0]["port"] == server.port


@pytest.mark.parametrize(("flags", "want"), [((), {"default"}), (("--no-controllers",), set())])
def test_controllers_can_be_left_out(
    tmp_path: Path, flags: tuple[str, ...], want: set[str]
) -> None:
    """Namespaces have a ServiceAccount unless that is left to kube-controller-manager."""
    with embedded_server(tmp_path / "data", *flags) as server:
        accounts = _call(server, "GET", "/api/v1/namespaces/default/serviceaccounts")["items"]
        assert {account["metadata"]["name"] for account in accounts} == want
        _call(server, "GET", "/api/v1/namespaces/default/services/kubernetes")


def test_gates_reach_the_server(tmp_path: Path) -> None:
    """A gate that is given as a flag holds for what clients write."""
    flags = ("--feature-gates", "ServiceTrafficDistribution=false")
    with embedded_server(tmp_path / "data", *flags) as server:
        body = {
            "metadata": {"name": "one"},
            "spec": {"ports": [{"port": 80}], "trafficDistribution": "PreferClose"},
        }
        created = _call(server, "POST", "/api/v1/namespaces/default/services", body)
        assert "trafficDistribution" not in created["spec"]


def test_the_server_names_what_is_missing(tmp_path: Path) -> None:
    """Where a package of the server was left out, the command says what to install."""
    hidden = (
        "import sys; sys.modules['httptools'] = None; from keepclose.cli.main import run; run()"
    )
    result = subprocess.run(
        [sys.executable, "-c", hidden, "apiserver", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ},
    )
    assert result.returncode == 2
    assert result.stderr == (
        "error: httptools is not installed; the API server needs: pip install httptools\n"
    )


def test_logs_are_json_with_traces() -> None:
    """A logged error is one line of JSON with its trace, also where people are spared traces."""
    sys.tracebacklimit = 0
    errors = io.StringIO()
    with redirect_stderr(errors):
        log_to_standard_error()
        secret = "hunter2"  # noqa: S105 - must not appear
        try:
            raise ValueError("a fault")  # noqa: TRY301
        except ValueError:
            structlog.get_logger("test").exception("request failed", path="/x")
        del secret
    lines = errors.getvalue().splitlines()
    assert len(lines) == 1
    entry = json.loads(lines[0])
    assert (entry["event"], entry["level"], entry["path"]) == ("request failed", "error", "/x")
    assert "test_logs_are_json_with_traces" in entry["exception"]
    assert entry["exception"].endswith("ValueError: a fault\n")
    assert "hunter2" not in lines[0].replace('secret = \\"hunter2\\"', "")
