"""Which endpoints serve which group, once it is known how many: the fewest changes that get there.

Allocators decide on counts per zone; slices hold concrete endpoints. Subsetting (groups are zones
with their own slices) and the hint heuristics (groups are hinted zones) both turn the counts into
endpoints here. An endpoint that may stay where it is always stays: every move is a write to a slice
that all proxies read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

Id = TypeVar("Id", bound="SupportsRichComparison")

UNPLACED = ""
"""The group of endpoints that stand in none yet."""


def assign(
    target: Mapping[str, Mapping[str, int]],
    current: Mapping[str, Mapping[str, Collection[Id]]],
) -> dict[Id, str]:
    """Return the new group of each endpoint that has to change; nothing to change gives {}.

    `target` says, by location, how many endpoints located there each group should have; `current`
    names those it has now, with "" for endpoints in no group. The number of changes is the least
    possible for these counts. Endpoints in no group go first, then those that a group has too many
    of; such a group keeps its first ids in sort order. The group that lacks most is served first,
    then by name.

    A target that asks for more endpoints than a location has is met as far as they go; one that
    asks for fewer leaves the rest as they are, without a group those that have none.
    """
    changes: dict[Id, str] = {}
    for location in sorted(current):
        groups = current[location]
        wanted = target.get(location, {})
        lacking = [
            (min(0, len(groups.get(group, ())) - number), group)
            for group, number in wanted.items()
            if group != UNPLACED
        ]
        if not any(shortage for shortage, _ in lacking):
            continue
        free = sorted(groups.get(UNPLACED, ()))
        for group in sorted(groups):
            keep = max(0, wanted.get(group, 0))
            if group != UNPLACED:
                free.extend(sorted(groups[group])[keep:])
        # The entries are (minus what the group lacks, group), so the neediest sorts first.
        position = 0
        for shortage, group in sorted(lacking):
            for one in free[position : position - shortage]:
                changes[one] = group
            position -= shortage
    return changes
