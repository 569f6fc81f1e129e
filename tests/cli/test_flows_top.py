"""`keepclose flows top` reads its sources, and subtracts each from what it said before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from keepclose.accounting.flow_files import write_csv
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowTable
from keepclose.cli.flows_top import Readings, Tally, find_agent_pages
from keepclose.cli.options import FlowGrouping, FlowOrder
from keepclose.cli.render.flows_table import summarise

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
    assert "no flows of shop/none were counted" in run("shop/none", "--flows", str(file)).stdout


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
    pages = find_agent_pages(json.dumps({"items": items}).encode())
    path = "/api/v1/namespaces/kube-system/pods/flows-{}/proxy/flows"
    assert pages == {
        "n1": path.format("n1:1"),
        "n2": path.format("n2:2"),
        "n3": path.format("n3:10247"),
    }


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
