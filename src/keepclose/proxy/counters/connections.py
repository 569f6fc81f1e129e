"""How many connections went where, and how many packets found no endpoint; read from the kernel.

Plain service ports are counted by the elements of maps, other ports by named counters. An element
goes with its endpoint, so what it counted is added up here, and its counter is read once more
before a write that may take it away: sums only grow as long as the proxy runs. A restarted proxy
starts from 0, as monitoring expects.

Reading takes time that grows with the number of endpoints, so a look stays fresh for a second, or
for twenty times as long as it took.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

import structlog

from keepclose.kube.clock import Clock
from keepclose.model.addresses import IPV4
from keepclose.proxy.counters.kernel_counters import CounterReader, Counts
from keepclose.proxy.counters.metrics import ConnectionCount, UnservedCount
from keepclose.proxy.nft.element_messages import NoBinaryFormError, decode_key, encode_key
from keepclose.proxy.nft.rules import Rules
from keepclose.proxy.nft.writer import NftFamily
from keepclose.ruleset.tables import Counted, Slot, Unserved

FRESH_S: Final = 1.0
SHARE: Final = 20
"""A look may take this part of the time at most."""
_log = structlog.get_logger(__name__)

ConnectionKey = tuple[str, str, str, str]
UnservedKey = tuple[str, str, str]


class ConnectionCounters:
    """Sums of all families, as they were at the last look."""

    def __init__(
        self, rules: Mapping[str, Rules], *, table: str, reader: CounterReader, clock: Clock
    ) -> None:
        self._rules = rules
        self._table = table
        self._reader = reader
        self._clock = clock
        self._looked_at = -math.inf
        self._fresh_s = FRESH_S
        self._turn = asyncio.Lock()
        self._last: dict[tuple[str, str], Counts] = {}
        """What elements had counted when they were read last, by family and set or map."""
        self._sums: Counter[ConnectionKey] = Counter()
        self._unserved: Counter[UnservedKey] = Counter()
        self.counts: tuple[ConnectionCount, ...] = ()
        """By Service, zone and mode, as they were at the last look."""
        self.unserved: tuple[UnservedCount, ...] = ()
        """By Service and what became of the packets."""

    async def start(self) -> None:
        """Take what elements have counted so far for the sums of an earlier proxy."""
        try:
            for family, rules in self._rules.items():
                for container in rules.counted_containers:
                    counts = await self._reader.read_elements(_ip(family), self._table, container)
                    self._last[family, container] = counts
        except OSError as error:
            _log.warning("connections cannot be counted", error=str(error))

    async def refresh(self) -> None:
        """Look again unless that was done just now; what cannot be read stays as it was."""
        async with self._turn:
            started = self._clock.monotonic()
            if started - self._looked_at < self._fresh_s:
                return
            named: Counter[ConnectionKey] = Counter()
            try:
                for family, rules in self._rules.items():
                    numbers = await self._reader.read(_ip(family), self._table)
                    for counted, packets in rules.read_counters(numbers):
                        named[_key_of(counted)] += packets
                    for container in rules.counted_containers:
                        counts = await self._reader.read_elements(
                            _ip(family), self._table, container
                        )
                        self._add_all(family, container, counts)
            except OSError as error:
                _log.warning("connections cannot be counted", error=str(error))
                return
            self._looked_at = self._clock.monotonic()
            self._fresh_s = max(FRESH_S, SHARE * (self._looked_at - started))
            sums = self._sums + named
            for key in named:
                # NB: a counter that is there says so, even at 0.
                sums.setdefault(key, 0)
            self.counts = tuple(
                ConnectionCount(*key, packets) for key, packets in sorted(sums.items())
            )
            self.unserved = tuple(
                UnservedCount(*key, packets) for key, packets in sorted(self._unserved.items())
            )

    async def collect(self, family: str, changing: Mapping[Slot, Counted | Unserved]) -> None:
        """Add up what these elements have counted, before a write that may take them away."""
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
                    known = {encode_key(slot[1], ip): changing[slot] for slot in slots}
                except (OSError, NoBinaryFormError) as error:
                    _log.warning("some connections are not counted", error=str(error))
                    continue
                last = self._last.setdefault((family, container), {})
                for key, count in counts.items():
                    packets = _more(last, counts, key)
                    last[key] = count
                    if packets and key in known:
                        self._add(known[key], packets)

    async def close(self) -> None:
        """Let go of the reader."""
        await self._reader.close()

    def _add_all(self, family: str, container: str, counts: Counts) -> None:
        last = self._last.get((family, container), {})
        rules, ip = self._rules[family], _ip(family)
        for key, count in counts.items():
            if count.packets and (packets := _more(last, counts, key)):
                counted = rules.counted_by((container, decode_key(key, ip)))
                if counted is not None:
                    self._add(counted, packets)
        self._last[family, container] = counts

    def _add(self, counted: Counted | Unserved, packets: int) -> None:
        if isinstance(counted, Counted):
            self._sums[_key_of(counted)] += packets
        else:
            (namespace, name), _, _ = counted.port
            self._unserved[namespace, name, counted.action] += packets


def _more(last: Counts, counts: Counts, key: bytes) -> int:
    """Return how many packets an element has counted since it was read last."""
    count, before = counts[key], last.get(key)
    # NB: under the same key there may be another element by now, which began at 0.
    if before is None or before.data != count.data or before.packets > count.packets:
        return count.packets
    return count.packets - before.packets


def _key_of(counted: Counted) -> ConnectionKey:
    (namespace, name), _, _ = counted.port
    return namespace, name, counted.zone, counted.mode


def _ip(family: str) -> NftFamily:
    return "ip" if family == IPV4 else "ip6"
