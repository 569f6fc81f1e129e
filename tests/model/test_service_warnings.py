"""Writers hear of what is accepted but useless or soon to be refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.service.strategy import service_warnings
from keepclose.model.well_known import TOPOLOGY_HINTS_ANNOTATION, TOPOLOGY_MODE_ANNOTATION
from support.builders import service

HEADLESS: dict[str, Any] = {"cluster_ip": "None", "cluster_ips": ("None",)}
DEPRECATED_HINTS = (
    "annotation service.kubernetes.io/topology-aware-hints is deprecated, "
    "please use service.kubernetes.io/topology-mode instead"
)
DEPRECATED_EXTERNAL_IPS = (
    "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
)


@pytest.mark.parametrize(
    ("fields", "want_warnings"),
    [
        pytest.param({}, [], id="nothing special"),
        pytest.param(
            {"annotations": {TOPOLOGY_HINTS_ANNOTATION: "Auto"}}, [DEPRECATED_HINTS], id="hints"
        ),
        pytest.param({"annotations": {TOPOLOGY_MODE_ANNOTATION: "Auto"}}, [], id="topology mode"),
        pytest.param(
            {"traffic_distribution": "PreferClose"},
            ['spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'],
            id="PreferClose",
        ),
        pytest.param({"traffic_distribution": "PreferSameZone"}, [], id="PreferSameZone"),
        pytest.param(HEADLESS, [], id="headless"),
        pytest.param(
            {**HEADLESS, "load_balancer_ip": "192.0.2.1"},
            ["spec.loadBalancerIP is ignored for headless services"],
            id="headless with loadBalancerIP",
        ),
        pytest.param(
            {**HEADLESS, "external_ips": ("192.0.2.1",)},
            ["spec.externalIPs is ignored for headless services"],
            id="headless with externalIPs",
        ),
        pytest.param(
            {**HEADLESS, "session_affinity": "ClientIP"},
            ["spec.SessionAffinity is ignored for headless services"],
            id="headless with affinity",
        ),
        pytest.param({**HEADLESS, "session_affinity": ""}, [], id="headless, affinity absent"),
        pytest.param(
            {"external_ips": ("192.0.2.1",)}, [DEPRECATED_EXTERNAL_IPS], id="external IPs"
        ),
        pytest.param(
            {
                "type": "ExternalName",
                "cluster_ip": "",
                "cluster_ips": (),
                "external_ips": ("192.0.2.1",),
            },
            ['spec.externalIPs is ignored when spec.type is "ExternalName"'],
            id="external IPs of ExternalName",
        ),
        pytest.param(
            {"external_name": "example.com"},
            ['spec.externalName is ignored when spec.type is not "ExternalName"'],
            id="a name of a Service that has addresses",
        ),
        pytest.param(
            {
                "type": "ExternalName",
                "external_name": "example.com",
                "cluster_ip": "",
                "cluster_ips": (),
            },
            [],
            id="a name of an ExternalName Service",
        ),
        pytest.param({"session_affinity": "ClientIP"}, [], id="headful with affinity"),
        pytest.param({"load_balancer_ip": "192.0.2.1"}, [], id="headful with loadBalancerIP"),
        pytest.param(
            {
                **HEADLESS,
                "annotations": {TOPOLOGY_HINTS_ANNOTATION: "Auto"},
                "load_balancer_ip": "192.0.2.1",
                "external_ips": ("192.0.2.1",),
                "session_affinity": "ClientIP",
                "traffic_distribution": "PreferClose",
            },
            [
                DEPRECATED_HINTS,
                "spec.loadBalancerIP is ignored for headless services",
                "spec.externalIPs is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
                'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"',
            ],
            id="all at once",
        ),
    ],
)
def test_warnings(fields: dict[str, Any], want_warnings: list[str]) -> None:
    """Each deprecated or ignored setting gives one warning, in a fixed order."""
    assert service_warnings(service(**fields)) == want_warnings


def nonstandard(field: str, kind: str, value: str, better: str) -> str:
    """Return the warning about a text that will not be accepted for ever."""
    return f'{field}: non-standard {kind} "{value}" is invalid: use "{better}"'


@pytest.mark.parametrize(
    ("spec", "want_warnings"),
    [
        pytest.param({"cluster_ips": ("10.0.0.1", "fd00::1")}, [], id="canonical"),
        pytest.param(
            {"cluster_ips": ("10.0.0.01",)},
            [nonstandard("spec.clusterIPs[0]", "IP address", "10.0.0.01", "10.0.0.1")],
            id="zeros in a cluster IP",
        ),
        pytest.param(
            {"cluster_ips": ("10.0.0.1", "fd00:0:0::1")},
            [
                (
                    'spec.clusterIPs[1]: IPv6 address "fd00:0:0::1" '
                    'should be in RFC 5952 canonical format ("fd00::1")'
                ),
            ],
            id="long second cluster IP",
        ),
        pytest.param({"cluster_ips": ("nonsense",)}, [], id="no address at all"),
        pytest.param(
            {"load_balancer_ip": "::ffff:192.0.2.1"},
            [nonstandard("spec.loadBalancerIP", "IP address", "::ffff:192.0.2.1", "192.0.2.1")],
            id="mapped loadBalancerIP",
        ),
        pytest.param(
            {"external_ips": ("192.0.2.1", "2001:DB8::1")},
            [
                (
                    'spec.externalIPs[1]: IPv6 address "2001:DB8::1" '
                    'should be in RFC 5952 canonical format ("2001:db8::1")'
                ),
                DEPRECATED_EXTERNAL_IPS,
            ],
            id="upper case external IP",
        ),
    ],
)
def test_warnings_about_addresses(spec: dict[str, Any], want_warnings: list[str]) -> None:
    """Addresses that are spelt badly are named with a better spelling."""
    assert service_warnings(service(**spec)) == want_warnings


RANGE = "spec.loadBalancerSourceRanges[0]"


def ambiguous(value: str, network: str, single: str) -> str:
    """Return the warning about a range whose address has bits beyond the prefix."""
    choice = f'(should be "{network}" or "{single}"?)'
    return f'{RANGE}: CIDR value "{value}" is ambiguous in this context {choice}'


@pytest.mark.parametrize(
    ("value", "want_warnings"),
    [
        pytest.param("10.0.0.0/8", [], id="canonical"),
        pytest.param("2001:db8::/32", [], id="canonical IPv6"),
        pytest.param("nonsense", [], id="no range at all"),
        pytest.param("10.0.0.0", [], id="no prefix length"),
        pytest.param("10.0.0.0/33", [], id="prefix length out of range"),
        pytest.param(
            "10.1.2.3/8", [ambiguous("10.1.2.3/8", "10.0.0.0/8", "10.1.2.3/32")], id="stray bits"
        ),
        pytest.param(
            "2001:db8::1/32",
            [ambiguous("2001:db8::1/32", "2001:db8::/32", "2001:db8::1/128")],
            id="stray bits IPv6",
        ),
        pytest.param(
            "2001:DB8:0::/32",
            [
                (
                    f'{RANGE}: IPv6 CIDR value "2001:DB8:0::/32" '
                    'should be in RFC 5952 canonical format ("2001:db8::/32")'
                ),
            ],
            id="long IPv6",
        ),
        pytest.param(
            "010.0.0.0/8",
            [nonstandard(RANGE, "CIDR value", "010.0.0.0/8", "10.0.0.0/8")],
            id="zeros in the address",
        ),
        pytest.param(
            "10.0.0.0/08",
            [nonstandard(RANGE, "CIDR value", "10.0.0.0/08", "10.0.0.0/8")],
            id="zeros in the prefix length",
        ),
        pytest.param("0.0.0.0/0", [], id="everything"),
        pytest.param(
            "0.0.0.0/" + "0" * 5000,
            [nonstandard(RANGE, "CIDR value", "0.0.0.0/" + "0" * 5000, "0.0.0.0/0")],
            id="endless zeros in the prefix length",
        ),
        pytest.param(
            "::ffff:10.0.0.0/104",
            [nonstandard(RANGE, "CIDR value", "::ffff:10.0.0.0/104", "10.0.0.0/8")],
            id="mapped",
        ),
        pytest.param(
            "::ffff:10.0.0.0/64",
            [
                ambiguous("::ffff:10.0.0.0/64", "::/64", "10.0.0.0/128"),
                nonstandard(RANGE, "CIDR value", "::ffff:10.0.0.0/64", "::/64"),
            ],
            id="mapped, prefix shorter than the mapping",
        ),
        pytest.param(
            "010.1.2.3/8",
            [
                ambiguous("010.1.2.3/8", "10.0.0.0/8", "10.1.2.3/32"),
                nonstandard(RANGE, "CIDR value", "010.1.2.3/8", "10.0.0.0/8"),
            ],
            id="zeros and stray bits",
        ),
    ],
)
def test_warnings_about_source_ranges(value: str, want_warnings: list[str]) -> None:
    """Ranges that are ambiguous or spelt badly are named with a better spelling."""
    judged = service(type="LoadBalancer", load_balancer_source_ranges=(value,))
    assert service_warnings(judged) == want_warnings


@settings(deadline=None, max_examples=200)
@given(
    st.ip_addresses().map(str) | st.text(max_size=8),
    st.integers(-1, 130).map(str) | st.text("0123456789", max_size=6),
)
def test_warnings_never_fail(address: str, length: str) -> None:
    """No text makes a warning fail, and each one names its field."""
    judged = service(
        type="LoadBalancer",
        cluster_ips=(address,),
        load_balancer_source_ranges=(f"{address}/{length}",),
    )
    assert all(
        warning.startswith(("spec.clusterIPs[0]: ", f"{RANGE}: "))
        for warning in service_warnings(judged)
    )
