"""The objects of a cluster as read from files or an API, filed so that each Service finds its own.

Nothing here judges; an object that no other one refers to simply stays unused.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from keepclose.model.addresses import IPV4, IPV6, family_of
from keepclose.model.endpointslice.types import Endpoint, Endpoints, EndpointSlice
from keepclose.model.endpointslice.validation import default_endpoint_slice, validate_endpoint_slice
from keepclose.model.field_errors import CauseType, FieldError
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName, ObjectMeta, controller_reference
from keepclose.model.selectors import matches
from keepclose.model.service.defaults import default_families, default_service
from keepclose.model.service.strategy import normalize_cluster_ips
from keepclose.model.service.types import Service
from keepclose.model.service.validation import validate_service
from keepclose.model.workload import (
    Container,
    ContainerPort,
    Node,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    StatusCondition,
    validate_node,
    validate_pod,
)

LONG_AGO = "1970-01-01T00:00:00Z"
"""When a terminating endpoint's Pod was deleted: slices tell that it was, not when."""
STAND_INS = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 (an address that nobody has)
"""What stands for a cluster IP that the API server would have allocated."""

_ANY = FeatureGates(frozenset(Gate) - {Gate.STRICT_IP_CIDR_VALIDATION})


class Inventory(msgspec.Struct, frozen=True):
    """Everything known of a cluster, each kind in the order in which it was given."""

    nodes: tuple[Node, ...] = ()
    services: tuple[Service, ...] = ()
    pods: dict[str, tuple[Pod, ...]] = {}
    slices: dict[NamespacedName, tuple[EndpointSlice, ...]] = {}
    endpoints: dict[NamespacedName, Endpoints] = {}

    @classmethod
    def of(cls, objects: Iterable[object]) -> Inventory:
        """Return the objects filed by kind, namespace and Service; other kinds are passed over."""
        nodes: list[Node] = []
        services: list[Service] = []
        pods: dict[str, list[Pod]] = {}
        slices: dict[NamespacedName, list[EndpointSlice]] = {}
        endpoints: dict[NamespacedName, Endpoints] = {}
        for one in objects:
            match one:
                case Node():
                    nodes.append(one)
                case Service():
                    services.append(one)
                case Pod():
                    pods.setdefault(one.metadata.namespace, []).append(one)
                case EndpointSlice():
                    slices.setdefault(one.service_key, []).append(one)
                case Endpoints():
                    endpoints[one.metadata.key] = one
                case _:
                    pass
        return cls(
            tuple(nodes),
            tuple(services),
            {namespace: tuple(some) for namespace, some in pods.items()},
            {key: tuple(some) for key, some in slices.items()},
            endpoints,
        )

    def pods_of(self, service: Service) -> list[Pod]:
        """Return the pods that the Service selects; none when it has no selector."""
        selector = service.spec.selector
        if selector is None:
            return []
        here = self.pods.get(service.metadata.namespace, ())
        return [pod for pod in here if matches(selector, pod.metadata.labels)]

    def families(self) -> tuple[str, ...]:
        """Return the address families that the cluster shows, the primary one first.

        Nobody writes them down, so they are read off what was allocated: cluster IPs, then the
        addresses of pods and nodes and the slices there are, then what Services demand outright. A
        cluster that shows nothing is IPv4.
        """
        seen: dict[str, None] = {}
        for service in self.services:
            for address in (service.spec.cluster_ip, *service.spec.cluster_ips):
                seen[family_of(address) or ""] = None
        for pod in (pod for some in self.pods.values() for pod in some):
            for pod_ip in pod.status.pod_ips:
                seen[family_of(pod_ip.ip) or ""] = None
        for node in self.nodes:
            for address in (*node.spec.pod_cidrs, *(a.address for a in node.status.addresses)):
                seen[family_of(address.partition("/")[0]) or ""] = None
        seen.update((one.address_type, None) for some in self.slices.values() for one in some)
        for service in self.services:
            seen.update(dict.fromkeys(service.spec.ip_families))
            if service.spec.ip_family_policy == "RequireDualStack":
                seen.update({IPV4: None, IPV6: None})
        return tuple(family for family in seen if family in (IPV4, IPV6)) or (IPV4,)


def adopt(one: EndpointSlice, service: Service) -> EndpointSlice:
    """Return a slice that files leave without an owner as one that the Service owns.

    In a cluster the owner's uid tells slices of this Service from those of an older one of the same
    name. Manifests written by hand have no uids; there the label alone must do.
    """
    if one.metadata.owner_references and service.metadata.uid:
        return one
    owner = controller_reference("Service", service.metadata)
    return replace(one, metadata=replace(one.metadata, owner_references=(owner,)))


def pods_in_slices(service: Service, slices: Iterable[EndpointSlice]) -> list[Pod]:
    """Return the Pods that the endpoints of a Service's slices point to, as far as slices tell.

    They have the address, node, readiness and ports by which their endpoints are planned again. Of
    owners nothing is known. Endpoints without a Pod give none.
    """
    addresses: dict[NamespacedName, dict[str, None]] = {}
    latest: dict[NamespacedName, tuple[Endpoint, tuple[Container, ...]]] = {}
    for endpoint_slice in slices:
        containers = (_container_of(service, endpoint_slice),)
        for endpoint in endpoint_slice.endpoints:
            target = endpoint.target_ref
            if target is None or target.kind != "Pod":
                continue
            key = NamespacedName(target.namespace or service.metadata.namespace, target.name)
            addresses.setdefault(key, {}).update(dict.fromkeys(endpoint.addresses))
            latest[key] = (endpoint, containers)
    return [
        _pod_of(endpoint, key, service, containers, addresses[key])
        for key, (endpoint, containers) in latest.items()
    ]


def _container_of(service: Service, endpoint_slice: EndpointSlice) -> Container:
    """Return a container with the ports that the Service names and the slice has numbers for."""
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


def admit_service(service: Service, families: tuple[str, ...]) -> Service | list[FieldError]:
    """Return the Service with its defaults, or every cause why a server would refuse it."""
    defaulted = normalize_cluster_ips(default_service(service))
    causes = [cause for cause in validate_service(defaulted, gates=_ANY) if not _allocated(cause)]
    if causes:
        return causes
    settled = default_families(defaulted, cluster_families=families)
    return settled if isinstance(settled, list) else _with_cluster_ips(settled)


def admit_slice(one: EndpointSlice) -> EndpointSlice | list[FieldError]:
    """Return the slice with its defaults, or every cause why a server would refuse it."""
    if not one.metadata.name and one.metadata.generate_name:
        one = replace(one, metadata=replace(one.metadata, name=one.metadata.generate_name + "0"))
    defaulted = default_endpoint_slice(one)
    return validate_endpoint_slice(defaulted, gates=_ANY) or defaulted


def admit_node(node: Node) -> Node | list[FieldError]:
    """Return the node, or every cause why a server would refuse it."""
    return validate_node(node) or node


def admit_pod(pod: Pod) -> Pod | list[FieldError]:
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


def _allocated(cause: FieldError) -> bool:
    # A server allocates this port before it validates, so users are never asked for it.
    return cause.type is CauseType.REQUIRED and cause.field == "spec.healthCheckNodePort"
