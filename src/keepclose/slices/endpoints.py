"""What one pod contributes to the slices of one Service in one address family.

Follows the EndpointSlice controller. A finished pod and a pod without an address are no endpoints;
a terminating pod still is one. Named target ports are looked up in the containers, then in the
sidecar containers. All three conditions are set explicitly. Hints are never set here: `hinting`
adds them to whole slices. A pod on an unknown node is skipped and reported, unless the Service
publishes not-ready addresses.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from keepclose.model.addresses import canonical, family_of
from keepclose.model.endpointslice.types import Endpoint, EndpointConditions, EndpointPort
from keepclose.model.meta import ObjectReference
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import Container, Node, Pod

PortSetKey: TypeAlias = tuple[tuple[str, str, int, str], ...]
"""Sorted ports as (name, protocol, number, appProtocol); equal for slices with the same ports."""

EndpointId: TypeAlias = tuple[tuple[str, ...], str, str, str]
"""Identity of an endpoint: sorted addresses, hostname, namespace and name of the pod."""

_FINISHED = ("Succeeded", "Failed")
_CONDITIONS = {
    (ready, serving, terminating): EndpointConditions(
        ready=ready, serving=serving, terminating=terminating
    )
    for ready in (False, True)
    for serving in (False, True)
    for terminating in (False, True)
}


class DesiredEndpoint(msgspec.Struct, frozen=True):
    """The ports and the endpoint that a pod should have in the slices.

    `endpoint` and `endpoint_id` are None if the pod has no address of the family or is skipped; for
    a skipped pod `error` says why. The ports count even then: empty slices with these ports stay.
    """

    ports: tuple[EndpointPort, ...]
    port_key: PortSetKey
    endpoint: Endpoint | None = None
    endpoint_id: EndpointId | None = None
    error: str = ""


class EndpointBuilder:
    """Builder of the endpoints of one Service in one address family.

    Keep it until the Service changes: it resolves ports that many pods share only once.
    """

    __slots__ = ("_family", "_fixed", "_name", "_namespace", "_ports", "_publish", "_resolved")

    def __init__(self, service: Service, family: str) -> None:
        self._name = service.metadata.name
        self._namespace = service.metadata.namespace
        self._publish = service.spec.publish_not_ready_addresses
        self._family = family
        self._ports = service.spec.ports
        self._resolved: dict[
            tuple[int | None, ...], tuple[tuple[EndpointPort, ...], PortSetKey]
        ] = {}
        named = any(port.target_port and isinstance(port.target_port, str) for port in self._ports)
        self._fixed = None if named else self._ports_numbered(self._numbers_of((), ()))

    def desired(self, pod: Pod, node: Node | None) -> DesiredEndpoint | None:
        """Return the desired endpoint of the pod; None if the pod belongs in no slice.

        `node` is the node that the pod names; None if it does not exist.
        """
        if not belongs_in_endpoints(pod):
            return None
        ports, key = self.ports(pod)
        if node is None and not self._publish:
            return DesiredEndpoint(ports, key, error=self._missing_node(pod))
        endpoint = self.endpoint(pod, node)
        if endpoint is None:
            return DesiredEndpoint(ports, key)
        return DesiredEndpoint(ports, key, endpoint, endpoint_id(endpoint))

    def ports(self, pod: Pod) -> tuple[tuple[EndpointPort, ...], PortSetKey]:
        """Return the ports that the pod serves, in the order of the Service, and their key."""
        if self._fixed is not None:
            return self._fixed
        spec = pod.spec
        return self._ports_numbered(self._numbers_of(spec.containers, spec.init_containers))

    def endpoint(self, pod: Pod, node: Node | None) -> Endpoint | None:
        """Return the endpoint of the pod; None if it has no address of the family."""
        meta = pod.metadata
        spec = pod.spec
        status = pod.status
        family = self._family
        addresses: tuple[str, ...] = ()
        for pod_ip in status.pod_ips:
            if family_of(pod_ip.ip) == family and (address := canonical(pod_ip.ip)) is not None:
                addresses = (*addresses, address)
        if not addresses:
            return None
        serving = False
        for condition in status.conditions:
            if condition.type == "Ready":
                serving = condition.status == "True"
                break
        terminating = meta.deletion_timestamp is not None
        ready = self._publish or (serving and not terminating)
        hostname = None
        if spec.hostname and spec.subdomain == self._name and meta.namespace == self._namespace:
            hostname = spec.hostname
        return Endpoint(
            addresses,
            _CONDITIONS[ready, serving, terminating],
            hostname,
            ObjectReference("Pod", meta.namespace, meta.name, meta.uid),
            None,
            spec.node_name or None,
            None if node is None else node.metadata.labels.get(ZONE_LABEL) or None,
        )

    def _missing_node(self, pod: Pod) -> str:
        return (
            f"skipping Pod {pod.metadata.name} for Service {self._namespace}/{self._name}: "
            f"Node {pod.spec.node_name} Not Found"
        )

    def _numbers_of(
        self, containers: tuple[Container, ...], init_containers: tuple[Container, ...]
    ) -> tuple[int | None, ...]:
        return tuple([_port_number(port, containers, init_containers) for port in self._ports])

    def _ports_numbered(
        self, numbers: tuple[int | None, ...]
    ) -> tuple[tuple[EndpointPort, ...], PortSetKey]:
        resolved = self._resolved.get(numbers)
        if resolved is None:
            ports = tuple(
                EndpointPort(
                    name=port.name,
                    protocol=port.protocol or "TCP",
                    port=number,
                    app_protocol=port.app_protocol,
                )
                for port, number in zip(self._ports, numbers, strict=True)
                if number is not None
            )
            resolved = self._resolved[numbers] = (ports, port_key(ports))
        return resolved


def belongs_in_endpoints(pod: Pod) -> bool:
    """Return whether the pod can be an endpoint: it has not finished and has an address."""
    status = pod.status
    return status.phase not in _FINISHED and bool(status.pod_ip or status.pod_ips)


def find_port(service_port: ServicePort, pod: Pod) -> int | None:
    """Return the port number of a target port on this pod; None if the pod lacks the name."""
    return _port_number(service_port, pod.spec.containers, pod.spec.init_containers)


def endpoint_ports(service: Service, pod: Pod) -> tuple[EndpointPort, ...]:
    """Return the ports that the pod serves; named ports that the pod lacks are dropped."""
    return EndpointBuilder(service, "").ports(pod)[0]


def port_key(ports: tuple[EndpointPort, ...]) -> PortSetKey:
    """Return the key of a set of ports, independent of their order; () without ports.

    NB: absent fields count as their defaults in the API: the name "" and the protocol TCP. A port
    without a number means all ports, here -1.
    """
    keys = [
        (
            port.name or "",
            port.protocol or "TCP",
            -1 if port.port is None else port.port,
            port.app_protocol or "",
        )
        for port in ports
    ]
    keys.sort()
    return tuple(keys)


def build_endpoint(
    pod: Pod, *, node: Node | None, service: Service, family: str
) -> Endpoint | None:
    """Return the endpoint of the pod; None if it has no address of the family."""
    return EndpointBuilder(service, family).endpoint(pod, node)


def desired_endpoint(
    service: Service, pod: Pod, *, node: Node | None, family: str
) -> DesiredEndpoint | None:
    """Return the desired endpoint of one pod; None if the pod belongs in no slice.

    For many pods keep an `EndpointBuilder`.
    """
    return EndpointBuilder(service, family).desired(pod, node)


def endpoint_id(endpoint: Endpoint) -> EndpointId:
    """Return the identity by which a pod's endpoint is found in existing slices."""
    addresses = endpoint.addresses
    if len(addresses) > 1:
        addresses = tuple(sorted(addresses))
    ref = endpoint.target_ref
    if ref is None:
        return (addresses, endpoint.hostname or "", "", "")
    return (addresses, endpoint.hostname or "", ref.namespace, ref.name)


def same_beyond_id(left: Endpoint, right: Endpoint) -> bool:
    """Return whether two endpoints of one identity need no write.

    Node, zone, conditions and target reference are compared, and an absent condition differs from
    a false one. The resourceVersion of the reference and the hints are ignored.
    """
    if (
        left.node_name != right.node_name
        or left.zone != right.zone
        or left.conditions != right.conditions
    ):
        return False
    left_ref, right_ref = left.target_ref, right.target_ref
    if left_ref == right_ref:
        return True
    if left_ref is None or right_ref is None:
        return False
    return replace(left_ref, resource_version="") == replace(right_ref, resource_version="")


def _port_number(
    port: ServicePort, containers: tuple[Container, ...], init_containers: tuple[Container, ...]
) -> int | None:
    target = port.target_port
    if not target:
        # An absent target port, which the API server defaults, equals the port of the Service.
        return port.port
    if isinstance(target, int):
        return target
    protocol = port.protocol or "TCP"
    for container in containers:
        for candidate in container.ports:
            if candidate.name == target and candidate.protocol == protocol:
                return candidate.container_port
    for container in init_containers:
        if container.restart_policy == "Always":
            for candidate in container.ports:
                if candidate.name == target and candidate.protocol == protocol:
                    return candidate.container_port
    return None
