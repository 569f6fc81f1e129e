"""Services over pods in three zones that ask for the subsetting of KEP-2004."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import SUBSETTING_ANNOTATION
from keepclose.model.workload import Node
from keepclose.routing.subsets import Approach as SubsetApproach
from keepclose.routing.subsets import SubsetDecision, SubsetOptions, decide_subsets
from keepclose.slices.settings import PlannerSettings
from support.builders import service
from support.proposals.planned_services import PlannedService, nodes_in

SUBSETTING: Final = FeatureGates().with_gates(
    Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.ENDPOINT_SLICE_SUBSETTING
)
A, B, C = "zone-a", "zone-b", "zone-c"
THIRDS: Final = {A: 1 / 3, B: 1 / 3, C: 1 / 3}


def subsetted(
    value: str | None = "Auto",
    *,
    nodes: Sequence[Node] | None = None,
    gates: FeatureGates = SUBSETTING,
    options: SubsetOptions = SubsetOptions(),  # noqa: B008 - frozen
    counts: Mapping[str, int] | None = None,
    **pods: int,
) -> PlannedService:
    """Return a synced Service with this annotation and so many pods in the zones a, b and c.

    How many may be given as `counts` too. Each zone has one node (a1, b1, c1) unless nodes are
    given; pods run on the zone's first node.
    """
    annotations = {} if value is None else {SUBSETTING_ANNOTATION: value}
    planned = PlannedService(
        service(annotations=annotations),
        nodes_in(a=1, b=1, c=1) if nodes is None else nodes,
        PlannerSettings(gates=gates, subsets=options),
    )
    for letter, count in (counts or pods).items():
        planned.start(f"{letter}1", count)
    planned.sync()
    return planned


def decide(
    located: dict[str, int],
    *,
    shares: dict[str, float] | None = None,
    placed: dict[str, dict[str, int]] | None = None,
    options: SubsetOptions = SubsetOptions(start_per_zone=0.1, padding=0),  # noqa: B008 - frozen
) -> SubsetDecision:
    """Return the decision of Prefer on counts; without `placed` nothing is divided yet.

    Unless options are given, the least endpoints are enough to begin.
    """
    return decide_subsets(
        approach=SubsetApproach.PREFER,
        shares=shares or THIRDS,
        located=located,
        placed=placed or {},
        active=placed is not None,
        options=options,
    )


def sizes(decision: SubsetDecision) -> dict[str, int]:
    """Return how many endpoints each zone consumes."""
    found: dict[str, int] = {}
    for row in decision.target.values():
        for zone, count in row.items():
            found[zone] = found.get(zone, 0) + count
    return dict(sorted(found.items()))
