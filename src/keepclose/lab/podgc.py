"""Deletes the pods of nodes that are gone, as the pod garbage collector of a cluster does.

No kubelet will ever end such a pod. It is reported as failed, with a condition that tells why,
and deleted at once. A node that is deleted may come back, so its pods get a little time; a real
cluster gives them 40 s, a lab less, because its nodes come back at once or not at all.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.event_recorder import format_time
from keepclose.kube.requests import PatchType
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.pods import PODS, WorkloadPod
from keepclose.model.meta import NamespacedName

QUARANTINE_S: Final = 3.0
"""For how long a node must be gone before its pods are deleted."""
_DISRUPTED: Final = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


class PodCollector:
    """Deletes pods that are bound to nodes which do not exist."""

    def __init__(self, client: Client, caches: WorkloadCaches, *, clock: Clock) -> None:
        self._client, self._caches, self._clock = client, caches, clock
        self._gone_since: dict[NamespacedName, float] = {}

    async def sync(self, node: NamespacedName) -> float | None:
        """Look at the pods of one node; return when to look again, None when nothing is due."""
        pods = self._caches.pods_on(node.name)
        if node in self._caches.nodes or not pods:
            self._gone_since.pop(node, None)
            return None
        now = self._clock.monotonic()
        left_s = self._gone_since.setdefault(node, now) + QUARANTINE_S - now
        if left_s > 0:
            return left_s
        for pod in pods:
            await self._delete(pod)
        # Another absence of the node counts from its own beginning.
        del self._gone_since[node]
        return None

    async def _delete(self, pod: WorkloadPod) -> None:
        meta = pod.metadata
        # It may be gone, perhaps with another one in its place.
        with suppress(NotFound, Conflict):
            if not pod.has_ended:
                moment = format_time(self._clock.now())
                condition = {**_DISRUPTED, "lastTransitionTime": moment}
                await self._client.patch(
                    PODS,
                    meta.name,
                    {
                        "metadata": {"uid": meta.uid},
                        "status": {"phase": "Failed", "conditions": [condition]},
                    },
                    namespace=meta.namespace,
                    type=PatchType.STRATEGIC,
                    subresource="status",
                )
            await self._client.delete(
                PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
            )
