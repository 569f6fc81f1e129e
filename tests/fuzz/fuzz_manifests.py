"""Manifests as `keepclose resolve` reads, admits and answers them: every flaw is a problem told."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml
from fuzzbounds import require

from keepclose.advise.resolution import resolve_services
from keepclose.cli.inputs.gaps import fill_gaps
from keepclose.cli.inputs.object_files import _admit, _warn_of_objects
from keepclose.cli.manifests.objects import load_manifests
from keepclose.cli.render.resolve import print_services, resolved_document
from keepclose.cli.render.screen import Screen
from keepclose.heuristics.discovery import find_heuristics
from keepclose.model.gates import FeatureGates, Gate
from keepclose.slices.settings import PlannerSettings

_EXAMPLES = Path(__file__).parents[2] / "examples"
_GATES = FeatureGates().with_gates(
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    Gate.PREFER_LOCAL_TRAFFIC_POLICY,
    Gate.TOPOLOGY_AWARE_SUBSETTING,
)
_SETTINGS = PlannerSettings(gates=_GATES, heuristics=find_heuristics(_GATES))


def seeds() -> Iterator[bytes]:
    """Yield the examples and a few short texts."""
    for file in sorted(_EXAMPLES.glob("*.yaml")):
        text = file.read_bytes()
        if len(text) < 6000:
            yield text
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
        "spec": {"ports": [{"port": 80}], "trafficDistribution": "keepclose.dev/Balanced"},
    }
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "zone": "a", "hints": {"forZones": [{"name": "a"}]}}
        ],
    }
    items = [node, service, endpoint_slice]
    yield msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})
    yield b"\n".join(map(msgspec.json.encode, items))
    yield b"---\n".join(yaml.safe_dump(item).encode() for item in items)
    yield b"a: &a [*a]\n---\nkind: PodList\nitems: [{<<: {a: b}}]\n--- x\n{{ .Values }}\n"


def check(data: bytes) -> None:
    """Read, admit and resolve the text, and show the answer both ways."""
    with contextlib.redirect_stderr(io.StringIO()):
        _check(data)


def _check(data: bytes) -> None:
    manifests = load_manifests(["-"], stdin=io.BytesIO(data))
    for problem in manifests.problems:
        require(str(problem), "a problem without a text")
    _warn_of_objects(manifests)
    inventory, problems = _admit(manifests)
    for problem in problems:
        require(str(problem), "a problem without a text")
    inventory, gaps = fill_gaps(inventory, {}, "-")
    for gap in gaps:
        require(str(gap), "a gap without a text")
    answer = resolve_services(inventory, settings=_SETTINGS)
    msgspec.json.encode(resolved_document(answer))
    print_services(Screen(file=io.StringIO()), answer, inventory.nodes)
