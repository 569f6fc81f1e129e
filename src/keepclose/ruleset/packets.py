"""A packet to be traced, the node that it meets, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec


class Packet(msgspec.Struct, frozen=True):
    """The first packet of a connection; addresses are canonical."""

    source: str
    destination: str
    port: int
    protocol: str = "tcp"
    interface: str = ""
    from_node: bool = False
    """Sent by a process of the node, not by one of its pods."""


class Node(msgspec.Struct, frozen=True):
    """What of the node matters to packets: its addresses and what its affinity sets remember."""

    addresses: frozenset[str] = frozenset()
    remembered: Mapping[str, frozenset[str]] = {}
    """Clients by affinity set."""


class Fate(Enum):
    """What becomes of a packet."""

    PASSED = "passed"
    DROPPED = "dropped"
    REJECTED = "rejected"


class Trace(msgspec.Struct, frozen=True):
    """What happened to a packet, and by which rules."""

    fate: Fate
    endpoint: tuple[str, int] | None
    """To what the destination was translated."""
    masqueraded: bool
    mark: int
    remembered: tuple[str, ...]
    """Affinity sets that the client was put into."""
    counted: tuple[str, ...]
    path: tuple[str, ...]
    """The rules that took effect, each behind its chain."""
