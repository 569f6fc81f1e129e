"""What tc is told: bands by delay, and the destinations of each."""

from __future__ import annotations

import pytest

from keepclose.lab.network.addresses import node_addresses
from keepclose.lab.network.links import delay_lines
from keepclose.system.namespaces import NetworkError

FAR, FARTHER = node_addresses(2), node_addresses(3)


def test_nobody_far_away_needs_nothing() -> None:
    """Without delays nothing is set up."""
    assert delay_lines([(FAR, 0.0), (FARTHER, 0.0)]) == []


def test_each_delay_has_a_band() -> None:
    """All that goes to a node or its pods takes the band of its delay, the rest the first one."""
    zeros = "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"
    begin = "filter add dev eth0 parent 1: protocol"
    assert delay_lines([(node_addresses(1), 0.0), (FAR, 0.6), (FARTHER, 25)]) == [
        f"qdisc add dev eth0 root handle 1: prio bands 3 priomap {zeros}",
        "qdisc add dev eth0 parent 1:2 netem limit 100000 delay 0.600ms",
        f"{begin} ip prio 1 u32 match ip dst 172.18.0.2/32 flowid 1:2",
        f"{begin} ipv6 prio 2 u32 match ip6 dst fd00:172::2/128 flowid 1:2",
        f"{begin} ip prio 1 u32 match ip dst 10.244.2.0/24 flowid 1:2",
        f"{begin} ipv6 prio 2 u32 match ip6 dst fd00:244:2::/64 flowid 1:2",
        "qdisc add dev eth0 parent 1:3 netem limit 100000 delay 25.000ms",
        f"{begin} ip prio 1 u32 match ip dst 172.18.0.3/32 flowid 1:3",
        f"{begin} ipv6 prio 2 u32 match ip6 dst fd00:172::3/128 flowid 1:3",
        f"{begin} ip prio 1 u32 match ip dst 10.244.3.0/24 flowid 1:3",
        f"{begin} ipv6 prio 2 u32 match ip6 dst fd00:244:3::/64 flowid 1:3",
    ]


def test_equal_delays_share_a_band() -> None:
    """The number of nodes is not limited by the number of bands, which are counted in hex."""
    nodes = [(node_addresses(number), float(1 + number % 15)) for number in range(1, 61)]
    lines = delay_lines(nodes)
    assert lines[0].startswith("qdisc add dev eth0 root handle 1: prio bands 16 priomap 0")
    assert sum("netem" in line for line in lines) == 15
    assert sum("u32" in line for line in lines) == 60 * 4
    assert lines[-1].endswith("flowid 1:10")


def test_too_many_delays_are_refused() -> None:
    """A node cannot tell more than fifteen delays apart."""
    nodes = [(node_addresses(number), float(number)) for number in range(1, 17)]
    with pytest.raises(NetworkError, match=r"^16 different delays from one node, 15 at most$"):
        delay_lines(nodes)
