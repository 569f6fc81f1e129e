"""Objects from files, taken as an API server would take them: defaulted, and refused if invalid.

Files hold manifests that no server has seen, or objects that one has stored, and nothing tells
which. So what a server would allocate may be missing, and values that need a feature gate are
accepted whether it is on or not: whether they have an effect is for the decision to say.
"""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.endpointslice.validation import default_endpoint_slice, validate_endpoint_slice
from keepclose.model.field_errors import Cause, CauseType
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.defaults import default_families, default_service
from keepclose.model.service.strategy import normalize_cluster_ips
from keepclose.model.service.types import Service
from keepclose.model.service.validation import validate_service
from keepclose.model.workload import Node, Pod, validate_node, validate_pod

STAND_INS = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 (an address that nobody has)
"""What stands for a cluster IP that the API server would have allocated."""

_ANY = FeatureGates(frozenset(Gate) - {Gate.STRICT_IP_CIDR_VALIDATION})


def admit_service(service: Service, families: tuple[str, ...]) -> Service | list[Cause]:
    """Return the Service with its defaults, or every cause why a server would refuse it."""
    defaulted = normalize_cluster_ips(default_service(service))
    causes = [cause for cause in validate_service(defaulted, gates=_ANY) if not _allocated(cause)]
    if causes:
        return causes
    settled = default_families(defaulted, cluster_families=families)
    return settled if isinstance(settled, list) else _with_cluster_ips(settled)


def admit_slice(one: EndpointSlice) -> EndpointSlice | list[Cause]:
    """Return the slice with its defaults, or every cause why a server would refuse it."""
    if not one.metadata.name and one.metadata.generate_name:
        one = replace(one, metadata=replace(one.metadata, name=one.metadata.generate_name + "0"))
    defaulted = default_endpoint_slice(one)
    return validate_endpoint_slice(defaulted, gates=_ANY) or defaulted


def admit_node(node: Node) -> Node | list[Cause]:
    """Return the node, or every cause why a server would refuse it."""
    return validate_node(node) or node


def admit_pod(pod: Pod) -> Pod | list[Cause]:
    """Return the pod, or every cause why a server would refuse it."""
    return validate_pod(pod) or pod


def _with_cluster_ips(service: Service) -> Service:
    # Without an address the Service would count as headless.
    if service.spec.cluster_ip or service.spec.type == "ExternalName":
        return service
    addresses = tuple(STAND_INS[family] for family in service.spec.ip_families)
    return replace(
        service, spec=replace(service.spec, cluster_ip=addresses[0], cluster_ips=addresses)
    )


def _allocated(cause: Cause) -> bool:
    # A server allocates this port before it validates, so users are never asked for it.
    return cause.type is CauseType.REQUIRED and cause.field == "spec.healthCheckNodePort"
