"""What one write has taken from the ranges, until it is stored or has failed.

Values are taken while a write is prepared and only then; nothing that the stored object holds is
let go before the write is stored. A dry run shows values that nobody has and takes none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.apiserver.registry.allocation_ranges import (
    FULL,
    PORT_TAKEN,
    AddressRange,
    NodePorts,
)
from keepclose.model.addresses import family_of

# What a dry run shows for the first node port that would be drawn.
_FIRST_SHOWN_PORT: Final = 32769


class Ranges(msgspec.Struct, frozen=True):
    """All that Services are given from, the range of the primary family first."""

    addresses: tuple[AddressRange, ...]
    ports: NodePorts

    @property
    def families(self) -> tuple[str, ...]:
        """The families that the cluster hands out, the primary one first."""
        return tuple(one.family for one in self.addresses)

    def of_family(self, family: str | None) -> AddressRange | None:
        """Return the range of the family, or None when the cluster has none."""
        return next((one for one in self.addresses if one.family == family), None)

    def give_address(self, address: str) -> None:
        """Let a cluster IP go."""
        found = self.of_family(family_of(address))
        if found is not None:
            found.give(address)


class Reservation:
    """What one write has taken, and what it will let go, until it is stored or has failed."""

    def __init__(self, ranges: Ranges, *, dry_run: bool = False) -> None:
        """Start with nothing taken."""
        self._ranges = ranges
        self._dry_run = dry_run
        self._addresses: list[str] = []
        self._ports: list[int] = []
        self._leaving_addresses: list[str] = []
        self._leaving_ports: list[int] = []

    def take_address(self, family: str, wanted: str) -> tuple[str, str]:
        """Return the address, or "" and why there is none; "" wants any."""
        found = self._ranges.of_family(family)
        if found is None:
            return "", FULL
        if self._dry_run:
            # NB: whether a named address is free is not looked at in a dry run, as upstream.
            return (wanted, found.refusal(wanted)) if wanted else (found.placeholder, "")
        if wanted:
            why = found.take(wanted)
            if not why:
                self._addresses.append(wanted)
            return wanted, why
        drawn = found.draw()
        if drawn is None:
            return "", FULL
        self._addresses.append(drawn)
        return drawn, ""

    def take_port(self, port: int) -> str:
        """Hold a named port; return why not, or ""."""
        if self._dry_run:
            why = PORT_TAKEN if self._ranges.ports.holds(port) or port in self._ports else ""
        else:
            why = self._ranges.ports.take(port)
        if not why:
            self._ports.append(port)
        return why

    def draw_port(self) -> int | None:
        """Return any free port, held now, or None when there is none."""
        drawn: int | None
        if self._dry_run:
            drawn = max(self._ports) + 1 if self._ports else _FIRST_SHOWN_PORT
        else:
            drawn = self._ranges.ports.draw()
        if drawn is not None:
            self._ports.append(drawn)
        return drawn

    def leave_address(self, address: str) -> None:
        """Let an address go once the write is stored."""
        self._leaving_addresses.append(address)

    def leave_port(self, port: int) -> None:
        """Let a port go once the write is stored."""
        self._leaving_ports.append(port)

    def settle(self, *, stored: bool) -> None:
        """Let go what the write left behind, or all that it took when it was not stored."""
        if self._dry_run:
            return
        for address in self._leaving_addresses if stored else self._addresses:
            self._ranges.give_address(address)
        for port in self._leaving_ports if stored else self._ports:
            self._ranges.ports.give(port)
