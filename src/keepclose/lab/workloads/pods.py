"""Pods as the workload controllers see them, and new pods from the templates of workloads.

The struct holds what scheduling and rollouts read, which is more than routing reads and less than
the API has: never write a whole pod back.

A new pod gets the template's labels, annotations and whole spec, and a controller reference to its
workload. Names are generated here and not by the server, so that a request without an answer can be
distinguished from one that never arrived.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Final

import msgspec

from keepclose.kube.requests import Kind
from keepclose.lab.workloads.constraints import (
    NO_EXECUTE,
    NO_SCHEDULE,
    Affinity,
    SpreadConstraint,
    Toleration,
)
from keepclose.lab.workloads.types import DaemonSet, ReplicaSet, owned_by
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.json_values import JsonObject, parse_int64
from keepclose.model.meta import ApiStruct, NamespacedName, ObjectMeta, OwnerReference
from keepclose.model.workload import StatusCondition

DEFAULT_SCHEDULER: Final = "default-scheduler"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_RUNNING: Final = "Running"
_ENDED: Final = ("Succeeded", "Failed")
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


class HostPort(ApiStruct, frozen=True):
    """A port of a container; host port 0 uses none of the node's ports."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Resources(ApiStruct, frozen=True):
    """The requests and limits of a container. Quantities stay as written."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class PodContainer(ApiStruct, frozen=True):
    """A container of a pod."""

    name: str = ""
    ports: tuple[HostPort, ...] = ()
    resources: Resources = Resources()
    restart_policy: str | None = None
    """Of an init container: Always for a sidecar."""


class WorkloadPodSpec(ApiStruct, frozen=True):
    """The node of a pod, or its scheduling constraints."""

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_gates: tuple[dict[str, str], ...] = ()
    priority: int | None = None
    host_network: bool = False
    containers: tuple[PodContainer, ...] = ()
    init_containers: tuple[PodContainer, ...] = ()
    overhead: dict[str, str | int | float] = {}


class _PodCondition(StatusCondition, frozen=True):
    """A condition of a pod with its reason."""

    reason: str = ""
    message: str = ""


class _ContainerStatus(ApiStruct, frozen=True):
    """How often a container was restarted."""

    restart_count: int = 0


class WorkloadPodStatus(ApiStruct, frozen=True):
    """The status of a pod."""

    phase: str = ""
    conditions: tuple[_PodCondition, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()


class WorkloadPod(ApiStruct, frozen=True, omit_defaults=False):
    """A pod as the workload controllers see it."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadPodSpec = WorkloadPodSpec()
    status: WorkloadPodStatus = WorkloadPodStatus()

    @property
    def key(self) -> NamespacedName:
        """The pod's identity."""
        return self.metadata.key

    @property
    def uid(self) -> str:
        """What distinguishes the pod from a later one of its name."""
        return self.metadata.uid

    @property
    def is_terminating(self) -> bool:
        """Whether the pod is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def has_ended(self) -> bool:
        """Whether all containers ended for good."""
        return self.status.phase in _ENDED

    @property
    def is_active(self) -> bool:
        """Whether the pod counts as a replica: it has not ended and is not being deleted."""
        return not self.is_terminating and not self.has_ended

    @property
    def is_pending(self) -> bool:
        """Whether the pod counts as a replica and no kubelet runs it yet."""
        return self.is_active and self.status.phase != _RUNNING

    @property
    def is_ready(self) -> bool:
        """Whether the pod reports Ready; a missing condition means no."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls the pod, None if there is none."""
        return workload_owner_of(self.metadata)

    @property
    def awaits_node(self) -> bool:
        """Whether the pod waits for the scheduler to choose a node."""
        return (
            not self.spec.node_name
            and self.is_active
            and not self.spec.scheduling_gates
            and self.spec.scheduler_name == DEFAULT_SCHEDULER
        )

    def condition(self, type: str) -> _PodCondition | None:  # noqa: A002 - the API's word
        """Return the condition of that type."""
        return next(
            (condition for condition in self.status.conditions if condition.type == type), None
        )


WORKLOAD_PODS: Final = Kind("", "v1", "pods", "Pod", True, WorkloadPod)


def workload_owner_of(meta: ObjectMeta) -> OwnerReference | None:
    """Return the owner that controls an object, None if there is none."""
    return next((owner for owner in meta.owner_references if owner.controller), None)


def available_in(pod: WorkloadPod, *, min_ready_s: int, now: float) -> float | None:
    """Return the seconds until a pod is available: 0 if it is, None if it is not ready.

    Without a time in its condition a pod counts as ready since now.
    """
    ready = pod.condition("Ready")
    if ready is None or ready.status != "True":
        return None
    if min_ready_s <= 0:
        return 0.0
    since = seconds_of(ready.last_transition_time)
    return max(0.0, (now if since is None else since) + min_ready_s - now)


def is_pod_available(pod: WorkloadPod, *, min_ready_s: int, now: float) -> bool:
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


def rank_for_deletion(
    pods: Iterable[WorkloadPod], related: Iterable[WorkloadPod]
) -> list[WorkloadPod]:
    """Return the pods in the order in which a ReplicaSet deletes them, as in Kubernetes.

    First pods without a node, not running, not ready, then those with a low deletion cost, on nodes
    with many related active pods, ready for the shortest time, often restarted, and newest.
    """
    crowds: dict[str, int] = {}
    for pod in related:
        if pod.is_active:
            crowds[pod.spec.node_name] = crowds.get(pod.spec.node_name, 0) + 1

    def rank(pod: WorkloadPod) -> tuple[object, ...]:
        ready = pod.condition("Ready")
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


def read_pod(pod: JsonObject) -> WorkloadPod | None:
    """Return the pod as scheduling sees it, None if it cannot be decoded."""
    decoded = convert_as(WorkloadPod, pod)
    return None if isinstance(decoded, Rejected) else decoded


def read_spec(spec: JsonObject) -> WorkloadPodSpec:
    """Return the spec as scheduling sees it; one that cannot be decoded has no constraints."""
    pod = read_pod({"metadata": {"name": "template"}, "spec": spec})
    return WorkloadPodSpec() if pod is None else pod.spec


def _deletion_cost(pod: WorkloadPod) -> int:
    return parse_int64(pod.metadata.annotations.get(DELETION_COST, "0")) or 0
