"""Custom heuristics: values of spec.trafficDistribution of the form <domain>/<name> (KEP-4444).

A heuristic is an allocator: from the traffic share and the endpoints of each zone it says how many
endpoints located in one zone serve the clients of another. Turning that into hints on concrete
endpoints, with the fewest changes against what is written, is done here once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice import Endpoint, EndpointHints, EndpointSlice
from keepclose.routing.assignment import assign
from keepclose.routing.facts import FactsOf, hints_for, slice_facts, with_hints
from keepclose.routing.hints import SliceSet, remove_hints, without, zoneless_reason
from keepclose.routing.reasons import Reason, ReasonCode

Matrix = Mapping[str, Mapping[str, int]]
"""Location zone to served zone to number of endpoints."""


class ZoneDemand(msgspec.Struct, frozen=True):
    """What a heuristic decides on: shares of traffic and ready endpoints by zone."""

    shares: Mapping[str, float]
    endpoints: Mapping[str, int]
    written: Matrix
    """The allocation that the present hints amount to, so that little need change."""


class Refusal(msgspec.Struct, frozen=True):
    """A heuristic's answer when it has none; all endpoints then stay in use everywhere."""

    reason: Reason


class Allotment(msgspec.Struct, frozen=True):
    """An allocation about which there is something to say."""

    matrix: Matrix
    reasons: tuple[Reason, ...]


class Heuristic(Protocol):
    """One way to allocate endpoints to zones."""

    def allocate(self, demand: ZoneDemand) -> Matrix | Allotment | Refusal:
        """Return how many endpoints of each zone serve each zone, using each endpoint once."""
        ...


Registry = Mapping[str, Heuristic]


class HeuristicResult(msgspec.Struct, frozen=True):
    """The hinted slices and why they are so."""

    slices: SliceSet
    reasons: tuple[Reason, ...]


def apply_heuristic(
    slices: SliceSet,
    heuristic: Heuristic,
    *,
    shares: Mapping[str, float],
    node_hints: bool = False,
    facts: FactsOf = slice_facts,
) -> HeuristicResult:
    """Return the slices hinted as the heuristic allocates, or bare when it refuses.

    An endpoint whose zone is unknown cannot be allocated, so one such endpoint means no hints: the
    proxies would ignore the others' anyway.
    """
    pairs: dict[tuple[str, str], int] = {}
    for one in slices.all:
        for pair, number in facts(one).pairs.items():
            pairs[pair] = pairs.get(pair, 0) + number
    endpoints: dict[str, int] = {}
    written: dict[str, dict[str, int]] = {}
    for (zone, hinted), number in pairs.items():
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
    answer = heuristic.allocate(ZoneDemand(shares, endpoints, written))
    if isinstance(answer, Refusal):
        return HeuristicResult(remove_hints(slices, facts=facts), (answer.reason,))
    matrix, told = (
        (answer.matrix, answer.reasons) if isinstance(answer, Allotment) else (answer, ())
    )
    hinted_slices = hint_by_matrix(slices, matrix, node_hints=node_hints)
    crossing = sum(
        number for zone, row in matrix.items() for served, number in row.items() if zone != served
    )
    text = f"{sum(endpoints.values())} ready endpoints are hinted, {crossing} to another zone"
    return HeuristicResult(hinted_slices, (Reason(ReasonCode.ALLOCATED, text), *told))


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
