"""Who wants which element, and which of them the kernel has.

Ports of one Service share their cluster IP, endpoints of one address are entered by every Service
that has them, and two Services may even claim the same external address and port. An element stays
as long as anybody wants it. If they want different verdicts, a Service wins at its own cluster IP,
so that nobody takes its traffic by an external IP; else the smallest owner wins. So the outcome
depends on nothing but who is there.
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

_Owner = ServicePortKey | None
"""None owns the elements of the layout."""
# NB: plain strings, because these pairs are hashed for every object of every changed port.
CHAIN: Final = "chain"
SET: Final = "set"
COUNTER: Final = "counter"

Item = tuple[str, str]
"""A kind and a name."""


class ElementLedger:
    """Elements by the slot that each has to itself."""

    def __init__(self) -> None:
        # NB: hardly any slot has several owners, and a dict for each would be most of the memory.
        self._claims: dict[Slot, tuple[_Owner, Element] | dict[_Owner, Element]] = {}
        self._installed: dict[Slot, str] = {}
        self._doubted: dict[Slot, None] = {}

    def claim(self, owner: _Owner, elements: Iterable[Element]) -> None:
        """Note that the owner wants the elements."""
        for element in elements:
            slot = element.slot
            known = self._claims.get(slot)
            if isinstance(known, dict):
                known[owner] = element
            elif known is None or known[0] == owner:
                self._claims[slot] = (owner, element)
            else:
                self._claims[slot] = {known[0]: known[1], owner: element}
            self._doubted[slot] = None

    def renounce(self, owner: _Owner, elements: Iterable[Element]) -> None:
        """Note that the owner no longer wants the elements."""
        for element in elements:
            slot = element.slot
            claims = self._claims.get(slot)
            if isinstance(claims, dict):
                claims.pop(owner, None)
                if not claims:
                    del self._claims[slot]
            elif claims is not None and claims[0] == owner:
                del self._claims[slot]
            self._doubted[slot] = None

    def assume(self, installed: dict[Slot, str]) -> None:
        """Take for granted what the kernel has, and doubt everything."""
        self._installed = dict(installed)
        self._doubted = dict.fromkeys((*installed, *self._claims))

    def changes(self) -> Iterator[tuple[Slot, bool, Element | None]]:
        """Yield the slots in which something has to change, and settle them.

        Each comes with whether it is taken in the kernel and with what should be there instead.
        """
        doubted, self._doubted = self._doubted, {}
        for slot in doubted:
            wanted = self.wanted(slot)
            has = self._installed.get(slot)
            if wanted is None:
                if has is not None:
                    del self._installed[slot]
                    yield slot, True, None
                continue
            verdict = "" if wanted.verdict is None else wanted.verdict.text()
            if has != verdict:
                self._installed[slot] = verdict
                yield slot, has is not None, wanted

    def keep(self, slot: Slot) -> None:
        """Note that an element is still in the kernel though nobody wants it."""
        self._installed[slot] = ""

    def forget(self, slot: Slot) -> None:
        """Note that an element which was kept has been deleted."""
        self._installed.pop(slot, None)

    def wanted(self, slot: Slot) -> Element | None:
        """Return what should be in the slot; None for nothing."""
        claims = self._claims.get(slot)
        if claims is None:
            return None
        if isinstance(claims, tuple):
            return claims[1]
        return claims[self._first(claims, slot)]

    def claim_of(self, slot: Slot) -> tuple[_Owner, Element] | None:
        """Return who has the slot, and with what; None where nobody wants it."""
        claims = self._claims.get(slot)
        if isinstance(claims, dict):
            owner = self._first(claims, slot)
            return owner, claims[owner]
        return claims

    def _first(self, claims: Iterable[_Owner], slot: Slot) -> _Owner:
        return min(claims, key=lambda owner: self._rank(owner, slot))

    def elements(self) -> Iterator[Element]:
        """Yield every element that should be in the table."""
        for slot in self._claims:
            element = self.wanted(slot)
            if element is not None:
                yield element

    def _rank(self, owner: _Owner, slot: Slot) -> tuple[int, ServicePortKey | tuple[()]]:
        if owner is None:
            return 0, ()
        _, key = slot
        # Either the one that has it with its element, or all of them.
        holders = self._claims.get((CLUSTER_IPS, key[:1]), ())
        return (1 if owner in holders else 2), owner


class Due(NamedTuple):
    """What is to be deleted now, sorted by name."""

    items: tuple[Item, ...]
    slots: tuple[Slot, ...]

    def flushes(self) -> list[Command]:
        """Return what lets go of everything: no rule of these chains and no element is left."""
        elements = [DeleteElement(container, key) for container, key in self.slots]
        return [*elements, *[FlushChain(name) for kind, name in self.items if kind == CHAIN]]

    def deletions(self) -> list[Command]:
        """Return what removes the rest, chains before what their rules used."""
        chains = [DeleteChain(name) for kind, name in self.items if kind == CHAIN]
        sets = [DeleteSet(name) for kind, name in self.items if kind == SET]
        counters = [DeleteCounter(name) for kind, name in self.items if kind == COUNTER]
        return [*chains, *sets, *counters]


class Retirement:
    """Items and elements by the update that left them unused."""

    def __init__(self) -> None:
        self._items: dict[int, dict[Item, None]] = {}
        self._slots: dict[int, dict[Slot, None]] = {}
        self._item_serials: dict[Item, int] = {}

    def add(self, items: Iterable[Item], serial: int) -> None:
        """Note that the update leaves the items unused."""
        bucket = self._items.setdefault(serial, {})
        for item in items:
            self.spare(item)
            bucket[item] = None
            self._item_serials[item] = serial

    def add_slot(self, slot: Slot, serial: int) -> None:
        """Note that the update leaves an element unused."""
        self._slots.setdefault(serial, {})[slot] = None

    def spare(self, item: Item) -> None:
        """Note that the item is in use again, or never was out of it."""
        serial = self._item_serials.pop(item, None)
        if serial is not None:
            del self._items[serial][item]

    def count(self, serial: int) -> int:
        """Return how many the update left unused."""
        return len(self._items.get(serial, ())) + len(self._slots.get(serial, ()))

    def take(self, serial: int) -> Due:
        """Return and forget what updates up to this one left unused."""
        items: list[Item] = []
        for one in [one for one in self._items if one <= serial]:
            items += self._items.pop(one)
        for item in items:
            del self._item_serials[item]
        slots: dict[Slot, None] = {}
        for one in [one for one in self._slots if one <= serial]:
            slots.update(self._slots.pop(one))
        # NB: what a later update retired once more has its second there still to wait.
        waiting = {slot for bucket in self._slots.values() for slot in bucket}
        return Due(
            tuple(sorted(items)), tuple(sorted([slot for slot in slots if slot not in waiting]))
        )
