"""`keepclose traffic` as a command, with a stand-in for the running cluster."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from keepclose.cli.traffic import traffic
from keepclose.lab.access import LabRefusal
from keepclose.lab.cluster.control import ControlServer, ReportProgress
from keepclose.lab.traffic.report import TrafficReport
from keepclose.model.json_values import JsonObject
from support.commands.traffic_reports import REPORT

APP = typer.Typer()
APP.command()(traffic)


def run(directory: Path, *arguments: str) -> Result:
    """Run the command in this process, on a terminal of 80 columns."""
    env = {"COLUMNS": "80", "TERM": "dumb", "KEEPCLOSE_DATA_DIR": str(directory)}
    return CliRunner().invoke(APP, list(arguments), env=env)


@contextmanager
def answering(directory: Path, answer: Callable[[JsonObject], TrafficReport]) -> Iterator[None]:
    """Answer requests for traffic for the block, in a thread."""

    async def handle(params: JsonObject, tell: ReportProgress) -> JsonObject:
        tell({"done": 0, "of": 3000})
        tell({"done": 3000, "of": 3000})
        document: JsonObject = msgspec.to_builtins(answer(params))
        return document

    is_up = threading.Event()
    ends: list[Callable[[], Any]] = []

    async def serve() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(ended.set))
        server = ControlServer(directory / "lab.sock", {"traffic": handle})
        await server.start()
        is_up.set()
        await ended.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_up.wait(10)
    try:
        yield
    finally:
        ends[0]()
        thread.join(10)


def test_all_as_expected(tmp_path: Path) -> None:
    """The table comes on standard output, nothing else, with exit code 0."""
    with answering(tmp_path, lambda _params: REPORT):
        result = run(tmp_path, "demo-svc")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].split() == [
        "3,000",
        "connections,",
        "0",
        "failed",
        "PreferSameZone",
    ]
    assert "node by node" not in result.stdout


def test_options_reach_the_cluster(tmp_path: Path) -> None:
    """What is asked for is asked of the cluster, and node by node only shown."""
    asked: list[JsonObject] = []

    def answer(params: JsonObject) -> TrafficReport:
        asked.append(params)
        return REPORT

    with answering(tmp_path, answer):
        result = run(
            tmp_path,
            *("shop/web", "--from", "zone-a", "--connections", "50", "--udp", "--port", "dns"),
            *("--family", "ipv6", "--nodes"),
        )
        run(tmp_path, "web", "--via", "node-port")
    assert "node by node" in result.stdout
    assert asked == [
        {
            "service": "shop/web",
            "from": "zone-a",
            "connections": 50,
            "udp": True,
            "port": "dns",
            "family": "ipv6",
            "via": "",
        },
        {
            "service": "web",
            "from": "",
            "connections": 1000,
            "udp": False,
            "port": "",
            "family": "",
            "via": "node-port",
        },
    ]


def test_the_namespace_may_stand_apart(tmp_path: Path) -> None:
    """-n names the Service's namespace as kubectl takes it; two that differ are refused."""
    asked: list[str] = []

    def answer(params: JsonObject) -> TrafficReport:
        asked.append(params["service"])
        return REPORT

    with answering(tmp_path, answer):
        run(tmp_path, "web", "-n", "shop")
        run(tmp_path, "shop/web", "--namespace", "shop")
        refused = run(tmp_path, "shop/web", "-n", "other")
    assert asked == ["shop/web", "shop/web"]
    assert refused.exit_code == 2
    want = "error: -n other: the Service is named with another namespace, shop/web\n"
    assert refused.stderr == want


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(replace(REPORT, failed=3, failures={"refused": 3}), id="failures"),
        pytest.param(replace(REPORT, as_expected=False), id="not as expected"),
    ],
)
def test_something_found(tmp_path: Path, report: TrafficReport) -> None:
    """Failures as well as a wrong way end the command with 1."""
    with answering(tmp_path, lambda _params: report):
        assert run(tmp_path, "demo-svc").exit_code == 1


def test_json(tmp_path: Path) -> None:
    """The whole report comes as JSON."""
    with answering(tmp_path, lambda _params: REPORT):
        result = run(tmp_path, "demo-svc", "-o", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["rows"][2]["answered"] == {"zone-a": 498, "zone-b": 502}
    assert document["asExpected"] is True
    assert msgspec.convert(document, TrafficReport) == REPORT


def test_refusals(tmp_path: Path) -> None:
    """The cluster's words and exit code are the command's."""

    def refuse(_params: JsonObject) -> TrafficReport:
        raise LabRefusal("there is no Service default/web", code=3)

    with answering(tmp_path, refuse):
        result = run(tmp_path, "web")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: there is no Service default/web\n"


def test_no_cluster(tmp_path: Path) -> None:
    """Where none runs, the command says how to start one."""
    result = run(tmp_path, "web")
    assert result.exit_code == 4
    assert result.stderr == (f"error: no cluster runs in {tmp_path}; start one with keepclose up\n")


@pytest.mark.parametrize(
    "options", [["--connections", "0"], ["--family", "ipx"], ["--via", "ingress"], []]
)
def test_bad_input(tmp_path: Path, options: list[str]) -> None:
    """Options that make no sense, and no Service at all, end with 2 before anybody is asked."""
    arguments = ["web", *options] if options else []
    assert run(tmp_path, *arguments).exit_code == 2
