"""The ranges that a cluster hands out to Services: cluster IPs of one family, and node ports.

Both say in the words of Kubernetes why they refuse a value that a user named. The first address of
a network is never handed out, nor the last one of an IPv4 network.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from random import Random
from typing import Final

from keepclose.apiserver.strategies.allocation.pools import Pool, reserved_for_names
from keepclose.model.addresses import IPV4, IPV6, parse_lenient

FULL: Final = "range is full"
IP_TAKEN: Final = "provided IP is already allocated"
IP_ELSEWHERE: Final = "the provided network does not match the current range"
PORT_TAKEN: Final = "provided port is already allocated"
# A longer host part would not fit the 64 bits in which Kubernetes counts addresses.
SHORTEST_IPV6_PREFIX: Final = 64


class RangeError(ValueError):
    """A range that cannot be used; says why."""


class AddressRange:
    """The cluster IPs of one family."""

    def __init__(self, cidr: str, *, random: Random | None = None) -> None:
        """Read the range; raises RangeError when it is none or too large."""
        self._network = _read_network(cidr)
        self.family = IPV4 if self._network.version == 4 else IPV6
        self._first = int(self._network.network_address) + 1
        total = self._network.num_addresses
        size = max(0, total - 2 if self._network.version == 4 else total - 1)
        reserved = min(size, reserved_for_names(total, share=16, most=256))
        self._pool = Pool(size, reserved=reserved, random=random)

    @property
    def cidr(self) -> str:
        """The range as text."""
        return str(self._network)

    @property
    def first(self) -> str:
        """The first address, which is that of the Service default/kubernetes; "" of none."""
        return self._text_at(0) if self._pool.size else ""

    @property
    def free(self) -> int:
        """How many addresses nobody has."""
        return self._pool.free

    @property
    def placeholder(self) -> str:
        """What a dry run shows for an address: one that nobody ever has."""
        return str(self._network.network_address)

    def holds(self, address: str) -> bool:
        """Return whether somebody has the address."""
        place = self._place(address)
        return place is not None and self._pool.holds(place)

    def refusal(self, address: str) -> str:
        """Return why the range cannot hand the address out to anybody, or ""."""
        return IP_ELSEWHERE if self._place(address) is None else ""

    def take(self, address: str) -> str:
        """Hold the address; return why not, or "" when it is held now."""
        place = self._place(address)
        if place is None:
            return IP_ELSEWHERE
        return "" if self._pool.take(place) else IP_TAKEN

    def draw(self) -> str | None:
        """Hold any free address and return it, or None when there is none."""
        place = self._pool.draw()
        return None if place is None else self._text_at(place)

    def give(self, address: str) -> None:
        """Let the address go; one of another range, or a free one, changes nothing."""
        place = self._place(address)
        if place is not None:
            self._pool.give(place)

    def _text_at(self, place: int) -> str:
        kind = IPv4Address if self.family == IPV4 else IPv6Address
        return str(kind(self._first + place))

    def _place(self, address: str) -> int | None:
        parsed = parse_lenient(address)
        if parsed is None or parsed.address.version != self._network.version:
            return None
        place = int(parsed.address) - self._first
        return place if 0 <= place < self._pool.size else None


class NodePorts:
    """The ports that are opened on every node, those for health checks among them."""

    def __init__(self, first: int, last: int, *, random: Random | None = None) -> None:
        """Start with all ports from first to last free."""
        if not 0 < first <= last < 1 << 16:
            raise RangeError(f"{first}-{last} is no range of ports")
        self.first = first
        self.last = last
        size = last - first + 1
        self._pool = Pool(
            size, reserved=reserved_for_names(size, share=32, most=128), random=random
        )

    @property
    def free(self) -> int:
        """How many ports nobody has."""
        return self._pool.free

    def holds(self, port: int) -> bool:
        """Return whether somebody has the port."""
        return self.first <= port <= self.last and self._pool.holds(port - self.first)

    def take(self, port: int) -> str:
        """Hold the port; return why not, or "" when it is held now."""
        if not self.first <= port <= self.last:
            return (
                "provided port is not in the valid range. "
                f"The range of valid ports is {self.first}-{self.last}"
            )
        return "" if self._pool.take(port - self.first) else PORT_TAKEN

    def draw(self) -> int | None:
        """Hold any free port and return it, or None when there is none."""
        drawn = self._pool.draw()
        return None if drawn is None else drawn + self.first

    def give(self, port: int) -> None:
        """Let the port go; one outside the range, or a free one, changes nothing."""
        if self.first <= port <= self.last:
            self._pool.give(port - self.first)


def _read_network(cidr: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(cidr)
    except ValueError as error:
        raise RangeError(f"{cidr} is no range of cluster IPs: {error}") from error
    if "/" not in cidr:
        raise RangeError(f"{cidr} is no range of cluster IPs: a length such as /24 is missing")
    if network.version == 6 and network.prefixlen < SHORTEST_IPV6_PREFIX:
        raise RangeError(
            f"{cidr} is too large: the shortest prefix of a range of cluster IPs is "
            f"{SHORTEST_IPV6_PREFIX}, not {network.prefixlen}"
        )
    return network
