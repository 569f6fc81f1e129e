"""The command `keepclose simulate churn --trace`: table, JSON, page, files and errors."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keepclose.cli.main import app
from keepclose.cli.render.demand_runs import format_span
from keepclose.simulate.csv.demand import MAX_TRACE_BYTES
from keepclose.simulate.demand_runs import DEMAND_MECHANISMS
from keepclose.simulate.mechanisms import SCENARIOS
from keepclose.simulate.traces import TRACES
from support.commands.commandlines import Call, find_mistake

DEMAND = "time,zone-a,zone-b\n0,100,100\n10m,300,100\n20m,100,100\n"


def run(
    *arguments: str, stdin: str | None = None, columns: int = 80, color: bool = False
) -> Result:
    """Run the command in this process, on a terminal of 80 columns."""
    env = {"COLUMNS": str(columns)} | ({"FORCE_COLOR": "1"} if color else {"TERM": "dumb"})
    return CliRunner().invoke(app, ["simulate", "churn", *arguments], input=stdin, env=env)


def answer(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """Return the JSON answer."""
    result = run(*arguments, "-o", "json", stdin=stdin)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_all_traces_in_tables_of_80_columns() -> None:
    """Each trace has a table with all mechanisms; the legend explains marks and words once."""
    result = run("--trace", "all", "--duration", "30m", "--step", "30s")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name in TRACES:
        assert sum(line.startswith(f"{name}  ") for line in lines) == 1
    assert "…" not in result.stdout
    header = "mechanism over 20% in zone overload worst re-hints writes returns"
    assert [" ".join(line.split()) for line in lines].count(header) == len(TRACES)
    for mechanism in DEMAND_MECHANISMS.values():
        name = mechanism.runs_with.mark_name(mechanism.name)
        assert sum(line.startswith(f"{name} ") for line in lines) == len(TRACES)
    assert lines[-1].endswith("~ simulator only; unmarked: any proxy")
    assert lines[-2].endswith("which they left at most 5 min before")


def test_a_file_may_have_parts_of_the_whole() -> None:
    """The unit of a file is not known, so no rate of it is too little to count."""
    rows = "time,zone-a,zone-b\n0,{0},{0}\n10m,{1},{0}\n20m,{0},{0}\n"
    parts, rates = rows.format("0.2", "0.6"), rows.format("200", "600")
    (by_parts,), (by_rates,) = (
        answer("--trace", "-", "--mechanism", "balanced-demand", stdin=text)["traces"]
        for text in (parts, rates)
    )
    (few,), (many,) = by_parts["mechanisms"], by_rates["mechanisms"]
    assert few["rehinted"] == many["rehinted"] > 0
    assert few["overload_minutes"] == many["overload_minutes"]


def test_help_says_what_a_trace_is_and_names_all_choices() -> None:
    """The choices are those of the code, and each example is a call that is understood."""
    result = CliRunner().invoke(app, ["simulate", "churn", "--help"], terminal_width=80)
    words = " ".join(result.stdout.split()).replace("- ", "-")
    assert "A trace is the demand of each zone over simulated time." in words
    for names in (TRACES, SCENARIOS):
        assert f"{', '.join(names)} or all" in words
    examples = [line.split() for line in result.stdout.splitlines() if "  keepclose " in line]
    assert len(examples) == 3
    for _, *arguments in examples:
        assert find_mistake(Call(tuple(arguments), whole=True)) is None


def test_a_narrow_terminal_cuts_no_figure() -> None:
    """The table keeps its width; the terminal wraps its lines."""
    arguments = ("--trace", "step", "--mechanism", "auto,limit")
    wide, narrow = run(*arguments).stdout.splitlines(), run(*arguments, columns=40).stdout
    assert [line for line in wide if line.startswith(("auto", "limit ~"))]
    for line in wide:
        assert not line.startswith(("mechanism", "auto", "limit ~")) or line in narrow.splitlines()


def test_the_answer_in_json() -> None:
    """Figures by mechanism, the settings of the controller, and null for what the limit lacks."""
    arguments = ("--trace", "step", "--mechanism", "balanced-cpu,balanced-demand,weights,limit")
    document = answer(*arguments, "--half-life", "30s", "--dead-band", "2%", "--interval", "1m")
    assert document["demand"] == {
        "half_life_seconds": 30,
        "dead_band_percent": 2,
        "interval_seconds": 60,
    }
    assert (document["bound_percent"], document["oscillation_window_seconds"]) == (20, 300)
    (trace,) = document["traces"]
    assert (trace["name"], trace["duration_seconds"], trace["step_seconds"]) == ("step", 1800, 15)
    assert trace["zones"] == ["zone-a", "zone-b", "zone-c"]
    by_cpu, by_demand, weights, limit = trace["mechanisms"]
    assert [one["shares_by"] for one in trace["mechanisms"]] == [
        "CPU",
        "demand",
        "demand",
        "traffic",
    ]
    assert by_cpu["overload_minutes"] == 20
    assert by_demand["overload_minutes"] < 6
    assert by_demand["oscillating"] == 0 < by_demand["rehinted"]
    assert by_demand["rehints_per_hour"] == 2 * by_demand["rehinted"]
    assert weights["slices_written"] >= by_demand["slices_written"]
    assert limit["rehinted"] is limit["oscillating"] is limit["slices_written"] is None
    assert limit["max_overload_percent"] == pytest.approx(0, abs=1e-6)
    assert (by_demand["runs_with"], limit["runs_with"]) == ("any proxy", "simulator only")
    slower = answer(*arguments, "--half-life", "10m")["traces"][0]["mechanisms"][1]
    assert slower["overload_minutes"] > by_demand["overload_minutes"]


def test_the_seed_decides() -> None:
    """The same seed gives the same answer, another one another."""
    arguments = ("--trace", "random-walk", "--mechanism", "same-zone", "--endpoints", "24")
    assert answer(*arguments) == answer(*arguments, "--seed", "0")
    assert answer(*arguments)["traces"] != answer(*arguments, "--seed", "1")["traces"]


def test_demand_from_a_file(tmp_path: Path) -> None:
    """A file, or standard input, names zones and duration; --duration and --step overrule it."""
    file = tmp_path / "demand.csv"
    file.write_text(DEMAND)
    (trace,) = answer("--trace", str(file))["traces"]
    assert (trace["name"], trace["zones"]) == (str(file), ["zone-a", "zone-b"])
    assert (trace["duration_seconds"], trace["step_seconds"]) == (1800, 15)
    same_zone = trace["mechanisms"][1]
    assert same_zone["overload_minutes"] == 10
    (other,) = answer("--trace", "-", "--step", "1m", "--duration", "20m", stdin=DEMAND)["traces"]
    assert other["name"] == "standard input"
    assert (other["duration_seconds"], other["step_seconds"]) == (1200, 60)
    assert other["mechanisms"][1]["overload_minutes"] == 10


class TracePage(HTMLParser):
    """Gathers the texts of a page, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag would load."""
        assert tag != "script"
        self.outside += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        """Gather a text."""
        self.text.append(data)


def test_the_page_has_charts_over_time(tmp_path: Path) -> None:
    """Demand, share and load over time for each trace, marked names, nothing from outside."""
    page = tmp_path / "page.html"
    result = run("--trace", "day", "--trace", "step", "--report", str(page))
    assert (result.exit_code, result.stderr) == (0, f"report written to {page}\n")
    text = page.read_text()
    assert text.count("<svg ") == 6
    assert len(text) < 500_000
    parser = TracePage()
    parser.feed(text)
    assert parser.outside == []
    words = " ".join(parser.text)
    for part in ("24 h", "balanced-demand", "limit ~", "~ simulator only", "bound of 20%"):
        assert part in words
    assert "any proxy" in parser.text


def test_a_page_escapes_names(tmp_path: Path) -> None:
    """The name of a file stands in the page as text."""
    folder = tmp_path / "<b>"
    folder.mkdir()
    (folder / "demand.csv").write_text(DEMAND)
    run("--trace", str(folder / "demand.csv"), "--report", str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


def test_a_terminal_gets_a_bar_of_steps() -> None:
    """Progress goes to standard error, with the number of steps of all mechanisms."""
    result = run("--trace", "step", "--mechanism", "none,auto", "-o", "json", color=True)
    assert json.loads(result.stdout)["traces"]
    assert "240 steps" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "want"),
    [
        pytest.param(
            ["--trace", "flash"],
            None,
            'error: unknown trace "flash"\n       did you mean flash-crowd?\n',
            id="trace with a typing error",
        ),
        pytest.param(
            ["--trace", "step", "--mechanism", "balanced"],
            None,
            'error: unknown mechanism "balanced"\n       did you mean balanced-cpu?\n',
            id="mechanism of scenarios",
        ),
        pytest.param(
            ["--trace", "day", "--scenario", "mixed"],
            None,
            "error: --scenario and --trace exclude each other\n",
            id="scenario and trace",
        ),
        pytest.param(
            ["--half-life", "1m"],
            None,
            "error: --half-life has an effect on traces only\n       name one with --trace",
            id="an option without a trace",
        ),
        pytest.param(
            ["--trace", "day", "--zones", "1"], None, "error: --zones: 1 is not between", id="zones"
        ),
        pytest.param(
            ["--trace", "day", "--endpoints", "0"],
            None,
            "error: --endpoints: 0 is not between 1 and 1,000\n",
            id="endpoints",
        ),
        pytest.param(
            ["--trace", "day", "--step", "0"],
            None,
            "error: --duration and --step: a step of 0 s is shorter than 1 s\n",
            id="step",
        ),
        pytest.param(
            ["--trace", "day", "--duration", "0"],
            None,
            "error: --duration and --step: 0 s hold less than two steps of 60 s\n",
            id="duration",
        ),
        pytest.param(
            ["--trace", "day", "--duration", "8000h"],
            None,
            "error: --duration and --step: 2.88e+07 s hold more than 20,000 steps of 60 s\n",
            id="long",
        ),
        pytest.param(
            ["--trace", "day", "--window", "soon"],
            None,
            "error: --window: 'soon' must be a duration such as 1s\n",
            id="window",
        ),
        pytest.param(
            ["--trace", "day", "--dead-band", "200%"],
            None,
            'error: --dead-band: "200%" is no part of a whole such as 0.05 or 5%\n',
            id="dead band",
        ),
        pytest.param(
            ["--trace", "/no/such.csv"],
            None,
            "error: cannot be read: No such file or directory\n       in /no/such.csv\n",
            id="no such file",
        ),
        pytest.param(
            ["--trace", "-"],
            "time,a,b\n0,1,2\n1m,3,x\n",
            'error: row 1m: zone b: "x" is no rate\n       in standard input, line 3, column 6\n'
            "       write a number from 0 to 1e+12\n",
            id="bad row",
        ),
        pytest.param(
            ["--trace", "-", "--zones", "2"],
            DEMAND,
            "error: --zones: - names its zones\n       leave the option out\n",
            id="zones of a file",
        ),
        pytest.param(
            ["--trace", "step", "--report", "/no/such/page.html"],
            None,
            "error: /no/such/page.html cannot be written: No such file or directory\n",
            id="report nowhere",
        ),
        pytest.param(
            ["--trace", "x.csv", "--report", "x.csv"],
            None,
            "error: --report would overwrite the file of --trace\n",
            id="report over the trace",
        ),
    ],
)
def test_wrong_options_end_the_command(arguments: list[str], stdin: str | None, want: str) -> None:
    """Exit code 2, what is wrong, the place in a file, and what to do; no traceback."""
    result = run(*arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(want)
    assert "Traceback" not in result.stderr


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """A limit of bytes holds before anything is parsed."""
    file = tmp_path / "large.csv"
    with file.open("wb") as stream:
        stream.truncate(MAX_TRACE_BYTES + 1)
    result = run("--trace", str(file))
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: cannot be read: it has 16,777,217 bytes, more than 16,777,216",
        f"       in {file}",
        "       divide it",
    ]


def test_bad_rows_are_counted() -> None:
    """Ten are shown and the others counted."""
    rows = "time,a,b\n" + "".join(f"{number},x,1\n" for number in range(40))
    result = run("--trace", "-", stdin=rows)
    assert result.stderr.count("error: row") == 10
    assert result.stderr.endswith("error: and 30 more bad rows\n")


@pytest.mark.parametrize(
    ("seconds", "want"), [(0, "0 s"), (15, "15 s"), (5400, "1 h 30 min"), (61.5, "1 min 1.5 s")]
)
def test_durations_are_short(seconds: float, want: str) -> None:
    """A duration has the largest units that it fills."""
    assert format_span(seconds) == want


def test_one_endpoint_is_no_plural() -> None:
    """The line above a table counts as people do."""
    result = run("--trace", "step", "--endpoints", "1", "--mechanism", "none")
    assert result.stdout.splitlines()[1] == "30 min in steps of 15 s, 1 endpoint in 3 zones"
