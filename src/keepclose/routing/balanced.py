"""The heuristic keepclose.dev/Balanced: traffic stays in its zone while no endpoint is overloaded.

A value of spec.trafficDistribution (KEP-4444). The heuristic asks the allocator of the same name
for the best allocation under the overload bound, starting from the written hints, so that few of
them change. It refuses only where an allocation has no meaning: the traffic of the zones is
unknown, or there are too few endpoints to divide among the zones. All nodes then use all endpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from keepclose.model.well_known import (
    MAX_OVERLOAD_ANNOTATION,
    MIN_IN_ZONE_ANNOTATION,
    OBJECTIVE_ANNOTATION,
    ZONE_LABEL,
)
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND, Balance, Objective, balance
from keepclose.routing.heuristics import Allotment, Matrix, Refusal, ZoneDemand
from keepclose.routing.hint_facts import name_group, zones_of
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.subsets import parse_limit

_ROUNDING: Final = 1e-9
_MOST_OVERLOAD: Final = 10.0

# Overloads at which a least share in the zone is tried, one after the other.
_LOOSER_BOUNDS: Final = (0.3, 0.5, 0.75, 1.0, 2.0, math.inf)


class Balanced(msgspec.Struct, frozen=True):
    """The heuristic, with the limits and the objective that a Service may set."""

    bound: float = OVERLOAD_BOUND
    objective: Objective = Objective.SCORE
    is_strict: bool = False
    """Whether the bound holds always, as for a Service that sets it."""
    min_in_zone: float = 0.0
    """The least part of the traffic that stays in its zone, if need be beyond the bound."""

    def allocate(self, demand: ZoneDemand) -> Matrix | Allotment | Refusal:
        """Return how many endpoints of each zone serve which zones, or why there is no allocation.

        If the bound cannot be kept, the reasons name the bound that is kept instead.

        Zones without traffic get no endpoints; endpoints located there serve the other zones. Hints
        for zones that no longer exist count as not written.
        """
        names = sorted({*demand.shares, *demand.endpoints})
        result = self._balance(demand, names)
        reasons: list[Reason] = []
        if self.min_in_zone > 0.0:
            result = self._keep_in_zone(result, demand, names, reasons)
        if result.shared:
            return Refusal(_refusal_reason(demand))
        matrix = {
            zone: {
                name_group([names[served] for served in group]): number
                for group, number in row.items()
            }
            for zone, row in zip(names, result.hints, strict=True)
            if row
        }
        if result.relaxed is not None:
            ready = sum(demand.endpoints.values())
            reasons.append(
                Reason(
                    ReasonCode.BOUND_RELAXED,
                    f"{ready} endpoints cannot keep every zone within {self.bound:.0%} overload; "
                    f"the busiest carry {result.relaxed:.0%} more than the mean",
                    fix="run more pods",
                )
            )
        return Allotment(matrix, tuple(reasons)) if reasons else matrix

    def _balance(
        self,
        demand: ZoneDemand,
        names: Sequence[str],
        *,
        bound: float | None = None,
        objective: Objective | None = None,
    ) -> Balance:
        index = {zone: number for number, zone in enumerate(names)}
        return balance(
            [demand.shares.get(zone, 0.0) for zone in names],
            [demand.endpoints.get(zone, 0) for zone in names],
            bound=self.bound if bound is None else bound,
            is_strict=self.is_strict and bound is None,
            objective=objective or self.objective,
            previous=[
                {
                    tuple([index.get(served, -1) for served in zones_of(group)]): number
                    for group, number in demand.written.get(zone, {}).items()
                }
                for zone in names
            ],
        )

    def _keep_in_zone(
        self, result: Balance, demand: ZoneDemand, names: Sequence[str], reasons: list[Reason]
    ) -> Balance:
        """Return the result, or one with more overload that keeps the least share in the zone."""
        endpoints = [demand.endpoints.get(zone, 0) for zone in names]
        given = [max(0.0, demand.shares.get(zone, 0.0)) for zone in names]
        shares = [share / (sum(given) or 1.0) for share in given]
        best, most = result, result.in_zone(shares, endpoints)
        for bound in (self.bound, *(bound for bound in _LOOSER_BOUNDS if bound > self.bound)):
            if most >= self.min_in_zone - _ROUNDING:
                break
            trial = self._balance(demand, names, bound=bound, objective=Objective.LOCALITY)
            in_zone = trial.in_zone(shares, endpoints)
            if in_zone > most and not trial.shared:
                best, most = trial, in_zone
        if most < self.min_in_zone - _ROUNDING:
            reasons.append(
                Reason(
                    ReasonCode.MIN_IN_ZONE_UNREACHABLE,
                    f"no hints keep {self.min_in_zone:.0%} of the traffic in its zone; "
                    f"these keep {most:.0%}",
                    fix="run endpoints in every zone with clients",
                )
            )
        return best


def read_balance_limits(
    annotations: Mapping[str, str], heuristic: Balanced
) -> tuple[Balanced, tuple[Reason, ...]]:
    """Return the heuristic with the limits of a Service, and reasons for invalid values.

    An invalid value leaves the default. A bound that a Service sets holds always.
    """
    reasons: list[Reason] = []

    def refuse(key: str, code: ReasonCode, valid: str, present: str) -> None:
        text = annotations[key][:40]
        message = f"metadata.annotations[{key}]: {text!r} is not {valid}, so {present} holds"
        reasons.append(Reason(code, message, fix=f"set {key} to {valid}"))

    bound, is_strict, least = heuristic.bound, heuristic.is_strict, heuristic.min_in_zone
    objective = heuristic.objective
    if MAX_OVERLOAD_ANNOTATION in annotations:
        part = parse_part(annotations[MAX_OVERLOAD_ANNOTATION])
        if 0.0 <= part <= _MOST_OVERLOAD:
            bound, is_strict = part, True
        else:
            refuse(
                MAX_OVERLOAD_ANNOTATION,
                ReasonCode.MAX_OVERLOAD_INVALID,
                "a part such as 0.2 or 20%, at most 1000%",
                f"{bound:.0%}",
            )
    if MIN_IN_ZONE_ANNOTATION in annotations:
        part = parse_part(annotations[MIN_IN_ZONE_ANNOTATION])
        if 0.0 <= part <= 1.0:
            least = part
        else:
            refuse(
                MIN_IN_ZONE_ANNOTATION,
                ReasonCode.MIN_IN_ZONE_INVALID,
                "a part such as 0.6 or 60%, at most 100%",
                f"{least:.0%}",
            )
    if OBJECTIVE_ANNOTATION in annotations:
        names = [one.value for one in Objective]
        if annotations[OBJECTIVE_ANNOTATION] in names:
            objective = Objective(annotations[OBJECTIVE_ANNOTATION])
        else:
            refuse(
                OBJECTIVE_ANNOTATION,
                ReasonCode.OBJECTIVE_INVALID,
                " or ".join(names),
                objective.value,
            )
    return Balanced(bound, objective, is_strict, least), tuple(reasons)


def parse_part(text: str) -> float:
    """Return a part of a whole, written as 0.2 or 20%; -1 if it is neither."""
    percent = text.endswith("%")
    number = parse_limit(text.removesuffix("%"))
    return number / 100.0 if percent and number >= 0.0 else number


def _refusal_reason(demand: ZoneDemand) -> Reason:
    busy = sum(share > 0 for share in demand.shares.values())
    ready = sum(demand.endpoints.values())
    if busy == 0:
        return Reason(
            ReasonCode.NO_ZONES,
            "no ready node has a zone, so it is unknown where traffic comes from",
            fix=f"kubectl label node <node> {ZONE_LABEL}=<zone>",
        )
    return Reason(
        ReasonCode.TOO_FEW_ENDPOINTS,
        f"{ready} ready endpoints are too few, or too close together, to be divided among "
        f"{busy} zones with traffic",
        fix=f"run at least {busy} ready pods, better three in each zone",
    )


BALANCED: Final = Balanced()
"""The object that the entry point keepclose.dev/Balanced loads."""
