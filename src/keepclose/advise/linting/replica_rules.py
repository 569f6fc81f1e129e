"""Rules about the number of replicas, autoscalers, and the limits of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keepclose.advise.linting import rules
from keepclose.advise.linting.context import LintContext, ServiceCase
from keepclose.advise.linting.findings import LintFinding, ObjectName
from keepclose.advise.linting.promises import MAX_COUNTED, ReplicaAdvice, ServicePromise
from keepclose.advise.linting.workload_kinds import Autoscaler, LintedWorkload
from keepclose.advise.routed_traffic import SHARE_ROUNDING
from keepclose.model.well_known import HOSTNAME_LABEL
from keepclose.routing.strategy import StrategyName

_WELL_PER_ZONE = 3
_NAMED = 8


def check_replicas(promise: ServicePromise, context: LintContext) -> Iterator[LintFinding]:
    """Yield the findings about the number of replicas of a Service that prefers its zone."""
    case, zones = promise.case, len(context.zones)
    scalable = [each for each in case.workloads if each.replicas is not None]
    is_per_node = len(scalable) < len(case.workloads)
    if zones >= 2 and scalable and not is_per_node:
        scaled = [each for each in scalable if context.autoscaler_of(each) is not None]
        if not scaled:
            yield from _check_count(promise, scalable, context)
        for workload in scaled:
            autoscaler = context.autoscaler_of(workload)
            # The autoscaler of one zone's workload knows nothing of the others.
            if autoscaler is not None and len(scalable) == 1 and not workload.zones:
                yield from _check_autoscaler(promise, workload, autoscaler, context)
    if zones >= 2 and promise.given_pods and context.has_given_nodes:
        yield from _check_given_pods(promise, context)
    if case.strategy.name is StrategyName.SAME_NODE:
        yield from _check_same_node(case)


def check_limits(promise: ServicePromise, context: LintContext) -> Iterator[LintFinding]:
    """Yield the findings about the limits of the command line."""
    limits, case = context.limits, promise.case
    if limits.min_in_zone is None and limits.max_load is None and limits.min_ready_per_zone is None:
        return
    pods = promise.pods_by_node()
    if pods is None or not context.zones:
        return
    basis = "with the given pods" if case.pods else context.basis
    placed = promise.measure(pods)
    if limits.min_in_zone is not None and placed.in_zone < limits.min_in_zone - SHARE_ROUNDING:
        yield rules.TOO_LITTLE_IN_ZONE.found(
            case.name,
            case.strategy_field,
            f"{100 * placed.in_zone:.0f} % of the traffic stays in its zone, less than "
            f"{100 * limits.min_in_zone:g} %, {basis}",
            "run pods in every zone, in proportion to its clients",
        )
    if limits.max_load is not None and placed.busiest > limits.max_load * (1 + SHARE_ROUNDING):
        advice = promise.advise_replicas(limits.max_load)
        yield rules.TOO_MUCH_LOAD.found(
            case.name,
            case.strategy_field,
            f"the busiest endpoint carries {placed.busiest:.2f}x the mean, more than "
            f"{limits.max_load:g}x, {basis}",
            _advise_load(advice),
        )
    if limits.min_ready_per_zone is not None:
        by_zone = context.count_by_zone(pods)
        short = [zone for zone in context.zones if by_zone[zone] < limits.min_ready_per_zone]
        if short:
            listed = ", ".join(f"{zone} {by_zone[zone]}" for zone in short[:_NAMED])
            yield rules.TOO_FEW_READY.found(
                case.name,
                "spec.selector",
                f"fewer than {limits.min_ready_per_zone} endpoints: {listed}, {basis}",
                f"run at least {promise.least_replicas} replicas, evenly spread",
            )


def _check_count(
    promise: ServicePromise, scalable: list[LintedWorkload], context: LintContext
) -> Iterator[LintFinding]:
    case, zones = promise.case, len(context.zones)
    count = sum(map(context.replicas_of, scalable))
    subject = scalable[0].name
    named = f"for Service {case.service.key}"
    reason = promise.why_no_hints(count)
    if reason is not None:
        near = _near_counts(promise, count)
        yield rules.AUTO_LOSES_HINTS.found(
            subject,
            "spec.replicas",
            f"topology mode Auto gives no hints: {reason.message}, {named}, {context.basis}",
            f"run {near} replicas" if near else reason.fix or "use PreferSameZone",
        )
    if promise.is_auto and count < _WELL_PER_ZONE * zones:
        yield rules.AUTO_FEW_REPLICAS.found(
            subject,
            "spec.replicas",
            f"{count} replicas are fewer than three for each of {zones} zones, {named}",
            f"run at least {_WELL_PER_ZONE * zones} replicas",
        )
    elif not promise.is_auto and count < zones:
        yield rules.FEWER_REPLICAS_THAN_ZONES.found(
            subject,
            "spec.replicas",
            f"{count} replicas cannot be in each of {zones} zones, {named}, {context.basis}",
            f"run at least {zones} replicas",
        )


def _check_given_pods(promise: ServicePromise, context: LintContext) -> Iterator[LintFinding]:
    case = promise.case
    by_zone = context.count_by_zone(promise.given_pods)
    ready = sum(by_zone.values())
    reason = promise.why_no_hints(ready)
    if reason is not None:
        near = _near_counts(promise, ready)
        yield rules.AUTO_LOSES_HINTS.found(
            case.name,
            case.strategy_field,
            f"topology mode Auto gives no hints now: {reason.message}",
            f"run {near} ready pods" if near else reason.fix or "use PreferSameZone",
        )
    empty = [zone for zone in context.zones if not by_zone[zone]]
    if empty:
        more = f" and {len(empty) - _NAMED} more" if len(empty) > _NAMED else ""
        yield rules.ZONE_WITHOUT_ENDPOINT.found(
            case.name,
            "spec.selector",
            f"no pod is ready in {', '.join(empty[:_NAMED])}{more}, of {ready} ready pods",
            "run endpoints in every zone, in proportion to its clients",
        )


def _check_autoscaler(
    promise: ServicePromise,
    workload: LintedWorkload,
    autoscaler: Autoscaler,
    context: LintContext,
) -> Iterator[LintFinding]:
    case, zones = promise.case, len(context.zones)
    subject = _name_autoscaler(autoscaler)
    least = promise.least_replicas
    if autoscaler.least < least:
        yield rules.AUTOSCALER_BELOW.found(
            subject,
            "spec.minReplicas",
            f"{autoscaler.least} replicas of {workload.name} are fewer than the {least} that "
            f"{zones} zones need for Service {case.service.key}",
            f"set minReplicas to at least {least}",
        )
    lost = [
        count
        for count in range(
            max(autoscaler.least, 1), min(MAX_COUNTED, autoscaler.spec.max_replicas) + 1
        )
        if promise.loses_hints(count)
    ]
    if lost:
        listed = ", ".join(map(str, lost[:_NAMED])) + (" and more" if len(lost) > _NAMED else "")
        yield rules.AUTOSCALER_CROSSES.found(
            subject,
            "spec.minReplicas",
            f"topology mode Auto gives no hints with {listed} replicas, for Service "
            f"{case.service.key}",
            _avoid_counts(lost, autoscaler),
        )


def _check_same_node(case: ServiceCase) -> Iterator[LintFinding]:
    for workload in case.workloads:
        constraints = workload.pod.topology_spread_constraints
        if workload.is_one_per_node or any(
            constraint.topology_key == HOSTNAME_LABEL
            and constraint.when_unsatisfiable == "DoNotSchedule"
            for constraint in constraints
        ):
            continue
        yield rules.SAME_NODE_NOT_SPREAD.found(
            workload.name,
            "spec.template.spec",
            f"Service {case.service.key} prefers the node, and nothing spreads the pods over nodes",
            f"run a DaemonSet, or spread over {HOSTNAME_LABEL}",
        )


def _avoid_counts(lost: Sequence[int], autoscaler: Autoscaler) -> str:
    """Return what keeps an autoscaler from the numbers that lose hints."""
    if lost[-1] < autoscaler.spec.max_replicas:
        return f"set minReplicas to {lost[-1] + 1} or more, or use PreferSameZone"
    return "use PreferSameZone: no minReplicas up to maxReplicas avoids them"


def _name_autoscaler(autoscaler: Autoscaler) -> ObjectName:
    """Return the name of an autoscaler."""
    return ObjectName.of(autoscaler.kind, autoscaler.metadata)


def _near_counts(promise: ServicePromise, count: int) -> str:
    """Return the nearest numbers that give hints, below and above."""
    below = next((n for n in range(count - 1, 0, -1) if not promise.loses_hints(n)), 0)
    above = [n for n in range(count + 1, MAX_COUNTED) if not promise.loses_hints(n)][:2]
    return _alternatives([below, *above] if below else above)


def _alternatives(numbers: Sequence[int]) -> str:
    """Return numbers as a choice: "3, 6 or 7"; "" for none."""
    *most, last = map(str, numbers) if numbers else ("",)
    return f"{', '.join(most)} or {last}" if most else last


def _advise_load(advice: ReplicaAdvice | None) -> str:
    if advice is None or not (advice.within_load or advice.by_zone):
        return "spread the pods in proportion to the clients of each zone"
    if not advice.within_load:
        divided = ", ".join(f"{count} in {zone}" for zone, count in advice.by_zone.items())
        return f"run {divided}"
    return f"run {_alternatives(advice.within_load[:4])} replicas, evenly spread over the zones"
