"""What is asked of the traffic command, and which address that means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.requests import SERVICES
from keepclose.lab.access import LabRefusal
from keepclose.lab.traffic.targets import (
    TrafficRequest,
    Via,
    choose_target,
    find_service,
    read_traffic_request,
)
from keepclose.model.gates import FeatureGates
from keepclose.model.service.types import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
)
from keepclose.model.well_known import PROXY_NAME_LABEL
from keepclose.testing.api_server import serving
from support.builders import service
from support.proxies import cluster_of

GATES = FeatureGates()
HTTP = ServicePort(name="http", protocol="TCP", port=80, node_port=30080)
ADMIN = ServicePort(name="admin", protocol="TCP", port=81, node_port=30081)
DNS = ServicePort(name="dns", protocol="UDP", port=53)
DUAL: dict[str, Any] = {
    "cluster_ips": ("10.96.0.10", "fd00:96::10"),
    "ip_families": ("IPv4", "IPv6"),
}


def balanced() -> Service:
    """Return a Service with a load balancer."""
    one = service(type="LoadBalancer", ports=(HTTP,))
    status = ServiceStatus(LoadBalancerStatus((LoadBalancerIngress(ip="203.0.113.7"),)))
    return Service(metadata=one.metadata, spec=one.spec, status=status)


@pytest.mark.parametrize(
    ("one", "asked", "want"),
    [
        pytest.param(service(), {}, (80, "10.96.0.10", Via.CLUSTER_IP), id="the cluster IP"),
        pytest.param(
            service(ports=(DNS, HTTP, ADMIN)),
            {},
            (80, "10.96.0.10", Via.CLUSTER_IP),
            id="the first TCP port",
        ),
        pytest.param(
            service(ports=(HTTP, DNS)),
            {"udp": True},
            (53, "10.96.0.10", Via.CLUSTER_IP),
            id="the first UDP port",
        ),
        pytest.param(
            service(ports=(HTTP, ADMIN)),
            {"port": "admin"},
            (81, "10.96.0.10", Via.CLUSTER_IP),
            id="a port by name",
        ),
        pytest.param(
            service(ports=(HTTP, ADMIN)),
            {"port": "81"},
            (81, "10.96.0.10", Via.CLUSTER_IP),
            id="a port by number",
        ),
        pytest.param(
            service(**DUAL), {"family": "ipv6"}, (80, "fd00:96::10", Via.CLUSTER_IP), id="IPv6"
        ),
        pytest.param(
            service(
                cluster_ip="fd00:96::10",
                cluster_ips=("fd00:96::10", "10.96.0.10"),
                ip_families=("IPv6", "IPv4"),
            ),
            {},
            (80, "fd00:96::10", Via.CLUSTER_IP),
            id="the Service's first family",
        ),
        pytest.param(
            service(type="NodePort", ports=(HTTP,)),
            {"from": "outside"},
            (80, "10.96.0.10", Via.NODE_PORT),
            id="a node port from outside",
        ),
        pytest.param(
            balanced(),
            {"via": "load-balancer"},
            (80, "10.96.0.10", Via.LOAD_BALANCER),
            id="a load balancer",
        ),
    ],
)
def test_targets(one: Service, asked: dict[str, Any], want: tuple[int, str, Via]) -> None:
    """Port, address and way follow from the Service and what was asked for."""
    request = read_traffic_request({"service": "web", **asked})
    target = choose_target(one, request, gates=GATES)
    assert (target.port.port, target.port.cluster_ip, target.via) == want


@pytest.mark.parametrize(
    ("one", "asked", "want", "code"),
    [
        pytest.param(
            service(type="ExternalName", cluster_ip="", cluster_ips=()),
            {},
            "Service default/web is only a DNS name (type ExternalName); "
            "nothing routes its connections",
            3,
            id="an external name",
        ),
        pytest.param(
            service(cluster_ip="None", cluster_ips=("None",)),
            {},
            "Service default/web is headless: clients connect to its pods by DNS, "
            "and nothing routes them",
            3,
            id="a headless Service",
        ),
        pytest.param(
            service(labels={PROXY_NAME_LABEL: "other"}),
            {},
            "Service default/web is left to another proxy by the label "
            "service.kubernetes.io/service-proxy-name",
            3,
            id="a Service of another proxy",
        ),
        pytest.param(
            service(),
            {"family": "ipv6"},
            "Service default/web has no IPv6 address, only IPv4",
            3,
            id="no such family",
        ),
        pytest.param(
            service(ports=(HTTP, DNS)),
            {"port": "web"},
            "Service default/web has no port web; it has http 80/TCP, dns 53/UDP",
            3,
            id="no such port",
        ),
        pytest.param(
            service(ports=(HTTP, DNS)),
            {"port": "dns"},
            "port dns of Service default/web is UDP; add --udp",
            2,
            id="a port of the other protocol",
        ),
        pytest.param(
            service(ports=(HTTP,)),
            {"port": "80", "udp": True},
            "port 80 of Service default/web is TCP; leave out --udp",
            2,
            id="a TCP port for datagrams",
        ),
        pytest.param(
            service(ports=(DNS,)),
            {},
            "Service default/web has no TCP port; it has dns 53/UDP; add --udp",
            3,
            id="no port of the protocol",
        ),
        pytest.param(
            service(),
            {"from": "outside"},
            "Service default/web (type ClusterIP) cannot be reached from outside; "
            "give it type NodePort or LoadBalancer",
            3,
            id="nothing for those outside",
        ),
        pytest.param(
            service(type="LoadBalancer", ports=(HTTP,)),
            {"via": "load-balancer"},
            "Service default/web (type LoadBalancer) has no load balancer's address in its status",
            3,
            id="a load balancer without an address",
        ),
        pytest.param(
            service(),
            {"via": "node-port"},
            "Service default/web (type ClusterIP) has no node port",
            3,
            id="no node port",
        ),
    ],
)
def test_refusals(one: Service, asked: dict[str, Any], want: str, code: int) -> None:
    """What cannot be called is refused in words that say what would do."""
    request = read_traffic_request({"service": "web", **asked})
    with pytest.raises(LabRefusal) as refusal:
        choose_target(one, request, gates=GATES)
    assert (str(refusal.value), refusal.value.code) == (want, code)


@pytest.mark.parametrize(
    ("params", "want"),
    [
        pytest.param(
            {"service": "web", "family": "ipx"},
            "--family: 'ipx' must be ipv4 or ipv6",
            id="an unknown family",
        ),
        pytest.param(
            {"service": "web", "via": "ingress"},
            "--via: 'ingress' must be node-port or load-balancer",
            id="an unknown way",
        ),
        pytest.param(
            {"service": "web", "via": "node-port", "from": "zone-a"},
            "--via node-port goes with --from outside, not zone-a",
            id="a way from outside for those inside",
        ),
        pytest.param(
            {"service": "web", "connections": 0},
            "traffic: Expected `int` >= 1 - at `$.connections`",
            id="no connections",
        ),
        pytest.param(
            {"service": "web", "speed": 9},
            "traffic: Object contains unknown field `speed`",
            id="an unknown wish",
        ),
    ],
)
def test_bad_requests(params: dict[str, Any], want: str) -> None:
    """What makes no sense is refused with the name of the option."""
    with pytest.raises(LabRefusal) as refusal:
        read_traffic_request(params)
    assert (str(refusal.value), refusal.value.code) == (want, 2)


def test_a_request_has_defaults() -> None:
    """Only the Service must be named."""
    assert read_traffic_request({"service": "web"}) == TrafficRequest("web", connections=1000)


async def test_services_by_name(tmp_path: Path) -> None:
    """A name alone is one in default; one that is not there brings near names."""
    async with serving(tmp_path) as api, cluster_of(api) as cluster:
        await cluster.add_service("demo-svc")
        await api.create("/api/v1/namespaces", {"metadata": {"name": "shop"}})
        for name in ("web", "demo-svc"):
            body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}
            await cluster.client.create(SERVICES, body, namespace="shop")
        client = cluster.client
        assert (await find_service(client, "demo-svc")).metadata.namespace == "default"
        assert (await find_service(client, "shop/web")).metadata.namespace == "shop"
        for text, want, code in (
            ("web", "there is no Service default/web; did you mean shop/web?", 3),
            (
                "demo-scv",
                (
                    "there is no Service default/demo-scv; "
                    "did you mean default/demo-svc or shop/demo-svc?"
                ),
                3,
            ),
            ("zzzzzzz", "there is no Service default/zzzzzzz", 3),
            ("a/b/c", "'a/b/c' is no name of a Service; write NAME or NAMESPACE/NAME", 2),
            ("", "'' is no name of a Service; write NAME or NAMESPACE/NAME", 2),
        ):
            with pytest.raises(LabRefusal) as refusal:
                await find_service(client, text)
            assert (str(refusal.value), refusal.value.code) == (want, code)
