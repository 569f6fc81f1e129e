"""Pods and Nodes with what kubelets report of them, for commands that explain why.

Controllers and proxies keep every Pod of a cluster in memory and decide by few of its fields, so
`workload` declares no others. These structs add the reasons of conditions, the state of containers
and the versions of nodes. No decision depends on them: they only say why a Pod is not ready, or
what a node runs.
"""

from __future__ import annotations

import msgspec

from keepclose.model.meta import ApiStruct
from keepclose.model.workload import (
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    StatusCondition,
)


class ReportedCondition(StatusCondition, frozen=True):
    """A condition with its reason."""

    reason: str = ""
    message: str = ""


class AwaitedCondition(ApiStruct, frozen=True):
    """A readiness gate: a condition that another component must set before the Pod is ready."""

    condition_type: str = ""


class ContainerWait(ApiStruct, frozen=True):
    """Why a container does not run yet, or not again."""

    reason: str = ""
    message: str = ""


class ContainerEnd(ApiStruct, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""


class ReportedState(ApiStruct, frozen=True):
    """What a container does; it runs if neither is set."""

    waiting: ContainerWait | None = None
    terminated: ContainerEnd | None = None


class ReportedContainer(ApiStruct, frozen=True):
    """The status of a container; `started` is None where it is not reported."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ReportedState = ReportedState()


class ReportedPodSpec(PodSpec, frozen=True):
    """The spec of a Pod with its readiness gates."""

    readiness_gates: tuple[AwaitedCondition, ...] = ()


class ReportedPodStatus(PodStatus, frozen=True):
    """The status of a Pod with that of its containers."""

    conditions: tuple[ReportedCondition, ...] = ()
    reason: str = ""
    init_container_statuses: tuple[ReportedContainer, ...] = ()
    container_statuses: tuple[ReportedContainer, ...] = ()


class ReportedPod(Pod, frozen=True):
    """A Pod with what its kubelet reports."""

    spec: ReportedPodSpec = ReportedPodSpec()
    status: ReportedPodStatus = ReportedPodStatus()


class NodeInfo(ApiStruct, frozen=True):
    """The versions of a node's components, such as v1.33.4."""

    kubelet_version: str = ""
    kube_proxy_version: str = ""


class ReportedNodeStatus(NodeStatus, frozen=True):
    """The status of a Node with its versions."""

    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class ReportedNode(Node, frozen=True):
    """A Node with what its kubelet reports."""

    status: ReportedNodeStatus = ReportedNodeStatus()
