"""Custom heuristics: values of spec.trafficDistribution of the form <domain>/<name> (KEP-4444).

A heuristic is an allocator: from the traffic share, the endpoints and the nodes of each zone it
says how many endpoints located in one zone serve the clients of another, or of several. This module
turns the counts into hints on concrete endpoints. It makes the fewest changes: an endpoint that may
keep its zones keeps them, because every change is a write to a slice that all proxies read.
Subsetting uses the same function.

Heuristics are third-party code. A heuristic that raises, or whose answer is not an allocation of
the present endpoints, gives no hints: all nodes use all endpoints, and the result holds the
failure. A caller that must not block gets the question, fetches the answer and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointSlice
from keepclose.model.zone_weights import ZoneWeights, read_zone_weights
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND
from keepclose.routing.heuristic_answers import (
    Allotment,
    HeuristicAnswer,
    HeuristicFailure,
    Matrix,
    Postponed,
    Refusal,
    ZoneDemand,
    ask_heuristic,
    check_answer,
)
from keepclose.routing.hint_facts import (
    FactsOf,
    group_of,
    hints_for,
    slice_facts,
    with_hints,
    zones_of,
)
from keepclose.routing.hints import SliceSet, remove_hints, without, zoneless_reason
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import BY_CPU, ZoneNodes
from keepclose.routing.zone_weights import settle_weights

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

__all__ = [
    "Allotment",
    "Heuristic",
    "HeuristicFailure",
    "HeuristicRegistry",
    "HeuristicResult",
    "Matrix",
    "Postponed",
    "Refusal",
    "ZoneDemand",
    "apply_heuristic",
    "hint_by_matrix",
]

Id = TypeVar("Id", bound="SupportsRichComparison")

UNPLACED = ""
"""The group of endpoints that are in no group yet."""


def assign_groups(
    target: Mapping[str, Mapping[str, int]],
    current: Mapping[str, Mapping[str, Collection[Id]]],
) -> dict[Id, str]:
    """Return the new group of each endpoint that must change its group; {} if none must.

    `target` says, by location, how many endpoints located there each group should have; `current`
    holds those that it has now, with "" for endpoints in no group. The number of changes is the
    least possible for these counts. Endpoints in no group are assigned first, then the surplus of
    groups; such a group keeps its first ids in sort order. The group that lacks most comes first,
    then the order of names decides.

    If a target exceeds the endpoints of a location, it is met as far as possible. If it is smaller,
    the remaining endpoints keep their group or stay in none.
    """
    changes: dict[Id, str] = {}
    for location in sorted(current):
        groups = current[location]
        target_counts = target.get(location, {})
        lacking = [
            (min(0, len(groups.get(group, ())) - number), group)
            for group, number in target_counts.items()
            if group != UNPLACED
        ]
        if not any(shortage for shortage, _ in lacking):
            continue
        free = sorted(groups.get(UNPLACED, ()))
        for group in sorted(groups):
            keep = max(0, target_counts.get(group, 0))
            if group != UNPLACED:
                free.extend(sorted(groups[group])[keep:])
        # Entries are (minus the shortage, group), so the group that lacks most sorts first.
        position = 0
        for shortage, group in sorted(lacking):
            for endpoint_id in free[position : position - shortage]:
                changes[endpoint_id] = group
            position -= shortage
    return changes


class Heuristic(Protocol):
    """An allocator of endpoints to zones.

    If it has a true attribute `sees_nodes`, questions have nodes and spread, which cost a walk over
    all endpoints; those of third parties have it.
    """

    def allocate(
        self, demand: ZoneDemand
    ) -> Matrix | Allotment | Refusal | HeuristicFailure | Postponed:
        """Return how many endpoints of each zone serve which zones, using each endpoint once."""
        ...


HeuristicRegistry = Mapping[str, Heuristic]


class HeuristicResult(msgspec.Struct, frozen=True):
    """The hinted slices and their reasons.

    `failure` is set if the heuristic failed, `question` if its answer is pending; the slices have
    no hints then.
    """

    slices: SliceSet
    reasons: tuple[Reason, ...]
    failure: HeuristicFailure | None = None
    question: ZoneDemand | None = None
    weights: ZoneWeights | None = None
    """The weights to write beside the hints; None for none."""
    has_weights: bool = False
    """Whether the heuristic gave weights, even if none are written."""


class WeightContext(msgspec.Struct, frozen=True):
    """What the weights of a Service depend on besides its heuristic."""

    wanted: bool = False
    """Whether weights are written if the heuristic gives any."""
    bound: float = OVERLOAD_BOUND
    weighted_zones: frozenset[str] = frozenset()
    """The zones in which all nodes follow weights."""


_NO_WEIGHTS: Final = WeightContext()


def apply_heuristic(
    slices: SliceSet,
    heuristic: Heuristic,
    *,
    shares: Mapping[str, float],
    name: str = "the heuristic",
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
    node_hints: bool = False,
    weighing: WeightContext = _NO_WEIGHTS,
    source: str = BY_CPU,
    nodes: Callable[[], Mapping[str, ZoneNodes]] = dict,
    facts: FactsOf = slice_facts,
) -> HeuristicResult:
    """Return the slices hinted as the heuristic allocates; without hints if it refuses or fails.

    An endpoint without a zone cannot be allocated. One such endpoint means no hints at all, because
    proxies would ignore the hints of the others. `answers` are earlier answers; their questions are
    not asked again. `source` names what the shares come from. `nodes` counts the nodes by zone, for
    a heuristic that sees them.
    """
    pairs: dict[tuple[str, str], int] = {}
    for endpoint_slice in slices.all:
        for pair, number in facts(endpoint_slice).pairs.items():
            pairs[pair] = pairs.get(pair, 0) + number
    endpoints: dict[str, int] = {}
    written: dict[str, dict[str, int]] = {}
    for (zone, hinted), number in sorted(pairs.items()):
        endpoints[zone] = endpoints.get(zone, 0) + number
        if hinted:
            written.setdefault(zone, {})[hinted] = number
    if not endpoints:
        reason = Reason(ReasonCode.NO_READY_ENDPOINTS, "there is no ready endpoint to hint")
        return HeuristicResult(remove_hints(slices, facts=facts), (reason,))
    if "" in endpoints:
        first = next(
            endpoint
            for endpoint_slice in slices.all
            if (endpoint := facts(endpoint_slice).zoneless) is not None
        )
        reason = zoneless_reason(first, endpoints[""], sum(endpoints.values()))
        return HeuristicResult(remove_hints(slices, facts=facts), (reason,))
    present = read_zone_weights(slices.all) if weighing.wanted else None
    weights = {} if present is None else present.weights
    demand = ZoneDemand(shares, endpoints, written, weights, source=source)
    if getattr(heuristic, "sees_nodes", False):
        demand = replace(demand, nodes=nodes(), spread=_count_spread(slices))
    earlier = [answer for question, answer in answers if question == demand]
    answer = (
        check_answer(earlier[0], demand) if earlier else ask_heuristic(heuristic.allocate, demand)
    )
    match answer:
        case Allotment():
            result = _hint_by_allotment(slices, answer, endpoints=endpoints, node_hints=node_hints)
            if not answer.weights:
                return result
            result = replace(result, has_weights=True)
            return _weigh(result, answer, demand, weighing, present) if weighing.wanted else result
        case Refusal():
            reasons = (answer.reason, *answer.reasons)
            return HeuristicResult(remove_hints(slices, facts=facts), reasons)
        case HeuristicFailure():
            reason = _failure_reason(name, answer)
            return HeuristicResult(remove_hints(slices, facts=facts), (reason,), failure=answer)
        case Postponed():
            reason = Reason(ReasonCode.HEURISTIC_PENDING, f"{name} has not answered yet")
            return HeuristicResult(remove_hints(slices, facts=facts), (reason,), question=demand)


def _count_spread(slices: SliceSet) -> dict[str, dict[int, int]]:
    """Return how many nodes of each zone have how many ready endpoints; {} if none is ready."""
    on_node: dict[tuple[str, str], int] = {}
    for endpoint_slice in slices.all:
        for endpoint in endpoint_slice.endpoints:
            if endpoint.conditions.ready is True and endpoint.node_name:
                node = (endpoint.zone or "", endpoint.node_name)
                on_node[node] = on_node.get(node, 0) + 1
    spread: dict[str, dict[int, int]] = {}
    for (zone, _), number in on_node.items():
        row = spread.setdefault(zone, {})
        row[number] = row.get(number, 0) + 1
    return {zone: dict(sorted(row.items())) for zone, row in sorted(spread.items())}


def _hint_by_allotment(
    slices: SliceSet, allotment: Allotment, *, endpoints: Mapping[str, int], node_hints: bool
) -> HeuristicResult:
    matrix = allotment.matrix
    hinted_slices = hint_by_matrix(slices, matrix, node_hints=node_hints)
    crossing = several = 0
    for zone, row in matrix.items():
        for group, number in row.items():
            zones = zones_of(group)
            crossing += number if zone not in zones else 0
            several += number if len(zones) > 1 else 0
    text = f"{sum(endpoints.values())} ready endpoints are hinted, {crossing} to another zone"
    if several:
        text += f", {several} for several zones"
    return HeuristicResult(hinted_slices, (Reason(ReasonCode.ALLOCATED, text), *allotment.reasons))


def _weigh(
    result: HeuristicResult,
    allotment: Allotment,
    demand: ZoneDemand,
    weighing: WeightContext,
    present: ZoneWeights | None,
) -> HeuristicResult:
    decision = settle_weights(
        allotment.weights,
        allotment.matrix,
        shares=demand.shares,
        bound=weighing.bound,
        written=present,
        weighted_zones=weighing.weighted_zones,
    )
    reasons = (*result.reasons, decision.reason)
    return msgspec.structs.replace(result, reasons=reasons, weights=decision.written)


def _failure_reason(name: str, failure: HeuristicFailure) -> Reason:
    return Reason(
        ReasonCode.HEURISTIC_FAILED,
        f"{name}: {failure.message}; no hints are set, so every node uses all endpoints",
        fix=f"fix or upgrade the package that provides {name}, or ask for another value",
    )


def hint_by_matrix(slices: SliceSet, matrix: Matrix, *, node_hints: bool = False) -> SliceSet:
    """Return the slices with zone hints for each ready endpoint, in the numbers of the matrix.

    `node_hints` adds each endpoint's own node to its hints.
    """
    all_slices = slices.all
    current: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for number, endpoint_slice in enumerate(all_slices):
        for position, endpoint in enumerate(endpoint_slice.endpoints):
            if endpoint.conditions.ready is True:
                row = current.setdefault(endpoint.zone or "", {})
                row.setdefault(group_of(endpoint.hints), []).append((number, position))
    changes = assign_groups(matrix, current)
    moved: dict[int, dict[int, str]] = {}
    for (number, position), zone in changes.items():
        moved.setdefault(number, {})[position] = zone
    hint = _HintTable(node_hints=node_hints)
    result = [
        _hint_slice(endpoint_slice, moved.get(number, {}), hint)
        for number, endpoint_slice in enumerate(all_slices)
    ]
    created, settled = len(slices.create), len(slices.create) + len(slices.update)
    before_after = list(zip(slices.unchanged, result[settled:], strict=True))
    touched = [(old, new) for old, new in before_after if new is not old]
    return SliceSet(
        create=tuple(result[:created]),
        update=(*result[created:settled], *(new for _, new in touched)),
        unchanged=without(slices.unchanged, [old for old, _ in touched]),
    )


class _HintTable:
    """Hints by group of zones and node, each created once: thousands of endpoints share a few."""

    def __init__(self, *, node_hints: bool) -> None:
        self._node_hints = node_hints
        self._hints: dict[tuple[str, str], EndpointHints | None] = {}

    def of(self, group: str, endpoint: Endpoint) -> EndpointHints | None:
        key = (group, (endpoint.node_name or "") if self._node_hints else "")
        if key not in self._hints:
            self._hints[key] = hints_for(*key)
        return self._hints[key]


def _hint_slice(
    endpoint_slice: EndpointSlice, moved: Mapping[int, str], hint: _HintTable
) -> EndpointSlice:
    endpoints = []
    for position, endpoint in enumerate(endpoint_slice.endpoints):
        if endpoint.conditions.ready is not True:
            endpoints.append(with_hints(endpoint, None))
            continue
        group = moved.get(position) or group_of(endpoint.hints)
        endpoints.append(with_hints(endpoint, hint.of(group, endpoint)))
    if all(new is old for new, old in zip(endpoints, endpoint_slice.endpoints, strict=True)):
        return endpoint_slice
    return replace(endpoint_slice, endpoints=tuple(endpoints))
