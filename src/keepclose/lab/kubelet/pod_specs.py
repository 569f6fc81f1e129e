"""Pods as a kubelet sees them: what to run, how to end it, and what to report.

The structs hold what the lab's kubelets read and write, which is less than the API has: never write
a whole pod back. Statuses are built from the same structs that are read, so that the stored and the
desired status can be compared.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from keepclose.kube.requests import Kind
from keepclose.model.meta import ApiStruct, NamespacedName, ObjectMeta, ObjectReference
from keepclose.model.workload import ContainerPort, PodIP, StatusCondition

_ENDED: Final = ("Succeeded", "Failed")
ALWAYS: Final = "Always"


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


class ContainerSpec(ApiStruct, frozen=True):
    """A container to run."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    lifecycle: Lifecycle | None = None
    readiness_probe: Probe | None = None
    restart_policy: str = ""


class ReadinessGate(ApiStruct, frozen=True):
    """A condition, set by another component, without which a pod is not ready."""

    condition_type: str = ""


class KubeletSpec(ApiStruct, frozen=True):
    """The containers of a pod and its node."""

    node_name: str = ""
    host_network: bool = False
    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()
    readiness_gates: tuple[ReadinessGate, ...] = ()
    restart_policy: str = ALWAYS

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


class KubeletStatus(ApiStruct, frozen=True):
    """What a kubelet reports of a pod; the conditions include those of other components."""

    # The metadata.generation of the pod that this status describes.
    observed_generation: int = 0
    phase: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="hostIPs")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    start_time: str | None = None
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def condition(self, type: str) -> PodCondition | None:  # noqa: A002 - the API's word
        """Return the condition of that type."""
        return next((condition for condition in self.conditions if condition.type == type), None)


class KubeletPod(ApiStruct, frozen=True, omit_defaults=False):
    """A pod as its kubelet sees it."""

    metadata: PodMeta = PodMeta()
    spec: KubeletSpec = KubeletSpec()
    status: KubeletStatus = KubeletStatus()

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


KUBELET_PODS: Final = Kind("", "v1", "pods", "Pod", True, KubeletPod)
