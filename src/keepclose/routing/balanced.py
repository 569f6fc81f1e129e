"""The heuristic keepclose.dev/Balanced: traffic stays in its zone while no endpoint is overloaded.

A value of spec.trafficDistribution (KEP-4444). The heuristic asks the allocator of the same name
for the best allocation under the overload bound, starting from the written hints, so that few of
them change. It refuses only where an allocation has no meaning: the traffic of the zones is
unknown, or there are too few endpoints to divide among the zones. All nodes then use all endpoints.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.model.well_known import ZONE_LABEL
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND, Objective, balance
from keepclose.routing.heuristics import Allotment, Matrix, Refusal, ZoneDemand
from keepclose.routing.reasons import Reason, ReasonCode


class Balanced(msgspec.Struct, frozen=True):
    """The heuristic, with its overload bound and the objective to optimize under it."""

    bound: float = OVERLOAD_BOUND
    objective: Objective = Objective.SCORE

    def allocate(self, demand: ZoneDemand) -> Matrix | Allotment | Refusal:
        """Return how many endpoints of each zone serve each zone, or why there is no allocation.

        If the bound cannot be kept, the reasons name the bound that is kept instead.

        Zones without traffic get no endpoints; endpoints located there serve the other zones. Hints
        for zones that no longer exist count as not written.
        """
        names = sorted({*demand.shares, *demand.endpoints})
        result = balance(
            [demand.shares.get(zone, 0.0) for zone in names],
            [demand.endpoints.get(zone, 0) for zone in names],
            bound=self.bound,
            objective=self.objective,
            previous=[
                [demand.written.get(zone, {}).get(served, 0) for served in names] for zone in names
            ],
        )
        if result.shared:
            return Refusal(_refusal_reason(demand))
        matrix = {
            zone: {served: number for served, number in zip(names, row, strict=True) if number}
            for zone, row in zip(names, result.matrix, strict=True)
            if any(row)
        }
        if result.relaxed is None:
            return matrix
        ready = sum(demand.endpoints.values())
        relaxed = Reason(
            ReasonCode.BOUND_RELAXED,
            f"{ready} endpoints cannot keep every zone within {self.bound:.0%} overload; "
            f"the busiest carry {result.relaxed:.0%} more than the mean",
            fix="run more pods",
        )
        return Allotment(matrix, (relaxed,))


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
