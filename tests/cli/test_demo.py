"""The command `keepclose demo`, in clusters of its own."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app
from keepclose.cli.render.demo import print_sight
from keepclose.cli.render.screen import Screen
from keepclose.lab.cluster.tour import Forecast, StepResult
from keepclose.lab.cluster.tour_steps import TOUR_STEPS, HintedEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from support.builders import service

ZONES = ("zone-a", "zone-b", "zone-c")
_HEAD = re.compile(r"^(\d)/6 ", re.MULTILINE)
_CELL = re.compile(r"·|(\d+) +(\d+) %")
_ROW = re.compile(r"^(?:from|    ) (zone-\w)  (.*) (✓|✗)$", re.MULTILINE)
_HINTS = re.compile(r"^demo-\S+ +(n\d) +(zone-\w) +yes +(\S+) +(\S+)$", re.MULTILINE)
_BUSIEST = re.compile(r"busiest endpoint ([\d.]+)x")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def split_steps(output: str) -> list[str]:
    """Return what was printed for each step."""
    return _HEAD.split(output)[2::2]


def matrix(step: str) -> dict[str, dict[str, int]]:
    """Return how many connections of each zone were answered in each; all rows must be fine."""
    found: dict[str, dict[str, int]] = {}
    for source, cells, mark in _ROW.findall(step):
        assert mark == "✓", step
        counts = [int(one.group(1) or 0) for one in _CELL.finditer(cells)]
        found[source] = {zone: count for zone, count in zip(ZONES, counts, strict=True) if count}
    assert list(found) == list(ZONES)
    return found


def hints(step: str) -> list[tuple[str, str, str, str]]:
    """Return node, zone, zone hint and node hint of each endpoint."""
    return _HINTS.findall(step)


def about(share: float) -> object:
    """Return what a count of 300 is equal to if it comes by chance with this share."""
    # NB: beyond six sigmas lies one of a hundred million, and there are many counts.
    return pytest.approx(300 * share, abs=8 * (300 * share * (1 - share)) ** 0.5)


def spread(a: float, b: float, c: float) -> dict[str, object]:
    """Return the counts of 300 connections that are spread over all zones."""
    return dict(zip(ZONES, map(about, (a, b, c)), strict=True))


OWN_ZONE = {zone: {zone: 300} for zone in ZONES}


@needs_root
def test_every_step_shows_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real connections go where each step says, and nothing is left afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = CliRunner().invoke(app, ["demo", "--yes"], env={"COLUMNS": "100"})
    if "! no packets here" in result.output:
        pytest.skip("no packets here")
    if " %, expected " in result.output:
        # Of a million runs one is called wrong by chance; whoever sees that looks again.
        result = CliRunner().invoke(app, ["demo", "--yes"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert list(tmp_path.iterdir()) == []
    assert result.output.count("900 connections, 0 failed") == 6
    default, zone, node, lost, balanced, rollback = split_steps(result.output)

    assert {one[2:] for one in hints(default)} == {("·", "·")}
    assert matrix(default) == dict.fromkeys(ZONES, spread(0.4, 0.4, 0.2))

    assert [one[1] for one in hints(zone)] == [one[2] for one in hints(zone)]
    assert matrix(zone) == OWN_ZONE

    assert [one[0] for one in hints(node)] == [one[3] for one in hints(node)]
    assert matrix(node) == OWN_ZONE
    by_node = dict(re.findall(r"^(?:from|    ) (n\d)  .*?(\d+ \(\d+\)).* ✓$", node, re.MULTILINE))
    assert by_node == dict.fromkeys(["n1", "n2", "n3", "n4", "n5", "n6"], "100 (100)")
    assert re.search(r"on node 83\.3 %", node)
    assert "no ready endpoint is hinted for node n6" in node

    assert "zone-c" not in {one[1] for one in hints(lost)}
    assert matrix(lost) == OWN_ZONE | {"zone-c": {"zone-a": about(0.6), "zone-b": about(0.4)}}
    assert "no connection fails" in lost

    assert Counter(one[1] for one in hints(balanced)) == {"zone-a": 3, "zone-b": 2, "zone-c": 1}
    assert Counter(one[2] for one in hints(balanced)) == dict.fromkeys(ZONES, 2)
    assert matrix(balanced) == OWN_ZONE | {"zone-c": {"zone-a": about(0.5), "zone-c": about(0.5)}}
    assert "which had 2.00x its fair share" in balanced
    # Each endpoint should get 1.00x, and chance adds some.
    assert 1.0 <= float(_BUSIEST.findall(balanced)[0]) < 1.45

    assert {one[2:] for one in hints(rollback)} == {("·", "·")}
    assert len(hints(rollback)) == 6
    assert matrix(rollback) == dict.fromkeys(ZONES, spread(1 / 2, 1 / 3, 1 / 6))
    assert "is ignored because feature gate\nServiceTrafficDistribution is off." in rollback
    assert "The Service still says keepclose.dev/Balanced" in rollback


def is_left(directory: Path) -> list[str]:
    """Return the processes whose command names the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found


def test_a_signal_ends_everything(tmp_path: Path) -> None:
    """Ctrl-C, pressed twice while the tour waits, leaves no process and no file."""
    process = subprocess.Popen(
        [sys.executable, "-m", "keepclose", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("  export KUBECONFIG="):
            break
    assert len(is_left(tmp_path)) > 0
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "\nstopped, nothing is left behind\n")
    assert is_left(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_expected_shares_where_there_are_no_packets(tmp_path: Path) -> None:
    """The reason is told in one line, and q ends the tour in order."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    limit = "echo 0 > /proc/sys/user/max_net_namespaces"
    script = f"{limit} || exit 77; exec {sys.executable} -m keepclose demo"
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"},
        input="\nq\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("the kernel makes no user namespaces")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n! no packets here: the kernel makes no network namespace" in done.stdout
    (step,) = split_steps(done.stdout)
    assert "from zone-a   40 %    40 %    20 %\n     zone-b   40 %    40 %    20 %\n" in step
    assert "in zone 33.3 %   on node 16.7 %   busiest endpoint 1.00x its fair share" in step
    assert step.endswith("\nThe tour ended after 1 of 6. Your own cluster: keepclose up\n")
    assert list(tmp_path.iterdir()) == []


def test_a_sight_without_packets() -> None:
    """Hints, expected shares and the story, every line without blanks at its end."""
    endpoints = (
        HintedEndpoint("demo-1", "n1", "zone-a", True, ("zone-a", "zone-b"), ()),
        HintedEndpoint("demo-22", "n3", "zone-b", False, (), ("n3",)),
    )
    shares = {"zone-a": {"zone-a": 1.0}, "zone-b": {"zone-a": 0.5, "zone-b": 0.5}}
    sight = StepResult(
        TOUR_STEPS[0],
        endpoints,
        service(),
        (Reason(ReasonCode.NOTHING_ASKED, "nothing was asked for"),),
        Forecast(shares, 0.75, 0.25, 1.5, "zone-a"),
    )
    out = io.StringIO()
    print_sight(Screen(file=out, width=60), sight)
    assert out.getvalue().splitlines() == [
        "",
        "endpoint  node  zone    ready  hints.forZones  hints.forNodes",
        "demo-1    n1    zone-a  yes    zone-a, zone-b  ·",
        "demo-22   n3    zone-b  no     ·               n3",
        "",
        "expected, to  zone-a  zone-b",
        "from zone-a   100 %   ·",
        "     zone-b   50 %    50 %",
        "in zone 75.0 %   on node 25.0 %   busiest endpoint 1.50x its fair share (zone-a)",
        "",
        "Why: nothing was asked for.",
        "There are no hints, so every node gives each of the five",
        "pods an equal part.",
        "75 % of the connections stay in their zone, by chance; all",
        "others cross zones.",
    ]
