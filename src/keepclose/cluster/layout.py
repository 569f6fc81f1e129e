"""How large a cluster is to be, and what its nodes and zones are called."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Final, NamedTuple

from keepclose.model.gates import FeatureGates, Gate

MOST_NODES: Final = 200
# Everything that can be tried; the last one excludes others.
LAB_GATES: Final = FeatureGates(frozenset(Gate)).without(Gate.SERVICE_TOPOLOGY)


class Layout(NamedTuple):
    """Zones and nodes."""

    zones: int = 3
    nodes_per_zone: int = 2

    @property
    def nodes(self) -> dict[str, str]:
        """The zone of each node, zone by zone."""
        total = self.zones * self.nodes_per_zone
        return {
            f"n{number + 1}": zone_name(number // self.nodes_per_zone) for number in range(total)
        }

    @property
    def by_zone(self) -> dict[str, list[str]]:
        """The nodes of each zone."""
        found: dict[str, list[str]] = {}
        for node, zone in self.nodes.items():
            found.setdefault(zone, []).append(node)
        return found

    def flaws(self) -> list[str]:
        """Return what cannot be built, by option; empty when all is well."""
        flaws = []
        if self.zones < 1:
            flaws.append("--zones must be at least 1")
        if self.nodes_per_zone < 1:
            flaws.append("--nodes-per-zone must be at least 1")
        if self.zones * self.nodes_per_zone > MOST_NODES:
            flaws.append(
                f"--zones times --nodes-per-zone is {self.zones * self.nodes_per_zone}; "
                f"more than {MOST_NODES} nodes do not fit on one machine"
            )
        return flaws


def zone_name(number: int) -> str:
    """Return the name of a zone, zone-a for 0."""
    if number < len(ascii_lowercase):
        return f"zone-{ascii_lowercase[number]}"
    first, second = divmod(number - len(ascii_lowercase), len(ascii_lowercase))
    return f"zone-{ascii_lowercase[first]}{ascii_lowercase[second]}"
