"""Causes in hints: those that stand in the slices, beside those that the planner would write.

A controller that does not know the mechanism writes no hints; one that is behind leaves old ones.
Since when the controller of Kubernetes knows a value follows from the history of its gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.proxy_causes import minor_version
from keepclose.advise.explaining.service_facts import ServiceFacts
from keepclose.advise.explaining.slice_causes import (
    SliceDifference,
    describe_slices,
    endpoints_by_address,
    hints_of,
)
from keepclose.model.gates import CURRENT_MINOR, gates_at
from keepclose.routing.strategy import HINTING_STRATEGIES, StrategyName, choose_strategy

KUBERNETES_VALUES: Final = frozenset(
    {StrategyName.SAME_ZONE, StrategyName.SAME_NODE, StrategyName.AUTO}
)
"""Mechanisms that the EndpointSlice controller of Kubernetes knows."""
_FIRST_RELEASE: Final = 24
"""The release in which hints were switched on."""
_BY_LOCATION: Final = (StrategyName.SAME_ZONE, StrategyName.SAME_NODE)


def explain_hints(facts: ServiceFacts, difference: SliceDifference) -> Iterator[TrafficCause]:
    """Yield hints that should be there and are not, and those that should not."""
    if not difference.hints:
        return
    strategy = facts.planned.strategy
    written, planned = (
        endpoints_by_address(facts.written),
        endpoints_by_address(facts.planned.slices),
    )
    lacking = [each for each in difference.hints if hints_of(written[each][0]) == ("", "")]
    left_over = [each for each in difference.hints if hints_of(planned[each][0]) == ("", "")]
    ready = sum(each.is_ready for held in facts.written for each in held.endpoints)
    if left_over:
        why = "no mechanism asks for hints now"
        if strategy.name in HINTING_STRATEGIES:
            why = f"{strategy.label} gives none now"
        yield TrafficCause(
            TrafficCauseCode.HINTS_LEFT_OVER,
            f"{len(left_over)} of {ready} ready endpoints have hints, and {why}: nodes still "
            "follow them",
            facts.subject,
            fix=describe_slices(facts),
        )
    elif lacking and strategy.name in HINTING_STRATEGIES:
        yield TrafficCause(
            TrafficCauseCode.HINTS_NOT_WRITTEN,
            f"{len(lacking)} of {ready} ready endpoints have no hint, and {strategy.label} would "
            f"hint them: {_who_writes(facts)}",
            facts.subject,
            fix=_fix_of_hints(facts),
        )
    else:
        yield TrafficCause(
            TrafficCauseCode.HINTS_DIFFER,
            f"{len(difference.hints)} of {ready} ready endpoints have other hints than "
            f"{strategy.label} would write, such as {difference.hints[0]}: nodes go by the written "
            "ones",
            facts.subject,
            fix=describe_slices(facts),
            # Mechanisms that balance may choose between hints that are as good.
            weight=CauseWeight.DEFEATS if strategy.name in _BY_LOCATION else CauseWeight.NOTE,
        )


def _who_writes(facts: ServiceFacts) -> str:
    """Return why the controller has not written hints, as far as versions show it."""
    since = _known_since(facts)
    if since is None:
        return "the EndpointSlice controller of Kubernetes does not know this mechanism"
    planes = [minor_version(node) for node in facts.inventory.nodes if node.is_excluded]
    old = [minor for minor in planes if minor is not None and minor < since]
    if old:
        return (
            f"the control plane runs Kubernetes 1.{min(old)}, and its controller knows the value "
            f"since 1.{since}"
        )
    return (
        "the controller has not written them, or does not know the value, as before Kubernetes "
        f"1.{since}"
    )


def _known_since(facts: ServiceFacts) -> int | None:
    """Return the first release 1.NN whose controller by default does what the Service asks for."""
    strategy = facts.planned.strategy
    if strategy.name not in KUBERNETES_VALUES or "keepclose.dev" in strategy.source:
        return None
    for minor in range(_FIRST_RELEASE, CURRENT_MINOR + 1):
        if choose_strategy(facts.service, gates=gates_at(minor)).name is strategy.name:
            return minor
    return None


def _fix_of_hints(facts: ServiceFacts) -> str:
    since = _known_since(facts)
    if since is None:
        return "keepclose controller --mode=webhook --webhook-url https://HOST:PORT"
    return f"kubectl version  # a server of 1.{since} or newer writes these hints"
