"""example.dev/LendOne: endpoints serve their own zone, and a zone without any is lent one."""

from __future__ import annotations

from keepclose.routing.heuristic_answers import Allotment, Matrix, Refusal, ZoneDemand
from keepclose.routing.reasons import Reason, ReasonCode


class LendOne:
    """Lends from the zone that stands the loss of a node best.

    A zone that sends little traffic shares the endpoint with the zone where it runs.
    """

    def allocate(self, demand: ZoneDemand) -> Matrix | Allotment | Refusal:
        """Return how many endpoints located in each zone serve which zones."""
        matrix = {zone: {zone: count} for zone, count in sorted(demand.endpoints.items())}
        fair = 1 / sum(demand.endpoints.values())
        lent = []
        for zone, nodes in sorted(demand.nodes.items()):
            share = demand.shares.get(zone, 0.0)
            if zone in matrix or not nodes.ready or not share:
                continue
            lenders = [lender for lender, row in matrix.items() if row[lender] > 1]
            if not lenders:
                return Refusal(
                    Reason(
                        ReasonCode.TOO_FEW_ENDPOINTS,
                        f"no zone can spare an endpoint for zone {zone}",
                        fix="run more pods",
                    )
                )
            lender = max(lenders, key=lambda name: (count_nodes(demand, name), matrix[name][name]))
            # With less than half of what an endpoint should carry, the zone need not have its own.
            served = ",".join(sorted((lender, zone))) if share < fair / 2 else zone
            matrix[lender][lender] -= 1
            matrix[lender][served] = 1
            shared = ", which serves both" if "," in served else ""
            text = f"zone {lender} lends an endpoint to zone {zone}{shared}"
            lent.append(Reason(ReasonCode.ALLOCATED, text))
        return Allotment(matrix, tuple(lent))


def count_nodes(demand: ZoneDemand, zone: str) -> int:
    """Return on how many nodes the endpoints of a zone run; 0 if that is unknown."""
    return sum(demand.spread.get(zone, {}).values())


LEND_ONE = LendOne()
