"""Updates of a Service may change all but a few things."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition
from keepclose.model.service.types import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
    SessionAffinityConfig,
)
from keepclose.model.service.validation import (
    validate_service_status_update,
    validate_service_update,
)
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from support.builders import service

GATES = FeatureGates()
A = "10.96.0.10"
B = "10.96.0.11"
A6 = "fd00::10"
B6 = "fd00::11"
V4 = ("IPv4",)
V6 = ("IPv6",)
DUAL = ("IPv4", "IPv6")
ONCE = "may not change once set"
IPS = "spec.clusterIPs"
FAMILIES = "spec.ipFamilies"


def with_ips(*addresses: str, families: tuple[str, ...], policy: str = "SingleStack") -> Service:
    """Return a Service with the addresses, families and policy."""
    return service(
        cluster_ip=addresses[0] if addresses else "",
        cluster_ips=addresses,
        ip_families=families,
        ip_family_policy=policy,
    )


def named(**spec: Any) -> Service:
    """Return an ExternalName Service."""
    return service(
        **{
            "type": "ExternalName",
            "external_name": "example.com",
            "cluster_ip": "",
            "cluster_ips": (),
            "ip_families": (),
            "ip_family_policy": None,
            **spec,
        }
    )


def balancer(**spec: Any) -> Service:
    """Return a LoadBalancer Service that needs a health check."""
    return service(
        **{
            "type": "LoadBalancer",
            "external_traffic_policy": "Local",
            "allocate_load_balancer_node_ports": True,
            "health_check_node_port": 30100,
            **spec,
        }
    )


def texts(new: Service, old: Service, gates: FeatureGates = GATES) -> list[str]:
    """Return the rendered causes of an update."""
    return [str(cause) for cause in validate_service_update(new, old, gates=gates)]


@pytest.mark.parametrize(
    ("new", "old", "want_causes"),
    [
        pytest.param(service(), service(), [], id="no change"),
        pytest.param(
            with_ips(B, families=V4),
            with_ips(A, families=V4),
            [f'{IPS}[0]: Invalid value: ["{B}"]: {ONCE}'],
            id="address changed",
        ),
        pytest.param(
            with_ips(A, B6, families=DUAL, policy="PreferDualStack"),
            with_ips(A, A6, families=DUAL, policy="PreferDualStack"),
            [f'{IPS}[1]: Invalid value: ["{A}","{B6}"]: {ONCE}'],
            id="second address changed",
        ),
        pytest.param(
            with_ips(A6, families=V6),
            with_ips(A, families=V4),
            [
                f'{IPS}[0]: Invalid value: ["{A6}"]: {ONCE}',
                f'{FAMILIES}[0]: Invalid value: ["IPv6"]: {ONCE}',
            ],
            id="address and family changed",
        ),
        pytest.param(
            with_ips(families=V4),
            with_ips(A, families=V4),
            [f"{IPS}[0]: Invalid value: null: primary clusterIP can not be unset"],
            id="address released",
        ),
        pytest.param(
            with_ips(A, families=()),
            with_ips(A, families=V4),
            [],
            id="family released",
        ),
        pytest.param(
            with_ips(families=()),
            with_ips(families=V4),
            [f"{FAMILIES}[0]: Invalid value: null: primary ipFamily can not be unset"],
            id="family released without an address",
        ),
        pytest.param(
            with_ips(A, A6, families=("IPv6", "IPv4")),
            with_ips(A, A6, families=DUAL),
            [
                *[f'{FAMILIES}[0]: Invalid value: ["IPv6","IPv4"]: {ONCE}'] * 2,
                (
                    f'{IPS}[0]: Invalid value: "{A}": '
                    "expected an IPv6 value as indicated by `ipFamilies[0]`"
                ),
                (
                    f'{IPS}[1]: Invalid value: "{A6}": '
                    "expected an IPv4 value as indicated by `ipFamilies[1]`"
                ),
            ],
            id="families swapped",
        ),
        pytest.param(
            with_ips(A, families=V4),
            with_ips(families=()),
            [],
            id="address given at last",
        ),
        pytest.param(
            with_ips(A, A6, families=DUAL, policy="RequireDualStack"),
            with_ips(A, families=V4),
            [],
            id="second address added",
        ),
        pytest.param(
            with_ips(B, A6, families=DUAL, policy="RequireDualStack"),
            with_ips(A, families=V4),
            [f'{IPS}[0]: Invalid value: ["{B}","{A6}"]: {ONCE}'],
            id="second added and first changed",
        ),
        pytest.param(
            with_ips(A6, A, families=("IPv6", "IPv4"), policy="RequireDualStack"),
            with_ips(A, families=V4),
            [
                f'{IPS}[0]: Invalid value: ["{A6}","{A}"]: {ONCE}',
                f'{FAMILIES}[0]: Invalid value: ["{A6}","{A}"]: {ONCE}',
            ],
            id="second put first",
        ),
        pytest.param(
            with_ips(A, families=V4),
            with_ips(A, A6, families=DUAL, policy="PreferDualStack"),
            [],
            id="second released with SingleStack",
        ),
        pytest.param(
            with_ips(A, families=V4, policy="PreferDualStack"),
            with_ips(A, A6, families=DUAL, policy="PreferDualStack"),
            [
                (
                    'spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be set to '
                    "'SingleStack' when releasing the secondary clusterIP"
                ),
                (
                    'spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be set to '
                    "'SingleStack' when releasing the secondary ipFamily"
                ),
            ],
            id="second released without SingleStack",
        ),
        pytest.param(
            with_ips(A6, families=V6),
            with_ips(A, A6, families=DUAL, policy="PreferDualStack"),
            [
                f'{IPS}[0]: Invalid value: ["{A6}"]: {ONCE}',
                f'{FAMILIES}[0]: Invalid value: ["{A6}"]: {ONCE}',
            ],
            id="first released",
        ),
        pytest.param(
            with_ips("None", families=("IPv6", "IPv4"), policy="PreferDualStack"),
            with_ips("None", families=V4),
            [],
            id="families of headless are free",
        ),
        pytest.param(
            with_ips("None", families=V6),
            with_ips("None", families=DUAL, policy="RequireDualStack"),
            [],
            id="families of headless may go",
        ),
        pytest.param(
            with_ips(A, families=V4),
            with_ips("None", families=V6),
            [f'{IPS}[0]: Invalid value: ["{A}"]: {ONCE}'],
            id="headless gets an address",
        ),
        pytest.param(
            with_ips("None", families=V6),
            with_ips(A, families=V4),
            [f'{IPS}[0]: Invalid value: ["None"]: {ONCE}'],
            id="address becomes headless",
        ),
        pytest.param(named(), service(), [], id="to ExternalName"),
        pytest.param(with_ips(A6, families=V6), named(), [], id="from ExternalName"),
        pytest.param(
            with_ips(B, families=V6),
            named(cluster_ip=A, cluster_ips=(A,)),
            [
                (
                    f'{IPS}[0]: Invalid value: "{B}": '
                    "expected an IPv6 value as indicated by `ipFamilies[0]`"
                ),
            ],
            id="from ExternalName the new Service is still judged",
        ),
    ],
)
def test_addresses_and_families(new: Service, old: Service, want_causes: list[str]) -> None:
    """The primary address and family stay; the second one goes only when that is said."""
    assert texts(new, old) == want_causes


@pytest.mark.parametrize(
    ("new", "old", "want_causes"),
    [
        pytest.param(balancer(), balancer(), [], id="health port kept"),
        pytest.param(
            balancer(health_check_node_port=30101),
            balancer(),
            ["spec.healthCheckNodePort: Forbidden: field is immutable"],
            id="health port changed",
        ),
        pytest.param(
            balancer(),
            balancer(external_traffic_policy="Cluster", health_check_node_port=0),
            [],
            id="health port newly needed",
        ),
        pytest.param(
            balancer(external_traffic_policy="Cluster", health_check_node_port=0),
            balancer(),
            [],
            id="health port no longer needed",
        ),
        pytest.param(
            balancer(load_balancer_class="example.com/b"),
            balancer(load_balancer_class="example.com/a"),
            [f'spec.loadBalancerClass: Invalid value: "example.com/b": {ONCE}'],
            id="class changed",
        ),
        pytest.param(
            balancer(load_balancer_class="example.com/a"),
            balancer(),
            [f'spec.loadBalancerClass: Invalid value: "example.com/a": {ONCE}'],
            id="class added",
        ),
        pytest.param(
            balancer(),
            balancer(load_balancer_class="example.com/a"),
            [f"spec.loadBalancerClass: Invalid value: null: {ONCE}"],
            id="class removed",
        ),
        pytest.param(
            balancer(load_balancer_class="example.com/a"),
            balancer(load_balancer_class="example.com/a"),
            [],
            id="class kept",
        ),
        pytest.param(
            balancer(load_balancer_class="example.com/a"), service(), [], id="class with new type"
        ),
        pytest.param(
            service(), balancer(load_balancer_class="example.com/a"), [], id="class goes with type"
        ),
    ],
)
def test_load_balancer_fields(new: Service, old: Service, want_causes: list[str]) -> None:
    """Health-check port and class stay as long as they mean something on both sides."""
    assert texts(new, old) == want_causes


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"external_traffic_policy": "Cluster"}, id="external policy"),
        pytest.param({"internal_traffic_policy": "Local"}, id="internal policy"),
        pytest.param({"traffic_distribution": "PreferSameNode"}, id="distribution"),
        pytest.param(
            {
                "session_affinity": "ClientIP",
                "session_affinity_config": SessionAffinityConfig(
                    client_ip=ClientIPConfig(timeout_seconds=60)
                ),
            },
            id="affinity",
        ),
        pytest.param({"selector": {"app": "other"}}, id="selector"),
        pytest.param({"selector": None}, id="selector removed"),
        pytest.param(
            {"ports": (ServicePort(name="b", protocol="UDP", port=53, target_port=53),)},
            id="ports",
        ),
        pytest.param({"publish_not_ready_addresses": True}, id="not-ready addresses"),
    ],
)
def test_everything_else_may_change(spec: dict[str, Any]) -> None:
    """Policies, distribution, affinity, selector and ports are free, back and forth."""
    old = service(type="NodePort", external_traffic_policy="Local")
    new = replace(old, spec=replace(old.spec, **spec))
    assert texts(new, old) == []
    assert texts(old, new) == []


def test_annotations_may_change() -> None:
    """Annotations and labels come and go freely."""
    marked = service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}, labels={"a": "b"})
    assert texts(marked, service()) == []
    assert texts(service(), marked) == []


def test_identity_may_not_change() -> None:
    """Name and namespace are fixed, and told before anything else."""
    new = service("other", namespace="elsewhere", ports=())
    old = replace(service(), metadata=replace(service().metadata, uid="uid-other"))
    assert texts(new, old) == [
        'metadata.name: Invalid value: "other": field is immutable',
        'metadata.namespace: Invalid value: "elsewhere": field is immutable',
        "spec.ports: Required value",
    ]


@pytest.mark.parametrize(
    ("fields", "gate_off"),
    [
        pytest.param(
            {"traffic_distribution": "PreferSameNode"},
            Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
            id="traffic distribution",
        ),
        pytest.param(
            {"type": "NodePort", "external_traffic_policy": "PreferLocal"},
            Gate.PREFER_LOCAL_TRAFFIC_POLICY,
            id="external policy",
        ),
        pytest.param(
            {"internal_traffic_policy": "PreferLocal"},
            Gate.PREFER_LOCAL_TRAFFIC_POLICY,
            id="internal policy",
        ),
        pytest.param(
            {"traffic_distribution": "example.com/fast"},
            Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
            id="custom heuristic",
        ),
        pytest.param({"name": "1web"}, Gate.RELAXED_SERVICE_NAME_VALIDATION, id="name"),
        pytest.param(
            {"cluster_ip": "010.96.0.10", "cluster_ips": ("010.96.0.10",)}, None, id="lax address"
        ),
    ],
)
def test_a_gate_switched_off_locks_no_stored_service(
    fields: dict[str, Any], gate_off: Gate | None
) -> None:
    """An update that leaves a stored value alone passes, with the gate off."""
    gates = GATES if gate_off is None else GATES.without(gate_off)
    old = service(**fields)
    new = replace(old, metadata=replace(old.metadata, labels={"touched": "yes"}))
    assert texts(new, old, gates) == []


def with_ingress(ingress: LoadBalancerIngress, **spec: Any) -> Service:
    """Return a LoadBalancer Service that reports the ingress."""
    status = ServiceStatus(load_balancer=LoadBalancerStatus(ingress=(ingress,)))
    return replace(balancer(**spec), status=status)


INGRESS = LoadBalancerIngress(ip="192.0.2.1", ip_mode="VIP")
LAX_INGRESS = LoadBalancerIngress(ip="192.0.2.01", ip_mode="VIP")


@pytest.mark.parametrize(
    ("new", "old", "gates", "want_causes"),
    [
        pytest.param(balancer(), balancer(), GATES, [], id="nothing reported"),
        pytest.param(with_ingress(INGRESS), balancer(), GATES, [], id="an address"),
        pytest.param(
            with_ingress(INGRESS, type="NodePort"),
            balancer(type="NodePort"),
            GATES,
            [
                (
                    "status.loadBalancer.ingress: Forbidden: "
                    "may only be used when `spec.type` is 'LoadBalancer'"
                ),
            ],
            id="no load balancer",
        ),
        pytest.param(
            with_ingress(LAX_INGRESS),
            balancer(),
            GATES,
            [
                (
                    'status.loadBalancer.ingress[0].ip: Invalid value: "192.0.2.01": '
                    "must not have leading 0s"
                ),
            ],
            id="lax address, strict",
        ),
        pytest.param(
            with_ingress(LAX_INGRESS),
            balancer(),
            GATES.without(Gate.STRICT_IP_CIDR_VALIDATION),
            [],
            id="lax address, lenient",
        ),
        pytest.param(
            with_ingress(LAX_INGRESS),
            with_ingress(LAX_INGRESS),
            GATES,
            [],
            id="lax, stored",
        ),
        pytest.param(
            replace(
                service(ports=()),
                status=ServiceStatus(conditions=(Condition(type=""),)),
            ),
            service(ports=()),
            GATES,
            [],
            id="neither spec nor conditions are judged",
        ),
        pytest.param(
            service("other"),
            replace(service(), metadata=replace(service().metadata, uid="uid-other")),
            GATES,
            ['metadata.name: Invalid value: "other": field is immutable'],
            id="metadata is judged",
        ),
    ],
)
def test_status_updates(
    new: Service, old: Service, gates: FeatureGates, want_causes: list[str]
) -> None:
    """Of a status update only metadata and load balancer are judged."""
    causes = validate_service_status_update(new, old, gates=gates)
    assert [str(cause) for cause in causes] == want_causes
