"""Warnings about a Service: what is accepted, but does nothing or will not be accepted for long.

A warning never stops a write. Addresses are read leniently here, as fields of old are; a text that
is no address at all gets no warning, because the rules refuse it anyway.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network

from keepclose.model.addresses import ParsedIP, cidr_causes, ip_warnings, parse_lenient
from keepclose.model.field_errors import render_value
from keepclose.model.service.network_validation import NO_CLUSTER_IP
from keepclose.model.service.types import Service, ServiceSpec
from keepclose.model.well_known import (
    PREFER_CLOSE,
    PREFER_SAME_ZONE,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
)


def warnings_for(service: Service) -> list[str]:
    """Return what the writer of a Service should hear; the empty list when all is well."""
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


def status_warnings_for(service: Service) -> list[str]:
    """Return what the writer of a Service's status should hear."""
    warnings: list[str] = []
    for index, ingress in enumerate(service.status.load_balancer.ingress):
        warnings += ip_warnings(f"status.loadBalancer.ingress[{index}]", ingress.ip)
    return warnings


def _headless_warnings(spec: ServiceSpec) -> list[str]:
    ignored = (
        ("loadBalancerIP", bool(spec.load_balancer_ip)),
        ("externalIPs", bool(spec.external_ips)),
        # NB: this one is spelt with a capital by the API, and clients know it so.
        ("SessionAffinity", spec.session_affinity not in ("", "None")),
    )
    return [f"spec.{name} is ignored for headless services" for name, used in ignored if used]


def _cidr_warnings(field: str, value: str) -> list[str]:
    text, _, length_text = value.partition("/")
    parsed = parse_lenient(text)
    if parsed is None or cidr_causes(field, value, strict=False):
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
    # A mapped address counts its prefix over 128 bits, of which the first 96 are fixed.
    if length >= 96:
        return IPv4Network((address, length - 96), strict=False)
    return IPv6Network(((0xFFFF << 32) | int(address), length), strict=False)
