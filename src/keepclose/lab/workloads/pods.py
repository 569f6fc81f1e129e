"""The pods of workloads: when one is available, which are deleted first, and how one is created.

A new pod gets the template's labels, annotations and whole spec, and a controller reference to its
workload. Names are generated here and not by the server, so that a request without an answer can be
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
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ApiError, Conflict, NotFound, TransportError
from keepclose.kube.event_recorder import EventRecorder, format_event_time
from keepclose.kube.requests import PatchType
from keepclose.lab.caches import LabCaches
from keepclose.lab.pods import LAB_PODS, LabPod, LabPodSpec
from keepclose.lab.workloads.constraints import NO_EXECUTE, NO_SCHEDULE
from keepclose.lab.workloads.expectations import UNCERTAIN_S, Expectations
from keepclose.lab.workloads.types import (
    DaemonSet,
    DaemonSetStatus,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetStatus,
    owned_by,
    reference_to,
)
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.json_values import JsonObject, parse_int64
from keepclose.model.meta import NamespacedName

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
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


def available_in(pod: LabPod, *, min_ready_s: int, now: float) -> float | None:
    """Return the seconds until a pod is available: 0 if it is, None if it is not ready.

    Without a time in its condition a pod counts as ready since now.
    """
    ready = pod.status.condition("Ready")
    if ready is None or ready.status != "True":
        return None
    if min_ready_s <= 0:
        return 0.0
    since = seconds_of(ready.last_transition_time)
    return max(0.0, (now if since is None else since) + min_ready_s - now)


def is_pod_available(pod: LabPod, *, min_ready_s: int, now: float) -> bool:
    """Return whether a pod has been ready for minReadySeconds."""
    return available_in(pod, min_ready_s=min_ready_s, now=now) == 0.0


def seconds_of(timestamp: str | None) -> float | None:
    """Return a time of the API in seconds since 1970, None if there is none or it is invalid."""
    if not timestamp:
        return None
    try:
        return dt.datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def rank_for_deletion(pods: Iterable[LabPod], related: Iterable[LabPod]) -> list[LabPod]:
    """Return the pods in the order in which a ReplicaSet deletes them, as in Kubernetes.

    First pods without a node, not running, not ready, then those with a low deletion cost, on nodes
    with many related active pods, ready for the shortest time, often restarted, and newest.
    """
    crowds: dict[str, int] = {}
    for pod in related:
        if pod.is_active:
            crowds[pod.spec.node_name] = crowds.get(pod.spec.node_name, 0) + 1

    def rank(pod: LabPod) -> tuple[object, ...]:
        ready = pod.status.condition("Ready")
        ready_since = seconds_of(ready.last_transition_time) if ready else None
        restarts = max(
            (status.restart_count for status in pod.status.container_statuses), default=0
        )
        return (
            bool(pod.spec.node_name),
            _PHASES.get(pod.status.phase, 0),
            pod.is_ready,
            _deletion_cost(pod),
            -crowds.get(pod.spec.node_name, 0),
            -(ready_since or 0.0) if pod.is_ready else 0.0,
            -restarts,
            -(seconds_of(pod.metadata.creation_timestamp) or 0.0),
            pod.metadata.name,
        )

    return sorted(pods, key=rank)


def name_pod(owner: str, random: Random) -> str:
    """Return a name for a pod of a workload."""
    suffix = "".join(random.choices(_LETTERS, k=_SUFFIX_LENGTH))
    return f"{owner[:_PREFIX_LENGTH]}-{suffix}"


def make_pod(
    owner: ReplicaSet | DaemonSet,
    *,
    name: str,
    labels: Mapping[str, str] | None = None,
    spec: JsonObject | None = None,
) -> JsonObject:
    """Return a pod of the workload's template, with more labels or another spec if given."""
    template = owner.spec.template
    meta = template.get("metadata") or {}
    metadata: JsonObject = {
        "name": name,
        "generateName": f"{owner.metadata.name}-",
        "namespace": owner.metadata.namespace,
        "labels": {**(meta.get("labels") or {}), **(labels or {})},
        "ownerReferences": [owned_by(owner)],
    }
    for key in ("annotations", "finalizers"):
        if meta.get(key):
            metadata[key] = meta[key]
    return {
        "metadata": metadata,
        "spec": dict(template.get("spec") or {}) if spec is None else spec,
    }


def put_on_node(pod: JsonObject, node: str) -> JsonObject:
    """Return the pod bound to the node, or unchanged without a node."""
    return {**pod, "spec": {**pod["spec"], "nodeName": node}} if node else pod


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


def read_pod(pod: JsonObject) -> LabPod | None:
    """Return the pod as scheduling sees it, None if it cannot be decoded."""
    decoded = convert_as(LabPod, pod)
    return None if isinstance(decoded, Rejected) else decoded


def read_spec(spec: JsonObject) -> LabPodSpec:
    """Return the spec as scheduling sees it; one that cannot be decoded has no constraints."""
    pod = read_pod({"metadata": {"name": "template"}, "spec": spec})
    return LabPodSpec() if pod is None else pod.spec


def _deletion_cost(pod: LabPod) -> int:
    return parse_int64(pod.metadata.annotations.get(DELETION_COST, "0")) or 0


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
    pod: LabPod


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

    async def delete(self, owner: ReplicaSet | DaemonSet, pods: Sequence[LabPod]) -> None:
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

    async def _delete(self, owner: ReplicaSet | DaemonSet, pod: LabPod) -> None:
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

    async def _delete(self, pod: LabPod) -> None:
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
