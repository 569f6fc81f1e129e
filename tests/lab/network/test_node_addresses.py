"""Addresses by the number of the node: all distinct, and never reused at once."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest

from keepclose.lab.network.addresses import (
    FIRST_POD,
    LAST_POD,
    LOAD_BALANCER_NETWORKS,
    MAX_NODES,
    NODE_PREFIX_LENGTHS,
    OUTSIDE_ADDRESSES,
    SERVICE_NETWORKS,
    NodeNumbering,
    PodNumbers,
    mac_address,
    node_addresses,
)
from keepclose.system.namespaces import NetworkError


@pytest.mark.parametrize(
    ("number", "want"),
    [
        pytest.param(
            1,
            NodeNumbering(1, "172.18.0.1", "fd00:172::1", "10.244.1.0/24", "fd00:244:1::/64"),
            id="the first",
        ),
        pytest.param(
            255,
            NodeNumbering(
                255, "172.18.0.255", "fd00:172::255", "10.244.255.0/24", "fd00:244:255::/64"
            ),
            id="the last of the first range",
        ),
        pytest.param(
            256,
            NodeNumbering(256, "172.18.1.0", "fd00:172::256", "10.245.0.0/24", "fd00:244:256::/64"),
            id="the first of the next range",
        ),
    ],
)
def test_addresses_of_a_node(number: int, want: NodeNumbering) -> None:
    """The number of a node can be read from all its addresses."""
    assert node_addresses(number) == want


@pytest.mark.parametrize("number", [-1, 0, MAX_NODES + 1])
def test_there_is_no_such_node(number: int) -> None:
    """Numbers that would give wrong addresses are refused."""
    with pytest.raises(NetworkError, match=rf"^there can be 1 to 1000 nodes, not node {number}$"):
        node_addresses(number)


def test_nobody_shares_addresses() -> None:
    """All ranges are valid and overlap with no other."""
    nodes = [node_addresses(number) for number in range(1, MAX_NODES + 1)]
    pods = [ip_network(cidr) for node in nodes for cidr in (node.pod_cidr, node.pod_cidr6)]
    others = [ip_network(cidr) for cidr in (*SERVICE_NETWORKS, *LOAD_BALANCER_NETWORKS)]
    nodes4 = ip_network(f"172.18.0.0/{NODE_PREFIX_LENGTHS[0]}")
    nodes6 = ip_network(f"fd00:172::/{NODE_PREFIX_LENGTHS[1]}")
    places = [ip_address(one) for node in nodes for one in (node.address, node.address6)]
    places += [ip_address(one) for one in OUTSIDE_ADDRESSES]
    assert len(set(pods)) == 2 * MAX_NODES
    assert len(set(places)) == 2 * MAX_NODES + 2
    assert nodes4.broadcast_address not in places
    assert all(one in nodes4 for one in places if isinstance(one, IPv4Address))
    assert all(one in nodes6 for one in places if isinstance(one, IPv6Address))
    big = [nodes4, nodes6, *others]
    assert not any(one.overlaps(other) for one in pods for other in big)


def test_pods_have_one_number_in_both_families() -> None:
    """Digits are the same in both."""
    assert node_addresses(12).pod_addresses(34) == ("10.244.12.34", "fd00:244:12::34")


def test_hardware_addresses_follow_addresses() -> None:
    """They are unicast and made up locally."""
    assert mac_address("10.244.1.3") == "02:6b:0a:f4:01:03"


def test_numbers_are_not_reused_at_once() -> None:
    """The next free number after the last is given, and only at the end it begins anew."""
    numbers = PodNumbers()
    assert [numbers.take() for _ in range(3)] == [3, 4, 5]
    numbers.release(4)
    assert numbers.take() == 6
    for want in range(7, LAST_POD + 1):
        assert numbers.take() == want
    assert numbers.take() == 4
    assert numbers.free == 0


def test_numbers_end() -> None:
    """Who has no more says so, and one that is given back can be had again."""
    numbers = PodNumbers()
    for _ in range(FIRST_POD, LAST_POD + 1):
        numbers.take()
    with pytest.raises(NetworkError, match=r"^all 252 pod addresses are in use$"):
        numbers.take()
    numbers.release(100)
    numbers.release(100)
    assert numbers.free == 1
    assert numbers.take() == 100
