"""Rules about what rollouts, drains and missing probes do to the endpoints of a zone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from keepclose.advise.linting import rules
from keepclose.advise.linting.context import LintContext, ServiceCase
from keepclose.advise.linting.findings import LintFinding, ObjectName
from keepclose.advise.linting.promises import KeptPromise, ServicePromise, place_evenly
from keepclose.advise.linting.spread_rules import is_spread_over_zones
from keepclose.advise.linting.workload_kinds import (
    TEMPLATE_FIELD,
    LintedWorkload,
    StatefulSet,
)
from keepclose.model.workloads.disruption_budgets import desired_healthy
from keepclose.model.workloads.rolling_update import RolloutBounds, daemon_bounds, deployment_bounds
from keepclose.model.workloads.types import DaemonSet, Deployment

_STRATEGY_FIELD: Final = "spec.strategy"
_UPDATE_FIELD: Final = "spec.updateStrategy"
_SLOWEST: Final = RolloutBounds(max_unavailable=0, max_surge=1)
"""The bounds that replace pod by pod, each after its successor is ready."""


def play_changes(
    promise: ServicePromise, context: LintContext, *, workloads: int
) -> Iterator[KeptPromise]:
    """Yield the shares of rollouts and drains of the workloads that are spread over zones.

    Only a Service with one workload is judged: the pods of another would hide what a change does.
    """
    if len(context.zones) < 2 or len(promise.case.workloads) != 1:
        return
    for workload in promise.case.workloads:
        if is_spread_over_zones(workload):
            yield promise.play(workload, workloads=workloads)


def check_played(kept: KeptPromise, case: ServiceCase) -> Iterator[LintFinding]:
    """Yield the findings about shares below all of the rollouts or drains."""
    is_slowest = any(
        isinstance(each.source, Deployment) and deployment_bounds(each.source) == _SLOWEST
        for each in case.workloads
        if each.name == kept.workload
    )
    rollouts, drains = kept.rollouts, kept.drains
    service = f"Service {kept.service}"
    if rollouts is not None and rollouts.kept < rollouts.played:
        yield rules.ROLLOUT_EMPTIES_ZONE.found(
            kept.workload,
            _STRATEGY_FIELD,
            f"{rollouts.percent} % of {rollouts.played} played rollouts keep every zone of "
            f"{service} served, {kept.basis}",
            "run more replicas for each zone"
            if is_slowest
            else "set maxUnavailable: 0 and maxSurge: 1, or run more replicas for each zone",
        )
    if drains is not None and drains.kept < drains.played:
        yield rules.DRAIN_EMPTIES_ZONE.found(
            kept.workload,
            f"{TEMPLATE_FIELD}.spec",
            f"{drains.percent} % of {drains.played} played drains of one node keep every zone of "
            f"{service} served, {kept.basis}",
            "run at least two replicas for each zone, spread over kubernetes.io/hostname, and add "
            "a PodDisruptionBudget with maxUnavailable 1",
        )


def check_changes(case: ServiceCase, context: LintContext) -> Iterator[LintFinding]:
    """Yield the findings about the updates, budgets and probes of what a Service selects."""
    for workload in case.workloads:
        if len(context.zones) >= 2:
            yield from _check_update(workload, case, context)
            yield from _check_budgets(workload, case, context)
        containers = workload.pod.lasting
        if containers and all(each.readiness_probe is None for each in containers):
            yield rules.NO_READINESS_PROBE.found(
                workload.name,
                f"{TEMPLATE_FIELD}.spec.containers",
                f"pods are ready before they can answer, and Service {case.service.key} prefers "
                "the few of its zone",
                "add a readinessProbe",
            )


def _check_update(
    workload: LintedWorkload, case: ServiceCase, context: LintContext
) -> Iterator[LintFinding]:
    source = workload.source
    why = ""
    match source:
        case Deployment() if source.spec.strategy.type == "Recreate" and source.spec.replicas:
            field, why = _STRATEGY_FIELD, "Recreate deletes all pods before it creates new ones"
        case StatefulSet() if source.spec.update_strategy.type == "RollingUpdate":
            pods = context.count_by_zone(place_evenly(workload, context))
            single = sorted(zone for zone, count in pods.items() if count == 1)
            if single and len(case.workloads) == 1:
                field = _UPDATE_FIELD
                why = f"a StatefulSet replaces pod by pod, and {single[0]} has a single one"
        case DaemonSet():
            bounds = daemon_bounds(source.spec.update_strategy, sum(context.nodes_by_zone.values()))
            smallest = min(context.nodes_by_zone.values())
            if context.has_given_nodes and bounds.max_unavailable >= smallest:
                field = _UPDATE_FIELD
                why = (
                    f"{bounds.max_unavailable} pods may be unavailable, and the smallest zone has "
                    f"{smallest}"
                )
        case _:
            pass
    if why:
        yield rules.ROLLOUT_EMPTIES_ZONE.found(
            workload.name,
            field,
            f"{why}, so a rollout leaves a zone of Service {case.service.key} without endpoints",
            "run more pods in each zone, or replace fewer at once",
        )


def _check_budgets(
    workload: LintedWorkload, case: ServiceCase, context: LintContext
) -> Iterator[LintFinding]:
    replicas = context.replicas_of(workload)
    # A drain does not evict the pods of a DaemonSet.
    if workload.replicas is None or replicas == 0:
        return
    budgets = context.budgets_of(workload)
    if not budgets and replicas > 1:
        yield rules.NO_DISRUPTION_BUDGET.found(
            workload.name,
            f"{TEMPLATE_FIELD}.metadata.labels",
            f"no budget bounds how many pods of Service {case.service.key} are evicted at once",
            "add a PodDisruptionBudget with maxUnavailable 1",
        )
    smallest = min(context.count_by_zone(place_evenly(workload, context)).values(), default=0)
    for budget in budgets:
        permitted = replicas - desired_healthy(budget, pods=replicas, replicas=replicas)
        subject = ObjectName.of(budget.kind, budget.metadata)
        if len(budgets) > 1:
            yield rules.BUDGET_BLOCKS.found(
                subject,
                "spec.selector",
                f"{len(budgets)} budgets cover the pods of {workload.name}, and then none is ever "
                "evicted",
                "keep one of them",
            )
        elif permitted <= 0:
            yield rules.BUDGET_BLOCKS.found(
                subject,
                _budget_field(budget.spec.max_unavailable is not None),
                f"permits no eviction of {workload.name} with {replicas} replicas, so drains "
                "never end",
                "write maxUnavailable 1 without minAvailable",
            )
        elif permitted > 1 and permitted >= smallest > 0 and len(context.zones) > 1:
            yield rules.BUDGET_EMPTIES_ZONE.found(
                subject,
                _budget_field(budget.spec.max_unavailable is not None),
                f"permits {permitted} evictions at once, and a zone has {smallest} pods of "
                f"{workload.name}, {context.basis}",
                f"permit at most {max(1, smallest - 1)}",
            )


def _budget_field(has_max: bool) -> str:
    return "spec.maxUnavailable" if has_max else "spec.minAvailable"
