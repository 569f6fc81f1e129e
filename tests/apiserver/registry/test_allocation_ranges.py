"""Ranges of cluster IPs and node ports."""

from __future__ import annotations

from ipaddress import ip_address
from random import Random

import pytest

from keepclose.apiserver.registry.allocation_ranges import AddressRange, NodePorts, RangeError


def test_first_and_last_address_of_a_network_are_never_handed_out() -> None:
    """An IPv4 range of eight has six addresses."""
    some = AddressRange("10.0.0.0/29", random=Random(1))
    drawn = {some.allocate_next() for _ in range(6)}
    assert drawn == {f"10.0.0.{last}" for last in range(1, 7)}
    assert some.allocate_next() is None


def test_the_last_address_of_an_ipv6_network_is_handed_out() -> None:
    """IPv6 has no broadcast, so only the first address is left out."""
    some = AddressRange("fd00::/126", random=Random(1))
    assert {some.allocate_next() for _ in range(3)} == {"fd00::1", "fd00::2", "fd00::3"}
    assert some.allocate("fd00::") == "the provided network does not match the current range"


def test_a_huge_range_costs_nothing() -> None:
    """A /64 is not gone through, and its addresses lie above the band for named ones."""
    some = AddressRange("fd00::/64", random=Random(1))
    drawn = {some.allocate_next() for _ in range(1000)}
    assert len(drawn) == 1000
    lowest = int(ip_address("fd00::")) + 256
    assert all(address and int(ip_address(address)) > lowest for address in drawn)
    assert some.free == (1 << 64) - 1 - 1000


@pytest.mark.parametrize(
    ("address", "want_why"),
    [
        pytest.param("10.0.0.9", "", id="a free one is held"),
        pytest.param("010.0.0.009", "", id="zeros in front are read"),
        pytest.param("10.0.0.7", "provided IP is already allocated", id="one that is held"),
        pytest.param(
            "10.0.1.7",
            "the provided network does not match the current range",
            id="one of another network",
        ),
        pytest.param(
            "fd00::7",
            "the provided network does not match the current range",
            id="one of another family",
        ),
        pytest.param(
            "10.0.0.255",
            "the provided network does not match the current range",
            id="the broadcast address",
        ),
    ],
)
def test_named_addresses_are_held_or_refused(address: str, want_why: str) -> None:
    """A named address is held unless somebody has it or it lies elsewhere."""
    some = AddressRange("10.0.0.0/24", random=Random(1))
    assert some.allocate("10.0.0.7") == ""
    assert some.allocate(address) == want_why
    assert some.holds(address) == (want_why in ("", "provided IP is already allocated"))


def test_an_address_that_was_given_back_can_be_held_again() -> None:
    """Giving back makes an address free, and is harmless for any other."""
    some = AddressRange("10.0.0.0/24", random=Random(1))
    some.allocate("10.0.0.7")
    for address in ("10.0.0.7", "10.0.0.8", "192.168.0.1"):
        some.release(address)
    assert some.free == 254
    assert some.allocate("10.0.0.7") == ""


@pytest.mark.parametrize(
    ("cidr", "want_why"),
    [
        pytest.param("10.0.0.1/24", "10.0.0.1/24 has host bits set", id="stray bits"),
        pytest.param("nonsense", "does not appear to be", id="no network"),
        pytest.param("fd00::/48", "too large: the shortest prefix", id="too many addresses"),
    ],
)
def test_a_range_that_cannot_be_used_says_why(cidr: str, want_why: str) -> None:
    """Bad ranges are refused when they are read."""
    with pytest.raises(RangeError, match=want_why):
        AddressRange(cidr)


@pytest.mark.parametrize(
    ("port", "want_why"),
    [
        pytest.param(30001, "", id="a free one is held"),
        pytest.param(30000, "provided port is already allocated", id="one that is held"),
        pytest.param(
            80,
            "provided port is not in the valid range. The range of valid ports is 30000-32767",
            id="one outside",
        ),
    ],
)
def test_named_ports_are_held_or_refused(port: int, want_why: str) -> None:
    """A named port is held unless somebody has it or it lies elsewhere."""
    ports = NodePorts(30000, 32767, random=Random(1))
    assert ports.allocate(30000) == ""
    assert ports.allocate(port) == want_why


def test_drawn_ports_keep_clear_of_the_lower_band() -> None:
    """Ports are drawn above the band for named ones while there are any."""
    ports = NodePorts(30000, 32767, random=Random(1))
    drawn = [ports.allocate_next() for _ in range(2768 - 86)]
    assert min(port for port in drawn if port is not None) == 30086
    assert {ports.allocate_next() for _ in range(86)} == set(range(30000, 30086))
    assert ports.allocate_next() is None
    ports.release(31000)
    ports.release(80)
    assert (ports.free, ports.holds(80), ports.allocate_next()) == (1, False, 31000)


def test_a_range_of_ports_must_be_one() -> None:
    """Bounds the wrong way round are refused."""
    with pytest.raises(RangeError, match="5-4 is no range of ports"):
        NodePorts(5, 4)
