"""The command `keepclose simulate` with its commands compare and churn."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keepclose.cli.main import app
from keepclose.cli.render.progress import format_rate
from keepclose.cli.simulate_options import warn_of_slowness
from keepclose.simulate.algorithms import ALGORITHMS
from keepclose.simulate.datasets import open_dataset

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "simulator.json").read_text()
)
ROWS = (
    'name,zone1,zone2,zone3\n"0-(4, 4, 5)",4 19,4 8,5 14\nsmall,1 1,1 1,1 1\nbig,3 90,9 31,10 48\n'
)


def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run the command in this process, on a terminal of 80 columns."""
    return CliRunner().invoke(
        app, ["simulate", *arguments], input=stdin, env={"COLUMNS": "80", "TERM": "dumb"}
    )


def answer(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """Return the JSON answer."""
    result = run(*arguments, "-o", "json", stdin=stdin)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def lines_of(text: str) -> list[str]:
    """Return the lines with single blanks, so that padding does not matter."""
    return [" ".join(line.split()) for line in text.splitlines()]


def marked(name: str) -> str:
    """Return the name of an algorithm as tables have it."""
    return ALGORITHMS[name].runs_with.mark_name(name)


def test_the_answer_in_json() -> None:
    """The documented keys, with balanced in two variants and the figures of the reference."""
    document = answer("--input", "-", "--algorithm", "local", "--algorithm", "balanced", stdin=ROWS)
    assert set(document) == {"inputs", "seconds", "algorithms"}
    assert document["inputs"] == 3
    names = [(one["name"], one["variant"]) for one in document["algorithms"]]
    assert names == [("local", None), ("balanced", "hints"), ("balanced", "weights")]
    want_keys = {
        "valid",
        "invalid",
        "mean_total",
        "max_total",
        "min_total",
        "mean_in_zone",
        "mean_deviation",
        "mean_slice",
        "max_deviation_percent",
        "mean_max_deviation_percent",
    }
    local, hints, weights = document["algorithms"]
    for one in document["algorithms"]:
        assert want_keys <= set(one)
        assert (one["valid"], one["invalid"]) == (3, 0)
        assert one["min_total"] <= one["mean_total"] <= one["max_total"]
    assert local["min_total"] == pytest.approx(70)
    assert local["lowest_total"] == {"value": 70.0, "count": 1, "inputs": ["small"]}
    assert (local["slice_model"], hints["slice_model"]) == ("kep", "hints")
    assert weights["max_deviation_percent"] == pytest.approx(0, abs=1e-9)


def test_the_table_is_that_of_the_kep() -> None:
    """Means first, then extremes, then the worst inputs by name, within 80 columns."""
    result = run("--input", "-", "--algorithm", "published", stdin=ROWS)
    assert result.exit_code == 0
    lines = lines_of(result.stdout)
    assert lines[0].startswith("3 inputs of standard input in 0.")
    assert lines[2] == ("algorithm total in zone deviation slices overload worst")
    assert lines[3] == "original 69.16 31.47 100.00 100.00 0.00 % 0.00 %"
    assert lines[5].startswith(f"{marked('local-shared')} * 82.88 ")
    assert "highest/lowest total in zone deviation slices" in lines
    assert "original 70.03/67.45 33.40/27.68 100.00/100.00 100.00/100.00" in lines
    assert "local + overload 5.13 % 1 0-(4, 4, 5)" in lines
    assert "local + total 70.00 1 small" in lines
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    # What a cluster does for these three is in their traffic, not in their slices.
    legend = "local-shared, local-weighted, local-opt: slices and total are those of KEP-2004;"
    assert lines[-3] == legend
    assert lines[-2].startswith("in a cluster weights on ordinary slices take the place")
    others = run("--input", "-", "--algorithm", "local,balanced-weights", stdin=ROWS)
    assert "KEP-2004" not in others.stdout


def test_tables_say_what_a_cluster_can_run() -> None:
    """Names are marked in every table, the legend explains marks and star, and JSON has words."""
    choice = ("--input", "-", "--algorithm", "local,shared-global,kube-auto")
    text = run(*choice, stdin=ROWS).stdout
    legend = "* best total; + needs keepclose proxy; ~ simulator only; unmarked: any proxy"
    assert lines_of(text)[-1] == legend
    names = [" ".join(line.split("  ")[0].split()) for line in text.splitlines()]
    assert names.count("local +") >= 2
    assert names.count("shared-global ~") >= 2
    assert names.count("kube-auto *") == 1
    document = answer(*choice, stdin=ROWS)
    assert [one["runs_with"] for one in document["algorithms"]] == [
        "keepclose proxy",
        "simulator only",
        "any proxy",
    ]
    hints = answer(*choice[:3], "local", "--slice-model", "hints", stdin=ROWS)
    assert hints["algorithms"][0]["runs_with"] == "simulator only"
    compared = ("compare", "balanced", "shared-global", "--input", "-")
    both = answer(*compared, stdin=ROWS)
    assert (both["first_runs_with"], both["second_runs_with"]) == ("any proxy", "simulator only")
    (*_, last) = lines_of(run(*compared, stdin=ROWS).stdout)
    assert last == "~ simulator only; unmarked: any proxy"
    (scenario,) = answer("churn", "--scenario", "autoscaling", "--mechanism", "auto,local")[
        "scenarios"
    ]
    assert [one["runs_with"] for one in scenario["mechanisms"]] == ["any proxy", "simulator only"]
    few = lines_of(run("few", "--endpoints", "2").stdout)
    limit = ALGORITHMS["balanced-weights"].runs_with
    assert few[-1] == f"in a cluster: limit: {limit}; Balanced and all others: any proxy"


def test_only_percentages_are_called_overload() -> None:
    """The score of the deviation is 100 without any, the overload then 0 %."""
    line = lines_of(run("--input", "-", "--algorithm", "original", stdin=ROWS).stdout)
    assert line[2] == "algorithm total in zone deviation slices overload worst"
    assert line[3] == "original 69.16 31.47 100.00 100.00 0.00 % 0.00 %"


def test_a_data_set_by_name_and_a_sample_of_it() -> None:
    """The same seed draws the same inputs, another one others."""
    arguments = ("--dataset", "kep2004-small", "--sample", "200", "--algorithm", "original")
    one = answer(*arguments, "--seed", "1")["algorithms"]
    assert one == answer(*arguments, "--seed", "1")["algorithms"]
    assert one != answer(*arguments, "--seed", "2")["algorithms"]
    assert answer(*arguments)["inputs"] == 200


def test_the_small_set_of_the_kep_has_its_published_means() -> None:
    """All 389,400 inputs, by machine code; the starting threshold moves the mean as published."""
    pytest.importorskip("numba")
    (local,) = answer("--dataset", "kep2004-small", "--algorithm", "local")["algorithms"]
    assert local["mean_total"] == pytest.approx(80.07382, abs=1e-5)
    (early,) = answer(
        "--dataset", "kep2004-small", "--algorithm", "Local", "--starting-threshold", "1"
    )["algorithms"]
    assert early["mean_total"] == pytest.approx(80.04839, abs=1e-5)
    assert early["starting_threshold"] == 1


def test_names_of_the_reference_are_understood() -> None:
    """Algorithms may go by the flags of the reference simulator, random by that of the KEP."""
    names = "LocalShared,SharedMultiZone,random,Original"
    document = answer("--input", "-", "--algorithm", names, stdin=ROWS)
    assert [one["name"] for one in document["algorithms"]] == [
        "local-shared",
        "shared-multizone",
        "original",
    ]


def test_weights_and_thresholds_change_the_score() -> None:
    """With all weight on in-zone traffic the total is the in-zone score."""
    (one,) = answer("--input", "-", "--algorithm", "local", "--weights", "1,0,0,0", stdin=ROWS)[
        "algorithms"
    ]
    assert one["mean_total"] == pytest.approx(one["mean_in_zone"])
    arguments = ("--input", "-", "--algorithm", "local", "--overload-threshold")
    strict = answer(*arguments, "0.01", stdin=ROWS)["algorithms"][0]
    loose = answer(*arguments, "9", stdin=ROWS)["algorithms"][0]
    assert strict["mean_in_zone"] < loose["mean_in_zone"]


def test_the_slice_model_can_be_chosen() -> None:
    """Hints need no slices of their own; groups that several zones share cannot be hints."""
    arguments = ("--input", "-", "--algorithm", "local,local-opt")
    result = run(*arguments, "--slice-model", "hints", "-o", "json", stdin=ROWS)
    local, opt = json.loads(result.stdout)["algorithms"]
    assert local["mean_slice"] == 100
    assert opt["mean_slice"] < 100
    assert result.stderr == "warning: --slice-model has no effect on local-opt\n"


def test_results_of_every_input_are_written(tmp_path: Path) -> None:
    """One file for one algorithm, labels as they were; one file each for several."""
    source = tmp_path / "in.csv"
    source.write_text(ROWS)
    out = tmp_path / "out.csv"
    assert run("--input", str(source), "--algorithm", "local", "--output", str(out)).exit_code == 0
    header, first, second, third = out.read_text().splitlines()
    assert header.startswith("input name,score,in-zone-traffic score,deviation score,slice score,")
    assert first.startswith('"0-(4, 4, 5)",')
    assert second == "small,70.0000,33.3333,100.0000,100.0000,0.0000%,0.0000%,0.0000"
    assert third.startswith("big,")
    run("--input", str(source), "--algorithm", "original,balanced", "--output", str(out))
    assert sorted(file.name for file in tmp_path.glob("out-*.csv")) == [
        "out-balanced-hints.csv",
        "out-balanced-weights.csv",
        "out-original.csv",
    ]


@pytest.mark.parametrize("name", VECTORS["algorithms"])
def test_a_file_comes_out_as_the_reference_prints_it(name: str, tmp_path: Path) -> None:
    """All recorded inputs of three zones in one file: text in, text out."""
    cases = [
        case
        for case in VECTORS["algorithms"][name]["cases"]
        if [zone for zone, _, _ in case["zones"]] == ["zone1", "zone2", "zone3"]
        and any(nodes for _, nodes, _ in case["zones"])
    ]
    rows = [
        ",".join([f"case {number}", *(f"{nodes} {count}" for _, nodes, count in case["zones"])])
        for number, case in enumerate(cases)
    ]
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("\r\n".join(["name,zone1,zone2,zone3", *rows]) + "\r\n")
    flag = VECTORS["algorithms"][name]["alg_flag"]
    assert run("--input", str(source), "--algorithm", flag, "--output", str(out)).exit_code == 0
    written = out.read_text().splitlines()[1:]
    assert len(written) == len(cases) > 3
    for number, (line, case) in enumerate(zip(written, cases, strict=True)):
        label, *columns = line.split(",")
        want = case["csv"].split(",")
        assert label == f"case {number}"
        for column, wanted in zip(columns, want, strict=True):
            if wanted == "invalid":
                assert column == "invalid"
            else:
                assert len(column) == len(wanted)
                last_digit = abs(float(column.rstrip("%")) - float(wanted.rstrip("%")))
                assert last_digit < 1.01e-4


BAD_ROWS = "name,zone1,zone2\nok,1 2,3 4\nx,1,3 4\ny,1 2,3 4,5 6\nz,0 2,0 4\nw,1 2,3 -4\n"


def test_bad_rows_are_told_with_line_and_column(tmp_path: Path) -> None:
    """Nothing is computed from a file that is not understood."""
    source = tmp_path / "bad.csv"
    source.write_text(BAD_ROWS)
    result = run("--input", str(source))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        'error: row x: zone zone1: expected "<nodes> <endpoints>", got "1"',
        f"       in {source}, line 3, column 3",
        '       write two whole numbers, such as "3 12": 3 nodes and 12 endpoints',
        "error: row y: the row has more cells than its 2 zones",
        f"       in {source}, line 4, column 11",
        "       name a zone for the column in the header, or remove the cell",
        "error: row z: no zone has a node, so there is no traffic",
        f"       in {source}, line 5, column 3",
        "       give a zone at least one node",
        "error: row w: zone zone2: the number of endpoints is negative: -4",
        f"       in {source}, line 6, column 7",
        '       write two whole numbers, such as "3 12": 3 nodes and 12 endpoints',
        "       --skip-bad skips them",
    ]


def test_bad_rows_can_be_left_out() -> None:
    """The good rows are simulated, and one line tells of the others."""
    result = run("--input", "-", "--skip-bad", "-o", "json", stdin=BAD_ROWS)
    assert (result.exit_code, json.loads(result.stdout)["inputs"]) == (0, 1)
    assert result.stderr == (
        "warning: 4 bad rows of standard input skipped, the first in line 3: "
        'zone zone1: expected "<nodes> <endpoints>", got "1"\n'
    )


def test_many_bad_rows_are_not_recited() -> None:
    """Ten are shown, the others are counted."""
    result = run("--input", "-", stdin="name,a\n" + "x,1\n" * 1234)
    assert result.exit_code == 2
    assert result.stderr.count("error: row x") == 10
    assert "error: and 1,224 more bad rows\n" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "want_code", "want"),
    [
        pytest.param(
            ["--dataset", "kep2004-smal"],
            None,
            2,
            'error: unknown data set "kep2004-smal"\n       did you mean kep2004-small?\n',
            id="data set with a typing error",
        ),
        pytest.param(
            ["--algorithm", "blanced"],
            None,
            2,
            'error: unknown algorithm "blanced"\n       did you mean balanced?\n',
            id="algorithm with a typing error",
        ),
        pytest.param(
            ["--algorithm", "xyz"],
            None,
            2,
            'error: unknown algorithm "xyz"\n       there are original, local, local-shared,',
            id="algorithm nobody knows",
        ),
        pytest.param(
            ["--weights", "1,2,3"], None, 2, "error: --weights: 3 numbers instead of 4", id="three"
        ),
        pytest.param(
            ["--weights", "a,b,c,d"], None, 2, 'error: --weights: "a,b,c,d" is not a', id="letters"
        ),
        pytest.param(
            ["--weights", "1,1,1,-1"], None, 2, "error: --weights: no weight may be", id="negative"
        ),
        pytest.param(
            ["--starting-threshold", "-1"], None, 2, "error: --starting-threshold: -1", id="start"
        ),
        pytest.param(
            ["--overload-threshold", "0"], None, 2, "error: --overload-threshold: 0", id="threshold"
        ),
        pytest.param(["--sample", "0"], None, 2, "error: --sample: 0 is no number", id="sample"),
        pytest.param(
            ["--dataset", "random", "--input", "-"],
            ROWS,
            2,
            "error: --dataset and --input exclude each other",
            id="two sources",
        ),
        pytest.param(
            ["--input", "/no/such.csv"],
            None,
            2,
            "error: cannot be read: No such file or directory\n       in /no/such.csv\n",
            id="no such file",
        ),
        pytest.param(
            ["--input", "-"],
            "name,a\n",
            3,
            "error: no inputs in standard input\n",
            id="a header and nothing else",
        ),
        pytest.param(
            ["--input", "-"],
            "zone1,zone2\n1 2,3 4\n",
            2,
            'error: expected the column "name" first, got "zone1"\n'
            "       in standard input, line 1, column 1\n",
            id="a header without name",
        ),
        pytest.param(
            ["--input", "a.csv", "--output", "a.csv"],
            None,
            2,
            "error: --output would overwrite",
            id="output over input",
        ),
        pytest.param(
            ["--input", "-", "--output", "/no/such/folder/out.csv"],
            ROWS,
            2,
            "error: /no/such/folder/out-original.csv cannot be written: No such file",
            id="output nowhere",
        ),
        pytest.param(
            ["--sample", "9", "compare", "local", "original"],
            None,
            2,
            "error: --sample precedes compare, where it has no effect\n",
            id="option before the command",
        ),
        pytest.param(
            ["compare", "local", "lokal"],
            None,
            2,
            'error: unknown algorithm "lokal"\n       did you mean local?\n',
            id="compare with a typing error",
        ),
        pytest.param(
            ["compare", "local", "original", "--examples", "0"],
            None,
            2,
            "error: --examples: 0 is no number of examples\n",
            id="no examples",
        ),
        pytest.param(
            ["compare", "local", "original", "--input", "-", "--write", "/dev/null/x"],
            ROWS,
            2,
            "error: /dev/null/x cannot be written: Not a directory\n",
            id="examples nowhere",
        ),
        pytest.param(
            ["--input", "-", "--algorithm", "local", "--report", "/no/such/report.html"],
            ROWS,
            2,
            "error: /no/such/report.html cannot be written: No such file or directory\n",
            id="report nowhere",
        ),
        pytest.param(
            ["churn", "--scenario", "mixt"],
            None,
            2,
            'error: unknown scenario "mixt"\n       did you mean mixed?\n',
            id="scenario with a typing error",
        ),
        pytest.param(
            ["churn", "--endpoints", "-1"], None, 2, "error: --endpoints: -1 is not", id="endpoints"
        ),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], stdin: str | None, want_code: int, want: str
) -> None:
    """One line of what, where it matters the place, and what to do; no traceback."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == want_code
    assert result.stderr.startswith(want)
    assert "Traceback" not in result.stderr


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers what can be read."""

    VOID = frozenset({"meta", "rect", "path", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a tag and note what it would load."""
        self.outside += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Allow only tags that have no content."""
        assert tag in self.VOID, (tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """Close the tag that was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Gather a text."""
        self.text.append(data)


def test_the_report_stands_alone(tmp_path: Path) -> None:
    """One page below 500 kB with all algorithms, charts and churn, that loads nothing."""
    file = tmp_path / "report.html"
    hostile = 'name,a,b,c\n"<script>alert(1)</script>",3 4,5 6,7 8\nx,1 9,1 9,1 9\n'
    result = run("--input", "-", "--report", str(file), stdin=hostile)
    assert result.exit_code == 0
    assert result.stderr == f"report written to {file}\n"
    assert lines_of(result.stdout)[0].startswith("2 inputs")
    text = file.read_text()
    assert file.stat().st_size < 500_000
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.outside == []
    assert "<script" not in text
    words = " ".join(page.text)
    for name in ("original", "local-weighted", "kube-auto", "balanced hints", "balanced weights"):
        assert name in words
    for title in ("Distribution of the total score", "Where algorithms differ", "Churn"):
        assert title in words
    assert "shared-global ~" in words
    assert "+ needs keepclose proxy; ~ simulator only; unmarked: any proxy" in words
    assert text.count("<svg ") == 6
    assert "prefers-color-scheme:dark" in text


def test_the_page_can_go_to_standard_output() -> None:
    """The form html prints the page and nothing else."""
    result = run("--input", "-", "--algorithm", "local", "-o", "html", stdin=ROWS)
    assert result.stdout.startswith("<!DOCTYPE html>")
    assert result.stdout.endswith("</html>\n")


def test_comparing_two() -> None:
    """Counts, mean differences, where, and the clearest inputs of both sides."""
    arguments = ("compare", "balanced", "local", "--dataset", "kep2004-small", "--sample", "1000")
    document = answer(*arguments)
    assert (document["first"], document["second"], document["inputs"]) == (
        "balanced",
        "local",
        1000,
    )
    assert document["better"] + document["equal"] + document["worse"] == 1000
    assert document["better"] > 900
    assert document["mean_difference"]["slice"] > 50
    assert sum(one["inputs"] for one in document["by_endpoints_per_zone"]) == 1000
    example = document["best"][0]
    assert example["difference"] == pytest.approx(
        example["first"]["total"] - example["second"]["total"]
    )
    assert [zone["name"] for zone in example["zones"]] == ["zone1", "zone2", "zone3"]
    lines = lines_of(run(*arguments).stdout)
    assert lines[0] == "balanced against local +"
    assert lines[3] == "mean difference total in zone deviation slices worst % mean % SD"
    assert any(line.startswith("best for balanced nodes endpoints") for line in lines)


def test_examples_of_a_comparison_can_be_resolved(tmp_path: Path) -> None:
    """Each is a cluster whose zones have the nodes and ready endpoints of the input."""
    rows = "name,East 1,b,c\none,2 4,1 2,0 2\ntwo,8 1,1 1,1 10\n"
    folder = tmp_path / "examples"
    result = run(
        "compare", "same-zone", "original", "--input", "-", "--write", str(folder), stdin=rows
    )
    assert result.exit_code == 0, result.output
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["original-1.yaml", "same-zone-1.yaml"]
    assert f"keepclose resolve -f {folder / 'same-zone-1.yaml'}" in result.stdout
    resolved = CliRunner().invoke(app, ["resolve", "-f", str(files[1]), "-o", "json"])
    assert resolved.exit_code == 0, resolved.output
    (service,) = json.loads(resolved.stdout)["services"]
    assert service["strategy"]["name"] == "PreferSameZone"
    zones = [one["zone"] for piece in service["slices"] for one in piece["endpoints"]]
    assert sorted(zones) == ["b", "b", "c", "c", *["east-1"] * 4]
    assert len(service["nodes"]) == 4  # one more for the pods in the zone without traffic
    together = CliRunner().invoke(app, ["resolve", "-f", str(folder), "-o", "json"])
    assert together.exit_code == 0, together.output
    assert len(json.loads(together.stdout)["services"]) == 2


@pytest.mark.parametrize(
    ("algorithm", "want"),
    [
        pytest.param("kube-auto", "service.kubernetes.io/topology-mode", id="Auto"),
        pytest.param("local", "endpointslice.kubernetes.io/subsetting", id="subsetting"),
        pytest.param("balanced", "keepclose.dev/traffic-distribution", id="balanced"),
        pytest.param("local-opt", "", id="none"),
    ],
)
def test_examples_ask_for_the_mechanism(algorithm: str, want: str, tmp_path: Path) -> None:
    """The Service has the annotation that comes nearest to the algorithm, if there is one."""
    run("compare", algorithm, "original", "--sample", "200", "--write", str(tmp_path))
    text = (tmp_path / f"{algorithm}-1.yaml").read_text()
    assert (f'"{want}"' in text) if want else ('"annotations"' not in text)


def test_churn_in_a_table_and_in_json() -> None:
    """Each mechanism with what it cost, by event in the form for programs."""
    arguments = ("churn", "--scenario", "autoscaling", "--mechanism", "none,same-zone,subsetting")
    (scenario,) = answer(*arguments)["scenarios"]
    assert (scenario["name"], scenario["steps"], scenario["endpoints"]) == ("autoscaling", 48, 8)
    none, same_zone, subsetting = scenario["mechanisms"]
    assert (none["random_share"], same_zone["random_share"]) == (1, 0)
    assert none["rehinted"] == same_zone["rehinted"] == 0
    assert subsetting["rehinted"] > 0
    assert sum(event["slices_written"] for event in none["events"]) == none["slices_written"] == 48
    assert {event["event"] for event in none["events"]} == {"scale up", "scale down"}
    lines = lines_of(run(*arguments).stdout)
    assert lines[2] == "mechanism re-hinted written Random in zone overload worst"
    assert lines[3].startswith("none 0 48 100%")
    (small,) = answer(*arguments, "--endpoints", "3")["scenarios"]
    assert small["endpoints"] == 3


def test_every_scenario_is_told_without_a_choice() -> None:
    """All scenarios stand below each other."""
    text = run("churn", "--mechanism", "none").stdout
    for name in ("autoscaling", "rolling-updates", "zone-outages", "node-outages", "mixed"):
        assert f"\n{name}  " in f"\n{text}"


def test_a_terminal_gets_a_bar() -> None:
    """Progress goes to standard error, with the amount, and leaves the answer alone."""
    result = CliRunner().invoke(
        app,
        ["simulate", "--input", "-", "--algorithm", "local", "-o", "json"],
        input=ROWS,
        env={"COLUMNS": "80", "FORCE_COLOR": "1"},
    )
    assert json.loads(result.stdout)["inputs"] == 3
    assert "3 inputs" in result.stderr
    assert "100 %" in result.stderr
    assert run("--input", "-", "--algorithm", "local", stdin=ROWS).stderr == ""


@pytest.mark.parametrize(
    ("speed", "want"), [(3.4, "3 /s"), (1234.0, "1.2 k/s"), (4_100_000.0, "4.1 M/s")]
)
def test_rates_are_short(speed: float, want: str) -> None:
    """A rate is told in a few characters."""
    assert format_rate(speed) == want


def test_inputs_without_a_valid_result() -> None:
    """They are counted; an algorithm that has no other ones has no figures."""
    rows = "name,a,b\nx,1 4,0 3\n"
    arguments = ("--input", "-", "--algorithm", "original,local-weighted")
    original, weighted = answer(*arguments, stdin=rows)["algorithms"]
    assert (original["valid"], original["invalid"]) == (1, 0)
    assert (weighted["valid"], weighted["invalid"], weighted["mean_total"]) == (0, 1, None)
    assert weighted["worst_overload"] is None
    lines = lines_of(run(*arguments, stdin=rows).stdout)
    assert f"{marked('local-weighted')} - - - - - 1" in lines
    page = run(*arguments, "-o", "html", stdin=rows).stdout
    runs_with = ALGORITHMS["local-weighted"].runs_with
    name = f'<td>{marked("local-weighted")}</td><td class="text">{runs_with}</td><td>-</td>'
    assert name in page
    compared = run("compare", "local-weighted", "original", "--input", "-", stdin=rows)
    assert "1 (100.0%): only original has a valid result" in compared.stdout


def test_a_sample_of_a_file() -> None:
    """Some rows of a file, always the same for the same seed."""
    rows = "name,a,b\n" + "".join(f"r{n},1 {n},2 {3 * n}\n" for n in range(1, 200))
    arguments = ("--input", "-", "--sample", "20", "--algorithm", "original")
    one = answer(*arguments, stdin=rows)
    assert one["inputs"] == 20
    assert one["algorithms"] == answer(*arguments, stdin=rows)["algorithms"]


def test_options_that_mean_nothing_are_told() -> None:
    """A threshold that no chosen algorithm has is no error, but it is said."""
    arguments = ("--starting-threshold", "2", "--overload-threshold", "0.3", "-o", "json")
    result = run("--input", "-", "--algorithm", "original", *arguments, stdin=ROWS)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "warning: --starting-threshold has no effect on original",
        "warning: --overload-threshold has no effect on original",
    ]


WITHOUT_EXTRA = (
    "import sys; sys.modules['numba'] = sys.modules['numpy'] = None;"
    "from keepclose.cli.main import run; sys.argv[0] = 'keepclose'; run()"
)


def without_extra(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that has neither numpy nor numba."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA, "simulate", *arguments],
        input=ROWS,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_the_extra_files_still_work(tmp_path: Path) -> None:
    """Plain Python reads, simulates and writes the same; named data sets say what they need."""
    out = tmp_path / "out.csv"
    done = without_extra("--input", "-", "--output", str(out), "--algorithm", "local", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"] == 3
    assert out.read_text().splitlines()[2].startswith("small,70.0000,33.3333,")
    done = without_extra("--dataset", "kep2004-small")
    assert done.returncode == 2
    assert done.stderr == (
        "error: data set kep2004-small needs numpy and numba\n"
        "       install the wheel of keepclose with its extra [sim]: docs/howto/install.md\n"
    )


def test_a_set_too_large_for_one_machine_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """The warning names both ways out; a sample of the set is not too large."""
    warn_of_slowness(open_dataset("kep2004-4zones"))
    warned = capsys.readouterr().err
    warn_of_slowness(open_dataset("kep2004-4zones", rows=10))

    assert warned.startswith("warning: 3,299,742,160 inputs take this machine hours or days\n")
    assert "--sample N runs a part of them, --scheduler ADDRESS many machines" in warned
    assert capsys.readouterr().err == ""
