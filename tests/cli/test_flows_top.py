"""`keepclose flows top` reads its sources, and subtracts each from what it said before."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keepclose.accounting.flow_files import write_csv, write_json_lines
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowTable
from keepclose.cli import flows_top
from keepclose.cli.flows_top import Readings, Tally
from keepclose.cli.options import FlowGrouping, FlowOrder
from keepclose.cli.render.flows_table import summarise
from keepclose.demand import agent_pages
from keepclose.demand.agent_pages import find_agents
from keepclose.kube.errors import BrokenStream

WEB = FlowKey(namespace="shop", service="web", client_zone="zone-a", endpoint_zone="zone-b")


def table(connections: int) -> FlowTable:
    """Return a table with connections across zones."""
    made = FlowTable(start=1_700_000_000.0, end=1_700_000_100.0)
    made.add(WEB, FlowCounts(connections, 0, 0, 10 * connections, 20 * connections))
    return made


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "keepclose", "flows", "top", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )


def test_rates_are_differences_of_the_same_source() -> None:
    """A source that restarts counts again from 0, and one that appears later has no rate yet."""
    tally = Tally(Readings({"n1": table(100), "n2": table(50)}, {}))
    assert tally.reading.later is None
    tally.take(Readings({"n1": table(110), "n2": table(3), "n3": table(999)}, {}))
    later = tally.reading.later
    assert later is not None
    assert later.rows[WEB].connections == 10 + 3
    assert tally.reading.total.rows[WEB].connections == 110 + 3 + 999
    tally.take(Readings({"n1": table(111)}, {"n2": "gone"}))
    assert tally.reading.later is not None
    assert tally.reading.later.rows[WEB].connections == 1
    assert tally.reading.total.rows[WEB].connections == 111 + 3 + 999
    assert tally.reading.total.notes == ["n2 does not answer: gone"]


def test_a_source_that_answers_again_has_the_mean_since_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it counted in an outage is divided by the time of the outage, not by one interval."""
    now = [0.0]
    monkeypatch.setattr("keepclose.cli.flows_top.time", SimpleNamespace(monotonic=lambda: now[0]))
    tally = Tally(Readings({"n1": table(0), "n2": table(0)}, {}))
    for now[0] in (2.0, 4.0, 6.0):
        tally.take(Readings({"n1": table(int(10 * now[0]))}, {"n2": "gone"}))
    now[0] = 8.0
    tally.take(Readings({"n1": table(80), "n2": table(800)}, {}))
    summary = summarise(tally.reading, FlowGrouping.SERVICE, FlowOrder.CROSS_ZONE)
    assert summary.per_second is not None
    assert summary.per_second.connections == 10 + 100


def test_the_rate_of_a_window_is_its_mean() -> None:
    """Two windows of Prometheus overlap, so their difference says nothing."""
    window = table(100)
    window.is_window = True
    tally = Tally(Readings({"p": window}, {}))
    summary = summarise(tally.reading, FlowGrouping.SERVICE, FlowOrder.CROSS_ZONE)
    assert summary.per_second is not None
    assert (summary.per_second.connections, summary.is_mean) == (1.0, True)
    again = table(90)
    again.is_window = True
    tally.take(Readings({"p": again}, {}))
    summary = summarise(tally.reading, FlowGrouping.SERVICE, FlowOrder.CROSS_ZONE)
    assert summary.lines[0].per_second is not None
    assert summary.lines[0].per_second.connections == 0.9


def test_one_service_may_be_named(tmp_path: Path) -> None:
    """Sums and lines are those of the Service alone; times are RFC 3339."""
    both = table(5)
    both.add(WEB._replace(service="db"), FlowCounts(7, 0, 0, 70, 140))
    file = tmp_path / "flows.csv"
    file.write_text("".join(write_csv(both)))
    shown = json.loads(run("shop/web", "--flows", str(file), "-o", "json").stdout)
    assert [line["name"] for line in shown["lines"]] == ["shop/web"]
    assert shown["total"]["connections"] == 5
    assert (shown["start"], shown["end"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:15:00Z")


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("web", "no flows of default/web were counted; did you mean shop/web?"),
        ("shop/wbe", "no flows of shop/wbe were counted; did you mean shop/web?"),
        ("db", "no flows of default/db were counted; did you mean old/db or shop/db?"),
        ("shop/none", "shop/none were counted; there are old/db, shop/db, shop/web"),
    ],
)
def test_the_service_that_was_meant_is_named(name: str, want: str, tmp_path: Path) -> None:
    """A Service without flows may be one of another namespace, or misspelt."""
    both = table(5)
    for namespace in ("shop", "old"):
        key = WEB._replace(namespace=namespace, service="db")
        both.add(key, FlowCounts(7, 0, 0, 70, 140))
    file = tmp_path / "flows.csv"
    file.write_text("".join(write_csv(both)))
    assert want in run(name, "--flows", str(file)).stdout


def test_agents_are_found_by_the_port_of_their_pod() -> None:
    """The port named metrics wins, a pod without ports has the default, and others do not run."""
    pods = [
        ("n1", "Running", [{"name": "x", "containerPort": 1}]),
        ("n2", "Running", [{"containerPort": 1}, {"name": "metrics", "containerPort": 2}]),
        ("n3", "Running", []),
        ("n4", "Pending", []),
    ]
    items = [
        {
            "metadata": {"name": f"flows-{node}", "namespace": "kube-system"},
            "spec": {"nodeName": node, "containers": [{"ports": ports}]},
            "status": {"phase": phase},
        }
        for node, phase, ports in pods
    ]
    found = find_agents(json.dumps({"items": items}).encode(), namespace="kube-system")
    path = "/api/v1/namespaces/kube-system/pods/flows-{}/proxy/flows"
    assert found.notes == []
    assert found.paths == {
        "n1": path.format("n1:1"),
        "n2": path.format("n2:2"),
        "n3": path.format("n3:10247"),
    }


def pod(namespace: str, name: str, node: str, created: str = "", **more: str) -> dict[str, Any]:
    """Return a running pod with the label of agents."""
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created or None, **more}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def test_pods_of_other_namespaces_are_no_agents() -> None:
    """Any tenant may give a pod the label, so such pods are named and not read."""
    pods = [pod("kube-system", "flows-a", "n1"), pod("tenant", "fake", "n1")]
    found = find_agents(json.dumps({"items": pods}).encode(), namespace="kube-system")
    assert found.paths == {"n1": "/api/v1/namespaces/kube-system/pods/flows-a:10247/proxy/flows"}
    [note] = found.notes
    assert "not read: tenant/fake" in note
    assert "--agent-namespace" in note
    other = find_agents(json.dumps({"items": pods}).encode(), namespace="tenant")
    assert other.paths == {"n1": "/api/v1/namespaces/tenant/pods/fake:10247/proxy/flows"}


def test_the_newest_agent_of_a_node_is_read() -> None:
    """During an update a node has two pods; one that is being deleted counts no more."""
    pods = [
        pod("x", "new", "n1", "2026-01-02T00:00:00Z"),
        pod("x", "old", "n1", "2026-01-01T00:00:00Z"),
        pod("x", "gone", "n2", "2026-01-03T00:00:00Z", deletionTimestamp="2026-01-03T00:00:00Z"),
        pod("x", "here", "n2", "2026-01-01T00:00:00Z"),
    ]
    found = find_agents(json.dumps({"items": pods}).encode(), namespace="x")
    assert [path.split("/")[6] for path in found.paths.values()] == ["new:10247", "here:10247"]
    assert found.notes == ["n1 has the agents x/new, x/old: only x/new is read"]


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe<html>", b'{"items":[{"metadata":{"name":5}}]}', b"[" * 200_000, b"{}", b""],
)
def test_an_odd_list_of_pods_is_an_error(body: bytes) -> None:
    """A server that is none of Kubernetes must not end in a traceback."""
    with pytest.raises(ValueError, match="the answer is no list of pods"):
        find_agents(body, namespace="x")


def test_an_empty_list_may_be_null() -> None:
    """Go writes an empty list so."""
    assert find_agents(b'{"items":null}', namespace="x").paths == {}


class PagesOfAgents:
    """A client that answers with pages of given sizes, as the real one within limits."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.reading = self.most_at_once = 0

    async def raw(self, method: str, path: str, *, query: object, max_bytes: int) -> bytes:
        """Answer a request."""
        del method, query
        if path == "/api/v1/pods":
            return json.dumps({"items": [pod("x", name, name) for name in self.sizes]}).encode()
        size = self.sizes[path.split("/")[6].partition(":")[0]]
        self.reading += max_bytes
        self.most_at_once = max(self.most_at_once, self.reading)
        await asyncio.sleep(0)
        self.reading -= max_bytes
        if size > max_bytes:
            raise BrokenStream("host", f"the answer has more than {max_bytes} bytes")
        return b"x" * size


def test_pages_of_agents_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages are read at once, a large one alone, and one beyond the limit not at all."""
    monkeypatch.setattr(agent_pages, "_SMALL_PAGE_BYTES", 10)
    monkeypatch.setattr(agent_pages, "MAX_AGENT_PAGE_BYTES", 50)
    monkeypatch.setattr(agent_pages, "_AT_ONCE", 4)
    taken: dict[str, int] = {}

    def take(name: str, page: bytes) -> str:
        taken[name] = len(page)
        return "odd" if name == "a1" else ""

    client = PagesOfAgents(**{f"a{number}": 5 for number in range(20)}, large=40, endless=1000)
    reader: Any = agent_pages.PageReader(client, take)  # type: ignore[arg-type]
    asyncio.run(reader.read(namespace="x"))
    assert (len(taken), taken["large"]) == (21, 40)
    assert client.most_at_once <= 50
    assert reader.errors == {
        "a1": "odd",
        "endless": "host: the answer has more than 50 bytes",
    }


def test_rows_of_agents_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of thousands of agents are in memory at the same time."""
    monkeypatch.setattr(flows_top, "MAX_AGENT_ROWS", 2)
    pages = flows_top.AgentTables()
    page = "".join(write_json_lines(table(1))).encode()
    assert [pages.take(name, page) for name in ("a", "b")] == ["", ""]
    assert pages.take("c", page) == "all agents together have more than 2 rows"
    assert sorted(pages.tables) == ["a", "b"]


def test_a_file_is_shown_once(tmp_path: Path) -> None:
    """Files need no cluster, in every format and in ASCII where the locale has no more."""
    file = tmp_path / "flows.csv"
    file.write_text("".join(write_csv(table(5))))
    done = run("--flows", str(file), LC_ALL="C", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\nshop/web " in done.stdout
    shown = json.loads(run("--flows", str(file), "-o", "json").stdout)
    assert shown["lines"][0]["total"]["crossZoneBytes"] == 150
    assert run("--flows", str(file), "-o", "csv").stdout == file.read_text()


def test_sources_that_cannot_be_read(tmp_path: Path) -> None:
    """Each says what is missing in one error, with its own exit code."""
    missing = run("--flows", str(tmp_path / "none.csv"))
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "none.csv" in missing.stderr
    nowhere = run(KEEPCLOSE_DATA_DIR=str(tmp_path), KUBECONFIG=str(tmp_path / "none"))
    assert (nowhere.returncode, nowhere.stdout) == (4, "")
    both = run("--flows", "a.csv", "--context", "b")
    assert both.returncode == 2
