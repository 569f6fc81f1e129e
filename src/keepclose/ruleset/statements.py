"""The statements of rules: a small closed set, each with its nftables text.

Every match and action of a rule is one of these structs. The text for the kernel and the tracer
both follow from them alone, so the two cannot drift apart. The texts are those that kube-proxy's
nftables mode writes and nft 1.0.6 accepts. This module neither validates nor quotes values: the
caller must.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec


class PacketField(StrEnum):
    """A field of a packet that a rule can match."""

    SOURCE = "saddr"
    DESTINATION = "daddr"
    PROTOCOL = "meta l4proto"
    PORT = "th dport"
    INTERFACE = "iifname"
    ORIGINAL_DESTINATION = "ct original daddr"
    """The destination before translation."""
    ORIGINAL_PORT = "ct original proto-dst"
    """NB: nft accepts it in a rule only after a match of one protocol."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """Match if the field has one of the values: addresses, ranges, a protocol, an interface.

    Several addresses or ranges must not overlap.
    """

    field: PacketField
    values: tuple[str, ...]
    negated: bool = False

    def text(self, ip: str) -> str:
        """Return the nftables form; `ip` is the table's family."""
        values = self.values[0] if len(self.values) == 1 else f"{{ {', '.join(self.values)} }}"
        return f"{_field(self.field, ip)} {'!= ' if self.negated else ''}{values}"


class InSet(msgspec.Struct, frozen=True, gc=False):
    """Match if the fields together are an element of the set."""

    fields: tuple[PacketField, ...]
    name: str

    def text(self, ip: str) -> str:
        """Return the nftables form."""
        return f"{_fields(self.fields, ip)} @{self.name}"


class IsLocal(msgspec.Struct, frozen=True, gc=False):
    """Match if the address is one of the node's own."""

    field: PacketField
    negated: bool = False

    def text(self, ip: str) -> str:  # noqa: ARG002 (the same for both families)
        """Return the nftables form."""
        return f"fib {self.field} type {'!= ' if self.negated else ''}local"


class IsNew(msgspec.Struct, frozen=True, gc=False):
    """Match if the packet opens a connection."""

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return "ct state new"


class IsTranslated(msgspec.Struct, frozen=True, gc=False):
    """Match if the connection's destination was translated (DNAT)."""

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return "ct status dnat"


class HasMark(msgspec.Struct, frozen=True, gc=False):
    """Match if the packet carries the mark's bit."""

    mark: int

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return f"mark and {self.mark:#x} != 0"


class SetMark(msgspec.Struct, frozen=True, gc=False):
    """Set the mark's bit and keep the other bits."""

    mark: int

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return f"mark set mark or {self.mark:#x}"


class ClearMark(msgspec.Struct, frozen=True, gc=False):
    """Clear the mark's bit, which must be set, and keep the other bits."""

    mark: int

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return f"mark set mark xor {self.mark:#x}"


class Masquerade(msgspec.Struct, frozen=True, gc=False):
    """Translate the source to an address of the node."""

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return "masquerade fully-random"


class Jump(msgspec.Struct, frozen=True, gc=False):
    """Evaluate a chain, then continue with the next rule."""

    chain: str

    def text(self, ip: str = "") -> str:  # noqa: ARG002
        """Return the nftables form."""
        return f"jump {self.chain}"


class Goto(msgspec.Struct, frozen=True, gc=False):
    """Evaluate a chain, then return to the caller of the current chain."""

    chain: str

    def text(self, ip: str = "") -> str:  # noqa: ARG002
        """Return the nftables form."""
        return f"goto {self.chain}"


class Return(msgspec.Struct, frozen=True, gc=False):
    """Return to the caller of the current chain."""

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return "return"


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Drop the packet."""

    def text(self, ip: str = "") -> str:  # noqa: ARG002
        """Return the nftables form."""
        return "drop"


class Reject(msgspec.Struct, frozen=True, gc=False):
    """Drop the packet and send an error to its source."""

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        return "reject"


class Lookup(msgspec.Struct, frozen=True, gc=False):
    """Apply the verdict that the map has for the fields; continue if it has none."""

    fields: tuple[PacketField, ...]
    name: str

    def text(self, ip: str) -> str:
        """Return the nftables form."""
        return f"{_fields(self.fields, ip)} vmap @{self.name}"


class Branch(NamedTuple):
    """A chain and its share of the packets."""

    share: int
    chain: str


class Choose(msgspec.Struct, frozen=True, gc=False):
    """Go to a random chain, each with a probability in proportion to its share."""

    branches: tuple[Branch, ...]

    def text(self, ip: str) -> str:  # noqa: ARG002
        """Return the nftables form."""
        total, slots = _slots([branch.share for branch in self.branches])
        elements = " , ".join(
            [
                f"{slot} : goto {branch.chain}"
                for slot, branch in zip(slots, self.branches, strict=True)
            ]
        )
        return f"numgen random mod {total} vmap {{ {elements} }}"


class RuleTarget(NamedTuple):
    """An endpoint and its share of the connections."""

    share: int
    address: str
    port: int


class Translate(msgspec.Struct, frozen=True, gc=False):
    """Translate the destination to a random target, each in proportion to its share."""

    targets: tuple[RuleTarget, ...]

    def text(self, ip: str) -> str:
        """Return the nftables form: a plain address for one target, a map for more."""
        if len(self.targets) == 1:
            _, address, port = self.targets[0]
            return f"dnat to [{address}]:{port}" if ":" in address else f"dnat to {address}:{port}"
        total, slots = _slots([target.share for target in self.targets])
        elements = " , ".join(
            [
                f"{slot} : {address} . {port}"
                for slot, (_, address, port) in zip(slots, self.targets, strict=True)
            ]
        )
        return f"dnat {ip} addr . port to numgen random mod {total} map {{ {elements} }}"


class DnatTarget(msgspec.Struct, frozen=True, gc=False):
    """The value of an element in a map of endpoints: an address and port."""

    address: str
    port: int

    def text(self, ip: str = "") -> str:  # noqa: ARG002
        """Return the nftables form."""
        return f"{self.address} . {self.port}"


class Draw(msgspec.Struct, frozen=True, gc=False):
    """Translate the destination to what the map has for the fields and a random number."""

    fields: tuple[PacketField, ...]
    total: int
    """The number is from 0 to total - 1; all are equally likely."""
    name: str

    def text(self, ip: str) -> str:
        """Return the nftables form."""
        key = f"{_fields(self.fields, ip)} . numgen random mod {self.total}"
        return f"dnat {ip} addr . port to {key} map @{self.name}"


class Remember(msgspec.Struct, frozen=True, gc=False):
    """Add the source to the set, or reset its timeout there."""

    name: str

    def text(self, ip: str) -> str:
        """Return the nftables form."""
        return f"update @{self.name} {{ {ip} saddr }}"


MatchCondition = Match | InSet | IsLocal | IsNew | IsTranslated | HasMark
VerdictAction = (
    SetMark
    | ClearMark
    | Masquerade
    | Jump
    | Goto
    | Return
    | Drop
    | Reject
    | Lookup
    | Choose
    | Translate
    | Draw
    | Remember
)
Statement = MatchCondition | VerdictAction


def _field(field: PacketField, ip: str) -> str:
    if field is PacketField.SOURCE or field is PacketField.DESTINATION:
        return f"{ip} {field.value}"
    if field is PacketField.ORIGINAL_DESTINATION:
        return f"ct original {ip} daddr"
    return field.value


def _fields(fields: tuple[PacketField, ...], ip: str) -> str:
    return " . ".join([_field(field, ip) for field in fields])


def _slots(shares: list[int]) -> tuple[int, list[str]]:
    """Return how many numbers there are to draw from, and which of them belong to each share."""
    total = sum(shares)
    if total == len(shares):
        return total, [str(index) for index in range(total)]
    slots, first = [], 0
    for share in shares:
        last = first + share - 1
        slots.append(str(first) if first == last else f"{first}-{last}")
        first = last + 1
    return total, slots
