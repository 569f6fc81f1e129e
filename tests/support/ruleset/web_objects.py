"""Services and slices with the port p80."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointPort, EndpointSlice
from keepclose.model.service.types import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
)
from support.builders import endpoint_slice, service


def web(
    name: str, ip: str, *, lb: tuple[str, ...] = (), node_port: int = 0, **spec: Any
) -> Service:
    """Return a Service with the port p80; with load balancer addresses it is of that type."""
    kind = "LoadBalancer" if lb else "NodePort" if node_port else "ClusterIP"
    family = "IPv6" if ":" in ip else "IPv4"
    made = service(
        name,
        type=kind,
        cluster_ip=ip,
        cluster_ips=(ip,),
        ip_families=(family,),
        ports=(ServicePort(name="p80", protocol="TCP", port=80, node_port=node_port),),
        **spec,
    )
    ingress = tuple(LoadBalancerIngress(ip=one) for one in lb)
    return replace(made, status=ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress)))


def slice_of(name: str, *endpoints: Endpoint) -> EndpointSlice:
    """Return a slice of the Service with the port p80."""
    family = "IPv6" if ":" in endpoints[0].addresses[0] else "IPv4"
    return endpoint_slice(
        *endpoints,
        name=f"{name}-1",
        service_name=name,
        address_type=family,
        ports=(EndpointPort(name="p80", protocol="TCP", port=80),),
    )
