"""Deployments, ReplicaSets and DaemonSets: the fields that rollouts read, and where they are.

Templates of pods stay plain values, because all of a template goes into each pod. Numbers that
the API server fills in have its defaults here too, so that an object decodes from any hand.
"""

from __future__ import annotations

from typing import Final

from keepclose.kube.requests import Kind
from keepclose.lab.workloads.constraints import NodeLabelSelector
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import Frozen, ObjectMeta, ObjectReference

IntOrPercent = int | str
"""A number, or a part of the whole such as "25%"."""


class WorkloadCondition(Frozen, frozen=True):
    """A condition of a workload; those of Deployments know when they were last confirmed."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class RollingUpdate(Frozen, frozen=True):
    """How many pods may be missing during an update, and how many too many."""

    max_unavailable: IntOrPercent | None = None
    max_surge: IntOrPercent | None = None


class RolloutStrategy(Frozen, frozen=True):
    """How a workload gets from one template to the next."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class ReplicaSetSpec(Frozen, frozen=True):
    """How many pods of which template."""

    replicas: int = 1
    selector: NodeLabelSelector | None = None
    template: JsonObject = {}
    min_ready_seconds: int = 0


class ReplicaSetStatus(Frozen, frozen=True):
    """What there is of a ReplicaSet."""

    observed_generation: int = 0
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    conditions: tuple[WorkloadCondition, ...] = ()


class ReplicaSet(Frozen, frozen=True, omit_defaults=False):
    """A number of pods that are all alike."""

    api_version: str = "apps/v1"
    kind: str = "ReplicaSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def is_active(self) -> bool:
        """Whether it wants any pods."""
        return self.spec.replicas > 0


class DeploymentSpec(Frozen, frozen=True):
    """How many pods of which template, and how to change them."""

    replicas: int = 1
    selector: NodeLabelSelector | None = None
    template: JsonObject = {}
    strategy: RolloutStrategy = RolloutStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentStatus(Frozen, frozen=True):
    """How far a Deployment is."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    collision_count: int | None = None
    conditions: tuple[WorkloadCondition, ...] = ()


class Deployment(Frozen, frozen=True, omit_defaults=False):
    """Pods that are replaced step by step when their template changes."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class DaemonSetSpec(Frozen, frozen=True):
    """The template of one pod a node, and how to change them."""

    selector: NodeLabelSelector | None = None
    template: JsonObject = {}
    update_strategy: RolloutStrategy = RolloutStrategy()
    min_ready_seconds: int = 0


class DaemonSetStatus(Frozen, frozen=True):
    """How far a DaemonSet is."""

    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0


class DaemonSet(Frozen, frozen=True, omit_defaults=False):
    """One pod on every node that may have it."""

    api_version: str = "apps/v1"
    kind: str = "DaemonSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


Workload = Deployment | ReplicaSet | DaemonSet

DEPLOYMENTS: Final = Kind("apps", "v1", "deployments", "Deployment", True, Deployment)
REPLICA_SETS: Final = Kind("apps", "v1", "replicasets", "ReplicaSet", True, ReplicaSet)
DAEMON_SETS: Final = Kind("apps", "v1", "daemonsets", "DaemonSet", True, DaemonSet)
PLAIN_DEPLOYMENTS: Final[Kind[JsonObject]] = Kind(
    "apps", "v1", "deployments", "Deployment", True, dict
)
"""With all fields, as they were sent."""
PLAIN_DAEMON_SETS: Final[Kind[JsonObject]] = Kind(
    "apps", "v1", "daemonsets", "DaemonSet", True, dict
)


def reference_to(workload: Workload) -> ObjectReference:
    """Return how Events name a workload."""
    meta = workload.metadata
    return ObjectReference(
        kind=workload.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        api_version=workload.api_version,
        resource_version=meta.resource_version,
    )


def owned_by(workload: Workload) -> JsonObject:
    """Return the reference that what a workload controls carries."""
    return {
        "apiVersion": workload.api_version,
        "kind": workload.kind,
        "name": workload.metadata.name,
        "uid": workload.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def ready_count(workload: JsonObject) -> int | None:
    """Return how many pods a workload has once all of them are ready, None before.

    A Deployment that wants no pods is ready with 0.
    """
    meta, status = workload["metadata"], workload.get("status", {})
    if status.get("observedGeneration", 0) < meta.get("generation", 0):
        return None
    wanted: int
    numbers: tuple[str, ...]
    if workload["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        numbers = ("updatedNumberScheduled", "numberAvailable")
        is_wanted = wanted > 0
    else:
        wanted = workload["spec"].get("replicas", 1)
        # NB: the first of them counts old pods too.
        numbers = ("replicas", "updatedReplicas", "availableReplicas")
        is_wanted = True
    is_done = is_wanted and all(status.get(name, 0) == wanted for name in numbers)
    return wanted if is_done else None
