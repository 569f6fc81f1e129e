"""Which endpoint belongs to which group, kept up to date one endpoint at a time (KEP-2004).

How many endpoints each group gets is decided on counts elsewhere; this keeps the counts and turns
the decision into groups of concrete endpoints. The slices as written are the only memory: an
endpoint's present group is the zone label of the slice that holds it, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from keepclose.model.endpointslice.types import Endpoint
from keepclose.model.meta import NamespacedName
from keepclose.routing.assignment import assign
from keepclose.routing.subsets import (
    Approach,
    Level,
    SubsetDecision,
    SubsetMode,
    SubsetOptions,
    decide_subsets,
)
from keepclose.slices.placement import Placement

Members = dict[str, dict[str, set[NamespacedName]]]
"""Ready endpoints by the zone they are in and the zone of the slice that holds them."""


class Division:
    """The groups of one Service and address type."""

    def __init__(self, placement: Placement, locate: Callable[[Endpoint], str]) -> None:
        """Take the endpoints and how the group is found that an endpoint is at home in."""
        self._placement = placement
        self._locate = locate
        self._ready: Members = {}
        self._filed: dict[NamespacedName, tuple[str, str]] = {}
        self._idle: set[NamespacedName] = set()
        self._moved: set[NamespacedName] = set()
        self.refile(source for source, _, _ in placement.wanted())

    def refile(self, sources: Iterable[NamespacedName]) -> None:
        """Take note of endpoints that came, went, changed, or were seen in another slice."""
        for source in sources:
            old = self._filed.pop(source, None)
            if old is not None:
                self._ready[old[0]][old[1]].discard(source)
            self._idle.discard(source)
            endpoint = self._placement.endpoint(source)
            if endpoint is None:
                continue
            if endpoint.is_ready:
                place = (self._locate(endpoint), self._placement.written_zone(source))
                self._filed[source] = place
                self._ready.setdefault(place[0], {}).setdefault(place[1], set()).add(source)
                self._placement.regroup(source, place[1])
            else:
                self._idle.add(source)

    def divide(
        self,
        *,
        approach: Approach,
        shares: Mapping[str, float],
        options: SubsetOptions,
        level: Level = Level.ZONE,
    ) -> SubsetDecision:
        """Put every endpoint into its group and return the decision that led there."""
        located = {zone: sum(map(len, groups.values())) for zone, groups in self._ready.items()}
        placed: dict[str, dict[str, int]] = {}
        for zone, groups in self._ready.items():
            for group, members in groups.items():
                if group and members:
                    placed.setdefault(group, {})[zone] = len(members)
        decision = decide_subsets(
            approach=approach,
            shares=shares,
            located=located,
            placed=placed,
            active=self._placement.is_divided,
            options=options,
            level=level,
        )
        if decision.mode is SubsetMode.RANDOM:
            self.undo()
            return decision
        for source in self._moved:
            # What the last plan moved counts only once it was seen written.
            self._placement.regroup(source, self._filed.get(source, ("", ""))[1])
        changes = assign(decision.target, self._ready)
        for source, group in changes.items():
            self._placement.regroup(source, group)
        self._moved = set(changes)
        self._place_idle(sorted({g for row in decision.target.values() for g in row}))
        return decision

    def undo(self) -> None:
        """Put all endpoints into the one group that everybody uses."""
        grouped = self._placement.grouped()
        for source in grouped:
            self._placement.regroup(source, "")
        self._moved.update(grouped)

    def _place_idle(self, groups: list[str]) -> None:
        # Endpoints that are not ready carry no traffic: they wait where they are, or at home.
        for source in self._idle:
            endpoint = self._placement.endpoint(source)
            home = "" if endpoint is None else self._locate(endpoint)
            written = self._placement.written_zone(source)
            choices = [zone for zone in (written, home, *groups) if zone in groups]
            self._placement.regroup(source, choices[0])
