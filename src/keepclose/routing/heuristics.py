"""Custom heuristics: values of spec.trafficDistribution of the form <domain>/<name> (KEP-4444).

A heuristic is an allocator: from the traffic share and the endpoints of each zone it says how many
endpoints located in one zone serve the clients of another. Turning that into hints on concrete
endpoints, with the fewest changes against what is written, is done here once for all of them.

Heuristics are written by third parties. One that raises, or whose answer is not an allocation of
the endpoints that there are, gives no hints: all endpoints stay in use everywhere, and the failure
is part of the result. An answer may also come later: a caller that cannot wait gets the question,
has it answered elsewhere and asks again with the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointSlice
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
from keepclose.routing.hint_facts import FactsOf, hints_for, slice_facts, with_hints
from keepclose.routing.hints import SliceSet, remove_hints, without, zoneless_reason
from keepclose.routing.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

Id = TypeVar("Id", bound="SupportsRichComparison")

UNPLACED = ""
"""The group of endpoints that stand in none yet."""
__all__ = [
    "Allotment",
    "Heuristic",
    "HeuristicFailure",
    "HeuristicResult",
    "Matrix",
    "Postponed",
    "Refusal",
    "Registry",
    "ZoneDemand",
    "apply_heuristic",
    "hint_by_matrix",
]


def assign(
    target: Mapping[str, Mapping[str, int]],
    current: Mapping[str, Mapping[str, Collection[Id]]],
) -> dict[Id, str]:
    """Return the new group of each endpoint that has to change; nothing to change gives {}.

    `target` says, by location, how many endpoints located there each group should have; `current`
    names those it has now, with "" for endpoints in no group. The number of changes is the least
    possible for these counts. Endpoints in no group go first, then those that a group has too many
    of; such a group keeps its first ids in sort order. The group that lacks most is served first,
    then by name.

    A target that asks for more endpoints than a location has is met as far as they go; one that
    asks for fewer leaves the rest as they are, without a group those that have none.
    """
    changes: dict[Id, str] = {}
    for location in sorted(current):
        groups = current[location]
        wanted = target.get(location, {})
        lacking = [
            (min(0, len(groups.get(group, ())) - number), group)
            for group, number in wanted.items()
            if group != UNPLACED
        ]
        if not any(shortage for shortage, _ in lacking):
            continue
        free = sorted(groups.get(UNPLACED, ()))
        for group in sorted(groups):
            keep = max(0, wanted.get(group, 0))
            if group != UNPLACED:
                free.extend(sorted(groups[group])[keep:])
        # The entries are (minus what the group lacks, group), so the neediest sorts first.
        position = 0
        for shortage, group in sorted(lacking):
            for one in free[position : position - shortage]:
                changes[one] = group
            position -= shortage
    return changes


class Heuristic(Protocol):
    """One way to allocate endpoints to zones."""

    def allocate(
        self, demand: ZoneDemand
    ) -> Matrix | Allotment | Refusal | HeuristicFailure | Postponed:
        """Return how many endpoints of each zone serve each zone, using each endpoint once."""
        ...


Registry = Mapping[str, Heuristic]


class HeuristicResult(msgspec.Struct, frozen=True):
    """The hinted slices and why they are so.

    `failure` is set where the heuristic failed, `question` where its answer comes later; the slices
    have no hints then.
    """

    slices: SliceSet
    reasons: tuple[Reason, ...]
    failure: HeuristicFailure | None = None
    question: ZoneDemand | None = None


def apply_heuristic(
    slices: SliceSet,
    heuristic: Heuristic,
    *,
    shares: Mapping[str, float],
    name: str = "the heuristic",
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
    node_hints: bool = False,
    facts: FactsOf = slice_facts,
) -> HeuristicResult:
    """Return the slices hinted as the heuristic allocates, or bare when it refuses or fails.

    An endpoint whose zone is unknown cannot be allocated, so one such endpoint means no hints: the
    proxies would ignore the others' anyway. `answers` were given before; a question among them is
    not asked again.
    """
    pairs: dict[tuple[str, str], int] = {}
    for one in slices.all:
        for pair, number in facts(one).pairs.items():
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
        first = next(e for one in slices.all if (e := facts(one).zoneless) is not None)
        reason = zoneless_reason(first, endpoints[""], sum(endpoints.values()))
        return HeuristicResult(remove_hints(slices, facts=facts), (reason,))
    demand = ZoneDemand(shares, endpoints, written)
    known = [given for question, given in answers if question == demand]
    answer = check_answer(known[0], demand) if known else ask_heuristic(heuristic.allocate, demand)
    match answer:
        case Allotment():
            return _allot(slices, answer, endpoints=endpoints, node_hints=node_hints)
        case Refusal():
            return HeuristicResult(remove_hints(slices, facts=facts), (answer.reason,))
        case HeuristicFailure():
            reason = _failure_reason(name, answer)
            return HeuristicResult(remove_hints(slices, facts=facts), (reason,), failure=answer)
        case Postponed():
            reason = Reason(ReasonCode.HEURISTIC_PENDING, f"{name} has not answered yet")
            return HeuristicResult(remove_hints(slices, facts=facts), (reason,), question=demand)


def _allot(
    slices: SliceSet, allotment: Allotment, *, endpoints: Mapping[str, int], node_hints: bool
) -> HeuristicResult:
    matrix = allotment.matrix
    hinted_slices = hint_by_matrix(slices, matrix, node_hints=node_hints)
    crossing = sum(
        number for zone, row in matrix.items() for served, number in row.items() if zone != served
    )
    text = f"{sum(endpoints.values())} ready endpoints are hinted, {crossing} to another zone"
    return HeuristicResult(hinted_slices, (Reason(ReasonCode.ALLOCATED, text), *allotment.reasons))


def _failure_reason(name: str, failure: HeuristicFailure) -> Reason:
    return Reason(
        ReasonCode.HEURISTIC_FAILED,
        f"{name}: {failure.message}; no hints are set, so every node uses all endpoints",
        fix=f"fix or upgrade the package that provides {name}, or ask for another value",
    )


def hint_by_matrix(slices: SliceSet, matrix: Matrix, *, node_hints: bool = False) -> SliceSet:
    """Return the slices with one zone hint per ready endpoint such that the matrix comes out.

    `node_hints` adds each endpoint's own node to its hints.
    """
    everything = slices.all
    current: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for number, one in enumerate(everything):
        for position, endpoint in enumerate(one.endpoints):
            if endpoint.conditions.ready is True:
                hints = endpoint.hints
                single = hints is not None and len(hints.for_zones) == 1
                served = hints.for_zones[0].name if hints is not None and single else ""
                row = current.setdefault(endpoint.zone or "", {})
                row.setdefault(served, []).append((number, position))
    changes = assign(matrix, current)
    moved: dict[int, dict[int, str]] = {}
    for (number, position), zone in changes.items():
        moved.setdefault(number, {})[position] = zone
    hint = _HintTable(node_hints=node_hints)
    result = [
        _hint_slice(one, moved.get(number, {}), hint) for number, one in enumerate(everything)
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
    """Hints by zone and node, each made once: thousands of endpoints share a few."""

    def __init__(self, *, node_hints: bool) -> None:
        self._node_hints = node_hints
        self._made: dict[tuple[str, str], EndpointHints | None] = {}

    def of(self, zone: str, endpoint: Endpoint) -> EndpointHints | None:
        key = (zone, (endpoint.node_name or "") if self._node_hints else "")
        if key not in self._made:
            self._made[key] = hints_for(*key)
        return self._made[key]


def _hint_slice(
    endpoint_slice: EndpointSlice, moved: Mapping[int, str], hint: _HintTable
) -> EndpointSlice:
    endpoints = []
    for position, endpoint in enumerate(endpoint_slice.endpoints):
        hints = endpoint.hints
        if endpoint.conditions.ready is not True:
            endpoints.append(with_hints(endpoint, None))
            continue
        kept = hints.for_zones[0].name if hints is not None and hints.for_zones else ""
        endpoints.append(with_hints(endpoint, hint.of(moved.get(position, kept), endpoint)))
    if all(new is old for new, old in zip(endpoints, endpoint_slice.endpoints, strict=True)):
        return endpoint_slice
    return replace(endpoint_slice, endpoints=tuple(endpoints))
