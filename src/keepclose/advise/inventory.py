"""The objects of a cluster, from files or an API server, indexed by Service.

The inventory does not judge: an object that no other one refers to stays unused. Objects from files
are admitted as an API server would admit them: defaulted, and rejected if invalid. Files hold
manifests that no server has seen, or objects that a server has stored, and nothing distinguishes
them. So values that a server would allocate may be missing, and values that need a feature gate are
accepted whether it is on or not: whether they have an effect is for the routing decision to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from keepclose.model.addresses import IPV4, IPV6, family_of
from keepclose.model.endpointslice.types import Endpoint, Endpoints, EndpointSlice
from keepclose.model.endpointslice.validation import default_endpoint_slice, validate_endpoint_slice
from keepclose.model.field_errors import FieldError, FieldErrorType
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName, ObjectMeta, controller_reference
from keepclose.model.selectors import matches
from keepclose.model.service.defaults import default_families, default_service
from keepclose.model.service.strategy import normalize_cluster_ips
from keepclose.model.service.types import Service
from keepclose.model.service.validation import validate_service
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import (
    Container,
    ContainerPort,
    Node,
    NodeStatus,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    StatusCondition,
    validate_node,
    validate_pod,
)

LONG_AGO = "1970-01-01T00:00:00Z"
"""The deletion timestamp of a terminating endpoint's Pod: slices do not hold it."""
STAND_INS = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 (an address that no Service has)
"""Placeholders of cluster IPs that an API server would have allocated."""
_LENIENT_GATES = FeatureGates(frozenset(Gate) - {Gate.STRICT_IP_CIDR_VALIDATION})


class Inventory(msgspec.Struct, frozen=True):
    """The objects of a cluster, each kind in the order of the input."""

    nodes: tuple[Node, ...] = ()
    services: tuple[Service, ...] = ()
    pods: dict[str, tuple[Pod, ...]] = {}
    slices: dict[NamespacedName, tuple[EndpointSlice, ...]] = {}
    endpoints: dict[NamespacedName, Endpoints] = {}

    @classmethod
    def of(cls, objects: Iterable[object]) -> Inventory:
        """Return the objects indexed by kind, namespace and Service; other kinds are ignored."""
        nodes: list[Node] = []
        services: list[Service] = []
        pods: dict[str, list[Pod]] = {}
        slices: dict[NamespacedName, list[EndpointSlice]] = {}
        endpoints: dict[NamespacedName, Endpoints] = {}
        for obj in objects:
            match obj:
                case Node():
                    nodes.append(obj)
                case Service():
                    services.append(obj)
                case Pod():
                    pods.setdefault(obj.metadata.namespace, []).append(obj)
                case EndpointSlice():
                    slices.setdefault(obj.service_key, []).append(obj)
                case Endpoints():
                    endpoints[obj.metadata.key] = obj
                case _:
                    pass
        return cls(
            tuple(nodes),
            tuple(services),
            {namespace: tuple(group) for namespace, group in pods.items()},
            {key: tuple(group) for key, group in slices.items()},
            endpoints,
        )

    def pods_of(self, service: Service) -> list[Pod]:
        """Return the pods that the Service selects; none when it has no selector."""
        selector = service.spec.selector
        if selector is None:
            return []
        pods = self.pods.get(service.metadata.namespace, ())
        return [pod for pod in pods if matches(selector, pod.metadata.labels)]

    def families(self) -> tuple[str, ...]:
        """Return the address families that the cluster shows, the primary one first.

        No object states them, so they are derived from what was allocated: cluster IPs, then the
        addresses of pods and nodes and the existing slices, then the families that Services
        require. A cluster without any of these is IPv4.
        """
        seen: dict[str, None] = {}
        for service in self.services:
            for address in (service.spec.cluster_ip, *service.spec.cluster_ips):
                seen[family_of(address) or ""] = None
        for pod in (pod for pods in self.pods.values() for pod in pods):
            for pod_ip in pod.status.pod_ips:
                seen[family_of(pod_ip.ip) or ""] = None
        for node in self.nodes:
            for address in (*node.spec.pod_cidrs, *(a.address for a in node.status.addresses)):
                seen[family_of(address.partition("/")[0]) or ""] = None
        for endpoint_slice in (item for slices in self.slices.values() for item in slices):
            seen[endpoint_slice.address_type] = None
        for service in self.services:
            seen.update(dict.fromkeys(service.spec.ip_families))
            if service.spec.ip_family_policy == "RequireDualStack":
                seen.update({IPV4: None, IPV6: None})
        return tuple(family for family in seen if family in (IPV4, IPV6)) or (IPV4,)


def adopt(endpoint_slice: EndpointSlice, service: Service) -> EndpointSlice:
    """Return a slice without an owner as one that the Service owns.

    In a cluster the owner's uid distinguishes slices of this Service from those of an older Service
    of the same name. Manifests written by hand have no uids; there the label alone decides.
    """
    if endpoint_slice.metadata.owner_references and service.metadata.uid:
        return endpoint_slice
    owner = controller_reference("Service", service.metadata)
    return replace(
        endpoint_slice, metadata=replace(endpoint_slice.metadata, owner_references=(owner,))
    )


def pods_in_slices(service: Service, slices: Iterable[EndpointSlice]) -> list[Pod]:
    """Return the Pods that the endpoints of a Service's slices refer to, with what slices show.

    They have the addresses, node, readiness and ports from which their endpoints are planned again.
    They have no owners. An endpoint that names no Pod gets one, named by its address.
    """
    addresses: dict[NamespacedName, dict[str, None]] = {}
    latest: dict[NamespacedName, tuple[Endpoint, tuple[Container, ...]]] = {}
    for endpoint_slice in slices:
        containers = (_container_of(service, endpoint_slice),)
        for endpoint in endpoint_slice.endpoints:
            target = endpoint.target_ref
            key = NamespacedName(service.metadata.namespace, "".join(endpoint.addresses[:1]))
            if target is not None and target.kind == "Pod":
                key = NamespacedName(target.namespace or service.metadata.namespace, target.name)
            addresses.setdefault(key, {}).update(dict.fromkeys(endpoint.addresses))
            latest[key] = (endpoint, containers)
    return [
        _pod_of(endpoint, key, service, containers, addresses[key])
        for key, (endpoint, containers) in latest.items()
    ]


def nodes_in_slices(
    slices: Mapping[NamespacedName, tuple[EndpointSlice, ...]],
) -> tuple[Node, ...]:
    """Return the Nodes that endpoints name, with the zones that slices show, sorted by name.

    They stand in where no Node could be read. They are ready and have no CPU.
    """
    zones: dict[str, str] = {}
    for endpoint_slice in (item for group in slices.values() for item in group):
        for endpoint in endpoint_slice.endpoints:
            if endpoint.node_name:
                zones[endpoint.node_name] = endpoint.zone or zones.get(endpoint.node_name, "")
    return tuple(
        Node(
            metadata=ObjectMeta(name=name, labels={ZONE_LABEL: zone} if zone else {}),
            status=NodeStatus(conditions=(StatusCondition("Ready", "True"),)),
        )
        for name, zone in sorted(zones.items())
    )


def admit_service(service: Service, families: tuple[str, ...]) -> Service | list[FieldError]:
    """Return the Service with its defaults, or every cause why a server would reject it."""
    defaulted = normalize_cluster_ips(default_service(service))
    causes = [
        cause
        for cause in validate_service(defaulted, gates=_LENIENT_GATES)
        if not _is_allocated_later(cause)
    ]
    if causes:
        return causes
    with_families = default_families(defaulted, cluster_families=families)
    return with_families if isinstance(with_families, list) else _with_cluster_ips(with_families)


def admit_slice(endpoint_slice: EndpointSlice) -> EndpointSlice | list[FieldError]:
    """Return the slice with its defaults, or every cause why a server would reject it."""
    if not endpoint_slice.metadata.name and endpoint_slice.metadata.generate_name:
        endpoint_slice = replace(
            endpoint_slice,
            metadata=replace(
                endpoint_slice.metadata, name=endpoint_slice.metadata.generate_name + "0"
            ),
        )
    defaulted = default_endpoint_slice(endpoint_slice)
    return validate_endpoint_slice(defaulted, gates=_LENIENT_GATES) or defaulted


def admit_node(node: Node) -> Node | list[FieldError]:
    """Return the node, or every cause why a server would reject it."""
    return validate_node(node) or node


def admit_pod(pod: Pod) -> Pod | list[FieldError]:
    """Return the pod, or every cause why a server would reject it."""
    return validate_pod(pod) or pod


def _container_of(service: Service, endpoint_slice: EndpointSlice) -> Container:
    """Return a container with the named ports of the Service that have a number in the slice."""
    numbers = {port.name or "": port.port for port in endpoint_slice.ports}
    return Container(
        ports=tuple(
            ContainerPort(port.target_port, numbers[port.name] or 0, port.protocol or "TCP")
            for port in service.spec.ports
            if isinstance(port.target_port, str) and numbers.get(port.name)
        )
    )


def _pod_of(
    endpoint: Endpoint,
    key: NamespacedName,
    service: Service,
    containers: tuple[Container, ...],
    addresses: Iterable[str],
) -> Pod:
    conditions, target = endpoint.conditions, endpoint.target_ref
    # NB: an endpoint may be ready although its Pod is not (publishNotReadyAddresses), and
    # serving although it is not ready (while it terminates).
    is_ready = conditions.serving is not False
    if conditions.serving is None:
        is_ready = conditions.ready is not False
    return Pod(
        metadata=ObjectMeta(
            name=key.name,
            namespace=key.namespace,
            uid="" if target is None else target.uid,
            labels=service.spec.selector or {},
            deletion_timestamp=LONG_AGO if conditions.terminating else None,
        ),
        spec=PodSpec(
            node_name=endpoint.node_name or "",
            hostname=endpoint.hostname or "",
            subdomain=service.metadata.name if endpoint.hostname else "",
            containers=containers,
        ),
        status=PodStatus(
            phase="Running",
            pod_ips=tuple(PodIP(address) for address in addresses),
            conditions=(StatusCondition("Ready", "True" if is_ready else "False"),),
        ),
    )


def _with_cluster_ips(service: Service) -> Service:
    # Without an address the Service would count as headless.
    if service.spec.cluster_ip or service.spec.type == "ExternalName":
        return service
    addresses = tuple(STAND_INS[family] for family in service.spec.ip_families)
    return replace(
        service, spec=replace(service.spec, cluster_ip=addresses[0], cluster_ips=addresses)
    )


def _is_allocated_later(cause: FieldError) -> bool:
    # A server allocates this port before it validates, so a manifest may omit it.
    return cause.type is FieldErrorType.REQUIRED and cause.field == "spec.healthCheckNodePort"
