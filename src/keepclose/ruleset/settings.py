"""Settings that decide the layout of the table of one address family on one node.

They are fixed before the first packet: the family and the name of the table, the node, how the
rules identify traffic of its own pods, the addresses on which node ports answer, and whether
connections are counted. Defaults are kube-proxy's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from keepclose.model.addresses import IPV4
from keepclose.ruleset.names import plain_range, quote_interface, safe_name
from keepclose.ruleset.statements import Match, PacketField
from keepclose.ruleset.tables import ADDRESS_TYPES, FAMILIES

MASQUERADE_BIT: Final = 14
_TABLE: Final = "kube-proxy"


class DetectLocal(StrEnum):
    """How rules identify traffic of the node's own pods; values are kube-proxy's if it has one."""

    NOTHING = ""
    CIDR = "CIDR"
    """A range of addresses: the cluster's (ClusterCIDR) or the node's own (NodeCIDR)."""
    INTERFACE = "BridgeInterface"
    INTERFACE_PREFIX = "InterfaceNamePrefix"


class LocalTraffic(msgspec.Struct, frozen=True):
    """How to identify traffic of the node's own pods: by a source range or an input interface."""

    by: DetectLocal = DetectLocal.NOTHING
    value: str = ""

    def condition(self, family: str, *, negated: bool = False) -> Match | None:
        """Return the match for such traffic, or for all other; None if it cannot be identified.

        A range of the other address family identifies nothing either.
        """
        if self.by is DetectLocal.NOTHING or not self.value:
            return None
        if self.by is DetectLocal.CIDR:
            cidr = plain_range(self.value, family)
            return Match(PacketField.SOURCE, (cidr,), negated) if cidr else None
        is_prefix = self.by is DetectLocal.INTERFACE_PREFIX
        name = quote_interface(self.value, is_prefix=is_prefix)
        return Match(PacketField.INTERFACE, (name,), negated)


class CountBy(StrEnum):
    """By which part of an endpoint's location new connections are counted."""

    NOTHING = ""
    ZONE = "zone"
    """By the endpoint's zone; endpoints on this node are counted separately."""
    NODE = "node"
    """By the endpoint's zone and node."""


class RulesetSettings(msgspec.Struct, frozen=True):
    """The settings of one table."""

    family: str = IPV4
    table: str = _TABLE
    node_name: str = ""
    node_ip: str = ""
    """The node's address of the family: a source range that contains it admits node traffic."""
    local_traffic: LocalTraffic = LocalTraffic()
    masquerade_all: bool = False
    masquerade_bit: int = MASQUERADE_BIT
    nodeport_ips: tuple[str, ...] | None = None
    """The addresses on which node ports answer; None for all addresses of the node."""
    service_cidrs: tuple[str, ...] = ()
    count_by: CountBy = CountBy.NOTHING
    uses_external_ips: bool = True
    """Whether traffic to the external IPs of Services is translated."""
    pooled: bool = False
    """Whether endpoints of plain service ports share one map, which is much faster to change."""

    @property
    def ip(self) -> str:
        """The address family in nft syntax: ip or ip6."""
        return FAMILIES.get(self.family, "ip")

    @property
    def address_type(self) -> str:
        """The nft type of addresses in sets and maps."""
        return ADDRESS_TYPES.get(self.family, ADDRESS_TYPES[IPV4])

    @property
    def mark(self) -> int:
        """The mark bit of packets that are to be masqueraded."""
        return 1 << self.masquerade_bit

    @property
    def whole_table(self) -> str:
        """The table with its family, such as "ip kube-proxy"."""
        return f"{self.ip} {safe_name(self.table)}"
