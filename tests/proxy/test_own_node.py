"""What a proxy knows of its own node, and when it hears of a change."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.workload import Node, NodeAddress, NodeSpec, NodeStatus
from keepclose.proxy.caches import ProxyCaches
from keepclose.proxy.own_node import NodeAddresses, OtherNodes, OwnNode, find_addresses
from keepclose.routing.port_endpoints import NodeView
from keepclose.testing.fake_clock import FakeClock
from support.builders import node, service


def addressed(one: Node, *addresses: tuple[str, str], pod_cidrs: tuple[str, ...] = ()) -> Node:
    """Return the node with these addresses, each a type and a text."""
    status = NodeStatus(addresses=tuple(NodeAddress(*pair) for pair in addresses))
    return replace(one, status=status, spec=NodeSpec(pod_cidrs=pod_cidrs))


def make_own(gates: FeatureGates | None = None) -> tuple[OwnNode, list[str]]:
    """Return the own node n1, and a list of what it tells."""
    told: list[str] = []
    own = OwnNode(
        "n1",
        gates=gates or FeatureGates(),
        on_topology=lambda: told.append("topology"),
        on_addresses=lambda: told.append("addresses"),
    )
    return own, told


def test_a_new_zone_is_told_and_other_labels_are_not() -> None:
    """Only the zone and region of the own node matter."""
    own, told = make_own()
    own.on_node(None, node("n1", "zone-a"))
    assert (own.view, told) == (NodeView("n1", "zone-a"), ["topology"])
    own.on_node(node("n1", "zone-a"), node("n1", "zone-a", labels={"team": "blue"}))
    own.on_node(None, node("n2", "zone-b"))
    assert told == ["topology"]
    own.on_node(node("n1", "zone-a"), node("n1", None))
    assert (own.view, told) == (NodeView("n1"), ["topology", "topology"])


def test_labels_matter_to_topology_keys() -> None:
    """With the gate of topologyKeys every label counts."""
    gates = FeatureGates().without(Gate.TOPOLOGY_AWARE_HINTS).with_gates(Gate.SERVICE_TOPOLOGY)
    own, told = make_own(gates)
    own.on_node(None, node("n1", "zone-a"))
    own.on_node(None, node("n1", "zone-a", labels={"rack": "7"}))
    assert told == ["topology", "topology"]
    assert own.view.labels["rack"] == "7"


def test_a_node_that_is_deleted_stays_known() -> None:
    """The last view and addresses stay in effect."""
    own, told = make_own()
    one = addressed(node("n1", "zone-a"), ("InternalIP", "192.168.0.1"))
    own.on_node(None, one)
    own.on_node(one, None)
    assert (own.view.zone, own.addresses.ips) == ("zone-a", {"IPv4": "192.168.0.1"})
    assert told == ["topology", "addresses"]


@pytest.mark.parametrize(
    ("addresses", "bind_address", "want"),
    [
        pytest.param((), "", {}, id="none"),
        pytest.param(
            (("ExternalIP", "1.2.3.4"), ("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2")),
            "",
            {"IPv4": "10.0.0.1"},
            id="internal ones come first",
        ),
        pytest.param(
            (("Hostname", "n1"), ("InternalIP", "fd00::1"), ("ExternalIP", "1.2.3.4")),
            "",
            {"IPv6": "fd00::1", "IPv4": "1.2.3.4"},
            id="one of each family",
        ),
        pytest.param(
            (("InternalIP", "10.0.0.1"),),
            "10.9.9.9",
            {"IPv4": "10.9.9.9"},
            id="a concrete address to bind to wins",
        ),
        pytest.param(
            (("InternalIP", "10.0.0.1"),),
            "0.0.0.0",  # noqa: S104 - nothing is bound
            {"IPv4": "10.0.0.1"},
            id="all addresses do not",
        ),
        pytest.param((("InternalIP", "nonsense"),), "", {}, id="no address"),
    ],
)
def test_addresses(
    addresses: tuple[tuple[str, str], ...], bind_address: str, want: dict[str, str]
) -> None:
    """The first address of each family counts."""
    assert find_addresses(addressed(node("n1"), *addresses), bind_address).ips == want


def test_ranges_of_pods() -> None:
    """The first range of each family counts, and an old node has one without a list."""
    one = addressed(node("n1"), pod_cidrs=("10.244.1.0/24", "fd00:1::/64", "10.99.0.0/24", "x"))
    assert find_addresses(one).pod_cidrs == {"IPv4": "10.244.1.0/24", "IPv6": "fd00:1::/64"}
    old = replace(node("n1"), spec=NodeSpec(pod_cidr="10.244.7.0/24"))
    assert find_addresses(old).pod_cidrs == {"IPv4": "10.244.7.0/24"}
    assert find_addresses(None) == NodeAddresses()


async def test_labels_of_other_nodes() -> None:
    """Changes that arrive together are one update; heartbeats are none."""
    gates = FeatureGates().without(Gate.TOPOLOGY_AWARE_HINTS).with_gates(Gate.SERVICE_TOPOLOGY)
    own, told = make_own(gates)
    caches = ProxyCaches()
    others = OtherNodes(own, caches, wait_s=5.0, clock=FakeClock())
    caches.all_nodes.subscribe(others.on_node)
    caches.all_nodes.put(node("n2", "zone-b", labels={"rack": "7"}))
    caches.all_nodes.put(node("n3", "zone-b"))
    await asyncio.sleep(0)
    assert told == ["topology"]
    assert (sorted(own.view.others), own.view.others["n2"]["rack"]) == (["n2", "n3"], "7")
    others.on_node(node("n3", "zone-b"), node("n3", "zone-b"))
    await asyncio.sleep(0)
    assert told == ["topology"]


async def test_other_nodes_are_watched_once_a_service_needs_them() -> None:
    """The watch waits for topologyKeys that name labels; until then no wait delays a sync."""
    own, _ = make_own()
    clock = FakeClock()
    others = OtherNodes(own, ProxyCaches(), wait_s=5.0, clock=clock)
    watching = asyncio.create_task(others.watch())
    plain = service()
    keyed = replace(plain, spec=replace(plain.spec, topology_keys=("rack", "*")))
    others.on_service(None, plain)
    others.on_service(keyed, None)
    await others.wait()
    await asyncio.sleep(0)
    assert not watching.done()
    others.on_service(plain, keyed)
    # Without a reflector there is nothing to watch.
    await watching
