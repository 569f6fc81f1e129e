"""The rules of one family: passes the updates of `ruleset` to the writer, in order.

An update consists of several transactions. If one fails, the rest is dropped, and the next write
must compare the whole table. Two writes never run at once: the syncs of a family are sequential.
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
from keepclose.ruleset.listing import TableListing, parse_listing
from keepclose.ruleset.names import ServicePortKey
from keepclose.ruleset.ruleset import Ruleset
from keepclose.ruleset.settings import RulesetSettings
from keepclose.ruleset.tables import Counted, Slot, Unserved

BeforeChange = Callable[[Mapping[Slot, Counted | Unserved]], Awaitable[None]]

# Without these chains no traffic is translated or rejected.
_VITAL: Final = ("nat-prerouting", "nat-output", "filter-forward", REJECT_CHAIN)
# Rules of the fixed chains refer to these objects, so the kernel must refuse to delete them. NB:
# chains come last, because an attempt to delete a chain releases what its rules refer to.
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
    "chain connections-count",
)
_BUSY: Final = "Device or resource busy"


class Rules:
    """The table of one family in the kernel."""

    def __init__(self, layout: RulesetSettings, *, writer: NftWriter) -> None:
        self._writer = writer
        self._ruleset = Ruleset(layout)
        self.before_change: BeforeChange | None = None
        """Receives the elements whose counters the next write may delete."""

    def set_port(self, port: RoutedPort, selection: Selection | None) -> None:
        """Set the desired state of a service port; None removes the port."""
        key = ServicePortKey.of(port)
        self._ruleset.set_port(key, None if selection is None else port, selection)

    def set_layout(self, layout: RulesetSettings) -> bool:
        """Set the layout; return whether it changed, so that all ports must be set again."""
        cidrs = self._ruleset.settings.service_cidrs
        layout = msgspec.structs.replace(layout, service_cidrs=cidrs)
        if layout == self._ruleset.settings:
            return False
        self._ruleset = Ruleset(layout)
        return True

    def set_service_cidrs(self, cidrs: tuple[str, ...]) -> bool:
        """Set the ranges of cluster IPs; return whether they changed."""
        if cidrs == self._ruleset.settings.service_cidrs:
            return False
        self._ruleset.set_service_cidrs(cidrs)
        return True

    def set_node_port_ips(self, addresses: tuple[str, ...] | None) -> None:
        """Set the addresses at which node ports answer; None, for all addresses, is ignored."""
        if addresses is not None:
            self._ruleset.set_nodeport_ips(addresses)

    async def write_all(self) -> int | None:
        """Bring the table to the desired state, whatever it is now; raises NftError.

        A chain with the right name and number of rules is taken as correct: writing it again would
        lose connections. Return the serial for `sweep`, None for nothing to delete.
        """
        ruleset = self._ruleset
        await self._report_changing_counters()
        settings = ruleset.settings
        family: NftFamily = "ip" if settings.ip == "ip" else "ip6"
        listing = await read_table(self._writer, family, settings.table)
        return await self._write(ruleset.reconcile(listing))

    async def write_changes(self) -> int | None:
        """Write the changes since the last write; raises NftError.

        Return the serial for `sweep`, None for nothing to delete.
        """
        await self._report_changing_counters()
        return await self._write(self._ruleset.commit())

    async def sweep(self, serial: int) -> None:
        """Delete what that write left unused; raises NftError."""
        for transaction in self._ruleset.sweep_transactions(serial):
            await self._apply(transaction)

    async def check(self) -> None:
        """Check, without changes, that the fixed part of the table exists; raises NftError.

        The failure is NOT_FOUND if something is missing. Only `write_all` checks the chains of
        Services.
        """
        table = self._ruleset.settings.whole_table
        await self._writer.check("".join(f"flush chain {table} {name}\n" for name in _VITAL))
        # NB: a listing of many rules takes long. The kernel refuses at once to delete an object
        # that a rule refers to, so an object that it would delete has lost its rule.
        objects = [kind_and_name.split(" ") for kind_and_name in _IN_USE]
        text = "".join(f"delete {kind} {table} {name}\n" for kind, name in objects)
        refused = 0
        try:
            await self._writer.check(text)
        except NftError as error:
            if error.failure is not NftFailure.BUSY:
                raise
            refused = error.output.count(_BUSY)
        if refused < len(objects):
            raise NftError("chains of the table have lost rules", failure=NftFailure.NOT_FOUND)

    @property
    def counted_containers(self) -> tuple[str, ...]:
        """The sets and maps whose elements have counters."""
        return counted_containers(self._ruleset.settings)

    def counted_by(self, slot: Slot) -> Counted | Unserved | None:
        """Return what the counter of an element counts; None for an unknown element."""
        return self._ruleset.counted_by(slot)

    async def _report_changing_counters(self) -> None:
        if self.before_change is not None:
            changing = self._ruleset.changing_counters()
            if changing:
                await self.before_change(changing)

    async def _write(self, update: Update | None) -> int | None:
        if update is None:
            return None
        # One text at a time: the texts of a whole table are many megabytes.
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


async def read_table(writer: NftWriter, family: NftFamily, table: str) -> TableListing:
    """Return the contents of a table, empty if it does not exist; raises NftError."""
    try:
        return parse_listing(await writer.list_table(family, table))
    except NftError as error:
        if error.failure is NftFailure.NOT_FOUND:
            return TableListing()
        raise
    except ValueError as error:
        raise NftError(str(error), failure=NftFailure.UNUSABLE) from None
