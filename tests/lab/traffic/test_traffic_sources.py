"""Who calls how often; places without a kernel behind them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.lab.access import LabRefusal
from keepclose.lab.network.addresses import node_addresses
from keepclose.lab.network.underlay import NetworkPlace, NodePlace, Underlay
from keepclose.lab.traffic.targets import (
    TrafficSource,
    choose_target,
    divide_connections,
    find_sources,
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
from keepclose.system.namespaces import NetworkNamespace
from support.builders import service

ZONES = {"n1": "zone-b", "n2": "zone-a", "n3": "zone-a", "n4": ""}
PORTS = (ServicePort(name="http", protocol="TCP", port=80, node_port=30080),)


def make_underlay(*names: str) -> Underlay:
    """Return a network that holds names and addresses only."""
    underlay = Underlay()
    underlay.outside = NetworkPlace("outside", NetworkNamespace("outside", -1), ())
    for number, name in enumerate(names, 1):
        client = NetworkPlace(f"{name}-client", NetworkNamespace(f"{name}-client", -1), ())
        underlay.nodes[name] = NodePlace(
            name, NetworkNamespace(name, -1), node_addresses(number), client
        )
    return underlay


async def find(
    one: Service,
    *,
    source: str = "",
    spared: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (*ZONES,),
    **asked: Any,
) -> list[TrafficSource]:
    """Return the sources for what is asked; no pods exist."""
    request = read_traffic_request({"service": "web", "from": source, **asked})
    target = choose_target(one, request, gates=FeatureGates())
    nobody: Any = None
    return await find_sources(
        nobody, make_underlay(*nodes), target, request, zones=ZONES, spared=spared
    )


def shown(sources: list[TrafficSource]) -> list[tuple[str, str, str, int, int]]:
    """Return group, name, host, port and times of each."""
    return [
        (one.group, one.name, one.caller.host, one.caller.port, one.caller.times) for one in sources
    ]


async def test_every_zone_has_the_same_number() -> None:
    """Zones in order, each with its number spread over its nodes; no zone is one too."""
    cluster_ip = "10.96.0.10"
    assert shown(await find(service(), connections=101)) == [
        ("", "n4", cluster_ip, 80, 101),
        ("zone-a", "n2", cluster_ip, 80, 51),
        ("zone-a", "n3", cluster_ip, 80, 50),
        ("zone-b", "n1", cluster_ip, 80, 101),
    ]


async def test_one_zone_and_one_node() -> None:
    """A zone's nodes, or the node alone under its own name; nobody calls no times."""
    sources = await find(service(), source="zone-a", connections=1)
    assert [(one.group, one.name) for one in sources] == [("zone-a", "n2")]
    sources = await find(service(), source="n3", connections=7)
    assert [(one.group, one.name, one.zone) for one in sources] == [("n3", "n3", "zone-a")]
    assert isinstance(sources[0].caller.namespace, NetworkNamespace)
    assert sources[0].caller.namespace.name == "n3-client"


@pytest.mark.parametrize(
    ("family", "hosts"),
    [
        ("ipv4", ["172.18.0.4", "172.18.0.2", "172.18.0.3", "172.18.0.1"]),
        ("ipv6", ["fd00:172::4", "fd00:172::2", "fd00:172::3", "fd00:172::1"]),
    ],
)
async def test_node_ports_from_outside(family: str, hosts: list[str]) -> None:
    """Every node is called at its own address, spread over all nodes."""
    one = service(
        type="NodePort",
        ports=PORTS,
        cluster_ips=("10.96.0.10", "fd00:96::10"),
        ip_families=("IPv4", "IPv6"),
    )
    sources = await find(one, source="outside", connections=10, family=family)
    assert [one.caller.host for one in sources] == hosts
    assert [one.caller.times for one in sources] == [3, 3, 2, 2]
    assert {one.caller.port for one in sources} == {30080}
    assert [one.name for one in sources] == [
        f"outside via {name}" for name in ("n4", "n2", "n3", "n1")
    ]


async def test_load_balancers_spare_nodes() -> None:
    """Each other node in turn is the way to the one address."""
    one = service(type="LoadBalancer", ports=PORTS)
    status = ServiceStatus(LoadBalancerStatus((LoadBalancerIngress(ip="203.0.113.7"),)))
    one = Service(metadata=one.metadata, spec=one.spec, status=status)
    sources = await find(one, via="load-balancer", connections=9, spared=("n2", "n4"))
    assert [(one.node, one.gateway, one.caller.times) for one in sources] == [
        ("n3", "172.18.0.3", 5),
        ("n1", "172.18.0.1", 4),
    ]
    assert {(one.caller.host, one.caller.port) for one in sources} == {("203.0.113.7", 80)}


async def test_lost_nodes_send_nothing() -> None:
    """Those left in a zone send for all, unless somebody asks a lost one by its name."""
    left = await find(service(), source="zone-a", connections=8, spared=("n2", "n1"))
    assert [(one.name, one.caller.times) for one in left] == [("n3", 8)]
    everywhere = await find(service(), connections=8, spared=("n2", "n1"))
    assert [(one.name, one.caller.times) for one in everywhere] == [("n4", 8), ("n3", 8)]
    asked = await find(service(), source="n2", connections=8, spared=("n2",))
    assert [(one.name, one.caller.times) for one in asked] == [("n2", 8)]


async def test_no_nodes() -> None:
    """A cluster without nodes has nobody to call."""
    with pytest.raises(LabRefusal, match="this cluster has no nodes"):
        await find(service(), nodes=())


@settings(deadline=None, max_examples=100)
@given(whole=st.integers(0, 10_000), parts=st.integers(0, 50))
def test_shares_are_even_and_whole(whole: int, parts: int) -> None:
    """Nothing is lost, and no two parts differ by more than one."""
    shares = divide_connections(whole, parts)
    assert len(shares) == parts
    if parts:
        assert sum(shares) == whole
        assert max(shares) - min(shares) <= 1
