"""Reports of lint for programs: JSON and YAML documents, SARIF 2.1.0 and JUnit XML.

Values from objects are data there. They are made plain in XML, which cannot hold every character,
and in texts that pages of a pipeline show to people.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

import msgspec

from keepclose import __version__
from keepclose.advise.linting.findings import LintFinding, LintRule, Severity
from keepclose.advise.linting.linter import LintReport
from keepclose.advise.linting.rules import RULES
from keepclose.cli.lint.sources import LintSource
from keepclose.cli.manifests.problems import InputPlace
from keepclose.model.json_values import JsonObject
from keepclose.model.plain_text import make_plain

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_STDIN: Final = "-"


def report_document(report: LintReport, source: LintSource) -> JsonObject:
    """Return the report as plain values for JSON and YAML."""
    plain: JsonObject = msgspec.to_builtins(
        {
            "source": source.name,
            "counts": {severity.value: report.count(severity) for severity in Severity},
            "basis": report.basis,
            "findings": [_finding(each, source) for each in report.findings],
            "suppressed": [
                {**_finding(each.finding, source), "reason": each.reason}
                for each in report.suppressed
            ],
            "promises": [
                {
                    "service": str(each.service),
                    "workload": str(each.workload),
                    "rollouts": each.rollouts,
                    "drains": each.drains,
                    "basis": each.basis,
                }
                for each in report.promises
            ],
            "advice": [
                {
                    "service": str(each.service),
                    "replicas": each.replicas,
                    "withoutHints": each.without_hints,
                    "maxLoad": each.max_load,
                    "withinMaxLoad": each.within_load,
                    "byZone": each.by_zone,
                    "basis": each.basis,
                }
                for each in report.advice
            ],
            "notes": source.notes,
        }
    )
    return plain


def sarif_document(report: LintReport, source: LintSource) -> JsonObject:
    """Return the report as a SARIF log; suppressed findings are results with a suppression."""
    results = [_result(each, source) for each in report.findings]
    for suppressed in report.suppressed:
        result = _result(suppressed.finding, source)
        justification = make_plain(suppressed.reason)
        result["suppressions"] = [{"kind": "inSource", "justification": justification}]
        results.append(result)
    driver = {
        "name": "keepclose",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_sarif_rule(rule) for rule in RULES.values()],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def junit_text(report: LintReport, source: LintSource, *, failing: Sequence[Severity]) -> str:
    """Return the report as JUnit XML: a failure for each finding of a failing severity.

    Other findings pass, with their text as output; suppressed ones are skipped. A report without
    findings has one test that passes.
    """
    failures = sum(each.severity in failing for each in report.findings)
    cases = len(report.findings) + len(report.suppressed) or 1
    counts = {
        "tests": str(cases),
        "failures": str(failures),
        "errors": "0",
        "skipped": str(len(report.suppressed)),
    }
    root = ET.Element("testsuites", {"name": "keepclose lint", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": make_plain(source.name), **counts})
    for finding in report.findings:
        case = _test_case(suite, finding, source)
        if finding.severity in failing:
            attributes = {"message": make_plain(finding.message), "type": finding.severity.value}
            ET.SubElement(case, "failure", attributes).text = _explain(finding, source)
        else:
            ET.SubElement(case, "system-out").text = _explain(finding, source)
    for suppressed in report.suppressed:
        case = _test_case(suite, suppressed.finding, source)
        ET.SubElement(case, "skipped", {"message": make_plain(suppressed.reason)})
    if not report.findings and not report.suppressed:
        ET.SubElement(suite, "testcase", {"classname": "keepclose.lint", "name": "no findings"})
    ET.indent(root)
    return f"<?xml version='1.0' encoding='UTF-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def name_place(place: InputPlace | None) -> str:
    """Return file and line, as compilers write them; "" without a file."""
    if place is None:
        return ""
    file = "standard input" if place.file == _STDIN else place.file
    return f"{file}:{place.line}" if place.line is not None else file


def _finding(finding: LintFinding, source: LintSource) -> JsonObject:
    place = source.place_of(finding)
    kind, namespace, name = finding.subject
    document: JsonObject = {
        "rule": finding.rule,
        "name": RULES[finding.rule].name,
        "severity": finding.severity,
        "object": {"kind": kind, "namespace": namespace, "name": name},
        "field": finding.field,
        "message": finding.message,
        "fix": finding.fix,
    }
    if place is not None:
        document["place"] = {
            "file": place.file,
            "document": place.document,
            "item": place.item,
            "line": place.line,
        }
    return document


def _sarif_rule(rule: LintRule) -> JsonObject:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} {rule.fix}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: LintFinding, source: LintSource) -> dict[str, Any]:
    place = source.place_of(finding)
    subject = make_plain(str(finding.subject))
    fix = f" Fix: {finding.fix}." if finding.fix else ""
    location: JsonObject = {
        "logicalLocations": [
            {
                "name": make_plain(finding.subject.name),
                "fullyQualifiedName": f"{subject} {make_plain(finding.field)}",
                "kind": "object",
            }
        ]
    }
    if place is not None and place.file != _STDIN:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _uri(place.file)},
            "region": {"startLine": place.line or 1},
        }
    # NB: without the line, so that a finding stays the same when lines above it change.
    key = f"{finding.rule}\0{finding.subject}\0{finding.field}"
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{subject}: {make_plain(finding.message + fix)}"},
        "locations": [location],
        "partialFingerprints": {
            "keepcloseFinding/v1": sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        },
    }


def _uri(file: str) -> str:
    """Return a path relative to the working directory where possible, as a URI reference."""
    path = Path(file)
    if path.is_absolute():
        if not path.is_relative_to(Path.cwd()):
            return path.as_uri()
        path = path.relative_to(Path.cwd())
    # NB: a colon in the first segment would end a scheme.
    return quote(path.as_posix(), safe="/", errors="surrogateescape")


def _test_case(suite: ET.Element, finding: LintFinding, source: LintSource) -> ET.Element:
    rule = RULES[finding.rule]
    attributes = {
        "classname": f"{rule.id} {rule.name}",
        "name": make_plain(f"{finding.subject} {finding.field}"),
    }
    place = source.place_of(finding)
    if place is not None:
        attributes["file"] = make_plain(place.file)
        if place.line is not None:
            attributes["line"] = str(place.line)
    return ET.SubElement(suite, "testcase", attributes)


def _explain(finding: LintFinding, source: LintSource) -> str:
    place = name_place(source.place_of(finding))
    lines = [finding.message, f"in {place}, {finding.field}" if place else finding.field]
    if finding.fix:
        lines.append(f"fix: {finding.fix}")
    return "\n".join(map(make_plain, lines))
