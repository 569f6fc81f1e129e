"""Short builders with sensible defaults: a node in a zone, a ready pod on it, a Service over both.

Each returns a complete, valid object; keyword arguments change what a test cares about.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForNode,
    ForZone,
)
from keepclose.model.meta import ObjectMeta, ObjectReference, OwnerReference
from keepclose.model.service.types import Service, ServicePort, ServiceSpec
from keepclose.model.well_known import (
    ENDPOINTSLICE_CONTROLLER,
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
    ZONE_LABEL,
)
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
)


def node(
    name: str = "n1",
    zone: str | None = "zone-a",
    *,
    cpu: str | None = "4",
    ready: bool = True,
    labels: dict[str, str] | None = None,
) -> Node:
    """Return a node; zone None leaves the label off, cpu None the allocatable CPU."""
    zone_label = {} if zone is None else {ZONE_LABEL: zone}
    return Node(
        metadata=ObjectMeta(name=name, labels={**zone_label, **(labels or {})}),
        status=NodeStatus(
            allocatable={} if cpu is None else {"cpu": cpu},
            conditions=(StatusCondition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def pod(
    name: str = "p1",
    node_name: str = "n1",
    *,
    ip: str = "10.0.0.1",
    ips: tuple[str, ...] | None = None,
    ready: bool = True,
    terminating: bool = False,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    owner: OwnerReference | None = None,
) -> Pod:
    """Return a running pod with the port "http" (8080/TCP); `ips` wins over `ip`."""
    addresses = (ip,) if ips is None else ips
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{name}",
            labels={"app": "web"} if labels is None else labels,
            deletion_timestamp="2026-01-01T00:00:00Z" if terminating else None,
            owner_references=() if owner is None else (owner,),
        ),
        spec=PodSpec(
            node_name=node_name,
            containers=(Container(ports=(ContainerPort(name="http", container_port=8080),)),),
        ),
        status=PodStatus(
            phase="Running",
            pod_ip=addresses[0] if addresses else "",
            pod_ips=tuple(PodIP(address) for address in addresses),
            conditions=(StatusCondition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def service(
    name: str = "web",
    *,
    namespace: str = "default",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Service:
    """Return a valid ClusterIP Service over app=web with the port http 80 -> 8080.

    Further keyword arguments are fields of the spec, by their Python names.
    """
    base = ServiceSpec(
        type="ClusterIP",
        selector={"app": "web"},
        ports=(ServicePort(name="http", protocol="TCP", port=80, target_port=8080),),
        cluster_ip="10.96.0.10",
        cluster_ips=("10.96.0.10",),
        ip_families=("IPv4",),
        ip_family_policy="SingleStack",
        session_affinity="None",
        internal_traffic_policy="Cluster",
    )
    return Service(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{name}",
            annotations=annotations or {},
            labels=labels or {},
        ),
        spec=replace(base, **spec),
    )


def endpoint(
    address: str = "10.0.0.1",
    *,
    zone: str | None = None,
    node_name: str | None = None,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
    for_zones: tuple[str, ...] = (),
    for_nodes: tuple[str, ...] = (),
    pod_name: str | None = None,
) -> Endpoint:
    """Return an endpoint; hints are absent unless zones or nodes are given."""
    hints = None
    if for_zones or for_nodes:
        hints = EndpointHints(
            for_zones=tuple(ForZone(name) for name in for_zones),
            for_nodes=tuple(ForNode(name) for name in for_nodes),
        )
    return Endpoint(
        addresses=(address,),
        conditions=EndpointConditions(ready=ready, serving=serving, terminating=terminating),
        target_ref=None
        if pod_name is None
        else ObjectReference(kind="Pod", namespace="default", name=pod_name, uid=f"uid-{pod_name}"),
        node_name=node_name,
        zone=zone,
        hints=hints,
    )


def endpoint_slice(
    *endpoints: Endpoint,
    name: str = "web-abcde",
    service_name: str = "web",
    namespace: str = "default",
    address_type: str = "IPv4",
    ports: tuple[EndpointPort, ...] = (EndpointPort(name="http", protocol="TCP", port=8080),),
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owner_uid: str | None = None,
) -> EndpointSlice:
    """Return a slice of the Service, managed by the EndpointSlice controller and owned by it."""
    return EndpointSlice(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{name}",
            labels={
                SERVICE_NAME_LABEL: service_name,
                MANAGED_BY_LABEL: ENDPOINTSLICE_CONTROLLER,
                **(labels or {}),
            },
            annotations=annotations or {},
            owner_references=(
                OwnerReference(
                    api_version="v1",
                    kind="Service",
                    name=service_name,
                    uid=f"uid-{service_name}" if owner_uid is None else owner_uid,
                    controller=True,
                    block_owner_deletion=True,
                ),
            ),
        ),
        address_type=address_type,
        endpoints=endpoints,
        ports=ports,
    )
