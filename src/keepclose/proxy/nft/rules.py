"""The rules of one family in the kernel: what `ruleset` wants written, carried to the writer.

Each update is several transactions, in order; when one fails the rest is dropped, and the next
write compares the whole table. Two writes never run at once: syncs of a family are one after the
other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from keepclose.proxy.nft.writer import ElementWriter, NftError, NftFailure, NftFamily, NftWriter
from keepclose.routing.selection import Selection
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset.commands import Transaction, Update
from keepclose.ruleset.layout import (
    FIREWALL_IPS,
    HAIRPINS,
    NO_ENDPOINT_NODEPORTS,
    NO_ENDPOINT_SERVICES,
    REJECT_CHAIN,
    SERVICE_IPS,
    SERVICE_NODEPORTS,
    counted_containers,
)
from keepclose.ruleset.listing import TableListing, listing_of
from keepclose.ruleset.names import ServicePortKey
from keepclose.ruleset.ruleset import Ruleset
from keepclose.ruleset.settings import RulesetSettings
from keepclose.ruleset.tables import Counted, Slot, Unserved

BeforeChange = Callable[[Mapping[Slot, Counted | Unserved]], Awaitable[None]]

# Without these nothing is translated, or refused.
_VITAL: Final = ("nat-prerouting", "nat-output", "filter-forward", REJECT_CHAIN)
# Rules of the fixed chains refer to these, so that nobody could delete them now. NB: chains come
# last, because trying to delete one lets go of what its rules refer to.
_IN_USE: Final = (
    f"map {SERVICE_IPS}",
    f"map {SERVICE_NODEPORTS}",
    f"map {NO_ENDPOINT_SERVICES}",
    f"map {NO_ENDPOINT_NODEPORTS}",
    f"map {FIREWALL_IPS}",
    f"set {HAIRPINS}",
    "chain services",
    "chain masquerading",
    "chain firewall-check",
    "chain service-endpoints-check",
    "chain nodeport-endpoints-check",
    "chain cluster-ips-check",
)
_BUSY: Final = "Device or resource busy"


class Rules:
    """One table."""

    def __init__(self, layout: RulesetSettings, *, writer: NftWriter) -> None:
        self._writer = writer
        self._ruleset = Ruleset(layout)
        self.before_change: BeforeChange | None = None
        """Told of the elements whose counters a write may take away."""

    def set_port(self, port: RoutedPort, selection: Selection | None) -> None:
        """Say what is wanted for a service port; None takes it away."""
        key = ServicePortKey.of(port)
        self._ruleset.set_port(key, None if selection is None else port, selection)

    def lay_out(self, layout: RulesetSettings) -> bool:
        """Take another layout; return whether everything has to be said and written again."""
        cidrs = self._ruleset.settings.service_cidrs
        layout = msgspec.structs.replace(layout, service_cidrs=cidrs)
        if layout == self._ruleset.settings:
            return False
        self._ruleset = Ruleset(layout)
        return True

    def set_service_cidrs(self, cidrs: tuple[str, ...]) -> bool:
        """Say from which ranges cluster IPs are taken; return whether that is news."""
        if cidrs == self._ruleset.settings.service_cidrs:
            return False
        self._ruleset.set_service_cidrs(cidrs)
        return True

    def set_node_port_ips(self, addresses: tuple[str, ...] | None) -> None:
        """Say at which addresses node ports answer; None, for all, changes nothing here."""
        if addresses is not None:
            self._ruleset.set_nodeport_ips(addresses)

    async def write_all(self) -> int | None:
        """Make the table what is wanted, whatever it is now; raises NftError.

        A chain that has its name and as many rules as it should is right: writing it anew would
        lose connections. Return what to `sweep`.
        """
        ruleset = self._ruleset
        await self._tell_change()
        listing = await self._list()
        return await self._write(ruleset.reconcile(listing))

    async def write_changes(self) -> int | None:
        """Write what changed since the last write, if anything; raises NftError.

        Return what to `sweep` later, None for nothing.
        """
        await self._tell_change()
        return await self._write(self._ruleset.commit())

    async def sweep(self, serial: int) -> None:
        """Delete what nothing leads to any more since that write; raises NftError."""
        for transaction in self._ruleset.sweep_transactions(serial):
            await self._apply(transaction)

    async def check(self) -> None:
        """Look, without changing anything, whether the fixed part is there; raises NftError.

        The failure is NOT_FOUND when something is missing. What chains of Services hold is only
        seen when everything is compared.
        """
        table = self._ruleset.settings.whole_table
        await self._writer.check("".join(f"flush chain {table} {name}\n" for name in _VITAL))
        # NB: listing rules takes long where there are many. The kernel refuses at once to delete
        # what a rule refers to, so what it would let go of has lost its rule.
        kinds = [one.split(" ") for one in _IN_USE]
        text = "".join(f"delete {kind} {table} {name}\n" for kind, name in kinds)
        refused = 0
        try:
            await self._writer.check(text)
        except NftError as error:
            if error.failure is not NftFailure.BUSY:
                raise
            refused = error.output.count(_BUSY)
        if refused < len(kinds):
            raise NftError("some chains were emptied", failure=NftFailure.NOT_FOUND)

    def read_counters(self, numbers: Mapping[str, int]) -> list[tuple[Counted, int]]:
        """Return what the numbers of named counters stand for; unknown names are left out."""
        counted = self._ruleset.counters()
        return [(counted[name], number) for name, number in numbers.items() if name in counted]

    @property
    def counted_containers(self) -> tuple[str, ...]:
        """The sets and maps whose elements count."""
        return counted_containers(self._ruleset.settings)

    @property
    def chained_ports(self) -> int:
        """How many service ports lead to their endpoints through chains of their own."""
        return self._ruleset.chained_ports

    def counted_by(self, slot: Slot) -> Counted | Unserved | None:
        """Return what the counter of an element counts; None for one that is not known."""
        return self._ruleset.counted_by(slot)

    async def _tell_change(self) -> None:
        if self.before_change is not None:
            changing = self._ruleset.changing_counters()
            if changing:
                await self.before_change(changing)

    async def _list(self) -> TableListing:
        settings = self._ruleset.settings
        family: NftFamily = "ip" if settings.ip == "ip" else "ip6"
        try:
            listed = await self._writer.list_table(family, settings.table)
        except NftError as error:
            if error.failure is NftFailure.NOT_FOUND:
                return TableListing()
            raise
        try:
            return listing_of([msgspec.json.decode(listed)])
        except msgspec.DecodeError as error:
            raise NftError(f"the listing of the table is no JSON: {error}") from None

    async def _write(self, update: Update | None) -> int | None:
        if update is None:
            return None
        # One text at a time: those of a whole table together are many megabytes.
        for transaction in update.transactions:
            await self._apply(transaction)
        return update.serial if update.retired else None

    async def _apply(self, transaction: Transaction) -> None:
        writer = self._writer
        if (
            isinstance(writer, ElementWriter)
            and transaction.elements
            and await writer.write_elements(transaction)
        ):
            return
        await writer.apply(transaction.text)
