"""Addresses of nodes, their pods and the host outside, by the number of the node.

Every node has a range of each family for its pods. The first address is the node's own, as the
gateway of its pods; the second belongs to the client on the node; pods have the others.
The address of a deleted pod is never allocated again at once, because connections to that pod may
still be tracked.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keepclose.system.namespaces import NetworkError

SERVICE_NETWORKS: Final = ("10.96.0.0/16", "fd00:96::/108")
POD_NETWORKS: Final = ("10.244.0.0/14", "fd00:244::/32")
LOAD_BALANCER_NETWORKS: Final = ("203.0.113.0/24", "2001:db8:cafe::/64")
OUTSIDE_ADDRESSES: Final = ("172.18.255.254", "fd00:172::ffff")
NODE_PREFIX_LENGTHS: Final = (16, 64)
# A bridge of Linux has 1023 ports.
MAX_NODES: Final = 1000
GATEWAY: Final = 1
CLIENT: Final = 2
FIRST_POD: Final = 3
LAST_POD: Final = 254


class NodeNumbering(NamedTuple):
    """The number and the addresses of a node."""

    number: int
    address: str
    address6: str
    pod_cidr: str
    pod_cidr6: str

    def pod_addresses(self, host: int) -> tuple[str, str]:
        """Return the address of each family with this number in the node's pod ranges."""
        # The decimal digits are used as they are in both families, so that both look alike.
        return (
            f"{self.pod_cidr.removesuffix('0/24')}{host}",
            f"{self.pod_cidr6.removesuffix('/64')}{host}",
        )


def node_addresses(number: int) -> NodeNumbering:
    """Return the addresses of a node, counted from 1; raises NetworkError beyond the last."""
    if not 1 <= number <= MAX_NODES:
        raise NetworkError(f"there can be 1 to {MAX_NODES} nodes, not node {number}")
    high, low = divmod(number, 256)
    return NodeNumbering(
        number,
        f"172.18.{high}.{low}",
        f"fd00:172::{number}",
        f"10.{244 + high}.{low}.0/24",
        f"fd00:244:{number}::/64",
    )


def mac_address(address: str) -> str:
    """Return the hardware address that belongs to an IPv4 address."""
    return "02:6b:" + ":".join(f"{int(part):02x}" for part in address.split("."))


class PodNumbers:
    """Allocates the pod addresses of one node: the next free number after the last allocated."""

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._last = FIRST_POD - 1

    @property
    def free(self) -> int:
        """How many numbers are free."""
        return LAST_POD - FIRST_POD + 1 - len(self._used)

    def take(self) -> int:
        """Return a free number; raises NetworkError when there is none."""
        if not self.free:
            raise NetworkError(f"all {len(self._used)} pod addresses are in use")
        number = self._last
        while True:
            number = number + 1 if number < LAST_POD else FIRST_POD
            if number not in self._used:
                break
        self._used.add(number)
        self._last = number
        return number

    def release(self, number: int) -> None:
        """Make a number free again."""
        self._used.discard(number)
