"""`keepclose lab slo` as a command, with a stand-in for the running cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keepclose.cli.lab import app
from keepclose.cli.lab_slo import render_table
from keepclose.lab.access import LabRefusal
from support.commands.labservers import answering


def a_row(policy: str, traffic: str, *, role: str = "", **more: Any) -> dict[str, Any]:
    """Return the figures of a policy, as the lab answers."""
    return {
        "policy": policy,
        "role": role,
        "traffic": traffic,
        "connections": 1192,
        "failed": 0,
        "failures": {},
        "availability": 100.0,
        "nodeHops": 0.834,
        "zoneCrossings": 0.5,
        "p50Ms": 0.94,
        "p99Ms": 19.21,
        "guessedAvailability": "100 %-ish",
        "guessedSpeed": "not as fast",
        "availabilityAsGuessed": True,
        "speedAsGuessed": True,
        **more,
    }


NOTHING: dict[str, Any] = {"nodeHops": None, "zoneCrossings": None, "p50Ms": None, "p99Ms": None}
LOST: dict[str, Any] = {"failed": 3, "availability": 99.748, "speedAsGuessed": False}
UNGUESSED: dict[str, Any] = {
    "guessedAvailability": "",
    "guessedSpeed": "",
    "availabilityAsGuessed": None,
    "speedAsGuessed": None,
}
ANSWER = {
    "seconds": 10.0,
    "nodes": 6,
    "rows": [
        a_row("Cluster", "internal"),
        a_row("Cluster", "external", **LOST),
        a_row("PreferLocal", "internal", role="as fallback"),
        a_row("PreferLocal", "external", role="as fallback", availability=0.0, **NOTHING),
        a_row("PreferSameZone", "internal", **UNGUESSED),
        a_row("PreferSameZone", "external", **UNGUESSED),
    ],
    "notes": ["5 ms from zone to zone, each way"],
}


TABLE = """\
POLICY          TRAFFIC   CONNS  FAILED     AVAIL  HOPS  ZONES  P50 MS  P99 MS  KEP-3015 DRAFT
Cluster         internal  1,192       0  100.00 %  0.83   0.50     0.9    19.2  100 %-ish ✓
                external  1,192       3   99.74 %  0.83   0.50     0.9    19.2  not as fast ✗
PreferLocal     internal  1,192       0  100.00 %  0.83   0.50     0.9    19.2  100 %-ish ✓
as fallback     external  1,192       0    0.00 %     -      -       -       -  not as fast ✓
PreferSameZone  internal  1,192       0  100.00 %  0.83   0.50     0.9    19.2  -
                external  1,192       0  100.00 %  0.83   0.50     0.9    19.2  -

5 ms from zone to zone, each way
HOPS and ZONES: answered on another node, in another zone, by connection.
"""


def run(directory: Path, *arguments: str) -> Result:
    """Run the command in this process."""
    env = {"KEEPCLOSE_DATA_DIR": str(directory)}
    return CliRunner().invoke(app, ["slo", *arguments], env=env)


def test_the_widest_table_fits_a_hundred_columns() -> None:
    """The longest names and guesses, and as many connections as half an hour makes."""
    widest = a_row(
        "PreferSameNode",
        "external",
        role="as optimisation",
        connections=999_999,
        failed=99_999,
        guessedAvailability="less than 100 %",
        guessedSpeed="between the two",
        p99Ms=9999.9,
    )
    table = render_table([{**widest, "traffic": "internal"}, widest])
    assert max(map(len, table.splitlines())) <= 100


def test_the_table(tmp_path: Path) -> None:
    """Each policy has two lines, and a guess is only right if both kinds of traffic bear it out."""
    with answering(tmp_path, ({"doing": "Cluster"},), slo=ANSWER) as lab:
        result = run(tmp_path, "--seconds", "2", "--zone-latency", "5")
    assert result.exit_code == 0
    assert lab.asked == [("slo", {"seconds": 2.0, "zone_latency": 5.0})]
    assert result.stdout == TABLE


def test_json(tmp_path: Path) -> None:
    """The answer comes as it is."""
    with answering(tmp_path, slo=ANSWER):
        assert json.loads(run(tmp_path, "-o", "json").stdout) == ANSWER


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(["--seconds", "0"], "'--seconds'", id="no time"),
        pytest.param(["--zone-latency", "-1"], "'--zone-latency'", id="into the past"),
    ],
)
def test_bad_input(tmp_path: Path, options: list[str], want: str) -> None:
    """What cannot be measured is refused before any cluster is asked."""
    result = run(tmp_path, *options)
    assert result.exit_code == 2
    assert want in result.stderr


def test_refusals(tmp_path: Path) -> None:
    """The lab's refusal is shown with its exit code."""
    with answering(tmp_path, slo=LabRefusal("there are no packets", code=5)):
        result = run(tmp_path)
    assert (result.exit_code, result.stderr) == (5, "error: there are no packets\n")
