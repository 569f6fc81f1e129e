"""Inputs of the simulator as manifests: the nodes, pods and Service of a cluster that looks so.

What a comparison finds can then be looked at by `keepclose resolve`, endpoint by endpoint. Each
input is a cluster of its own and gets a file of its own. The Service asks for the mechanism that is
nearest to the algorithm; names are made up here, so that nothing from outside gets into a field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

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
from keepclose.simulate.comparison import Comparison, Example

NAMESPACE: Final = "example"
_READY: Final = [{"type": "Ready", "status": "True"}]
_WORKER: Final = {"allocatable": {"cpu": "4"}, "conditions": _READY}
_MOST_CHARACTERS: Final = 63


class Wish(msgspec.Struct, frozen=True):
    """How a Service asks for a mechanism, and the gate that it needs."""

    annotations: dict[str, str] = {}
    distribution: str | None = None
    gate: Gate | None = None


_WISHES: Final = {
    "same-zone": Wish(distribution=PREFER_SAME_ZONE),
    "kube-auto": Wish({TOPOLOGY_MODE_ANNOTATION: "Auto"}),
    "local": Wish(
        {SUBSETTING_ANNOTATION: Approach.PREFER.value}, gate=Gate.TOPOLOGY_AWARE_SUBSETTING
    ),
    "balanced": Wish(
        {TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"},
        gate=Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    ),
}


def write_examples(folder: Path, comparison: Comparison) -> list[str]:
    """Write a file for each example of a comparison; return the commands that open them.

    The folder is made if it is not there. Raises OSError when something cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wish = _find_wish(comparison)
    gates = f" --feature-gates {wish.gate}=true" if wish.gate else ""
    commands = []
    for side, examples in (
        (comparison.first, comparison.best),
        (comparison.second, comparison.worst),
    ):
        for number, example in enumerate(examples, 1):
            name = f"{side}-{number}"
            file = folder / f"{name}.yaml"
            command = f"keepclose resolve -f {file}{gates}"
            text = _render(example, comparison, name=name, wish=wish, command=command)
            file.write_text(text, encoding="utf-8")
            commands.append(command)
    return commands


def _find_wish(comparison: Comparison) -> Wish:
    """Return the mechanism of the first algorithm that has one, else none."""
    for algorithm in (comparison.first, comparison.second):
        if algorithm in _WISHES:
            return _WISHES[algorithm]
    return Wish()


def _render(
    example: Example, comparison: Comparison, *, name: str, wish: Wish, command: str
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
    objects = [*_make_nodes(example, zones, name), _make_service(name, wish)]
    objects += _make_pods(example, zones, name)
    # Every object stands in a line of its own, as JSON, which is YAML too.
    return "\n".join([*lines, *(f"- {json.dumps(one)}" for one in objects)]) + "\n"


def name_zones(zones: Sequence[str]) -> list[str]:
    """Return names that can stand in a label, different for each zone."""
    made: list[str] = []
    for zone in zones:
        name = re.sub(r"[^a-z0-9]+", "-", zone.lower()).strip("-")[: _MOST_CHARACTERS - 8]
        name = name.strip("-") or "zone"
        made.append(name if name not in made else f"{name}-{len(made) + 1}")
    return made


def _make_nodes(example: Example, zones: list[str], name: str) -> Iterator[dict[str, Any]]:
    for zone, count, endpoints in zip(zones, example.nodes, example.endpoints, strict=True):
        for number in range(1, count + 1):
            yield _make_node(f"{name}-{zone}-n{number}", {ZONE_LABEL: zone})
        if count == 0 and endpoints:
            # A zone without nodes of its own traffic: the pods run on one that sends none.
            labels = {ZONE_LABEL: zone, EXCLUDED_NODE_LABELS[0]: ""}
            yield _make_node(f"{name}-{zone}-n1", labels)


def _make_node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": _WORKER}


def _make_service(name: str, wish: Wish) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "selector": {"example": name},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
    }
    if wish.distribution is not None:
        spec["trafficDistribution"] = wish.distribution
    metadata: dict[str, Any] = {"name": name, "namespace": NAMESPACE}
    if wish.annotations:
        metadata["annotations"] = wish.annotations
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _make_pods(example: Example, zones: list[str], name: str) -> Iterator[dict[str, Any]]:
    number = 0
    for zone, nodes, endpoints in zip(zones, example.nodes, example.endpoints, strict=True):
        for place in range(endpoints):
            number += 1
            ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{number}",
                    "namespace": NAMESPACE,
                    "labels": {"example": name},
                },
                "spec": {"nodeName": f"{name}-{zone}-n{place % max(1, nodes) + 1}"},
                "status": {"phase": "Running", "podIPs": [{"ip": ip}], "conditions": _READY},
            }


def _in_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
