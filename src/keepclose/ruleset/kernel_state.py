"""Which service ports own which elements, what the kernel has, and what is due for deletion.

Ports of one Service share their cluster IP, several Services may have the same endpoint, and two
Services may even claim the same external address and port. An element stays as long as it has an
owner. If owners claim different verdicts, a Service wins at its own cluster IP, so that no other
Service takes its traffic by an external IP; otherwise the smallest owner wins. So the outcome
depends on the set of owners alone, never on the order of events.

A packet that started under old rules may still be passing through them, so objects that an update
leaves unused are deleted only some time later. Until then they may come back into use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from keepclose.ruleset.commands import (
    Command,
    DeleteChain,
    DeleteCounter,
    DeleteElement,
    DeleteSet,
    FlushChain,
)
from keepclose.ruleset.layout import CLUSTER_IPS
from keepclose.ruleset.names import ServicePortKey
from keepclose.ruleset.tables import Element, Slot

# NB: plain strings, because these pairs are hashed for every object of every changed port.
CHAIN: Final = "chain"
SET: Final = "set"
COUNTER: Final = "counter"

Item = tuple[str, str]
"""A kind and a name."""
_Owner = ServicePortKey | None
"""None owns the elements of the layout."""


class ElementLedger:
    """The owners of elements, and the elements in the kernel, by slot."""

    def __init__(self) -> None:
        # NB: few slots have several owners, and a dict for each would take most of the memory.
        self._claims: dict[Slot, tuple[_Owner, Element] | dict[_Owner, Element]] = {}
        self._installed: dict[Slot, str] = {}
        self._dirty: dict[Slot, None] = {}

    def claim(self, owner: _Owner, elements: Iterable[Element]) -> None:
        """Add the owner's claim to the elements."""
        for element in elements:
            slot = element.slot
            claims = self._claims.get(slot)
            if isinstance(claims, dict):
                claims[owner] = element
            elif claims is None or claims[0] == owner:
                self._claims[slot] = (owner, element)
            else:
                self._claims[slot] = {claims[0]: claims[1], owner: element}
            self._dirty[slot] = None

    def release(self, owner: _Owner, elements: Iterable[Element]) -> None:
        """Remove the owner's claim to the elements."""
        for element in elements:
            slot = element.slot
            claims = self._claims.get(slot)
            if isinstance(claims, dict):
                claims.pop(owner, None)
                if not claims:
                    del self._claims[slot]
            elif claims is not None and claims[0] == owner:
                del self._claims[slot]
            self._dirty[slot] = None

    def set_installed(self, installed: dict[Slot, str]) -> None:
        """Replace what the kernel has, and mark all slots as dirty."""
        self._installed = dict(installed)
        self._dirty = dict.fromkeys((*installed, *self._claims))

    def changes(self) -> Iterator[tuple[Slot, bool, Element | None]]:
        """Yield the slots that differ from the kernel, and record them as changed.

        Each comes with whether the kernel has an element there, and with the desired element.
        """
        dirty, self._dirty = self._dirty, {}
        for slot in dirty:
            desired = self.desired(slot)
            installed = self._installed.get(slot)
            if desired is None:
                if installed is not None:
                    del self._installed[slot]
                    yield slot, True, None
                continue
            verdict = "" if desired.verdict is None else desired.verdict.text()
            if installed != verdict:
                self._installed[slot] = verdict
                yield slot, installed is not None, desired

    def keep(self, slot: Slot) -> None:
        """Record that an element without an owner is still in the kernel."""
        self._installed[slot] = ""

    def forget(self, slot: Slot) -> None:
        """Record that an element which was kept is deleted."""
        self._installed.pop(slot, None)

    def desired(self, slot: Slot) -> Element | None:
        """Return the desired element of the slot; None for none."""
        claims = self._claims.get(slot)
        if claims is None:
            return None
        if isinstance(claims, tuple):
            return claims[1]
        return claims[self._winner(claims, slot)]

    def claim_of(self, slot: Slot) -> tuple[_Owner, Element] | None:
        """Return the owner that has the slot and its element; None if the slot has no owner."""
        claims = self._claims.get(slot)
        if isinstance(claims, dict):
            owner = self._winner(claims, slot)
            return owner, claims[owner]
        return claims

    def elements(self) -> Iterator[Element]:
        """Yield every desired element of the table."""
        for slot in self._claims:
            element = self.desired(slot)
            if element is not None:
                yield element

    def _winner(self, owners: Iterable[_Owner], slot: Slot) -> _Owner:
        return min(owners, key=lambda owner: self._rank(owner, slot))

    def _rank(self, owner: _Owner, slot: Slot) -> tuple[int, ServicePortKey | tuple[()]]:
        if owner is None:
            return 0, ()
        _, key = slot
        # NB: a single claim is a pair that contains its owner, several are a dict of owners.
        cluster_ip_claims = self._claims.get((CLUSTER_IPS, key[:1]), ())
        return (1 if owner in cluster_ip_claims else 2), owner


class DueDeletions(NamedTuple):
    """Objects and elements that are to be deleted now, sorted by name."""

    items: tuple[Item, ...]
    slots: tuple[Slot, ...]

    def flushes(self) -> list[Command]:
        """Return the commands that release all references: delete elements, flush chains."""
        elements = [DeleteElement(container, key) for container, key in self.slots]
        return [*elements, *[FlushChain(name) for kind, name in self.items if kind == CHAIN]]

    def deletions(self) -> list[Command]:
        """Return the commands that delete the objects, chains before what their rules used."""
        chains = [DeleteChain(name) for kind, name in self.items if kind == CHAIN]
        sets = [DeleteSet(name) for kind, name in self.items if kind == SET]
        counters = [DeleteCounter(name) for kind, name in self.items if kind == COUNTER]
        return [*chains, *sets, *counters]


class Retirement:
    """Unused items and elements that wait for deletion, by the update that left them unused."""

    def __init__(self) -> None:
        self._items: dict[int, dict[Item, None]] = {}
        self._slots: dict[int, dict[Slot, None]] = {}
        self._item_serials: dict[Item, int] = {}

    def add(self, items: Iterable[Item], serial: int) -> None:
        """Record that the update leaves the items unused."""
        bucket = self._items.setdefault(serial, {})
        for item in items:
            self.cancel(item)
            bucket[item] = None
            self._item_serials[item] = serial

    def add_slot(self, slot: Slot, serial: int) -> None:
        """Record that the update leaves an element unused."""
        self._slots.setdefault(serial, {})[slot] = None

    def cancel(self, item: Item) -> None:
        """Cancel the deletion of the item, which is in use; idempotent."""
        serial = self._item_serials.pop(item, None)
        if serial is not None:
            del self._items[serial][item]

    def count(self, serial: int) -> int:
        """Return how many items and elements the update left unused."""
        return len(self._items.get(serial, ())) + len(self._slots.get(serial, ()))

    def take(self, serial: int) -> DueDeletions:
        """Return and forget what updates up to this one left unused."""
        items: list[Item] = []
        for due in [retired_at for retired_at in self._items if retired_at <= serial]:
            items += self._items.pop(due)
        for item in items:
            del self._item_serials[item]
        slots: dict[Slot, None] = {}
        for due in [retired_at for retired_at in self._slots if retired_at <= serial]:
            slots.update(self._slots.pop(due))
        # NB: an element that a later update retired again must wait from that update on.
        waiting = {slot for bucket in self._slots.values() for slot in bucket}
        return DueDeletions(
            tuple(sorted(items)), tuple(sorted([slot for slot in slots if slot not in waiting]))
        )
