"""The scheduler: binds waiting pods to the nodes that `model.workloads.placement` chooses.

A pod is bound by a Binding with its uid, so that no other pod of its name gets the node. A pod that
was bound or deleted meanwhile is left alone.
"""

from __future__ import annotations

from typing import Any, Final

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import Kind, PatchType
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.workloads.expectations import Expectations
from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.placement import NodePlacement, place_pods
from keepclose.model.workloads.pods import WorkloadPod

UNSCHEDULABLE: Final = "Unschedulable"
_SCHEDULED: Final = "PodScheduled"


class Binder:
    """Binds waiting pods to nodes."""

    def __init__(
        self,
        client: Client,
        caches: LabCaches,
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
        """Bind all waiting pods that fit, and report why the others do not."""
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

    async def _bind(self, place: NodePlacement) -> None:
        meta = place.pod.metadata
        # NB: a Kind whose name is the path of the pod's subresource, because the client creates no
        # subresources otherwise.
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
        text = f"Successfully assigned {place.pod.key} to {place.node}"
        self._recorder.record(place.pod.reference(), "Normal", "Scheduled", text)

    async def _explain(self, place: NodePlacement) -> None:
        """Write why a pod waits, if the reason has changed."""
        pod, meta = place.pod, place.pod.metadata
        stored = pod.status.condition(_SCHEDULED)
        if stored is not None and (stored.reason, stored.message) == (UNSCHEDULABLE, place.reason):
            return
        condition = {
            "type": _SCHEDULED,
            "status": "False",
            "reason": UNSCHEDULABLE,
            "message": place.reason,
            "lastTransitionTime": (stored and stored.last_transition_time)
            or format_event_time(self._clock.now()),
        }
        try:
            await self._client.patch(
                LAB_PODS,
                meta.name,
                {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}},
                namespace=meta.namespace,
                type=PatchType.STRATEGIC,
                subresource="status",
            )
        except (NotFound, Conflict):
            return
        self._recorder.record(pod.reference(), "Warning", "FailedScheduling", place.reason)
