"""The Service as the API defines it, without defaults, and common questions about it."""

from __future__ import annotations

import msgspec

from keepclose.model.meta import ApiStruct, Condition, NamespacedName, ObjectMeta


class ServicePort(ApiStruct, frozen=True):
    """One port of a Service."""

    name: str = ""
    protocol: str = ""
    app_protocol: str | None = None
    port: int = 0
    target_port: int | str | None = None
    node_port: int = 0


class ClientIPConfig(ApiStruct, frozen=True):
    """Session affinity by client address."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(ApiStruct, frozen=True):
    """Settings of session affinity."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(ApiStruct, frozen=True):
    """The spec of a Service; "" and None mean that a field is absent."""

    type: str = ""
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    cluster_ips: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str | None = None
    external_ips: tuple[str, ...] = msgspec.field(default=(), name="externalIPs")
    external_name: str = ""
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    external_traffic_policy: str = ""
    internal_traffic_policy: str | None = None
    health_check_node_port: int = 0
    publish_not_ready_addresses: bool = False
    allocate_load_balancer_node_ports: bool | None = None
    load_balancer_class: str | None = None
    load_balancer_ip: str = msgspec.field(default="", name="loadBalancerIP")
    load_balancer_source_ranges: tuple[str, ...] = ()
    traffic_distribution: str | None = None
    topology_keys: tuple[str, ...] = ()


class LoadBalancerIngress(ApiStruct, frozen=True):
    """One address of a load balancer."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None

    @property
    def is_routed_by_nodes(self) -> bool:
        """Whether nodes lead the address to endpoints; with the mode Proxy packets leave for it."""
        return bool(self.ip) and self.ip_mode in (None, "VIP")


class LoadBalancerStatus(ApiStruct, frozen=True):
    """The addresses of a load balancer."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(ApiStruct, frozen=True):
    """The status of a Service: its load balancer and its conditions."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()
    conditions: tuple[Condition, ...] = ()


class Service(ApiStruct, frozen=True, omit_defaults=False):
    """A Service."""

    api_version: str = "v1"
    kind: str = "Service"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()

    @property
    def key(self) -> NamespacedName:
        """The Service's identity."""
        return self.metadata.key

    @property
    def is_headless(self) -> bool:
        """Whether clusterIP is None."""
        return self.spec.cluster_ip == "None" or self.spec.cluster_ips == ("None",)

    @property
    def is_externally_accessible(self) -> bool:
        """Whether traffic from outside the cluster can reach the Service."""
        spec = self.spec
        return spec.type in ("LoadBalancer", "NodePort") or (
            spec.type in ("", "ClusterIP") and bool(spec.external_ips)
        )

    @property
    def needs_health_check(self) -> bool:
        """Whether the Service has a health-check node port (only Local needs one)."""
        return self.spec.type == "LoadBalancer" and self.spec.external_traffic_policy == "Local"
