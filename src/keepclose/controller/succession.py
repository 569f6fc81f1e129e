"""The writes of one plan in an order in which no wanted endpoint is ever without a slice.

Creates come first, then updates that remove nothing, then the other updates, then deletes. An
endpoint that moves from one slice to another is written where it goes before it is removed from
where it was. Where two slices swap endpoints, one of them first gets those of both. After a failed
write only what takes no wanted endpoint away goes on.

NB: slices of different ports cannot hold each other's endpoints, so that while the ports of a
Service change, and slices lend each other their names, endpoints can be away for a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.slices.packing import SlicePlan

Addresses = frozenset[tuple[str, ...]]
_NONE: Addresses = frozenset()
# The most endpoints that the API takes in one slice.
_MOST_ENDPOINTS = 1000


class Operation(StrEnum):
    """The kinds of writes, by the words of the metric `changes`."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Write:
    """One write: the slice as it is to be, and for a delete as it is."""

    __slots__ = ("adds", "operation", "piece", "removes")

    def __init__(
        self,
        operation: Operation,
        piece: EndpointSlice,
        *,
        adds: Addresses = _NONE,
        removes: Addresses = _NONE,
    ) -> None:
        self.operation = operation
        self.piece = piece
        self.adds = adds
        self.removes = removes


class Succession:
    """Hands out the writes one by one; tell it how each went before asking for the next."""

    def __init__(self, plan: SlicePlan, present: Mapping[str, EndpointSlice]) -> None:
        self._present = present
        self._failed = False
        self._moving = _NONE
        self._seats: Counter[tuple[str, ...]] = Counter()
        only = _find_only(plan)
        if only is not None:
            # Nothing can move with one write, which is the usual case.
            self._left = [only]
            return
        creates = [Write(Operation.CREATE, one, adds=_addresses(one)) for one in plan.create]
        updates = [_update(one, present.get(one.metadata.name)) for one in plan.update]
        updates.sort(key=lambda write: bool(write.removes))
        deletes = [Write(Operation.DELETE, one, removes=_addresses(one)) for one in plan.delete]
        self._left = [*creates, *updates, *deletes]
        removed = _NONE.union(*(write.removes for write in self._left))
        # Only endpoints that leave one of these slices and come to another can get lost between.
        self._moving = removed & _NONE.union(*(write.adds for write in self._left))
        for write in self._left:
            self._seats.update(write.removes & self._moving)

    def next(self) -> Write | None:
        """Return the write to do now; None when there is nothing more that may be done."""
        for number, write in enumerate(self._left):
            if self._is_safe(write):
                return self._left.pop(number)
        if not self._left or self._failed:
            return None
        for write in self._left:
            bridge = self._bridge(write)
            if bridge is not None:
                return bridge
        return self._left.pop(0)

    def note_done(self, write: Write, stored: EndpointSlice | None) -> None:
        """Note what the server has now; None after a delete."""
        self._seats.update(write.adds & self._moving)
        self._seats.subtract(write.removes & self._moving)
        if stored is None:
            return
        name, version = stored.metadata.name, stored.metadata.resource_version
        for other in self._left:
            if other.piece.metadata.name == name and other.operation is Operation.UPDATE:
                # The second write of a slice that was bridged.
                meta = replace(other.piece.metadata, resource_version=version)
                other.piece = replace(other.piece, metadata=meta)

    def note_failed(self) -> None:
        """Note that a write failed, so that what depends on it is left out."""
        self._failed = True

    @property
    def left(self) -> int:
        """How many writes were not handed out."""
        return len(self._left)

    def _is_safe(self, write: Write) -> bool:
        moving = write.removes & self._moving
        return all(self._seats[address] > 1 for address in moving)

    def _bridge(self, write: Write) -> Write | None:
        """Return a write that adds what the slice is to get, and keeps what must not go yet."""
        before = self._present.get(write.piece.metadata.name)
        if (
            write.operation is not Operation.UPDATE
            or not write.adds
            or before is None
            or before.ports != write.piece.ports
        ):
            return None
        kept = tuple(one for one in before.endpoints if one.addresses in write.removes)
        endpoints = (*write.piece.endpoints, *kept)
        if len(endpoints) > _MOST_ENDPOINTS:
            return None
        bridge = Write(Operation.UPDATE, replace(write.piece, endpoints=endpoints), adds=write.adds)
        write.adds = _NONE
        return bridge


def _find_only(plan: SlicePlan) -> Write | None:
    """Return the write of a plan that has only one."""
    if len(plan.create) + len(plan.update) + len(plan.delete) != 1:
        return None
    if plan.create:
        return Write(Operation.CREATE, plan.create[0])
    if plan.update:
        return Write(Operation.UPDATE, plan.update[0])
    return Write(Operation.DELETE, plan.delete[0])


def _update(piece: EndpointSlice, before: EndpointSlice | None) -> Write:
    old, new = (_NONE if before is None else _addresses(before)), _addresses(piece)
    return Write(Operation.UPDATE, piece, adds=new - old, removes=old - new)


def _addresses(piece: EndpointSlice) -> Addresses:
    return frozenset([one.addresses for one in piece.endpoints])
