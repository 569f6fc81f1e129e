"""The pod of a workload: the fields that scheduling, rollouts, kubelets and faults read.

`WorkloadPod` extends the pod that routing reads, which stays small because a controller decodes
very many of them. It still has less than the API has: never write a whole pod back. The kubelets of
the lab build statuses from the same structs that they read, so that the stored and the desired
status can be compared.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from keepclose.model.meta import ApiStruct, ObjectMeta, ObjectReference, OwnerReference
from keepclose.model.workload import (
    Container,
    ContainerPort,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    StatusCondition,
)
from keepclose.model.workloads.constraints import Affinity, SpreadConstraint, Toleration
from keepclose.model.workloads.types import workload_owner_of

DEFAULT_SCHEDULER: Final = "default-scheduler"
ALWAYS: Final = "Always"
_RUNNING: Final = "Running"
_ENDED: Final = ("Succeeded", "Failed")


class PodMeta(ObjectMeta, frozen=True):
    """Metadata with the grace period of a deletion."""

    deletion_grace_period_seconds: int | None = None


class Sleep(ApiStruct, frozen=True):
    """A hook that waits."""

    seconds: float = 0


class ContainerCommand(ApiStruct, frozen=True):
    """A hook that runs a command."""

    command: tuple[str, ...] = ()


class LifecycleHook(ApiStruct, frozen=True):
    """A lifecycle hook of a container; other kinds of hooks take no time."""

    sleep: Sleep | None = None
    exec: ContainerCommand | None = None


class Lifecycle(ApiStruct, frozen=True):
    """The hooks of a container."""

    pre_stop: LifecycleHook | None = None


class Probe(ApiStruct, frozen=True):
    """The delay of a container's first probe."""

    initial_delay_seconds: int = 0


class Variable(ApiStruct, frozen=True):
    """A variable of a container's environment; one with `valueFrom` has no value."""

    name: str = ""
    value: str = ""


class HostPort(ContainerPort, frozen=True):
    """A port of a container; host port 0 uses none of the node's ports."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")


class Resources(ApiStruct, frozen=True):
    """The requests and limits of a container. Quantities stay as written."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ContainerSpec(Container, frozen=True):
    """A container to run; an init container with restartPolicy Always is a sidecar."""

    ports: tuple[HostPort, ...] = ()
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    resources: Resources = Resources()
    lifecycle: Lifecycle | None = None
    readiness_probe: Probe | None = None


class ReadinessGate(ApiStruct, frozen=True):
    """A condition, set by another component, without which a pod is not ready."""

    condition_type: str = ""


class WorkloadPodSpec(PodSpec, frozen=True):
    """The containers of a pod, and its node or its scheduling constraints."""

    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()
    restart_policy: str = ALWAYS
    readiness_gates: tuple[ReadinessGate, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_gates: tuple[dict[str, str], ...] = ()
    priority: int | None = None
    overhead: dict[str, str | int | float] = {}
    termination_grace_period_seconds: int | None = None

    @property
    def sidecars(self) -> tuple[ContainerSpec, ...]:
        """The init containers with restartPolicy Always."""
        return tuple(
            container for container in self.init_containers if container.restart_policy == ALWAYS
        )

    @property
    def lasting(self) -> tuple[ContainerSpec, ...]:
        """All containers that run at the same time."""
        return (*self.sidecars, *self.containers)


class PodCondition(StatusCondition, frozen=True):
    """A condition of a pod with its reason."""

    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class Running(ApiStruct, frozen=True):
    """Since when a container runs."""

    started_at: str | None = None


class Waiting(ApiStruct, frozen=True):
    """Why a container does not run yet, or not again."""

    reason: str = ""
    message: str = ""


class Terminated(ApiStruct, frozen=True, omit_defaults=False):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")
    message: str | UnsetType = UNSET


class ContainerState(ApiStruct, frozen=True):
    """One of the three; none of them for a container that never existed."""

    running: Running | UnsetType = UNSET
    waiting: Waiting | UnsetType = UNSET
    terminated: Terminated | UnsetType = UNSET


class ContainerStatus(ApiStruct, frozen=True, omit_defaults=False):
    """The status of a container."""

    name: str = ""
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str | UnsetType = msgspec.field(default=UNSET, name="containerID")
    ready: bool = False
    started: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class WorkloadPodStatus(PodStatus, frozen=True):
    """The status of a pod; the conditions include those of other components than the kubelet."""

    conditions: tuple[PodCondition, ...] = ()
    # The metadata.generation of the pod that this status describes.
    observed_generation: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="hostIPs")
    start_time: str | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def condition(self, type: str) -> PodCondition | None:  # noqa: A002 - the API's word
        """Return the condition of that type."""
        return next((condition for condition in self.conditions if condition.type == type), None)


class WorkloadPod(Pod, frozen=True):
    """A pod with the fields that the lab reads."""

    metadata: PodMeta = PodMeta()
    spec: WorkloadPodSpec = WorkloadPodSpec()
    status: WorkloadPodStatus = WorkloadPodStatus()

    @property
    def uid(self) -> str:
        """What distinguishes the pod from a later one of its name."""
        return self.metadata.uid

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

    def reference(self, container: str = "") -> ObjectReference:
        """Return the reference of an event about the pod or one of its containers."""
        return ObjectReference(
            kind="Pod",
            namespace=self.metadata.namespace,
            name=self.metadata.name,
            uid=self.metadata.uid,
            api_version="v1",
            resource_version=self.metadata.resource_version,
            field_path=f"spec.containers{{{container}}}" if container else "",
        )
