"""A Service as a whole is judged rule by rule, in the words of the API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import ObjectMeta
from keepclose.model.metadata_validation import (
    DNS1035_SENTENCE,
    LABEL_SENTENCE,
    LABEL_VALUE_SENTENCE,
    SUBDOMAIN_SENTENCE,
)
from keepclose.model.service.defaults import default_families, default_service, hide_on_read
from keepclose.model.service.strategy import (
    normalize_cluster_ips,
    patch_allocated_values,
    prepare_service_for_update,
    service_warnings,
)
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
from keepclose.model.service.validation import (
    validate_service,
    validate_service_status_update,
    validate_service_update,
)
from keepclose.model.well_known import (
    INTERNAL_POLICY_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
)
from support.builders import service

GATES = FeatureGates()
STRICT_NAMES = GATES.without(Gate.RELAXED_SERVICE_NAME_VALIDATION)
LENIENT = GATES.without(Gate.STRICT_IP_CIDR_VALIDATION)
ONLY_LB = "may only be used when `type` is 'LoadBalancer'"
NOT_FOR_NAME = "may not be set for ExternalName services"
BAD_PORT = "must be between 1 and 65535, inclusive"
PROTOCOLS = 'supported values: "SCTP", "TCP", "UDP"'
NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def port(name: str = "http", number: int = 80, **fields: Any) -> ServicePort:
    """Return a valid TCP port with some fields changed."""
    return ServicePort(
        **{"name": name, "protocol": "TCP", "port": number, "target_port": 8080, **fields}
    )


def named(**spec: Any) -> Service:
    """Return a valid ExternalName Service with some fields changed."""
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
    """Return a valid LoadBalancer Service with some fields changed."""
    return service(
        **{
            "type": "LoadBalancer",
            "external_traffic_policy": "Cluster",
            "allocate_load_balancer_node_ports": True,
            **spec,
        }
    )


def headless(**spec: Any) -> Service:
    """Return a valid headless Service with some fields changed."""
    return service(**{"cluster_ip": "None", "cluster_ips": ("None",), **spec})


def texts(judged: Service, gates: FeatureGates = GATES, old: Service | None = None) -> list[str]:
    """Return the rendered causes of a Service."""
    return [str(cause) for cause in validate_service(judged, gates=gates, old=old)]


@pytest.mark.parametrize(
    "valid",
    [
        pytest.param(service(), id="ClusterIP"),
        pytest.param(headless(), id="headless"),
        pytest.param(headless(ports=()), id="headless without ports"),
        pytest.param(service(type="NodePort", external_traffic_policy="Local"), id="NodePort"),
        pytest.param(balancer(), id="LoadBalancer"),
        pytest.param(
            balancer(external_traffic_policy="Local", health_check_node_port=30100),
            id="LoadBalancer with Local",
        ),
        pytest.param(balancer(load_balancer_class="example.com/lb"), id="LoadBalancer of a class"),
        pytest.param(named(), id="ExternalName"),
        pytest.param(named(ports=()), id="ExternalName without ports"),
        pytest.param(named(external_name="example.com."), id="ExternalName with a trailing dot"),
        pytest.param(service(selector=None), id="no selector"),
        pytest.param(service(selector={}), id="empty selector"),
        pytest.param(headless(traffic_distribution="PreferSameNode"), id="headless, distribution"),
        pytest.param(named(traffic_distribution="PreferClose"), id="ExternalName, distribution"),
        pytest.param(
            balancer(
                external_traffic_policy="Local",
                health_check_node_port=30100,
                internal_traffic_policy="Local",
                traffic_distribution="PreferSameZone",
            ),
            id="distribution beside both Local policies",
        ),
    ],
)
def test_valid_services(valid: Service) -> None:
    """A Service that keeps all rules has no causes."""
    assert texts(valid) == []


def test_a_defaulted_service_is_valid() -> None:
    """What the defaults fill in keeps the rules, once the addresses are allocated."""
    written = Service(
        metadata=ObjectMeta(name="web", namespace="default"),
        spec=ServiceSpec(type="LoadBalancer", ports=(ServicePort(port=80),)),
    )
    assert texts(default_service(written)) == []


@pytest.mark.parametrize(
    ("name", "gates", "stored", "want_causes"),
    [
        pytest.param("web", GATES, False, [], id="letters"),
        pytest.param("1web", GATES, False, [], id="digit first, relaxed"),
        pytest.param(
            "1web",
            STRICT_NAMES,
            False,
            [f'metadata.name: Invalid value: "1web": {DNS1035_SENTENCE}'],
            id="digit first, strict",
        ),
        pytest.param("1web", STRICT_NAMES, True, [], id="digit first, stored"),
        pytest.param(
            "a.b",
            GATES,
            False,
            ['metadata.name: Invalid value: "a.b": must not contain dots'],
            id="dots",
        ),
        pytest.param(
            "Web",
            GATES,
            False,
            [f'metadata.name: Invalid value: "Web": {LABEL_SENTENCE}'],
            id="upper case",
        ),
        pytest.param(
            "",
            GATES,
            False,
            ["metadata.name: Required value: name or generateName is required"],
            id="none",
        ),
    ],
)
def test_names(name: str, gates: FeatureGates, stored: bool, want_causes: list[str]) -> None:
    """A new name is a DNS label; a stored one is not judged again."""
    judged = service(name)
    assert texts(judged, gates, judged if stored else None) == want_causes


def test_metadata_is_judged_too() -> None:
    """Namespace and labels follow the rules of all objects."""
    judged = service(namespace="", labels={"a": "b c"})
    assert texts(judged) == [
        "metadata.namespace: Required value",
        f'metadata.labels: Invalid value: "b c": {LABEL_VALUE_SENTENCE}',
    ]


@pytest.mark.parametrize(
    ("judged", "want_causes"),
    [
        pytest.param(service(ports=()), ["spec.ports: Required value"], id="no ports"),
        pytest.param(
            balancer(cluster_ip="None", cluster_ips=("None",)),
            [
                (
                    'spec.clusterIPs[0]: Invalid value: "None": '
                    "may not be set to 'None' for LoadBalancer services"
                ),
            ],
            id="headless LoadBalancer",
        ),
        pytest.param(
            headless(type="NodePort", external_traffic_policy="Cluster"),
            [
                (
                    'spec.clusterIPs[0]: Invalid value: "None": '
                    "may not be set to 'None' for NodePort services"
                ),
            ],
            id="headless NodePort",
        ),
        pytest.param(
            named(cluster_ip="10.96.0.1", cluster_ips=("10.96.0.1",)),
            [f"spec.clusterIPs: Forbidden: {NOT_FOR_NAME}"],
            id="ExternalName with address",
        ),
        pytest.param(
            named(ip_families=("IPv4",), ip_family_policy="SingleStack"),
            [
                f"spec.ipFamilies: Forbidden: {NOT_FOR_NAME}",
                f"spec.ipFamilyPolicy: Forbidden: {NOT_FOR_NAME}",
            ],
            id="ExternalName with families",
        ),
        pytest.param(
            named(external_name=""), ["spec.externalName: Required value"], id="no external name"
        ),
        pytest.param(
            named(external_name="."), ["spec.externalName: Required value"], id="only a dot"
        ),
        pytest.param(
            named(external_name="-bad"),
            [f'spec.externalName: Invalid value: "-bad": {SUBDOMAIN_SENTENCE}'],
            id="bad external name",
        ),
        pytest.param(
            named(external_name="a.b.."),
            [f'spec.externalName: Invalid value: "a.b.": {SUBDOMAIN_SENTENCE}'],
            id="only one dot is tolerated",
        ),
        pytest.param(service(type=""), ["spec.type: Required value"], id="no type"),
        pytest.param(
            service(type="Mesh"),
            [
                (
                    'spec.type: Unsupported value: "Mesh": supported values: '
                    '"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"'
                ),
            ],
            id="unknown type",
        ),
    ],
)
def test_types(judged: Service, want_causes: list[str]) -> None:
    """Each type allows and demands its own fields."""
    assert [text for text in texts(judged) if "internalTrafficPolicy" not in text] == want_causes


@pytest.mark.parametrize(
    ("ports", "want_causes"),
    [
        pytest.param((port(""),), [], id="one port needs no name"),
        pytest.param(
            (port(""), port("b", 81)), ["spec.ports[0].name: Required value"], id="two ports do"
        ),
        pytest.param(
            (port("a"), port("a", 81)),
            ['spec.ports[1].name: Duplicate value: "a"'],
            id="one name twice",
        ),
        pytest.param(
            (port("A"),),
            [f'spec.ports[0].name: Invalid value: "A": {LABEL_SENTENCE}'],
            id="bad name",
        ),
        pytest.param(
            (port("a.b"),),
            ['spec.ports[0].name: Invalid value: "a.b": must not contain dots'],
            id="name with dot",
        ),
        pytest.param((port(number=65535),), [], id="largest port"),
        pytest.param(
            (port(number=0),), [f"spec.ports[0].port: Invalid value: 0: {BAD_PORT}"], id="port 0"
        ),
        pytest.param(
            (port(number=65536),),
            [f"spec.ports[0].port: Invalid value: 65536: {BAD_PORT}"],
            id="port too large",
        ),
        pytest.param(
            (port(protocol=""),), ["spec.ports[0].protocol: Required value"], id="no protocol"
        ),
        pytest.param(
            (port(protocol="tcp"),),
            [f'spec.ports[0].protocol: Unsupported value: "tcp": {PROTOCOLS}'],
            id="unknown protocol",
        ),
        pytest.param(
            (port(target_port=None),),
            [f"spec.ports[0].targetPort: Invalid value: 0: {BAD_PORT}"],
            id="no target",
        ),
        pytest.param(
            (port(target_port=70000),),
            [f"spec.ports[0].targetPort: Invalid value: 70000: {BAD_PORT}"],
            id="target too large",
        ),
        pytest.param((port(target_port="web-1"),), [], id="target name"),
        pytest.param(
            (port(target_port="a--b"),),
            [
                (
                    'spec.ports[0].targetPort: Invalid value: "a--b": '
                    "must not contain consecutive hyphens"
                ),
            ],
            id="bad target name",
        ),
        pytest.param(
            (port(target_port="a" * 16),),
            [
                (
                    f'spec.ports[0].targetPort: Invalid value: "{"a" * 16}": '
                    "must be no more than 15 characters"
                ),
            ],
            id="target name too long",
        ),
        pytest.param((port(app_protocol="example.com/grpc"),), [], id="application protocol"),
        pytest.param(
            (port(app_protocol="a b"),),
            [f'spec.ports[0].appProtocol: Invalid value: "a b": {NAME_PART}'],
            id="bad application protocol",
        ),
        pytest.param(
            (port(app_protocol=""),),
            [
                'spec.ports[0].appProtocol: Invalid value: "": name part must be non-empty',
                f'spec.ports[0].appProtocol: Invalid value: "": {NAME_PART}',
            ],
            id="empty application protocol",
        ),
        pytest.param(
            (port("a"), port("b")),
            [
                (
                    'spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP",'
                    '"AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}'
                )
            ],
            id="one port twice",
        ),
        pytest.param((port("a"), port("b", protocol="UDP")), [], id="one port, two protocols"),
        pytest.param(
            (port(node_port=30080),),
            [
                ("spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"),
            ],
            id="node port of ClusterIP",
        ),
    ],
)
def test_ports(ports: tuple[ServicePort, ...], want_causes: list[str]) -> None:
    """Ports have a name, a number, a protocol and a target, and none stands twice."""
    assert texts(service(ports=ports)) == want_causes


@pytest.mark.parametrize(
    ("ports", "want_causes"),
    [
        pytest.param((port("a", 80, node_port=30080),), [], id="one"),
        pytest.param(
            (port("a", 80, node_port=30080), port("b", 81, node_port=30080)),
            ["spec.ports[1].nodePort: Duplicate value: 30080"],
            id="one twice",
        ),
        pytest.param(
            (
                port("a", 80, node_port=30080),
                port("b", 81, node_port=30080, protocol="UDP"),
            ),
            [],
            id="one, two protocols",
        ),
        pytest.param((port("a", 80), port("b", 81)), [], id="not allocated yet"),
    ],
)
def test_node_ports(ports: tuple[ServicePort, ...], want_causes: list[str]) -> None:
    """A node port serves one port per protocol."""
    judged = service(type="NodePort", external_traffic_policy="Cluster", ports=ports)
    assert texts(judged) == want_causes


def affinity(timeout: int | None) -> SessionAffinityConfig:
    """Return a configuration of session affinity with the timeout."""
    return SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=timeout))


CONFIG = "spec.sessionAffinityConfig"
FOR_CLIENT_IP = "when session affinity type is ClientIP"
TIMEOUT_RANGE = "must be greater than 0 and less than 86400"


@pytest.mark.parametrize(
    ("session_affinity", "config", "want_causes"),
    [
        pytest.param("None", None, [], id="None"),
        pytest.param("ClientIP", affinity(1), [], id="shortest timeout"),
        pytest.param("ClientIP", affinity(86400), [], id="the limit itself passes"),
        pytest.param("", None, ["spec.sessionAffinity: Required value"], id="absent"),
        pytest.param(
            "Sticky",
            None,
            [
                (
                    'spec.sessionAffinity: Unsupported value: "Sticky": '
                    'supported values: "ClientIP", "None"'
                ),
            ],
            id="unknown",
        ),
        pytest.param(
            "None",
            affinity(60),
            [f"{CONFIG}: Forbidden: must not be set when session affinity is None"],
            id="config without affinity",
        ),
        pytest.param(
            "ClientIP", None, [f"{CONFIG}: Required value: {FOR_CLIENT_IP}"], id="no config"
        ),
        pytest.param(
            "ClientIP",
            SessionAffinityConfig(),
            [f"{CONFIG}.clientIP: Required value: {FOR_CLIENT_IP}"],
            id="no clientIP",
        ),
        pytest.param(
            "ClientIP",
            affinity(None),
            [f"{CONFIG}.clientIP.timeoutSeconds: Required value: {FOR_CLIENT_IP}"],
            id="no timeout",
        ),
        pytest.param(
            "ClientIP",
            affinity(0),
            [f"{CONFIG}.clientIP.timeoutSeconds: Invalid value: 0: {TIMEOUT_RANGE}"],
            id="timeout 0",
        ),
        pytest.param(
            "ClientIP",
            affinity(86401),
            [f"{CONFIG}.clientIP.timeoutSeconds: Invalid value: 86401: {TIMEOUT_RANGE}"],
            id="timeout too long",
        ),
    ],
)
def test_session_affinity(
    session_affinity: str, config: SessionAffinityConfig | None, want_causes: list[str]
) -> None:
    """ClientIP needs a full configuration, None forbids it."""
    judged = service(session_affinity=session_affinity, session_affinity_config=config)
    assert texts(judged) == want_causes


@pytest.mark.parametrize(
    ("judged", "want_causes"),
    [
        pytest.param(
            service(selector={"a b": "c"}),
            [f'spec.selector: Invalid value: "a b": {NAME_PART}'],
            id="bad selector key",
        ),
        pytest.param(
            service(selector={"a": "b c"}),
            [f'spec.selector: Invalid value: "b c": {LABEL_VALUE_SENTENCE}'],
            id="bad selector value",
        ),
        pytest.param(
            service(allocate_load_balancer_node_ports=False),
            [f"spec.allocateLoadBalancerNodePorts: Forbidden: {ONLY_LB}"],
            id="allocation off LoadBalancer",
        ),
        pytest.param(
            service(load_balancer_class="example.com/lb"),
            [f"spec.loadBalancerClass: Forbidden: {ONLY_LB}"],
            id="class off LoadBalancer",
        ),
        pytest.param(
            balancer(load_balancer_class="a b"),
            [f'spec.loadBalancerClass: Invalid value: "a b": {NAME_PART}'],
            id="bad class",
        ),
        pytest.param(
            service(load_balancer_source_ranges=("10.0.0.0/8",)),
            [f"spec.LoadBalancerSourceRanges: Forbidden: {ONLY_LB}"],
            id="source ranges off LoadBalancer",
        ),
        pytest.param(
            service(topology_keys=("*", "a")),
            ['spec.topologyKeys[0]: Invalid value: "*": "*" must be the last value specified'],
            id="topology keys",
        ),
        pytest.param(
            service(internal_traffic_policy=None),
            ["spec.internalTrafficPolicy: Required value"],
            id="no internal policy",
        ),
        pytest.param(
            service(traffic_distribution=""),
            [
                (
                    'spec.trafficDistribution: Unsupported value: "": '
                    'supported values: "PreferClose", "PreferSameZone", "PreferSameNode"'
                ),
            ],
            id="empty distribution",
        ),
        pytest.param(
            service(annotations={INTERNAL_POLICY_ANNOTATION: "Near"}),
            [
                (
                    f"metadata.annotations[{INTERNAL_POLICY_ANNOTATION}]: Unsupported value: "
                    '"Near": supported values: "Cluster", "Local", "PreferLocal"'
                ),
            ],
            id="annotation",
        ),
        pytest.param(
            service(
                annotations={TOPOLOGY_MODE_ANNOTATION: "Auto", TOPOLOGY_HINTS_ANNOTATION: "Off"}
            ),
            [
                (
                    f'metadata.annotations[{TOPOLOGY_MODE_ANNOTATION}]: Invalid value: "Auto": '
                    f"must match annotations[{TOPOLOGY_HINTS_ANNOTATION}] when both are specified"
                ),
            ],
            id="topology annotations that differ",
        ),
    ],
)
def test_other_fields(judged: Service, want_causes: list[str]) -> None:
    """Every further rule is asked."""
    assert texts(judged) == want_causes


def test_strict_addresses_are_asked_for_by_a_gate() -> None:
    """With the gate off, leading zeros pass in all fields of old."""
    lax = balancer(
        cluster_ip="010.0.0.1",
        cluster_ips=("010.0.0.1",),
        external_ips=("192.0.2.01",),
        load_balancer_source_ranges=("10.0.0.0/08",),
    )
    assert texts(lax, LENIENT) == []
    assert [cause.field for cause in validate_service(lax, gates=GATES)] == [
        "spec.clusterIPs[0]",
        "spec.externalIPs[0]",
        "spec.LoadBalancerSourceRanges[0]",
    ]


def test_causes_come_in_the_order_of_the_api_server() -> None:
    """All causes are listed, metadata first, policies last."""
    judged = Service(
        metadata=ObjectMeta(
            annotations={TOPOLOGY_MODE_ANNOTATION: "a", TOPOLOGY_HINTS_ANNOTATION: "b"}
        ),
        spec=ServiceSpec(
            type="NodePort",
            selector={"": ""},
            cluster_ip="x",
            cluster_ips=("x",),
            external_ips=("y",),
            allocate_load_balancer_node_ports=True,
            health_check_node_port=1,
            traffic_distribution="z",
            topology_keys=("*", "a"),
        ),
    )
    want_fields = [
        "metadata.name",
        "metadata.namespace",
        f"metadata.annotations[{TOPOLOGY_MODE_ANNOTATION}]",
        "spec.ports",
        "spec.selector",
        "spec.selector",
        "spec.sessionAffinity",
        "spec.clusterIPs[0]",
        "spec.externalIPs[0]",
        "spec.allocateLoadBalancerNodePorts",
        "spec.externalTrafficPolicy",
        "spec.healthCheckNodePort",
        "spec.internalTrafficPolicy",
        "spec.trafficDistribution",
        "spec.topologyKeys[0]",
    ]
    assert [cause.field for cause in validate_service(judged, gates=GATES)] == want_fields


WORDS = st.sampled_from(
    ["", "None", "ClientIP", "Local", "PreferLocal", "Cluster", "10.0.0.1", "fd00::1", "a/b", "*"]
) | st.text(max_size=6)
NUMBERS = st.integers(-(2**31), 2**31 - 1)
TYPES = st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]) | WORDS
WORD_LISTS = st.lists(WORDS, max_size=3).map(tuple)
FAMILY_LISTS = st.lists(st.sampled_from(["IPv4", "IPv6", "IPv5"]), max_size=3).map(tuple)
PORTS = st.builds(
    ServicePort,
    name=WORDS,
    protocol=WORDS,
    app_protocol=st.none() | WORDS,
    port=NUMBERS,
    target_port=st.none() | NUMBERS | WORDS,
    node_port=NUMBERS,
)
SPECS = st.builds(
    ServiceSpec,
    type=TYPES,
    selector=st.none() | st.dictionaries(WORDS, WORDS, max_size=2),
    ports=st.lists(PORTS, max_size=3).map(tuple),
    cluster_ip=WORDS,
    cluster_ips=WORD_LISTS,
    ip_families=FAMILY_LISTS,
    ip_family_policy=st.none() | st.sampled_from(["SingleStack", "PreferDualStack", "x"]),
    external_ips=WORD_LISTS,
    external_name=WORDS,
    session_affinity=WORDS,
    session_affinity_config=st.none()
    | st.builds(SessionAffinityConfig, client_ip=st.none() | st.just(ClientIPConfig())),
    external_traffic_policy=WORDS,
    internal_traffic_policy=st.none() | WORDS,
    health_check_node_port=NUMBERS,
    allocate_load_balancer_node_ports=st.none() | st.booleans(),
    load_balancer_class=st.none() | WORDS,
    load_balancer_ip=WORDS,
    load_balancer_source_ranges=WORD_LISTS,
    traffic_distribution=st.none() | WORDS,
    topology_keys=WORD_LISTS,
)
INGRESS = st.builds(LoadBalancerIngress, ip=WORDS, hostname=WORDS, ip_mode=st.none() | WORDS)
SERVICES = st.builds(
    Service,
    metadata=st.builds(
        ObjectMeta,
        name=WORDS,
        namespace=WORDS,
        annotations=st.dictionaries(
            st.sampled_from([TOPOLOGY_MODE_ANNOTATION, INTERNAL_POLICY_ANNOTATION]) | WORDS,
            WORDS,
            max_size=3,
        ),
    ),
    spec=SPECS,
    status=INGRESS.map(lambda one: ServiceStatus(load_balancer=LoadBalancerStatus(ingress=(one,)))),
)
GATE_SETS = st.frozensets(st.sampled_from(list(Gate))).map(FeatureGates)


@settings(deadline=None, max_examples=200)
@given(SERVICES, SERVICES, GATE_SETS)
def test_no_service_makes_the_rules_fail(new: Service, old: Service, gates: FeatureGates) -> None:
    """Whatever a Service holds, rules and steps answer, and each cause renders with its field."""
    causes = validate_service(new, gates=gates)
    causes += validate_service_update(new, old, gates=gates)
    causes += validate_service_status_update(new, old, gates=gates)
    families = default_families(new, cluster_families=("IPv4", "IPv6"), old=old)
    causes += families if isinstance(families, list) else []
    assert all(str(cause).startswith(f"{cause.field}: ") for cause in causes)
    written = patch_allocated_values(normalize_cluster_ips(default_service(new), old), old)
    stored = prepare_service_for_update(written, old, gates=gates)
    assert hide_on_read(stored).metadata == new.metadata
    assert service_warnings(stored) == service_warnings(replace(stored, status=ServiceStatus()))


@settings(deadline=None, max_examples=100)
@given(SERVICES, GATE_SETS)
def test_unchanged_stored_values_add_no_causes(judged: Service, gates: FeatureGates) -> None:
    """Rules are never harder on a Service that is stored as it is than on a new one."""
    fresh = {cause.field for cause in validate_service(judged, gates=gates)}
    stored = {cause.field for cause in validate_service(judged, gates=gates, old=judged)}
    assert stored - fresh == set()
