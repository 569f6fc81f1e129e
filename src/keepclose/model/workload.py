"""Node and Pod: the few fields from which endpoints, zones and traffic shares are derived."""

from __future__ import annotations

import msgspec

from keepclose.model.meta import Frozen, NamespacedName, ObjectMeta
from keepclose.model.well_known import EXCLUDED_NODE_LABELS, REGION_LABEL, ZONE_LABEL


class StatusCondition(Frozen, frozen=True):
    """A condition of a node or a pod."""

    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class NodeAddress(Frozen, frozen=True):
    """An address of a node."""

    type: str = ""
    address: str = ""


class Taint(Frozen, frozen=True):
    """Keeps pods away from a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Frozen, frozen=True):
    """Addresses of a node's pods, and its taints."""

    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(Frozen, frozen=True):
    """What a node reports of itself. Quantities stay as written; see `quantities`."""

    allocatable: dict[str, str | int | float] = {}
    conditions: tuple[StatusCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(Frozen, frozen=True, omit_defaults=False):
    """A machine that runs pods."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.metadata.name

    @property
    def zone(self) -> str:
        """The zone that the node's label names, or "" when it names none."""
        return self.metadata.labels.get(ZONE_LABEL, "")

    @property
    def region(self) -> str:
        """The region that the node's label names, or "" when it names none."""
        return self.metadata.labels.get(REGION_LABEL, "")

    @property
    def is_ready(self) -> bool:
        """Whether the node reports Ready; a missing condition means no."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def is_excluded(self) -> bool:
        """Whether the node carries a control-plane label and so counts for no traffic share."""
        return any(label in self.metadata.labels for label in EXCLUDED_NODE_LABELS)


class ContainerPort(Frozen, frozen=True):
    """A named port of a container."""

    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"


class Container(Frozen, frozen=True):
    """A container of a pod."""

    name: str = ""
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None


class PodSpec(Frozen, frozen=True):
    """Where a pod runs and which ports it names."""

    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class PodIP(Frozen, frozen=True):
    """An address of a pod."""

    ip: str = ""


class PodStatus(Frozen, frozen=True):
    """Phase, addresses and readiness of a pod."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    conditions: tuple[StatusCondition, ...] = ()


class Pod(Frozen, frozen=True, omit_defaults=False):
    """A pod."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> NamespacedName:
        """The pod's identity."""
        return self.metadata.key

    @property
    def is_ready(self) -> bool:
        """Whether the pod reports Ready; a missing condition means no."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def is_terminating(self) -> bool:
        """Whether the pod was asked to go."""
        return self.metadata.deletion_timestamp is not None
