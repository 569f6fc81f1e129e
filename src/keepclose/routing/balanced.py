"""The heuristic keepclose.dev/Balanced: traffic stays in its zone while no endpoint is overloaded.

A value of spec.trafficDistribution (KEP-4444). The heuristic asks the allocator of the same name
for the best allocation under the overload bound, starting from the written hints, so that few of
them change. It refuses where the traffic of the zones is unknown, and where no hints within the
bound are better than none. All nodes then use all endpoints.
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
from keepclose.routing.allocation.balanced import (
    OVERLOAD_BOUND,
    Balance,
    Objective,
    balance,
    divide_shares,
)
from keepclose.routing.allocation.weighted import WEIGHTED, weighted_matrix
from keepclose.routing.heuristics import Allotment, Matrix, Refusal, ZoneDemand
from keepclose.routing.hint_facts import count_ready, name_group, zones_of
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.subsets import parse_limit
from keepclose.routing.zone_weights import hint_everywhere, weights_of_flows

_ROUNDING: Final = 1e-9
_MOST_OVERLOAD: Final = 10.0

# Overloads at which a least share in the zone is tried, one after the other, beyond the default.
_LOOSER_BOUNDS: Final = (0.3, 0.5, 0.75, 1.0, 2.0, math.inf)
_SEARCHED_ZONES: Final = 8
"""Among more zones a least share in the zone is tried at no bound between the default and none."""


class Balanced(msgspec.Struct, frozen=True):
    """The heuristic, with the limits and the objective that a Service may set."""

    bound: float = OVERLOAD_BOUND
    objective: Objective = Objective.SCORE
    is_strict: bool = False
    """Whether the bound holds always, as for a Service that sets it."""
    min_in_zone: float = 0.0
    """The least part of the traffic that stays in its zone, if need be beyond a default bound."""
    gives_weights: bool = False
    """Whether allotments carry the weights of the limit, for proxies that follow weights."""

    def allocate(self, demand: ZoneDemand) -> Matrix | Allotment | Refusal:
        """Return how many endpoints of each zone serve which zones, or why there is no allocation.

        Where endpoints carry more than the bound, a reason says how much, and why.

        Endpoints located in zones without traffic serve the other zones, unless they are of more
        use unused; they are then hinted for a zone without traffic. Hints for zones that no longer
        exist count as not written.
        """
        names = sorted({*demand.shares, *demand.endpoints})
        result = best = self._balance(demand, names)
        reasons: list[Reason] = []
        if self.min_in_zone > 0.0:
            result = self._keep_in_zone(best, demand, names, reasons)
        weights = self._weigh(result, demand, names, reasons) if self.gives_weights else {}
        everywhere = hint_everywhere(demand.shares, demand.endpoints) if weights else None
        if result.shared and everywhere is None:
            return Refusal(_refusal_reason(demand), tuple(reasons))
        matrix = {
            zone: {
                name_group([names[served] for served in group]): number
                for group, number in row.items()
            }
            for zone, row in zip(names, result.hints, strict=True)
            if row
        }
        if result.shared and everywhere is not None:
            matrix = everywhere
        if result.overload > self.bound + _ROUNDING:
            reasons.append(self._describe_overload(result, demand, is_best=result is best))
        return Allotment(matrix, tuple(reasons), weights) if reasons or weights else matrix

    def _weigh(
        self, result: Balance, demand: ZoneDemand, names: Sequence[str], reasons: list[Reason]
    ) -> dict[str, dict[str, int]]:
        """Return the weights of the limit; {} with a reason if hints serve the Service better."""
        shares, endpoints = _divided_shares(demand, names), _counts(demand, names)
        flows = [0.0] * len(names) ** 2
        if weighted_matrix(len(names), shares, endpoints, flows) != WEIGHTED:
            return {}
        in_zone = sum(flows[:: len(names) + 1]) / sum(endpoints)
        by_hints = 0.0 if result.shared else result.in_zone(shares, endpoints)
        is_locality = self.objective is Objective.LOCALITY
        if in_zone < by_hints - _ROUNDING and (is_locality or in_zone < self.min_in_zone):
            reasons.append(
                Reason(
                    ReasonCode.WEIGHTS_WITHHELD,
                    f"weights are not written: they overload no endpoint and keep {in_zone:.1%} of "
                    f"the traffic in its zone, the hints {by_hints:.1%}, which the Service prefers",
                )
            )
            return {}
        return weights_of_flows(names, endpoints, flows)

    def _describe_overload(self, result: Balance, demand: ZoneDemand, *, is_best: bool) -> Reason:
        ready = sum(demand.endpoints.values())
        message = (
            f"the busiest of {ready} endpoints carry {result.overload:.0%} more than the mean, "
            f"beyond {self.bound:.0%}: "
        )
        if is_best:
            message += "no hints within that are clearly better for the objective"
            fix = f"run more pods, or set {MAX_OVERLOAD_ANNOTATION} to a bound that always holds"
        else:
            message += f"so more traffic stays in its zone, where {self.min_in_zone:.0%} should"
            fix = f"run more pods in zones with clients, or lower {MIN_IN_ZONE_ANNOTATION}"
        return Reason(ReasonCode.BOUND_RELAXED, message, fix=fix)

    def _balance(
        self, demand: ZoneDemand, names: Sequence[str], *, trial: float | None = None
    ) -> Balance:
        """Return the best allocation, or the one with most traffic in its zone within a trial."""
        index = {zone: number for number, zone in enumerate(names)}
        return balance(
            [demand.shares.get(zone, 0.0) for zone in names],
            _counts(demand, names),
            bound=self.bound if trial is None else trial,
            is_strict=self.is_strict or trial is not None,
            objective=self.objective if trial is None else Objective.LOCALITY,
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
        """Return the result, or one that keeps the least share in the zone, or most towards it.

        Only the default bound gives way, and no further than the share needs. At most 14
        allocations are tried; with more than 8 zones, each of which takes long, at most 2.
        """
        shares, endpoints = _divided_shares(demand, names), _counts(demand, names)
        best, most = result, result.in_zone(shares, endpoints)
        looser: tuple[float, ...] = () if self.is_strict else _LOOSER_BOUNDS
        unwritten = msgspec.structs.replace(demand, written={})
        questions: tuple[ZoneDemand, ...] = (demand, unwritten) if demand.written else (demand,)
        if len(names) > _SEARCHED_ZONES:
            looser, questions = looser[-1:], (demand,)
        for bound in (self.bound, *(bound for bound in looser if bound > self.bound)):
            # Written hints are kept where they are nearly the best; that may just miss the share.
            for question in questions:
                if most >= self.min_in_zone - _ROUNDING:
                    return best
                trial = self._balance(question, names, trial=bound)
                in_zone = trial.in_zone(shares, endpoints)
                if in_zone > most + _ROUNDING and not trial.shared:
                    best, most = trial, in_zone
        if most < self.min_in_zone - _ROUNDING:
            within = f" within {self.bound:.0%} overload" if self.is_strict else ""
            kept = "all endpoints for all zones keep" if best.shared else "these keep"
            more = f", or raise {MAX_OVERLOAD_ANNOTATION}" if self.is_strict else ""
            reasons.append(
                Reason(
                    ReasonCode.MIN_IN_ZONE_UNREACHABLE,
                    f"no hints{within} were found that keep {self.min_in_zone:.0%} of the traffic "
                    f"in its zone; {kept} {most:.0%}",
                    fix=f"run endpoints in every zone with clients{more}",
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
        names = [known.value for known in Objective]
        if annotations[OBJECTIVE_ANNOTATION] in names:
            objective = Objective(annotations[OBJECTIVE_ANNOTATION])
        else:
            refuse(
                OBJECTIVE_ANNOTATION,
                ReasonCode.OBJECTIVE_INVALID,
                " or ".join(names),
                objective.value,
            )
    limited = msgspec.structs.replace(
        heuristic, bound=bound, objective=objective, is_strict=is_strict, min_in_zone=least
    )
    return limited, tuple(reasons)


def _divided_shares(demand: ZoneDemand, names: Sequence[str]) -> list[float]:
    return divide_shares([demand.shares.get(zone, 0.0) for zone in names])


def _counts(demand: ZoneDemand, names: Sequence[str]) -> list[int]:
    return [demand.endpoints.get(zone, 0) for zone in names]


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
    fix = f"run at least {busy} ready pods, better three in each zone"
    if ready >= busy:
        fix = "run ready pods in more of the zones with traffic, better three in each"
    return Reason(
        ReasonCode.TOO_FEW_ENDPOINTS,
        f"{count_ready(ready)} {'is' if ready == 1 else 'are'} too few, or too close together, to "
        f"be divided among {busy} zones with traffic",
        fix=fix,
    )


BALANCED: Final = Balanced()
"""The object that the entry point keepclose.dev/Balanced loads."""
