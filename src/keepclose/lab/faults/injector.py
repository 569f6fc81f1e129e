"""Trouble for the nodes of a lab, and its end: fail, partition, cordon, drain, relabel, heal.

What happens to a node happens in two places: in the network, where its link and its way to the API
server are cut, and in the API, where others notice. A failed node is noticed at once, although a
cluster needs 40 seconds for it; a partitioned one only when that is asked for. Everything can be
done twice, and be undone by `heal`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from keepclose.kube.client import PatchType
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.event_recorder import format_event_time
from keepclose.lab.access import ApiWay, LabRefusal, TroubledLab
from keepclose.lab.faults import node_status
from keepclose.lab.faults.node_states import (
    NodeState,
    delete_pods,
    describe_nodes,
    find_node,
    find_nodes,
    sort_pods,
    wait_gone,
)
from keepclose.lab.faults.node_status import PLAIN_NODES, MarkedNode
from keepclose.lab.workloads.pods import WORKLOAD_PODS, WorkloadPod
from keepclose.model.json_values import JsonObject
from keepclose.system.threads import finish_in_thread, finish_task

_PATIENCE_S: Final = 15.0
WATCHES: Final = 4
"""What a proxy watches: Services, slices, its node, ranges of cluster IPs."""
_REST_S: Final = 0.05
_SYNC_S: Final = 0.5
_TRIES: Final = 5
NEEDS_PACKETS: Final = 5
"""The exit code of what cannot be done without packets."""


async def await_return(
    ways: Mapping[str, ApiWay],
    before: Mapping[str, int],
    *,
    clock: Clock,
    on_wait: Callable[[list[str]], None],
    patience_s: float = _PATIENCE_S,
) -> list[str]:
    """Wait until nodes have as many connections as before; return those that are still away.

    `on_wait` hears for whom, each time that this changes. Nodes without a way do not count.
    """
    began = clock.monotonic()
    told: list[str] = []
    while away := [
        node
        for node, count in before.items()
        if node in ways and ways[node].connections < min(count, WATCHES)
    ]:
        if away != told:
            told = away
            on_wait(away)
        if clock.monotonic() - began >= patience_s:
            return away
        await clock.sleep(_REST_S)
    if told:
        # What they learn from now on is in effect a moment later.
        await clock.sleep(_SYNC_S)
    return []


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
            await finish_task(self._cut(node, self.failed))
        self.failed.add(node)
        self.partitioned.discard(node)

    async def partition(self, node: str) -> None:
        """Cut a node off that is well; raises NetworkError."""
        await finish_task(self._cut(node, self.partitioned))

    async def mend(self, node: str) -> None:
        """Undo the cut; the node counts as cut off until it is forgotten. Raises NetworkError."""
        await finish_task(self._mend(node))

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


class FaultError(msgspec.Struct, frozen=True):
    """What became of nodes that failed or were cut off."""

    nodes: list[str]
    """All that were meant."""
    changed: list[str]
    """Those that were well before."""
    unready: list[str]
    """The pods that are no longer ready by it."""
    is_noticed: bool = True


class Drain(msgspec.Struct, frozen=True):
    """What left a node."""

    node: str
    evicted: list[str]
    kept: list[str]
    """Pods of DaemonSets."""


class Healing(msgspec.Struct, frozen=True):
    """What is well again."""

    healed: dict[str, list[str]]
    """What was undone, by node."""
    away: list[str]
    """Nodes whose proxies have not come back to the API server yet."""


class Troubles:
    """Makes and ends trouble in one running lab."""

    def __init__(self, lab: TroubledLab, *, clock: Clock | None = None) -> None:
        self._lab = lab
        self._clock = clock or SystemClock()
        self._cuts = NodeCuts(lab)
        # One at a time: two hands at one link would leave it in a state that nobody asked for.
        self._turn = asyncio.Lock()

    async def fail(self, name: str) -> FaultError:
        """Let a node die, or all nodes of a zone; the cluster notices at once."""
        async with self._turn:
            nodes = find_nodes(await self._nodes(), name)
            changed = [node.name for node in nodes if node.name not in self._cuts.failed]
            for node in changed:
                await self._cuts.fail(node)
            unready = await self._notice(nodes)
        return FaultError([node.name for node in nodes], changed, unready)

    async def partition(self, name: str, *, notice: bool = False) -> FaultError:
        """Cut a node off from the others and from the API server, which may notice or not yet."""
        async with self._turn:
            node = find_node(await self._nodes(), name)
            if self._lab.underlay is None:
                raise LabRefusal(
                    f"a partition needs packets, and there are none here: {self._lab.no_packets}",
                    code=NEEDS_PACKETS,
                )
            changed = name not in self._cuts.nodes
            if changed:
                await self._cuts.partition(name)
            unready = await self._notice([node]) if notice else []
            noticed = notice or node.is_unreachable
        return FaultError([name], [name] if changed else [], unready, is_noticed=noticed)

    async def cordon(self, name: str) -> bool:
        """Let no more pods come to a node; return whether that is new."""
        return await self._change(name, node_status.cordon_patch)

    async def uncordon(self, name: str) -> bool:
        """Let pods come again; return whether that is new."""
        return await self._change(name, node_status.uncordon_patch)

    async def drain(
        self,
        name: str,
        *,
        force: bool = False,
        timeout_s: float = 60.0,
        on_gone: Callable[[str], None] = lambda _: None,
    ) -> Drain:
        """Cordon a node and move all its pods away but those of DaemonSets."""
        await self.cordon(name)
        pods = await self._pods()
        going, staying, unmanaged = sort_pods(pods, name)
        if unmanaged and not force:
            raise LabRefusal(
                f"{name} is cordoned but not drained: cannot delete Pods that declare no "
                f"controller (use --force to override): {_names(unmanaged)}",
                code=1,
            )
        going += unmanaged
        await delete_pods(self._lab.client, going)
        left = await wait_gone(
            self._lab.client,
            going,
            clock=self._clock,
            timeout_s=timeout_s,
            on_gone=lambda pod: on_gone(str(pod.key)),
        )
        if left:
            dead = name in self._cuts.nodes
            why = (
                f"; nothing ends on a node that is dead or cut off: keepclose lab heal {name}"
                if dead
                else "; they go on until their grace is over"
            )
            raise LabRefusal(
                f"{name}: {len(left)} of {len(going)} pods are still there after {timeout_s:g} s: "
                f"{_names(left)}{why}",
                code=1,
            )
        return Drain(name, [str(pod.key) for pod in going], [str(pod.key) for pod in staying])

    async def relabel(self, name: str, zone: str) -> tuple[str, bool]:
        """Put a node into another zone, "" for none; return its zone before, and what is new."""
        node = find_node(await self._nodes(), name)
        changed = await self._change(name, lambda node: node_status.zone_patch(node, zone))
        return node.zone, changed

    async def heal(
        self, name: str = "", *, on_wait: Callable[[list[str]], None] = lambda _: None
    ) -> Healing:
        """Undo all trouble of a node, a zone, or of all.

        Waits a while for the proxies of nodes that were cut off, after having said for which. A
        node that was deleted from the API meanwhile is joined to the others again all the same.
        """
        async with self._turn:
            nodes = await self._nodes()
            cut_off = self._cuts.nodes
            deleted = sorted(cut_off - {node.name for node in nodes})
            if name in deleted:
                meant, deleted = [], [name]
            elif name:
                meant, deleted = find_nodes(nodes, name, counts_moved=True), []
            else:
                meant = nodes
            # NB: links come first, so that whoever sees a node ready can reach it.
            mended = [node.name for node in meant if node.name in cut_off] + deleted
            for one in mended:
                await self._cuts.mend(one)
            healed = await asyncio.gather(*(self._heal(node) for node in meant))
            undone = {node.name: what for node, what in zip(meant, healed, strict=True) if what}
            undone |= {one: self._cuts.ways(one) for one in deleted}
            self._cuts.forget(mended)
        before = self._cuts.connections_before(mended)
        away = await await_return(self._lab.relays, before, clock=self._clock, on_wait=on_wait)
        return Healing(undone, away)

    async def states(self) -> list[NodeState]:
        """Return how all nodes are."""
        nodes, pods = await asyncio.gather(self._nodes(), self._pods())
        cuts = self._cuts
        return describe_nodes(nodes, pods, failed=cuts.failed, partitioned=cuts.partitioned)

    async def _heal(self, node: MarkedNode) -> list[str]:
        name = node.name
        undone = self._cuts.ways(name)
        time = format_event_time(self._clock.now())
        heard = await self._patch_status(node, node_status.mark_heard(node, time=time))
        untainted = await self._change(name, node_status.untaint)
        if (heard or untainted) and not undone:
            undone.append("fail")
        if await self._change(name, lambda one: node_status.uncordon_patch(one, only_ours=True)):
            undone.append("cordon")
        if await self._change(name, node_status.home_patch):
            undone.append("relabel")
        return undone

    async def _notice(self, nodes: Sequence[MarkedNode]) -> list[str]:
        """Write what the cluster makes of nodes that are silent; return pods no longer ready."""
        time = format_event_time(self._clock.now())

        async def mark(node: MarkedNode) -> None:
            await self._patch_status(node, node_status.mark_silent(node, time=time))
            await self._change(node.name, lambda one: node_status.taint_unreachable(one, time=time))

        await asyncio.gather(*(mark(node) for node in nodes))
        names = {node.name for node in nodes}
        ready = [pod for pod in await self._pods() if pod.spec.node_name in names and pod.is_ready]
        await asyncio.gather(*(self._mark_unready(pod, time) for pod in ready))
        return [str(pod.key) for pod in ready]

    async def _mark_unready(self, pod: WorkloadPod, time: str) -> None:
        with suppress(NotFound, Conflict):
            await self._lab.client.patch(
                WORKLOAD_PODS,
                pod.metadata.name,
                node_status.pod_unready_patch(pod.uid, time=time),
                namespace=pod.metadata.namespace,
                type=PatchType.STRATEGIC,
                subresource="status",
            )

    async def _patch_status(self, node: MarkedNode, patch: JsonObject | None) -> bool:
        if patch is None:
            return False
        await self._lab.client.patch(
            PLAIN_NODES, node.name, patch, type=PatchType.STRATEGIC, subresource="status"
        )
        return True

    async def _change(self, name: str, patch_of: Callable[[MarkedNode], JsonObject | None]) -> bool:
        """Change a node by what a patch makes of it as it is now; return whether it changed."""
        for attempt in range(_TRIES):
            node = find_node(await self._nodes(), name)
            patch = patch_of(node)
            if patch is None:
                return False
            try:
                await self._lab.client.patch(PLAIN_NODES, name, patch)
            except Conflict:
                if attempt == _TRIES - 1:
                    raise
            else:
                return True
        return False

    async def _nodes(self) -> list[MarkedNode]:
        page = await self._lab.client.list_all(PLAIN_NODES)
        return sorted(page.items, key=lambda node: node.name)

    async def _pods(self) -> list[WorkloadPod]:
        return (await self._lab.client.list_all(WORKLOAD_PODS)).items


def _names(pods: Iterable[WorkloadPod]) -> str:
    return ", ".join(str(pod.key) for pod in pods)
