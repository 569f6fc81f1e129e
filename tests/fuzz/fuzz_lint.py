"""Manifests as `keepclose lint` reads and judges them, and its reports in every form.

Rollouts are played only of few pods, because an input has a second.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import typer
from fuzzbounds import require

from keepclose.advise.linting.context import LintLimits
from keepclose.advise.linting.findings import Severity
from keepclose.advise.linting.linter import lint_objects
from keepclose.cli.lint.reports import junit_text, report_document, sarif_document
from keepclose.cli.lint.sources import LintSource, read_files
from keepclose.cli.lint.texts import markdown_text, print_report
from keepclose.cli.render.screen import Screen
from keepclose.heuristics.discovery import find_heuristics
from keepclose.model.gates import FeatureGates, Gate
from keepclose.slices.settings import PlannerSettings
from support.lint_cases import CASES, manifests, to_yaml
from support.sarif import find_mistakes

_EXAMPLE = Path(__file__).parents[2] / "examples" / "lint" / "shop.yaml"
_GATES = FeatureGates().with_gates(
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS, Gate.TOPOLOGY_AWARE_SUBSETTING
)
_SETTINGS = PlannerSettings(gates=_GATES, heuristics=find_heuristics(_GATES))
_LIMITS = LintLimits(min_in_zone=0.9, max_load=1.2, min_ready_per_zone=2)
_MOST_PODS, _MOST_NODES = 4, 12


def seeds() -> Iterator[bytes]:
    """Yield the example, and the manifests of each rule as YAML and as JSON."""
    yield _EXAMPLE.read_bytes()
    for bad, _ in CASES.values():
        yield to_yaml(manifests(*bad)).encode()
    for bad, _ in list(CASES.values())[::5]:
        yield b"\n".join(map(msgspec.json.encode, manifests(*bad).values()))
    yield to_yaml(manifests(("deployment", "spec/replicas", 4))).encode()
    huge = manifests(("deployment", "spec/replicas", 2**31 - 1), ("service", "spec/ports", []))
    yield b"\n".join(map(msgspec.json.encode, huge.values()))


def check(data: bytes) -> None:
    """Read, lint and report the text."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            source = read_files(["-"], stdin=io.BytesIO(data))
        except typer.Exit:
            return
        _check(source)


def _check(source: LintSource) -> None:
    objects = source.objects
    pods = sum(workload.replicas or 0 for workload in objects.workloads)
    plays = pods <= _MOST_PODS and len(objects.nodes) <= _MOST_NODES
    report = lint_objects(
        objects, settings=_SETTINGS, limits=_LIMITS, skip=() if plays else {"KC301", "KC302"}
    )
    again = lint_objects(
        objects, settings=_SETTINGS, limits=_LIMITS, skip=() if plays else {"KC301", "KC302"}
    )
    require(report == again, "the same input gives another report")
    msgspec.json.encode(report_document(report, source))
    log = json.loads(msgspec.json.encode(sarif_document(report, source)))
    mistakes = find_mistakes(log)
    require(not mistakes, f"SARIF: {mistakes[:3]}")
    text = junit_text(report, source, failing=(Severity.ERROR,))
    cases = len(list(ET.fromstring(text).iter("testcase")))  # noqa: S314
    require(cases == max(1, len(report.findings) + len(report.suppressed)), "JUnit: other tests")
    markdown_text(report, source)
    print_report(Screen(file=io.StringIO()), report, source)
