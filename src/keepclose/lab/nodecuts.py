"""Which nodes of a lab are cut off, and the cut itself: link, kubelet and way to the API server.

A node is cut off wholly or not at all: one whose link cannot be cut stays as it was, and a cut that
has begun is finished, whoever goes away meanwhile. What the cluster makes of it is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepclose.lab.access import TroubledLab
from keepclose.system.threads import finish, finish_in_thread


class NodeCuts:
    """The nodes that failed or were partitioned; one caller at a time."""

    def __init__(self, lab: TroubledLab) -> None:
        self._lab = lab
        self.failed: set[str] = set()
        self.partitioned: set[str] = set()
        self._connections: dict[str, int] = {}

    @property
    def nodes(self) -> set[str]:
        """All that are cut off."""
        return self.failed | self.partitioned

    def ways(self, node: str) -> list[str]:
        """Return by which trouble a node was cut off, [] when it is not."""
        ways = {"fail": self.failed, "partition": self.partitioned}
        return [way for way, nodes in ways.items() if node in nodes]

    def connections_before(self, nodes: Iterable[str]) -> dict[str, int]:
        """Return how many connections to the API server nodes had before they were cut off."""
        return {node: self._connections.get(node, 0) for node in nodes}

    async def fail(self, node: str) -> None:
        """Let a node die; one that was partitioned is cut off already. Raises NetworkError."""
        if node not in self.partitioned:
            await finish(self._cut(node, self.failed))
        self.failed.add(node)
        self.partitioned.discard(node)

    async def partition(self, node: str) -> None:
        """Cut a node off that is well; raises NetworkError."""
        await finish(self._cut(node, self.partitioned))

    async def mend(self, node: str) -> None:
        """Undo the cut; the node counts as cut off until it is forgotten. Raises NetworkError."""
        await finish(self._mend(node))

    def forget(self, nodes: Iterable[str]) -> None:
        """Take note that nodes are whole again."""
        self.failed.difference_update(nodes)
        self.partitioned.difference_update(nodes)

    async def _mend(self, node: str) -> None:
        underlay = self._lab.underlay
        if underlay is not None:
            # NB: one that was left to itself could undo a cut that is made later.
            await finish_in_thread(lambda: underlay.mend(node))
        if node in self._lab.relays:
            await self._lab.relays[node].open()
        self._lab.kubelets.recover(node)

    async def _cut(self, node: str, mark: set[str]) -> None:
        # NB: only the first step can be refused.
        underlay = self._lab.underlay
        if underlay is not None:
            await finish_in_thread(lambda: underlay.cut(node))
        mark.add(node)
        self._lab.kubelets.fail(node)
        if node in self._lab.relays:
            self._connections[node] = self._lab.relays[node].connections
            await self._lab.relays[node].hold()
