"""Runs the algorithms of `keepclose simulate`, and writes results, reports and examples to files.

No output file may overwrite the input or another output. Examples of a comparison become manifests,
so that `keepclose resolve` can explain them endpoint by endpoint: each input is a cluster in a file
of its own, and its Service requests the mechanism that is nearest to the algorithm. All names in
manifests are generated here; no text from outside gets into a field.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from keepclose.cli.exit import ExitCode, fail
from keepclose.cli.render.output import echo_document, say
from keepclose.cli.render.progress import shown_progress
from keepclose.cli.render.simulate_html import COMPARED_ROWS, SimulationReport, render_report
from keepclose.cli.simulate_options import AlgorithmChoice, SchedulerChoice, warn_of_slowness
from keepclose.model.gates import Gate
from keepclose.model.well_known import (
    EXCLUDED_NODE_LABELS,
    PREFER_SAME_ZONE,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
    ZONE_LABEL,
)
from keepclose.routing.subsets import Approach
from keepclose.simulate.algorithms import Algorithm
from keepclose.simulate.churn import compare_churn
from keepclose.simulate.comparison import Comparison, Example, compare
from keepclose.simulate.csv.outputs import write_results
from keepclose.simulate.datasets import DataSet, MissingExtraError, Sample
from keepclose.simulate.engine import run_simulation
from keepclose.simulate.mechanisms import MECHANISMS, SCENARIOS
from keepclose.simulate.summary import Summary, Weights
from keepclose.system.files import open_output

REPORTED_SCENARIO = SCENARIOS["mixed"]
EXAMPLE_NAMESPACE: Final = "example"
_READY: Final = [{"type": "Ready", "status": "True"}]
_WORKER: Final = {"allocatable": {"cpu": "4"}, "conditions": _READY}
_MAX_CHARACTERS: Final = 63


class _MechanismRequest(msgspec.Struct, frozen=True):
    """The fields by which a Service requests a mechanism, and the gate that this needs."""

    annotations: dict[str, str] = {}
    distribution: str | None = None
    gate: Gate | None = None


_REQUESTS: Final = {
    "same-zone": _MechanismRequest(distribution=PREFER_SAME_ZONE),
    "kube-auto": _MechanismRequest({TOPOLOGY_MODE_ANNOTATION: "Auto"}),
    "local": _MechanismRequest(
        {SUBSETTING_ANNOTATION: Approach.PREFER.value}, gate=Gate.TOPOLOGY_AWARE_SUBSETTING
    ),
    "balanced": _MechanismRequest(
        {TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"},
        gate=Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    ),
}


def name_outputs(output: str | None, choices: Sequence[AlgorithmChoice]) -> list[Path]:
    """Return the result file of each algorithm; empty without an output option."""
    if output is None:
        return []
    path = Path(output)
    if len(choices) == 1:
        return [path]
    # NB: a name such as / or .. has no stem to append to.
    if not path.name:
        fail(f"--output: {output} names no file")
    return [path.with_name(f"{path.stem}-{choice.slug}{path.suffix}") for choice in choices]


def refuse_overwriting(source: str | None, outputs: Sequence[Path], report: str | None) -> None:
    """End the command if a file would overwrite the input or another output."""
    if report is not None and any(is_same_file(Path(report), output) for output in outputs):
        fail("--report would overwrite the file of --output")
    if source is None:
        return
    if any(is_same_file(Path(source), output) for output in outputs):
        fail("--output would overwrite the file of --input")
    if report is not None and is_same_file(Path(source), Path(report)):
        fail("--report would overwrite the file of --input")


def run_algorithms(
    data: DataSet,
    choices: Sequence[AlgorithmChoice],
    weights: Weights,
    *,
    outputs: Sequence[Path] = (),
    scheduler: SchedulerChoice | None = None,
) -> list[Summary]:
    """Return the summaries; with output files, write the results of every input too.

    With a scheduler the workers of a Dask cluster compute them, otherwise this process does.
    """
    algorithms = [choice.algorithm for choice in choices]
    if scheduler is not None:
        return _run_on_cluster(data, algorithms, weights, scheduler)
    warn_of_slowness(data)
    with shown_progress(data.rows, "inputs") as advance:
        if not outputs:
            return run_simulation(data, algorithms, weights=weights, progress=advance)
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(open_output(output)) for output in outputs]
                written = list(zip(algorithms, files, strict=True))
                return write_results(data, written, weights=weights, progress=advance)
        except BrokenPipeError:
            raise
        except OSError as error:
            fail(f"{error.filename or outputs[0]} cannot be written: {error.strerror}")


def _run_on_cluster(
    data: DataSet, algorithms: Sequence[Algorithm], weights: Weights, scheduler: SchedulerChoice
) -> list[Summary]:
    from keepclose.simulate.sweep import run_sweep
    from keepclose.simulate.sweep_cluster import SweepError, SweepFault

    try:
        with shown_progress(data.rows, "inputs") as advance:
            return run_sweep(
                data,
                algorithms,
                scheduler=scheduler.address,
                weights=weights,
                worker_wait_s=scheduler.timeout_s,
                progress=advance,
            )
    except MissingExtraError as error:
        fail(str(error).partition(";")[0], error.fix)
    except SweepError as error:
        is_absent = error.fault in {SweepFault.UNREACHABLE, SweepFault.NO_WORKERS}
        code = ExitCode.UNREACHABLE if is_absent else ExitCode.BAD_INPUT
        fail(f"--scheduler: {error}", error.fix, code=code)


def make_report(
    data: DataSet,
    choices: Sequence[AlgorithmChoice],
    summaries: Sequence[Summary],
    weights: Weights,
    *,
    seconds: float,
    seed: int,
) -> SimulationReport:
    """Return the content of the page: the summaries, the best against the others, and churn."""
    compared = data
    if data.rows > COMPARED_ROWS:
        compared = Sample(data, rows=COMPARED_ROWS, seed=seed)
    means = {
        index: summary.figures.total.mean
        for index, summary in enumerate(summaries)
        if summary.figures is not None
    }
    best = max(means, key=means.__getitem__, default=0)
    named = [replace(choice.algorithm, name=choice.marked) for choice in choices]
    return SimulationReport(
        command=shlex.join(["keepclose", *sys.argv[1:]]),
        choices=choices,
        summaries=summaries,
        dataset=data,
        seconds=seconds,
        comparisons=[
            compare(compared, named[best], named[index], weights=weights)
            for index in means
            if index != best
        ],
        compared_rows=compared.rows,
        scenario=REPORTED_SCENARIO,
        churns=compare_churn(MECHANISMS.values(), REPORTED_SCENARIO, seed),
    )


def write_report(report: SimulationReport, file: str | None, *, to_stdout: bool) -> None:
    """Write the page into a file, to standard output, or both."""
    page = render_report(report)
    if file is not None:
        try:
            with open_output(Path(file)) as stream:
                stream.write(page.encode())
        except BrokenPipeError:
            raise
        except OSError as error:
            fail(f"{file} cannot be written: {error.strerror}")
        say(f"report written to {file}", err=True)
    if to_stdout:
        echo_document(page)


def write_examples(folder: Path, comparison: Comparison) -> list[str]:
    """Write a manifest for each example of a comparison; return the commands that resolve them.

    Creates the folder. Raises OSError when a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request = _find_request(comparison)
    gates = f" --feature-gates {request.gate}=true" if request.gate else ""
    commands = []
    for side, examples in (
        (comparison.first, comparison.best),
        (comparison.second, comparison.worst),
    ):
        for number, example in enumerate(examples, 1):
            name = f"{side}-{number}"
            file = folder / f"{name}.yaml"
            command = f"keepclose resolve -f {file}{gates}"
            text = _render(example, comparison, name=name, request=request, command=command)
            file.write_text(text, encoding="utf-8")
            commands.append(command)
    return commands


def name_zones(zones: Sequence[str]) -> list[str]:
    """Return a different valid label value for each zone."""
    names: list[str] = []
    for zone in zones:
        name = re.sub(r"[^a-z0-9]+", "-", zone.lower()).strip("-")[: _MAX_CHARACTERS - 8]
        name = name.strip("-") or "zone"
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def is_same_file(first: Path, second: Path) -> bool:
    """Return whether two paths name one file; a device or a pipe holds nothing to overwrite."""
    if first == second:
        return not first.exists() or first.is_file()
    try:
        return first.is_file() and first.samefile(second)
    except (OSError, ValueError):
        return False


def _find_request(comparison: Comparison) -> _MechanismRequest:
    """Return the mechanism of the first algorithm that has one, or an empty request."""
    for algorithm in (comparison.first, comparison.second):
        if algorithm in _REQUESTS:
            return _REQUESTS[algorithm]
    return _MechanismRequest()


def _render(
    example: Example,
    comparison: Comparison,
    *,
    name: str,
    request: _MechanismRequest,
    command: str,
) -> str:
    scores = (
        f"{comparison.first} {example.first[0]:.2f}, {comparison.second} {example.second[0]:.2f}"
    )
    lines = [
        f"# {_in_one_line(example.label)}: {scores}",
        f"# {command}",
        "apiVersion: v1",
        "kind: List",
        "items:",
    ]
    zones = name_zones(comparison.zones)
    objects = [*_make_nodes(example, zones, name), _make_service(name, request)]
    objects += _make_pods(example, zones, name)
    # Every object is one line of JSON, which is YAML too.
    return "\n".join([*lines, *(f"- {json.dumps(obj)}" for obj in objects)]) + "\n"


def _make_nodes(example: Example, zones: list[str], name: str) -> Iterator[dict[str, Any]]:
    for zone, count, endpoints in zip(zones, example.nodes, example.endpoints, strict=True):
        for number in range(1, count + 1):
            yield _make_node(f"{name}-{zone}-n{number}", {ZONE_LABEL: zone})
        if count == 0 and endpoints:
            # A zone whose nodes send no traffic: the pods run on an excluded node.
            labels = {ZONE_LABEL: zone, EXCLUDED_NODE_LABELS[0]: ""}
            yield _make_node(f"{name}-{zone}-n1", labels)


def _make_node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": _WORKER}


def _make_service(name: str, request: _MechanismRequest) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "selector": {"example": name},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
    }
    if request.distribution is not None:
        spec["trafficDistribution"] = request.distribution
    metadata: dict[str, Any] = {"name": name, "namespace": EXAMPLE_NAMESPACE}
    if request.annotations:
        metadata["annotations"] = request.annotations
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _make_pods(example: Example, zones: list[str], name: str) -> Iterator[dict[str, Any]]:
    number = 0
    for zone, nodes, endpoints in zip(zones, example.nodes, example.endpoints, strict=True):
        for index in range(endpoints):
            number += 1
            ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{number}",
                    "namespace": EXAMPLE_NAMESPACE,
                    "labels": {"example": name},
                },
                "spec": {"nodeName": f"{name}-{zone}-n{index % max(1, nodes) + 1}"},
                "status": {"phase": "Running", "podIPs": [{"ip": ip}], "conditions": _READY},
            }


def _in_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
