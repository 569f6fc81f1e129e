"""Absent fields of a Service are filled in as the API server does it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.field_errors import FieldError
from keepclose.model.meta import ObjectMeta
from keepclose.model.service.defaults import default_families, default_service, hide_on_read
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
from support.builders import service

V4 = ("IPv4",)
V6 = ("IPv6",)
DUAL = ("IPv4", "IPv6")
DUAL_V6_FIRST = ("IPv6", "IPv4")
IP4 = "10.96.0.10"
IP6 = "fd00::10"


def affinity(timeout: int | None) -> SessionAffinityConfig:
    """Return a configuration of session affinity with the timeout."""
    return SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=timeout))


def bare(**spec: Any) -> Service:
    """Return a Service with nothing set but the given fields of the spec."""
    return Service(metadata=ObjectMeta(name="web", namespace="default"), spec=ServiceSpec(**spec))


def test_a_bare_service_becomes_a_cluster_ip_service() -> None:
    """Every field with a plain default is set, and no other one."""
    assert default_service(bare()).spec == ServiceSpec(
        type="ClusterIP", session_affinity="None", internal_traffic_policy="Cluster"
    )


@pytest.mark.parametrize(
    ("spec", "want_type"),
    [
        pytest.param({}, "ClusterIP", id="absent"),
        pytest.param({"type": "NodePort"}, "NodePort", id="set"),
        pytest.param({"type": "Other"}, "Other", id="unknown stays for the rules"),
    ],
)
def test_type_defaults_to_cluster_ip(spec: dict[str, Any], want_type: str) -> None:
    """Only an absent type is replaced."""
    assert default_service(bare(**spec)).spec.type == want_type


@pytest.mark.parametrize(
    ("port", "want_protocol", "want_target"),
    [
        pytest.param(ServicePort(port=80), "TCP", 80, id="no target"),
        pytest.param(ServicePort(port=80, target_port=0), "TCP", 80, id="target zero"),
        pytest.param(ServicePort(port=80, target_port=""), "TCP", 80, id="empty target name"),
        pytest.param(ServicePort(port=80, target_port=8080), "TCP", 8080, id="target number"),
        pytest.param(ServicePort(port=80, target_port="http"), "TCP", "http", id="target name"),
        pytest.param(ServicePort(port=53, protocol="UDP"), "UDP", 53, id="protocol set"),
        pytest.param(
            ServicePort(port=53, protocol="SCTP", target_port=5353), "SCTP", 5353, id="both set"
        ),
        pytest.param(ServicePort(), "TCP", 0, id="no port number at all"),
    ],
)
def test_ports_default_protocol_and_target(
    port: ServicePort, want_protocol: str, want_target: int | str
) -> None:
    """The protocol is TCP and the target is the port itself unless said otherwise."""
    (defaulted,) = default_service(bare(ports=(port,))).spec.ports
    assert (defaulted.protocol, defaulted.target_port) == (want_protocol, want_target)
    assert (defaulted.port, defaulted.name) == (port.port, port.name)


@pytest.mark.parametrize(
    ("spec", "want_affinity", "want_config"),
    [
        pytest.param({}, "None", None, id="absent"),
        pytest.param({"session_affinity_config": affinity(5)}, "None", None, id="only config"),
        pytest.param(
            {"session_affinity": "None", "session_affinity_config": affinity(5)},
            "None",
            None,
            id="config without affinity is cleared",
        ),
        pytest.param({"session_affinity": "ClientIP"}, "ClientIP", affinity(10800), id="no config"),
        pytest.param(
            {"session_affinity": "ClientIP", "session_affinity_config": SessionAffinityConfig()},
            "ClientIP",
            affinity(10800),
            id="no clientIP",
        ),
        pytest.param(
            {"session_affinity": "ClientIP", "session_affinity_config": affinity(None)},
            "ClientIP",
            affinity(10800),
            id="no timeout",
        ),
        pytest.param(
            {"session_affinity": "ClientIP", "session_affinity_config": affinity(60)},
            "ClientIP",
            affinity(60),
            id="timeout set",
        ),
        pytest.param(
            {"session_affinity": "Sticky", "session_affinity_config": affinity(60)},
            "Sticky",
            affinity(60),
            id="unknown stays for the rules",
        ),
    ],
)
def test_session_affinity_defaults(
    spec: dict[str, Any], want_affinity: str, want_config: SessionAffinityConfig | None
) -> None:
    """ClientIP gets a full configuration, None loses it."""
    defaulted = default_service(bare(**spec)).spec
    assert defaulted.session_affinity == want_affinity
    assert defaulted.session_affinity_config == want_config


@pytest.mark.parametrize(
    ("spec", "want_external", "want_internal", "want_allocate"),
    [
        pytest.param({"type": "ClusterIP"}, "", "Cluster", None, id="ClusterIP"),
        pytest.param(
            {"external_ips": ("192.0.2.1",)}, "Cluster", "Cluster", None, id="with external IPs"
        ),
        pytest.param({"type": "NodePort"}, "Cluster", "Cluster", None, id="NodePort"),
        pytest.param({"type": "LoadBalancer"}, "Cluster", "Cluster", True, id="LoadBalancer"),
        pytest.param({"type": "ExternalName"}, "", None, None, id="ExternalName"),
        pytest.param(
            {"type": "ExternalName", "external_ips": ("192.0.2.1",)},
            "",
            None,
            None,
            id="ExternalName with external IPs",
        ),
        pytest.param(
            {
                "type": "LoadBalancer",
                "external_traffic_policy": "Local",
                "internal_traffic_policy": "Local",
                "allocate_load_balancer_node_ports": False,
            },
            "Local",
            "Local",
            False,
            id="all set",
        ),
        pytest.param(
            {"type": "NodePort", "external_traffic_policy": "PreferLocal"},
            "PreferLocal",
            "Cluster",
            None,
            id="PreferLocal stays",
        ),
    ],
)
def test_policies_default_by_type(
    spec: dict[str, Any],
    want_external: str,
    want_internal: str | None,
    want_allocate: bool | None,
) -> None:
    """Policies are set where traffic of that kind can exist."""
    defaulted = default_service(bare(**spec)).spec
    assert defaulted.external_traffic_policy == want_external
    assert defaulted.internal_traffic_policy == want_internal
    assert defaulted.allocate_load_balancer_node_ports == want_allocate


@pytest.mark.parametrize(
    ("service_type", "ingress", "want_mode"),
    [
        pytest.param("LoadBalancer", LoadBalancerIngress(ip="192.0.2.1"), "VIP", id="with ip"),
        pytest.param(
            "LoadBalancer", LoadBalancerIngress(ip="192.0.2.1", ip_mode="Proxy"), "Proxy", id="set"
        ),
        pytest.param("LoadBalancer", LoadBalancerIngress(hostname="lb.test"), None, id="hostname"),
        pytest.param("NodePort", LoadBalancerIngress(ip="192.0.2.1"), None, id="other type"),
    ],
)
def test_ip_mode_defaults_to_vip(
    service_type: str, ingress: LoadBalancerIngress, want_mode: str | None
) -> None:
    """A load balancer's address is taken as a virtual IP unless said otherwise."""
    status = ServiceStatus(load_balancer=LoadBalancerStatus(ingress=(ingress,)))
    defaulted = default_service(replace(bare(type=service_type), status=status))
    assert defaulted.status.load_balancer.ingress == (replace(ingress, ip_mode=want_mode),)


def test_traffic_distribution_is_never_filled_in() -> None:
    """An absent traffic distribution stays absent."""
    assert default_service(bare()).spec.traffic_distribution is None


def test_a_complete_service_comes_back_as_the_same_object() -> None:
    """Nothing is copied when nothing is missing."""
    complete = service()
    balancer = default_service(bare(type="LoadBalancer"))
    assert default_service(complete) is complete
    assert default_service(balancer) is balancer


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "x"]),
    st.sampled_from(["", "None", "ClientIP", "x"]),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 0, "", "a", 7])), max_size=3),
)
def test_defaulting_twice_is_defaulting_once(
    service_type: str, session_affinity: str, ports: list[tuple[int, int | str | None]]
) -> None:
    """A defaulted Service needs no more defaults."""
    once = default_service(
        bare(
            type=service_type,
            session_affinity=session_affinity,
            ports=tuple(ServicePort(port=number, target_port=target) for number, target in ports),
        )
    )
    assert default_service(once) == once


@pytest.mark.parametrize(
    ("service_type", "stored", "want_policy"),
    [
        pytest.param("ExternalName", "Cluster", None, id="ExternalName hides it"),
        pytest.param("ExternalName", "Local", None, id="ExternalName hides Local too"),
        pytest.param("ExternalName", None, None, id="ExternalName without it"),
        pytest.param("ClusterIP", "Local", "Local", id="ClusterIP shows it"),
        pytest.param("NodePort", "Cluster", "Cluster", id="NodePort shows it"),
    ],
)
def test_readers_of_external_name_see_no_internal_policy(
    service_type: str, stored: str | None, want_policy: str | None
) -> None:
    """The stored policy of an ExternalName Service is hidden."""
    shown = hide_on_read(service(type=service_type, internal_traffic_policy=stored))
    assert shown == service(type=service_type, internal_traffic_policy=want_policy)


def headful(*addresses: str, **spec: Any) -> Service:
    """Return a Service with cluster IPs and no families said."""
    fields: dict[str, Any] = {"ip_families": (), "ip_family_policy": None, **spec}
    return service(cluster_ip=addresses[0] if addresses else "", cluster_ips=addresses, **fields)


@pytest.mark.parametrize(
    ("new", "cluster", "want_families", "want_policy"),
    [
        pytest.param(headful(), V4, V4, "SingleStack", id="nothing said"),
        pytest.param(headful(), V6, V6, "SingleStack", id="nothing said, IPv6 cluster"),
        pytest.param(headful(), DUAL, V4, "SingleStack", id="nothing said, dual cluster"),
        pytest.param(
            headful(), DUAL_V6_FIRST, V6, "SingleStack", id="nothing said, dual cluster, IPv6 first"
        ),
        pytest.param(headful(IP6), DUAL, V6, "SingleStack", id="family of the address"),
        pytest.param(
            headful(IP6, ip_families=V6), DUAL, V6, "SingleStack", id="address and family"
        ),
        pytest.param(headful(ip_families=V6), DUAL, V6, "SingleStack", id="family said"),
        pytest.param(
            headful(ip_family_policy="PreferDualStack"),
            V4,
            V4,
            "PreferDualStack",
            id="preference on a single-stack cluster",
        ),
        pytest.param(
            headful(ip_family_policy="PreferDualStack"),
            DUAL,
            DUAL,
            "PreferDualStack",
            id="preference on a dual-stack cluster",
        ),
        pytest.param(
            headful(IP6, ip_family_policy="RequireDualStack"),
            DUAL,
            DUAL_V6_FIRST,
            "RequireDualStack",
            id="the missing family is appended",
        ),
        pytest.param(
            headful(IP6, IP4, ip_family_policy="PreferDualStack"),
            DUAL,
            DUAL_V6_FIRST,
            "PreferDualStack",
            id="two addresses",
        ),
        pytest.param(
            headful(ip_families=DUAL_V6_FIRST, ip_family_policy="RequireDualStack"),
            DUAL,
            DUAL_V6_FIRST,
            "RequireDualStack",
            id="two families",
        ),
        pytest.param(headful("None"), DUAL, V4, "SingleStack", id="headless with selector"),
        pytest.param(
            headful("None", selector=None), V4, DUAL, "RequireDualStack", id="headless, no selector"
        ),
        pytest.param(
            headful("None", selector={}),
            V6,
            DUAL_V6_FIRST,
            "RequireDualStack",
            id="headless, empty selector",
        ),
        pytest.param(
            headful("None", selector=None, ip_family_policy="PreferDualStack"),
            V4,
            DUAL,
            "PreferDualStack",
            id="headless, no selector, preference",
        ),
        pytest.param(
            headful("None", selector=None, ip_family_policy="SingleStack"),
            DUAL,
            V4,
            "SingleStack",
            id="headless, no selector, single",
        ),
        pytest.param(
            headful("None", selector=None, ip_families=V6, ip_family_policy="SingleStack"),
            V4,
            V6,
            "SingleStack",
            id="headless, no selector, family unknown to the cluster",
        ),
        pytest.param(
            headful("None", selector=None, ip_families=DUAL_V6_FIRST),
            V4,
            DUAL_V6_FIRST,
            "RequireDualStack",
            id="headless, no selector, two families without policy",
        ),
        pytest.param(headful(), (), (), "SingleStack", id="cluster without families"),
    ],
)
def test_families_default_on_create(
    new: Service, cluster: tuple[str, ...], want_families: tuple[str, ...], want_policy: str
) -> None:
    """Families follow the addresses, then the cluster; the other one comes if asked for."""
    want_spec = replace(new.spec, ip_families=want_families, ip_family_policy=want_policy)
    assert default_families(new, cluster_families=cluster) == replace(new, spec=want_spec)


@pytest.mark.parametrize(
    ("new", "cluster", "want_causes"),
    [
        pytest.param(
            headful(ip_family_policy="RequireDualStack"),
            V4,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": '
                    "this cluster is not configured for dual-stack services"
                )
            ],
            id="dual stack required on a single-stack cluster",
        ),
        pytest.param(
            headful(ip_families=V6),
            V4,
            ['spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster'],
            id="family that the cluster lacks",
        ),
        pytest.param(
            headful(ip_families=DUAL_V6_FIRST, ip_family_policy="RequireDualStack"),
            V4,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": '
                    "this cluster is not configured for dual-stack services"
                ),
                'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster',
            ],
            id="both at once",
        ),
        pytest.param(
            headful(IP6),
            V4,
            [
                (
                    'spec.clusterIPs[0]: Invalid value: ["fd00::10"]: '
                    "IPv6 is not configured on this cluster"
                )
            ],
            id="address of a family that the cluster lacks",
        ),
        pytest.param(
            headful(IP4, IP6, ip_family_policy="SingleStack"),
            DUAL,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "SingleStack": must be '
                    "'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are "
                    "specified"
                )
            ],
            id="two addresses with SingleStack",
        ),
        pytest.param(
            headful(ip_families=DUAL),
            DUAL,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "SingleStack": must be '
                    "'RequireDualStack' or 'PreferDualStack' when multiple IP families are "
                    "specified"
                )
            ],
            id="two families without policy",
        ),
        pytest.param(
            headful("nonsense"),
            DUAL,
            [
                (
                    'spec.clusterIPs[0]: Invalid value: "nonsense": '
                    "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
                )
            ],
            id="no address at all",
        ),
        pytest.param(
            headful(ip_families=("IPv5",)),
            DUAL,
            ['spec.ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"'],
            id="no family at all",
        ),
    ],
)
def test_impossible_families_are_told(
    new: Service, cluster: tuple[str, ...], want_causes: list[str]
) -> None:
    """What the cluster cannot give is answered with causes."""
    answer = default_families(new, cluster_families=cluster)
    assert isinstance(answer, list)
    assert [str(cause) for cause in answer] == want_causes


DUAL_OLD = headful(IP4, IP6, ip_families=DUAL, ip_family_policy="PreferDualStack")
SINGLE_OLD = headful(IP4, ip_families=V4, ip_family_policy="SingleStack")
HEADLESS_OLD = headful("None", selector=None, ip_families=DUAL, ip_family_policy="RequireDualStack")


@pytest.mark.parametrize(
    ("new", "old", "cluster", "want"),
    [
        pytest.param(
            headful(IP4, IP6, ip_families=DUAL),
            DUAL_OLD,
            DUAL,
            DUAL_OLD,
            id="the policy of the stored Service stays",
        ),
        pytest.param(
            headful(IP4), SINGLE_OLD, DUAL, SINGLE_OLD, id="a single-stack Service stays single"
        ),
        pytest.param(
            headful(IP4, ip_families=V4, ip_family_policy="PreferDualStack"),
            SINGLE_OLD,
            DUAL,
            headful(IP4, ip_families=DUAL, ip_family_policy="PreferDualStack"),
            id="an upgrade appends the family",
        ),
        pytest.param(
            headful(IP4, ip_families=V4, ip_family_policy="PreferDualStack"),
            headful(IP4, ip_families=V4, ip_family_policy="PreferDualStack"),
            DUAL,
            headful(IP4, ip_families=V4, ip_family_policy="PreferDualStack"),
            id="an untouched preference is not upgraded with the cluster",
        ),
        pytest.param(DUAL_OLD, DUAL_OLD, V4, DUAL_OLD, id="nor is it downgraded with the cluster"),
        pytest.param(
            headful(IP4, IP6, ip_families=DUAL, ip_family_policy="SingleStack"),
            DUAL_OLD,
            DUAL,
            SINGLE_OLD,
            id="SingleStack alone releases address and family",
        ),
        pytest.param(
            headful(IP4, ip_families=DUAL, ip_family_policy="SingleStack"),
            DUAL_OLD,
            DUAL,
            SINGLE_OLD,
            id="SingleStack with one address releases the family",
        ),
        pytest.param(
            headful(IP4, IP6, ip_families=V4, ip_family_policy="SingleStack"),
            DUAL_OLD,
            DUAL,
            SINGLE_OLD,
            id="SingleStack with one family releases the address",
        ),
        pytest.param(
            headful("None", ip_families=DUAL),
            HEADLESS_OLD,
            DUAL,
            headful("None", ip_families=DUAL, ip_family_policy="RequireDualStack"),
            id="a selector for a headless Service on a dual-stack cluster",
        ),
        pytest.param(
            headful(IP4),
            service(type="ExternalName", ip_family_policy=None),
            DUAL,
            SINGLE_OLD,
            id="from ExternalName all is new",
        ),
    ],
)
def test_families_default_on_update(
    new: Service, old: Service, cluster: tuple[str, ...], want: Service
) -> None:
    """The stored Service decides what the update does not say."""
    assert default_families(new, cluster_families=cluster, old=old) == want


@pytest.mark.parametrize(
    ("new", "old", "cluster", "want_causes"),
    [
        pytest.param(
            headful("None", ip_families=DUAL),
            HEADLESS_OLD,
            V4,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": '
                    "this cluster is not configured for dual-stack services"
                ),
                'spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster',
            ],
            id="a selector for a headless Service on a single-stack cluster",
        ),
        pytest.param(
            headful(IP4, "fd00::11", ip_families=DUAL, ip_family_policy="SingleStack"),
            DUAL_OLD,
            DUAL,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "SingleStack": must be '
                    "'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are "
                    "specified"
                )
            ],
            id="SingleStack with changed addresses",
        ),
        pytest.param(
            headful(IP4, ip_families=V4, ip_family_policy="PreferDualStack"),
            DUAL_OLD,
            DUAL,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be '
                    "'SingleStack' to release the secondary cluster IP"
                ),
                (
                    'spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be '
                    "'SingleStack' to release the secondary IP family"
                ),
            ],
            id="a second address released in passing",
        ),
        pytest.param(
            headful(IP4, IP6, ip_families=V4),
            DUAL_OLD,
            DUAL,
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be '
                    "'SingleStack' to release the secondary IP family"
                )
            ],
            id="a second family released under the stored policy",
        ),
    ],
)
def test_contradictions_of_an_update_are_told(
    new: Service, old: Service, cluster: tuple[str, ...], want_causes: list[str]
) -> None:
    """An update that contradicts itself or the cluster is not mended."""
    answer = default_families(new, cluster_families=cluster, old=old)
    assert isinstance(answer, list)
    assert [str(cause) for cause in answer] == want_causes


@pytest.mark.parametrize(
    ("strict", "want_causes"),
    [
        pytest.param(False, None, id="as always"),
        pytest.param(
            True,
            ['spec.clusterIPs[0]: Invalid value: "10.0.0.010": must not have leading 0s'],
            id="strictly",
        ),
    ],
)
def test_addresses_are_read_strictly_when_asked(
    *, strict: bool, want_causes: list[str] | None
) -> None:
    """An address that only old clients would write is refused before families are settled."""
    new = headful("10.0.0.010")
    answer = default_families(new, cluster_families=DUAL, strict=strict)
    got = [str(cause) for cause in answer] if isinstance(answer, list) else None
    assert got == want_causes


def test_a_type_that_does_not_exist_gets_families_too() -> None:
    """Only its own rule refuses an odd type; two families stay two."""
    odd = headful(IP4, IP6, type="Odd", ip_families=DUAL, ip_family_policy="PreferDualStack")
    answer = default_families(odd, cluster_families=V4, old=DUAL_OLD)
    assert isinstance(answer, list)
    assert [str(cause) for cause in answer] == [
        'spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster'
    ]


def test_external_name_has_no_families() -> None:
    """An ExternalName Service comes back as it is."""
    named = service(type="ExternalName", ip_families=(), ip_family_policy=None)
    assert default_families(named, cluster_families=DUAL) is named


def test_families_need_only_be_defaulted_once() -> None:
    """A Service with families keeps them when it is written again."""
    answer = default_families(headful(ip_family_policy="PreferDualStack"), cluster_families=DUAL)
    assert not isinstance(answer, list)
    again: Service | list[FieldError] = default_families(answer, cluster_families=DUAL)
    assert again == answer
