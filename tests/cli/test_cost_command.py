"""The commands `keepclose flows read` and `keepclose cost`, and the sources of flows."""

from __future__ import annotations

import csv
import gzip
import json
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from typer.testing import CliRunner, Result

from keepclose.accounting.flow_files import read_csv, read_json_lines, write_json_lines
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowTable
from keepclose.cli import flow_sources, options
from keepclose.cli.exit import ExitCode
from keepclose.cli.flow_sources import FlowSourceError, load_flow_table
from keepclose.cli.flows_top import Tally, _NamedSources
from keepclose.cli.main import app
from keepclose.kube.auth import kubeconfig
from keepclose.kube.connection import ConnectionSettings
from keepclose.kube.errors import ConfigError
from keepclose.system import bounded_http

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "flows"
FLOWS = str(EXAMPLES / "flows.csv")
LOG = str(EXAMPLES / "vpc-flow-log.txt")
CLUSTER = str(EXAMPLES / "cluster.yaml")
GCP = str(ROOT / "tests" / "data" / "flows" / "gcp.jsonl")


def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments, input=stdin, env={"TERM": "dumb"})


class Site:
    """A web server whose answers a test sets, by path."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.queries: list[str] = []
        self.targets: list[str] = []
        self.authorization = ""
        site = self

        class Handler(BaseHTTPRequestHandler):
            """Answers from the table."""

            def do_GET(self) -> None:
                """Answer a path; a query of Prometheus is one of its name."""
                parts = urlsplit(self.path)
                query = parse_qs(parts.query).get("query", [""])[0]
                site.queries.append(query)
                site.targets.append(self.path)
                site.authorization = self.headers.get("Authorization", "")
                names = [name for name in site.answers if name == parts.path or name in query]
                status, body = site.answers.get(names[0] if names else "", (404, b"nothing"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def site() -> Iterator[Site]:
    """Yield a web server that runs during a test."""
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, args=(0.01,))
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()


def test_a_flow_log_becomes_a_table_of_services() -> None:
    """The answer comes first, and notes name the broken line and what has no owner."""
    result = run("flows", "read", LOG, "--snapshot", CLUSTER)
    assert result.exit_code == 0
    first, _, kafka, *_ = result.stdout.splitlines()
    assert first.startswith("44.6 MB of 46.5 MB cross zones (96 %), in 5 connections from 2026-01")
    assert kafka.split() == (
        ["data/kafka:broker", "shop/cart", "us-east-1a", "us-east-1c", "1", "30", "MB", "700", "kB"]
    )
    assert "line 16: 8 values for a format of 18 fields" in result.stderr
    assert "such as 10.0.200.5, 198.51.100.7" in result.stderr


def test_a_strict_reading_ends_at_a_broken_line() -> None:
    """A script may insist on whole files."""
    result = run("flows", "read", LOG, "--snapshot", CLUSTER, "--strict")
    assert result.exit_code == ExitCode.BAD_INPUT
    assert result.stderr == f"error: {LOG}, line 16: 8 values for a format of 18 fields\n"


def test_csv_and_json_lines_of_a_log_are_the_same_flows() -> None:
    """Either output feeds the other commands."""
    options = ("flows", "read", LOG, "--snapshot", CLUSTER, "--detail", "pods")
    as_csv = read_csv(run(*options, "-o", "csv").stdout.splitlines(), name="x")
    as_lines = read_json_lines(run(*options, "-o", "jsonl").stdout.splitlines(), name="x")
    assert as_csv.rows == as_lines.rows
    assert any(key.endpoint == "shop/cart-79f-c" for key in as_csv.rows)
    assert len(as_lines.notes) == 3


def test_compressed_logs_of_both_clouds_are_read_together(tmp_path: Path) -> None:
    """S3 stores logs compressed, and one command may read many files."""
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(Path(LOG).read_bytes()))
    result = run("flows", "read", str(packed), GCP, "--snapshot", CLUSTER, "-o", "csv")
    assert result.exit_code == 0
    assert read_csv(result.stdout.splitlines(), name="x").total().connections == 7


def test_zones_may_be_named_by_their_ids_and_subnets() -> None:
    """A database is in a subnet whose zone the user knows."""
    options = ("flows", "read", LOG, "--snapshot", CLUSTER, "-o", "csv")
    table = read_csv(
        run(*options, "--subnet", "10.0.200.0/24=us-east-1b").stdout.splitlines(), name=""
    )
    assert any(key.endpoint_zone == "us-east-1b" and key.kind == "egress" for key in table.rows)
    ids = ("--zone-id", "use1-az1=a", "--zone-id", "use1-az3=c")
    table = read_csv(run("flows", "read", LOG, "-o", "csv", *ids).stdout.splitlines(), name="")
    assert {("a", "c"), ("use1-az2", "a")} < {
        (key.client_zone, key.endpoint_zone) for key in table.rows
    }


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["/nowhere"], "/nowhere cannot be read: No such file", id="no file"),
        pytest.param([CLUSTER], "its format is not known by its first line", id="other file"),
        pytest.param([CLUSTER, "--format", "aws"], "no line is a record: ", id="no record"),
        pytest.param([LOG, "--snapshot", LOG], "error: ", id="no snapshot"),
        pytest.param([LOG, "--log-format", "${x}"], "--log-format: the field srcaddr", id="format"),
        pytest.param([LOG, "--zone-id", "x"], "--zone-id: 'x' must be ID=ZONE", id="zone"),
        pytest.param([LOG, "--subnet", "x=y"], "--subnet: 'x' does not appear", id="subnet"),
        pytest.param([LOG, "--cluster-cidr", "x"], "--cluster-cidr: 'x' does not", id="range"),
    ],
)
def test_what_cannot_be_read_is_named(arguments: list[str], want: str) -> None:
    """The option or file, and what is wrong with it."""
    result = run("flows", "read", *arguments)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert want in result.stderr


def test_a_log_without_flows_is_nothing() -> None:
    """Exit code 3 tells a script that there was nothing to read."""
    header = Path(LOG).read_text().splitlines()[0]
    result = run("flows", "read", "-", stdin=f"{header}\n")
    assert (result.exit_code, "no flows in standard input" in result.stderr) == (
        ExitCode.NOTHING,
        True,
    )


def test_costs_of_the_example() -> None:
    """The sum of a month first, then Services by cost, the period, the prices and what has none."""
    result = run("cost", "--flows", FLOWS, "--prices", "aws")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "206.89 USD a month: in the period 340 GB of 595 GB cross zones"
    assert lines[3].split() == ["data/kafka", "219", "GB", "51", "%", "0.18", "133.35", "1,600.16"]
    assert "observed: 24 hours from 2026-01-12T00:00:00Z" in result.stdout
    assert "prices: aws of 2025, to be compared with your bill" in result.stdout
    assert "not priced: 13.2 GB to or from outside the cluster" in result.stdout


def test_costs_for_programs() -> None:
    """JSON and CSV have every line, and amounts that are not rounded."""
    options = ("cost", "--flows", FLOWS, "--prices", "gcp", "--by", "client")
    document = json.loads(run(*options, "-o", "json").stdout)
    rows = list(csv.DictReader(run(*options, "-o", "csv").stdout.splitlines()))
    assert [line["name"] for line in document["lines"]] == ["shop/cart", "shop/web", "(node)"]
    assert [row["client"] for row in rows] == ["shop/cart", "shop/web", "(node)"]
    assert float(rows[0]["per_month"]) == pytest.approx(document["lines"][0]["perMonth"])
    assert document["period"]["hours"] == 24


def test_a_printed_price_table_gives_the_same_costs(tmp_path: Path) -> None:
    """A preset is a file like any other, and an edited price changes the sum."""
    printed = run("cost", "--print-prices", "aws").stdout
    path = tmp_path / "prices.yaml"
    path.write_text(printed)
    options = ("cost", "--flows", FLOWS, "-o", "json", "--prices")
    document = json.loads(run(*options, str(path)).stdout)
    assert document["total"] == json.loads(run(*options, "aws").stdout)["total"]
    edited = yaml.safe_load(printed)
    edited["betweenZones"][0]["sent"] = 0.03
    path.write_text(json.dumps(edited))
    twice = json.loads(run(*options, str(path)).stdout)["total"]["observed"]
    assert twice == pytest.approx(2 * document["total"]["observed"])


def test_several_sources_are_added(tmp_path: Path) -> None:
    """Agents of several nodes are several sources."""
    options = ("cost", "--prices", "aws", "-o", "json", "--flows", FLOWS)
    once = json.loads(run(*options).stdout)["total"]["observed"]
    other = tmp_path / "other.csv"
    other.write_bytes(Path(FLOWS).read_bytes())
    twice = json.loads(run(*options, "--flows", str(other)).stdout)["total"]["observed"]
    assert twice == pytest.approx(2 * once)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(FLOWS, FLOWS, id="file"),
        pytest.param(FLOWS, f"{EXAMPLES}/../flows/flows.csv", id="path"),
        pytest.param("-", "-", id="standard input"),
        pytest.param("http://127.0.0.1:1", "http://me:secret@127.0.0.1:1/", id="address"),
    ],
)
def test_a_source_named_twice_is_an_error(first: str, second: str) -> None:
    """Its flows would count twice, and the bill would be twice as high."""
    for command in (("cost", "--prices", "aws"), ("flows", "top"), ("verify", "-f", CLUSTER)):
        result = run(*command, "--flows", first, "--flows", second)
        assert result.exit_code == ExitCode.BAD_INPUT
        assert "is named twice" in result.stderr
        assert "secret" not in result.stderr
    if "://" not in first:
        assert "is named twice" in run("flows", "read", first, second).stderr


def test_a_period_that_ends_before_its_start_is_an_error() -> None:
    """Exchanged columns are an error with a line, not flows without a period."""
    row = "client_zone,endpoint_zone,start,end,request_bytes,response_bytes\na,b,{},{},1,1\n"
    line = '{{"hasBytes":true,"start":"{}","end":"{}"}}\n'
    for text, number in ((row, 2), (line, 1)):
        late, early = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"
        result = run("cost", "--prices", "aws", "--flows", "-", stdin=text.format(late, early))
        assert result.exit_code == ExitCode.BAD_INPUT
        assert f"line {number}: end is before start" in result.stderr


def test_days_that_were_not_observed_do_not_count(tmp_path: Path) -> None:
    """Two days with 19 days between them are 48 hours, as two files or as one."""
    columns = "client_zone,endpoint_zone,start,end,request_bytes,response_bytes\n"
    days = [
        f"a,b,2026-01-{day:02}T00:00:00Z,2026-01-{day + 1:02}T00:00:00Z,1000000000,0\n"
        for day in (1, 21)
    ]
    sources = []
    for number, day in enumerate(days):
        path = tmp_path / f"{number}.csv"
        path.write_text(columns + day)
        sources.append(str(path))
    joined = tmp_path / "joined.csv"
    joined.write_text(columns + "".join(days))
    read = tmp_path / "read.csv"
    read.write_text(run("flows", "read", *sources, "-o", "csv").stdout)
    for named in (sources, [str(joined)], [str(read)]):
        options = [word for source in named for word in ("--flows", source)]
        document = json.loads(run("cost", "--prices", "aws", "-o", "json", *options).stdout)
        assert document["period"]["hours"] == 48
        assert document["total"]["perMonth"] == pytest.approx(2 * 0.02 / 48 * 730)


def test_a_period_may_be_named() -> None:
    """Flows without times have costs of the period only, unless the user names it."""
    text = "client_zone,endpoint_zone,request_bytes,response_bytes\na,b,1000000000,0\n"
    options = ("cost", "--flows", "-", "--prices", "aws")
    assert run(*options, stdin=text).stdout.startswith("0.02 USD in the period: ")
    hour = run(*options, "--period", "1h", stdin=text).stdout
    assert hour.startswith("14.60 USD a month: ")
    assert "observed: 1 hour\n" in hour
    assert "--period replaces" not in hour
    replaced = run("cost", "--prices", "aws", "--flows", FLOWS, "--period", "1h").stdout
    assert "note: --period replaces the period that the flows name" in replaced


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param([], "no prices are named", id="no prices"),
        pytest.param(
            ["--prices", "ibm", "--flows", FLOWS], "presets: aws, gcp, azure", id="preset"
        ),
        pytest.param(["--prices", LOG, "--flows", FLOWS], "error: ", id="other file"),
        pytest.param(["--print-prices", "ibm"], "'ibm' is none of aws, gcp, azure", id="print"),
        pytest.param(["--prices", "aws", "--flows", LOG], "keepclose flows read", id="log"),
        pytest.param(["--prices", "aws", "--flows", CLUSTER], "is not a file of flows", id="file"),
        pytest.param(
            ["--prices", "aws", "--flows", FLOWS, "--period", "0"], "longer than 0", id="period"
        ),
    ],
)
def test_what_has_no_cost_is_said(arguments: list[str], want: str) -> None:
    """What is missing, and the command or option that gives it."""
    result = run("cost", *arguments)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert want in result.stderr


def test_a_bad_price_table_is_named_with_its_line(tmp_path: Path) -> None:
    """A file that is no YAML, and one with a field that no table has."""
    path = tmp_path / "prices.yaml"
    for text, want in (
        ("currency: [\n", f"{path}, line "),
        ("currency: USD\nper: GB\nbetweenzones: []\n", "unknown field `betweenzones`"),
    ):
        path.write_text(text)
        result = run("cost", "--prices", str(path), "--flows", FLOWS)
        assert (result.exit_code, want in result.stderr) == (ExitCode.BAD_INPUT, True)


def test_connections_without_bytes_have_no_cost() -> None:
    """The error says how to count bytes."""
    text = "client_zone,endpoint_zone,connections\na,b,5\n"
    result = run("cost", "--prices", "aws", "--flows", "-", stdin=text)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "standard input has connections only, no bytes" in result.stderr
    assert "--enable-accounting" in result.stderr


def test_an_agent_is_asked_for_its_flows(site: Site) -> None:
    """JSON lines at /flows, or at the path that the address has."""
    table = load_flow_table(FLOWS)
    site.answers["/flows"] = site.answers["/other"] = (
        200,
        "".join(write_json_lines(table)).encode(),
    )
    assert load_flow_table(site.address).rows == table.rows
    assert load_flow_table(f"{site.address}/other").rows == table.rows
    # Bytes of open connections are counted before the agent answers.
    assert site.targets == ["/flows?walk=true", "/other?walk=true"]


def serve_agents(site: Site, directory: Path, *agents: FlowTable) -> Path:
    """Let a site be an API server with flow agents; return its kubeconfig."""
    pods = []
    for number, table in enumerate(agents):
        pods.append(
            {
                "metadata": {"name": f"flows-{number}", "namespace": "kube-system"},
                "spec": {"nodeName": f"n{number}", "containers": []},
                "status": {"phase": "Running"},
            }
        )
        path = f"/api/v1/namespaces/kube-system/pods/flows-{number}:10247/proxy/flows"
        site.answers[path] = (200, "".join(write_json_lines(table)).encode())
    site.answers["/api/v1/pods"] = (200, json.dumps({"items": pods}).encode())
    file = directory / "config"
    cluster = {"name": "c", "cluster": {"server": site.address}}
    config = {
        "current-context": "c",
        "clusters": [cluster],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    }
    file.write_text(json.dumps(config))
    return file


def agent_table(hours: float, gigabytes: int) -> FlowTable:
    """Return what an agent of some hours has counted between zones."""
    table = FlowTable(start=1767225600 - hours * 3600, end=1767225600)
    key = FlowKey(namespace="shop", service="web", client_zone="a", endpoint_zone="b")
    table.add(key, FlowCounts(1, 0, 0, gigabytes * 10**9, 0))
    return table


def test_a_cluster_has_a_bill_in_one_command(site: Site, tmp_path: Path) -> None:
    """All agents are asked through the API server, and each is extrapolated by its own period."""
    config = serve_agents(site, tmp_path, agent_table(720, 720), agent_table(1, 100))
    result = run("cost", "--prices", "aws", "--kubeconfig", str(config))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("1,474.60 USD a month: ")
    assert f"flows: 2 agents of {site.address}\n" in result.stderr
    assert "observed: 30 days from 2025-12-02T00:00:00Z" in result.stdout
    assert "observed: 1 hour from 2025-12-31T23:00:00Z" in result.stdout
    assert "each source by its own period" in result.stdout
    assert sum(target.endswith("/proxy/flows?walk=true") for target in site.targets) == 2
    document = json.loads(
        run("cost", "--prices", "aws", "-o", "json", "--kubeconfig", str(config)).stdout
    )
    assert [period["hours"] for period in document["periods"]] == [720, 1]
    written = tmp_path / "flows.csv"
    written.write_text(
        run("flows", "top", "-o", "csv", "--kubeconfig", str(config)).stdout, encoding="utf-8"
    )
    assert run("cost", "--prices", "aws", "--flows", str(written)).stdout == result.stdout


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"\xff\xfe<html>", ExitCode.UNREACHABLE, id="garbage"),
        pytest.param(b'{"items":[{"metadata":{"name":5}}]}', ExitCode.UNREACHABLE, id="types"),
        pytest.param(b"[" * 200_000, ExitCode.UNREACHABLE, id="deep"),
        pytest.param(b'{"items":null}', ExitCode.NOTHING, id="null"),
    ],
)
def test_an_odd_list_of_agents_is_one_error(
    body: bytes, code: ExitCode, site: Site, tmp_path: Path
) -> None:
    """A server that is none of Kubernetes does not answer for agents."""
    config = serve_agents(site, tmp_path)
    site.answers["/api/v1/pods"] = (200, body)
    for command in (("flows", "top"), ("cost", "--prices", "aws")):
        result = run(*command, "--kubeconfig", str(config))
        assert result.exit_code == code
        assert (result.stdout, result.stderr.count("error: ")) == ("", 1)


def test_a_pod_of_a_tenant_is_no_agent(site: Site, tmp_path: Path) -> None:
    """A pod with the label in another namespace changes no count, and is named."""
    config = serve_agents(site, tmp_path, agent_table(1, 1))
    listed = json.loads(site.answers["/api/v1/pods"][1])
    fake = {**listed["items"][0], "metadata": {"name": "fake", "namespace": "tenant"}}
    listed["items"].append(fake)
    site.answers["/api/v1/pods"] = (200, json.dumps(listed).encode())
    path = "/api/v1/namespaces/tenant/pods/fake:10247/proxy/flows"
    site.answers[path] = (200, "".join(write_json_lines(agent_table(1, 500))).encode())
    cost = ("cost", "--prices", "aws", "--kubeconfig", str(config))
    result = run(*cost)
    assert result.stdout.startswith("14.60 USD a month: ")
    assert "note: not read: tenant/fake" in result.stderr
    shown = run("flows", "top", "--kubeconfig", str(config)).stdout
    assert "note: not read: tenant/fake" in shown
    other = run(*cost, "--agent-namespace", "tenant")
    assert other.stdout.startswith("7,300.00 USD a month: ")


@pytest.mark.parametrize(
    "command", [("cost", "--prices", "aws"), ("flows", "top"), ("verify",), ("flows", "--once")]
)
def test_all_commands_mean_the_same_cluster(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named cluster comes before a lab, a lab before KUBECONFIG; else all ways are named."""
    asked: list[str] = []

    def load(path: Path | None = None, context: str | None = None) -> ConnectionSettings:
        del context
        asked.append(str(path))
        raise ConfigError("not found")

    monkeypatch.setattr(kubeconfig, "load_connection_settings", load)
    monkeypatch.setattr(options, "_find_lab", lambda _directory: (Path("/lab"), "http://lab"))
    run(*command, "--kubeconfig", "/named")
    run(*command)
    monkeypatch.setattr(options, "_find_lab", lambda _directory: None)
    result = run(*command)
    assert asked == ["/named", "/lab", "None"]
    assert result.exit_code == ExitCode.UNREACHABLE
    for way in ("no lab runs", "--kubeconfig", "--context", "KUBECONFIG", "keepclose up --flows"):
        assert way in result.stderr


def test_shares_are_never_rounded_to_nothing() -> None:
    """A bill says 0.1 %, as `flows top` does, where a few bytes cross zones."""
    text = (
        "client_zone,endpoint_zone,service,request_bytes,response_bytes\n"
        "a,b,web,328,0\na,a,web,1000000000,0\n"
    )
    result = run("cost", "--flows", "-", "--prices", "aws", stdin=text)
    assert "0.1 %" in result.stdout


def test_flows_are_one_json_document_too() -> None:
    """`-o json` of `flows read` has the fields of JSON lines."""
    document = json.loads(run("flows", "read", LOG, "--snapshot", CLUSTER, "-o", "json").stdout)
    assert document["hasBytes"] is True
    assert document["start"] == "2026-01-01T00:00:00Z"
    assert document["flows"][0]["clientZone"].startswith("us-east-1")


def test_prometheus_is_asked_for_three_increases(site: Site) -> None:
    """Window, matchers and user come from the address; the password is sent and never shown."""
    labels = {"service": "web", "client_zone": "a", "endpoint_zone": "b"}
    for name, more in (
        ("connections_total", {}),
        ("failed_connections", {"reason": "refused"}),
        ("bytes_total", {"direction": "request"}),
    ):
        series = {"metric": {**labels, **more}, "value": [1767225600, "4"]}
        data = {"resultType": "vector", "result": [series]}
        site.answers[f"keepclose_flow_{name}"] = (
            200,
            json.dumps({"status": "success", "data": data}).encode(),
        )
    site.answers["keepclose_flows_walks_total"] = prometheus_answer()
    source = site.address.replace("http://", "prometheus+http://me:secret@")
    table = load_flow_table(f'{source}/prefix?window=2h&match=cluster="prod"')
    ((key, counts),) = table
    assert (key.service, counts.connections, counts.refused, counts.request_bytes) == (
        "web",
        4,
        4,
        4,
    )
    assert table.end - table.start == 7200
    assert 'connections_total{cluster="prod",mode=""}[7200s]' in site.queries[0]
    assert all('{cluster="prod"}[7200s]' in query for query in site.queries[1:3])
    assert site.authorization.startswith("Basic ")


def prometheus_answer(*series: tuple[dict[str, str], str]) -> tuple[int, bytes]:
    """Return what Prometheus answers, at a fixed time."""
    result = [{"metric": labels, "value": [1767225600, value]} for labels, value in series]
    data = {"resultType": "vector", "result": result}
    return 200, json.dumps({"status": "success", "data": data}).encode()


def test_a_window_begins_with_the_first_sample_of_prometheus(site: Site) -> None:
    """Agents that are scraped for 50 s have counted for 50 s, however long the window is."""
    labels = {"service": "web", "client_zone": "a", "endpoint_zone": "b"}
    site.answers["[86s:1s]"] = prometheus_answer(({}, "1767225550"))
    site.answers["keepclose_flows_walks_total"] = prometheus_answer(({}, "1767225580"))
    site.answers["flow_connections_total"] = prometheus_answer((labels, "4"))
    site.answers["bytes_total"] = prometheus_answer(({**labels, "direction": "request"}, "4e9"))
    site.answers["keepclose"] = prometheus_answer()
    source = f"prometheus+{site.address}?window=24h"
    table = load_flow_table(source)
    assert (table.end - table.start, table.is_window) == (50, True)
    result = run("cost", "--prices", "AWS", "--flows", source)
    assert "observed: 50 seconds from " in result.stdout
    assert "note: the period is short, 50 seconds" in result.stdout


def test_connections_of_proxies_are_used_only_without_agents(site: Site) -> None:
    """A proxy and an agent count the same connections, so only one of them is asked."""
    labels = {"service": "web", "client_zone": "a", "endpoint_zone": "b"}
    site.answers['mode=""'] = prometheus_answer((labels, "4"))
    site.answers['mode!=""'] = prometheus_answer((labels, "3"))
    site.answers["keepclose"] = prometheus_answer()
    source = f"prometheus+{site.address}"
    assert load_flow_table(source).total().connections == 4
    site.answers['mode=""'] = prometheus_answer()
    table = load_flow_table(source)
    assert (table.total().connections, table.has_bytes) == (3, False)
    assert "no flow agent is scraped" in table.notes[0]


@pytest.mark.parametrize(
    ("source", "want", "code"),
    [
        pytest.param("http://127.0.0.1:1", "no flow agent answers at", 4, id="refused"),
        pytest.param("prometheus+http://127.0.0.1:1", "no Prometheus answers", 4, id="no server"),
        pytest.param("http://", "names no host", 2, id="no host"),
        pytest.param("http://x:99999", "is no address", 2, id="port"),
        pytest.param("prometheus+http://x?window=1y", "window=1y is no duration", 2, id="window"),
        pytest.param("prometheus+http://x?label=a", "label=a is no FIELD=LABEL", 2, id="label"),
        pytest.param("prometheus+http://x?y=z", "y=z is not known in an", 2, id="option"),
    ],
)
def test_an_address_that_gives_no_flows_is_named(source: str, want: str, code: int) -> None:
    """Whether the address or the server is wrong shows in the exit code."""
    with pytest.raises(FlowSourceError) as raised:
        load_flow_table(source)
    assert want in str(raised.value)
    assert raised.value.code == code


def test_answers_of_other_servers_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status, a page of HTML, an error of Prometheus and an answer without end."""
    with pytest.raises(FlowSourceError, match="answers status 404, so it is no flow agent"):
        load_flow_table(site.address)
    site.answers["/flows"] = (200, b"<html>")
    with pytest.raises(FlowSourceError, match="line 1: JSON is malformed"):
        load_flow_table(site.address)
    site.answers["/api/v1/query"] = (400, b'{"status":"error","errorType":"bad_data","error":"x"}')
    with pytest.raises(FlowSourceError, match="Prometheus answered bad_data: x"):
        load_flow_table(f"prometheus+{site.address}")
    monkeypatch.setattr(flow_sources, "MAX_FLOWS_BYTES", 100)
    site.answers["/flows"] = (200, b"x" * 1000)
    with pytest.raises(FlowSourceError, match="answers more than 100 bytes"):
        load_flow_table(site.address)
    monkeypatch.setattr(flow_sources, "MAX_PROMETHEUS_BYTES", 99)
    site.answers["/api/v1/query"] = (200, b"x" * 1000)
    with pytest.raises(FlowSourceError, match="answers more than 99 bytes"):
        load_flow_table(f"prometheus+{site.address}")


ENDLESS = {
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\n",
    "header": b"X",
    "trailers": b"X: y\r\n",
    "body": b"1\r\n\n\r\n",
}


@pytest.fixture
def endless(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server whose answer has no end, in one of the ways of ENDLESS."""
    start = {"header": b"HTTP/1.1 200 OK\r\n"}
    chunked = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    start |= {"trailers": chunked + b"0\r\n", "body": chunked}
    has_ended = threading.Event()

    class Handler(BaseRequestHandler):
        """Sends a few bytes at a time."""

        def handle(self) -> None:
            """Answer until the client has gone."""
            self.request.recv(65_536)
            self.request.sendall(start.get(request.param, b""))
            with suppress(OSError):
                while not has_ended.wait(0.02):
                    self.request.sendall(ENDLESS[request.param])

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    has_ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("endless", list(ENDLESS), indirect=True)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("cost", "--prices", "aws", "--flows", "http://{}"), id="agent"),
        pytest.param(("flows", "top", "--flows", "prometheus+http://{}"), id="prometheus"),
        pytest.param(("proxy", "status", "--metrics-address", "{}"), id="proxy"),
    ],
)
def test_an_answer_without_end_is_given_up(
    endless: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends a byte now and then keeps no command waiting, wherever it sends them."""
    monkeypatch.setattr(bounded_http, "EXCHANGE_S", 0.2)
    started = time.monotonic()
    result = run(*(word.format(endless) for word in command))
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "it takes longer than" in result.stderr
    assert time.monotonic() - started < 20
    threads = [thread for thread in threading.enumerate() if thread.name.endswith("(run)")]
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    "source",
    [
        "prometheus+http://me:secret@127.0.0.1:1",
        "http://me:secret@127.0.0.1:99999",
        "http://me:secret@/",
        "prometheus+http://me:secret@",
        "http://me:secret#part@127.0.0.1",
        "http://me:a/secret@127.0.0.1",
        "HTTP://me:secret@127.0.0.1",
        "htp://me:secret@127.0.0.1/",
    ],
)
def test_a_password_is_in_no_error(source: str) -> None:
    """An error may be copied into a ticket."""
    for command in (("cost", "--prices", "aws"), ("flows", "top"), ("verify", "-f", CLUSTER)):
        result = run(*command, "--flows", source)
        assert result.exit_code in (ExitCode.BAD_INPUT, ExitCode.UNREACHABLE)
        assert "secret" not in result.stdout + result.stderr
        assert "error: " in result.stderr


def test_a_password_is_in_no_note(site: Site) -> None:
    """An agent that stops while `flows top` runs is named without it, in every case."""
    source = site.address.replace("//", "//me:secret@")
    site.answers["/flows"] = (200, "".join(write_json_lines(agent_table(1, 1))).encode())
    read = _NamedSources([source])
    tally = Tally(read())
    site.answers.clear()
    tally.take(read())
    [note] = tally.reading.total.notes
    assert "answers status 404" in note
    assert "secret" not in note


def test_a_compressed_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may unpack to terabytes, and a cut one to nothing."""
    path = tmp_path / "flows.csv.gz"
    path.write_bytes(gzip.compress(Path(FLOWS).read_bytes()))
    assert load_flow_table(str(path)).rows == load_flow_table(FLOWS).rows
    monkeypatch.setattr(flow_sources, "MAX_UNPACKED_BYTES", 100)
    with pytest.raises(FlowSourceError, match="has more than 100 bytes"):
        load_flow_table(str(path))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FlowSourceError, match="cannot be unpacked"):
        load_flow_table(str(path))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        pytest.param(
            ("cost", "--prices", "aws", "--flows", "-"),
            "client_zone,endpoint_zone,start,end,request_bytes,response_bytes\n"
            "a,b,2026-01-01T00:00:00Z,{},1,1\n",
            id="csv",
        ),
        pytest.param(
            ("flows", "read", "-"),
            '{{"hasBytes":true,"end":"{}"}}\n'
            '{{"kind":"pod","clientZone":"a","endpointZone":"b","connections":1}}\n',
            id="json lines",
        ),
        pytest.param(
            ("flows", "read", "-", "--strict"),
            '{{"jsonPayload":{{"connection":{{"src_ip":"1.1.1.1","dest_ip":"1.1.1.2",'
            '"protocol":6}},"bytes_sent":1,"reporter":"SRC","start_time":"2026-01-01T00:00:00Z",'
            '"end_time":"{}"}}}}\n',
            id="gcp",
        ),
    ],
)
def test_a_time_that_no_calendar_has_is_an_error(command: tuple[str, ...], text: str) -> None:
    """The last day of 9999 is in the year 10000 in UTC, which no table can show."""
    result = run(*command, stdin=text.format("9999-12-31T23:59:59-23:59"))
    assert (result.exit_code, result.stdout) == (ExitCode.BAD_INPUT, "")
    assert "is no time" in result.stderr
    assert run(*command, stdin=text.format("9999-12-31T23:59:59Z")).exit_code == 0


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"client_zone,endpoint_zone\n", id="csv"),
        pytest.param(b'{"hasBytes":true}\n', id="json lines"),
        pytest.param(b"", id="no format"),
    ],
)
def test_a_long_line_is_never_held(start: bytes, tmp_path: Path) -> None:
    """A small compressed file may be one line of hundreds of megabytes."""
    path = tmp_path / "flows.gz"
    path.write_bytes(gzip.compress(start + bytes(64 << 20), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(
            FlowSourceError, match=r"more than 16,384 characters|not a file of flows"
        ):
            load_flow_table(str(path))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_line_of_the_longest_names_is_read(tmp_path: Path) -> None:
    """Limits count characters, of which each may have four bytes."""
    names = ",".join(["\N{GRINNING FACE}" * 1000] * 8)
    columns = "namespace,service,port,client_node,endpoint_node,client,endpoint,client_zone"
    path = tmp_path / "flows.csv"
    path.write_text(f"{columns},endpoint_zone\n{names},b\n", encoding="utf-8")
    assert len(load_flow_table(str(path))) == 1


def test_a_snapshot_that_lacks_a_kind_is_warned_about(tmp_path: Path) -> None:
    """Without slices no Service has a name, and the user may have forgotten to ask for them."""
    document = yaml.safe_load(Path(CLUSTER).read_text())
    document["items"] = [item for item in document["items"] if item["kind"] != "EndpointSlice"]
    path = tmp_path / "cluster.yaml"
    path.write_text(json.dumps(document))
    result = run("flows", "read", LOG, "--snapshot", str(path), "-o", "csv")
    assert result.exit_code == 0
    assert "warning: the snapshot has no EndpointSlice, so names of Services are" in result.stderr
    table = read_csv(result.stdout.splitlines(), name="x")
    assert not any(key.service for key in table.rows)
    assert any(key.client == "shop/web" for key in table.rows)
