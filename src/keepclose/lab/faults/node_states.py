"""The states of nodes: healthy, failed, partitioned, cordoned, moved; and the pods of a drain.

The states are a pure view of Node and Pod objects and of the links that the lab has cut. The Node
has only whether the cluster has noticed a cut; the cut itself is known to the lab alone, because an
isolated node cannot write.

A drain works as kubectl drain with --ignore-daemonsets: pods of DaemonSets stay, pods without a
controller are only deleted with --force, and every pod gets its grace period. The lab has no
PodDisruptionBudgets, so pods are deleted and not evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Final, NamedTuple

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, Expired, NotFound, TransportError
from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.node_status import LifecycleNode
from keepclose.lab.kinds import LAB_PODS
from keepclose.model.workloads.pods import WorkloadPod

OK: Final = "ok"
_FAILED: Final = "failed"
PARTITIONED: Final = "partitioned"
_CORDONED: Final = "cordoned"
_NOT_READY: Final = "not ready"
_SHOWN_NAMES: Final = 12
_MIRROR: Final = "kubernetes.io/config.mirror"
_WATCH_S: Final = 300
_RETRY_S: Final = 0.2


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """A node as `lab status` shows it."""

    node: str
    zone: str
    """As labelled now; "" for none."""
    own_zone: str
    """The zone before `lab relabel`."""
    state: str
    """The worst that applies: failed, partitioned, not ready, cordoned, ok."""
    is_noticed: bool
    """Whether the Node is marked unreachable."""
    is_cordoned: bool
    pods: int
    """Running pods."""
    ready_pods: int

    @property
    def words(self) -> str:
        """All faults of the node in words, or "ok"."""
        words = {_FAILED: "failed", _NOT_READY: "not ready"}.get(self.state, "")
        if self.state == PARTITIONED:
            words = "cut off, noticed" if self.is_noticed else "cut off, not noticed"
        parts = [words] if words else []
        if self.is_cordoned:
            parts.append("cordoned")
        if self.zone != self.own_zone:
            parts.append(f"was in {self.own_zone}" if self.own_zone else "had no zone")
        return ", ".join(parts) or OK


def describe_nodes(
    nodes: Iterable[LifecycleNode],
    pods: Iterable[WorkloadPod],
    *,
    failed: Collection[str],
    partitioned: Collection[str],
) -> list[NodeState]:
    """Return the state of each node, by zone and name."""
    running: dict[str, int] = {}
    ready: dict[str, int] = {}
    for pod in pods:
        if pod.status.phase == "Running" and not pod.is_terminating:
            name = pod.spec.node_name
            running[name] = running.get(name, 0) + 1
            ready[name] = ready.get(name, 0) + pod.is_ready
    states = [
        NodeState(
            node=node.name,
            zone=node.zone,
            own_zone=node.own_zone,
            state=_state(node, failed=failed, partitioned=partitioned),
            is_noticed=node.is_unreachable,
            is_cordoned=node.spec.unschedulable,
            pods=running.get(node.name, 0),
            ready_pods=ready.get(node.name, 0),
        )
        for node in nodes
    ]
    return sorted(states, key=lambda state: (state.own_zone, state.node))


def find_node(nodes: Sequence[LifecycleNode], name: str) -> LifecycleNode:
    """Return the node of that name; raises LabRefusal with the names of all nodes."""
    node = next((candidate for candidate in nodes if candidate.name == name), None)
    if node is None:
        raise _unknown("node", name, {"nodes": sorted(node.name for node in nodes)})
    return node


def find_nodes(
    nodes: Sequence[LifecycleNode], name: str, *, counts_moved: bool = False
) -> list[LifecycleNode]:
    """Return the node of that name, or all nodes of the zone; raises LabRefusal.

    A zone is that of the label; with `counts_moved` relabelled nodes also count for their own zone.
    """
    zones_of = {
        node.name: {node.zone, node.own_zone} if counts_moved else {node.zone} for node in nodes
    }
    matching = [node for node in nodes if node.name == name]
    matching = matching or [node for node in nodes if name and name in zones_of[node.name]]
    if not matching:
        zones = sorted(set().union(*zones_of.values()) - {""})
        names = {"zones": zones, "nodes": sorted(node.name for node in nodes)}
        raise _unknown("node or zone", name, names)
    return sorted(matching, key=lambda node: node.name)


class DrainedPods(NamedTuple):
    """The pods of a node, by what a drain does with them."""

    going: list[WorkloadPod]
    """Deleted, or deleted already and waited for."""
    staying: list[WorkloadPod]
    """Pods of DaemonSets, and mirror pods."""
    unmanaged: list[WorkloadPod]
    """Pods that no controller would replace."""


def sort_pods(pods: Iterable[WorkloadPod], node: str) -> DrainedPods:
    """Return what a drain of the node does with its pods; pods of other nodes are ignored."""
    drained = DrainedPods([], [], [])
    for pod in sorted(pods, key=lambda pod: pod.key):
        if pod.spec.node_name != node:
            continue
        owner = pod.controller
        if _MIRROR in pod.metadata.annotations:
            drained.staying.append(pod)
        elif pod.has_ended or pod.is_terminating:
            drained.going.append(pod)
        elif owner is None:
            drained.unmanaged.append(pod)
        elif owner.kind == "DaemonSet":
            drained.staying.append(pod)
        else:
            drained.going.append(pod)
    return drained


async def delete_pods(client: Client, pods: Iterable[WorkloadPod]) -> None:
    """Delete the pods at once, each with its own grace period."""

    async def delete(pod: WorkloadPod) -> None:
        meta = pod.metadata
        # It may be gone, perhaps with another pod of its name.
        with suppress(NotFound, Conflict):
            await client.delete(LAB_PODS, meta.name, namespace=meta.namespace, uid=meta.uid)

    await asyncio.gather(*(delete(pod) for pod in pods if not pod.is_terminating))


async def wait_gone(
    client: Client,
    pods: Iterable[WorkloadPod],
    *,
    clock: Clock,
    timeout_s: float,
    on_gone: Callable[[WorkloadPod], None],
) -> list[WorkloadPod]:
    """Wait until the pods are gone or the time is up; return those that still exist."""
    left = {pod.uid: pod for pod in pods}

    def drop(uid: str) -> None:
        pod = left.pop(uid, None)
        if pod is not None:
            on_gone(pod)

    async def follow() -> None:
        while left:
            page = await client.list_all(LAB_PODS)
            there = {pod.uid for pod in page.items}
            for uid in tuple(left):
                if uid not in there:
                    drop(uid)
            if not left:
                return
            try:
                async with client.watch(
                    LAB_PODS, resource_version=page.resource_version, timeout_seconds=_WATCH_S
                ) as events:
                    async for event in events:
                        if event.type == "DELETED" and event.object is not None:
                            drop(event.object.uid)
                            if not left:
                                return
            except (Expired, TransportError):
                await clock.sleep(_RETRY_S)

    with suppress(TimeoutError):
        await clock.wait_for(follow(), timeout_s)
    return list(left.values())


def _state(node: LifecycleNode, *, failed: Collection[str], partitioned: Collection[str]) -> str:
    if node.name in failed:
        return _FAILED
    if node.name in partitioned:
        return PARTITIONED
    if not node.is_ready or node.is_unreachable:
        return _NOT_READY
    return _CORDONED if node.spec.unschedulable else OK


def _unknown(what: str, name: str, names_by_kind: dict[str, list[str]]) -> LabRefusal:
    everything = [shown for names in names_by_kind.values() for shown in names]
    there = " and ".join(
        f"{kind} {_shorten(names)}" for kind, names in names_by_kind.items() if names
    )
    close = get_close_matches(name, everything, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    if not there:
        return LabRefusal(f"this lab has no nodes, so no {what} {name!r} either", code=3)
    return LabRefusal(f"no {what} is called {name!r}; there are {there}{hint}", code=3)


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    left = len(names) - _SHOWN_NAMES
    return f"{shown} and {left} more" if left > 0 else shown
