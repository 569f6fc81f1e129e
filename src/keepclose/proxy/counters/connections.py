"""Totals of connections by zone and of packets without an endpoint, from counters of the kernel.

Elements of maps count plain service ports, elements of sets all others. An element is deleted
with its endpoint, so this module adds up what elements counted, and reads the counter of an element
once more before a write that may delete it: totals never decrease while the proxy runs. A restarted
proxy starts from 0, as monitoring expects.

The client's zone is that of this node, except for connections that the rules know to come from
outside; a node or endpoint without a zone has the zone "(none)".

The time of a read grows with the number of endpoints, so its result is used for a second, or for
twenty times as long as the read took.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from keepclose.accounting.flow_table import NO_ZONE, OUTSIDE
from keepclose.kube.clock import Clock
from keepclose.model.addresses import IPV4
from keepclose.proxy.counters.kernel_counters import CounterReader, ElementCounts
from keepclose.proxy.counters.metrics import ConnectionCount, UnservedCount
from keepclose.proxy.nft.element_messages import NoBinaryFormError, decode_key, encode_key
from keepclose.proxy.nft.rules import Rules
from keepclose.proxy.nft.writer import NftFamily
from keepclose.ruleset.connection_sets import CONNECTION_SETS
from keepclose.ruleset.tables import Counted, Slot, Unserved

FRESH_S: Final = 1.0
SHARE: Final = 20
"""Reads may take one part in so many of the time."""
_log = structlog.get_logger(__name__)

ConnectionKey = tuple[str, str, str, str, str, str, str]
UnservedKey = tuple[str, str, str]


class ConnectionCounters:
    """The totals of all families at the last read."""

    def __init__(
        self,
        rules: Mapping[str, Rules],
        *,
        table: str,
        zone: Callable[[], str],
        reader: CounterReader,
        clock: Clock,
    ) -> None:
        """Take the rules of each family; `zone` returns the zone of this node."""
        self._rules = rules
        self._table = table
        self._zone = zone
        self._reader = reader
        self._clock = clock
        self._read_at = -math.inf
        self._fresh_s = FRESH_S
        self._turn = asyncio.Lock()
        self._last: dict[tuple[str, str], ElementCounts] = {}
        """The counters of elements at the last read, by family and set or map."""
        self._connections: Counter[ConnectionKey] = Counter()
        self._unserved: Counter[UnservedKey] = Counter()
        self.counts: tuple[ConnectionCount, ...] = ()
        """By Service port, zones and mode, at the last read."""
        self.unserved: tuple[UnservedCount, ...] = ()
        """By Service and action."""

    async def start(self) -> None:
        """Read the counters of an earlier proxy, which do not belong to the totals."""
        try:
            for family, rules in self._rules.items():
                for container in rules.counted_containers:
                    counts = await self._reader.read_elements(_ip(family), self._table, container)
                    self._last[family, container] = counts
        except OSError as error:
            _log.warning("connection counters cannot be read", error=str(error))

    async def refresh(self) -> None:
        """Read the counters unless the last read is recent; after a failure the totals stay."""
        async with self._turn:
            started = self._clock.monotonic()
            if started - self._read_at < self._fresh_s:
                return
            try:
                for family, rules in self._rules.items():
                    for container in rules.counted_containers:
                        counts = await self._reader.read_elements(
                            _ip(family), self._table, container
                        )
                        self._add_all(family, container, counts)
            except OSError as error:
                _log.warning("connection counters cannot be read", error=str(error))
                return
            self._read_at = self._clock.monotonic()
            self._fresh_s = max(FRESH_S, SHARE * (self._read_at - started))
            self.counts = tuple(
                ConnectionCount(*key, packets) for key, packets in sorted(self._connections.items())
            )
            self.unserved = tuple(
                UnservedCount(*key, packets) for key, packets in sorted(self._unserved.items())
            )

    async def collect(self, family: str, changing: Mapping[Slot, Counted | Unserved]) -> None:
        """Add the counters of these elements to the totals before a write may delete them."""
        ip = _ip(family)
        by_container: dict[str, list[Slot]] = {}
        for slot in changing:
            by_container.setdefault(slot[0], []).append(slot)
        async with self._turn:
            for container, slots in by_container.items():
                try:
                    counts = await self._reader.read_elements(
                        ip, self._table, container, [key for _, key in slots]
                    )
                    counted_by_key = {encode_key(slot[1], ip): changing[slot] for slot in slots}
                except (OSError, NoBinaryFormError) as error:
                    _log.warning(
                        "connections of changed elements not counted",
                        container=container,
                        error=str(error),
                    )
                    continue
                last = self._last.setdefault((family, container), {})
                for key, count in counts.items():
                    packets = _increase(last, counts, key)
                    last[key] = count
                    if packets and key in counted_by_key:
                        self._add(counted_by_key[key], packets)

    async def close(self) -> None:
        """Close the reader."""
        await self._reader.close()

    def _add_all(self, family: str, container: str, counts: ElementCounts) -> None:
        last = self._last.get((family, container), {})
        rules, ip = self._rules[family], _ip(family)
        for key, count in counts.items():
            if count.packets and (packets := _increase(last, counts, key)):
                parts = decode_key(key, ip, has_endpoint=container in CONNECTION_SETS)
                counted = rules.counted_by((container, parts))
                if counted is not None:
                    self._add(counted, packets)
        self._last[family, container] = counts

    def _add(self, counted: Counted | Unserved, packets: int) -> None:
        if isinstance(counted, Counted):
            self._connections[self._key_of(counted)] += packets
        else:
            (namespace, name), _, _ = counted.port
            self._unserved[namespace, name, counted.action] += packets

    def _key_of(self, counted: Counted) -> ConnectionKey:
        (namespace, name), port, protocol = counted.port
        client_zone = OUTSIDE if counted.is_from_outside else self._zone() or NO_ZONE
        return (
            namespace,
            name,
            port or str(counted.number),
            protocol,
            client_zone,
            counted.zone or NO_ZONE,
            counted.mode,
        )


def _increase(last: ElementCounts, counts: ElementCounts, key: bytes) -> int:
    """Return how many packets an element has counted since the last read."""
    count, before = counts[key], last.get(key)
    # NB: the key may belong to another element meanwhile, which started from 0.
    if before is None or before.data != count.data or before.packets > count.packets:
        return count.packets
    return count.packets - before.packets


def _ip(family: str) -> NftFamily:
    return "ip" if family == IPV4 else "ip6"
