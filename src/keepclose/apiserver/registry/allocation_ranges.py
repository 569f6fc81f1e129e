"""The ranges that a cluster allocates to Services: cluster IPs of one family, and node ports.

A pool has a lower band for numbers that users name and an upper one for automatic allocation, so
that the two rarely collide; automatic allocation falls back to the lower band when the upper one is
empty, as Kubernetes does for cluster IPs (KEP-3070) and node ports (KEP-3668). Every operation
takes constant time, and a pool of 2**64 numbers needs memory only for the allocated ones. Large
writes of Services run in threads, so a pool has a lock. Ranges explain in the words of Kubernetes
why they reject a value that a user named. The first address of a network is never allocated, nor
the last one of an IPv4 network.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from random import Random, SystemRandom
from threading import Lock
from typing import Final

from keepclose.model.addresses import IPV4, IPV6, parse_lenient

FULL: Final = "range is full"
IP_TAKEN: Final = "provided IP is already allocated"
IP_ELSEWHERE: Final = "the provided network does not match the current range"
PORT_TAKEN: Final = "provided port is already allocated"
# A longer host part would not fit the 64 bits in which Kubernetes counts addresses.
SHORTEST_IPV6_PREFIX: Final = 64
_SYSTEM_RANDOM: Final = SystemRandom()


class Band:
    """The numbers from 0 up to a size, as a virtual list of free numbers before allocated ones.

    Only numbers that are not at their own index in that list are stored.
    """

    __slots__ = ("_index_of", "_number_at", "free", "size")

    def __init__(self, size: int) -> None:
        """Start with all numbers free."""
        self.size = size
        self.free = size
        self._number_at: dict[int, int] = {}
        self._index_of: dict[int, int] = {}

    def holds(self, number: int) -> bool:
        """Return whether the number is allocated."""
        return self._index_of.get(number, number) >= self.free

    def allocate(self, number: int) -> bool:
        """Allocate the number; return False when it is allocated already."""
        if self.holds(number):
            return False
        self.free -= 1
        self._swap(self._index_of.get(number, number), self.free)
        return True

    def allocate_next(self, random: Random) -> int | None:
        """Allocate and return any free number, or None when there is none."""
        if self.free == 0:
            return None
        index = random.randrange(self.free)
        number = self._number_at.get(index, index)
        self.allocate(number)
        return number

    def release(self, number: int) -> None:
        """Release the number; a free number changes nothing."""
        if not self.holds(number):
            return
        self._swap(self._index_of.get(number, number), self.free)
        self.free += 1
        # NB: free numbers return to their own index, or in time the whole list would be stored.
        last = self.free - 1
        while (
            last != (number_at_last := self._number_at.get(last, last))
            and number_at_last < self.free
        ):
            self._swap(last, number_at_last)

    def _swap(self, left: int, right: int) -> None:
        first, second = self._number_at.get(left, left), self._number_at.get(right, right)
        self._set(left, second)
        self._set(right, first)

    def _set(self, index: int, number: int) -> None:
        if index == number:
            self._number_at.pop(index, None)
            self._index_of.pop(number, None)
        else:
            self._number_at[index] = number
            self._index_of[number] = index


class Pool:
    """Two bands; automatic allocation uses the lower one only when the upper one is empty."""

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
        """How many numbers are free."""
        return self._lower.free + self._upper.free

    def holds(self, number: int) -> bool:
        """Return whether the number is allocated; it must be one of the pool's."""
        band, index = self._find(number)
        return band.holds(index)

    def allocate(self, number: int) -> bool:
        """Allocate the number, which must be one of the pool's; return False when it is taken."""
        band, index = self._find(number)
        with self._lock:
            return band.allocate(index)

    def allocate_next(self) -> int | None:
        """Allocate and return any free number, or None when the pool is empty."""
        with self._lock:
            drawn = self._upper.allocate_next(self._random)
            return (
                self._lower.allocate_next(self._random) if drawn is None else drawn + self._reserved
            )

    def release(self, number: int) -> None:
        """Release the number, which must be one of the pool's."""
        band, index = self._find(number)
        with self._lock:
            band.release(index)

    def _find(self, number: int) -> tuple[Band, int]:
        if number < self._reserved:
            return self._lower, number
        return self._upper, number - self._reserved


def reserved_for_names(size: int, *, share: int, most: int) -> int:
    """Return how many numbers of a range are reserved for values that users name.

    One in `share`, at least 16 and at most `most`; none of a range of 16 or less.
    """
    return 0 if size <= 16 else min(max(16, size // share), most)


class RangeError(ValueError):
    """The reason why a range cannot be used."""


class AddressRange:
    """The cluster IPs of one family."""

    def __init__(self, cidr: str, *, random: Random | None = None) -> None:
        """Parse the range; raises RangeError when it is invalid or too large."""
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
        """The first address, that of the Service default/kubernetes; "" of an empty range."""
        return self._text_at(0) if self._pool.size else ""

    @property
    def free(self) -> int:
        """How many addresses are free."""
        return self._pool.free

    @property
    def placeholder(self) -> str:
        """The address that a dry run shows: it is never allocated."""
        return str(self._network.network_address)

    def holds(self, address: str) -> bool:
        """Return whether the address is allocated."""
        index = self._index_of(address)
        return index is not None and self._pool.holds(index)

    def refusal(self, address: str) -> str:
        """Return why the address can never be allocated from this range, or ""."""
        return IP_ELSEWHERE if self._index_of(address) is None else ""

    def allocate(self, address: str) -> str:
        """Allocate the address; return "", or the reason why it cannot be allocated."""
        index = self._index_of(address)
        if index is None:
            return IP_ELSEWHERE
        return "" if self._pool.allocate(index) else IP_TAKEN

    def allocate_next(self) -> str | None:
        """Allocate and return any free address, or None when there is none."""
        index = self._pool.allocate_next()
        return None if index is None else self._text_at(index)

    def release(self, address: str) -> None:
        """Release the address; one of another range, or a free one, changes nothing."""
        index = self._index_of(address)
        if index is not None:
            self._pool.release(index)

    def _text_at(self, index: int) -> str:
        kind = IPv4Address if self.family == IPV4 else IPv6Address
        return str(kind(self._first + index))

    def _index_of(self, address: str) -> int | None:
        parsed = parse_lenient(address)
        if parsed is None or parsed.address.version != self._network.version:
            return None
        index = int(parsed.address) - self._first
        return index if 0 <= index < self._pool.size else None


class NodePorts:
    """The node ports, including those for health checks."""

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
        """How many ports are free."""
        return self._pool.free

    def holds(self, port: int) -> bool:
        """Return whether the port is allocated."""
        return self.first <= port <= self.last and self._pool.holds(port - self.first)

    def allocate(self, port: int) -> str:
        """Allocate the port; return "", or the reason why it cannot be allocated."""
        if not self.first <= port <= self.last:
            return (
                "provided port is not in the valid range. "
                f"The range of valid ports is {self.first}-{self.last}"
            )
        return "" if self._pool.allocate(port - self.first) else PORT_TAKEN

    def allocate_next(self) -> int | None:
        """Allocate and return any free port, or None when there is none."""
        drawn = self._pool.allocate_next()
        return None if drawn is None else drawn + self.first

    def release(self, port: int) -> None:
        """Release the port; one outside the range, or a free one, changes nothing."""
        if self.first <= port <= self.last:
            self._pool.release(port - self.first)


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
