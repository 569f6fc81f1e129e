"""The command `keepclose replay`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from keepclose.advise.replaying.mechanisms import DEFAULT_MECHANISMS, REPLAY_MECHANISMS
from keepclose.advise.replaying.replayed_cluster import MAX_REPLAY_PODS, MAX_REPLAY_STEPS
from keepclose.advise.replaying.scenario import (
    MAX_REPLAY_EVENTS,
    MAX_REPLAY_REPLICAS,
    MAX_REPLAY_S,
)
from keepclose.cli.main import app
from keepclose.cli.replay import scenario_file
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import Kind
from support.server_processes import embedded_server

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "replay"
CLUSTER = str(EXAMPLES / "cluster.yaml")
SCENARIOS = sorted(path for path in EXAMPLES.glob("*.yaml") if path.name != "cluster.yaml")
ROLLOUT = "service: shop/web\nevents:\n  - rollout: {}\n"


def run(*arguments: str, stdin: str | None = None, **env: str) -> Result:
    """Run the command in this process, on a terminal of 80 columns."""
    return CliRunner().invoke(
        app, ["replay", *arguments], input=stdin, env={"COLUMNS": "80", "TERM": "dumb", **env}
    )


def answer(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """Return the answer in JSON."""
    result = run(*arguments, "-f", CLUSTER, "-o", "json", stdin=stdin)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_the_examples_fit_a_terminal(scenario: Path) -> None:
    """Every line has 80 columns at most and no trailing blanks; all mechanisms are compared."""
    result = run(str(scenario), "-f", CLUSTER)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    assert result.stdout.isascii()
    table = [line for line in lines if re.match(r"\S+( \(\S+\))? .* \d\.\d\dx", line)]
    assert [line.split()[0] for line in table] == list(DEFAULT_MECHANISMS)


def test_there_is_an_example_of_each_event() -> None:
    """A rollout, a drain, a zone loss, late labels and autoscaling."""
    events = [event for path in SCENARIOS for event in yaml.safe_load(path.read_text())["events"]]
    kinds = {kind for event in events for kind in event} - {"at"}
    assert kinds == {"rollout", "drain", "zoneLoss", "addNodes", "autoscale"}


def test_the_rollout_of_the_example() -> None:
    """Two pods a zone: no zone is without one, but the busiest has more than its share."""
    document = answer(str(EXAMPLES / "rollout.yaml"), "--mechanism", "PreferSameZone")
    (mechanism,) = document["mechanisms"]
    assert (mechanism["without_zones_seconds"], mechanism["failed"]) == (0.0, 0.0)
    # One of five endpoints serves a third of the traffic.
    assert mechanism["peak"] == pytest.approx(5 / 3)
    # Six pods: each ends, has an address, is gone; the last readiness has a write of its own.
    assert mechanism["slice_writes"] == 19
    assert document["seconds"] == 130.0
    assert [event["what"] for event in document["events"]] == [
        "rollout of web begins",
        "rollout of web is complete",
    ]


def test_the_answer_in_yaml_is_that_in_json() -> None:
    """The same document."""
    scenario = str(EXAMPLES / "drain.yaml")
    result = run(scenario, "-f", CLUSTER, "-o", "yaml")
    assert yaml.safe_load(result.stdout) == answer(scenario)


def test_the_answer_in_markdown() -> None:
    """A heading, a table with a row for each mechanism, and the time line as a block."""
    result = run(str(EXAMPLES / "drain.yaml"), "-f", CLUSTER, "-o", "markdown")
    assert result.exit_code == 0
    assert result.stdout.startswith("### shop/web  upgrade of the nodes of zone-b\n")
    rows = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(DEFAULT_MECHANISMS)
    assert {line.count("|") for line in rows} == {8}
    assert "```text\n" in result.stdout
    assert "- 10 s  drain of n3, n4 begins" in result.stdout


def test_the_same_seed_gives_the_same_output() -> None:
    """And another seed another one, where times are drawn."""
    scenario = str(EXAMPLES / "autoscaling.yaml")
    outputs = [run(scenario, "-f", CLUSTER, "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_every_process_gives_the_same_output(scenario: Path) -> None:
    """To the last digit, however Python orders sets of texts."""
    outputs = {
        subprocess.run(
            [
                sys.executable,
                "-m",
                "keepclose",
                "replay",
                str(scenario),
                "-f",
                CLUSTER,
                "-o",
                "json",
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONHASHSEED": number},
        ).stdout
        for number in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_a_scenario_from_standard_input() -> None:
    """With the objects in a file."""
    document = answer("-", "--mechanism", "none", stdin=ROLLOUT)
    assert [each["name"] for each in document["mechanisms"]] == ["none"]


def test_only_services_of_the_namespace_count() -> None:
    """As in the other commands; a scenario that names another one is bad input."""
    example = str(EXAMPLES.parent / "three-zones.yaml")
    drain = "events: [{at: 1s, drain: {zone: zone-a}}]"
    arguments = ("-", "-f", example, "--mechanism", "as-is")
    assert run(*arguments, "-n", "kube-system", stdin=drain).stdout.startswith("kube-system/dns\n")
    whole = run(*arguments, "-A", stdin=drain)
    assert whole.exit_code == 2
    assert "has 3 with a selector" in whole.stderr
    other = run(*arguments, "-n", "kube-system", stdin=ROLLOUT)
    assert other.exit_code == 2
    assert "-n kube-system: the Service is named with another namespace, shop/web" in other.stderr


def test_a_service_without_a_namespace_is_in_that_of_the_option() -> None:
    """As with kubectl."""
    plain = ROLLOUT.replace("shop/web", "web")
    assert run("-", "-f", CLUSTER, stdin=plain).exit_code == 2
    assert run("-", "-f", CLUSTER, "-n", "shop", stdin=plain).exit_code == 0


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "service: shop/web\nevents:\n  - at: 5s\n    rolout: {}\n",
            [
                "error: events[0].rolout: unknown field",
                "       in {file}, line 4",
                "       did you mean rollout?",
            ],
            id="unknown field",
        ),
        pytest.param(
            "service: shop/web\nevents:\n  - at: later\n    rollout: {}\n",
            [
                'error: events[0].at: Invalid value: "later": expected a duration such as 90s',
                "       in {file}, line 3",
            ],
            id="duration",
        ),
        pytest.param(
            "service: shop/web\nevents:\n  - scale: {replicas: many}\n",
            [
                'error: events[0].scale.replicas: Invalid value: "many": expected a number',
                "       in {file}, line 3",
            ],
            id="type",
        ),
        pytest.param(
            "events:\n  - rollout: {}\nservice: shop/wep\n",
            [
                "error: service: no Service shop/wep in the input",
                "       in {file}, line 3",
                "       did you mean shop/web?",
            ],
            id="unknown Service",
        ),
        pytest.param(
            "service: shop/web\nevents:\n  - drain: {zone: zone-d}\n",
            [
                "error: events[0].drain.zone: no node is in zone zone-d",
                "       in {file}, line 3",
                "       did you mean zone-c or zone-b?",
            ],
            id="unknown zone",
        ),
        pytest.param(
            "service: [\n",
            ["error: not valid YAML: expected a value", "       in {file}, line 2, column 1"],
            id="no YAML",
        ),
        pytest.param(
            "a: 1\n---\nb: 2\n",
            ["error: expected one scenario, got 2", "       in {file}"],
            id="two documents",
        ),
        pytest.param(
            "- 1\n",
            ["error: expected a map", "       in {file}, line 1"],
            id="a list",
        ),
    ],
)
def test_errors_name_file_field_and_fix(text: str, want: list[str], tmp_path: Path) -> None:
    """With exit code 2, and nothing on standard output."""
    file = tmp_path / "scenario.yaml"
    file.write_text(text)
    result = run(str(file), "-f", CLUSTER)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    for shown, line in zip(lines, want, strict=False):
        assert shown.startswith(line.format(file=file))


def test_other_errors(tmp_path: Path) -> None:
    """A missing file, an unknown mechanism, standard input twice, no Deployment."""
    missing = run(str(tmp_path / "none.yaml"), "-f", CLUSTER)
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (2, True)
    unknown = run("-", "-f", CLUSTER, "--mechanism", "PreferSameZon", stdin=ROLLOUT)
    assert unknown.exit_code == 2
    assert unknown.stderr.splitlines() == [
        "error: --mechanism: there is no mechanism PreferSameZon",
        "       did you mean PreferSameZone or PreferSameNode?",
    ]
    assert run("-", "-f", "-", stdin=ROLLOUT).exit_code == 2
    broken = tmp_path / "broken.yaml"
    broken.write_text(Path(CLUSTER).read_text().replace("  replicas: 6\n", "  replicas: six\n"))
    refused = run("-", "-f", str(broken), stdin=ROLLOUT)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[0] == (
        'error: Deployment shop/web: spec.replicas: Invalid value: "six": expected a number, '
        "got a string"
    )


def test_text_from_outside_cannot_control_a_terminal(tmp_path: Path) -> None:
    """Names in scenarios and objects are shown with escapes, in every format for people."""
    file = tmp_path / "scenario.yaml"
    file.write_text('name: "\\x1b[31mred\\nline"\n' + ROLLOUT)
    for output in ("table", "markdown"):
        shown = run(str(file), "-f", CLUSTER, "-o", output).stdout
        assert "\x1b" not in shown
        assert "red" in shown
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text('"\\x1b[31m": 1\n' + ROLLOUT)
    assert "\x1b" not in run(str(wrong), "-f", CLUSTER).output


def test_help_states_the_limits_and_the_mechanisms() -> None:
    """As the code has them."""
    text = " ".join(run("--help").stdout.split())
    assert (
        f"At most {MAX_REPLAY_S / 3600:g} h, {MAX_REPLAY_EVENTS} events, "
        f"{MAX_REPLAY_REPLICAS:,} replicas, {MAX_REPLAY_PODS:,} new pods and "
        f"{MAX_REPLAY_STEPS:,} steps."
    ) in text
    assert all(mechanism.name in text for mechanism in REPLAY_MECHANISMS)


def test_pods_without_a_deployment_are_noted() -> None:
    """What is assumed of them is said on standard error."""
    cluster = str(EXAMPLES.parent / "three-zones.yaml")
    result = run("-", "-f", cluster, stdin=ROLLOUT)
    assert result.exit_code == 0
    assert result.stderr == (
        "note: 3 pods without an owner are replayed as a Deployment with surge and unavailability "
        "of 25 %\n"
    )


KINDS: dict[str, Kind[Any]] = {
    "Node": Kind("", "v1", "nodes", "Node", False, dict),
    "Pod": Kind("", "v1", "pods", "Pod", True, dict),
    "Service": Kind("", "v1", "services", "Service", True, dict),
    "Deployment": Kind("apps", "v1", "deployments", "Deployment", True, dict),
}


async def create_objects(kubeconfig: Path, text: str) -> None:
    """Create the objects of a manifest on a cluster, with their statuses."""
    documents = list(yaml.safe_load_all(text))
    objects = [item for document in documents for item in document.get("items", [document])]
    namespaces: Kind[Any] = Kind("", "v1", "namespaces", "Namespace", False, dict)
    async with connect(load_connection_settings(kubeconfig), clock=SystemClock()) as client:
        await client.create(namespaces, {"metadata": {"name": "shop"}})
        for body in objects:
            kind = KINDS.get(body["kind"])
            if kind is None:
                continue
            name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")
            status = {"status": body.pop("status", {})}
            if kind.kind == "Pod":
                body["spec"]["containers"] = [{"name": "web", "image": "web"}]
            await client.create(kind, body, namespace=namespace)
            if status["status"]:
                await client.patch(kind, name, status, namespace=namespace, subresource="status")


def test_a_live_cluster_gives_the_same_answer_as_files(tmp_path: Path) -> None:
    """Read from an API server, with its Deployment; a kind that it lacks is named as a gap."""
    scenario = str(EXAMPLES / "rollout.yaml")
    with embedded_server(tmp_path / "data") as server:
        asyncio.run(create_objects(server.kubeconfig, Path(CLUSTER).read_text()))
        live = run(scenario, "--kubeconfig", str(server.kubeconfig), "-o", "json")
    assert live.exit_code == 0, live.output
    assert "warning: PodDisruptionBudget: " in live.stderr
    assert json.loads(live.stdout) == answer(scenario)


def test_only_shown_problems_are_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To find a line, the text is parsed again: of thousands of problems few are shown."""
    located: list[str] = []

    def locate(*arguments: Any) -> int:
        located.append(str(arguments[1]))
        return 1

    monkeypatch.setattr(scenario_file, "line_of", locate)
    path = tmp_path / "scenario.yaml"
    path.write_text("".join(f"key{number}: 1\n" for number in range(2000)))
    with pytest.raises(typer.Exit):
        scenario_file.read_scenario_file(str(path))
    assert 0 < len(located) <= scenario_file.MAX_SHOWN_PROBLEMS
