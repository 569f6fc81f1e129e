"""Defaults of a Service: what the API server sets before it validates a write.

Plain defaults depend on the Service alone. IP families also depend on the families of the cluster
and on the stored Service, and can be impossible; the result is then a list of field errors. Traffic
distribution is never defaulted: absent means that the data plane decides. A Service that needs no
default is returned as it is.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from keepclose.model.addresses import IPV4, IPV6, family_of
from keepclose.model.field_errors import FieldError, invalid
from keepclose.model.service.network_validation import (
    NO_CLUSTER_IP,
    PREFER_DUAL_STACK,
    REQUIRE_DUAL_STACK,
    SINGLE_STACK,
    validate_cluster_addresses,
)
from keepclose.model.service.policy_validation import CLUSTER_IP_TYPES, CLUSTER_POLICY
from keepclose.model.service.types import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
)

DEFAULT_AFFINITY_TIMEOUT: Final = 10800

_DEFAULT_AFFINITY_CONFIG = SessionAffinityConfig(
    client_ip=ClientIPConfig(timeout_seconds=DEFAULT_AFFINITY_TIMEOUT)
)


def default_service(service: Service) -> Service:
    """Return the Service with plain defaults for absent fields."""
    spec = service.spec
    if not spec.type:
        spec = replace(spec, type="ClusterIP")
    spec = _default_affinity(spec)
    ports = tuple(map(_default_port, spec.ports))
    if ports != spec.ports:
        spec = replace(spec, ports=ports)
    defaulted = service if spec is service.spec else replace(service, spec=spec)
    if not spec.external_traffic_policy and defaulted.is_externally_accessible:
        spec = replace(spec, external_traffic_policy=CLUSTER_POLICY)
    if spec.internal_traffic_policy is None and spec.type in CLUSTER_IP_TYPES:
        spec = replace(spec, internal_traffic_policy=CLUSTER_POLICY)
    if spec.type != "LoadBalancer":
        return service if spec is service.spec else replace(service, spec=spec)
    if spec.allocate_load_balancer_node_ports is None:
        spec = replace(spec, allocate_load_balancer_node_ports=True)
    status = _default_ip_modes(service.status)
    if spec is service.spec and status is service.status:
        return service
    return replace(service, spec=spec, status=status)


def hide_on_read(service: Service) -> Service:
    """Return the Service as read: ExternalName has no internalTrafficPolicy."""
    spec = service.spec
    if spec.type != "ExternalName" or spec.internal_traffic_policy is None:
        return service
    return replace(service, spec=replace(spec, internal_traffic_policy=None))


def default_families(
    service: Service,
    *,
    cluster_families: tuple[str, ...],
    strict: bool = False,
    old: Service | None = None,
) -> Service | list[FieldError]:
    """Return the Service with its IP families and their policy, or the errors that prevent it.

    `cluster_families` are the families of the cluster, the primary one first. An ExternalName
    Service has no families and is returned as it is. So is a PreferDualStack Service with unchanged
    addresses: an upgrade of the cluster to dual stack does not upgrade it. Errors come in stages: a
    later stage runs only if the earlier ones found none. `strict` parses addresses strictly.
    """
    if service.spec.type == "ExternalName" or _keeps_preference(service, old):
        return service
    if errors := validate_cluster_addresses(service, strict=strict, old=old):
        return errors
    # The endpoints of such a Service are manual, so the families of the cluster do not apply.
    has_manual_endpoints = service.spec.cluster_ip == NO_CLUSTER_IP and not service.spec.selector
    policy = _choose_policy(service.spec, old, has_manual_endpoints=has_manual_endpoints)
    spec = service.spec if policy != SINGLE_STACK else _release_secondary(service.spec, old)
    errors = _reduction_errors(spec, old, policy=policy)
    families, unknown = _infer_families(spec, cluster_families)
    errors += unknown
    if not (errors or has_manual_endpoints):
        errors = _cluster_errors(policy, families, cluster_families)
    if errors:
        return errors
    families = families or cluster_families[:1]
    if policy != SINGLE_STACK and (has_manual_endpoints or {IPV4, IPV6} <= set(cluster_families)):
        families = _append_secondary(families)
    return replace(service, spec=replace(spec, ip_families=families, ip_family_policy=policy))


def _default_affinity(spec: ServiceSpec) -> ServiceSpec:
    if spec.session_affinity == "ClientIP":
        config = spec.session_affinity_config
        client_ip = None if config is None else config.client_ip
        if client_ip is None or client_ip.timeout_seconds is None:
            return replace(spec, session_affinity_config=_DEFAULT_AFFINITY_CONFIG)
    elif spec.session_affinity in ("", "None") and (
        not spec.session_affinity or spec.session_affinity_config is not None
    ):
        return replace(spec, session_affinity="None", session_affinity_config=None)
    return spec


def _default_port(port: ServicePort) -> ServicePort:
    # NB: 0 and "" both mean absent; a plain truth test covers them together with None.
    if port.protocol and port.target_port:
        return port
    return replace(port, protocol=port.protocol or "TCP", target_port=port.target_port or port.port)


def _default_ip_modes(status: ServiceStatus) -> ServiceStatus:
    ingress = tuple(map(_default_ip_mode, status.load_balancer.ingress))
    if ingress == status.load_balancer.ingress:
        return status
    return replace(status, load_balancer=LoadBalancerStatus(ingress=ingress))


def _default_ip_mode(ingress: LoadBalancerIngress) -> LoadBalancerIngress:
    if not ingress.ip or ingress.ip_mode is not None:
        return ingress
    return replace(ingress, ip_mode="VIP")


def _keeps_preference(service: Service, old: Service | None) -> bool:
    spec = service.spec
    return (
        old is not None
        and spec.type == old.spec.type
        and spec.type in CLUSTER_IP_TYPES
        and spec.ip_family_policy == old.spec.ip_family_policy == PREFER_DUAL_STACK
        and spec.cluster_ips == old.spec.cluster_ips
        and spec.ip_families == old.spec.ip_families != ()
    )


def _choose_policy(spec: ServiceSpec, old: Service | None, *, has_manual_endpoints: bool) -> str:
    # The stored policy stays: a Service never gains or loses an address without a request.
    before = None if old is None else old.spec.ip_family_policy
    default = REQUIRE_DUAL_STACK if has_manual_endpoints else SINGLE_STACK
    return spec.ip_family_policy or before or default


def _release_secondary(spec: ServiceSpec, old: Service | None) -> ServiceSpec:
    """Return a single-stack spec without the stale secondary address and family.

    Lists that the client changed stay, so that a contradiction is reported and not fixed.
    """
    if old is None:
        return spec
    if len(spec.cluster_ips) > 1 and spec.cluster_ips == old.spec.cluster_ips:
        spec = replace(spec, cluster_ips=spec.cluster_ips[:1])
    if len(spec.ip_families) > 1 and spec.ip_families == old.spec.ip_families:
        spec = replace(spec, ip_families=spec.ip_families[:1])
    return spec


def _reduction_errors(spec: ServiceSpec, old: Service | None, *, policy: str) -> list[FieldError]:
    """Return the errors if the number of addresses or families contradicts the policy."""
    field = "spec.ipFamilyPolicy"
    if policy == SINGLE_STACK:
        return [
            invalid(
                field,
                policy,
                "must be 'RequireDualStack' or 'PreferDualStack' "
                f"when multiple {noun} are specified",
            )
            for noun, values in (
                ("cluster IPs", spec.cluster_ips),
                ("IP families", spec.ip_families),
            )
            if len(values) == 2
        ]
    if old is None:
        return []
    return [
        invalid(field, policy, f"must be 'SingleStack' to release the secondary {noun}")
        for noun, values, before in (
            ("cluster IP", spec.cluster_ips, old.spec.cluster_ips),
            ("IP family", spec.ip_families, old.spec.ip_families),
        )
        if 0 < len(values) < len(before)
    ]


def _infer_families(
    spec: ServiceSpec, cluster_families: tuple[str, ...]
) -> tuple[tuple[str, ...], list[FieldError]]:
    families = spec.ip_families
    errors: list[FieldError] = []
    for index, address in enumerate(spec.cluster_ips):
        family = family_of(address)
        if family is None or index < len(spec.ip_families):
            continue
        if family in cluster_families:
            families = (*families, family)
        else:
            # The client wrote the address, so the error names it and not the index of its family.
            detail = f"{family} is not configured on this cluster"
            errors.append(invalid(f"spec.clusterIPs[{index}]", spec.cluster_ips, detail))
    return families, errors


def _cluster_errors(
    policy: str, families: tuple[str, ...], cluster_families: tuple[str, ...]
) -> list[FieldError]:
    errors: list[FieldError] = []
    if policy == REQUIRE_DUAL_STACK and not {IPV4, IPV6} <= set(cluster_families):
        detail = "this cluster is not configured for dual-stack services"
        errors.append(invalid("spec.ipFamilyPolicy", policy, detail))
    errors += [
        invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster")
        for index, family in enumerate(families)
        if family not in cluster_families
    ]
    return errors


def _append_secondary(families: tuple[str, ...]) -> tuple[str, ...]:
    if len(families) != 1:
        return families
    return (*families, IPV6 if families[0] == IPV4 else IPV4)
