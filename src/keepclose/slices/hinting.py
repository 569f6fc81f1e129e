"""From the mechanism that governs a Service to hints on its slices.

Hints are put on after packing, so that switching mechanisms rewrites only slices whose hints are
wrong. A Service has subset labels or hints, never both: whoever does not write hints removes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from keepclose.model.gates import Gate
from keepclose.routing.auto import allocate
from keepclose.routing.events import TopologyEvent
from keepclose.routing.heuristic_answers import Answer, Failure, ZoneDemand
from keepclose.routing.heuristics import apply_heuristic
from keepclose.routing.hint_facts import FactsOf
from keepclose.routing.hints import SliceSet, hint_own, own_hint_reasons, remove_hints
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.strategy import Strategy, StrategyName
from keepclose.slices.settings import Cluster, Settings


class Hinting(msgspec.Struct, frozen=True):
    """Hinted slices, what to tell the user, and why; `totals` is what Auto allocated to zones.

    `failure` and `question` are those of a custom heuristic that failed or answers later.
    """

    slices: SliceSet
    events: tuple[TopologyEvent, ...] = ()
    reasons: tuple[Reason, ...] = ()
    totals: dict[str, int] | None = None
    failure: Failure | None = None
    question: ZoneDemand | None = None


def hint_slices(
    strategy: Strategy,
    slices: SliceSet,
    *,
    cluster: Cluster,
    settings: Settings,
    address_type: str,
    node_hints: bool,
    populated: bool,
    facts: FactsOf,
    answers: Sequence[tuple[ZoneDemand, Answer]] = (),
) -> Hinting:
    """Return the slices with the hints that the mechanism wants.

    `node_hints` lays node-level topology over it, where the mechanism allows that. `populated`
    says whether the Service had hints of the mode Auto before. `answers` are those that a custom
    heuristic gave elsewhere.
    """
    match strategy.name:
        case StrategyName.SAME_ZONE:
            return _own(slices, zones=True, nodes=node_hints, facts=facts)
        case StrategyName.SAME_NODE:
            return _own(slices, zones=True, nodes=True, facts=facts)
        case StrategyName.NODE_LEVEL:
            return _own(slices, zones=False, nodes=True, facts=facts)
        case StrategyName.AUTO:
            result = allocate(
                slices,
                ratios=cluster.ratios.ratios,
                address_type=address_type,
                populated=populated,
                node_hints=node_hints,
                facts=facts,
            )
            reasons = result.reasons
            if reasons and reasons[0].code is ReasonCode.INSUFFICIENT_NODE_INFO:
                reasons += cluster.ratios.reasons
            return Hinting(result.slices, result.events, reasons, result.totals)
        case StrategyName.CUSTOM:
            heuristic = settings.heuristics[strategy.value]
            answer = apply_heuristic(
                slices,
                heuristic,
                shares=cluster.shares.by_zone,
                name=strategy.value,
                answers=answers,
                node_hints=node_hints,
                facts=facts,
            )
            return Hinting(
                answer.slices,
                reasons=answer.reasons,
                failure=answer.failure,
                question=answer.question,
            )
        case _:
            return Hinting(remove_hints(slices, facts=facts))


def may_overlay(strategy: Strategy, settings: Settings) -> bool:
    """Return whether node-level topology can be laid over the mechanism at all."""
    return settings.gates.on(Gate.NODE_LEVEL_TOPOLOGY) and strategy.name not in (
        StrategyName.TOPOLOGY_KEYS,
        StrategyName.SUBSETTING,
        StrategyName.NODE_LEVEL,
    )


def _own(slices: SliceSet, *, zones: bool, nodes: bool, facts: FactsOf) -> Hinting:
    return Hinting(
        hint_own(slices, zones=zones, nodes=nodes, facts=facts),
        reasons=own_hint_reasons(slices, zones=zones, nodes=nodes, facts=facts),
    )
