"""Rules about the spread of a workload's pods over zones, for Services that prefer their zone."""

from __future__ import annotations

from collections.abc import Iterator

from keepclose.advise.linting import rules
from keepclose.advise.linting.context import LintContext, ServiceCase
from keepclose.advise.linting.findings import LintFinding
from keepclose.advise.linting.workload_kinds import TEMPLATE_FIELD, LintedWorkload
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workloads.constraints import SpreadConstraint
from keepclose.model.workloads.placement import DO_NOT_SCHEDULE
from keepclose.model.workloads.rolling_update import TEMPLATE_HASH_LABEL
from keepclose.model.workloads.types import Deployment

CONSTRAINTS_FIELD = f"{TEMPLATE_FIELD}.spec.topologySpreadConstraints"


def zone_constraints(workload: LintedWorkload) -> list[tuple[str, SpreadConstraint]]:
    """Return the constraints over zones, each with its field."""
    return [
        (f"{CONSTRAINTS_FIELD}[{index}]", constraint)
        for index, constraint in enumerate(workload.pod.topology_spread_constraints)
        if constraint.topology_key == ZONE_LABEL
    ]


def is_spread_over_zones(workload: LintedWorkload) -> bool:
    """Return whether a constraint over zones binds and counts the workload's own pods."""
    return any(
        constraint.when_unsatisfiable == DO_NOT_SCHEDULE and _selects_own(constraint, workload)
        for _, constraint in zone_constraints(workload)
    )


def check_spread(case: ServiceCase, context: LintContext) -> Iterator[LintFinding]:
    """Yield the findings about the spread of what a Service selects."""
    if len(context.zones) < 2:
        return
    for workload in case.workloads:
        # One pod has nothing to be spread from, and a DaemonSet is where its nodes are. A workload
        # of one zone is one of several behind the Service.
        is_spreadable = workload.replicas is not None and len(workload.zones) != 1
        if is_spreadable and context.replicas_of(workload) > 1:
            yield from _check_workload(workload, case)


def _check_workload(workload: LintedWorkload, case: ServiceCase) -> Iterator[LintFinding]:
    constraints = zone_constraints(workload)
    if not constraints:
        yield rules.NO_ZONE_SPREAD.found(
            workload.name,
            f"{TEMPLATE_FIELD}.spec",
            f"nothing spreads the pods over zones, and Service {case.service.key} prefers its zone",
            f"add a topologySpreadConstraint over {ZONE_LABEL}",
        )
    is_bound = any(each.when_unsatisfiable == DO_NOT_SCHEDULE for _, each in constraints)
    for field, constraint in constraints:
        if not _selects_own(constraint, workload):
            what = "has no labelSelector and counts no pods"
            if constraint.label_selector is not None:
                what = "does not select the labels of its own pod template"
            yield rules.SPREAD_SELECTS_OTHERS.found(
                workload.name,
                f"{field}.labelSelector",
                f"the constraint {what}",
                "select the labels of the pod template",
            )
            continue
        if constraint.when_unsatisfiable != DO_NOT_SCHEDULE and not is_bound:
            yield rules.SOFT_ZONE_SPREAD.found(
                workload.name,
                f"{field}.whenUnsatisfiable",
                f"{constraint.when_unsatisfiable} lets all pods run in one zone",
                f"write {DO_NOT_SCHEDULE}",
            )
        if constraint.max_skew > 1 and constraint.when_unsatisfiable == DO_NOT_SCHEDULE:
            yield rules.WIDE_ZONE_SKEW.found(
                workload.name,
                f"{field}.maxSkew",
                f"a zone may have {constraint.max_skew} pods more than another",
                "write 1",
            )
        if _mixes_revisions(constraint, workload):
            yield rules.SPREAD_IGNORES_REVISIONS.found(
                workload.name,
                f"{field}.matchLabelKeys",
                "in a rollout old pods count too, and the new ones may be skewed after it",
                f"write [{TEMPLATE_HASH_LABEL}]",
            )


def _selects_own(constraint: SpreadConstraint, workload: LintedWorkload) -> bool:
    selector = constraint.label_selector
    return selector is not None and selector.matches(workload.labels)


def _mixes_revisions(constraint: SpreadConstraint, workload: LintedWorkload) -> bool:
    return (
        isinstance(workload.source, Deployment)
        and workload.source.spec.strategy.type == "RollingUpdate"
        and constraint.when_unsatisfiable == DO_NOT_SCHEDULE
        and TEMPLATE_HASH_LABEL not in constraint.match_label_keys
    )
