"""Addresses and families of a Service must agree with each other."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.addresses import MUST_BE_CIDR
from keepclose.model.service.network_validation import (
    validate_cluster_addresses,
    validate_external_ips,
    validate_load_balancer_status,
    validate_source_ranges,
)
from keepclose.model.service.types import LoadBalancerIngress, LoadBalancerStatus, Service
from keepclose.model.well_known import SOURCE_RANGES_ANNOTATION
from support.builders import service

A = "10.96.0.10"
A6 = "fd00::10"
NO_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
NO_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
IPS = "spec.clusterIPs"
FAMILIES = 'supported values: "IPv4", "IPv6"'


def with_ips(one: str, *many: str, **spec: Any) -> Service:
    """Return a Service with the addresses and, unless said, no families."""
    return service(
        cluster_ip=one, cluster_ips=many, **{"ip_families": (), "ip_family_policy": None, **spec}
    )


@pytest.mark.parametrize(
    ("judged", "want_causes"),
    [
        pytest.param(with_ips(""), [], id="nothing yet"),
        pytest.param(with_ips(A, A), [], id="one address"),
        pytest.param(with_ips("None", "None"), [], id="headless"),
        pytest.param(
            with_ips(A, A, A6, ip_families=("IPv4", "IPv6")), [], id="one address of each family"
        ),
        pytest.param(with_ips(A6, A6, A), [], id="IPv6 first"),
        pytest.param(
            with_ips("None", "None", ip_families=("IPv6", "IPv4")), [], id="headless with families"
        ),
        pytest.param(
            service(type="ExternalName", cluster_ip="x", cluster_ips=("y",)),
            [],
            id="ExternalName is judged elsewhere",
        ),
        pytest.param(with_ips(A), [f"{IPS}: Required value"], id="no plural"),
        pytest.param(
            with_ips("10.96.0.11", A),
            [f'{IPS}: Invalid value: ["{A}"]: first value must match `clusterIP`'],
            id="singular and plural differ",
        ),
        pytest.param(
            with_ips("", A),
            [f'{IPS}: Invalid value: ["{A}"]: must be empty when `clusterIP` is not specified'],
            id="no singular",
        ),
        pytest.param(
            with_ips("None", "None", A),
            [f'{IPS}: Invalid value: ["None","{A}"]: \'None\' must be the first and only value'],
            id="None is not alone",
        ),
        pytest.param(
            with_ips(A, A, "None"),
            [f'{IPS}[1]: Invalid value: "None": {NO_IP}'],
            id="None is not first",
        ),
        pytest.param(
            with_ips("x", "x"), [f'{IPS}[0]: Invalid value: "x": {NO_IP}'], id="no address"
        ),
        pytest.param(
            with_ips(A, A, ""), [f'{IPS}[1]: Invalid value: "": {NO_IP}'], id="empty address"
        ),
        pytest.param(
            with_ips(A, A, A6, "10.96.0.11"),
            [f'{IPS}: Invalid value: ["{A}","{A6}","10.96.0.11"]: may only hold up to 2 values'],
            id="three addresses",
        ),
        pytest.param(
            with_ips(A, A, "10.96.0.11"),
            [
                (
                    f'{IPS}: Invalid value: ["{A}","10.96.0.11"]: '
                    "may specify no more than one IP for each IP family"
                ),
            ],
            id="two of one family",
        ),
        pytest.param(
            with_ips(A6, A6, ip_families=("IPv4",)),
            [
                (
                    f'{IPS}[0]: Invalid value: "{A6}": '
                    "expected an IPv4 value as indicated by `ipFamilies[0]`"
                ),
            ],
            id="IPv6 where IPv4 was said",
        ),
        pytest.param(
            with_ips(A6, A6, A, ip_families=("IPv4", "IPv6")),
            [
                (
                    f'{IPS}[0]: Invalid value: "{A6}": '
                    "expected an IPv4 value as indicated by `ipFamilies[0]`"
                ),
                (
                    f'{IPS}[1]: Invalid value: "{A}": '
                    "expected an IPv6 value as indicated by `ipFamilies[1]`"
                ),
            ],
            id="families the other way round",
        ),
        pytest.param(
            with_ips("x", "x", A6, ip_families=("IPv4", "IPv4")),
            [
                'spec.ipFamilies[1]: Duplicate value: "IPv4"',
                f'{IPS}[0]: Invalid value: "x": {NO_IP}',
            ],
            id="a bad address silences the match of families",
        ),
        pytest.param(
            with_ips("", ip_families=("IPv4", "IPv5")),
            [f'spec.ipFamilies[1]: Unsupported value: "IPv5": {FAMILIES}'],
            id="unknown family",
        ),
        pytest.param(
            with_ips(A, A, ip_families=("IPv5",)),
            [f'spec.ipFamilies[0]: Unsupported value: "IPv5": {FAMILIES}'],
            id="an unknown family matches nothing",
        ),
        pytest.param(
            with_ips("", ip_families=("", "")),
            [
                f'spec.ipFamilies[0]: Unsupported value: "": {FAMILIES}',
                f'spec.ipFamilies[1]: Unsupported value: "": {FAMILIES}',
                'spec.ipFamilies[1]: Duplicate value: ""',
            ],
            id="empty families",
        ),
        pytest.param(with_ips("", ip_family_policy="RequireDualStack"), [], id="known policy"),
        pytest.param(
            with_ips("", ip_family_policy="Dual"),
            [
                (
                    'spec.ipFamilyPolicy: Unsupported value: "Dual": supported values: '
                    '"PreferDualStack", "RequireDualStack", "SingleStack"'
                ),
            ],
            id="unknown policy",
        ),
    ],
)
def test_cluster_addresses(judged: Service, want_causes: list[str]) -> None:
    """Singular, plural, families and their policy are judged together."""
    causes = validate_cluster_addresses(judged, strict=True)
    assert [str(cause) for cause in causes] == want_causes


LAX = "010.96.0.10"
MAPPED = "::ffff:10.96.0.10"


@pytest.mark.parametrize(
    ("address", "strict", "stored", "want_details"),
    [
        pytest.param(LAX, True, False, ["must not have leading 0s"], id="zeros, strict"),
        pytest.param(LAX, False, False, [], id="zeros, lenient"),
        pytest.param(LAX, True, True, [], id="zeros, stored"),
        pytest.param(
            MAPPED, True, False, ["must not be an IPv4-mapped IPv6 address"], id="mapped, strict"
        ),
        pytest.param(MAPPED, False, False, [], id="mapped, lenient"),
        pytest.param(MAPPED, True, True, [], id="mapped, stored"),
    ],
)
def test_lax_addresses_are_refused_when_new_and_strict(
    address: str, strict: bool, stored: bool, want_details: list[str]
) -> None:
    """The strict form is asked for behind its gate, and never of stored addresses."""
    judged = with_ips(address, address, external_ips=(address,))
    old = judged if stored else service()
    cluster = validate_cluster_addresses(judged, strict=strict, old=old)
    external = validate_external_ips(judged, strict=strict, old=old)
    assert [str(cause) for cause in cluster] == [
        f'{IPS}[0]: Invalid value: "{address}": {detail}' for detail in want_details
    ]
    assert [str(cause) for cause in external] == [
        f'spec.externalIPs[0]: Invalid value: "{address}": {detail}' for detail in want_details
    ]


def test_stored_addresses_that_cannot_be_read_are_left_alone() -> None:
    """Nothing is said of the families of stored addresses that have none."""
    odd = with_ips("x", "x", "y", ip_families=("IPv4", "IPv6"))
    assert validate_cluster_addresses(odd, strict=True, old=odd) == []
    assert len(validate_cluster_addresses(odd, strict=True, old=service())) == 2


def test_a_stored_none_makes_no_second_none_legal() -> None:
    """A headless Service cannot add None behind an address."""
    causes = validate_cluster_addresses(
        with_ips(A, A, "None"), strict=True, old=with_ips("None", "None")
    )
    assert [str(cause) for cause in causes] == [f'{IPS}[1]: Invalid value: "None": {NO_IP}']


@pytest.mark.parametrize(
    ("address", "want_details"),
    [
        pytest.param("192.0.2.1", [], id="fine"),
        pytest.param("2001:db8::1", [], id="fine IPv6"),
        pytest.param("x", [NO_IP], id="no address"),
        pytest.param("0.0.0.0", ["may not be unspecified (0.0.0.0)"], id="unspecified"),  # noqa: S104
        pytest.param(
            "127.0.0.1",
            ["may not be in the loopback range (127.0.0.0/8, ::1/128)"],
            id="loopback",
        ),
        pytest.param(
            "169.254.1.1",
            ["may not be in the link-local range (169.254.0.0/16, fe80::/10)"],
            id="link-local",
        ),
        pytest.param(
            "224.0.0.1",
            ["may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"],
            id="link-local multicast",
        ),
    ],
)
def test_external_ips(address: str, want_details: list[str]) -> None:
    """External IPs must be addresses that mean the same thing everywhere."""
    causes = validate_external_ips(service(external_ips=("192.0.2.9", address)), strict=True)
    assert [str(cause) for cause in causes] == [
        f'spec.externalIPs[1]: Invalid value: "{address}": {detail}' for detail in want_details
    ]


RANGES = "spec.LoadBalancerSourceRanges"


@pytest.mark.parametrize(
    ("service_type", "ranges", "strict", "want_causes"),
    [
        pytest.param("ClusterIP", (), True, [], id="none"),
        pytest.param("LoadBalancer", ("10.0.0.0/8", "2001:db8::/32"), True, [], id="fine"),
        pytest.param(
            "NodePort",
            ("10.0.0.0/8",),
            True,
            [f"{RANGES}: Forbidden: may only be used when `type` is 'LoadBalancer'"],
            id="no load balancer",
        ),
        pytest.param(
            "LoadBalancer",
            ("10.0.0.0/8", "10.0.0.0"),
            True,
            [f'{RANGES}[1]: Invalid value: "10.0.0.0": {NO_CIDR}'],
            id="an address",
        ),
        pytest.param(
            "LoadBalancer",
            ("10.0.0.1/8",),
            True,
            [
                (
                    f'{RANGES}[0]: Invalid value: "10.0.0.1/8": '
                    "must not have bits set beyond the prefix length"
                ),
            ],
            id="stray bits, strict",
        ),
        pytest.param("LoadBalancer", ("10.0.0.1/8",), False, [], id="stray bits, lenient"),
    ],
)
def test_source_ranges(
    service_type: str, ranges: tuple[str, ...], strict: bool, want_causes: list[str]
) -> None:
    """Only load balancers have source ranges, and they must be ranges."""
    judged = service(type=service_type, load_balancer_source_ranges=ranges)
    causes = validate_source_ranges(judged, strict=strict)
    assert [str(cause) for cause in causes] == want_causes


def test_stored_source_ranges_are_left_alone() -> None:
    """A range that is stored already is accepted, another one is judged."""
    old = service(type="LoadBalancer", load_balancer_source_ranges=("10.0.0.1/8",))
    new = service(type="LoadBalancer", load_balancer_source_ranges=("10.0.0.1/8", "10.0.0.2/8"))
    causes = validate_source_ranges(new, strict=True, old=old)
    assert [cause.field for cause in causes] == [f"{RANGES}[1]"]


def test_spaces_around_a_range_do_not_count() -> None:
    """A range is judged and recognised without the spaces around it."""
    old = service(type="LoadBalancer", load_balancer_source_ranges=(" 10.0.0.1/8",))
    new = service(type="LoadBalancer", load_balancer_source_ranges=("10.0.0.1/8 ", " 10.0.0.0/8 "))
    assert validate_source_ranges(new, strict=True, old=old) == []


ANNOTATED = f"metadata.annotations[{SOURCE_RANGES_ANNOTATION}]"


@pytest.mark.parametrize(
    ("text", "service_type", "stored", "want_causes"),
    [
        pytest.param("10.0.0.0/8, 192.0.2.0/24", "LoadBalancer", None, [], id="two ranges"),
        pytest.param(" ", "LoadBalancer", None, [], id="nothing but spaces"),
        pytest.param(
            "x,10.0.0.0/8",
            "LoadBalancer",
            None,
            [f'{ANNOTATED}: Invalid value: "x": {MUST_BE_CIDR}'],
            id="no range",
        ),
        pytest.param("x", "LoadBalancer", "x", [], id="stored already"),
        pytest.param(
            "10.0.0.0/8",
            "ClusterIP",
            "10.0.0.0/8",
            [f"{ANNOTATED}: Forbidden: may only be used when `type` is 'LoadBalancer'"],
            id="another type",
        ),
    ],
)
def test_source_ranges_in_an_annotation(
    text: str, service_type: str, stored: str | None, want_causes: list[str]
) -> None:
    """An annotation stands in for the empty field, under the same rules."""
    key = SOURCE_RANGES_ANNOTATION
    new = service(type=service_type, annotations={key: text})
    old = None if stored is None else service(type=service_type, annotations={key: stored})
    assert [str(one) for one in validate_source_ranges(new, strict=True, old=old)] == want_causes


def test_the_field_of_source_ranges_hides_the_annotation() -> None:
    """Nobody reads the annotation when the field is set."""
    new = service(
        type="LoadBalancer",
        load_balancer_source_ranges=("10.0.0.0/8",),
        annotations={SOURCE_RANGES_ANNOTATION: "x"},
    )
    assert validate_source_ranges(new, strict=True) == []


INGRESS = "status.loadBalancer.ingress"


@pytest.mark.parametrize(
    ("ingress", "service_type", "want_causes"),
    [
        pytest.param(None, "ClusterIP", [], id="none"),
        pytest.param(
            LoadBalancerIngress(ip="192.0.2.1", ip_mode="VIP"), "LoadBalancer", [], id="VIP"
        ),
        pytest.param(
            LoadBalancerIngress(ip="192.0.2.1", ip_mode="Proxy"), "LoadBalancer", [], id="Proxy"
        ),
        pytest.param(LoadBalancerIngress(hostname="lb.test"), "LoadBalancer", [], id="hostname"),
        pytest.param(
            LoadBalancerIngress(ip="192.0.2.1", ip_mode="VIP"),
            "NodePort",
            [f"{INGRESS}: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"],
            id="no load balancer",
        ),
        pytest.param(
            LoadBalancerIngress(ip="x", ip_mode="VIP"),
            "LoadBalancer",
            [f'{INGRESS}[0].ip: Invalid value: "x": {NO_IP}'],
            id="no address",
        ),
        pytest.param(
            LoadBalancerIngress(ip="192.0.2.01", ip_mode="VIP"),
            "LoadBalancer",
            [f'{INGRESS}[0].ip: Invalid value: "192.0.2.01": must not have leading 0s'],
            id="zeros",
        ),
        pytest.param(
            LoadBalancerIngress(ip="192.0.2.1"),
            "LoadBalancer",
            [f"{INGRESS}[0].ipMode: Required value: must be specified when `ip` is set"],
            id="no mode",
        ),
        pytest.param(
            LoadBalancerIngress(hostname="lb.test", ip_mode="VIP"),
            "LoadBalancer",
            [f"{INGRESS}[0].ipMode: Forbidden: may not be specified when `ip` is not set"],
            id="mode without address",
        ),
        pytest.param(
            LoadBalancerIngress(ip="192.0.2.1", ip_mode="vip"),
            "LoadBalancer",
            [
                (
                    f'{INGRESS}[0].ipMode: Unsupported value: "vip": '
                    'supported values: "Proxy", "VIP"'
                ),
            ],
            id="unknown mode",
        ),
        pytest.param(
            LoadBalancerIngress(hostname="192.0.2.1"),
            "LoadBalancer",
            [
                (
                    f'{INGRESS}[0].hostname: Invalid value: "192.0.2.1": '
                    "must be a DNS name, not an IP address"
                ),
            ],
            id="address as hostname",
        ),
    ],
)
def test_load_balancer_status(
    ingress: LoadBalancerIngress | None, service_type: str, want_causes: list[str]
) -> None:
    """A load balancer reports addresses with a mode, or names."""
    status = LoadBalancerStatus(ingress=() if ingress is None else (ingress,))
    causes = validate_load_balancer_status(
        status, service_type=service_type, strict=True, old=LoadBalancerStatus()
    )
    assert [str(cause) for cause in causes] == want_causes


def test_a_bad_hostname_of_a_load_balancer_is_told() -> None:
    """A hostname is a DNS subdomain."""
    status = LoadBalancerStatus(ingress=(LoadBalancerIngress(hostname="LB_1"),))
    (cause,) = validate_load_balancer_status(
        status, service_type="LoadBalancer", strict=True, old=LoadBalancerStatus()
    )
    assert cause.field == f"{INGRESS}[0].hostname"
    assert cause.detail.startswith("a lowercase RFC 1123 subdomain must consist of")
