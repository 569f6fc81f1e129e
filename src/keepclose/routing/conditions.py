"""Status conditions of a Service: trafficDistribution accepted, programmed, honored.

KEP-4444 sketches TrafficDistributionAccepted and TrafficDistributionProgrammed for the controller
that writes hints, and leaves TrafficDistributionHonored until a data plane can answer. The
transition time of a condition changes only with its status, so an unchanged decision never causes
a write. Conditions of other controllers are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from keepclose.model.field_errors import describe_fields
from keepclose.model.meta import Condition
from keepclose.routing.hint_facts import FactsOf, slice_facts
from keepclose.routing.hints import SliceSet
from keepclose.routing.honored_condition import (
    HONORED,
    Acknowledgements,
    ConditionReason,
    Obstacle,
    judge_honored,
)
from keepclose.routing.strategy import DistributionVerdict, Strategy, StrategyName

ACCEPTED = "TrafficDistributionAccepted"
PROGRAMMED = "TrafficDistributionProgrammed"


def service_conditions(
    strategy: Strategy,
    slices: SliceSet,
    *,
    prefix: str = "",
    write_failed: str = "",
    dropped: tuple[str, ...] = (),
    heuristic_failed: str = "",
    rival: str = "",
    acknowledgements: Acknowledgements | Obstacle | None = None,
    facts: FactsOf = slice_facts,
) -> tuple[Condition, ...]:
    """Return the conditions without times; none if the Service has no trafficDistribution.

    `slices` are the slices as stored or as planned. `dropped` names their fields that the API
    server did not keep, and `rival` a controller that undoes the writes.

    `prefix` is the domain of an implementation beside the EndpointSlice controller, such as
    "keepclose.dev/". `write_failed` and `heuristic_failed` describe a failure, "" for none.
    Honored appears only with acknowledgements, and only if hints are programmed.
    """
    if strategy.distribution is DistributionVerdict.ABSENT:
        return ()
    accepted = _accepted(strategy)
    programmed = _programmed(
        strategy,
        accepted,
        slices,
        write_failed=write_failed,
        dropped=dropped,
        heuristic_failed=heuristic_failed,
        rival=rival,
        facts=facts,
    )
    conditions = tuple(
        msgspec.structs.replace(condition, type=prefix + condition.type)
        for condition in (accepted, programmed)
    )
    return add_honored(conditions, acknowledgements, prefix=prefix)


def is_programmed(conditions: Iterable[Condition], *, prefix: str = "") -> bool:
    """Return whether the condition Programmed is True, so that nodes have hints to honor."""
    programmed = prefix + PROGRAMMED
    return any(
        condition.type == programmed and condition.status == "True" for condition in conditions
    )


def add_honored(
    conditions: tuple[Condition, ...],
    acknowledgements: Acknowledgements | Obstacle | None,
    *,
    prefix: str = "",
) -> tuple[Condition, ...]:
    """Return the conditions with Honored added.

    Without acknowledgements, or if no hints are programmed, they are returned as they are.
    """
    if acknowledgements is None or not is_programmed(conditions, prefix=prefix):
        return conditions
    honored = judge_honored(acknowledgements)
    return (*conditions, msgspec.structs.replace(honored, type=prefix + honored.type))


def has_ours(conditions: Iterable[Condition], *, prefix: str = "") -> bool:
    """Return whether any condition is of a type that keepclose writes, in any process."""
    ours = _own_types(prefix)
    return any(condition.type in ours for condition in conditions)


def merge_conditions(
    present: Iterable[Condition], desired: Iterable[Condition], *, now: str, prefix: str = ""
) -> tuple[Condition, ...]:
    """Return the conditions of the Service with keepclose's replaced in place, others untouched.

    The result equals `present` if nothing differs, so that the caller writes only changes.
    """
    new = {condition.type: condition for condition in desired}
    ours = _own_types(prefix)
    merged = []
    for old in present:
        if old.type in new:
            condition = new.pop(old.type)
            same = old.status == condition.status
            since = old.last_transition_time if same else now
            merged.append(msgspec.structs.replace(condition, last_transition_time=since))
        elif old.type not in ours:
            merged.append(old)
    merged.extend(
        msgspec.structs.replace(added, last_transition_time=now) for added in new.values()
    )
    return tuple(merged)


def _own_types(prefix: str) -> frozenset[str]:
    return frozenset({prefix + name for name in (ACCEPTED, PROGRAMMED, HONORED)})


def _accepted(strategy: Strategy) -> Condition:
    match strategy.distribution:
        case DistributionVerdict.UNSUPPORTED:
            reason, status = ConditionReason.UNSUPPORTED_VALUE, "False"
        case DistributionVerdict.DISABLED:
            reason, status = ConditionReason.FEATURE_DISABLED, "False"
        case _:
            reason, status = ConditionReason.ACCEPTED, "True"
    message = strategy.reasons[-1].message if strategy.reasons else ""
    return Condition(type=ACCEPTED, status=status, reason=reason, message=message)


def _programmed(
    strategy: Strategy,
    accepted: Condition,
    slices: SliceSet,
    *,
    write_failed: str,
    dropped: tuple[str, ...],
    heuristic_failed: str,
    rival: str,
    facts: FactsOf,
) -> Condition:
    def false(reason: ConditionReason, message: str) -> Condition:
        return Condition(type=PROGRAMMED, status="False", reason=reason, message=message)

    if strategy.distribution is DistributionVerdict.OVERRIDDEN:
        return false(
            ConditionReason.OVERRIDDEN_BY_ANNOTATION, f"{strategy.source} takes precedence"
        )
    if accepted.status == "False":
        return false(ConditionReason.NOT_ACCEPTED, "no hints are written for this value")
    if rival:
        return false(
            ConditionReason.CONTENDED, f"{rival} keeps undoing what is written to the slices"
        )
    if write_failed:
        return false(ConditionReason.WRITE_FAILED, write_failed)
    if heuristic_failed:
        return false(ConditionReason.HEURISTIC_FAILED, f"{strategy.value}: {heuristic_failed}")
    hint_facts = [facts(endpoint_slice) for endpoint_slice in slices.all]
    ready = sum(slice_fact.ready for slice_fact in hint_facts)
    if ready == 0:
        return false(ConditionReason.NO_ENDPOINTS, "there is no ready endpoint")
    zones = sum(slice_fact.zone_hinted for slice_fact in hint_facts)
    nodes = sum(slice_fact.node_hinted for slice_fact in hint_facts)
    wants_node = strategy.name is StrategyName.SAME_NODE
    if zones < ready or (wants_node and nodes < ready):
        if dropped:
            return false(ConditionReason.FIELD_DROPPED, describe_fields(dropped))
        if strategy.name is StrategyName.CUSTOM and zones == 0:
            return false(ConditionReason.NOT_ALLOCATED, "the heuristic gave no allocation")
        lacking = ready - min(zones, nodes if wants_node else zones)
        return false(
            ConditionReason.MISSING_TOPOLOGY,
            f"{lacking} of {ready} ready endpoints lack the zone or node to be hinted with",
        )
    return Condition(
        type=PROGRAMMED,
        status="True",
        reason=ConditionReason.HINTS_POPULATED,
        message=f"all {ready} ready endpoints are hinted",
    )
