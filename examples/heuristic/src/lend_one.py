"""example.dev/LendOne: endpoints serve their own zone, and a zone without any is lent one."""

from __future__ import annotations

from keepclose.routing.heuristic_answers import Allotment, Matrix, Refusal, ZoneDemand
from keepclose.routing.reasons import Reason, ReasonCode


class LendOne:
    """Takes from the zone that has most endpoints, and of equals from the one with less traffic."""

    def allocate(self, demand: ZoneDemand) -> Matrix | Allotment | Refusal:
        """Return how many endpoints located in each zone serve each zone."""
        matrix = {zone: {zone: count} for zone, count in sorted(demand.endpoints.items())}
        empty = [zone for zone, share in demand.shares.items() if share and zone not in matrix]
        lent = []
        for zone in sorted(empty):
            lenders = [lender for lender, row in matrix.items() if row[lender] > 1]
            if not lenders:
                return Refusal(
                    Reason(
                        ReasonCode.TOO_FEW_ENDPOINTS,
                        f"no zone can spare an endpoint for zone {zone}",
                        fix="run more pods",
                    )
                )
            lender = max(
                lenders, key=lambda one: matrix[one][one] / (demand.shares.get(one) or 1e-9)
            )
            matrix[lender][lender] -= 1
            matrix[lender][zone] = 1
            text = f"zone {lender} lends an endpoint to zone {zone}"
            lent.append(Reason(ReasonCode.ALLOCATED, text))
        return Allotment(matrix, tuple(lent))


LEND_ONE = LendOne()
