"""How many connections went where, read from the kernel when somebody asks.

Counters go with the rules that they belong to, so what is counted for a Service starts anew when
its rules do; monitoring knows that from restarts. Reading is not free, so that several readers
within a second share one look, and the families are read one after the other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Final

import structlog

from keepclose.kube.clock import Clock
from keepclose.model.addresses import IPV4
from keepclose.proxy.counterdump import CounterReader
from keepclose.proxy.metrics import ConnectionCount
from keepclose.proxy.rules import Rules
from keepclose.proxy.writers import Family

FRESH_S: Final = 1.0
_log = structlog.get_logger(__name__)


class ConnectionCounters:
    """The last look at the counters of all families."""

    def __init__(
        self, rules: Mapping[str, Rules], *, table: str, reader: CounterReader, clock: Clock
    ) -> None:
        self._rules = rules
        self._table = table
        self._reader = reader
        self._clock = clock
        self._looked_at = -math.inf
        self._turn = asyncio.Lock()
        self.counts: tuple[ConnectionCount, ...] = ()
        """By Service, zone and mode, as they were at the last look."""

    async def refresh(self) -> None:
        """Look again unless that was done just now; what cannot be read stays as it was."""
        async with self._turn:
            if self._clock.monotonic() - self._looked_at < FRESH_S:
                return
            sums: dict[tuple[str, str, str, str], int] = {}
            try:
                for family, rules in self._rules.items():
                    ip: Family = "ip" if family == IPV4 else "ip6"
                    numbers = await self._reader.read(ip, self._table)
                    for counted, packets in rules.read_counters(numbers):
                        (namespace, name), _, _ = counted.port
                        key = (namespace, name, counted.zone, counted.mode)
                        sums[key] = sums.get(key, 0) + packets
            except OSError as error:
                _log.warning("connections cannot be counted", error=str(error))
                return
            self._looked_at = self._clock.monotonic()
            self.counts = tuple(
                ConnectionCount(*key, packets) for key, packets in sorted(sums.items())
            )

    async def close(self) -> None:
        """Let go of the reader."""
        await self._reader.close()
