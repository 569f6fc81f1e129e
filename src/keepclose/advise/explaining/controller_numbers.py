"""The numbers that a controller decides by: endpoints, shares and thresholds of each zone.

They come from the functions that the mechanisms use. The mode Auto has a target and a minimum for
each zone; a heuristic and subsetting plan with shares; PreferSameZone never counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from keepclose.advise.explaining.service_facts import (
    ServiceFacts,
    counted_slices,
    is_managed,
    load_endpoints,
    name_address,
)
from keepclose.routing.allocation.kube_auto import least_endpoints
from keepclose.routing.auto import OVERLOAD_THRESHOLD, Infeasible, zone_bounds
from keepclose.routing.balanced import BALANCED, read_balance_limits
from keepclose.routing.strategy import StrategyName
from keepclose.routing.subsets import read_limits

_BALANCED: Final = "keepclose.dev/Balanced"


class ZoneNumbers(msgspec.Struct, frozen=True):
    """What counts in one zone."""

    zone: str
    """"" for nodes and endpoints without a zone."""
    nodes: int
    ready_nodes: int
    share: float | None
    """The part of the traffic that is expected from here; None if unknown."""
    endpoints: int
    ready: int
    expected: float | None
    """How many of the ready endpoints are the zone's by its share."""
    least: int | None
    """How many the mode Auto needs at least for it; None for other mechanisms."""
    hinted: int
    """How many ready endpoints are hinted for it."""
    load: float | None
    """How many times its fair share its busiest endpoint gets; None without traffic."""


def number_zones(facts: ServiceFacts) -> tuple[ZoneNumbers, ...]:
    """Return the numbers of each zone with nodes or endpoints, by name.

    Loads assume that every ready node in question sends the same to each port. Endpoints of a
    dual-stack Service count once.
    """
    ready_nodes, nodes = Counter[str](), Counter[str]()
    for node in facts.inventory.nodes:
        nodes[node.zone] += 1
        ready_nodes[node.zone] += node.is_ready
    endpoints, ready, hinted = Counter[str](), Counter[str](), Counter[str]()
    zone_of: dict[str, str] = {}
    for endpoint_slice in facts.slices:
        for endpoint in endpoint_slice.endpoints:
            zone_of[name_address(endpoint)] = endpoint.zone or ""
    for endpoint_slice in counted_slices(facts.slices):
        for endpoint in endpoint_slice.endpoints:
            zone = endpoint.zone or ""
            endpoints[zone] += 1
            if endpoint.conditions.ready is False:
                continue
            ready[zone] += 1
            for hint in endpoint.hints.for_zones if endpoint.hints is not None else ():
                hinted[hint.name] += 1
    whole = ready.total()
    shares = _shares(facts)
    loads = _loads(facts, zone_of)
    least = facts.planned.strategy.name is StrategyName.AUTO
    zones = sorted({*nodes, *endpoints}, key=lambda zone: (not zone, zone))
    return tuple(
        ZoneNumbers(
            zone,
            nodes[zone],
            ready_nodes[zone],
            shares.get(zone, 0.0) if shares and zone else None,
            endpoints[zone],
            ready[zone],
            whole * shares.get(zone, 0.0) if shares and zone else None,
            least_endpoints(shares[zone], whole, OVERLOAD_THRESHOLD)
            if least and zone in shares
            else None,
            hinted[zone],
            loads.get(zone),
        )
        for zone in zones
    )


def describe_thresholds(facts: ServiceFacts) -> str:
    """Return the thresholds of the mechanism in one sentence; "" if it has none."""
    strategy = facts.planned.strategy
    annotations = facts.service.metadata.annotations
    match strategy.name:
        case StrategyName.AUTO:
            managed_by = facts.settings.managed_by
            own = [each for each in facts.planned.slices if is_managed(each, managed_by)]
            ready = sum(each.is_ready for held in counted_slices(own) for each in held.endpoints)
            bounds = zone_bounds(facts.cluster.ratios.ratios, ready)
            outcome = "can be kept" if not isinstance(bounds, Infeasible) else "cannot be kept"
            return (
                f"Auto overloads no zone by more than {OVERLOAD_THRESHOLD:.0%}, with a ready "
                f"endpoint for each zone at least; with {ready} ready endpoints that {outcome}"
            )
        case StrategyName.SUBSETTING:
            options, _ = read_limits(annotations, facts.settings.subsets)
            return (
                f"subsetting starts at {options.start_per_zone:g} endpoints a zone (padding "
                f"{options.padding}) and overloads no zone by {options.overload_threshold:.0%}"
            )
        case StrategyName.CUSTOM if strategy.value == _BALANCED:
            limited, _ = read_balance_limits(annotations, BALANCED)
            return (
                f"Balanced overloads no endpoint by more than {limited.bound:.0%} if it can, for "
                "traffic by the shares of the zones"
            )
        case _:
            return ""


def _shares(facts: ServiceFacts) -> Mapping[str, float]:
    """Return the shares that the mechanism plans with; {} if they are unknown."""
    if facts.planned.strategy.name is StrategyName.AUTO:
        return facts.cluster.ratios.ratios or {}
    return facts.cluster.shares.by_zone


def _loads(facts: ServiceFacts, zone_of: Mapping[str, str]) -> dict[str, float]:
    """Return the load of the busiest endpoint of each zone."""
    loads: dict[str, float] = {}
    for address, load in load_endpoints(facts).items():
        zone = zone_of.get(address, "")
        loads[zone] = max(loads.get(zone, 0.0), load)
    return loads
