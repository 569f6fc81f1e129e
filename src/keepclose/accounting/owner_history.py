"""Owners of addresses and of ports by time, so that a key is looked up by the time of a connection.

An owner is recorded from the moment at which the API reports it until the moment at which the API
reports its end. Both are late by the delay of a watch, and a key without an owner at some moment
belongs to the next one: its pod runs before the API says so. But a connection is seen a moment
after it began, so within a second the key is still its last owner's. Owners that ended are kept for
ten minutes, in bounded number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from enum import IntEnum
from math import inf
from typing import Final, NamedTuple

from keepclose.accounting.flow_table import UNKNOWN
from keepclose.model.meta import NamespacedName

REMEMBERED_S: Final = 600.0
MAX_REMEMBERED: Final = 20_000
LATE_S: Final = 1.0
"""How long after the end of an owner connections are seen that began before."""


class OwnerKind(IntEnum):
    """What an address belongs to; of several records the least kind counts."""

    NODE = 1
    POD = 2
    ENDPOINT = 3
    """An endpoint of a slice, whose pod is not watched or does not exist."""
    POD_RANGE = 4
    """No owner of its own: an address in the pod CIDR of a node, such as that of its bridge."""
    SUBNET = 5


class AddressOwner(NamedTuple):
    """The owner of an address."""

    kind: OwnerKind
    name: str
    """namespace/name of a pod, the name of a node, or the CIDR of a subnet."""
    node: str = ""
    zone: str = UNKNOWN
    workload: str = ""
    """namespace/name of what made the pod."""


class Frontend(NamedTuple):
    """A port of a Service, by one of its addresses."""

    service: NamespacedName
    port: str
    """The name of the port, or its number."""
    endpoint: str = ""
    """namespace/name of the pod that serves it, if an address of an endpoint was looked up."""


class OwnerRecord(NamedTuple):
    """An owner of a key, and from when until when it is known to be."""

    since: float
    until: float
    priority: int
    source: Hashable
    owner: AddressOwner | Frontend


class OwnerHistory:
    """Records by key, each with its time; those that ended long ago are dropped."""

    def __init__(self) -> None:
        self._records: dict[Hashable, list[OwnerRecord]] = {}
        self._keys: dict[Hashable, frozenset[Hashable]] = {}
        """The keys at which a source has a record that has not ended."""
        self._ended: deque[tuple[float, Hashable]] = deque()

    def set(
        self,
        source: Hashable,
        owners: dict[Hashable, AddressOwner] | dict[Hashable, Frontend],
        *,
        priority: int,
        at: float,
    ) -> None:
        """Make these the only records of a source from now on."""
        before = self._keys.get(source, frozenset())
        if owners:
            self._keys[source] = frozenset(owners)
        else:
            self._keys.pop(source, None)
        for key in before - owners.keys():
            self._end(key, source, at)
        for key, owner in owners.items():
            records = self._records.setdefault(key, [])
            for record in records:
                if record.source == source and record.until == inf:
                    is_known = record.owner == owner and record.priority == priority
                    break
            else:
                is_known = False
            if not is_known:
                # NB: a pod may get the address of another one within a single change of a slice.
                self._end(key, source, at)
                records.append(OwnerRecord(at, inf, priority, source, owner))
        self._forget(at)

    def find(self, key: Hashable, at: float) -> AddressOwner | Frontend | None:
        """Return the best record of that time, else one that has just ended, else the next one."""
        records = self._records.get(key)
        if records is None:
            return None
        if len(records) == 1:
            return records[0].owner if records[0].until > at - LATE_S else None
        alive = [record for record in records if record.until > at]
        present = [record for record in alive if record.since <= at]
        if present:
            return min(present, key=lambda record: (record.priority, -record.since)).owner
        recent = [record for record in records if at >= record.until > at - LATE_S]
        if recent:
            return max(recent, key=lambda record: (record.until, -record.priority)).owner
        if alive:
            return min(alive, key=lambda record: (record.since, record.priority)).owner
        return None

    def has_just_ended(self, key: Hashable, at: float) -> bool:
        """Whether an owner of the key ended so lately that `find` will answer otherwise soon."""
        return any(at - LATE_S < record.until <= at for record in self._records.get(key, ()))

    def has(self, key: Hashable) -> bool:
        """Whether there is a record of any time that is remembered."""
        return key in self._records

    def _end(self, key: Hashable, source: Hashable, at: float) -> None:
        records = self._records.get(key, [])
        for index, record in enumerate(records):
            if record.source == source and record.until == inf:
                records[index] = record._replace(until=at)
                self._ended.append((at, key))

    def _forget(self, at: float) -> None:
        while self._ended and (
            self._ended[0][0] < at - REMEMBERED_S or len(self._ended) > MAX_REMEMBERED
        ):
            until, key = self._ended.popleft()
            records = [record for record in self._records.get(key, ()) if record.until > until]
            if records:
                self._records[key] = records
            else:
                self._records.pop(key, None)
