"""`keepclose lint`: what in manifests or in a cluster breaks the promise to keep traffic close.

Reads Services, workloads, budgets, autoscalers and Nodes from files, as Helm and kustomize print
them, or from a cluster. Writes nothing. The rules are those of `advise.linting`.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.inputs.cluster_input import (
    AllNamespaces,
    ClusterFiles,
    NamespaceOption,
    read_cluster,
    read_lab_gates,
)
from keepclose.cli.options import Kubeconfig, KubeContext
from keepclose.cli.render.output import echo_document, echo_json, echo_yaml, has_unicode, say

if TYPE_CHECKING:
    from keepclose.advise.linting.findings import Severity
    from keepclose.advise.linting.linter import LintReport
    from keepclose.cli.lint.sources import LintSource

MAX_ASSUMED_ZONES: Final = 26


class LintOutput(StrEnum):
    """Output formats of lint."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    SARIF = "sarif"
    JUNIT = "junit"
    MARKDOWN = "markdown"


class FailOn(StrEnum):
    """The least severity that fails the command."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


def lint(
    files: Annotated[
        list[str],
        typer.Argument(metavar="[FILE]...", help="The same as --file.", show_default=False),
    ] = [],  # noqa: B006 - typer copies it
    *,
    file: ClusterFiles = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    namespace: NamespaceOption = "",
    all_namespaces: AllNamespaces = False,
    rule: Annotated[
        list[str], typer.Option(metavar="KCnnn", help="Only this rule. May be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    skip: Annotated[
        list[str], typer.Option(metavar="KCnnn", help="Not this rule. May be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    min_in_zone: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            metavar="PERCENT",
            help="Fail where less of a Service's traffic stays in its zone.",
        ),
    ] = None,
    max_load: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="FACTOR",
            help="Fail where an endpoint carries more, in multiples of the mean; 1.2 is 20 % more.",
        ),
    ] = None,
    min_ready_per_zone: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Fail where a zone has fewer endpoints."),
    ] = None,
    zones: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_ASSUMED_ZONES,
            metavar="N",
            help="How many equal zones to assume where the files have no Nodes.",
        ),
    ] = 3,
    fail_on: Annotated[
        FailOn, typer.Option(help="The least severity that gives exit code 1.")
    ] = FailOn.WARNING,
    allow_empty: Annotated[
        bool,
        typer.Option("--allow-empty", help="Exit with 0 where the files hold nothing to lint."),
    ] = False,
    feature_gates: Annotated[
        str, typer.Option(metavar="A=true,B=false", help="Feature gates that differ from default.")
    ] = "",
    output: Annotated[
        LintOutput, typer.Option("-o", "--output", help="Output format.")
    ] = LintOutput.TABLE,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Find what keeps Services from keeping traffic close.

    In manifests, also those that helm template and kustomize build print, or in a cluster. Writes
    nothing. Exit codes: 0 fine, 1 findings, 2 bad input, 3 nothing to lint, 4 no API server
    answers.
    """
    _check_rules("--rule", rule)
    _check_rules("--skip", skip)
    paths = [*files, *file]
    source = _read(
        paths,
        kubeconfig=kubeconfig,
        context=context,
        data_dir=data_dir,
        namespace=namespace,
        all_namespaces=all_namespaces,
    )
    if source.is_empty_of(namespace) and not allow_empty:
        say(*(f"note: {note}" for note in source.notes), err=True)
        where = f" of namespace {namespace}" if namespace else ""
        fail(
            f"nothing to lint{where} in {source.name}",
            "lint reads Service, Deployment, StatefulSet, DaemonSet, PodDisruptionBudget, "
            "HorizontalPodAutoscaler, Pod and Node",
            code=ExitCode.NOTHING,
        )
    report = _lint(
        source,
        feature_gates,
        limits=(min_in_zone, max_load, min_ready_per_zone),
        zones=zones,
        only=rule,
        skip=skip,
    )
    _show(report, source, output, fail_on)
    raise typer.Exit(_exit_code(report, fail_on))


def _check_rules(option: str, ids: list[str]) -> None:
    from difflib import get_close_matches

    from keepclose.advise.linting.rules import RULES

    for rule in ids:
        if rule not in RULES:
            close = get_close_matches(rule.upper(), RULES, n=1, cutoff=0.5)
            fail(f"{option}: no rule {rule}", f"did you mean {close[0]}?" if close else "")


def _read(
    paths: list[str],
    *,
    kubeconfig: Path | None,
    context: str,
    data_dir: Path,
    namespace: str,
    all_namespaces: bool,
) -> LintSource:
    from keepclose.cli.lint.sources import READ_KINDS, read_files, read_source

    if paths:
        if kubeconfig or context:
            fail("--file: name files or a cluster, not both")
        if namespace and all_namespaces:
            fail("--all-namespaces: name one namespace or all of them, not both")
        return read_files(paths, namespace)
    cluster = read_cluster(
        kubeconfig=kubeconfig,
        context=context,
        data_dir=data_dir,
        namespace=namespace,
        all_namespaces=all_namespaces,
        kinds=READ_KINDS,
    )
    return read_source(cluster, namespace)


def _lint(
    source: LintSource,
    feature_gates: str,
    *,
    limits: tuple[float | None, float | None, int | None],
    zones: int,
    only: list[str],
    skip: list[str],
) -> LintReport:
    from keepclose.advise.linting.context import LintLimits
    from keepclose.advise.linting.linter import lint_objects
    from keepclose.heuristics.discovery import find_heuristics
    from keepclose.slices.settings import PlannerSettings

    min_in_zone, max_load, min_ready = limits
    gates = read_lab_gates(feature_gates, source.lab)
    return lint_objects(
        source.objects,
        settings=PlannerSettings(gates=gates, heuristics=find_heuristics(gates)),
        limits=LintLimits(None if min_in_zone is None else min_in_zone / 100, max_load, min_ready),
        assumed_zones=zones,
        only=frozenset(only),
        skip=frozenset((*skip, *source.unread_rules)),
    )


def _show(report: LintReport, source: LintSource, output: LintOutput, fail_on: FailOn) -> None:
    if output is LintOutput.TABLE:
        from keepclose.cli.lint.texts import print_report
        from keepclose.cli.render.screen import Screen

        print_report(Screen(), report, source)
        say(*(f"note: {note}" for note in source.notes), err=True)
        return
    if output is LintOutput.MARKDOWN:
        from keepclose.cli.lint.texts import markdown_text

        echo_document(markdown_text(report, source))
        return
    from keepclose.cli.lint.reports import junit_text, report_document, sarif_document

    match output:
        case LintOutput.JSON:
            echo_json(report_document(report, source))
        case LintOutput.YAML:
            echo_yaml(report_document(report, source))
        case LintOutput.SARIF:
            echo_json(sarif_document(report, source))
        case LintOutput.JUNIT:
            text = junit_text(report, source, failing=_failing(fail_on))
            if not has_unicode(sys.stdout):
                text = text.encode("ascii", "xmlcharrefreplace").decode()
            echo_document(text)


def _failing(fail_on: FailOn) -> tuple[Severity, ...]:
    from keepclose.advise.linting.findings import SEVERITY_ORDER

    if fail_on is FailOn.NEVER:
        return ()
    names = [severity.value for severity in SEVERITY_ORDER]
    return SEVERITY_ORDER[: names.index(fail_on.value) + 1]


def _exit_code(report: LintReport, fail_on: FailOn) -> int:
    fails = _failing(fail_on)
    return (
        ExitCode.FOUND if any(each.severity in fails for each in report.findings) else ExitCode.OK
    )
