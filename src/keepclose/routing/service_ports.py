"""What a node needs to know of each port of a Service, for one address family.

One `RoutedPort` per entry of spec.ports, derived as in kube-proxy: only addresses of the family
count, invalid ones are skipped, an unknown policy means Cluster. In addition there are the
PreferLocal policy, node-level topology (both drafts of KEP-3015), topologyKeys (KEP-536) and the
rule by which proxies of Kubernetes 1.21 to 1.30 followed hints; each has its feature gate.

This module never uses endpoints or nodes: everything follows from the Service and the gates alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_network
from typing import Final

import msgspec

from keepclose.model.addresses import IPV4, IPV6, canonical, cidr_errors, family_of
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service, ServiceSpec
from keepclose.model.well_known import EXTERNAL_POLICY_ANNOTATION, INTERNAL_POLICY_ANNOTATION
from keepclose.routing.strategy import topology_annotation, traffic_distribution

DEFAULT_AFFINITY_SECONDS: Final = 10800

PortKey = tuple[str, str]
"""Name and protocol, such as ("http", "TCP"), which match a Service port to its endpoints."""


class TrafficPolicy(StrEnum):
    """Which endpoints traffic of one direction may go to."""

    CLUSTER = "Cluster"
    LOCAL = "Local"
    PREFER_LOCAL = "PreferLocal"


class RoutedPort(msgspec.Struct, frozen=True):
    """One port of a Service as a node routes it.

    `cluster_ip` is "" and `node_port` 0 if they are only assumed to be allocated.
    """

    service: NamespacedName
    name: str
    protocol: str
    cluster_ip: str
    port: int
    node_port: int = 0
    assumed_node_port: bool = False
    session_affinity: str = "None"
    affinity_seconds: int = 0
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    health_check_node_port: int = 0
    internal_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    topology_keys: tuple[str, ...] = ()
    node_level: bool = False
    honours_hints: bool = True
    follows_weights: bool = False
    """Whether written weights count: the Service asks for a heuristic that may write them."""

    @property
    def key(self) -> PortKey:
        """The key of the port's endpoints in `collect_endpoints`."""
        return self.name, self.protocol

    @property
    def transport(self) -> str:
        """The protocol in lower case, as nftables writes it."""
        return self.protocol.lower()

    @property
    def has_node_port(self) -> bool:
        """Whether every node accepts traffic for this port on its own addresses."""
        return self.node_port != 0 or self.assumed_node_port

    @property
    def is_externally_accessible(self) -> bool:
        """Whether traffic from outside can reach the port in this address family."""
        return self.has_node_port or bool(self.load_balancer_ips) or bool(self.external_ips)


def routed_ports(
    service: Service, family: str, *, gates: FeatureGates, assume_allocated: bool = False
) -> tuple[RoutedPort, ...]:
    """Return the ports that nodes route for the Service in the family ("IPv4" or "IPv6").

    Empty for headless and ExternalName Services, and without a cluster IP of the family. With
    `assume_allocated` a manifest is read as if the API server had allocated the cluster IPs of its
    families and the node ports of its type.
    """
    spec = service.spec
    if service.is_headless or spec.type == "ExternalName":
        return ()
    cluster_ip = _cluster_ip(spec, family)
    assumed_node_port = False
    if assume_allocated:
        if not cluster_ip and family not in _requested_families(spec):
            return ()
        assumed_node_port = spec.type == "NodePort" or (
            spec.type == "LoadBalancer" and spec.allocate_load_balancer_node_ports is not False
        )
    elif not cluster_ip:
        return ()
    internal, external = traffic_policies(service, gates)
    is_sticky = spec.session_affinity == "ClientIP"
    checks_health = spec.type == "LoadBalancer" and external is TrafficPolicy.LOCAL
    # NB: decided once per Service, not once per port.
    _, topology = topology_annotation(service)
    shared = RoutedPort(
        service=service.key,
        name="",
        protocol="",
        cluster_ip=cluster_ip,
        port=0,
        session_affinity="ClientIP" if is_sticky else "None",
        affinity_seconds=_affinity_seconds(spec) if is_sticky else 0,
        external_ips=_of_family(spec.external_ips, family),
        load_balancer_ips=_of_family(
            (
                ingress.ip
                for ingress in service.status.load_balancer.ingress
                if ingress.is_routed_by_nodes
            ),
            family,
        ),
        source_ranges=_source_ranges(spec.load_balancer_source_ranges, family),
        health_check_node_port=spec.health_check_node_port if checks_health else 0,
        internal_policy=internal,
        external_policy=external,
        topology_keys=spec.topology_keys if gates.on(Gate.SERVICE_TOPOLOGY) else (),
        node_level=topology == "Node" and gates.on(Gate.NODE_LEVEL_TOPOLOGY),
        honours_hints=honours_hints(topology or "", gates),
        follows_weights=follows_weights(gates) and "/" in (traffic_distribution(service)[1] or ""),
    )
    return tuple(
        msgspec.structs.replace(
            shared,
            name=port.name,
            protocol=port.protocol or "TCP",
            port=port.port,
            node_port=port.node_port,
            assumed_node_port=assumed_node_port and port.node_port == 0,
        )
        for port in spec.ports
    )


def honours_hints(topology: str, gates: FeatureGates) -> bool:
    """Return whether hints count for a Service with this topology annotation, "" for none."""
    if gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION):
        return True
    asked = topology not in ("", "disabled", "Disabled")
    return asked and gates.on(Gate.TOPOLOGY_AWARE_HINTS)


def follows_weights(gates: FeatureGates) -> bool:
    """Return whether nodes with these gates follow weights where a Service asks for a heuristic."""
    return gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION) and gates.on(
        Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS
    )


def _cluster_ip(spec: ServiceSpec, family: str) -> str:
    if spec.cluster_ip and spec.ip_families:
        for position, name in enumerate(spec.ip_families):
            if name == family and position < len(spec.cluster_ips):
                return spec.cluster_ips[position]
    # A manifest may set families and clusterIP without clusterIPs.
    if not spec.cluster_ips or not spec.ip_families:
        return spec.cluster_ip if family_of(spec.cluster_ip) == family else ""
    return ""


def _requested_families(spec: ServiceSpec) -> tuple[str, ...]:
    if spec.ip_family_policy in ("PreferDualStack", "RequireDualStack"):
        return (IPV4, IPV6)
    if spec.ip_families:
        return spec.ip_families
    # By default the cluster's primary family: IPv4, unless an address shows another.
    return () if spec.cluster_ip else (IPV4,)


def traffic_policies(service: Service, gates: FeatureGates) -> tuple[TrafficPolicy, TrafficPolicy]:
    """Return the policies that have an effect, for traffic inside the cluster and from outside."""
    spec, annotations = service.spec, service.metadata.annotations
    internal = annotations.get(INTERNAL_POLICY_ANNOTATION, spec.internal_traffic_policy)
    if not gates.on(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY):
        internal = None
    external: str | None = None
    if service.is_externally_accessible:
        external = annotations.get(EXTERNAL_POLICY_ANNOTATION, spec.external_traffic_policy)
    return _policy(internal, gates), _policy(external, gates)


def _policy(text: str | None, gates: FeatureGates) -> TrafficPolicy:
    if text == "Local":
        return TrafficPolicy.LOCAL
    if text == "PreferLocal" and gates.on(Gate.PREFER_LOCAL_TRAFFIC_POLICY):
        return TrafficPolicy.PREFER_LOCAL
    return TrafficPolicy.CLUSTER


def _affinity_seconds(spec: ServiceSpec) -> int:
    config = spec.session_affinity_config
    if config is None or config.client_ip is None or config.client_ip.timeout_seconds is None:
        return DEFAULT_AFFINITY_SECONDS
    return config.client_ip.timeout_seconds


def _of_family(addresses: Iterable[str], family: str) -> tuple[str, ...]:
    return tuple(canonical(address) or "" for address in addresses if family_of(address) == family)


def _source_ranges(ranges: Iterable[str], family: str) -> tuple[str, ...]:
    kept = tuple(cidr for text in ranges if (cidr := _range_of_family(text.strip(), family)))
    # A range of all addresses makes the others redundant; an empty list admits all sources.
    return () if any(cidr.endswith("/0") for cidr in kept) else kept


@lru_cache(maxsize=1024)
def _range_of_family(text: str, family: str) -> str:
    address, _, length = text.partition("/")
    if family_of(address) != family or cidr_errors("", text, strict=False):
        return ""
    # NB: an IPv4-mapped range may be valid and still be longer than IPv4 allows.
    if family == IPV4 and int(length) > 32:
        return ""
    return str(ip_network(f"{canonical(address)}/{int(length)}", strict=False))
