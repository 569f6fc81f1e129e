"""How the table of one address family on one node is laid out.

All of it is known before the first packet: the family and the table's name, which node this is, by
what traffic of its own pods is told, on which addresses node ports answer, and whether connections
are counted. Defaults are kube-proxy's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from keepclose.model.addresses import IPV4
from keepclose.ruleset.names import plain_range, quote_interface, safe_name
from keepclose.ruleset.statements import Match, PacketField
from keepclose.ruleset.tables import ADDRESS_TYPES, FAMILIES

_TABLE: Final = "kube-proxy"
MASQUERADE_BIT: Final = 14


class DetectLocal(StrEnum):
    """By what traffic of the node's own pods is known; values are kube-proxy's where it has one."""

    NOTHING = ""
    CIDR = "CIDR"
    """A range of addresses: the cluster's (ClusterCIDR) or the node's own (NodeCIDR)."""
    INTERFACE = "BridgeInterface"
    INTERFACE_PREFIX = "InterfaceNamePrefix"


class LocalTraffic(msgspec.Struct, frozen=True):
    """How to tell traffic of the node's own pods, by a range or by the interface it comes from."""

    by: DetectLocal = DetectLocal.NOTHING
    value: str = ""

    def condition(self, family: str, *, negated: bool = False) -> Match | None:
        """Return what such traffic matches, or the opposite; None where it cannot be told.

        That is also the answer for a range that is none of the family.
        """
        if self.by is DetectLocal.NOTHING or not self.value:
            return None
        if self.by is DetectLocal.CIDR:
            known = plain_range(self.value, family)
            return Match(PacketField.SOURCE, (known,), negated) if known else None
        is_prefix = self.by is DetectLocal.INTERFACE_PREFIX
        name = quote_interface(self.value, is_prefix=is_prefix)
        return Match(PacketField.INTERFACE, (name,), negated)


class CountBy(StrEnum):
    """How finely new connections are counted by where they go."""

    NOTHING = ""
    ZONE = "zone"
    """By the endpoint's zone, and apart for endpoints on this node."""
    NODE = "node"
    """By the endpoint's zone and node: as many chains as nodes with endpoints."""


class RulesetSettings(msgspec.Struct, frozen=True):
    """Everything that decides the layout of one table."""

    family: str = IPV4
    table: str = _TABLE
    node_name: str = ""
    node_ip: str = ""
    """The node's address of the family: a source range that holds it lets its own traffic in."""
    local_traffic: LocalTraffic = LocalTraffic()
    masquerade_all: bool = False
    masquerade_bit: int = MASQUERADE_BIT
    nodeport_ips: tuple[str, ...] | None = None
    """The addresses on which node ports answer; None for every address of the node."""
    service_cidrs: tuple[str, ...] = ()
    count_by: CountBy = CountBy.NOTHING
    count_chains: bool = True
    """Whether ports with chains of their own are counted too: each endpoint needs a chain then."""
    uses_external_ips: bool = True
    """Whether traffic to the external IPs of Services is translated."""
    pooled: bool = False
    """Endpoints of plain service ports stand in one map for all, which changes much faster."""

    @property
    def ip(self) -> str:
        """The family as nft names it."""
        return FAMILIES.get(self.family, "ip")

    @property
    def address_type(self) -> str:
        """The type of addresses in sets and maps."""
        return ADDRESS_TYPES.get(self.family, ADDRESS_TYPES[IPV4])

    @property
    def mark(self) -> int:
        """The bit by which packets to be masqueraded are known."""
        return 1 << self.masquerade_bit

    @property
    def whole_table(self) -> str:
        """The table with its family, such as "ip kube-proxy"."""
        return f"{self.ip} {safe_name(self.table)}"
