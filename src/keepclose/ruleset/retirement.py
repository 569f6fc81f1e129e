"""What is still in the kernel although nothing uses it any more.

A packet that set out by old rules may still be on its way through them, so what an update leaves
unused is deleted only a while later. Until then it may come back into use; then it is spared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from keepclose.ruleset.commands import (
    Command,
    DeleteChain,
    DeleteCounter,
    DeleteElement,
    DeleteSet,
    FlushChain,
)
from keepclose.ruleset.tables import Slot

# NB: plain strings, because these pairs are hashed for every object of every changed port.
CHAIN: Final = "chain"
SET: Final = "set"
COUNTER: Final = "counter"

Item = tuple[str, str]
"""A kind and a name."""


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
