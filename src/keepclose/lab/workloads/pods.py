"""How the pods of workloads are written: created, deleted, and collected with their nodes.

Names are generated here and not by the server, so that a request without an answer can be
distinguished from one that never arrived.

Writes of the workload controllers: pods of workloads, status patches, and the pod GC. Pods are
created and deleted a few at once, and each write is recorded as an expectation. A deleted pod gets
its grace period; its kubelet ends it. A pod whose creation got no answer is expected for a short
time, because it may exist.

Status fields that are 0 are left out, as the API does, so a patch removes them explicitly.

The pod GC deletes the pods of nodes that no longer exist, because no kubelet will ever end them.
They are reported as failed, with the condition DisruptionTarget, and deleted at once. A node may
come back, so its pods get a quarantine: 40 s in a real cluster, less in a lab, whose nodes come
back at once or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ApiError, Conflict, NotFound, TransportError
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import PatchType
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.workloads.expectations import UNCERTAIN_S, Expectations
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.constraints import NO_EXECUTE, NO_SCHEDULE
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import (
    DaemonSet,
    DaemonSetStatus,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetStatus,
    reference_to,
)

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
# As in the API server, so that a name with its suffix is still valid.
_PREFIX_LENGTH: Final = 63 - _SUFFIX_LENGTH - 1
# Pods of DaemonSets stay on nodes that repel other pods.
_DAEMON_TOLERATIONS: Final = (
    ("not-ready", NO_EXECUTE),
    ("unreachable", NO_EXECUTE),
    ("disk-pressure", NO_SCHEDULE),
    ("memory-pressure", NO_SCHEDULE),
    ("pid-pressure", NO_SCHEDULE),
    ("unschedulable", NO_SCHEDULE),
)
_HOST_TOLERATION: Final = ("network-unavailable", NO_SCHEDULE)
Status = DeploymentStatus | ReplicaSetStatus | DaemonSetStatus
# The API shows these even when they are 0.
_ALWAYS: Final = frozenset(
    (
        "currentNumberScheduled",
        "desiredNumberScheduled",
        "numberMisscheduled",
        "numberReady",
        "terminatingReplicas",
    )
)
_ALWAYS_OF_REPLICA_SETS: Final = _ALWAYS | {"replicas"}
_T = TypeVar("_T")
_AT_ONCE: Final = 16
QUARANTINE_S: Final = 3.0
"""For how long a node must be gone before its pods are deleted."""
_DISRUPTED: Final = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


def name_pod(owner: str, random: Random) -> str:
    """Return a name for a pod of a workload."""
    suffix = "".join(random.choices(_LETTERS, k=_SUFFIX_LENGTH))
    return f"{owner[:_PREFIX_LENGTH]}-{suffix}"


def daemon_spec(template: JsonObject) -> JsonObject:
    """Return the spec of a DaemonSet's pod: the template's, with the tolerations of daemons."""
    spec: JsonObject = dict(template.get("spec") or {})
    tolerations: list[Any] = list(spec.get("tolerations") or ())
    added = (*_DAEMON_TOLERATIONS, *((_HOST_TOLERATION,) if spec.get("hostNetwork") else ()))
    for word, effect in added:
        toleration = {
            "key": f"node.kubernetes.io/{word}",
            "operator": "Exists",
            "effect": effect,
        }
        if toleration not in tolerations:
            tolerations.append(toleration)
    return {**spec, "tolerations": tolerations}


def patch_status(stored: Status, desired: Status) -> JsonObject | None:
    """Return the merge patch of the status, None if it is as desired already."""
    if stored == desired:
        return None
    kept = _ALWAYS_OF_REPLICA_SETS if isinstance(desired, ReplicaSetStatus) else _ALWAYS
    patch: JsonObject = {}
    for field in msgspec.structs.fields(desired):
        value = getattr(desired, field.name)
        name = field.encode_name
        if name in kept and value is not None:
            patch[name] = value
        else:
            patch[name] = msgspec.to_builtins(value) if value else None
    return {"status": patch}


class NewPod(NamedTuple):
    """A pod to create: the body to send, and its decoded form."""

    body: JsonObject
    pod: WorkloadPod


class PodWriter:
    """Creates and deletes the pods of workloads."""

    def __init__(
        self, client: Client, expectations: Expectations, *, recorder: EventRecorder
    ) -> None:
        self._client = client
        self._expectations = expectations
        self._recorder = recorder

    async def create(self, owner: ReplicaSet | DaemonSet, pods: Sequence[NewPod]) -> None:
        """Create the pods; raise the first error after all requests."""
        for pod in pods:
            # Before the first request is sent: the scheduler chooses nodes meanwhile.
            self._expectations.expect_created(owner.metadata.uid, pod.pod)
        await _do_all(pods, lambda new: self._create(owner, new))

    async def delete(self, owner: ReplicaSet | DaemonSet, pods: Sequence[WorkloadPod]) -> None:
        """Delete the pods with their grace periods; raise the first error after all requests."""
        for pod in pods:
            self._expectations.expect_deleted(owner.metadata.uid, pod)
        await _do_all(pods, lambda deleted: self._delete(owner, deleted))

    async def _create(self, owner: ReplicaSet | DaemonSet, new: NewPod) -> None:
        name = new.pod.metadata.name
        try:
            await self._client.create(LAB_PODS, new.body, namespace=owner.metadata.namespace)
        except TransportError as error:
            self._expectations.forget(new.pod)
            if error.sent:
                self._expectations.expect_created(owner.metadata.uid, new.pod, for_s=UNCERTAIN_S)
            raise
        except BaseException as error:
            self._expectations.forget(new.pod)
            if isinstance(error, ApiError):
                self._record_event(owner, "Warning", "FailedCreate", f"Error creating: {error}")
            raise
        self._record_event(owner, "Normal", "SuccessfulCreate", f"Created pod: {name}")

    async def _delete(self, owner: ReplicaSet | DaemonSet, pod: WorkloadPod) -> None:
        meta = pod.metadata
        try:
            await self._client.delete(LAB_PODS, meta.name, namespace=meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            # It is gone, perhaps with another pod of its name.
            self._expectations.forget(pod)
            return
        except BaseException:
            self._expectations.forget(pod)
            raise
        self._record_event(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}")

    def _record_event(
        self, owner: ReplicaSet | DaemonSet, severity: str, reason: str, message: str
    ) -> None:
        self._recorder.record(reference_to(owner), severity, reason, message)


class PodCollector:
    """Deletes pods that are bound to nodes which do not exist."""

    def __init__(self, client: Client, caches: LabCaches, *, clock: Clock) -> None:
        self._client, self._caches, self._clock = client, caches, clock
        self._gone_since: dict[NamespacedName, float] = {}

    async def sync(self, node: NamespacedName) -> float | None:
        """Delete the pods of a node that is gone; return the seconds that its quarantine lasts."""
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
        # The next absence of the node has its own quarantine.
        del self._gone_since[node]
        return None

    async def _delete(self, pod: WorkloadPod) -> None:
        meta = pod.metadata
        # It may be gone, perhaps with another pod of its name.
        with suppress(NotFound, Conflict):
            if not pod.has_ended:
                moment = format_event_time(self._clock.now())
                condition = {**_DISRUPTED, "lastTransitionTime": moment}
                await self._client.patch(
                    LAB_PODS,
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
                LAB_PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
            )


async def _do_all(work: Iterable[_T], do: Callable[[_T], Awaitable[None]]) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def do_limited(item: _T) -> None:
        async with slots:
            await do(item)

    results = await asyncio.gather(*(do_limited(item) for item in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
