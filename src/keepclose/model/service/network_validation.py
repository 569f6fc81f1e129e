"""Validation of the addresses of a Service: cluster IPs, families, external IPs, source ranges.

Cluster IPs were once a single field, so `clusterIP` and `clusterIPs` exist side by side and must
agree. Addresses that the stored Service already has are not validated, because a Service must stay
editable when the rules become stricter. Nothing here allocates or defaults; it only finds errors.
"""

from __future__ import annotations

from typing import Final

from keepclose.model.addresses import (
    IPV4,
    IPV6,
    cidr_errors,
    endpoint_ip_errors,
    family_of,
    legacy_ip_errors,
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
    """Return whether clusterIPs is exactly ["None"]: validation calls only that headless."""
    return service.spec.cluster_ips == (NO_CLUSTER_IP,)


def validate_cluster_addresses(
    service: Service, *, strict: bool, old: Service | None = None
) -> list[FieldError]:
    """Return the errors of the cluster IPs and families of a Service.

    An ExternalName Service must have none of them, which other rules check; it gets no errors here.
    If an address is invalid, families are not compared with it, because that would mislead.
    """
    spec = service.spec
    if spec.type == "ExternalName":
        return []
    errors = _singular_and_plural_errors(spec)
    errors += _family_errors(spec)
    address_errors = _cluster_ip_errors(
        spec, strict=strict, old_values=frozenset(old.spec.cluster_ips if old else ())
    )
    errors += address_errors
    if len(spec.cluster_ips) > 2:
        errors.append(invalid(_CLUSTER_IPS, spec.cluster_ips, "may only hold up to 2 values"))
    if not address_errors:
        errors += _family_match_errors(spec)
    return errors


def validate_external_ips(
    service: Service, *, strict: bool, old: Service | None = None
) -> list[FieldError]:
    """Return the errors of the external IPs; there may be none."""
    old_values = frozenset(old.spec.external_ips if old else ())
    errors: list[FieldError] = []
    for index, address in enumerate(service.spec.external_ips):
        field = f"spec.externalIPs[{index}]"
        errors += legacy_ip_errors(
            field, address, strict=strict, old_values=old_values
        ) or endpoint_ip_errors(field, address)
    return errors


def validate_source_ranges(
    service: Service, *, strict: bool, old: Service | None = None
) -> list[FieldError]:
    """Return the errors of the source ranges of a load balancer; there may be none.

    If the field is empty, an annotation may hold them, separated by commas. Spaces around a range
    are ignored.
    """
    spec = service.spec
    if not spec.load_balancer_source_ranges:
        return _annotated_range_errors(service, strict=strict, old=old)
    # NB: kube-apiserver writes this field with a capital in its errors.
    field = "spec.LoadBalancerSourceRanges"
    stored = () if old is None else old.spec.load_balancer_source_ranges
    old_values = frozenset(map(str.strip, stored))
    errors: list[FieldError] = []
    if spec.type != "LoadBalancer":
        errors.append(forbidden_field(field, ONLY_FOR_LOAD_BALANCER))
    for index, value in enumerate(spec.load_balancer_source_ranges):
        errors += cidr_errors(
            f"{field}[{index}]", value.strip(), strict=strict, old_values=old_values
        )
    return errors


def validate_load_balancer_status(
    status: LoadBalancerStatus, *, service_type: str, strict: bool, old: LoadBalancerStatus
) -> list[FieldError]:
    """Return the errors of the reported addresses of a load balancer; there may be none."""
    path = "status.loadBalancer.ingress"
    if not status.ingress:
        return []
    if service_type != "LoadBalancer":
        return [forbidden_field(path, "may only be used when `spec.type` is 'LoadBalancer'")]
    old_values = frozenset(ingress.ip for ingress in old.ingress)
    errors: list[FieldError] = []
    for index, ingress in enumerate(status.ingress):
        field = f"{path}[{index}]"
        if ingress.ip:
            errors += legacy_ip_errors(
                f"{field}.ip", ingress.ip, strict=strict, old_values=old_values
            )
        errors += _ip_mode_errors(f"{field}.ipMode", ingress.ip_mode, has_ip=bool(ingress.ip))
        if ingress.hostname:
            errors += _hostname_errors(f"{field}.hostname", ingress.hostname)
    return errors


def _annotated_range_errors(
    service: Service, *, strict: bool, old: Service | None
) -> list[FieldError]:
    field = f"metadata.annotations[{SOURCE_RANGES_ANNOTATION}]"
    text = service.metadata.annotations.get(SOURCE_RANGES_ANNOTATION)
    if text is None:
        return []
    errors: list[FieldError] = []
    if service.spec.type != "LoadBalancer":
        errors.append(forbidden_field(field, ONLY_FOR_LOAD_BALANCER))
    before = None if old is None else old.metadata.annotations.get(SOURCE_RANGES_ANNOTATION)
    if text != before and text.strip():
        for value in text.split(","):
            errors += cidr_errors(field, value.strip(), strict=strict)
    return errors


def _singular_and_plural_errors(spec: ServiceSpec) -> list[FieldError]:
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


def _family_errors(spec: ServiceSpec) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, family in enumerate(spec.ip_families):
        field = f"spec.ipFamilies[{index}]"
        if family not in IP_FAMILIES:
            errors.append(not_supported(field, family, IP_FAMILIES))
        if family in seen:
            errors.append(duplicate(field, family))
        seen.add(family)
    policy = spec.ip_family_policy
    if policy is not None and policy not in IP_FAMILY_POLICIES:
        errors.append(not_supported("spec.ipFamilyPolicy", policy, IP_FAMILY_POLICIES))
    return errors


def _cluster_ip_errors(
    spec: ServiceSpec, *, strict: bool, old_values: frozenset[str]
) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, address in enumerate(spec.cluster_ips):
        if index == 0 and address == NO_CLUSTER_IP:
            if len(spec.cluster_ips) > 1:
                errors.append(
                    invalid(
                        _CLUSTER_IPS, spec.cluster_ips, "'None' must be the first and only value"
                    )
                )
            continue
        # NB: a stored "None" does not make a second "None" valid.
        old_addresses = old_values - {NO_CLUSTER_IP}
        errors += legacy_ip_errors(
            f"{_CLUSTER_IPS}[{index}]", address, strict=strict, old_values=old_addresses
        )
    return errors


def _family_match_errors(spec: ServiceSpec) -> list[FieldError]:
    if spec.cluster_ips == (NO_CLUSTER_IP,):
        return []
    errors: list[FieldError] = []
    families = [family_of(address) for address in spec.cluster_ips]
    if None in families:
        # Only a stored address can be invalid here, and stored ones are not validated.
        return []
    if len(families) > 1 and not {IPV4, IPV6} <= set(families):
        errors.append(
            invalid(
                _CLUSTER_IPS,
                spec.cluster_ips,
                "may specify no more than one IP for each IP family",
            )
        )
    for index, (address, actual, expected) in enumerate(
        zip(spec.cluster_ips, families, spec.ip_families, strict=False)
    ):
        if expected in IP_FAMILIES and actual != expected:
            errors.append(
                invalid(
                    f"{_CLUSTER_IPS}[{index}]",
                    address,
                    f"expected an {expected} value as indicated by `ipFamilies[{index}]`",
                )
            )
    return errors


def _ip_mode_errors(field: str, mode: str | None, *, has_ip: bool) -> list[FieldError]:
    if mode is None:
        return [required(field, "must be specified when `ip` is set")] if has_ip else []
    if not has_ip:
        return [forbidden_field(field, "may not be specified when `ip` is not set")]
    return [] if mode in _IP_MODES else [not_supported(field, mode, _IP_MODES)]


def _hostname_errors(field: str, hostname: str) -> list[FieldError]:
    errors = [invalid(field, hostname, message) for message in dns1123_subdomain(hostname)]
    if family_of(hostname) is not None:
        errors.append(invalid(field, hostname, "must be a DNS name, not an IP address"))
    return errors
