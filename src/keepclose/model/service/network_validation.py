"""Rules for the addresses of a Service: cluster IPs, families, external IPs and source ranges.

Cluster IPs were once a single field, so `clusterIP` and `clusterIPs` stand side by side and must
agree. Addresses that the stored Service already has are left alone, because a Service must stay
editable when the rules grow stricter. Nothing here allocates or fills in; it only finds causes.
"""

from __future__ import annotations

from typing import Final

from keepclose.model.addresses import (
    IPV4,
    IPV6,
    cidr_causes,
    endpoint_ip_causes,
    family_of,
    legacy_ip_causes,
)
from keepclose.model.field_errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
)
from keepclose.model.metadata_validation import dns1123_subdomain
from keepclose.model.service.types import LoadBalancerStatus, Service, ServiceSpec
from keepclose.model.well_known import SOURCE_RANGES_ANNOTATION

NO_CLUSTER_IP: Final = "None"
IP_FAMILIES: Final = (IPV4, IPV6)
SINGLE_STACK: Final = "SingleStack"
PREFER_DUAL_STACK: Final = "PreferDualStack"
REQUIRE_DUAL_STACK: Final = "RequireDualStack"
IP_FAMILY_POLICIES: Final = (PREFER_DUAL_STACK, REQUIRE_DUAL_STACK, SINGLE_STACK)
ONLY_FOR_LOAD_BALANCER: Final = "may only be used when `type` is 'LoadBalancer'"

_CLUSTER_IPS = "spec.clusterIPs"
_IP_MODES = ("Proxy", "VIP")


def has_no_address(service: Service) -> bool:
    """Return whether the list of cluster IPs says that there are none: the rules go by it alone."""
    return service.spec.cluster_ips == (NO_CLUSTER_IP,)


def validate_cluster_addresses(
    service: Service, *, strict: bool, old: Service | None = None
) -> list[FieldError]:
    """Return what is wrong with the cluster IPs and families of a Service.

    An ExternalName Service may have none of them at all, which other rules demand; it gets no
    causes here. Once an address is bad, nothing is said about families: it would only mislead.
    """
    spec = service.spec
    if spec.type == "ExternalName":
        return []
    causes = _singular_and_plural_causes(spec)
    causes += _family_causes(spec)
    address_causes = _cluster_ip_causes(
        spec, strict=strict, old_values=frozenset(old.spec.cluster_ips if old else ())
    )
    causes += address_causes
    if len(spec.cluster_ips) > 2:
        causes.append(invalid(_CLUSTER_IPS, spec.cluster_ips, "may only hold up to 2 values"))
    if not address_causes:
        causes += _family_match_causes(spec)
    return causes


def validate_external_ips(
    service: Service, *, strict: bool, old: Service | None = None
) -> list[FieldError]:
    """Return what is wrong with the external IPs; none is fine."""
    old_values = frozenset(old.spec.external_ips if old else ())
    causes: list[FieldError] = []
    for index, address in enumerate(service.spec.external_ips):
        field = f"spec.externalIPs[{index}]"
        causes += legacy_ip_causes(
            field, address, strict=strict, old_values=old_values
        ) or endpoint_ip_causes(field, address)
    return causes


def validate_source_ranges(
    service: Service, *, strict: bool, old: Service | None = None
) -> list[FieldError]:
    """Return what is wrong with the ranges that a load balancer lets in; none is fine.

    An annotation may hold them, separated by commas, when the field is empty. Spaces around a range
    are part of neither.
    """
    spec = service.spec
    if not spec.load_balancer_source_ranges:
        return _annotated_range_causes(service, strict=strict, old=old)
    # NB: the field is spelt with a capital in causes, and clients know it so.
    field = "spec.LoadBalancerSourceRanges"
    stored = () if old is None else old.spec.load_balancer_source_ranges
    old_values = frozenset(map(str.strip, stored))
    causes: list[FieldError] = []
    if spec.type != "LoadBalancer":
        causes.append(forbidden_field(field, ONLY_FOR_LOAD_BALANCER))
    for index, value in enumerate(spec.load_balancer_source_ranges):
        causes += cidr_causes(
            f"{field}[{index}]", value.strip(), strict=strict, old_values=old_values
        )
    return causes


def validate_load_balancer_status(
    status: LoadBalancerStatus, *, service_type: str, strict: bool, old: LoadBalancerStatus
) -> list[FieldError]:
    """Return what is wrong with the addresses that a load balancer reported; none is fine."""
    path = "status.loadBalancer.ingress"
    if not status.ingress:
        return []
    if service_type != "LoadBalancer":
        return [forbidden_field(path, "may only be used when `spec.type` is 'LoadBalancer'")]
    old_values = frozenset(ingress.ip for ingress in old.ingress)
    causes: list[FieldError] = []
    for index, ingress in enumerate(status.ingress):
        field = f"{path}[{index}]"
        if ingress.ip:
            causes += legacy_ip_causes(
                f"{field}.ip", ingress.ip, strict=strict, old_values=old_values
            )
        causes += _ip_mode_causes(f"{field}.ipMode", ingress.ip_mode, has_ip=bool(ingress.ip))
        if ingress.hostname:
            causes += _hostname_causes(f"{field}.hostname", ingress.hostname)
    return causes


def _annotated_range_causes(
    service: Service, *, strict: bool, old: Service | None
) -> list[FieldError]:
    field = f"metadata.annotations[{SOURCE_RANGES_ANNOTATION}]"
    text = service.metadata.annotations.get(SOURCE_RANGES_ANNOTATION)
    if text is None:
        return []
    causes: list[FieldError] = []
    if service.spec.type != "LoadBalancer":
        causes.append(forbidden_field(field, ONLY_FOR_LOAD_BALANCER))
    before = None if old is None else old.metadata.annotations.get(SOURCE_RANGES_ANNOTATION)
    if text != before and text.strip():
        for value in text.split(","):
            causes += cidr_causes(field, value.strip(), strict=strict)
    return causes


def _singular_and_plural_causes(spec: ServiceSpec) -> list[FieldError]:
    if not spec.cluster_ip:
        if not spec.cluster_ips:
            return []
        return [
            invalid(
                _CLUSTER_IPS, spec.cluster_ips, "must be empty when `clusterIP` is not specified"
            )
        ]
    if not spec.cluster_ips:
        return [required(_CLUSTER_IPS)]
    if spec.cluster_ips[0] != spec.cluster_ip:
        return [invalid(_CLUSTER_IPS, spec.cluster_ips, "first value must match `clusterIP`")]
    return []


def _family_causes(spec: ServiceSpec) -> list[FieldError]:
    causes: list[FieldError] = []
    seen: set[str] = set()
    for index, family in enumerate(spec.ip_families):
        field = f"spec.ipFamilies[{index}]"
        if family not in IP_FAMILIES:
            causes.append(not_supported(field, family, IP_FAMILIES))
        if family in seen:
            causes.append(duplicate(field, family))
        seen.add(family)
    policy = spec.ip_family_policy
    if policy is not None and policy not in IP_FAMILY_POLICIES:
        causes.append(not_supported("spec.ipFamilyPolicy", policy, IP_FAMILY_POLICIES))
    return causes


def _cluster_ip_causes(
    spec: ServiceSpec, *, strict: bool, old_values: frozenset[str]
) -> list[FieldError]:
    causes: list[FieldError] = []
    for index, address in enumerate(spec.cluster_ips):
        if index == 0 and address == NO_CLUSTER_IP:
            if len(spec.cluster_ips) > 1:
                causes.append(
                    invalid(
                        _CLUSTER_IPS, spec.cluster_ips, "'None' must be the first and only value"
                    )
                )
            continue
        # NB: a headless Service that lists its "None" twice is no reason to accept the second one.
        known = old_values - {NO_CLUSTER_IP}
        causes += legacy_ip_causes(
            f"{_CLUSTER_IPS}[{index}]", address, strict=strict, old_values=known
        )
    return causes


def _family_match_causes(spec: ServiceSpec) -> list[FieldError]:
    if spec.cluster_ips == (NO_CLUSTER_IP,):
        return []
    causes: list[FieldError] = []
    families = [family_of(address) for address in spec.cluster_ips]
    if None in families:
        # Only a stored address can come so far unreadable, and stored ones are left alone.
        return []
    if len(families) > 1 and not {IPV4, IPV6} <= set(families):
        causes.append(
            invalid(
                _CLUSTER_IPS,
                spec.cluster_ips,
                "may specify no more than one IP for each IP family",
            )
        )
    for index, (address, actual, wanted) in enumerate(
        zip(spec.cluster_ips, families, spec.ip_families, strict=False)
    ):
        if wanted in IP_FAMILIES and actual != wanted:
            causes.append(
                invalid(
                    f"{_CLUSTER_IPS}[{index}]",
                    address,
                    f"expected an {wanted} value as indicated by `ipFamilies[{index}]`",
                )
            )
    return causes


def _ip_mode_causes(field: str, mode: str | None, *, has_ip: bool) -> list[FieldError]:
    if mode is None:
        return [required(field, "must be specified when `ip` is set")] if has_ip else []
    if not has_ip:
        return [forbidden_field(field, "may not be specified when `ip` is not set")]
    return [] if mode in _IP_MODES else [not_supported(field, mode, _IP_MODES)]


def _hostname_causes(field: str, hostname: str) -> list[FieldError]:
    causes = [invalid(field, hostname, message) for message in dns1123_subdomain(hostname)]
    if family_of(hostname) is not None:
        causes.append(invalid(field, hostname, "must be a DNS name, not an IP address"))
    return causes
