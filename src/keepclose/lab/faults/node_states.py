"""How the nodes of a lab are: whole, failed, cut off, cordoned, moved; and what runs on them.

A pure view over Node and Pod objects and over what the lab itself has cut. Whether the cluster has
noticed that a node is cut off stands in the Node, the cut itself does not: nobody could write it.
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
from keepclose.lab.faults.node_status import MarkedNode
from keepclose.lab.workloads.pods import WORKLOAD_PODS, WorkloadPod

OK: Final = "ok"
_FAILED: Final = "failed"
PARTITIONED: Final = "partitioned"
_CORDONED: Final = "cordoned"
_NOT_READY: Final = "not ready"
_SHOWN_NAMES: Final = 12
_MIRROR: Final = "kubernetes.io/config.mirror"
_WATCH_S: Final = 300
_AGAIN_S: Final = 0.2


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """One node as `lab status` shows it."""

    node: str
    zone: str
    """As labelled now; "" for none."""
    own_zone: str
    """Before it was moved."""
    state: str
    """The worst of what there is: failed, partitioned, not ready, cordoned, ok."""
    is_noticed: bool
    """Whether the cluster knows that the node is silent."""
    is_cordoned: bool
    pods: int
    """That run."""
    ready_pods: int

    @property
    def words(self) -> str:
        """The state in words, with all there is to say."""
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
    nodes: Iterable[MarkedNode],
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
    return sorted(states, key=lambda one: (one.own_zone, one.node))


def find_node(nodes: Sequence[MarkedNode], name: str) -> MarkedNode:
    """Return the node of that name; raises LabRefusal with those there are."""
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        raise _unknown("node", name, {"nodes": sorted(node.name for node in nodes)})
    return found


def find_nodes(
    nodes: Sequence[MarkedNode], name: str, *, counts_moved: bool = False
) -> list[MarkedNode]:
    """Return the node of that name, or all nodes of the zone; raises LabRefusal.

    A zone is as labelled now; nodes that were moved away may count for the zone they left too.
    """
    zones_of = {
        node.name: {node.zone, node.own_zone} if counts_moved else {node.zone} for node in nodes
    }
    found = [node for node in nodes if node.name == name]
    found = found or [node for node in nodes if name and name in zones_of[node.name]]
    if not found:
        zones = sorted(set().union(*zones_of.values()) - {""})
        known = {"zones": zones, "nodes": sorted(node.name for node in nodes)}
        raise _unknown("node or zone", name, known)
    return sorted(found, key=lambda node: node.name)


def _state(node: MarkedNode, *, failed: Collection[str], partitioned: Collection[str]) -> str:
    if node.name in failed:
        return _FAILED
    if node.name in partitioned:
        return PARTITIONED
    if not node.is_ready or node.is_unreachable:
        return _NOT_READY
    return _CORDONED if node.spec.unschedulable else OK


def _unknown(what: str, name: str, known: dict[str, list[str]]) -> LabRefusal:
    everything = [one for names in known.values() for one in names]
    there = " and ".join(f"{kind} {_shorten(names)}" for kind, names in known.items() if names)
    close = get_close_matches(name, everything, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    if not there:
        return LabRefusal(f"this lab has no nodes, so no {what} {name!r} either", code=3)
    return LabRefusal(f"no {what} is called {name!r}; there are {there}{hint}", code=3)


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    left = len(names) - _SHOWN_NAMES
    return f"{shown} and {left} more" if left > 0 else shown


class Leaving(NamedTuple):
    """The pods of a node, by what a drain does with them."""

    going: list[WorkloadPod]
    """Deleted, or deleted already and waited for."""
    staying: list[WorkloadPod]
    """Those of DaemonSets, and mirrors of what only the node itself knows."""
    unmanaged: list[WorkloadPod]
    """Nobody would replace them."""


def sort_pods(pods: Iterable[WorkloadPod], node: str) -> Leaving:
    """Return what a drain of the node does with its pods; pods elsewhere do not count."""
    leaving = Leaving([], [], [])
    for pod in sorted(pods, key=lambda pod: pod.key):
        if pod.spec.node_name != node:
            continue
        owner = pod.controller
        if _MIRROR in pod.metadata.annotations:
            leaving.staying.append(pod)
        elif pod.has_ended or pod.is_terminating:
            leaving.going.append(pod)
        elif owner is None:
            leaving.unmanaged.append(pod)
        elif owner.kind == "DaemonSet":
            leaving.staying.append(pod)
        else:
            leaving.going.append(pod)
    return leaving


async def delete_pods(client: Client, pods: Iterable[WorkloadPod]) -> None:
    """Ask the pods to end, all at once, each with its own grace."""

    async def delete(pod: WorkloadPod) -> None:
        meta = pod.metadata
        # It may be gone, perhaps with another one in its place.
        with suppress(NotFound, Conflict):
            await client.delete(WORKLOAD_PODS, meta.name, namespace=meta.namespace, uid=meta.uid)

    await asyncio.gather(*(delete(pod) for pod in pods if not pod.is_terminating))


async def wait_gone(
    client: Client,
    pods: Iterable[WorkloadPod],
    *,
    clock: Clock,
    timeout_s: float,
    on_gone: Callable[[WorkloadPod], None],
) -> list[WorkloadPod]:
    """Return once the pods are gone or the time is up, with those that are still there."""
    left = {pod.uid: pod for pod in pods}

    def drop(uid: str) -> None:
        pod = left.pop(uid, None)
        if pod is not None:
            on_gone(pod)

    async def follow() -> None:
        while left:
            page = await client.list_all(WORKLOAD_PODS)
            there = {pod.uid for pod in page.items}
            for uid in tuple(left):
                if uid not in there:
                    drop(uid)
            if not left:
                return
            try:
                async with client.watch(
                    WORKLOAD_PODS, resource_version=page.resource_version, timeout_seconds=_WATCH_S
                ) as events:
                    async for event in events:
                        if event.type == "DELETED" and event.object is not None:
                            drop(event.object.uid)
                            if not left:
                                return
            except (Expired, TransportError):
                await clock.sleep(_AGAIN_S)

    with suppress(TimeoutError):
        await clock.wait_for(follow(), timeout_s)
    return list(left.values())
