"""From the mechanism that governs a Service to hints on its slices.

Hints are put on after packing, so that switching mechanisms rewrites only slices whose hints are
wrong. A Service has subset labels or hints, never both: whoever does not write hints removes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint
from keepclose.model.gates import Gate
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.well_known import NODE_TOPOLOGY_ANNOTATION
from keepclose.model.workload import Pod
from keepclose.routing.auto import allocate_proportionally
from keepclose.routing.heuristic_answers import HeuristicAnswer, HeuristicFailure, ZoneDemand
from keepclose.routing.heuristics import apply_heuristic, assign
from keepclose.routing.hint_facts import FactsOf
from keepclose.routing.hints import SliceSet, hint_own, own_hint_reasons, remove_hints
from keepclose.routing.node_level import (
    EndpointOwner,
    NodeLevelDecision,
    controller_of,
    node_overlay,
)
from keepclose.routing.reasons import Reason, ReasonCode, TopologyEvent
from keepclose.routing.strategy import (
    Strategy,
    StrategyName,
    Verdict,
    annotation_path,
    topology_annotation,
)
from keepclose.routing.subsets import (
    Approach,
    Level,
    SubsetDecision,
    SubsetMode,
    SubsetOptions,
    decide_subsets,
)
from keepclose.slices.placement import Placement
from keepclose.slices.settings import Cluster, Settings

DETECTION = "detection"
Members = dict[str, dict[str, set[NamespacedName]]]
"""Ready endpoints by the zone they are in and the zone of the slice that holds them."""


class Hosts:
    """Where the ready pods of one Service run, and whose they are."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, OwnerReference | None]] = Counter()
        self._filed: dict[NamespacedName, tuple[str, OwnerReference | None]] = {}

    def put(self, pod: Pod) -> None:
        """Count a pod that is ready, in place of what it was counted as before."""
        self.remove(pod.key)
        host = (pod.spec.node_name, controller_of(pod.metadata.owner_references))
        self._filed[pod.key] = host
        self._counts[host] += 1

    def remove(self, source: NamespacedName) -> None:
        """Stop counting a pod; one that was not counted does no harm."""
        host = self._filed.pop(source, None)
        if host is not None:
            self._counts[host] -= 1
            if self._counts[host] == 0:
                del self._counts[host]

    def pairs(self) -> list[EndpointOwner]:
        """Return each pair of node and owner once, in an order that does not depend on history."""
        found: list[EndpointOwner] = list(self._counts)
        found.sort(key=_order)
        return found


def _order(host: EndpointOwner) -> tuple[str, str]:
    return host[0] or "", "" if host[1] is None else host[1].uid


def decide_overlay(
    service: Service,
    strategy: Strategy,
    *,
    cluster: Cluster,
    settings: Settings,
    endpoints: Callable[[], Sequence[EndpointOwner]],
    previously_on: Callable[[], bool],
) -> NodeLevelDecision | None:
    """Return the decision about node hints; None where the mechanism leaves no room for one.

    `endpoints` gives node and owner of the ready endpoints, each pair once; `previously_on` says
    whether some endpoint has a node hint now.
    """
    if not may_overlay(strategy, settings):
        return None
    wish = strategy.distribution is not Verdict.ABSENT
    return node_overlay(
        annotation=service.metadata.annotations.get(NODE_TOPOLOGY_ANNOTATION),
        mode=settings.node_level_mode,
        explicit=wish or topology_annotation(service)[1] is not None,
        nodes=cluster.nodes.values(),
        endpoints=endpoints(),
        previously_on=previously_on(),
        options=settings.node_level,
    )


def lay_over(strategy: Strategy, overlay: NodeLevelDecision | None) -> Strategy:
    """Return what governs: where nothing else did, node-level topology does once it is on."""
    if overlay is None or not overlay.on or strategy.name is not StrategyName.NONE:
        return strategy
    asked = any(reason.code is ReasonCode.NODE_HINTS_ADDED for reason in overlay.reasons)
    message = "node-level topology was found to suit the Service"
    found = () if asked else (Reason(ReasonCode.NODE_LEVEL_DETECTED, message),)
    return replace(
        strategy,
        name=StrategyName.NODE_LEVEL,
        source=annotation_path(NODE_TOPOLOGY_ANNOTATION) if asked else DETECTION,
        reasons=(*strategy.reasons, *found),
    )


class Division:
    """The groups of one Service and address type."""

    def __init__(self, placement: Placement, locate: Callable[[Endpoint], str]) -> None:
        """Take the endpoints and how the group is found that an endpoint is at home in."""
        self._placement = placement
        self._locate = locate
        self._ready: Members = {}
        self._filed: dict[NamespacedName, tuple[str, str]] = {}
        self._idle: set[NamespacedName] = set()
        self._moved: set[NamespacedName] = set()
        self.refile(source for source, _, _ in placement.wanted())

    def refile(self, sources: Iterable[NamespacedName]) -> None:
        """Take note of endpoints that came, went, changed, or were seen in another slice."""
        for source in sources:
            old = self._filed.pop(source, None)
            if old is not None:
                self._ready[old[0]][old[1]].discard(source)
            self._idle.discard(source)
            endpoint = self._placement.endpoint(source)
            if endpoint is None:
                continue
            if endpoint.is_ready:
                place = (self._locate(endpoint), self._placement.written_zone(source))
                self._filed[source] = place
                self._ready.setdefault(place[0], {}).setdefault(place[1], set()).add(source)
                self._placement.regroup(source, place[1])
            else:
                self._idle.add(source)

    def divide(
        self,
        *,
        approach: Approach,
        shares: Mapping[str, float],
        options: SubsetOptions,
        level: Level = Level.ZONE,
    ) -> SubsetDecision:
        """Put every endpoint into its group and return the decision that led there."""
        located = {zone: sum(map(len, groups.values())) for zone, groups in self._ready.items()}
        placed: dict[str, dict[str, int]] = {}
        for zone, groups in self._ready.items():
            for group, members in groups.items():
                if group and members:
                    placed.setdefault(group, {})[zone] = len(members)
        decision = decide_subsets(
            approach=approach,
            shares=shares,
            located=located,
            placed=placed,
            active=self._placement.is_divided,
            options=options,
            level=level,
        )
        if decision.mode is SubsetMode.RANDOM:
            self.undo()
            return decision
        for source in self._moved:
            # What the last plan moved counts only once it was seen written.
            self._placement.regroup(source, self._filed.get(source, ("", ""))[1])
        changes = assign(decision.target, self._ready)
        for source, group in changes.items():
            self._placement.regroup(source, group)
        self._moved = set(changes)
        self._place_idle(sorted({g for row in decision.target.values() for g in row}))
        return decision

    def undo(self) -> None:
        """Put all endpoints into the one group that everybody uses."""
        grouped = self._placement.grouped()
        for source in grouped:
            self._placement.regroup(source, "")
        self._moved.update(grouped)

    def _place_idle(self, groups: list[str]) -> None:
        # Endpoints that are not ready carry no traffic: they wait where they are, or at home.
        for source in self._idle:
            endpoint = self._placement.endpoint(source)
            home = "" if endpoint is None else self._locate(endpoint)
            written = self._placement.written_zone(source)
            choices = [zone for zone in (written, home, *groups) if zone in groups]
            self._placement.regroup(source, choices[0])


class Hinting(msgspec.Struct, frozen=True):
    """Hinted slices, what to tell the user, and why; `totals` is what Auto allocated to zones.

    `failure` and `question` are those of a custom heuristic that failed or answers later.
    """

    slices: SliceSet
    events: tuple[TopologyEvent, ...] = ()
    reasons: tuple[Reason, ...] = ()
    totals: dict[str, int] | None = None
    failure: HeuristicFailure | None = None
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
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
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
            result = allocate_proportionally(
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
