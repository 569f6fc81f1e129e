"""The heuristics keepclose.dev/LocalShared, LocalWeighted and LocalOpt, from KEP-2004.

Their allocators form groups of endpoints that attract the clients of zones with weights. How much
traffic goes from zone to zone follows from that, and so do the weights for proxies that follow
them. LocalShared needs whole endpoints only, so its groups are hints, too. The other two mean
nothing without weights; nodes that do not follow weights get the hints of Balanced, which bound the
overload. No allocation means that all nodes use all endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from keepclose.model.endpointslice.validation import MAX_ZONE_HINTS
from keepclose.routing.allocation.hint_choice import BALANCED_SCRATCH
from keepclose.routing.allocation.local_opt import allocate_local_opt
from keepclose.routing.allocation.local_shared import allocate_local_shared
from keepclose.routing.allocation.local_weighted import allocate_local_weighted
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristic_answers import Allotment, Matrix, Refusal, ZoneDemand
from keepclose.routing.hint_facts import name_group, zones_of
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.subsets import DEFAULT_OVERLOAD_THRESHOLD, SubsetOptions, read_limits
from keepclose.routing.traffic_shares import divide_shares
from keepclose.routing.zone_weights import hint_everywhere, weights_of_flows

_MOST_GROUPS: Final = 3


class ZoneGroups(msgspec.Struct, frozen=True):
    """Groups of endpoints by location, and how much an endpoint of each attracts each zone."""

    members: tuple[tuple[int, ...], ...]
    attraction: tuple[tuple[float, ...], ...]

    def flows(self) -> list[float]:
        """Return what reaches each location from each zone, location times zones plus zone."""
        zones = len(self.members[0]) if self.members else 0
        return [
            sum(
                group[location] * attracted[client]
                for group, attracted in zip(self.members, self.attraction, strict=True)
            )
            for location in range(zones)
            for client in range(zones)
        ]


class LocalHeuristic(msgspec.Struct, frozen=True):
    """One of the heuristics, around its allocator."""

    name: str
    allocator: Callable[..., int]
    hints_groups: bool = False
    """Whether the groups are hints; else the hints are those of Balanced."""
    threshold: float = DEFAULT_OVERLOAD_THRESHOLD
    """The overload that no zone may reach; only local-shared keeps it."""

    def allocate(self, demand: ZoneDemand) -> Allotment | Refusal:
        """Return hints and weights, or why there is no allocation."""
        names = sorted({*demand.shares, *demand.endpoints})
        shares = divide_shares([demand.shares.get(zone, 0.0) for zone in names])
        counts = [demand.endpoints.get(zone, 0) for zone in names]
        groups = form_groups(self.allocator, shares, counts, self.threshold)
        if not groups.members:
            return Refusal(_no_allocation(self.name, sum(counts)))
        matrix = self._hint(groups, names, demand) if self.hints_groups else None
        reasons: tuple[Reason, ...] = ()
        if matrix is None:
            answer = BALANCED.allocate(demand)
            if isinstance(answer, Refusal):
                matrix = hint_everywhere(demand.shares, demand.endpoints)
                if matrix is None:
                    return answer
            elif isinstance(answer, Allotment):
                matrix, reasons = answer.matrix, answer.reasons
            else:
                matrix = answer
        return Allotment(matrix, reasons, weights_of_flows(names, counts, groups.flows()))

    @staticmethod
    def _hint(groups: ZoneGroups, names: Sequence[str], demand: ZoneDemand) -> Matrix | None:
        """Return the groups as hints; None if they do not use each endpoint once."""
        matrix: dict[str, dict[str, int]] = {}
        for members, attracted in zip(groups.members, groups.attraction, strict=True):
            served = [zone for zone, part in zip(names, attracted, strict=True) if part > 0.0]
            for location, number in zip(names, members, strict=True):
                if number:
                    row = matrix.setdefault(location, {})
                    row[name_group(served)] = row.get(name_group(served), 0) + number
        used = {zone: sum(row.values()) for zone, row in matrix.items()}
        is_complete = all(
            0 < len(zones_of(group)) <= MAX_ZONE_HINTS for row in matrix.values() for group in row
        )
        return matrix if is_complete and used == dict(demand.endpoints) else None


def form_groups(
    allocator: Callable[..., Any],
    shares: Sequence[float],
    endpoints: Sequence[int],
    threshold: float,
) -> ZoneGroups:
    """Return the groups of an allocator; none for one group of all endpoints."""
    zones = len(shares)
    cells = (_MOST_GROUPS * zones + 2) * zones
    comp, weight = [0] * cells, [0.0] * cells
    room = BALANCED_SCRATCH * (zones + 1)
    count = allocator(
        zones, shares, endpoints, threshold, 0.0, comp, weight, [0] * room, [0.0] * room
    )
    rows = [slice(group * zones, (group + 1) * zones) for group in range(count)]
    return ZoneGroups(
        tuple([tuple(comp[row]) for row in rows]), tuple([tuple(weight[row]) for row in rows])
    )


def read_group_limits(
    annotations: Mapping[str, str], heuristic: LocalHeuristic, options: SubsetOptions
) -> tuple[LocalHeuristic, tuple[Reason, ...]]:
    """Return the heuristic with the overload threshold of a Service, and a reason if it is invalid.

    Without one the threshold of the options holds. A heuristic that keeps none stays as it is.
    """
    if not heuristic.hints_groups:
        return heuristic, ()
    limits, invalid = read_limits(annotations, options)
    reasons = [each for each in invalid if each.code is ReasonCode.OVERLOAD_THRESHOLD_INVALID]
    return msgspec.structs.replace(heuristic, threshold=limits.overload_threshold), tuple(reasons)


def _no_allocation(name: str, ready: int) -> Reason:
    return Reason(
        ReasonCode.DOWNGRADED,
        f"{name} finds no allocation of {ready} endpoints, so all zones use all endpoints",
        fix="run more pods",
    )


LOCAL_SHARED: Final = LocalHeuristic("local-shared", allocate_local_shared, hints_groups=True)
LOCAL_WEIGHTED: Final = LocalHeuristic("local-weighted", allocate_local_weighted)
LOCAL_OPT: Final = LocalHeuristic("local-opt", allocate_local_opt)
