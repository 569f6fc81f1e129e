"""Reports of lint for people: lines for a terminal, and a Markdown page for a merge request.

Names and messages come from manifests. Each is made plain, and in Markdown also escaped, so that
none of them becomes a link, a heading, a mention or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Final

from keepclose.advise.linting.findings import LintFinding, Severity
from keepclose.advise.linting.linter import LintReport
from keepclose.advise.linting.promises import KeptPromise, ReplicaAdvice
from keepclose.advise.linting.rollouts import PlayedShare
from keepclose.advise.linting.rules import RULES
from keepclose.cli.lint.reports import name_place
from keepclose.cli.lint.sources import LintSource
from keepclose.cli.render.screen import Line, Screen
from keepclose.model.plain_text import make_plain

_WIDEST: Final = 100
_MARKS: Final = {
    Severity.ERROR: ("✗", "bold red"),
    Severity.WARNING: ("!", "yellow"),
    Severity.INFO: ("·", "dim"),
}
_PLURALS: Final = {
    Severity.ERROR: ("error", "errors"),
    Severity.WARNING: ("warning", "warnings"),
    Severity.INFO: ("note", "notes"),
}
_INDENT: Final = 6
_PUNCTUATION: Final = re.compile(r"([!\"#$%&'()*+,\-./:;<=>?\[\\\]^_`{|}~])")


def print_report(screen: Screen, report: LintReport, source: LintSource) -> None:
    """Print all findings, then what holds in rollouts and drains, then the counts."""
    width = min(screen.width, _WIDEST)
    for finding in report.findings:
        for line in _finding_lines(finding, source, width):
            screen.print(line, soft_wrap=True)
    for text in describe_promises(report):
        for number, part in enumerate(wrap(make_plain(text), width - _INDENT)):
            screen.print(
                Line.assemble((f"{'' if number else 'held':<{_INDENT}}", "dim"), part),
                soft_wrap=True,
            )
    for text in describe_advice(report):
        for number, part in enumerate(wrap(make_plain(text), width - _INDENT)):
            screen.print(
                Line.assemble((f"{'' if number else 'scale':<{_INDENT}}", "dim"), part),
                soft_wrap=True,
            )
    screen.print(Line(summarize(report, source)), soft_wrap=True)


def summarize(report: LintReport, source: LintSource) -> str:
    """Return how many findings of each severity there are."""
    services = len(source.objects.services)
    where = "1 Service" if services == 1 else f"{services:,} Services"
    counts = [
        f"{count:,} {_PLURALS[severity][count != 1]}"
        for severity in Severity
        if (count := report.count(severity))
    ]
    text = f"{', '.join(counts) or 'no findings'} in {where}"
    if report.suppressed:
        text += f"; {len(report.suppressed):,} suppressed"
    return text


def describe_promises(report: LintReport) -> Iterator[str]:
    """Yield one sentence for each workload whose rollouts and drains were played."""
    for kept in report.promises:
        parts = [
            _share(share, what)
            for share, what in ((kept.rollouts, "rollouts"), (kept.drains, "drains of a node"))
            if share is not None
        ]
        if parts:
            yield (
                f"{kept.workload}: {' and '.join(parts)} keep every zone of Service {kept.service} "
                f"served, {kept.basis}{_stuck(kept)}"
            )


def describe_advice(report: LintReport) -> Iterator[str]:
    """Yield one sentence for each Service about its number of replicas."""
    for advice in report.advice:
        parts = list(_advice_parts(advice))
        if parts:
            yield f"Service {advice.service}: {'; '.join(parts)}, {advice.basis}"


def markdown_text(report: LintReport, source: LintSource) -> str:
    """Return the report as Markdown, for a comment or a job summary."""
    lines = ["## keepclose lint", "", escape_markdown(summarize(report, source)) + "."]
    if report.findings:
        lines += ["", "| severity | rule | object | place | finding |", "|---|---|---|---|---|"]
    for finding in report.findings:
        place = name_place(source.place_of(finding)) or finding.field
        fix = f" Fix: {finding.fix}." if finding.fix else ""
        cells = (
            finding.severity.value,
            f"{finding.rule} {RULES[finding.rule].name}",
            str(finding.subject),
            place,
            f"{finding.message}.{fix}",
        )
        lines.append(f"| {' | '.join(map(escape_markdown, cells))} |")
    lines += _markdown_list("Rollouts and drains", describe_promises(report))
    lines += _markdown_list("Number of replicas", describe_advice(report))
    lines += _markdown_list(
        "Suppressed",
        (
            f"{each.finding.rule} {each.finding.subject}: {each.reason}"
            for each in report.suppressed
        ),
    )
    lines += _markdown_list("Notes", source.notes)
    return "\n".join(lines) + "\n"


def escape_markdown(text: str) -> str:
    """Return a text as plain words of Markdown.

    All punctuation is escaped. NB: a mention would be found after that, in the text of the page, so
    its sign gets an element of its own.
    """
    return _PUNCTUATION.sub(r"\\\1", make_plain(text)).replace("@", "<span>@</span>")


def _finding_lines(finding: LintFinding, source: LintSource, width: int) -> Iterator[Line]:
    mark, style = _MARKS[finding.severity]
    rule = RULES[finding.rule]
    yield Line.assemble(
        (f"{mark} {finding.severity.value:<7} {rule.id} ", style),
        f"{rule.name}  ",
        (str(finding.subject), "bold"),
    )
    for part in wrap(make_plain(finding.message), width - _INDENT):
        yield Line(f"{'':<{_INDENT}}{part}")
    place = name_place(source.place_of(finding))
    yield Line.assemble(
        (f"{'in':<{_INDENT}}", "dim"), f"{place}  {finding.field}" if place else finding.field
    )
    if finding.fix:
        # Never wrapped: a command that is broken into lines cannot be copied.
        yield Line.assemble((f"{'fix':<{_INDENT}}", "dim"), (finding.fix, "green"))


def _share(share: PlayedShare, what: str) -> str:
    return f"{share.percent} % of {share.played} played {what}"


def _stuck(kept: KeptPromise) -> str:
    stuck = sum(share.stuck for share in (kept.rollouts, kept.drains) if share is not None)
    return (
        f"; {stuck} do not end: a pod finds no node, or a budget permits nothing" if stuck else ""
    )


def _advice_parts(advice: ReplicaAdvice) -> Iterator[str]:
    if advice.without_hints:
        yield f"Auto gives no hints with {_list(advice.without_hints)} replicas"
    if advice.within_load:
        yield (
            f"no endpoint carries more than {advice.max_load:g}x the mean with "
            f"{_list(advice.within_load)} replicas, evenly spread"
        )
    elif advice.by_zone:
        divided = ", ".join(f"{count} in {zone}" for zone, count in advice.by_zone.items())
        yield f"no endpoint carries more than {advice.max_load:g}x the mean with {divided}"


def _list(numbers: Iterable[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _markdown_list(title: str, texts: Iterable[str]) -> list[str]:
    items = [f"- {escape_markdown(text)}" for text in texts]
    return ["", f"### {title}", "", *items] if items else []
