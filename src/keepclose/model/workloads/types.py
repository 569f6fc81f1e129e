"""Deployments, ReplicaSets and DaemonSets: the fields that rollouts read, and when one is done.

Pod templates stay plain values, because the whole template goes into each pod. Numbers that the API
server defaults have the same defaults here, so that objects without them decode too.

A workload is done by the rule of `kubectl rollout status`: all its pods are of the current template
and available. A DaemonSet that should run on no node is not done, because its nodes may still come.
"""

from __future__ import annotations

from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ApiStruct, ObjectMeta, ObjectReference, OwnerReference
from keepclose.model.workloads.constraints import NodeLabelSelector

IntOrPercent = int | str
"""A number, or a part of the whole such as "25%"."""


class WorkloadCondition(ApiStruct, frozen=True):
    """A condition of a workload; those of Deployments have the time of their last update."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class RollingUpdate(ApiStruct, frozen=True):
    """How many pods may be unavailable or surplus during an update."""

    max_unavailable: IntOrPercent | None = None
    max_surge: IntOrPercent | None = None


class RolloutStrategy(ApiStruct, frozen=True):
    """How a workload is updated to a new template."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class ReplicaSetSpec(ApiStruct, frozen=True):
    """The spec of a ReplicaSet."""

    replicas: int = 1
    selector: NodeLabelSelector | None = None
    template: JsonObject = {}
    min_ready_seconds: int = 0


class ReplicaSetStatus(ApiStruct, frozen=True):
    """The status of a ReplicaSet."""

    observed_generation: int = 0
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    conditions: tuple[WorkloadCondition, ...] = ()


class ReplicaSet(ApiStruct, frozen=True, omit_defaults=False):
    """A ReplicaSet, with the fields that rollouts read."""

    api_version: str = "apps/v1"
    kind: str = "ReplicaSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def is_active(self) -> bool:
        """Whether its desired number of replicas is positive."""
        return self.spec.replicas > 0


class DeploymentSpec(ApiStruct, frozen=True):
    """The spec of a Deployment."""

    replicas: int = 1
    selector: NodeLabelSelector | None = None
    template: JsonObject = {}
    strategy: RolloutStrategy = RolloutStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentStatus(ApiStruct, frozen=True):
    """The status of a Deployment."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    collision_count: int | None = None
    conditions: tuple[WorkloadCondition, ...] = ()


class Deployment(ApiStruct, frozen=True, omit_defaults=False):
    """A Deployment, with the fields that rollouts read."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class DaemonSetSpec(ApiStruct, frozen=True):
    """The spec of a DaemonSet."""

    selector: NodeLabelSelector | None = None
    template: JsonObject = {}
    update_strategy: RolloutStrategy = RolloutStrategy()
    min_ready_seconds: int = 0


class DaemonSetStatus(ApiStruct, frozen=True):
    """The status of a DaemonSet."""

    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0


class DaemonSet(ApiStruct, frozen=True, omit_defaults=False):
    """A DaemonSet, with the fields that rollouts read."""

    api_version: str = "apps/v1"
    kind: str = "DaemonSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


Workload = Deployment | ReplicaSet | DaemonSet


def reference_to(workload: Workload) -> ObjectReference:
    """Return the reference of an Event about a workload."""
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
    """Return the owner reference of an object that the workload controls."""
    return {
        "apiVersion": workload.api_version,
        "kind": workload.kind,
        "name": workload.metadata.name,
        "uid": workload.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def workload_owner_of(meta: ObjectMeta) -> OwnerReference | None:
    """Return the owner that controls an object, None if there is none."""
    return next((owner for owner in meta.owner_references if owner.controller), None)


def ready_count(workload: JsonObject) -> int | None:
    """Return how many pods a workload has once it is done, None before.

    A Deployment with 0 replicas is done with 0.
    """
    meta, status = workload["metadata"], workload.get("status", {})
    if status.get("observedGeneration", 0) < meta.get("generation", 0):
        return None
    desired: int
    numbers: tuple[str, ...]
    if workload["kind"] == "DaemonSet":
        desired = status.get("desiredNumberScheduled", 0)
        numbers = ("updatedNumberScheduled", "numberAvailable")
        may_be_done = desired > 0
    else:
        desired = workload["spec"].get("replicas", 1)
        # NB: the first of them counts old pods too.
        numbers = ("replicas", "updatedReplicas", "availableReplicas")
        may_be_done = True
    is_done = may_be_done and all(status.get(name, 0) == desired for name in numbers)
    return desired if is_done else None
