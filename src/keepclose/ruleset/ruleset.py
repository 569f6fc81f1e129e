"""The desired table of one address family, and the shortest safe update to it.

Work is in proportion to what changed: only changed service ports are rendered, and only their
objects are compared. A chain that packets may be in is never rewritten. A packet keeps the rules it
started with while lookups in maps see the newest elements. So a chain must exist one transaction
before the first element points to it, and must stay for a while after the last element is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from keepclose.routing.selection import Selection
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset.commands import (
    AddElement,
    AddSet,
    Command,
    DeleteElement,
    FlushChain,
    Transaction,
    Update,
    add_chain,
    split_commands,
)
from keepclose.ruleset.connection_sets import CONNECTION_SETS, OUTSIDE_SETS
from keepclose.ruleset.kernel_state import CHAIN, COUNTER, SET, ElementLedger, Item, Retirement
from keepclose.ruleset.layout import (
    CONTAINERS,
    COUNTED_ENDPOINTS,
    ENDPOINTS_MAP,
    HAIRPINS,
    NO_ENDPOINT_NODEPORTS,
    NO_ENDPOINT_SERVICES,
    NODEPORT_IPS,
    UNSERVED_NODEPORTS,
    UNSERVED_SERVICES,
    Layout,
    build_layout,
    place_layout,
    replace_layout,
)
from keepclose.ruleset.listing import TableListing
from keepclose.ruleset.names import (
    AFFINITY,
    POOL,
    TRAFFIC,
    ServicePortKey,
    is_service_chain,
)
from keepclose.ruleset.port_objects import NO_OBJECTS, PortObjects, render_port
from keepclose.ruleset.settings import CountBy, RulesetSettings
from keepclose.ruleset.statements import Drop
from keepclose.ruleset.tables import Counted, Slot, Table, Unserved

_POOLED = frozenset({*ENDPOINTS_MAP.values(), *COUNTED_ENDPOINTS.values()})
_FROM_OUTSIDE = frozenset(OUTSIDE_SETS.values())
_CONNECTIONS = frozenset(CONNECTION_SETS)
_ADDED_EARLY = frozenset(
    {HAIRPINS, NODEPORT_IPS, UNSERVED_SERVICES, UNSERVED_NODEPORTS, *CONNECTION_SETS, *_POOLED}
)
"""Containers whose elements may be added before the dispatch is switched to new chains."""
_DELETED_LATE = frozenset({HAIRPINS, *_POOLED})
"""Containers whose elements packets under old rules still need."""
_REFUSALS = {
    UNSERVED_SERVICES: NO_ENDPOINT_SERVICES,
    UNSERVED_NODEPORTS: NO_ENDPOINT_NODEPORTS,
}


class Ruleset:
    """The table of one family: its desired state, the kernel's state, and pending deletions."""

    def __init__(self, settings: RulesetSettings) -> None:
        self._settings = settings
        self._layout = build_layout(settings)
        self._placed: Layout | None = None
        self._ports: dict[ServicePortKey, PortObjects] = {}
        self._before: dict[ServicePortKey, PortObjects] = {}
        """The committed objects of ports that changed since the last commit."""
        self._ledger = ElementLedger()
        self._ledger.claim(None, self._layout.elements)
        self._retirement = Retirement()
        self._serial = 0
        self._installed: dict[Item, int] = {}
        """Chains, sets and old counters in the kernel; the value of a set is its timeout."""

    @property
    def settings(self) -> RulesetSettings:
        """The current settings of the table."""
        return self._settings

    def set_port(
        self, key: ServicePortKey, port: RoutedPort | None, selection: Selection | None
    ) -> None:
        """Set the desired state of a service port for the next commit; None removes the port."""
        objects = NO_OBJECTS
        if port is not None and selection is not None:
            objects = render_port(key, port, selection, settings=self._settings)
        before = self._ports.get(key, NO_OBJECTS)
        if objects is NO_OBJECTS:
            self._ports.pop(key, None)
        else:
            self._ports[key] = objects
        self._before.setdefault(key, before)

    def set_service_cidrs(self, cidrs: Sequence[str]) -> None:
        """Set the ranges of cluster IPs; the rules drop traffic to unallocated ones."""
        self._change_layout(replace(self._settings, service_cidrs=tuple(cidrs)))

    def set_nodeport_ips(self, addresses: Sequence[str]) -> None:
        """Set the addresses on which node ports answer; ignored if they answer on all."""
        if self._settings.nodeport_ips is not None:
            self._change_layout(replace(self._settings, nodeport_ips=tuple(addresses)))

    def commit(self) -> Update | None:
        """Return the update for all changes since the last commit; None for no changes.

        NB: before the first `reconcile` the kernel's state is unknown; a commit then assumes that
        the table does not exist.
        """
        if self._placed is None:
            return self.reconcile(TableListing())
        first = replace_layout(self._placed, self._layout)
        self._placed = self._layout
        return self._update(first, self._update_ports(first))

    def reconcile(self, existing: TableListing, *, trust: bool = True) -> Update:
        """Return the update from the listed table to the desired one.

        Objects that are correct stay as they are. A chain with the wrong number of rules gets its
        rules written again. Without `trust` all chains do, which may lose a few connections.
        """
        self._placed = self._layout
        first = place_layout(self._layout, existing, trust=trust)
        self._before.clear()
        self._retirement = Retirement()
        self._ledger = self._claim_all()
        self._ledger.set_installed(
            {
                (name, key): verdict
                for name in CONTAINERS
                if not (name == NODEPORT_IPS and self._settings.nodeport_ips is None)
                for key, verdict in existing.elements.get(name, {}).items()
            }
        )
        # NB: a listing has no timeouts; -1 makes the update add every desired set again, which
        # sets its timeout.
        self._installed = {
            **{(CHAIN, name): 0 for name in existing.chains if is_service_chain(name)},
            **{(SET, name): -1 for name in existing.sets if name.startswith(AFFINITY)},
            **{(COUNTER, name): 0 for name in existing.counters if name.startswith(TRAFFIC)},
        }
        leftover = set(self._installed)
        for objects in self._ports.values():
            damaged = [
                chain.name
                for chain in objects.chains
                if chain.name in existing.chains and not (trust and existing.holds(chain))
            ]
            self._install(objects, first, damaged=damaged)
            leftover.difference_update(_items(objects))
        self._retirement.add(leftover, self._serial + 1)
        update = self._update(first, len(self._ports))
        return update or Update(self._serial, (), ports=0, retired=0)

    def sweep(self, serial: int) -> tuple[str, ...]:
        """Return the transactions that delete what updates up to the serial left unused.

        Objects that came back into use stay; empty if nothing is due. The flushes are a transaction
        of their own, because older kernels release references only after it.
        """
        return tuple([transaction.text for transaction in self.sweep_transactions(serial)])

    def sweep_transactions(self, serial: int) -> tuple[Transaction, ...]:
        """Return the transactions of `sweep`, as data."""
        due = self._retirement.take(serial)
        unused = [slot for slot in due.slots if self._ledger.desired(slot) is None]
        due = due._replace(slots=tuple(unused))
        for slot in due.slots:
            self._ledger.forget(slot)
        for item in due.items:
            del self._installed[item]
        phases = due.flushes(), due.deletions()
        return tuple(
            [self._transaction(part) for phase in phases for part in split_commands(phase)]
        )

    def counted_by(self, slot: Slot) -> Counted | Unserved | None:
        """Return what the counter of an element counts; None for an element without a port."""
        container, key = slot
        refusals = _REFUSALS.get(container)
        if refusals is not None:
            owner, element = self._ledger.claim_of((refusals, key)) or (None, None)
            if owner is None or element is None:
                return None
            return Unserved(owner, "drop" if isinstance(element.verdict, Drop) else "reject")
        owner, _ = self._ledger.claim_of(slot) or (None, None)
        if owner is None:
            return None
        return _counted_in(self._ports.get(owner, NO_OBJECTS), slot)

    def changing_counters(self) -> dict[Slot, Counted | Unserved]:
        """Return the elements with counters of all ports that changed since the last commit.

        Each comes with what it counts until the next commit, which may give it another endpoint.
        """
        changing: dict[Slot, Counted | Unserved] = {}
        if self._settings.count_by is CountBy.NOTHING:
            return changing
        for key, before in self._before.items():
            if before.elements == self._ports.get(key, NO_OBJECTS).elements:
                continue
            for element in before.elements:
                slot = element.slot
                counted: Counted | Unserved | None = None
                if element.container in _REFUSALS:
                    counted = self.counted_by(slot)
                elif element.container in _POOLED or element.container in _CONNECTIONS:
                    counted = _counted_in(before, slot)
                if counted is not None:
                    changing[slot] = counted
        return changing

    def model(self) -> Table:
        """Return the desired table, committed or not."""
        layout = self._layout
        table = Table(
            family=self._settings.family,
            name=self._settings.table,
            chains={chain.name: chain for chain in (*layout.chains, layout.marker)},
            sets={layout_set.name: layout_set for layout_set in layout.sets},
            maps={layout_map.name: layout_map for layout_map in layout.maps},
            elements={name: {} for name in CONTAINERS},
        )
        for element in self._claim_all().elements():
            table.elements[element.container][element.key] = element
        for objects in self._ports.values():
            table.chains.update({chain.name: chain for chain in objects.chains})
            table.sets.update({port_set.name: port_set for port_set in objects.sets})
        return table

    def _claim_all(self) -> ElementLedger:
        ledger = ElementLedger()
        ledger.claim(None, self._layout.elements)
        for key, objects in self._ports.items():
            ledger.claim(key, objects.elements)
        return ledger

    def _change_layout(self, settings: RulesetSettings) -> None:
        if settings == self._settings:
            return
        self._ledger.release(None, self._layout.elements)
        self._settings, self._layout = settings, build_layout(settings)
        self._ledger.claim(None, self._layout.elements)

    def _update_ports(self, first: list[Command]) -> int:
        """Install what changed ports need and retire the rest; return how many ports changed."""
        count = 0
        for key, before in self._before.items():
            after = self._ports.get(key, NO_OBJECTS)
            if after == before:
                continue
            count += 1
            self._install(after, first)
            # NB: all ports share the pool chains. Creating one costs more than all else, so unused
            # ones stay until the next `reconcile`.
            unused = [item for item in _items(before) - _items(after) if not _is_pool(item)]
            self._retirement.add(unused, self._serial + 1)
            if before.elements != after.elements:
                self._ledger.release(key, before.elements)
                self._ledger.claim(key, after.elements)
        self._before.clear()
        return count

    def _install(
        self, objects: PortObjects, first: list[Command], *, damaged: Sequence[str] = ()
    ) -> None:
        installed, keep = self._installed, self._retirement.cancel
        for port_set in objects.sets:
            item: Item = (SET, port_set.name)
            keep(item)
            if installed.get(item) != port_set.timeout_s:
                installed[item] = port_set.timeout_s
                first.append(AddSet(port_set))
        for chain in objects.chains:
            item = (CHAIN, chain.name)
            keep(item)
            if item not in installed:
                installed[item] = 0
                first += add_chain(chain)
            elif chain.name in damaged:
                first += [FlushChain(chain.name), *add_chain(chain)[1:]]

    def _update(self, first: list[Command], ports: int) -> Update | None:
        second: list[Command] = []
        for slot, is_taken, desired in self._ledger.changes():
            container, key = slot
            if container in _DELETED_LATE and desired is None:
                self._ledger.keep(slot)
                self._retirement.add_slot(slot, self._serial + 1)
                continue
            phase = first if container in _ADDED_EARLY and desired is not None else second
            if is_taken:
                phase.append(DeleteElement(container, key))
            if desired is not None:
                phase.append(AddElement(desired))
        retired = self._retirement.count(self._serial + 1)
        transactions = tuple(
            [self._transaction(part) for phase in (first, second) for part in split_commands(phase)]
        )
        if not transactions and not retired:
            return None
        self._serial += 1
        return Update(self._serial, transactions, ports, retired)

    def _transaction(self, commands: tuple[Command, ...]) -> Transaction:
        return Transaction(self._settings.whole_table, commands)


def cleanup_text(settings: RulesetSettings) -> str:
    """Return the transaction that removes the table, whether or not it exists.

    NB: if no other table has nat chains, the kernel forgets all translated connections.
    """
    return f"add table {settings.whole_table}\ndelete table {settings.whole_table}\n"


def _items(objects: PortObjects) -> set[Item]:
    return {
        *[(CHAIN, chain.name) for chain in objects.chains],
        *[(SET, port_set.name) for port_set in objects.sets],
    }


def _counted_in(objects: PortObjects, slot: Slot) -> Counted | None:
    """Return what the counter of a port's element counts; None for an unknown endpoint."""
    container, key = slot
    if container in _CONNECTIONS:
        counted = objects.counted_endpoints.get(key[-2:])
        if counted is None or container not in _FROM_OUTSIDE:
            return counted
        return counted._replace(is_from_outside=True)
    number = int(key[-1])
    return objects.counted[number] if number < len(objects.counted) else None


def _is_pool(item: Item) -> bool:
    return item[0] == CHAIN and item[1].startswith(POOL)
