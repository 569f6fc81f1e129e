"""Injects faults into the nodes of a lab and undoes them: fail, partition, drain, relabel, heal.

A fault has two parts: in the network, where the node's links to other nodes and to the API server
are cut, and in the API, where the Node becomes unreachable. The Node of a failed node does so at
once, although a cluster needs 40 s for it; that of a partitioned node only on request. All faults
are idempotent, and `heal` undoes them.

A node is isolated wholly or not at all: if its link cannot be cut it stays as it was, and a cut
that has begun is finished even if its caller is cancelled.

A client that loses the API server backs off for up to half a minute, so a restored link may be idle
for a while. A node has reconnected when it has as many connections as before, up to the watches of
its proxy: a connection for single requests is only opened when there are any.
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
from keepclose.lab.access import ApiLink, FaultTarget, LabRefusal
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
from keepclose.lab.faults.node_status import LIFECYCLE_NODES, LifecycleNode
from keepclose.lab.kinds import LAB_PODS
from keepclose.model.json_values import JsonObject
from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.system.threads import finish_in_thread, finish_task

_RECONNECT_TIMEOUT_S: Final = 15.0
WATCHES: Final = 4
"""The watches of a proxy: Services, EndpointSlices, its Node, ServiceCIDRs."""
_POLL_S: Final = 0.05
_SYNC_S: Final = 0.5
_TRIES: Final = 5
NEEDS_PACKETS: Final = 5
"""The exit code of a request that needs the lab's network on a machine that cannot have it."""


async def wait_for_reconnect(
    api_links: Mapping[str, ApiLink],
    before: Mapping[str, int],
    *,
    clock: Clock,
    on_wait: Callable[[list[str]], None],
    timeout_s: float = _RECONNECT_TIMEOUT_S,
) -> list[str]:
    """Wait until nodes have as many connections as before; return those that still have not.

    `on_wait` gets the nodes that are waited for whenever they change. Nodes without a link to the
    API server do not count.
    """
    began = clock.monotonic()
    reported: list[str] = []
    while away := [
        node
        for node, count in before.items()
        if node in api_links and api_links[node].connections < min(count, WATCHES)
    ]:
        if away != reported:
            reported = away
            on_wait(away)
        if clock.monotonic() - began >= timeout_s:
            return away
        await clock.sleep(_POLL_S)
    if reported:
        # The proxies apply what they receive a moment later.
        await clock.sleep(_SYNC_S)
    return []


class NodeIsolation:
    """Isolates failed and partitioned nodes: link, kubelet and API link; one caller at a time."""

    def __init__(self, lab: FaultTarget) -> None:
        self._lab = lab
        self.failed: set[str] = set()
        self.partitioned: set[str] = set()
        self._connections: dict[str, int] = {}

    @property
    def nodes(self) -> set[str]:
        """All isolated nodes."""
        return self.failed | self.partitioned

    def faults_of(self, node: str) -> list[str]:
        """Return the faults that isolate a node, [] if there are none."""
        faults = {"fail": self.failed, "partition": self.partitioned}
        return [fault for fault, nodes in faults.items() if node in nodes]

    def connections_before(self, nodes: Iterable[str]) -> dict[str, int]:
        """Return how many connections to the API server nodes had before their isolation."""
        return {node: self._connections.get(node, 0) for node in nodes}

    async def fail(self, node: str) -> None:
        """Fail a node; a partitioned node is isolated already. Raises NetworkError."""
        if node not in self.partitioned:
            await finish_task(self._cut(node, self.failed))
        self.failed.add(node)
        self.partitioned.discard(node)

    async def partition(self, node: str) -> None:
        """Partition a healthy node; raises NetworkError."""
        await finish_task(self._cut(node, self.partitioned))

    async def restore(self, node: str) -> None:
        """Undo the isolation; the node counts as isolated until `forget`. Raises NetworkError."""
        await finish_task(self._restore(node))

    def forget(self, nodes: Iterable[str]) -> None:
        """Forget the faults of nodes that are restored."""
        self.failed.difference_update(nodes)
        self.partitioned.difference_update(nodes)

    async def _restore(self, node: str) -> None:
        underlay = self._lab.underlay
        if underlay is not None:
            # NB: a thread that runs on after a cancellation could undo a later cut.
            await finish_in_thread(lambda: underlay.restore(node))
        if node in self._lab.relays:
            await self._lab.relays[node].open()
        self._lab.kubelets.recover(node)

    async def _cut(self, node: str, mark: set[str]) -> None:
        # NB: only the first step can fail.
        underlay = self._lab.underlay
        if underlay is not None:
            await finish_in_thread(lambda: underlay.cut(node))
        mark.add(node)
        self._lab.kubelets.fail(node)
        if node in self._lab.relays:
            self._connections[node] = self._lab.relays[node].connections
            await self._lab.relays[node].hold()


class FaultResult(msgspec.Struct, frozen=True):
    """The result of a failure or a partition."""

    nodes: list[str]
    """All requested nodes."""
    changed: list[str]
    """The nodes that were healthy before."""
    unready: list[str]
    """The pods that are no longer ready."""
    is_noticed: bool = True


class DrainResult(msgspec.Struct, frozen=True):
    """The result of a drain."""

    node: str
    evicted: list[str]
    kept: list[str]
    """Pods of DaemonSets."""


class HealResult(msgspec.Struct, frozen=True):
    """The result of a heal."""

    healed: dict[str, list[str]]
    """The faults that were undone, by node."""
    away: list[str]
    """Nodes whose proxies have not reconnected to the API server yet."""


class FaultInjector:
    """Injects and undoes faults in one running lab."""

    def __init__(self, lab: FaultTarget, *, clock: Clock | None = None) -> None:
        self._lab = lab
        self._clock = clock or SystemClock()
        self._isolation = NodeIsolation(lab)
        # One at a time: two requests for one link would leave it in a state of neither.
        self._lock = asyncio.Lock()

    async def fail(self, name: str) -> FaultResult:
        """Fail a node, or all nodes of a zone; the Nodes become unreachable at once."""
        async with self._lock:
            nodes = find_nodes(await self._nodes(), name)
            changed = [node.name for node in nodes if node.name not in self._isolation.failed]
            for node in changed:
                await self._isolation.fail(node)
            unready = await self._mark_unreachable(nodes)
        return FaultResult([node.name for node in nodes], changed, unready)

    async def partition(self, name: str, *, notice: bool = False) -> FaultResult:
        """Partition a node from all others and the API server; `notice` marks it unreachable."""
        async with self._lock:
            node = find_node(await self._nodes(), name)
            if self._lab.underlay is None:
                raise LabRefusal(
                    f"a partition needs packets, and there are none here: {self._lab.no_packets}",
                    code=NEEDS_PACKETS,
                )
            changed = name not in self._isolation.nodes
            if changed:
                await self._isolation.partition(name)
            unready = await self._mark_unreachable([node]) if notice else []
            noticed = notice or node.is_unreachable
        return FaultResult([name], [name] if changed else [], unready, is_noticed=noticed)

    async def cordon(self, name: str) -> bool:
        """Cordon a node; return whether it has changed."""
        return await self._change(name, node_status.cordon_patch)

    async def uncordon(self, name: str) -> bool:
        """Uncordon a node; return whether it has changed."""
        return await self._change(name, node_status.uncordon_patch)

    async def drain(
        self,
        name: str,
        *,
        force: bool = False,
        timeout_s: float = 60.0,
        on_gone: Callable[[str], None] = lambda _: None,
    ) -> DrainResult:
        """Cordon a node and delete all its pods but those of DaemonSets."""
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
            dead = name in self._isolation.nodes
            why = (
                f"; pods do not end on a failed or partitioned node: keepclose lab heal {name}"
                if dead
                else "; they run until their grace period ends"
            )
            raise LabRefusal(
                f"{name}: {len(left)} of {len(going)} pods are still there after {timeout_s:g} s: "
                f"{_names(left)}{why}",
                code=1,
            )
        return DrainResult(name, [str(pod.key) for pod in going], [str(pod.key) for pod in staying])

    async def relabel(self, name: str, zone: str) -> tuple[str, bool]:
        """Move a node to a zone, "" for none; return its zone before, and whether it changed."""
        node = find_node(await self._nodes(), name)
        changed = await self._change(name, lambda node: node_status.zone_patch(node, zone))
        return node.zone, changed

    async def heal(
        self, name: str = "", *, on_wait: Callable[[list[str]], None] = lambda _: None
    ) -> HealResult:
        """Undo all faults of a node, of a zone, or of all nodes.

        Reports the isolated nodes, and waits a while for their proxies to reconnect. The links of a
        node whose Node was deleted meanwhile are restored too.
        """
        async with self._lock:
            nodes = await self._nodes()
            cut_off = self._isolation.nodes
            deleted = sorted(cut_off - {node.name for node in nodes})
            if name in deleted:
                meant, deleted = [], [name]
            elif name:
                meant, deleted = find_nodes(nodes, name, counts_moved=True), []
            else:
                meant = nodes
            # NB: links come first, so that a node that reports ready can be reached.
            restored = [node.name for node in meant if node.name in cut_off] + deleted
            for isolated in restored:
                await self._isolation.restore(isolated)
            healed = await asyncio.gather(*(self._heal(node) for node in meant))
            undone = {node.name: what for node, what in zip(meant, healed, strict=True) if what}
            undone |= {gone: self._isolation.faults_of(gone) for gone in deleted}
            self._isolation.forget(restored)
        before = self._isolation.connections_before(restored)
        away = await wait_for_reconnect(
            self._lab.relays, before, clock=self._clock, on_wait=on_wait
        )
        return HealResult(undone, away)

    async def states(self) -> list[NodeState]:
        """Return the state of all nodes."""
        nodes, pods = await asyncio.gather(self._nodes(), self._pods())
        cuts = self._isolation
        return describe_nodes(nodes, pods, failed=cuts.failed, partitioned=cuts.partitioned)

    async def _heal(self, node: LifecycleNode) -> list[str]:
        name = node.name
        undone = self._isolation.faults_of(name)
        time = format_event_time(self._clock.now())
        was_unready = await self._patch_status(
            node, node_status.ready_status_patch(node, time=time)
        )
        untainted = await self._change(name, node_status.untaint_patch)
        if (was_unready or untainted) and not undone:
            undone.append("fail")
        if await self._change(
            name, lambda current: node_status.uncordon_patch(current, only_ours=True)
        ):
            undone.append("cordon")
        if await self._change(name, node_status.original_zone_patch):
            undone.append("relabel")
        return undone

    async def _mark_unreachable(self, nodes: Sequence[LifecycleNode]) -> list[str]:
        """Write what the node lifecycle controller would; return the pods that became unready."""
        time = format_event_time(self._clock.now())

        async def mark(node: LifecycleNode) -> None:
            await self._patch_status(node, node_status.unreachable_status_patch(node, time=time))
            await self._change(
                node.name, lambda current: node_status.taint_patch(current, time=time)
            )

        await asyncio.gather(*(mark(node) for node in nodes))
        names = {node.name for node in nodes}
        ready = [pod for pod in await self._pods() if pod.spec.node_name in names and pod.is_ready]
        await asyncio.gather(*(self._mark_unready(pod, time) for pod in ready))
        return [str(pod.key) for pod in ready]

    async def _mark_unready(self, pod: WorkloadPod, time: str) -> None:
        with suppress(NotFound, Conflict):
            await self._lab.client.patch(
                LAB_PODS,
                pod.metadata.name,
                node_status.pod_unready_patch(pod.uid, time=time),
                namespace=pod.metadata.namespace,
                type=PatchType.STRATEGIC,
                subresource="status",
            )

    async def _patch_status(self, node: LifecycleNode, patch: JsonObject | None) -> bool:
        if patch is None:
            return False
        await self._lab.client.patch(
            LIFECYCLE_NODES, node.name, patch, type=PatchType.STRATEGIC, subresource="status"
        )
        return True

    async def _change(
        self, name: str, patch_of: Callable[[LifecycleNode], JsonObject | None]
    ) -> bool:
        """Apply the patch that a function makes of the stored node; return whether it changed."""
        for attempt in range(_TRIES):
            node = find_node(await self._nodes(), name)
            patch = patch_of(node)
            if patch is None:
                return False
            try:
                await self._lab.client.patch(LIFECYCLE_NODES, name, patch)
            except Conflict:
                if attempt == _TRIES - 1:
                    raise
            else:
                return True
        return False

    async def _nodes(self) -> list[LifecycleNode]:
        page = await self._lab.client.list_all(LIFECYCLE_NODES)
        return sorted(page.items, key=lambda node: node.name)

    async def _pods(self) -> list[WorkloadPod]:
        return (await self._lab.client.list_all(LAB_PODS)).items


def _names(pods: Iterable[WorkloadPod]) -> str:
    return ", ".join(str(pod.key) for pod in pods)
