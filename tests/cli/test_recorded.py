"""`keepclose resolve` against what real Kubernetes components decided on recorded clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app
from support.recordings import (
    CLUSTERS,
    MAX_PER_SLICE,
    STEPS,
    Raw,
    check_slices,
    is_auto,
    largest_group,
    node_manifest,
    pod_manifest,
    service_manifest,
    slice_manifests,
)


def run_resolve(path: Path, manifests: list[Raw]) -> dict[str, Raw]:
    """Return the answer of the command for these objects, by namespace."""
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    result = CliRunner().invoke(app, ["resolve", "-f", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    return {one["namespace"]: one for one in json.loads(result.stdout)["services"]}


def bystander(namespace: str) -> Raw:
    """Return a Pod that no Service selects: a namespace without any Pod counts as not dumped."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bystander", "namespace": namespace, "labels": {"by": "stander"}},
    }


def outcomes(nodes: Raw, *, counts: bool) -> Raw:
    """Return what becomes of connections by node, port and direction: endpoints or their number."""
    return {
        node: {
            port: {
                way: len(answer[way]["endpoints"])
                if counts and "endpoints" in answer[way]
                else answer[way]
                for way in ("internal", "nodePort")
                if way in answer
            }
            for port, answer in ports.items()
        }
        for node, ports in nodes.items()
    }


def check_step(step: Raw, answer: Raw, *, largest: int, settled: bool) -> None:
    """Compare one Service at one step; `settled` when it started from this very step's slices."""
    check_slices(step, answer["slices"], largest=largest, settled=settled)
    auto = is_auto(step["service"])
    if settled or not auto or largest <= MAX_PER_SLICE:
        nodes = {node: answer["nodes"][node] for node in step["proxy"]}
        counts = auto and not settled
        assert outcomes(nodes, counts=counts) == outcomes(step["proxy"], counts=counts)


@pytest.mark.parametrize("start", ["recorded", "own", "settled"])
@pytest.mark.parametrize("number", range(len(CLUSTERS)))
def test_every_recorded_step_is_reproduced(number: int, start: str, tmp_path: Path) -> None:
    """From the recorded state, from our own, and from the end state: the same decisions.

    Each step starts from the slices of the step before, as recorded or as we answered there;
    "settled" starts from the slices of the step itself, which must then stay as they are.
    """
    cluster = CLUSTERS[number]
    nodes = [node_manifest(node) for node in cluster["nodes"]]
    state: dict[str, list[Raw]] = {}
    checked = 0
    for index in range(max(len(service["steps"]) for service in cluster["services"])):
        current = [one for one in cluster["services"] if index < len(one["steps"])]
        manifests = list(nodes)
        for service in current:
            step = service["steps"][index]
            namespace = step["service"]["metadata"]["namespace"]
            manifests.append(service_manifest(service, step))
            manifests += [pod_manifest(pod, namespace) for pod in step["pods"]]
            manifests.append(bystander(namespace))
            manifests += (
                slice_manifests(step, namespace) if start == "settled" else state.get(namespace, [])
            )
        answers = run_resolve(tmp_path / "cluster.json", manifests)
        for service in current:
            step = service["steps"][index]
            namespace = step["service"]["metadata"]["namespace"]
            answer = answers[namespace]
            check_step(
                step, answer, largest=largest_group(service, index), settled=start == "settled"
            )
            state[namespace] = (
                answer["slices"] if start == "own" else slice_manifests(step, namespace)
            )
            checked += 1
    assert checked == sum(len(service["steps"]) for service in cluster["services"])


def test_the_recordings_are_complete() -> None:
    """All ten clusters with their 432 steps are there to be checked."""
    assert (len(CLUSTERS), STEPS) == (10, 432)
