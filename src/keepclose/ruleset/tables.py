"""The table as data: chains of rules, sets, maps with their elements.

All structs are frozen and compare by value. A rule carries its text beside its statements, because
the chain name needs the text anyway and rendering it twice would double the work. Maps hold
verdicts, except the maps of endpoints, which hold addresses. The proxy writes the elements of sets,
except of sets with a timeout, which the kernel fills as packets pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from keepclose.model.addresses import IPV4, IPV6
from keepclose.ruleset.names import ServicePortKey, quote_comment
from keepclose.ruleset.statements import DnatTarget, Drop, Goto, Statement

ElementKey = tuple[str, ...]
Slot = tuple[str, ElementKey]
"""The container and key of an element."""
ChainVerdict = Goto | Drop | DnatTarget
"""The value of a map element: a verdict, or in a map of endpoints the new destination."""

FAMILIES: Final = {IPV4: "ip", IPV6: "ip6"}
ADDRESS_TYPES: Final = {IPV4: "ipv4_addr", IPV6: "ipv6_addr"}
PROTOCOL_TYPE: Final = "inet_proto"
PORT_TYPE: Final = "inet_service"


class Rule(msgspec.Struct, frozen=True, gc=False):
    """One rule of a chain: its statements and their nftables text."""

    statements: tuple[Statement, ...]
    text: str
    comment: str = ""

    @property
    def whole_text(self) -> str:
        """The rule as nft text, with its comment."""
        return f"{self.text} comment {quote_comment(self.comment)}" if self.comment else self.text


class Hook(NamedTuple):
    """The netfilter hook at which packets enter a base chain."""

    type: str
    name: str
    priority: int


class Chain(msgspec.Struct, frozen=True, gc=False):
    """Named rules; packets enter at a hook or from other chains."""

    name: str
    rules: tuple[Rule, ...] = ()
    hook: Hook | None = None
    comment: str = ""


class Set(msgspec.Struct, frozen=True, gc=False):
    """Keys of one type; with a timeout, packets add elements and elements expire."""

    name: str
    key: tuple[str, ...]
    timeout_s: int = 0
    comment: str = ""
    counted: bool = False
    """Whether each element counts the packets that match it."""


class Map(msgspec.Struct, frozen=True, gc=False):
    """Keys of one type, each with a verdict or, given `typeof`, with another value."""

    name: str
    key: tuple[str, ...]
    comment: str = ""
    typeof: str = ""
    """Key and value as expressions, for types that have no name."""
    counted: bool = False
    """Whether each element counts the packets that match it."""


class Element(msgspec.Struct, frozen=True, gc=False):
    """One key of a set (no verdict) or of a map."""

    container: str
    key: ElementKey
    verdict: ChainVerdict | None = None
    comment: str = ""

    @property
    def slot(self) -> Slot:
        """The container and key, which only one element can have."""
        return self.container, self.key


class Counted(NamedTuple):
    """What the counter of an element counts: new connections of a service port to an endpoint.

    `node` is "" unless connections are counted by node or the endpoint is on this node; `mode` is
    the routing mode that selected the endpoint, "" for none.
    """

    port: ServicePortKey
    zone: str
    node: str
    mode: str
    number: int = 0
    """The number of the port, which identifies a port without a name."""
    is_from_outside: bool = False
    """Whether neither the node nor its pods opened the connections."""


class Unserved(NamedTuple):
    """What the counter of an element counts: packets to a service port without endpoints."""

    port: ServicePortKey
    action: str
    """What the rules do with the packets: reject or drop."""


class Table(msgspec.Struct, frozen=True):
    """A whole table of one family; elements are grouped by container, then by key."""

    family: str
    name: str
    chains: dict[str, Chain]
    sets: dict[str, Set]
    maps: dict[str, Map]
    elements: dict[str, dict[ElementKey, Element]]


def make_rule(ip: str, *statements: Statement, comment: str = "") -> Rule:
    """Return the rule of these statements in a table of the family."""
    return Rule(statements, render_statements(ip, statements), comment)


def render_statements(ip: str, statements: Sequence[Statement]) -> str:
    """Return the statements as nft text, on one line."""
    return " ".join([statement.text(ip) for statement in statements])
