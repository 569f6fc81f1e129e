"""The hints of slices that another controller packed, by the same decisions as in a plan.

The other controller decides which endpoints are in which slice, and that stays as it is; the hints
come from the functions that plans use. The result is idempotent: its own output needs no change, so
that a caller that writes it does not write forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointHints, EndpointSlice
from keepclose.model.service.types import Service
from keepclose.routing.heuristic_answers import HeuristicAnswer, HeuristicFailure, ZoneDemand
from keepclose.routing.hint_facts import FactsOf, slice_facts, with_hints
from keepclose.routing.hints import SliceSet
from keepclose.routing.node_level import EndpointOwner
from keepclose.routing.reasons import Reason
from keepclose.routing.strategy import Strategy
from keepclose.routing.traffic_shares import Shares
from keepclose.slices.hinting import apply_overlay, decide_overlay, hint_slices
from keepclose.slices.settings import ClusterNodes, PlannerSettings

OwnersOf = Callable[[Sequence[EndpointSlice]], Sequence[EndpointOwner]]
"""From slices to node and owner of their ready endpoints, each pair once."""


class Rehinting(msgspec.Struct, frozen=True):
    """All slices with their desired hints, and those of them that changed.

    `strategy` is the mechanism in effect after node-level topology was considered.
    """

    strategy: Strategy
    slices: tuple[EndpointSlice, ...]
    changed: tuple[EndpointSlice, ...]
    reasons: tuple[Reason, ...]
    failure: HeuristicFailure | None = None
    """The failure of the custom heuristic of the Service."""
    shares: Shares | None = None
    """The shares by measured demand that a custom heuristic got."""
    questions: tuple[ZoneDemand, ...] = ()
    """What a deferred heuristic must answer before the hints are final."""


def rehint(
    service: Service,
    strategy: Strategy,
    slices: Iterable[EndpointSlice],
    *,
    cluster: ClusterNodes,
    settings: PlannerSettings,
    owners: OwnersOf,
    facts: FactsOf = slice_facts,
    address_type: str = "",
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
    shares: Shares | None = None,
) -> Rehinting:
    """Return the slices of a Service with the hints of its mechanism; total.

    With an address type the result has only slices of that type. `answers` are those to the
    questions of an earlier result, `shares` those of the Service by measured demand.
    """
    present = sorted(slices, key=lambda endpoint_slice: endpoint_slice.metadata.name)
    overlay = decide_overlay(
        service,
        strategy,
        cluster=cluster,
        settings=settings,
        endpoints=lambda: owners(present),
        previously_on=lambda: any(facts(endpoint_slice).node_hinted for endpoint_slice in present),
    )
    strategy = apply_overlay(strategy, overlay)
    reasons: dict[Reason, None] = dict.fromkeys(() if overlay is None else overlay.reasons)
    families: dict[str, list[EndpointSlice]] = {}
    for endpoint_slice in present:
        if address_type in ("", endpoint_slice.address_type):
            families.setdefault(endpoint_slice.address_type, []).append(endpoint_slice)
    hinted: list[EndpointSlice] = []
    changed: list[EndpointSlice] = []
    failures: list[HeuristicFailure] = []
    questions: list[ZoneDemand] = []
    for name, family in families.items():
        hinting = hint_slices(
            strategy,
            SliceSet(unchanged=tuple(family)),
            annotations=service.metadata.annotations,
            cluster=cluster,
            settings=settings,
            address_type=name,
            node_hints=overlay is not None and overlay.on,
            populated=True,
            facts=facts,
            answers=answers,
            writes_weights=False,
            shares=shares,
        )
        hinted.extend(hinting.slices.all)
        changed.extend(hinting.slices.update)
        reasons.update(dict.fromkeys(hinting.reasons))
        if hinting.failure is not None:
            failures.append(hinting.failure)
        if hinting.question is not None:
            questions.append(hinting.question)
    return Rehinting(
        strategy,
        tuple(hinted),
        tuple(changed),
        tuple(reasons),
        failure=failures[0] if failures else None,
        questions=tuple(questions),
        shares=shares,
    )


def carry_hints(incoming: EndpointSlice, old: EndpointSlice | None) -> EndpointSlice:
    """Return the incoming version with the hints that its ready endpoints had before.

    The built-in controller does not know these hints and sends endpoints without any. An allocation
    starts from the previous hints, so that it moves as few endpoints as possible.
    """
    if old is None:
        return replace(
            incoming,
            endpoints=tuple([with_hints(endpoint, None) for endpoint in incoming.endpoints]),
        )
    before: dict[tuple[str, ...], EndpointHints | None] = {
        endpoint.addresses: endpoint.hints for endpoint in old.endpoints
    }
    endpoints = tuple(
        [
            with_hints(
                endpoint,
                before.get(endpoint.addresses) if endpoint.conditions.ready is True else None,
            )
            for endpoint in incoming.endpoints
        ]
    )
    return replace(incoming, endpoints=endpoints)
