"""The table as data: chains of rules, sets, maps with their elements, counters.

All structs are frozen and compare by value. A rule carries its text beside its statements, because
the text is needed anyway (it names the chain) and making it twice would double the work. Maps here
lead to verdicts, but for that of endpoints; sets either hold what the proxy writes or, with a
timeout, what packets do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from keepclose.model.addresses import IPV4, IPV6
from keepclose.ruleset.names import ServicePortKey, quote_comment
from keepclose.ruleset.statements import Drop, Goto, Statement, To

ElementKey = tuple[str, ...]
ChainVerdict = Goto | Drop | To
"""What a map has for a key: where packets go, or in the map of endpoints the new address."""

FAMILIES: Final = {IPV4: "ip", IPV6: "ip6"}
ADDRESS_TYPES: Final = {IPV4: "ipv4_addr", IPV6: "ipv6_addr"}
PROTOCOL_TYPE: Final = "inet_proto"
PORT_TYPE: Final = "inet_service"


class Rule(msgspec.Struct, frozen=True, gc=False):
    """What a chain does with a packet that gets this far."""

    statements: tuple[Statement, ...]
    text: str
    comment: str = ""

    @property
    def whole_text(self) -> str:
        """The rule as nft reads it, with its comment."""
        return f"{self.text} comment {quote_comment(self.comment)}" if self.comment else self.text


class Hook(NamedTuple):
    """Where packets enter a base chain."""

    type: str
    name: str
    priority: int


class Chain(msgspec.Struct, frozen=True, gc=False):
    """Rules under a name; packets enter by a hook or from other chains."""

    name: str
    rules: tuple[Rule, ...] = ()
    hook: Hook | None = None
    comment: str = ""


class Set(msgspec.Struct, frozen=True, gc=False):
    """Keys of one type; with a timeout packets add to it and time takes away."""

    name: str
    key: tuple[str, ...]
    timeout_s: int = 0
    comment: str = ""
    counted: bool = False
    """Whether each element counts the packets that were looked up with it."""


class Map(msgspec.Struct, frozen=True, gc=False):
    """Keys of one type, each with a verdict, or with what `typeof` says instead."""

    name: str
    key: tuple[str, ...]
    comment: str = ""
    typeof: str = ""
    """Key and value by example, for types that have no name."""
    counted: bool = False
    """Whether each element counts the packets that were looked up with it."""


class Element(msgspec.Struct, frozen=True, gc=False):
    """One key of a set (no verdict) or of a map."""

    container: str
    key: ElementKey
    verdict: ChainVerdict | None = None
    comment: str = ""

    @property
    def slot(self) -> Slot:
        """The place that only one element can have."""
        return self.container, self.key


Slot = tuple[str, ElementKey]


class Counted(NamedTuple):
    """What a counter counts: new connections of a service port to some of its endpoints.

    `node` is "" where endpoints of several nodes are counted as one; `mode` is what narrowed the
    endpoints, "" for nothing.
    """

    port: ServicePortKey
    zone: str
    node: str
    mode: str


class Unserved(NamedTuple):
    """What the counter of an element counts where a service port has no endpoint to offer."""

    port: ServicePortKey
    action: str
    """What becomes of the packets: reject or drop."""


class Counter(msgspec.Struct, frozen=True, gc=False):
    """A named counter of packets and bytes."""

    name: str
    counted: Counted


class Table(msgspec.Struct, frozen=True):
    """A whole table of one family; elements are under their container, by key."""

    family: str
    name: str
    chains: dict[str, Chain]
    sets: dict[str, Set]
    maps: dict[str, Map]
    elements: dict[str, dict[ElementKey, Element]]
    counters: dict[str, Counter]


def make_rule(ip: str, *statements: Statement, comment: str = "") -> Rule:
    """Return the rule of these statements in a table of the family."""
    return Rule(statements, render_statements(ip, statements), comment)


def render_statements(ip: str, statements: Sequence[Statement]) -> str:
    """Return the statements as nft reads them, in one line."""
    return " ".join([statement.text(ip) for statement in statements])
