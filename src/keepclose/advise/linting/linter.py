"""Runs all rules, leaves out what is not asked for, and applies the suppressions of objects.

A suppression is an annotation `lint.keepclose.dev/KCnnn` of the object that a finding is about; its
value is the reason. Without a reason it has no effect. Suppressed findings are reported beside the
others, so that a report can count and name them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from keepclose.advise.advice import overload_bound
from keepclose.advise.linting.change_rules import check_changes, check_played, play_changes
from keepclose.advise.linting.context import LintContext, LintedObjects, LintLimits
from keepclose.advise.linting.findings import SEVERITY_ORDER, LintFinding, ObjectName, Severity
from keepclose.advise.linting.promises import KeptPromise, ReplicaAdvice, ServicePromise
from keepclose.advise.linting.reference_rules import (
    check_nodes,
    check_references,
    check_suppressions,
)
from keepclose.advise.linting.replica_rules import check_limits, check_replicas
from keepclose.advise.linting.rules import DRAIN_EMPTIES_ZONE, ROLLOUT_EMPTIES_ZONE, RULES
from keepclose.advise.linting.service_rules import check_settings
from keepclose.advise.linting.spread_rules import check_spread
from keepclose.model.well_known import LINT_ANNOTATION_PREFIX
from keepclose.slices.settings import PlannerSettings

DEFAULT_ZONES = 3
_PLAYED = (ROLLOUT_EMPTIES_ZONE.id, DRAIN_EMPTIES_ZONE.id)


class SuppressedFinding(msgspec.Struct, frozen=True):
    """A finding that an annotation suppresses, and the reason that it gives."""

    finding: LintFinding
    reason: str


class LintReport(msgspec.Struct, frozen=True):
    """The answer of a run: findings by severity and object, and what was computed besides."""

    findings: tuple[LintFinding, ...]
    suppressed: tuple[SuppressedFinding, ...]
    promises: tuple[KeptPromise, ...]
    advice: tuple[ReplicaAdvice, ...]
    basis: str
    """The nodes that results about placement rest on."""

    def count(self, severity: Severity) -> int:
        """Return how many findings have a severity."""
        return sum(finding.severity is severity for finding in self.findings)


def lint_objects(
    objects: LintedObjects,
    *,
    settings: PlannerSettings,
    limits: LintLimits = LintLimits(),  # noqa: B008 - frozen
    assumed_zones: int = DEFAULT_ZONES,
    only: Collection[str] = (),
    skip: Collection[str] = (),
) -> LintReport:
    """Return what breaks rules; `only` and `skip` are ids, no `only` means all rules.

    Rollouts and drains are played only for the rules about them.
    """
    context = LintContext(objects, settings=settings, limits=limits, assumed_zones=assumed_zones)
    annotated = _annotations_of(objects)
    findings: list[LintFinding] = []
    promises: list[KeptPromise] = []
    advice: list[ReplicaAdvice] = []
    # Playing takes longer than all other rules together.
    plays = any((not only or rule in only) and rule not in skip for rule in _PLAYED)
    workloads = sum(case.prefers_zone for case in context.cases)
    for case in context.cases:
        findings += check_settings(case, context)
        findings += check_references(case, context)
        if not case.prefers_zone:
            continue
        promise = ServicePromise(case, context)
        findings += check_replicas(promise, context)
        findings += check_spread(case, context)
        findings += check_changes(case, context)
        if case.errors:
            continue
        findings += check_limits(promise, context)
        for kept in play_changes(promise, context, workloads=workloads) if plays else ():
            promises.append(kept)
            findings += check_played(kept, case)
        replica_advice = promise.advise_replicas(
            limits.max_load or 1 + overload_bound(case.service)
        )
        if replica_advice is not None:
            advice.append(replica_advice)
    findings += check_nodes(context)
    findings += check_suppressions(annotated.items())
    chosen = [
        finding
        for finding in _distinct(findings)
        if (not only or finding.rule in only) and finding.rule not in skip
    ]
    kept_findings, suppressed = _suppress(chosen, annotated)
    return LintReport(
        tuple(sorted(kept_findings, key=_order)),
        tuple(suppressed),
        tuple(promises),
        tuple(advice),
        context.basis,
    )


def _annotations_of(objects: LintedObjects) -> dict[ObjectName, dict[str, str]]:
    named = [
        *((ObjectName.of("Service", each.metadata), each.metadata) for each in objects.services),
        *((each.name, each.source.metadata) for each in objects.workloads),
        *((ObjectName.of("Node", each.metadata), each.metadata) for each in objects.nodes),
        *((ObjectName.of(each.kind, each.metadata), each.metadata) for each in objects.budgets),
        *((ObjectName.of(each.kind, each.metadata), each.metadata) for each in objects.autoscalers),
    ]
    return {name: meta.annotations for name, meta in named if meta.annotations}


def _distinct(findings: Iterable[LintFinding]) -> Iterator[LintFinding]:
    """Yield one finding for each place: two Services may select the same workload."""
    seen: set[tuple[str, ObjectName, str]] = set()
    for finding in findings:
        key = (finding.rule, finding.subject, finding.field)
        if key not in seen:
            seen.add(key)
            yield finding


def _suppress(
    findings: Iterable[LintFinding], annotated: dict[ObjectName, dict[str, str]]
) -> tuple[list[LintFinding], list[SuppressedFinding]]:
    kept: list[LintFinding] = []
    suppressed: list[SuppressedFinding] = []
    for finding in findings:
        annotations = annotated.get(finding.subject, {})
        reason = annotations.get(f"{LINT_ANNOTATION_PREFIX}{finding.rule}", "").strip()
        if reason and finding.rule in RULES:
            suppressed.append(SuppressedFinding(finding, reason))
        else:
            kept.append(finding)
    return kept, suppressed


def _order(finding: LintFinding) -> tuple[object, ...]:
    return (SEVERITY_ORDER.index(finding.severity), finding.rule, finding.subject, finding.field)
