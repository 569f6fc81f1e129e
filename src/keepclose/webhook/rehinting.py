"""The hints of slices that somebody else packed: the same decisions as in a plan, on what is there.

Which endpoints are in which slice is the packer's affair and stays as it is; the hints come from
the functions that plans use. Asked again about its own answer it changes nothing, so that whoever
writes what is returned here comes to rest.
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
from keepclose.slices.hinting import decide_overlay, hint_slices, lay_over
from keepclose.slices.settings import Cluster, Settings

OwnersOf = Callable[[Sequence[EndpointSlice]], Sequence[EndpointOwner]]
"""From slices to node and owner of their ready endpoints, each pair once."""


class Rehinting(msgspec.Struct, frozen=True):
    """All slices with the hints that they should have, and those of them that differ from before.

    `strategy` is what governs once node-level topology has had its say.
    """

    strategy: Strategy
    slices: tuple[EndpointSlice, ...]
    changed: tuple[EndpointSlice, ...]
    reasons: tuple[Reason, ...]
    failure: HeuristicFailure | None = None
    """How the custom heuristic failed that governs the Service."""
    questions: tuple[ZoneDemand, ...] = ()
    """What a custom heuristic has to be asked elsewhere before the hints are right."""


def rehint(
    service: Service,
    strategy: Strategy,
    slices: Iterable[EndpointSlice],
    *,
    cluster: Cluster,
    settings: Settings,
    owners: OwnersOf,
    facts: FactsOf = slice_facts,
    address_type: str = "",
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
) -> Rehinting:
    """Return the slices of a Service with the hints that the mechanism wants; total.

    With an address type only slices of that type are hinted; the others are left out. `answers` are
    those to the questions of an earlier result.
    """
    present = sorted(slices, key=lambda one: one.metadata.name)
    overlay = decide_overlay(
        service,
        strategy,
        cluster=cluster,
        settings=settings,
        endpoints=lambda: owners(present),
        previously_on=lambda: any(facts(one).node_hinted for one in present),
    )
    strategy = lay_over(strategy, overlay)
    reasons: dict[Reason, None] = dict.fromkeys(() if overlay is None else overlay.reasons)
    families: dict[str, list[EndpointSlice]] = {}
    for one in present:
        if address_type in ("", one.address_type):
            families.setdefault(one.address_type, []).append(one)
    hinted: list[EndpointSlice] = []
    changed: list[EndpointSlice] = []
    failures: list[HeuristicFailure] = []
    questions: list[ZoneDemand] = []
    for name, family in families.items():
        hinting = hint_slices(
            strategy,
            SliceSet(unchanged=tuple(family)),
            cluster=cluster,
            settings=settings,
            address_type=name,
            node_hints=overlay is not None and overlay.on,
            populated=True,
            facts=facts,
            answers=answers,
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
    )


def carry_hints(incoming: EndpointSlice, old: EndpointSlice | None) -> EndpointSlice:
    """Return the incoming version with the hints that its ready endpoints had before.

    A packer that does not know of the hints sends endpoints without any. What they were is where
    an allocation starts from, so that it moves as few as it can.
    """
    if old is None:
        return replace(
            incoming, endpoints=tuple([with_hints(one, None) for one in incoming.endpoints])
        )
    before: dict[tuple[str, ...], EndpointHints | None] = {
        one.addresses: one.hints for one in old.endpoints
    }
    endpoints = tuple(
        [
            with_hints(one, before.get(one.addresses) if one.conditions.ready is True else None)
            for one in incoming.endpoints
        ]
    )
    return replace(incoming, endpoints=endpoints)
