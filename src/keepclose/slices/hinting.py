"""From the mechanism that governs a Service to the hints and groups of its endpoints.

Hints are set after packing, so a change of the mechanism rewrites only slices whose hints are
wrong. A Service has subset labels or hints, never both: a mechanism that sets no hints removes
them. Node hints may overlay the mechanism (KEP-3015, second draft); plans from pods and plans over
slices of another controller share that decision.

For subsetting (KEP-2004) `SubsetGroups` turns counts per group into concrete endpoints. The slices
as written are the only memory: the group of an endpoint is the zone label of its slice, so a
restart changes nothing. Costs follow what changed, not what exists: nodes and owners of ready pods
are counted, because a Service with thousands of pods has few such pairs.
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
from keepclose.model.zone_weights import ZoneWeights
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND
from keepclose.routing.auto import allocate_proportionally
from keepclose.routing.balanced import Balanced, read_balance_limits
from keepclose.routing.heuristic_answers import HeuristicAnswer, HeuristicFailure, ZoneDemand
from keepclose.routing.heuristics import WeightContext, apply_heuristic, assign_groups
from keepclose.routing.hint_facts import FactsOf
from keepclose.routing.hints import SliceSet, hint_own, own_hint_reasons, remove_hints
from keepclose.routing.local_groups import LocalHeuristic, read_group_limits
from keepclose.routing.node_level import (
    EndpointOwner,
    NodeLevelDecision,
    controller_of,
    node_overlay,
)
from keepclose.routing.reasons import Reason, ReasonCode, TopologyEvent
from keepclose.routing.strategy import (
    DistributionVerdict,
    Strategy,
    StrategyName,
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
from keepclose.routing.traffic_shares import Shares
from keepclose.routing.zone_weights import read_weights_request
from keepclose.slices.placement import Placement
from keepclose.slices.settings import ClusterNodes, PlannerSettings

DETECTION = "detection"
_Members = dict[str, dict[str, set[NamespacedName]]]
"""Ready endpoints by the zone they are in and the zone of the slice that holds them."""


_ONLY_HINTS = Reason(
    ReasonCode.WEIGHTS_WITHHELD,
    "weights are not written: beside another EndpointSlice controller only hints are",
    fix="run keepclose controller in place of the other controller",
)


class EndpointOwners:
    """The nodes and controllers of the ready pods of one Service, counted by pair."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, OwnerReference | None]] = Counter()
        self._by_pod: dict[NamespacedName, tuple[str, OwnerReference | None]] = {}

    def put(self, pod: Pod) -> None:
        """Count a ready pod; an earlier count of the same pod is replaced."""
        self.remove(pod.key)
        owner = (pod.spec.node_name, controller_of(pod.metadata.owner_references))
        self._by_pod[pod.key] = owner
        self._counts[owner] += 1

    def remove(self, pod_key: NamespacedName) -> None:
        """Stop counting a pod; an unknown pod is ignored."""
        owner = self._by_pod.pop(pod_key, None)
        if owner is not None:
            self._counts[owner] -= 1
            if self._counts[owner] == 0:
                del self._counts[owner]

    def pairs(self) -> list[EndpointOwner]:
        """Return each pair of node and owner once, in an order independent of history."""
        pairs: list[EndpointOwner] = list(self._counts)
        pairs.sort(key=_owner_order)
        return pairs


def _owner_order(owner: EndpointOwner) -> tuple[str, str]:
    return owner[0] or "", "" if owner[1] is None else owner[1].uid


def decide_overlay(
    service: Service,
    strategy: Strategy,
    *,
    cluster: ClusterNodes,
    settings: PlannerSettings,
    endpoints: Callable[[], Sequence[EndpointOwner]],
    previously_on: Callable[[], bool],
) -> NodeLevelDecision | None:
    """Return the decision about node hints; None if the mechanism excludes them.

    `endpoints` returns node and owner of the ready endpoints, each pair once. `previously_on`
    returns whether an endpoint has a node hint now. Both are functions because they are costly, and
    most Services are decided without them.
    """
    if not may_overlay(strategy, settings):
        return None
    has_distribution = strategy.distribution is not DistributionVerdict.ABSENT
    return node_overlay(
        annotation=service.metadata.annotations.get(NODE_TOPOLOGY_ANNOTATION),
        mode=settings.node_level_mode,
        explicit=has_distribution or topology_annotation(service)[1] is not None,
        nodes=cluster.nodes.values(),
        endpoints=endpoints(),
        previously_on=previously_on(),
        options=settings.node_level,
    )


def apply_overlay(strategy: Strategy, overlay: NodeLevelDecision | None) -> Strategy:
    """Return the governing strategy: node-level topology if it is on and nothing else governs."""
    if overlay is None or not overlay.on or strategy.name is not StrategyName.NONE:
        return strategy
    asked = any(reason.code is ReasonCode.NODE_HINTS_ADDED for reason in overlay.reasons)
    message = "node-level topology was found to suit the Service"
    detected = () if asked else (Reason(ReasonCode.NODE_LEVEL_DETECTED, message),)
    return replace(
        strategy,
        name=StrategyName.NODE_LEVEL,
        source=annotation_path(NODE_TOPOLOGY_ANNOTATION) if asked else DETECTION,
        reasons=(*strategy.reasons, *detected),
    )


class SubsetGroups:
    """The groups of one Service and address type under subsetting (KEP-2004)."""

    def __init__(self, placement: Placement, locate: Callable[[Endpoint], str]) -> None:
        """Take the placement, and the function that returns the home group of an endpoint."""
        self._placement = placement
        self._locate = locate
        self._ready: _Members = {}
        self._by_pod: dict[NamespacedName, tuple[str, str]] = {}
        self._idle: set[NamespacedName] = set()
        self._moved: set[NamespacedName] = set()
        self.update(pod_key for pod_key, _, _ in placement.endpoints())

    def update(self, pod_keys: Iterable[NamespacedName]) -> None:
        """Update pods whose endpoint was added, removed, changed, or observed in another slice."""
        for pod_key in pod_keys:
            old = self._by_pod.pop(pod_key, None)
            if old is not None:
                self._ready[old[0]][old[1]].discard(pod_key)
            self._idle.discard(pod_key)
            endpoint = self._placement.endpoint(pod_key)
            if endpoint is None:
                continue
            if endpoint.is_ready:
                place = (self._locate(endpoint), self._placement.written_zone(pod_key))
                self._by_pod[pod_key] = place
                self._ready.setdefault(place[0], {}).setdefault(place[1], set()).add(pod_key)
                self._placement.regroup(pod_key, place[1])
            else:
                self._idle.add(pod_key)

    def divide(
        self,
        *,
        approach: Approach,
        shares: Mapping[str, float],
        options: SubsetOptions,
        level: Level = Level.ZONE,
    ) -> SubsetDecision:
        """Assign every endpoint to a group; return the decision with its reasons."""
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
            self.ungroup_all()
            return decision
        for pod_key in self._moved:
            # A move of the last plan counts only after it was observed in a slice.
            self._placement.regroup(pod_key, self._by_pod.get(pod_key, ("", ""))[1])
        changes = assign_groups(decision.target, self._ready)
        for pod_key, group in changes.items():
            self._placement.regroup(pod_key, group)
        self._moved = set(changes)
        self._place_idle(sorted({group for row in decision.target.values() for group in row}))
        return decision

    def ungroup_all(self) -> None:
        """Put all endpoints back into the undivided group, whose slices all nodes use."""
        grouped = self._placement.grouped()
        for pod_key in grouped:
            self._placement.regroup(pod_key, "")
        self._moved.update(grouped)

    def _place_idle(self, groups: list[str]) -> None:
        # Endpoints that are not ready carry no traffic: they stay, or go to their home group.
        for pod_key in self._idle:
            endpoint = self._placement.endpoint(pod_key)
            home = "" if endpoint is None else self._locate(endpoint)
            written = self._placement.written_zone(pod_key)
            choices = [zone for zone in (written, home, *groups) if zone in groups]
            self._placement.regroup(pod_key, choices[0])


class Hinting(msgspec.Struct, frozen=True):
    """Hinted slices with events and reasons; `totals` is what the mode Auto allocated by zone.

    `failure` is set if a custom heuristic failed, `question` if its answer is still pending.
    """

    slices: SliceSet
    events: tuple[TopologyEvent, ...] = ()
    reasons: tuple[Reason, ...] = ()
    totals: dict[str, int] | None = None
    failure: HeuristicFailure | None = None
    question: ZoneDemand | None = None
    weights: ZoneWeights | None = None
    """The weights to write beside the hints; a caller that writes hints alone leaves them out."""
    has_weights: bool = False
    """Whether the heuristic gave weights that the caller may write."""


def hint_slices(
    strategy: Strategy,
    slices: SliceSet,
    *,
    annotations: Mapping[str, str],
    cluster: ClusterNodes,
    settings: PlannerSettings,
    address_type: str,
    node_hints: bool,
    populated: bool,
    facts: FactsOf,
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
    writes_weights: bool = True,
    shares: Shares | None = None,
) -> Hinting:
    """Return the slices with the hints that the mechanism requires.

    `annotations` are those of the Service. `node_hints` overlays node-level topology where the
    mechanism allows it. `populated` says whether the Service had hints of the mode Auto before.
    `answers` are earlier answers of a custom heuristic, and `shares` those of the Service by
    measured demand, which it gets instead of those of the nodes. `writes_weights` says whether the
    caller can write weights.
    """
    match strategy.name:
        case StrategyName.SAME_ZONE:
            return _hint_own(slices, zones=True, nodes=node_hints, facts=facts)
        case StrategyName.SAME_NODE:
            return _hint_own(slices, zones=True, nodes=True, facts=facts)
        case StrategyName.NODE_LEVEL:
            return _hint_own(slices, zones=False, nodes=True, facts=facts)
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
            invalid: tuple[Reason, ...] = ()
            if isinstance(heuristic, Balanced):
                heuristic, invalid = read_balance_limits(annotations, heuristic)
            elif isinstance(heuristic, LocalHeuristic):
                heuristic, invalid = read_group_limits(annotations, heuristic, settings.subsets)
            wanted, invalid_request = read_weights_request(
                annotations, default=not isinstance(heuristic, Balanced)
            )
            may_write = wanted and writes_weights
            bound = OVERLOAD_BOUND
            if isinstance(heuristic, Balanced):
                bound = heuristic.bound
                heuristic = replace(heuristic, gives_weights=may_write)
            answer = apply_heuristic(
                slices,
                heuristic,
                shares=(shares or cluster.shares).by_zone,
                source=(shares or cluster.shares).basis,
                name=strategy.value,
                answers=answers,
                node_hints=node_hints,
                weighing=WeightContext(may_write, bound, cluster.weighted_zones),
                nodes=cluster.zone_nodes,
                facts=facts,
            )
            is_withheld = wanted and not writes_weights
            if is_withheld and (answer.has_weights or isinstance(heuristic, Balanced)):
                invalid_request = (*invalid_request, _ONLY_HINTS)
            return Hinting(
                answer.slices,
                reasons=(
                    *invalid,
                    *invalid_request,
                    *answer.reasons,
                    *(shares.reasons if shares else ()),
                ),
                failure=answer.failure,
                question=answer.question,
                weights=answer.weights,
                has_weights=may_write and answer.has_weights,
            )
        case _:
            return Hinting(remove_hints(slices, facts=facts))


def may_overlay(strategy: Strategy, settings: PlannerSettings) -> bool:
    """Return whether node hints may overlay the mechanism."""
    return settings.gates.on(Gate.NODE_LEVEL_TOPOLOGY) and strategy.name not in (
        StrategyName.TOPOLOGY_KEYS,
        StrategyName.SUBSETTING,
        StrategyName.NODE_LEVEL,
    )


def _hint_own(slices: SliceSet, *, zones: bool, nodes: bool, facts: FactsOf) -> Hinting:
    return Hinting(
        hint_own(slices, zones=zones, nodes=nodes, facts=facts),
        reasons=own_hint_reasons(slices, zones=zones, nodes=nodes, facts=facts),
    )
