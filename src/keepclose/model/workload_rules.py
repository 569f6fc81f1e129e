"""Rules for the parts of nodes and pods that decisions rest on, as the API server checks them.

Zones come from node labels, traffic shares from allocatable CPU, endpoints from pod addresses and
container ports; a bad one of these would quietly spoil every decision after it. Fields that no
decision reads are not checked. Each check returns an ordered list of causes and never raises.
"""

from __future__ import annotations

from typing import Final

from keepclose.model.addresses import MUST_BE_IP, family_of
from keepclose.model.field_errors import Cause, duplicate, invalid, not_supported, required
from keepclose.model.metadata import validate_metadata
from keepclose.model.metadata_validation import (
    dns1123_label,
    dns1123_subdomain,
    port_name,
    port_number,
)
from keepclose.model.quantities import millis, quantity_causes
from keepclose.model.workload import Container, Node, Pod, PodStatus

PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
ONE_PER_FAMILY: Final = "may specify no more than one IP for each IP family"


def validate_node(node: Node) -> list[Cause]:
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


def validate_pod(pod: Pod) -> list[Cause]:
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


def _validate_ports(container: Container, field: str) -> list[Cause]:
    causes: list[Cause] = []
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
        if port.protocol and port.protocol not in PROTOCOLS:
            causes.append(not_supported(f"{place}.protocol", port.protocol, PROTOCOLS))
    return causes


def _validate_addresses(status: PodStatus) -> list[Cause]:
    causes: list[Cause] = []
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
