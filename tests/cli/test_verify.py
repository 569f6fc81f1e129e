"""The command `keepclose verify`, with objects and flows of files, agents and clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keepclose.accounting.flow_files import write_csv, write_json_lines
from keepclose.accounting.flow_table import FlowTable
from keepclose.cli.main import app
from keepclose.cli.verify.command import list_written
from keepclose.kube.client import Client
from keepclose.kube.requests import SERVICES
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from support.observed import ZONES, flows_of, in_zone, spread

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CLUSTER = EXAMPLES / "three-zones.yaml"
FLOWS = EXAMPLES / "flows" / "three-zones.csv"
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
"""


class ApiHandler(BaseHTTPRequestHandler):
    """Serves a node of zone-a, the Service shop/web, and pods, which never run."""

    objects: dict[str, Any]
    names: list[str]
    """The pods that exist."""

    def do_GET(self) -> None:
        """Answer with a list, or with a pod."""
        kind = self.path.partition("?")[0].rpartition("/")[2]
        items = self.objects.get(kind, [])
        self.answer({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})

    def do_POST(self) -> None:
        """Create a pod."""
        pod = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.names.append(pod["metadata"]["name"])
        self.answer({**pod, "metadata": {**pod["metadata"], "uid": "u"}}, 201)

    def do_DELETE(self) -> None:
        """Delete a pod."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.names.remove(self.path.partition("?")[0].rpartition("/")[2])
        self.answer({"kind": "Status", "status": "Success"})

    def answer(self, document: Any, status: int = 200) -> None:
        """Send a document."""
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@contextmanager
def api_server(directory: Path, handler: type[ApiHandler] = ApiHandler) -> Iterator[list[str]]:
    """Serve a cluster, with its kubeconfig in a directory; yield the names of its pods."""
    node = {
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    service = {
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1"],
            "ports": [{"port": 80, "protocol": "TCP"}],
            "trafficDistribution": "PreferSameZone",
        },
    }
    names: list[str] = []
    served = type(
        "Served",
        (handler,),
        {"objects": {"nodes": [node], "services": [service]}, "names": names},
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        (directory / "config").write_text(KUBECONFIG.replace("127.0.0.1:1", address))
        yield names
        server.shutdown()


def run(*arguments: str, columns: int = 100, home: Path | None = None) -> Result:
    """Run the command in this process, where no lab runs and no kubeconfig exists."""
    place = str(home or "/nonexistent")
    env = {
        "COLUMNS": str(columns),
        "TERM": "dumb",
        "HOME": place,
        "KUBECONFIG": "",
        "KEEPCLOSE_DATA_DIR": f"{place}/lab",
    }
    return CliRunner().invoke(app, ["verify", *arguments], env=env)


def written(directory: Path, table: FlowTable) -> str:
    """Return the name of a file with flows of shop/web."""
    shop = FlowTable(start=table.start, end=table.end)
    for key, counts in table:
        shop.add(key._replace(namespace="shop"), counts)
    file = directory / "flows.csv"
    file.write_text("".join(write_csv(shop)))
    return str(file)


def test_honoured(tmp_path: Path) -> None:
    """Traffic as expected exits with 0, with the expected shares beside the observed ones."""
    flows = in_zone(zones=ZONES[:2])
    flows_of({("zone-c", "zone-a"): 400, ("zone-c", "zone-b"): 200}, table=flows)
    result = run("shop/web", "-f", str(CLUSTER), "--flows", written(tmp_path, flows))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("✓ shop/web http  PreferSameZone  honoured   1,800 connections")
    assert lines[1].split() == ["to", "zone-a", "zone-b", "expected"]
    assert lines[2].split() == ["from", "zone-a", "600", "100", "%", "·", "100/0", "✓"]
    assert lines[4].split() == ["zone-c", "400", "67", "%", "200", "33", "%", "67/33", "✓"]


def test_not_honoured(tmp_path: Path) -> None:
    """Traffic elsewhere exits with 1; the cause and its fix are printed."""
    rows = {(zone, "zone-a"): 400 for zone in ZONES} | {(zone, "zone-b"): 200 for zone in ZONES}
    flows = flows_of(rows)
    result = run("web", "-n", "shop", "-f", str(CLUSTER), "--flows", written(tmp_path, flows))
    assert result.exit_code == 1, result.output
    assert "✗ shop/web http  PreferSameZone  not honoured" in result.stdout
    assert "why   traffic from zone-a, zone-b is spread over all 3 ready endpoints" in result.stdout
    assert "fix   use a proxy that follows hints" in result.stdout


def test_json(tmp_path: Path) -> None:
    """JSON has the verdict, the shares and the causes with their codes."""
    flows = written(tmp_path, spread())
    result = run("shop/web", "-f", str(CLUSTER), "--flows", flows, "-o", "json")
    assert result.exit_code == 1
    (port,) = json.loads(result.stdout)["services"]
    assert (port["verdict"], port["causes"][0]["code"]) == ("not honoured", "StaleEndpoints")
    assert port["rows"][0]["from"] == "zone-a"
    assert port["rows"][0]["expected"] == {"zone-a": [1.0, 1.0]}


def test_all_services() -> None:
    """Without a name all Services are judged; one fault decides the exit code."""
    result = run("-f", str(CLUSTER), "--flows", str(FLOWS))
    assert result.exit_code == 1
    assert "✓ shop/web http " in result.stdout
    assert "✗ shop/admin http " in result.stdout
    assert "too few connections to say" in result.stdout
    assert "5 endpoints on 3 zones cannot keep every zone within 20% of its share" in result.stdout


def test_changed_within_the_period(tmp_path: Path) -> None:
    """Flows from before a change exit with 3, with the command that judges new connections."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        CLUSTER.read_text().replace(
            "{name: web, namespace: shop}",
            "{name: web, namespace: shop, creationTimestamp: 2026-01-01T00:05:00Z}",
        )
    )
    rows = {(zone, "zone-a"): 400 for zone in ZONES} | {(zone, "zone-b"): 200 for zone in ZONES}
    flows = flows_of(rows, table=FlowTable(start=1767225600.0, end=1767226200.0))
    arguments = ("-f", str(cluster), "--flows", written(tmp_path, flows))
    for result in (run("shop/web", *arguments), run(*arguments)):
        assert result.exit_code == 3, result.output
        assert "· shop/web http" in result.stdout
        assert "changed within the period" in result.stdout
        assert "changed 300 s ago; flows are from before and after" in result.stdout
        assert "fix   keepclose verify shop/web --observe 60s" in result.stdout
        assert "✗" not in result.stdout


def test_failures_beside_a_verdict(tmp_path: Path) -> None:
    """Connections that fail are noted, also of Services in one line, and do not judge shares."""
    flows = in_zone(zones=ZONES[:2], refused=300)
    flows_of({("zone-c", "zone-a"): 400, ("zone-c", "zone-b"): 200}, table=flows)
    arguments = ("-f", str(CLUSTER), "--flows", written(tmp_path, flows))
    for result in (run("shop/web", *arguments), run(*arguments)):
        assert result.exit_code == 0, result.output
        assert "✓ shop/web http" in result.stdout
        assert "note  zone zone-a: 300 refused of 1,000 connections" in result.stdout


def test_no_service_sets_the_field(tmp_path: Path) -> None:
    """Where no Service has a preference, the output says so and what finds out where one helps."""
    cluster = tmp_path / "cluster.yaml"
    kept = [line for line in CLUSTER.read_text().splitlines() if "trafficDistribution" not in line]
    cluster.write_text("\n".join(line for line in kept if "topology-mode" not in line))
    arguments = ("-f", str(cluster), "--flows", written(tmp_path, spread()))
    result = run(*arguments, "-n", "shop")
    assert result.exit_code == 3, result.output
    assert result.stdout.splitlines() == [
        "no Service sets trafficDistribution, so there is nothing to verify",
        "fix   keepclose plan   which Services would gain by it, and by how much",
    ]
    result = run("shop/web", *arguments)
    assert result.exit_code == 3
    assert "· shop/web http  no trafficDistribution  no preference" in result.stdout
    assert "✗" not in result.stdout
    assert "why" not in result.stdout


async def test_times_of_writes() -> None:
    """The newest write of a Service counts, without those of its status."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    entries = [
        {"manager": "kubectl", "time": "2026-01-01T00:05:00Z"},
        {"manager": "helm", "time": "2026-01-01T00:01:00Z"},
        {"manager": "lb", "time": "2026-01-01T00:09:00Z", "subresource": "status"},
        {"manager": "old"},
    ]
    for name, fields in (("web", entries), ("api", None), ("odd", "x")):
        metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}"}
        cluster.put(SERVICES, {"metadata": {**metadata, "managedFields": fields}})
    cluster.put(SERVICES, {"metadata": {"name": "bad", "namespace": "shop"}, "spec": {"ports": 7}})
    writes: dict[str, str] = {}
    async with Client(cluster, clock=clock) as client:
        services = await list_written(client, SERVICES, writes)
    assert [service.metadata.name for service in services] == ["api", "odd", "web"]
    assert writes == {"uid-web": "2026-01-01T00:05:00Z"}


def test_narrow_screen() -> None:
    """A narrow screen gets percents, a narrower one a list; no cell is lost."""
    for columns in (60, 30):
        result = run("shop/admin", "-f", str(CLUSTER), "--flows", str(FLOWS), columns=columns)
        assert "40" in result.stdout
        assert "zone-c" in result.stdout
    assert "in % (expected)" in result.stdout


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param(FlowTable(), "no traffic", id="no traffic"),
        pytest.param(in_zone(9, zones=["zone-a"]), "too few connections to say", id="too few"),
    ],
)
def test_nothing_to_judge(tmp_path: Path, table: FlowTable, words: str) -> None:
    """Too little traffic exits with 3."""
    result = run("shop/web", "-f", str(CLUSTER), "--flows", written(tmp_path, table))
    assert result.exit_code == 3
    assert words in result.stdout


def test_fewer_connections_asked_for(tmp_path: Path) -> None:
    """--min-connections lets fewer connections count."""
    flows = written(tmp_path, in_zone(9, zones=["zone-a"]))
    arguments = ("shop/web", "-f", str(CLUSTER), "--flows", flows, "--min-connections", "5")
    assert run(*arguments).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["-f", str(CLUSTER)], 2, "--flows: nothing says where", id="no flows"),
        pytest.param(
            ["shop/wep", "-f", str(CLUSTER), "--flows", str(FLOWS)],
            3,
            "did you mean shop/web?",
            id="a Service that does not exist",
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--flows", "gone.csv"], 2, "gone.csv", id="flows that are gone"
        ),
        pytest.param(
            ["-f", "gone.yaml", "--flows", str(FLOWS)], 2, "gone.yaml", id="objects that are gone"
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--flows", "http://127.0.0.1:1"],
            4,
            "127.0.0.1:1",
            id="an agent that does not answer",
        ),
        pytest.param(
            ["--flows", str(FLOWS)], 4, "name the cluster with --kubeconfig", id="no cluster"
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--context", "x", "--flows", str(FLOWS)],
            2,
            "name files or a cluster, not both",
            id="two clusters",
        ),
        pytest.param(
            ["-f", str(CLUSTER), "shop/web", "--probe"],
            2,
            "--probe: it creates pods, which needs an API server; leave out --file",
            id="a probe of files",
        ),
        pytest.param(
            ["--probe"], 2, "--probe: it connects to one Service, and none is named", id="no name"
        ),
        pytest.param(
            ["shop/web", "--probe", "--flows", str(FLOWS)],
            2,
            "--probe: it counts its own connections; leave out --flows",
            id="a probe of flows",
        ),
        pytest.param(
            ["nosuch", "-f", str(CLUSTER), "--flows", str(FLOWS)],
            3,
            "no Service default/nosuch in",
            id="a name unlike any other",
        ),
        pytest.param(
            ["nosuch", "-f", str(CLUSTER), "--flows", str(FLOWS)],
            3,
            "; there are shop/web, kube-system/dns, shop/admin",
            id="the names that there are",
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--flows", str(FLOWS), "--observe", "soon"],
            2,
            "--observe: 'soon' must be a duration",
            id="no duration",
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--flows", str(FLOWS), "--observe", "1s"],
            2,
            "--observe: " + str(FLOWS) + " does not change",
            id="a file that is observed",
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--flows", "prometheus+http://x", "--observe", "1s"],
            2,
            "set the window instead",
            id="a window that is observed",
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--flows", str(FLOWS), "--observe", "99999999999h"],
            2,
            "--observe: '99999999999h' is longer than 24h",
            id="longer than a day",
        ),
        pytest.param(
            ["-f", str(CLUSTER), "--flows", str(FLOWS), "--observe", f"{'9' * 400}h"],
            2,
            "is longer than 24h",
            id="longer than a number can be",
        ),
    ],
)
def test_bad_input(arguments: list[str], code: int, words: str) -> None:
    """Errors name the option or the object, and what to do."""
    result = run(*arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr


def test_unreachable_cluster(tmp_path: Path) -> None:
    """A server that does not answer exits with 4."""
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    result = run("--kubeconfig", str(file), "--flows", str(FLOWS))
    assert result.exit_code == 4
    assert "http://127.0.0.1:1" in result.stderr


def test_observe() -> None:
    """Of an agent only what it counts within the time is judged."""
    pages = [in_zone(5000), spread(600, table=in_zone(5000))]

    class Agent(BaseHTTPRequestHandler):
        """Serves the next table with each request."""

        def do_GET(self) -> None:
            """Answer as an agent does."""
            table = FlowTable(end=100.0 * len(pages))
            for key, counts in pages.pop(0) if len(pages) > 1 else pages[0]:
                table.add(key._replace(namespace="shop"), counts)
            body = "".join(write_json_lines(table)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        source = f"http://127.0.0.1:{server.server_port}"
        result = run(
            *("shop/web", "-f", str(CLUSTER), "--flows", source, "--observe", "10ms", "-o", "json")
        )
        server.shutdown()
    assert result.exit_code == 1, result.output
    (port,) = json.loads(result.stdout)["services"]
    assert port["connections"] == 1800


class AgentsHandler(ApiHandler):
    """Serves pods of agents as well; the page of one is broken, the other has none."""

    def do_GET(self) -> None:
        """Answer with a list, or as an agent."""
        if "/proxy/" in self.path:
            if "broken" in self.path:
                self.answer("no flows")
            else:
                self.answer({"kind": "Status", "code": 404, "message": "no such pod"}, 404)
        elif "labelSelector" in self.path and "/pods" in self.path:
            names = ("broken", "gone")
            self.answer({"items": [agent_pod(name) for name in names]})
        else:
            super().do_GET()


def agent_pod(name: str) -> dict[str, Any]:
    """Return a running pod of an agent."""
    return {
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"nodeName": f"node-{name}"},
        "status": {"phase": "Running"},
    }


def test_no_agent_can_be_read(tmp_path: Path) -> None:
    """Agents that all fail are no cluster without agents: the code is 4, and each is named."""
    with api_server(tmp_path, AgentsHandler):
        result = run("--kubeconfig", str(tmp_path / "config"), home=tmp_path)
    assert result.exit_code == 4, result.output
    assert result.stderr.startswith("error: none of the 2 agents can be read\n")
    assert "node-broken: " in result.stderr
    assert "node-gone: " in result.stderr


def test_no_agent_runs(tmp_path: Path) -> None:
    """A cluster without agents has nothing to judge, and --probe is named."""
    with api_server(tmp_path):
        result = run("--kubeconfig", str(tmp_path / "config"), home=tmp_path)
    assert result.exit_code == 3, result.output
    assert "--probe" in result.stderr


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("broken"),
        OverflowError("broken"),
        EOFError("broken"),
        OSError("broken"),
        ExceptionGroup("broken", [ValueError("within")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unexpected_error_is_no_verdict(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of keepclose itself never exits with 1, the code for "not honoured"."""

    def break_down(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("keepclose.advise.verification.verify_services", break_down)
    result = run("-f", str(CLUSTER), "--flows", str(FLOWS))
    assert result.exit_code == 70
    assert result.stderr == f"{type(error).__name__}: {error}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_deletes_probe_pods(number: signal.Signals, tmp_path: Path) -> None:
    """A command that is stopped deletes its pods and exits with no code of a verdict."""
    # NB: under nohup the tests, and so their children, ignore SIGHUP.
    program = ("env", "--default-signal", sys.executable, "-m", "keepclose")
    command = (*program, "verify", "shop/web", "--probe", "--yes")
    env = {**os.environ, "HOME": str(tmp_path), "KEEPCLOSE_DATA_DIR": str(tmp_path / "lab")}
    with api_server(tmp_path) as names:
        with subprocess.Popen(
            (*command, "--kubeconfig", str(tmp_path / "config")),
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        ) as probing:
            until = time.monotonic() + 60
            while not names and probing.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            assert names, probing.poll()
            # As `timeout` does, which signals its child and then its process group.
            probing.send_signal(number)
            probing.send_signal(number)
            _, errors = probing.communicate(timeout=60)
        assert (names, probing.returncode) == ([], 128 + number), errors
    assert errors.endswith(f"error: stopped by {number.name}\n")
