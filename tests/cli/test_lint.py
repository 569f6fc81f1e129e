"""The command `keepclose lint`: input, options, exit codes and all forms of output."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from typer.testing import CliRunner, Result

from keepclose.advise.linting.rules import RULES
from keepclose.cli.main import app
from support.lint_cases import AUTO, CASES, GONE, Change, autoscaler, manifests, to_yaml
from support.sarif import find_mistakes
from support.server_processes import Embedded, embedded_server

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "lint" / "shop.yaml"
HOSTILE = "x\x1b[31m\x07\u202eevil\u2066\n| <img src=x> [a](http://e) @all `\ud83d\ude00` ]]> &"
BROKEN: tuple[Change, ...] = (
    ("deployment", "spec/replicas", 2),
    ("service", "spec/sessionAffinity", "ClientIP"),
    ("service", "spec/ports/0/targetPort", "htpp"),
    ("deployment", "metadata/annotations", {"lint.keepclose.dev/KC103": "a test cluster"}),
)


UNPLAYED = ("--skip", "KC301", "--skip", "KC302")


def lint(*arguments: str, stdin: str | None = None, plays: bool = False) -> Result:
    """Run the command in this process, on a terminal of 80 columns, without a cluster.

    Rollouts and drains take most of its time, so they are played only where a test is about them.
    """
    arguments = (*arguments, *(() if plays else UNPLAYED))
    env = {
        "COLUMNS": "80",
        "TERM": "dumb",
        "HOME": "/nonexistent",
        "KUBECONFIG": "",
        "KEEPCLOSE_DATA_DIR": "/nonexistent/lab",
    }
    return CliRunner().invoke(app, ["lint", *arguments], input=stdin, env=env)


def written(tmp_path: Path, *changes: Change) -> str:
    """Return a file with the changed manifests."""
    file = tmp_path / "web.yaml"
    file.write_text(to_yaml(manifests(*changes)))
    return str(file)


def rules_in(result: Result) -> list[str]:
    """Return the rules of the findings in JSON output."""
    assert result.exit_code in (0, 1), result.output
    return [finding["rule"] for finding in json.loads(result.stdout)["findings"]]


def test_what_is_fine_says_so(tmp_path: Path) -> None:
    """No findings is exit code 0, with the counts and what was played."""
    result = lint(written(tmp_path), plays=True)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "no findings in 1 Service"
    words = " ".join(result.stdout.split())
    assert "100 % of 40 played rollouts and 100 % of 360 played drains of a node keep" in words


def test_a_finding_has_rule_object_place_and_fix(tmp_path: Path) -> None:
    """Each in a line of its own, errors first; lines fit 80 columns but for places and fixes."""
    file = written(tmp_path, *BROKEN)
    result = lint(file)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:4] == [
        "✗ error   KC402 unknown-target-port  shop/web",
        "      no container has a TCP port named 'htpp'; there are: http",
        f"in    {file}:{line_in(file, 'targetPort: htpp')}  spec.ports[0].targetPort",
        "fix   did you mean http?",
    ]
    assert lines[-1] == "1 error, 1 note in 1 Service; 1 suppressed"
    assert all(len(line) <= 80 for line in lines if not line.startswith(("in ", "fix ")))


def line_in(file: str, text: str) -> int:
    """Return the first line of a file that has a text, from 1."""
    lines = Path(file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param((), 1, id="a warning fails by default"),
        pytest.param(("--fail-on", "error"), 0, id="a warning does not where errors fail"),
        pytest.param(("--fail-on", "never"), 0, id="nothing fails where never is asked for"),
        pytest.param(("--skip", "KC002"), 0, id="a rule that is skipped finds nothing"),
        pytest.param(("--rule", "KC101"), 0, id="other rules find nothing"),
        pytest.param(("--rule", "KC002"), 1, id="the only rule finds something"),
    ],
)
def test_severity_decides_about_the_exit_code(
    arguments: tuple[str, ...], want: int, tmp_path: Path
) -> None:
    """--fail-on sets the least severity of a failure."""
    file = written(tmp_path, *CASES["KC002"][0])
    assert lint(file, *arguments).exit_code == want


def test_information_fails_only_on_request(tmp_path: Path) -> None:
    """A note is no failure."""
    file = written(tmp_path, *CASES["KC011"][0])
    assert lint(file).exit_code == 0
    assert lint(file, "--fail-on", "info").exit_code == 1


def test_limits_of_the_command_line(tmp_path: Path) -> None:
    """The three gates fail with errors of their own."""
    file = written(tmp_path, ("deployment", "spec/replicas", 4))
    limits = ("--max-load", "1.3", "--min-ready-per-zone", "2", "--min-in-zone", "100")
    found = rules_in(lint(file, *limits, "-o", "json"))
    assert [rule for rule in found if rule.startswith("KC5")] == ["KC502", "KC503"]


def test_zones_are_assumed_as_asked(tmp_path: Path) -> None:
    """--zones changes what replicas mean."""
    file = written(tmp_path, ("deployment", "spec/replicas", 3))
    assert "KC103" not in rules_in(lint(file, "-o", "json"))
    result = lint(file, "--zones", "4", "-o", "json")
    assert "KC103" in rules_in(result)
    assert json.loads(result.stdout)["basis"] == "on 4 assumed zones of 3 equal nodes each"


def test_output_of_helm_and_kustomize_is_read_from_standard_input() -> None:
    """Documents with comments of Helm, empty ones among them, and objects without a namespace."""
    objects = manifests(("service", "spec/ports/0/targetPort", "htpp"))
    for each in objects.values():
        del each["metadata"]["namespace"]
    text = "".join(
        f"---\n# Source: web/templates/{name}.yaml\n{yaml.safe_dump(each)}"
        for name, each in objects.items()
    )
    result = lint("-f", "-", "-o", "json", stdin=f"---\n# Source: web/templates/empty.yaml\n{text}")
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["object"] == {"kind": "Service", "namespace": "default", "name": "web"}
    assert finding["place"]["file"] == "-"
    assert finding["place"]["line"] > 1


def test_a_list_of_kubectl_is_read(tmp_path: Path) -> None:
    """The items of a List count as objects, in JSON too, with the place of each."""
    file = tmp_path / "all.json"
    items = list(manifests(("service", "spec/ports/0/targetPort", "htpp")).values())
    document = {"apiVersion": "v1", "kind": "List", "items": items}
    file.write_text(json.dumps(document, indent=1))
    (finding,) = json.loads(lint(str(file), "-o", "json").stdout)["findings"]
    place = finding["place"]
    assert "htpp" in file.read_text().splitlines()[place["line"] - 1]
    assert place["item"] == 0


def test_other_kinds_are_skipped_with_one_note(tmp_path: Path) -> None:
    """However many there are; the note names the kinds."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    changes: list[Change] = [("c1", "", config), ("c2", "", config), ("s", "", secret)]
    result = lint(written(tmp_path, *changes))
    assert result.exit_code == 0
    assert result.stderr == "note: 3 objects of other kinds skipped: ConfigMap, Secret\n"


def test_nothing_to_lint_is_a_code_of_its_own(tmp_path: Path) -> None:
    """So that a pipeline with a wrong path does not pass; --allow-empty is for hooks."""
    file = tmp_path / "c.yaml"
    file.write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}")
    result = lint(str(file))
    assert result.exit_code == 3
    assert result.stderr.startswith("note: 1 object of other kinds skipped: ConfigMap\nerror: ")
    assert lint(str(file), "--allow-empty").exit_code == 0


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param(
            [("deployment", "spec/replicas", "4")],
            'error: Deployment shop/web: spec.replicas: Invalid value: "4": expected a number, '
            "got a string",
            id="a number in quotes",
        ),
        pytest.param(
            [("deployment", "spec/template/spec/containers/0/ports", {"a": 1})],
            "error: Deployment shop/web: spec.template.spec.containers[0].ports: Invalid value",
            id="a map in place of a list, deep in the template",
        ),
        pytest.param(
            [("deployment", "spec/template", [])],
            "error: Deployment shop/web: spec.template: Invalid value",
            id="a list in place of the template",
        ),
    ],
)
def test_what_cannot_be_read_is_bad_input(changes: list[Change], want: str, tmp_path: Path) -> None:
    """The problem names object, field and line, and ends the command."""
    result = lint(written(tmp_path, *changes))
    assert result.exit_code == 2
    assert result.stderr.startswith(want)
    assert re.search(r"in .*web\.yaml, document 2, line \d+", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(("--rule", "kc101"), "--rule: no rule kc101", id="a rule in lower case"),
        pytest.param(("--skip", "KC999"), "--skip: no rule KC999", id="a rule that is not"),
        pytest.param(("--kubeconfig", "x"), "--file: name files or a cluster", id="both sources"),
        pytest.param(("-n", "a", "-A"), "--all-namespaces: name one", id="one and all namespaces"),
        pytest.param(("--feature-gates", "X=true"), "--feature-gates: ", id="an unknown gate"),
    ],
)
def test_wrong_options_are_named(arguments: tuple[str, ...], want: str, tmp_path: Path) -> None:
    """Exit code 2, before anything is printed as an answer."""
    result = lint(written(tmp_path), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {want}")


def test_without_files_and_cluster_the_error_names_both() -> None:
    """A command without input cannot answer."""
    result = lint()
    assert result.exit_code == 4
    assert "-f" in result.stderr
    assert "--kubeconfig" in result.stderr


def test_only_a_namespace_is_linted(tmp_path: Path) -> None:
    """Objects of other namespaces count as absent."""
    other = manifests(("service", "metadata/namespace", "other"))["service"]
    other["metadata"]["name"] = "lonely"
    file = written(tmp_path, ("other", "", other))
    assert rules_in(lint(file, "-o", "json", "--rule", "KC401")) == ["KC401"]
    assert rules_in(lint(file, "-o", "json", "-n", "shop")) == []
    assert lint(file, "-n", "none").exit_code == 3


def test_nodes_alone_are_nothing_of_a_namespace() -> None:
    """A pipeline with a namespace that is misspelt does not pass."""
    example = str(Path(__file__).parent.parent.parent / "examples" / "three-zones.yaml")
    result = lint(example, "-n", "shpo")
    assert result.exit_code == 3
    assert "nothing to lint of namespace shpo" in result.stderr
    assert lint(example, "-n", "shpo", "--allow-empty").exit_code == 0


def test_a_gate_that_is_on_is_no_finding(tmp_path: Path) -> None:
    """--feature-gates says what the cluster has."""
    file = written(tmp_path, *CASES["KC012"][0])
    gate = "TrafficDistributionCustomHeuristics=true"
    assert "KC012" in rules_in(lint(file, "-o", "json"))
    assert "KC012" not in rules_in(lint(file, "-o", "json", "--feature-gates", gate))


def test_yaml_says_the_same_as_json(tmp_path: Path) -> None:
    """The two forms for programs carry the same data."""
    file = written(tmp_path, *BROKEN)
    as_json = json.loads(lint(file, "-o", "json").stdout)
    assert yaml.safe_load(lint(file, "-o", "yaml").stdout) == as_json
    assert as_json["counts"] == {"error": 1, "warning": 0, "info": 1}
    (suppressed,) = as_json["suppressed"]
    assert (suppressed["rule"], suppressed["reason"]) == ("KC103", "a test cluster")


def test_shares_and_advice_are_in_json(tmp_path: Path) -> None:
    """Programs get the counts that the table says in words."""
    document = json.loads(lint(written(tmp_path), "-o", "json", plays=True).stdout)
    (kept,) = document["promises"]
    assert kept["workload"] == "Deployment shop/web"
    assert kept["rollouts"] == {"kept": 40, "played": 40, "stuck": 0}
    (advice,) = document["advice"]
    assert (advice["replicas"], advice["maxLoad"]) == (9, 1.2)
    assert advice["withinMaxLoad"] == [9, 10, 12, 13, 14, 15]


def test_sarif_follows_its_schema(tmp_path: Path) -> None:
    """Rules with indexes, levels, places with lines, and suppressions with their reason."""
    file = written(tmp_path, *BROKEN)
    log = json.loads(lint(file, "-o", "sarif").stdout)
    assert find_mistakes(log) == []
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    results = {result["ruleId"]: result for result in run["results"]}
    assert {rule: each["level"] for rule, each in results.items()} == {
        "KC402": "error",
        "KC011": "note",
        "KC103": "warning",
    }
    (location,) = results["KC402"]["locations"]
    physical = location["physicalLocation"]
    assert physical["artifactLocation"]["uri"].endswith("/web.yaml")
    assert physical["region"]["startLine"] == line_in(file, "targetPort: htpp")
    assert results["KC103"]["suppressions"] == [
        {"kind": "inSource", "justification": "a test cluster"}
    ]


def test_sarif_names_files_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub matches them with the files of the repository; odd names are encoded."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "deploy" / "a b#1:ü.yaml"
    file.parent.mkdir()
    file.write_text(to_yaml(manifests(*CASES["KC002"][0])))
    for name in (str(file), "deploy/a b#1:ü.yaml"):
        log = json.loads(lint(name, "-o", "sarif").stdout)
        assert find_mistakes(log) == []
        (result,) = log["runs"][0]["results"]
        (location,) = result["locations"]
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert uri == "deploy/a%20b%231%3A%C3%BC.yaml"


def test_a_finding_keeps_its_fingerprint_when_lines_move(tmp_path: Path) -> None:
    """A pipeline recognizes a finding that it has shown before."""
    text = to_yaml(manifests(*CASES["KC002"][0]))
    prints, lines = set(), set()
    for before in ("", "# a comment\n\n"):
        file = tmp_path / "web.yaml"
        file.write_text(before + text)
        (result,) = json.loads(lint(str(file), "-o", "sarif").stdout)["runs"][0]["results"]
        prints.add(result["partialFingerprints"]["keepcloseFinding/v1"])
        lines.add(result["locations"][0]["physicalLocation"]["region"]["startLine"])
    assert (len(prints), len(lines)) == (1, 2)


def test_the_check_of_sarif_finds_mistakes() -> None:
    """What follows no schema is reported, so that the tests above mean something."""
    good: dict[str, Any] = {
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "k"}}, "results": []}],
    }
    assert find_mistakes(good) == []
    assert find_mistakes({**good, "version": "2.0.0"})
    bad_result = {"ruleId": "A", "ruleIndex": 0, "message": {"text": ""}, "line": 1}
    run = {"tool": {"driver": {"name": "k", "rules": [{"id": "B"}]}}, "results": [bad_result]}
    assert len(find_mistakes({**good, "runs": [run]})) == 3


def test_junit_is_xml_with_a_failure_for_each_failing_finding(tmp_path: Path) -> None:
    """Notes pass with their text, suppressed findings are skipped."""
    root = ET.fromstring(lint(written(tmp_path, *BROKEN), "-o", "junit").stdout)  # noqa: S314
    assert root.tag == "testsuites"
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    by_rule = {str(case.get("classname"))[:5]: [part.tag for part in case] for case in suite}
    assert by_rule == {"KC402": ["failure"], "KC011": ["system-out"], "KC103": ["skipped"]}
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "no container has a TCP port named 'htpp'; there are: http"


def test_junit_without_findings_has_a_test_that_passes(tmp_path: Path) -> None:
    """Pipelines reject a report without tests."""
    root = ET.fromstring(lint(written(tmp_path), "-o", "junit").stdout)  # noqa: S314
    assert [case.get("name") for case in root.iter("testcase")] == ["no findings"]
    assert list(root.iter("failure")) == []


def test_markdown_is_a_table(tmp_path: Path) -> None:
    """Five columns in each row."""
    text = lint(written(tmp_path, *BROKEN), "-o", "markdown").stdout
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert "- KC103 Deployment shop\\/web\\: a test cluster" in text


HOSTILE_CHANGES: list[Change] = [
    ("service", "spec/ports/0/targetPort", HOSTILE),
    ("service", "metadata/annotations", {"service.kubernetes.io/topology-mode": HOSTILE}),
    ("deployment", "spec/replicas", 2),
    ("deployment", "metadata/name", HOSTILE),
    (
        "deployment",
        "metadata/annotations",
        {"lint.keepclose.dev/KC103": HOSTILE, f"lint.keepclose.dev/{HOSTILE}": "x"},
    ),
]


@pytest.mark.parametrize("form", ["table", "json", "yaml", "sarif", "junit", "markdown"])
def test_hostile_texts_are_shown_and_not_obeyed(form: str, tmp_path: Path) -> None:
    """No control character of an object leaves the command, in any form."""
    file = tmp_path / "web.json"
    items = list(manifests(*HOSTILE_CHANGES).values())
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    result = lint(str(file), "-o", form)
    assert result.exit_code == 1
    for char in "\x1b\x07\u202e\u2066":
        assert char not in result.stdout + result.stderr
    assert "evil" in result.stdout
    if form == "sarif":
        assert find_mistakes(json.loads(result.stdout)) == []
    if form == "junit":
        root = ET.fromstring(result.stdout)  # noqa: S314
        assert any("evil" in str(case.get("name")) for case in root.iter("testcase"))
    if form == "markdown":
        assert set(re.findall(r"(?<!\\)<[^>]*>", result.stdout)) == {"<span>", "</span>"}
        assert not re.search(r"(?<!\\)(?:\[a|\]\(|`)|@all", result.stdout)


def test_ascii_output_of_xml_keeps_its_meaning(tmp_path: Path) -> None:
    """Where the locale has no UTF-8, XML has references instead of letters."""
    file = written(tmp_path, ("service", "spec/ports/0/targetPort", "hüpp"))
    done = subprocess.run(
        [sys.executable, "-m", "keepclose", "lint", file, "-o", "junit"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    failures = ET.fromstring(done.stdout.decode("ascii")).iter("failure")  # noqa: S314
    assert all("hüpp" in str(failure.get("message")) for failure in failures)
    assert b"h&#252;pp" in done.stdout


def test_the_example_shows_both_kinds_of_findings() -> None:
    """The file that the how-to lints has errors, warnings and a suppression."""
    document = json.loads(lint(str(EXAMPLE), "-o", "json").stdout)
    assert document["counts"]["error"]
    assert document["counts"]["warning"]
    assert [each["rule"] for each in document["suppressed"]] == ["KC102"]


@pytest.mark.parametrize("anonymize", [(), ("--anonymize", "--salt", "s")], ids=["plain", "hashed"])
def test_a_snapshot_gives_the_findings_of_its_cluster(
    anonymize: tuple[str, ...], tmp_path: Path
) -> None:
    """Everything that rules read is in it, anonymized or not."""
    changes = (
        *AUTO,
        ("autoscaler", "", autoscaler(4, 8)),
        ("budget", "spec/maxUnavailable", "90%"),
        ("deployment", "spec/template/spec/containers/0/readinessProbe", GONE),
        ("deployment", "metadata/annotations", {"lint.keepclose.dev/KC205": "on purpose"}),
        ("deployment", "spec/template/spec/topologySpreadConstraints/0/matchLabelKeys", GONE),
    )
    file = written(tmp_path, *changes)
    snapshot = str(tmp_path / "snapshot.json")
    written_snapshot = CliRunner().invoke(
        app, ["snapshot", "-f", file, "-o", snapshot, *anonymize], env={"KUBECONFIG": ""}
    )
    assert written_snapshot.exit_code == 0, written_snapshot.output
    want, got = lint(file, "-o", "json"), lint(snapshot, "-o", "json")
    assert rules_in(got) == rules_in(want) == ["KC105", "KC305", "KC306"]
    assert [each["rule"] for each in json.loads(got.stdout)["suppressed"]] == ["KC205"]


def test_a_cluster_is_linted(tmp_path: Path) -> None:
    """The objects of an API server give the findings of the same files, without places.

    Our server has no budgets, so that none is missing.
    """
    with embedded_server(tmp_path / "data") as server:
        objects = manifests(("service", "spec/trafficDistribution", "PreferClose"))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
        create(server, [namespace, objects["service"], objects["deployment"]])
        arguments = ("--kubeconfig", str(server.kubeconfig), "-n", "shop", "-o", "json")
        result = lint(*arguments)
        assert rules_in(result) == ["KC002"]
        (finding,) = json.loads(result.stdout)["findings"]
        assert "place" not in finding
        assert json.loads(result.stdout)["source"] == server.url
        assert "warning: PodDisruptionBudget: the cluster does not serve" in result.stderr


def create(server: Embedded, objects: list[dict[str, Any]]) -> None:
    """Create objects at an API server."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for each in objects:
        group = each["apiVersion"]
        base = f"{server.url}/apis/{group}" if "/" in group else f"{server.url}/api/{group}"
        namespace = each["metadata"].get("namespace")
        path = f"/namespaces/{namespace}" if namespace else ""
        request = urllib.request.Request(
            f"{base}{path}/{each['kind'].lower()}s",
            json.dumps(each).encode(),
            {"Authorization": f"Bearer {server.token()}", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, context=context).close()
