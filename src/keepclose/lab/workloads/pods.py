"""Pods as the controllers of workloads see them: where they may run, how far they are.

The struct holds what scheduling and rollouts read, which is more than routing does, and less than
the API has: never write one back whole.
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
from keepclose.model.meta import Frozen, NamespacedName, ObjectMeta, OwnerReference
from keepclose.model.workload import StatusCondition

DEFAULT_SCHEDULER: Final = "default-scheduler"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_RUNNING: Final = "Running"
_ENDED: Final = ("Succeeded", "Failed")
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
# As of the server, so that a name with its suffix is still one.
_PREFIX_LENGTH: Final = 63 - _SUFFIX_LENGTH - 1
# Daemons stay on nodes that others leave or avoid.
_DAEMON_TOLERATIONS: Final = (
    ("not-ready", NO_EXECUTE),
    ("unreachable", NO_EXECUTE),
    ("disk-pressure", NO_SCHEDULE),
    ("memory-pressure", NO_SCHEDULE),
    ("pid-pressure", NO_SCHEDULE),
    ("unschedulable", NO_SCHEDULE),
)
_HOST_TOLERATION: Final = ("network-unavailable", NO_SCHEDULE)


class HostPort(Frozen, frozen=True):
    """A port of a container; 0 takes none of the node's."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Resources(Frozen, frozen=True):
    """What a container needs at least, and gets at most. Quantities stay as written."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class PodContainer(Frozen, frozen=True):
    """A container of a pod."""

    name: str = ""
    ports: tuple[HostPort, ...] = ()
    resources: Resources = Resources()
    restart_policy: str | None = None
    """Of an init container: Always for a sidecar."""


class WorkloadPodSpec(Frozen, frozen=True):
    """On which node a pod runs, or what it asks of one."""

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


class _ContainerStatus(Frozen, frozen=True):
    """How often a container was started again."""

    restart_count: int = 0


class WorkloadPodStatus(Frozen, frozen=True):
    """How far a pod is."""

    phase: str = ""
    conditions: tuple[_PodCondition, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()


class WorkloadPod(Frozen, frozen=True, omit_defaults=False):
    """A pod."""

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
        """What tells the pod from a later one of its name."""
        return self.metadata.uid

    @property
    def is_terminating(self) -> bool:
        """Whether the pod was asked to go."""
        return self.metadata.deletion_timestamp is not None

    @property
    def has_ended(self) -> bool:
        """Whether all containers ended for good."""
        return self.status.phase in _ENDED

    @property
    def is_active(self) -> bool:
        """Whether the pod counts as a replica: it neither ended nor was asked to go."""
        return not self.is_terminating and not self.has_ended

    @property
    def is_pending(self) -> bool:
        """Whether the pod counts as a replica and no kubelet runs it yet."""
        return self.is_active and self.status.phase != _RUNNING

    @property
    def is_ready(self) -> bool:
        """Whether the pod reports Ready; a missing condition means no."""
        found = self.condition("Ready")
        return found is not None and found.status == "True"

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls the pod, None when nobody does."""
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
        return next((one for one in self.status.conditions if one.type == type), None)


WORKLOAD_PODS: Final = Kind("", "v1", "pods", "Pod", True, WorkloadPod)


def workload_owner_of(meta: ObjectMeta) -> OwnerReference | None:
    """Return the owner that controls an object, None when nobody does."""
    return next((one for one in meta.owner_references if one.controller), None)


def available_in(pod: WorkloadPod, *, min_ready_s: int, now: float) -> float | None:
    """Return in how many seconds a pod has been ready for long enough: 0 when it has.

    None when it is not ready. Without a time in its condition a pod counts as ready just now.
    """
    ready = pod.condition("Ready")
    if ready is None or ready.status != "True":
        return None
    if min_ready_s <= 0:
        return 0.0
    since = seconds_of(ready.last_transition_time)
    return max(0.0, (now if since is None else since) + min_ready_s - now)


def is_pod_available(pod: WorkloadPod, *, min_ready_s: int, now: float) -> bool:
    """Return whether a pod has been ready for long enough."""
    return available_in(pod, min_ready_s=min_ready_s, now=now) == 0.0


def seconds_of(timestamp: str | None) -> float | None:
    """Return a time of the API in seconds since 1970, None for none and for what is no time."""
    if not timestamp:
        return None
    try:
        return dt.datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def rank_for_deletion(
    pods: Iterable[WorkloadPod], related: Iterable[WorkloadPod]
) -> list[WorkloadPod]:
    """Return the pods in the order in which a ReplicaSet gives them up.

    First those without a node, not running, not ready, then cheap ones, those whose node has many
    of the related active pods, those ready for the shortest time, often restarted, and newest.
    """
    crowds: dict[str, int] = {}
    for one in related:
        if one.is_active:
            crowds[one.spec.node_name] = crowds.get(one.spec.node_name, 0) + 1

    def rank(pod: WorkloadPod) -> tuple[object, ...]:
        ready = pod.condition("Ready")
        ready_since = seconds_of(ready.last_transition_time) if ready else None
        restarts = max((one.restart_count for one in pod.status.container_statuses), default=0)
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


def _deletion_cost(pod: WorkloadPod) -> int:
    return parse_int64(pod.metadata.annotations.get(DELETION_COST, "0")) or 0


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
    """Return a pod of the workload's template with more labels, or with another spec."""
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
    """Return the pod bound to the node; without a node it waits for one."""
    return {**pod, "spec": {**pod["spec"], "nodeName": node}} if node else pod


def daemon_spec(template: JsonObject) -> JsonObject:
    """Return the spec of a daemon's pod: the template's, and more tolerations."""
    spec: JsonObject = dict(template.get("spec") or {})
    given: list[Any] = list(spec.get("tolerations") or ())
    added = (*_DAEMON_TOLERATIONS, *((_HOST_TOLERATION,) if spec.get("hostNetwork") else ()))
    for word, effect in added:
        toleration = {
            "key": f"node.kubernetes.io/{word}",
            "operator": "Exists",
            "effect": effect,
        }
        if toleration not in given:
            given.append(toleration)
    return {**spec, "tolerations": given}


def read_pod(pod: JsonObject) -> WorkloadPod | None:
    """Return the pod as scheduling sees it, None when it cannot be read."""
    found = convert_as(WorkloadPod, pod)
    return None if isinstance(found, Rejected) else found


def read_spec(spec: JsonObject) -> WorkloadPodSpec:
    """Return the spec as scheduling sees it; one that cannot be read asks for nothing."""
    found = read_pod({"metadata": {"name": "template"}, "spec": spec})
    return WorkloadPodSpec() if found is None else found.spec
