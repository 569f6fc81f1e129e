"""Services of both families, found by a number, and pods as their endpoints."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.service.types import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
)
from support.builders import service
from support.netanswers import PORT

FAMILIES: Final = (IPV4, IPV6)


class Addresses(NamedTuple):
    """Where the Service with a number is found, in one family."""

    cluster: str
    load_balancer: str
    external: str
    node_port: int

    @classmethod
    def of(cls, number: int, family: str) -> Addresses:
        """Return the addresses of a Service."""
        if family == IPV6:
            hosts = f"fd00:96::{number:x}", f"2001:db8:1::{number:x}", f"2001:db8:2::{number:x}"
        else:
            hosts = f"10.96.0.{number}", f"203.0.113.{number}", f"198.51.100.{number}"
        return cls(*hosts, 30000 + number)


def web(
    name: str,
    number: int,
    *,
    is_external: bool = False,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Service:
    """Return a Service of both families at port 80 (TCP) and 53 (UDP).

    One that is external has a node port, an address of a load balancer and an external IP.
    """
    four, six = Addresses.of(number, IPV4), Addresses.of(number, IPV6)
    node_port = four.node_port if is_external else 0
    ports = (
        ServicePort(name="http", protocol="TCP", port=80, target_port=PORT, node_port=node_port),
        ServicePort(name="dns", protocol="UDP", port=53, target_port=PORT, node_port=node_port),
    )
    made = service(
        name,
        annotations=annotations,
        type="LoadBalancer" if is_external else "ClusterIP",
        cluster_ip=four.cluster,
        cluster_ips=(four.cluster, six.cluster),
        ip_families=FAMILIES,
        ip_family_policy="RequireDualStack",
        external_ips=(four.external, six.external) if is_external else (),
        ports=ports,
        **spec,
    )
    if not is_external:
        return made
    ingress = tuple(LoadBalancerIngress(ip=one.load_balancer) for one in (four, six))
    return replace(made, status=ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress)))


class Backend(NamedTuple):
    """A pod as an endpoint: its name, then what the endpoint says of itself."""

    pod: str
    ready: bool = True
    serving: bool | None = None
    terminating: bool = False
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()


def ending(pod: str, *, serving: bool = True, **hints: tuple[str, ...]) -> Backend:
    """Return the endpoint of a pod that terminates."""
    return Backend(pod, ready=False, serving=serving, terminating=True, **hints)


def addresses_of(one: Service, family: str) -> Addresses:
    """Return where a Service is found in a family."""
    return Addresses.of(int(one.spec.cluster_ip.rpartition(".")[2]), family)
