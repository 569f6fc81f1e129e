"""Node and Pod: the few fields from which endpoints, zones and traffic shares are derived."""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.model.addresses import MUST_BE_IP, family_of
from keepclose.model.field_errors import FieldError, duplicate, invalid, not_supported, required
from keepclose.model.meta import Frozen, NamespacedName, ObjectMeta
from keepclose.model.metadata_validation import (
    dns1123_label,
    dns1123_subdomain,
    port_name,
    port_number,
    validate_metadata,
)
from keepclose.model.quantities import millis, quantity_causes
from keepclose.model.well_known import EXCLUDED_NODE_LABELS, REGION_LABEL, ZONE_LABEL

_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
ONE_PER_FAMILY: Final = "may specify no more than one IP for each IP family"


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


def validate_node(node: Node) -> list[FieldError]:
    """Return what is wrong with a node: its name, its labels (the zone among them), its amounts."""
    causes = validate_metadata(
        node.metadata, namespaced=False, name_check=dns1123_subdomain, field="metadata"
    )
    for resource, amount in sorted(node.status.allocatable.items()):
        field = f"status.allocatable.{resource}"
        causes += quantity_causes(field, amount)
        if (millis(amount) or 0) < 0:
            causes.append(invalid(field, amount, NOT_NEGATIVE))
    return causes


def validate_pod(pod: Pod) -> list[FieldError]:
    """Return what is wrong with a pod: its name, its node, its container ports, its addresses.

    A pod that has no node and no address yet is fine.
    """
    causes = validate_metadata(
        pod.metadata, namespaced=True, name_check=dns1123_subdomain, field="metadata"
    )
    for index, container in enumerate(pod.spec.containers):
        causes += _validate_ports(container, f"spec.containers[{index}].ports")
    for index, container in enumerate(pod.spec.init_containers):
        causes += _validate_ports(container, f"spec.initContainers[{index}].ports")
    for field, value, check in (
        ("spec.nodeName", pod.spec.node_name, dns1123_subdomain),
        ("spec.hostname", pod.spec.hostname, dns1123_label),
        ("spec.subdomain", pod.spec.subdomain, dns1123_label),
    ):
        if value:
            causes += [invalid(field, value, message) for message in check(value)]
    return causes + _validate_addresses(pod.status)


def _validate_ports(container: Container, field: str) -> list[FieldError]:
    causes: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(container.ports):
        place = f"{field}[{index}]"
        if port.name:
            if messages := port_name(port.name):
                causes += [invalid(f"{place}.name", port.name, message) for message in messages]
            elif port.name in names:
                causes.append(duplicate(f"{place}.name", port.name))
            names.add(port.name)
        number = f"{place}.containerPort"
        if port.container_port == 0:
            causes.append(required(number))
        else:
            messages = port_number(port.container_port)
            causes += [invalid(number, port.container_port, message) for message in messages]
        # The API fills an empty protocol in as TCP.
        if port.protocol and port.protocol not in _PROTOCOLS:
            causes.append(not_supported(f"{place}.protocol", port.protocol, _PROTOCOLS))
    return causes


def _validate_addresses(status: PodStatus) -> list[FieldError]:
    causes: list[FieldError] = []
    if status.pod_ip and family_of(status.pod_ip) is None:
        causes.append(invalid("status.podIP", status.pod_ip, MUST_BE_IP))
    families = [family_of(address.ip) for address in status.pod_ips]
    causes += [
        invalid(f"status.podIPs[{index}]", address.ip, MUST_BE_IP)
        for index, (address, family) in enumerate(zip(status.pod_ips, families, strict=True))
        if family is None
    ]
    if None not in families and len(set(families)) < len(families):
        shown = [{"IP": address.ip} for address in status.pod_ips]
        causes.append(invalid("status.podIPs", shown, ONE_PER_FAMILY))
    return causes
