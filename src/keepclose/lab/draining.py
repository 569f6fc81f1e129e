"""Which pods leave a node that is drained, and the leaving itself.

As kubectl drain with --ignore-daemonsets: pods of DaemonSets stay, pods that nobody would replace
are only deleted when that is asked for, and every pod gets the time that it asked for. Budgets of
disruption do not exist here, so pods are deleted and not evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, Expired, NotFound, TransportError
from keepclose.lab.workloads.pods import PODS, WorkloadPod

_MIRROR: Final = "kubernetes.io/config.mirror"
_WATCH_S: Final = 300
_AGAIN_S: Final = 0.2


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
            await client.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid)

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
            page = await client.list_all(PODS)
            there = {pod.uid for pod in page.items}
            for uid in tuple(left):
                if uid not in there:
                    drop(uid)
            if not left:
                return
            try:
                async with client.watch(
                    PODS, resource_version=page.resource_version, timeout_seconds=_WATCH_S
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
