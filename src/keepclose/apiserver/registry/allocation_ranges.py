"""The ranges that a cluster hands out to Services: cluster IPs of one family, and node ports.

Both say in the words of Kubernetes why they refuse a value that a user named. The first address of
a network is never handed out, nor the last one of an IPv4 network.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from random import Random, SystemRandom
from threading import Lock
from typing import Final

from keepclose.model.addresses import IPV4, IPV6, parse_lenient

_SYSTEM_RANDOM: Final = SystemRandom()
FULL: Final = "range is full"
IP_TAKEN: Final = "provided IP is already allocated"
IP_ELSEWHERE: Final = "the provided network does not match the current range"
PORT_TAKEN: Final = "provided port is already allocated"
# A longer host part would not fit the 64 bits in which Kubernetes counts addresses.
SHORTEST_IPV6_PREFIX: Final = 64


class Band:
    """The numbers from 0 up to a size, the free ones before the held ones in an imagined list.

    Only numbers that are not at their own place in that list are written down.
    """

    __slots__ = ("_at", "_place", "free", "size")

    def __init__(self, size: int) -> None:
        """Start with all numbers free."""
        self.size = size
        self.free = size
        self._at: dict[int, int] = {}
        self._place: dict[int, int] = {}

    def holds(self, number: int) -> bool:
        """Return whether somebody has the number."""
        return self._place.get(number, number) >= self.free

    def take(self, number: int) -> bool:
        """Hold the number; return False when somebody has it already."""
        if self.holds(number):
            return False
        self.free -= 1
        self._swap(self._place.get(number, number), self.free)
        return True

    def draw(self, random: Random) -> int | None:
        """Hold any free number and return it, or None when there is none."""
        if self.free == 0:
            return None
        place = random.randrange(self.free)
        number = self._at.get(place, place)
        self.take(number)
        return number

    def give(self, number: int) -> None:
        """Let the number go; nothing happens when nobody has it."""
        if not self.holds(number):
            return
        self._swap(self._place.get(number, number), self.free)
        self.free += 1
        # NB: free numbers go back to their own places, or in time the whole list is written down.
        last = self.free - 1
        while last != (found := self._at.get(last, last)) and found < self.free:
            self._swap(last, found)

    def _swap(self, one: int, other: int) -> None:
        first, second = self._at.get(one, one), self._at.get(other, other)
        self._set(one, second)
        self._set(other, first)

    def _set(self, place: int, number: int) -> None:
        if place == number:
            self._at.pop(place, None)
            self._place.pop(number, None)
        else:
            self._at[place] = number
            self._place[number] = place


class Pool:
    """Two bands: the lower one is drawn from only when nothing else is left."""

    def __init__(self, size: int, *, reserved: int, random: Random | None = None) -> None:
        """Start with all numbers free; the first `reserved` ones are the lower band."""
        self.size = size
        self._reserved = reserved
        self._lower = Band(reserved)
        self._upper = Band(size - reserved)
        self._random = random or _SYSTEM_RANDOM
        self._lock = Lock()

    @property
    def free(self) -> int:
        """How many numbers nobody has."""
        return self._lower.free + self._upper.free

    def holds(self, number: int) -> bool:
        """Return whether somebody has the number; it must be one of the pool's."""
        band, place = self._find(number)
        return band.holds(place)

    def take(self, number: int) -> bool:
        """Hold the number, which must be one of the pool's; return False when it is held."""
        band, place = self._find(number)
        with self._lock:
            return band.take(place)

    def draw(self) -> int | None:
        """Hold any free number and return it, or None when the pool is empty."""
        with self._lock:
            drawn = self._upper.draw(self._random)
            return self._lower.draw(self._random) if drawn is None else drawn + self._reserved

    def give(self, number: int) -> None:
        """Let the number go, which must be one of the pool's."""
        band, place = self._find(number)
        with self._lock:
            band.give(place)

    def _find(self, number: int) -> tuple[Band, int]:
        if number < self._reserved:
            return self._lower, number
        return self._upper, number - self._reserved


def reserved_for_names(size: int, *, share: int, most: int) -> int:
    """Return how many numbers of a range are kept for those who name theirs.

    One in `share`, at least 16 and at most `most`; none of a range of 16 or less.
    """
    return 0 if size <= 16 else min(max(16, size // share), most)


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
