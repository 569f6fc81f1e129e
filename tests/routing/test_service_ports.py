"""What of a Service counts on a node, per port and address family."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
    SessionAffinityConfig,
)
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy, routed_ports
from support.builders import service

GATES = FeatureGates()
HTTP = ServicePort(name="http", protocol="TCP", port=80)
DNS = ServicePort(name="dns", protocol="UDP", port=53)
HTTP_NODE_PORT = ServicePort(name="http", protocol="TCP", port=80, node_port=30080)
DUAL: dict[str, Any] = {
    "cluster_ip": "10.96.0.10",
    "cluster_ips": ("10.96.0.10", "fd00:96::10"),
    "ip_families": ("IPv4", "IPv6"),
    "ip_family_policy": "RequireDualStack",
}
UNALLOCATED: dict[str, Any] = {
    "cluster_ip": "",
    "cluster_ips": (),
    "ip_families": (),
    "ip_family_policy": None,
}


def with_ingress(base: Service, *ingress: LoadBalancerIngress) -> Service:
    """Return the Service with load balancer addresses in its status."""
    return Service(
        metadata=base.metadata,
        spec=base.spec,
        status=ServiceStatus(load_balancer=LoadBalancerStatus(ingress)),
    )


def only_port(one: Service, family: str = "IPv4", gates: FeatureGates = GATES) -> RoutedPort:
    """Return the single port of the Service."""
    (port,) = routed_ports(one, family, gates=gates)
    return port


@pytest.mark.parametrize(
    ("one", "family"),
    [
        pytest.param(
            service(cluster_ip="None", cluster_ips=("None",)), "IPv4", id="headless has no ports"
        ),
        pytest.param(
            service(cluster_ip="None", cluster_ips=()), "IPv4", id="headless by the old field alone"
        ),
        pytest.param(
            service(type="ExternalName", external_name="db.example.org"),
            "IPv4",
            id="ExternalName has none even with a cluster IP",
        ),
        pytest.param(service(), "IPv6", id="no cluster IP of the family"),
        pytest.param(
            service(cluster_ip="", cluster_ips=()), "IPv4", id="no cluster IP allocated yet"
        ),
        pytest.param(
            service(ip_families=(), cluster_ips=()), "IPv6", id="old object of the other family"
        ),
        pytest.param(
            service(cluster_ips=("10.96.0.10",), ip_families=("IPv4", "IPv6")),
            "IPv6",
            id="family listed without an address",
        ),
        pytest.param(service(ports=()), "IPv4", id="no ports"),
    ],
)
def test_unrouted_services(one: Service, family: str) -> None:
    """A Service without cluster IP of the family, or without ports, is not routed."""
    assert routed_ports(one, family, gates=GATES) == ()


def test_one_entry_per_port() -> None:
    """Each entry of spec.ports becomes one port with the Service's cluster IP."""
    one = service(ports=(HTTP, DNS))
    assert routed_ports(one, "IPv4", gates=GATES) == (
        RoutedPort(NamespacedName("default", "web"), "http", "TCP", "10.96.0.10", 80),
        RoutedPort(NamespacedName("default", "web"), "dns", "UDP", "10.96.0.10", 53),
    )


def test_port_texts() -> None:
    """A port knows the key of its endpoints and its protocol in lower case; none means TCP."""
    udp, plain = routed_ports(service(ports=(DNS, ServicePort(port=81))), "IPv4", gates=GATES)
    assert (udp.key, udp.transport) == (("dns", "UDP"), "udp")
    assert (plain.key, plain.transport) == (("", "TCP"), "tcp")


@pytest.mark.parametrize(
    ("spec", "family", "want_ip"),
    [
        pytest.param(DUAL, "IPv4", "10.96.0.10", id="dual stack, first family"),
        pytest.param(DUAL, "IPv6", "fd00:96::10", id="dual stack, second family"),
        pytest.param(
            {
                **DUAL,
                "cluster_ips": ("fd00:96::10", "10.96.0.10"),
                "ip_families": ("IPv6", "IPv4"),
            },
            "IPv4",
            "10.96.0.10",
            id="IPv6 first",
        ),
        pytest.param(
            {"cluster_ip": "fd00:96::9", "cluster_ips": (), "ip_families": ()},
            "IPv6",
            "fd00:96::9",
            id="old object without families",
        ),
    ],
)
def test_cluster_ip_of_the_family(spec: dict[str, Any], family: str, want_ip: str) -> None:
    """The cluster IP stands where its family stands in spec.ipFamilies."""
    assert only_port(service(**spec), family).cluster_ip == want_ip


@pytest.mark.parametrize(
    ("family", "want_external", "want_vips", "want_ranges"),
    [
        pytest.param("IPv4", ("192.0.2.1",), ("203.0.113.4",), ("198.51.100.0/24",), id="IPv4"),
        pytest.param("IPv6", ("2001:db8::1",), ("2001:db8::4",), ("2001:db8:5::/48",), id="IPv6"),
    ],
)
def test_addresses_of_the_family(
    family: str,
    want_external: tuple[str, ...],
    want_vips: tuple[str, ...],
    want_ranges: tuple[str, ...],
) -> None:
    """Addresses of the other family, and texts that are none, are left out; others are tidied."""
    one = with_ingress(
        service(
            type="LoadBalancer",
            external_ips=("192.0.2.001", "2001:DB8::1", "nonsense", ""),
            load_balancer_source_ranges=(
                " 198.51.100.7/24 ",
                "2001:db8:5::1/48",
                "198.51.100.0",
                "::ffff:198.51.100.0/120",
                "x/8",
            ),
            **DUAL,
        ),
        LoadBalancerIngress(ip="203.0.113.4"),
        LoadBalancerIngress(ip="2001:db8::4", ip_mode="VIP"),
    )
    port = only_port(one, family)
    assert port.external_ips == want_external
    assert port.load_balancer_ips == want_vips
    assert port.source_ranges == want_ranges


def test_load_balancer_in_proxy_mode() -> None:
    """Addresses whose traffic passes a proxy, and host names, are not answered on the node."""
    one = with_ingress(
        service(type="LoadBalancer"),
        LoadBalancerIngress(ip="203.0.113.4", ip_mode="Proxy"),
        LoadBalancerIngress(hostname="lb.example.org"),
    )
    port = only_port(one)
    assert port.load_balancer_ips == ()
    assert not port.is_externally_accessible


@pytest.mark.parametrize(
    ("ranges", "want_ranges"),
    [
        pytest.param(("10.0.0.0/8", "0.0.0.0/0"), (), id="a range of everything lets all come"),
        pytest.param(("10.0.0.0/8", "::/0"), ("10.0.0.0/8",), id="everything of the other family"),
        pytest.param(("10.0.0.0/08",), ("10.0.0.0/8",), id="padded length"),
        pytest.param(("192.0.2.7/32",), ("192.0.2.7/32",), id="a range of one address"),
        pytest.param(
            ("::ffff:192.0.2.7/32",), ("192.0.2.7/32",), id="an IPv4-mapped range of one address"
        ),
        pytest.param(("::ffff:192.0.2.7/33",), (), id="a length that only IPv6 has"),
    ],
)
def test_source_ranges(ranges: tuple[str, ...], want_ranges: tuple[str, ...]) -> None:
    """Ranges come in one spelling; one that holds every address of the family empties the list."""
    one = service(type="LoadBalancer", load_balancer_source_ranges=ranges)
    assert only_port(one).source_ranges == want_ranges


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({}, ("None", 0), id="none"),
        pytest.param({"session_affinity": "ClientIP"}, ("ClientIP", 10800), id="default time"),
        pytest.param(
            {
                "session_affinity": "ClientIP",
                "session_affinity_config": SessionAffinityConfig(ClientIPConfig(60)),
            },
            ("ClientIP", 60),
            id="own time",
        ),
        pytest.param(
            {"session_affinity_config": SessionAffinityConfig(ClientIPConfig(60))},
            ("None", 0),
            id="time without affinity",
        ),
    ],
)
def test_session_affinity(spec: dict[str, Any], want: tuple[str, int]) -> None:
    """A time counts for ClientIP only, and is three hours unless said otherwise."""
    port = only_port(service(**spec))
    assert (port.session_affinity, port.affinity_seconds) == want


@pytest.mark.parametrize(
    ("spec", "want_policy", "want_check"),
    [
        pytest.param(
            {"type": "LoadBalancer", "external_traffic_policy": "Local"},
            TrafficPolicy.LOCAL,
            31000,
            id="load balancer, Local",
        ),
        pytest.param(
            {"type": "LoadBalancer", "external_traffic_policy": "Cluster"},
            TrafficPolicy.CLUSTER,
            0,
            id="load balancer, Cluster",
        ),
        pytest.param(
            {"type": "NodePort", "external_traffic_policy": "Local"},
            TrafficPolicy.LOCAL,
            0,
            id="node port, Local",
        ),
        pytest.param(
            {"external_ips": ("192.0.2.1",), "external_traffic_policy": "Local"},
            TrafficPolicy.LOCAL,
            0,
            id="external IPs, Local",
        ),
        pytest.param(
            {"external_traffic_policy": "Local"},
            TrafficPolicy.CLUSTER,
            0,
            id="a plain ClusterIP Service has no external policy",
        ),
        pytest.param(
            {"type": "NodePort", "external_traffic_policy": "Nearby"},
            TrafficPolicy.CLUSTER,
            0,
            id="unknown policy",
        ),
        pytest.param(
            {"type": "LoadBalancer", "external_traffic_policy": "PreferLocal"},
            TrafficPolicy.CLUSTER,
            0,
            id="PreferLocal without its gate",
        ),
    ],
)
def test_external_policy(spec: dict[str, Any], want_policy: TrafficPolicy, want_check: int) -> None:
    """Local counts for externally accessible Services; only load balancers check health by it."""
    port = only_port(service(health_check_node_port=31000, **spec))
    assert (port.external_policy, port.health_check_node_port) == (want_policy, want_check)


@pytest.mark.parametrize(
    ("policy", "want_policy"),
    [
        pytest.param("Local", TrafficPolicy.LOCAL, id="Local"),
        pytest.param("Cluster", TrafficPolicy.CLUSTER, id="Cluster"),
        pytest.param(None, TrafficPolicy.CLUSTER, id="absent"),
        pytest.param("local", TrafficPolicy.CLUSTER, id="unknown, letters of other case"),
        pytest.param("PreferLocal", TrafficPolicy.CLUSTER, id="PreferLocal without its gate"),
    ],
)
def test_internal_policy(policy: str | None, want_policy: TrafficPolicy) -> None:
    """A policy that is not known means Cluster."""
    assert only_port(service(internal_traffic_policy=policy)).internal_policy is want_policy


def test_internal_policy_gate_off() -> None:
    """Without its gate the internal policy is not read at all."""
    gates = GATES.without(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY)
    one = service(internal_traffic_policy="Local", type="NodePort", external_traffic_policy="Local")
    port = only_port(one, gates=gates)
    assert port.internal_policy is TrafficPolicy.CLUSTER
    assert port.external_policy is TrafficPolicy.LOCAL


def test_prefer_local_gate_on() -> None:
    """With its gate PreferLocal is a policy of its own, without a health check port."""
    one = service(
        type="LoadBalancer",
        internal_traffic_policy="PreferLocal",
        external_traffic_policy="PreferLocal",
        health_check_node_port=31000,
    )
    port = only_port(one, gates=GATES.with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY))
    assert port.internal_policy is TrafficPolicy.PREFER_LOCAL
    assert port.external_policy is TrafficPolicy.PREFER_LOCAL
    assert port.health_check_node_port == 0


@pytest.mark.parametrize(
    ("gates", "want_policy"),
    [
        pytest.param(
            GATES.with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY),
            TrafficPolicy.PREFER_LOCAL,
            id="gate on",
        ),
        pytest.param(GATES, TrafficPolicy.CLUSTER, id="gate off, never Local"),
    ],
)
def test_policy_annotations(gates: FeatureGates, want_policy: TrafficPolicy) -> None:
    """The keepclose annotations win over the fields that a real API server keeps."""
    one = service(
        type="NodePort",
        internal_traffic_policy="Local",
        external_traffic_policy="Local",
        annotations={
            "keepclose.dev/internal-traffic-policy": "PreferLocal",
            "keepclose.dev/external-traffic-policy": "PreferLocal",
        },
    )
    port = only_port(one, gates=gates)
    assert (port.internal_policy, port.external_policy) == (want_policy, want_policy)


@pytest.mark.parametrize(
    ("spec", "want_node_port", "want_external"),
    [
        pytest.param({}, False, False, id="cluster IP only"),
        pytest.param(
            {"type": "NodePort", "ports": (HTTP_NODE_PORT,)}, True, True, id="a node port"
        ),
        pytest.param({"external_ips": ("192.0.2.1",)}, False, True, id="an external IP"),
        pytest.param(
            {"external_ips": ("2001:db8::1",)},
            False,
            False,
            id="an external IP of the other family",
        ),
        pytest.param({"type": "LoadBalancer"}, False, False, id="a load balancer not yet there"),
    ],
)
def test_external_accessibility(
    spec: dict[str, Any],
    want_node_port: bool,
    want_external: bool,
) -> None:
    """A port is externally accessible by what it has in this family, not by the Service's type."""
    port = only_port(service(**spec))
    assert (port.has_node_port, port.is_externally_accessible) == (want_node_port, want_external)


def test_load_balancer_makes_accessible() -> None:
    """An address of a load balancer alone makes a port externally accessible."""
    one = with_ingress(service(type="LoadBalancer"), LoadBalancerIngress(ip="203.0.113.4"))
    assert only_port(one).is_externally_accessible


def test_topology_keys_need_their_gate() -> None:
    """The topologyKeys of a Service are read only with the gate ServiceTopology."""
    one = service(topology_keys=("kubernetes.io/hostname", "*"))
    assert only_port(one).topology_keys == ()
    gates = GATES.with_gates(Gate.SERVICE_TOPOLOGY)
    assert only_port(one, gates=gates).topology_keys == ("kubernetes.io/hostname", "*")


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({"service.kubernetes.io/topology-mode": "Node"}, True, id="by its name"),
        pytest.param(
            {"service.kubernetes.io/topology-aware-hints": "Node"}, True, id="by the older name"
        ),
        pytest.param(
            {
                "service.kubernetes.io/topology-aware-hints": "",
                "service.kubernetes.io/topology-mode": "Node",
            },
            False,
            id="the older name wins even if empty",
        ),
        pytest.param({"service.kubernetes.io/topology-mode": "Auto"}, False, id="another value"),
        pytest.param({}, False, id="none"),
    ],
)
def test_node_level_flag(annotations: dict[str, str], want: bool) -> None:
    """The value Node of the topology annotation asks for node-level topology, behind its gate."""
    one = service(annotations=annotations)
    gates = GATES.with_gates(Gate.NODE_LEVEL_TOPOLOGY)
    assert only_port(one, gates=gates).node_level is want
    assert only_port(one).node_level is False


BOTH_OFF = GATES.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION, Gate.TOPOLOGY_AWARE_HINTS)
FIELD_OFF = GATES.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION)
HINTS_OFF = GATES.without(Gate.TOPOLOGY_AWARE_HINTS)


@pytest.mark.parametrize(
    ("gates", "value", "want"),
    [
        pytest.param(GATES, None, True, id="both on, nothing asked"),
        pytest.param(GATES, "Disabled", True, id="both on, annotation ignored"),
        pytest.param(HINTS_OFF, None, True, id="TopologyAwareHints off changes nothing"),
        pytest.param(FIELD_OFF, None, False, id="older proxy, no annotation"),
        pytest.param(FIELD_OFF, "", False, id="older proxy, empty annotation"),
        pytest.param(FIELD_OFF, "Disabled", False, id="older proxy, Disabled"),
        pytest.param(FIELD_OFF, "disabled", False, id="older proxy, disabled"),
        pytest.param(FIELD_OFF, "Auto", True, id="older proxy, Auto"),
        pytest.param(FIELD_OFF, "example.org/own", True, id="older proxy, any other value"),
        pytest.param(BOTH_OFF, "Auto", False, id="both off"),
    ],
)
def test_honours_hints(gates: FeatureGates, value: str | None, want: bool) -> None:
    """Hints always count by now; older proxies followed them by the annotation only."""
    annotations = {} if value is None else {"service.kubernetes.io/topology-mode": value}
    assert only_port(service(annotations=annotations), gates=gates).honours_hints is want


@pytest.mark.parametrize(
    ("spec", "want_families"),
    [
        pytest.param({}, ("IPv4",), id="nothing said"),
        pytest.param({"ip_families": ("IPv6",)}, ("IPv6",), id="one family said"),
        pytest.param(
            {"ip_family_policy": "PreferDualStack"}, ("IPv4", "IPv6"), id="dual stack preferred"
        ),
        pytest.param(
            {"ip_families": ("IPv6",), "ip_family_policy": "RequireDualStack"},
            ("IPv4", "IPv6"),
            id="dual stack required, one family said",
        ),
        pytest.param({"cluster_ip": "fd00:96::9"}, ("IPv6",), id="told by a fixed address"),
        pytest.param(
            {"cluster_ip": "10.96.0.9", "ip_families": ("IPv4",)},
            ("IPv4",),
            id="a fixed address and its family",
        ),
        pytest.param({"cluster_ip": "None"}, (), id="headless stays headless"),
        pytest.param({"type": "ExternalName"}, (), id="ExternalName stays unrouted"),
    ],
)
def test_assumed_families(spec: dict[str, Any], want_families: tuple[str, ...]) -> None:
    """A manifest is routed in the families in which an API server would give it cluster IPs."""
    one = service(**{**UNALLOCATED, **spec})
    got = tuple(
        family
        for family in ("IPv4", "IPv6")
        if routed_ports(one, family, gates=GATES, assume_allocated=True)
    )
    assert got == want_families


@pytest.mark.parametrize(
    ("spec", "want_assumed", "want_has"),
    [
        pytest.param({}, False, False, id="ClusterIP"),
        pytest.param({"type": "NodePort"}, True, True, id="NodePort"),
        pytest.param({"type": "LoadBalancer"}, True, True, id="LoadBalancer"),
        pytest.param(
            {"type": "LoadBalancer", "allocate_load_balancer_node_ports": False},
            False,
            False,
            id="LoadBalancer without node ports",
        ),
        pytest.param(
            {"type": "NodePort", "ports": (HTTP_NODE_PORT,)}, False, True, id="port given"
        ),
    ],
)
def test_assumed_node_ports(
    spec: dict[str, Any],
    want_assumed: bool,
    want_has: bool,
) -> None:
    """A manifest of a type with node ports is routed as if it had them."""
    one = service(**{**UNALLOCATED, **spec})
    (port,) = routed_ports(one, "IPv4", gates=GATES, assume_allocated=True)
    assert port.cluster_ip == ""
    assert port.assumed_node_port is want_assumed
    assert port.has_node_port is want_has
    assert port.is_externally_accessible is want_has
