"""Nodes of one sort, and the few of them that messages name.

A name that was given stays as long as its node belongs to the group, so that a message does not
change with every node that joins.
"""

from __future__ import annotations

import heapq

from keepclose.routing.honoring import MOST_NAMED, NodeSample


class NodeGroup:
    """A set of nodes with a sample that is worked out when it is asked for."""

    def __init__(self) -> None:
        self._members: set[str] = set()
        self._sample: NodeSample | None = NodeSample()
        self._named: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, node: object) -> bool:
        return node in self._members

    def put(self, node: str, *, belongs: bool) -> bool:
        """Let a node belong to the group or not; return whether that changed anything."""
        if (node in self._members) == belongs:
            return False
        if belongs:
            self._members.add(node)
        else:
            self._members.discard(node)
        self._sample = None
        return True

    @property
    def sample(self) -> NodeSample:
        """How many there are, and the names of a few."""
        if self._sample is None:
            named = [name for name in self._named if name in self._members]
            if len(named) < MOST_NAMED and len(named) < len(self._members):
                others = (name for name in self._members if name not in named)
                named += heapq.nsmallest(MOST_NAMED - len(named), others)
            self._named = tuple(named)
            self._sample = NodeSample(len(self._members), self._named)
        return self._sample
