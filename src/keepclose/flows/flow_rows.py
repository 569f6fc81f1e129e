"""The counts of an agent by flow, and which flow a connection belongs to.

Most connections resemble earlier ones: the same client, Service and endpoint. So the flow of a
connection is looked up by these until the address book changes. The number of flows is bounded:
beyond the limit, connections of further flows are counted in the flow REST of their zones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.attribution import Connection, NotCounted, attribute
from keepclose.accounting.flow_table import (
    REST,
    ZONES_ONLY,
    Detail,
    FlowCounts,
    FlowKey,
    FlowTable,
)
from keepclose.system.conntrack import TrackedConnection

IGNORED: Final = 0
"""The place of connections that another node counts."""
WAITING: Final = 1
"""The place of connections whose addresses have no name yet."""
_FIRST: Final = 2
_MAX_REMEMBERED: Final = 8192
_NANO: Final = 1e9


class FlowRows:
    """Flows by number, with their counts."""

    def __init__(
        self,
        book: AddressBook,
        *,
        node: str,
        detail: Detail,
        now: Callable[[], float],
        most: int = 20_000,
        has_all_names: bool = True,
    ) -> None:
        """Take the owners of addresses, and a clock that never goes back, in epoch seconds.

        Without `has_all_names` the cluster has owners that are not known yet.
        """
        self._book, self._node, self._detail = book, node, detail
        self._now = now
        self._most = most
        self._has_all_names = has_all_names
        self.keys: list[FlowKey] = [FlowKey(), FlowKey()]
        self.counts: list[FlowCounts] = [FlowCounts(), FlowCounts()]
        """By place; what is ignored or waits has counts that no reader sees."""
        self._places: dict[FlowKey, int] = {}
        self._recent: dict[tuple[object, ...], int] = {}
        self._changes = -1

    @property
    def changes(self) -> int:
        """How often the owners of addresses changed."""
        return self._book.changes

    def set_has_all_names(self, has_all_names: bool) -> bool:
        """Record whether all owners of the cluster are known; return whether that is a change."""
        if has_all_names is self._has_all_names:
            return False
        self._has_all_names = has_all_names
        self._recent.clear()
        return True

    def place(self, tracked: TrackedConnection) -> int:
        """Return the place of a connection that is seen for the first time."""
        if self._book.changes != self._changes:
            self._changes = self._book.changes
            self._recent.clear()
        # Everything but the port of the client.
        facts = (tracked[2], tracked[4], tracked[5], tracked[1], tracked[6], tracked[7])
        place = self._recent.get(facts)
        if place is None or tracked.started_ns:
            connection = self.connection_of(tracked)
            place = self.settle(connection, may_wait=True)
            if not tracked.started_ns and not self._has_just_changed(connection):
                if len(self._recent) >= _MAX_REMEMBERED:
                    self._recent.clear()
                self._recent[facts] = place
        return place

    def _has_just_changed(self, connection: Connection) -> bool:
        protocol, source, port, destination, to_port, reply, reply_port, at = connection
        has_just_changed = self._book.has_just_changed
        return (
            has_just_changed(source, port, protocol, at)
            or has_just_changed(destination, to_port, protocol, at)
            or has_just_changed(reply, reply_port, protocol, at)
        )

    def connection_of(self, tracked: TrackedConnection) -> Connection:
        """Return a connection with the time at which it began, or else the present."""
        at = self._now()
        if tracked.started_ns:
            # NB: the kernel's wall clock may have jumped since; a future start means now.
            at = min(at, tracked.started_ns / _NANO)
        return Connection(*tracked[1:8], at)

    def settle(self, connection: Connection, *, may_wait: bool) -> int:
        """Return the place of a connection, WAITING only if it may wait."""
        flow = attribute(
            connection,
            self._book,
            node=self._node,
            may_wait=may_wait,
            has_all_names=self._has_all_names,
        )
        if flow is NotCounted.WAIT:
            return WAITING
        if flow is NotCounted.ELSEWHERE:
            return IGNORED
        return self._place_of(self._detail.reduce(flow))

    def record_unowned(self, address: bytes) -> None:
        """Remember that an address has no owner, if it has none."""
        if self._book.record_unowned(address, at=self._now()):
            # Connections of this address were to wait.
            self._recent.clear()

    def table(self, *, start: float, end: float, has_bytes: bool) -> FlowTable:
        """Return a copy of all counts."""
        table = FlowTable(start=start, end=end, has_bytes=has_bytes)
        for key, counts in zip(self.keys[_FIRST:], self.counts[_FIRST:], strict=True):
            table.add(key, counts)
        return table

    def listed(self) -> tuple[list[FlowKey], list[FlowCounts]]:
        """Return keys and counts, in the order of their places from the first flow on."""
        return self.keys[_FIRST:], self.counts[_FIRST:]

    def load(self, keys: Sequence[FlowKey], counts: Sequence[FlowCounts]) -> list[int]:
        """Add flows of an earlier process, and return the place of each."""
        places = []
        for key, count in zip(keys, counts, strict=True):
            place = self._place_of(self._detail.reduce(key))
            self.counts[place].add(count)
            places.append(place)
        return places

    def _place_of(self, key: FlowKey) -> int:
        place = self._places.get(key)
        if place is None:
            if len(self.keys) >= self._most + _FIRST:
                rest = REST if key.service else ""
                key = ZONES_ONLY.reduce(key)._replace(namespace="", service=rest, port="")
                place = self._places.get(key)
                if place is not None:
                    return place
            place = self._places[key] = len(self.keys)
            self.keys.append(key)
            self.counts.append(FlowCounts())
        return place
