"""The pure steps of writing a Service between its defaults and its validation, and its warnings.

Order of a write: defaults, `normalize_cluster_ips`, on update `patch_allocated_values`, families,
allocation by the store, `prepare_service_for_create` or `prepare_service_for_update`, validation,
warnings. An allocated value is kept for a client that omits it, and released only if it no longer
applies and the client did not change it; a change that does not apply must fail validation, never
be dropped.

A warning never stops a write. Addresses are parsed leniently here, as in older fields; a text that
is no address gets no warning, because validation rejects it.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Any

from msgspec.structs import replace

from keepclose.model.addresses import ParsedIP, cidr_errors, ip_warnings, parse_lenient
from keepclose.model.field_errors import render_value
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.network_validation import NO_CLUSTER_IP
from keepclose.model.service.types import (
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from keepclose.model.well_known import (
    PREFER_CLOSE,
    PREFER_SAME_ZONE,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
)


def normalize_cluster_ips(new: Service, old: Service | None = None) -> Service:
    """Return the Service with clusterIPs derived from clusterIP, as an old client expects.

    Old clients only know clusterIP. The singular is never derived from the plural: a client that
    knows the plural must set both, and validation requires that.
    """
    spec = new.spec
    if old is None:
        if spec.cluster_ip and not spec.cluster_ips:
            return _with_spec(new, cluster_ips=(spec.cluster_ip,))
        return new
    before = old.spec
    if spec.cluster_ip == before.cluster_ip:
        if before.cluster_ips and not spec.cluster_ips:
            return _with_spec(new, cluster_ips=before.cluster_ips)
        return new
    if spec.cluster_ips != before.cluster_ips:
        return new
    cleared = bool(before.cluster_ip) and not spec.cluster_ip
    return _with_spec(new, cluster_ips=() if cleared else (spec.cluster_ip,))


def patch_allocated_values(new: Service, old: Service) -> Service:
    """Return the Service with the allocated values that the update omits.

    Node ports are matched by port name; one that another port requests is not reused.
    """
    spec, before = new.spec, old.spec
    changes: dict[str, Any] = {}
    if _needs_cluster_ip(before) and _needs_cluster_ip(spec):
        if not spec.cluster_ip and before.cluster_ip:
            changes["cluster_ip"] = before.cluster_ip
        if not spec.cluster_ips and before.cluster_ips:
            changes["cluster_ips"] = before.cluster_ips
    if _gets_node_ports(before) and _gets_node_ports(spec):
        ports = _patch_node_ports(spec.ports, before.ports)
        if ports != spec.ports:
            changes["ports"] = ports
    if (
        old.needs_health_check
        and new.needs_health_check
        and spec.health_check_node_port == 0 != before.health_check_node_port
    ):
        changes["health_check_node_port"] = before.health_check_node_port
    return _with_spec(new, **changes)


def drop_type_dependent_fields(new: Service, old: Service | None) -> Service:
    """Return the Service without values that no longer apply and that the client did not change.

    On create the Service is returned as it is, because the client wrote everything.
    """
    if old is None:
        return new
    spec, before = new.spec, old.spec
    changes: dict[str, Any] = {}
    if _needs_cluster_ip(before) and not _needs_cluster_ip(spec):
        changes |= _drop_addresses(spec, before)
    if _may_have_node_ports(before) and not _may_have_node_ports(spec):
        # Ports may be added and removed; only a new node port shows intent.
        old_node_ports = {0, *(port.node_port for port in before.ports)}
        if {port.node_port for port in spec.ports} <= old_node_ports:
            changes["ports"] = tuple(
                replace(port, node_port=0) if port.node_port else port for port in spec.ports
            )
    if (
        old.needs_health_check
        and not new.needs_health_check
        and spec.health_check_node_port == before.health_check_node_port
    ):
        changes["health_check_node_port"] = 0
    if before.type == "LoadBalancer" != spec.type:
        for name in ("allocate_load_balancer_node_ports", "load_balancer_class"):
            if getattr(spec, name) == getattr(before, name):
                changes[name] = None
    if (
        old.is_externally_accessible
        and not new.is_externally_accessible
        and spec.external_traffic_policy == before.external_traffic_policy
    ):
        changes["external_traffic_policy"] = ""
    dropped = _with_spec(new, **changes)
    if spec.type != "LoadBalancer" and new.status.load_balancer.ingress:
        # Tearing down a load balancer takes a while, but the status need not show that.
        status = replace(new.status, load_balancer=LoadBalancerStatus())
        dropped = replace(dropped, status=status)
    return dropped


def drop_disabled_service_fields(
    new: Service, old: Service | None, *, gates: FeatureGates
) -> Service:
    """Return the Service without fields whose gate is off, unless the stored Service uses them."""
    spec = new.spec
    before = ServiceSpec() if old is None else old.spec
    changes: dict[str, Any] = {}
    if (
        spec.traffic_distribution is not None
        and before.traffic_distribution is None
        and not gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION)
    ):
        changes["traffic_distribution"] = None
    if spec.topology_keys and not before.topology_keys and not gates.on(Gate.SERVICE_TOPOLOGY):
        changes["topology_keys"] = ()
    if (
        spec.internal_traffic_policy is not None
        and before.internal_traffic_policy is None
        and not gates.on(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY)
    ):
        changes["internal_traffic_policy"] = None
    return _with_spec(new, **changes)


def prepare_service_for_create(service: Service, *, gates: FeatureGates) -> Service:
    """Return the Service to store on create: without a status, which clients cannot set."""
    return replace(drop_disabled_service_fields(service, None, gates=gates), status=ServiceStatus())


def prepare_service_for_update(new: Service, old: Service, *, gates: FeatureGates) -> Service:
    """Return the Service to store on update: the status stays, unless it no longer applies."""
    kept = drop_disabled_service_fields(replace(new, status=old.status), old, gates=gates)
    return drop_type_dependent_fields(kept, old)


def prepare_status_update(new: Service, old: Service) -> Service:
    """Return the Service to store on an update of the status: the spec stays."""
    return replace(new, spec=old.spec)


def _with_spec(service: Service, **changes: Any) -> Service:
    return replace(service, spec=replace(service.spec, **changes)) if changes else service


def _needs_cluster_ip(spec: ServiceSpec) -> bool:
    # NB: an unknown type counts too, so that the type is the only error.
    return spec.type != "ExternalName"


def _may_have_node_ports(spec: ServiceSpec) -> bool:
    return spec.type in ("NodePort", "LoadBalancer")


def _gets_node_ports(spec: ServiceSpec) -> bool:
    # NB: a client that turns allocation off and omits a node port wants to release it.
    return spec.type == "NodePort" or (
        spec.type == "LoadBalancer" and spec.allocate_load_balancer_node_ports is not False
    )


def _patch_node_ports(
    ports: tuple[ServicePort, ...], before: tuple[ServicePort, ...]
) -> tuple[ServicePort, ...]:
    by_name = {port.name: port.node_port for port in before}
    taken = {port.node_port for port in ports} & {port.node_port for port in before}
    patched: list[ServicePort] = []
    for port in ports:
        node_port = by_name.get(port.name, 0)
        if port.node_port == 0 != node_port and node_port not in taken:
            patched.append(replace(port, node_port=node_port))
        else:
            patched.append(port)
    return tuple(patched)


def _drop_addresses(spec: ServiceSpec, before: ServiceSpec) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if (spec.cluster_ip, spec.cluster_ips) == (before.cluster_ip, before.cluster_ips):
        changes |= {"cluster_ip": "", "cluster_ips": ()}
    if spec.ip_families == before.ip_families:
        changes["ip_families"] = ()
    if spec.ip_family_policy == before.ip_family_policy:
        changes["ip_family_policy"] = None
    return changes


def service_warnings(service: Service) -> list[str]:
    """Return the warnings for the client that wrote a Service."""
    spec = service.spec
    warnings: list[str] = []
    if TOPOLOGY_HINTS_ANNOTATION in service.metadata.annotations:
        warnings.append(
            f"annotation {TOPOLOGY_HINTS_ANNOTATION} is deprecated, "
            f"please use {TOPOLOGY_MODE_ANNOTATION} instead"
        )
    if spec.cluster_ip not in ("", NO_CLUSTER_IP):
        for index, address in enumerate(spec.cluster_ips):
            warnings += ip_warnings(f"spec.clusterIPs[{index}]", address)
    is_headless = spec.type == "ClusterIP" and spec.cluster_ip == NO_CLUSTER_IP
    if is_headless:
        warnings += _headless_warnings(spec)
    for index, address in enumerate(spec.external_ips):
        warnings += ip_warnings(f"spec.externalIPs[{index}]", address)
    if spec.external_ips and not is_headless and spec.type != "ExternalName":
        warnings.append(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
        )
    warnings += ip_warnings("spec.loadBalancerIP", spec.load_balancer_ip)
    for index, cidr in enumerate(spec.load_balancer_source_ranges):
        warnings += _cidr_warnings(f"spec.loadBalancerSourceRanges[{index}]", cidr)
    if spec.type == "ExternalName" and spec.external_ips:
        warnings.append('spec.externalIPs is ignored when spec.type is "ExternalName"')
    if spec.type != "ExternalName" and spec.external_name:
        warnings.append('spec.externalName is ignored when spec.type is not "ExternalName"')
    if spec.traffic_distribution == PREFER_CLOSE:
        warnings.append(
            f'spec.trafficDistribution: "{PREFER_CLOSE}" is deprecated; use "{PREFER_SAME_ZONE}"'
        )
    return warnings


def service_status_warnings(service: Service) -> list[str]:
    """Return the warnings for the client that wrote the status of a Service."""
    warnings: list[str] = []
    for index, ingress in enumerate(service.status.load_balancer.ingress):
        warnings += ip_warnings(f"status.loadBalancer.ingress[{index}]", ingress.ip)
    return warnings


def _headless_warnings(spec: ServiceSpec) -> list[str]:
    ignored = (
        ("loadBalancerIP", bool(spec.load_balancer_ip)),
        ("externalIPs", bool(spec.external_ips)),
        # NB: kube-apiserver writes this one with a capital.
        ("SessionAffinity", spec.session_affinity not in ("", "None")),
    )
    return [f"spec.{name} is ignored for headless services" for name, used in ignored if used]


def _cidr_warnings(field: str, value: str) -> list[str]:
    text, _, length_text = value.partition("/")
    parsed = parse_lenient(text)
    if parsed is None or cidr_errors(field, value, strict=False):
        return []
    significant = length_text.lstrip("0") or "0"
    network = _network(parsed, int(significant))
    shown, better = render_value(value), render_value(str(network))
    warnings: list[str] = []
    if parsed.address != network.network_address:
        single = render_value(f"{parsed.address}/{network.max_prefixlen}")
        warnings.append(
            f"{field}: CIDR value {shown} is ambiguous in this context "
            f"(should be {better} or {single}?)"
        )
    if parsed.leading_zeros or parsed.mapped or significant != length_text:
        warnings.append(f"{field}: non-standard CIDR value {shown} is invalid: use {better}")
        return warnings
    if not warnings and str(network) != value:
        warnings.append(
            f"{field}: IPv6 CIDR value {shown} should be in RFC 5952 canonical format ({better})"
        )
    return warnings


def _network(parsed: ParsedIP, length: int) -> IPv4Network | IPv6Network:
    address = parsed.address
    if address.version == 6:
        return IPv6Network((address, length), strict=False)
    if not parsed.mapped:
        return IPv4Network((address, length), strict=False)
    # The prefix of a mapped address covers 128 bits, of which the first 96 are fixed.
    if length >= 96:
        return IPv4Network((address, length - 96), strict=False)
    return IPv6Network(((0xFFFF << 32) | int(address), length), strict=False)
