"""Node and Pod: the fields from which endpoints, zones and traffic shares derive, and validation.

Zones come from node labels, traffic shares from allocatable CPU, endpoints from pod addresses and
container ports; an invalid value would silently spoil every later decision. Fields that no decision
reads are not checked. Validation follows kube-apiserver, returns ordered field errors and never
raises.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.model.addresses import MUST_BE_IP, family_of
from keepclose.model.field_errors import FieldError, duplicate, invalid, not_supported, required
from keepclose.model.meta import ApiStruct, NamespacedName, ObjectMeta
from keepclose.model.metadata_validation import (
    dns1123_label,
    dns1123_subdomain,
    port_name,
    port_number,
    validate_metadata,
)
from keepclose.model.quantities import millis, quantity_errors
from keepclose.model.well_known import EXCLUDED_NODE_LABELS, REGION_LABEL, ZONE_LABEL

NOT_NEGATIVE: Final = "must be greater than or equal to 0"
ONE_PER_FAMILY: Final = "may specify no more than one IP for each IP family"
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")


class StatusCondition(ApiStruct, frozen=True):
    """A condition of a node or a pod."""

    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class NodeAddress(ApiStruct, frozen=True):
    """An address of a node."""

    type: str = ""
    address: str = ""


class Taint(ApiStruct, frozen=True):
    """A taint, which repels pods from a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(ApiStruct, frozen=True):
    """The pod CIDRs of a node, and its taints."""

    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(ApiStruct, frozen=True):
    """The reported status of a node; quantities stay as written, see `quantities`."""

    allocatable: dict[str, str | int | float] = {}
    conditions: tuple[StatusCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(ApiStruct, frozen=True, omit_defaults=False):
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
        """The zone in the node's label; "" without the label."""
        return self.metadata.labels.get(ZONE_LABEL, "")

    @property
    def region(self) -> str:
        """The region in the node's label; "" without the label."""
        return self.metadata.labels.get(REGION_LABEL, "")

    @property
    def is_ready(self) -> bool:
        """Whether the node reports Ready; a missing condition means no."""
        return any(
            condition.type == "Ready" and condition.status == "True"
            for condition in self.status.conditions
        )

    @property
    def is_excluded(self) -> bool:
        """Whether the node has a control-plane label and is excluded from traffic shares."""
        return any(label in self.metadata.labels for label in EXCLUDED_NODE_LABELS)


class ContainerPort(ApiStruct, frozen=True):
    """A named port of a container."""

    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"


class Container(ApiStruct, frozen=True):
    """A container of a pod."""

    name: str = ""
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None


class PodSpec(ApiStruct, frozen=True):
    """The node, hostname, network and containers of a pod."""

    node_name: str = ""
    host_network: bool = False
    """Whether the pod uses the network of its node, and so the node's addresses."""
    hostname: str = ""
    subdomain: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class PodIP(ApiStruct, frozen=True):
    """An address of a pod."""

    ip: str = ""


class PodStatus(ApiStruct, frozen=True):
    """Phase, addresses and readiness of a pod."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    conditions: tuple[StatusCondition, ...] = ()


class Pod(ApiStruct, frozen=True, omit_defaults=False):
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
        return any(
            condition.type == "Ready" and condition.status == "True"
            for condition in self.status.conditions
        )

    @property
    def is_terminating(self) -> bool:
        """Whether the pod is being deleted."""
        return self.metadata.deletion_timestamp is not None


def validate_node(node: Node) -> list[FieldError]:
    """Return the errors of a node: in its name, its labels and its quantities."""
    errors = validate_metadata(
        node.metadata, namespaced=False, name_check=dns1123_subdomain, field="metadata"
    )
    for resource, amount in sorted(node.status.allocatable.items()):
        field = f"status.allocatable.{resource}"
        errors += quantity_errors(field, amount)
        if (millis(amount) or 0) < 0:
            errors.append(invalid(field, amount, NOT_NEGATIVE))
    return errors


def validate_pod(pod: Pod) -> list[FieldError]:
    """Return the errors of a pod: in its name, its node, its container ports and its addresses.

    A pod without a node and an address is valid.
    """
    errors = validate_metadata(
        pod.metadata, namespaced=True, name_check=dns1123_subdomain, field="metadata"
    )
    for index, container in enumerate(pod.spec.containers):
        errors += _validate_ports(container, f"spec.containers[{index}].ports")
    for index, container in enumerate(pod.spec.init_containers):
        errors += _validate_ports(container, f"spec.initContainers[{index}].ports")
    for field, value, check in (
        ("spec.nodeName", pod.spec.node_name, dns1123_subdomain),
        ("spec.hostname", pod.spec.hostname, dns1123_label),
        ("spec.subdomain", pod.spec.subdomain, dns1123_label),
    ):
        if value:
            errors += [invalid(field, value, message) for message in check(value)]
    return errors + _validate_addresses(pod.status)


def _validate_ports(container: Container, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(container.ports):
        port_field = f"{field}[{index}]"
        if port.name:
            if messages := port_name(port.name):
                errors += [
                    invalid(f"{port_field}.name", port.name, message) for message in messages
                ]
            elif port.name in names:
                errors.append(duplicate(f"{port_field}.name", port.name))
            names.add(port.name)
        number_field = f"{port_field}.containerPort"
        if port.container_port == 0:
            errors.append(required(number_field))
        else:
            messages = port_number(port.container_port)
            errors += [invalid(number_field, port.container_port, message) for message in messages]
        # The API defaults an empty protocol to TCP.
        if port.protocol and port.protocol not in _PROTOCOLS:
            errors.append(not_supported(f"{port_field}.protocol", port.protocol, _PROTOCOLS))
    return errors


def _validate_addresses(status: PodStatus) -> list[FieldError]:
    errors: list[FieldError] = []
    if status.pod_ip and family_of(status.pod_ip) is None:
        errors.append(invalid("status.podIP", status.pod_ip, MUST_BE_IP))
    families = [family_of(address.ip) for address in status.pod_ips]
    errors += [
        invalid(f"status.podIPs[{index}]", address.ip, MUST_BE_IP)
        for index, (address, family) in enumerate(zip(status.pod_ips, families, strict=True))
        if family is None
    ]
    if None not in families and len(set(families)) < len(families):
        shown = [{"IP": address.ip} for address in status.pod_ips]
        errors.append(invalid("status.podIPs", shown, ONE_PER_FAMILY))
    return errors
