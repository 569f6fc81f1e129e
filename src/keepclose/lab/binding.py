"""Gives nodes to pods that wait for one, or says in their status why they have to wait.

A pod is bound as a scheduler does it: by a Binding that names the pod's uid, so that no other pod
of the same name gets the node. One that was bound or removed meanwhile is left alone.
"""

from __future__ import annotations

from typing import Any, Final

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.event_recorder import EventRecorder, format_time
from keepclose.kube.requests import Kind, PatchType
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.pods import PODS, WorkloadPod
from keepclose.lab.workloads.scheduler import Placement, place_pods
from keepclose.model.meta import ObjectReference

UNSCHEDULABLE: Final = "Unschedulable"
_SCHEDULED: Final = "PodScheduled"


class Binder:
    """Finds nodes for waiting pods."""

    def __init__(
        self,
        client: Client,
        caches: WorkloadCaches,
        *,
        expectations: Expectations,
        clock: Clock,
        recorder: EventRecorder,
    ) -> None:
        self._client, self._caches = client, caches
        self._expectations = expectations
        self._clock, self._recorder = clock, recorder
        self._bound: dict[str, WorkloadPod] = {}

    async def sync(self) -> None:
        """Look at all waiting pods once."""
        waiting = self._caches.waiting_pods()
        there = {pod.uid for pod in waiting}
        self._bound = {uid: pod for uid, pod in self._bound.items() if uid in there}
        places = place_pods(
            [pod for pod in waiting if pod.uid not in self._bound],
            nodes=self._caches.nodes.all(),
            pods=[
                *self._caches.pods.all(),
                *self._expectations.assumed(),
                *self._bound.values(),
            ],
        )
        for place in places:
            if place.node:
                await self._bind(place)
            else:
                await self._explain(place)

    async def _bind(self, place: Placement) -> None:
        meta = place.pod.metadata
        # NB: a kind whose name holds the path to one pod: this is how subresources are created.
        kind: Kind[dict[str, Any]] = Kind(
            "", "v1", f"pods/{meta.name}/binding", "Binding", True, dict
        )
        body = {
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": place.node},
        }
        try:
            await self._client.create(kind, body, namespace=meta.namespace)
        except (NotFound, Conflict):
            return
        self._bound[meta.uid] = place.placed
        key = place.pod.key
        self._tell(place.pod, "Normal", "Scheduled", f"Successfully assigned {key} to {place.node}")

    async def _explain(self, place: Placement) -> None:
        """Write why a pod waits, if that is news."""
        pod, meta = place.pod, place.pod.metadata
        known = pod.condition(_SCHEDULED)
        if known is not None and (known.reason, known.message) == (UNSCHEDULABLE, place.reason):
            return
        condition = {
            "type": _SCHEDULED,
            "status": "False",
            "reason": UNSCHEDULABLE,
            "message": place.reason,
            "lastTransitionTime": (known and known.last_transition_time)
            or format_time(self._clock.now()),
        }
        try:
            await self._client.patch(
                PODS,
                meta.name,
                {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}},
                namespace=meta.namespace,
                type=PatchType.STRATEGIC,
                subresource="status",
            )
        except (NotFound, Conflict):
            return
        self._tell(pod, "Warning", "FailedScheduling", place.reason)

    def _tell(self, pod: WorkloadPod, severity: str, reason: str, message: str) -> None:
        meta = pod.metadata
        reference = ObjectReference(
            kind="Pod",
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            api_version="v1",
            resource_version=meta.resource_version,
        )
        self._recorder.record(reference, severity, reason, message)
