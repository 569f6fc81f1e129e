"""Reads the kernel: events all the time, and the whole table every so often.

Events wait in the kernel's buffer and are read many at a time, because a wake-up for each would
cost more than its work. Before each part of a walk events are read too, so that the buffer never
fills meanwhile, and the ledger knows who had a key before. If it overflows all the same, the lost
events are counted. A walk follows once the buffer is empty and the kernel drops no more: it finds
the connections whose beginning was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import Any, Final, NoReturn

import structlog

from keepclose.flows.ledger import Ledger
from keepclose.kube.clock import Clock
from keepclose.system.conntrack import (
    ConntrackEvents,
    ConntrackState,
    TrackedConnection,
    read_conntrack_state,
    walk_connections,
)

EVENTS_PERIOD_S: Final = 0.1
"""How long events wait in the kernel's buffer."""
_EVENTS_AT_ONCE: Final = 500
_EVENTS_EACH_PART: Final = 2000
"""How many events are read before a part of a walk at most, so that each walk ends."""
_LEAST_EVENT_BYTES: Final = 512
"""What an event takes in the kernel's buffer at least."""
_FULL_SHARE: Final = 0.95
"""The part of the table's size from which on it is reported as full."""
_log = structlog.get_logger(__name__)
Inside = Callable[[Callable[[], Any]], Any]


def run_here(work: Callable[[], Any]) -> Any:
    """Run work in the network namespace of this thread."""
    return work()


class ConntrackUnavailableError(Exception):
    """The kernel's connections cannot be read; the message says why, and the fix."""

    def __init__(self, problem: str, fix: str, *, needs_privilege: bool = False) -> None:
        super().__init__(problem)
        self.fix = fix
        self.needs_privilege = needs_privilege


class Collector:
    """Feeds a ledger from the kernel of one network namespace."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Clock,
        walk_s: float,
        buffer_bytes: int,
        inside: Inside = run_here,
        open_events: Callable[[int], ConntrackEvents] | None = None,
        open_walk: Callable[[], Iterator[list[TrackedConnection]]] = walk_connections,
    ) -> None:
        """Take the ledger; `inside` runs work in the namespace that is meant."""
        self._ledger, self._clock, self._walk_s = ledger, clock, walk_s
        self._buffer_bytes, self._inside, self._open_walk = buffer_bytes, inside, open_walk
        self._open_events = open_events or (lambda size: ConntrackEvents(buffer_bytes=size))
        self._events: ConntrackEvents | None = None
        self._repair = asyncio.Event()
        self._walking = asyncio.Lock()
        self.state: ConntrackState | None = None
        """As the last walk found it."""
        self.events = 0
        self._lost_of_late = 0
        self.lost = 0
        """Events that the kernel dropped because its buffer was full."""
        self.walks = 0
        self.table_full = 0
        """Connections that found no room in the kernel's table since the start."""
        self._dropped_before: int | None = None
        self._is_warned = False

    def open(self) -> None:
        """Begin to receive events, which are read later; raises ConntrackUnavailableError."""
        try:
            self._open()
        except PermissionError as error:
            raise ConntrackUnavailableError(
                f"the kernel denies access to its connections: {error.strerror}",
                "run as root, or with the capability NET_ADMIN (in a pod: "
                "securityContext.capabilities.add: [NET_ADMIN])",
                needs_privilege=True,
            ) from None
        except OSError as error:
            raise ConntrackUnavailableError(
                f"this kernel tracks no connections: {error.strerror or error}",
                "load it: modprobe nf_conntrack_netlink, or use a kernel with "
                "CONFIG_NF_CT_NETLINK and CONFIG_NF_CONNTRACK_EVENTS",
            ) from None

    def _open(self) -> None:
        try:
            # NB: this loads the kernel's module, without which its settings do not exist.
            self._events = self._inside(lambda: self._open_events(self._buffer_bytes))
            for _ in self._inside(self._open_walk):
                break
            self.check_state()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop receiving events. Idempotent."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def check_state(self) -> ConntrackState:
        """Read settings and gauges of the kernel; raises OSError."""
        state: ConntrackState = self._inside(read_conntrack_state)
        if self._dropped_before is not None:
            self.table_full += max(0, state.dropped - self._dropped_before)
        self._dropped_before = state.dropped
        is_full = state.most > 0 and state.number >= state.most * _FULL_SHARE
        if is_full and not self._is_warned:
            _log.warning(
                "the kernel's table of connections is nearly full: it drops new connections then",
                connections=state.number,
                most=state.most,
                fix="raise net.netfilter.nf_conntrack_max",
            )
        self._is_warned = is_full
        if not state.reports_events and (self.state is None or self.state.reports_events):
            _log.warning(
                "the kernel reports no events of connections: those that begin and end between two "
                "walks of its table are not counted",
                fix="sysctl -w net.netfilter.nf_conntrack_events=1",
            )
        self.state = state
        return state

    async def read_events(self) -> NoReturn:
        """Read events until cancelled."""
        while True:
            has_more = self._read_some()
            await self._clock.sleep(0.0 if has_more else EVENTS_PERIOD_S)

    async def walk_at_intervals(self, after_walk: Callable[[], None]) -> NoReturn:
        """Walk the table every so often, and after lost events, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await self._clock.wait_for(self._repair.wait(), self._walk_s)
            self._repair.clear()
            await self.walk()
            after_walk()

    async def walk(self) -> bool:
        """Walk the kernel's table once; return whether it was read to its end."""
        async with self._walking:
            return await self._walk()

    async def drain(self, *, most_s: float = inf) -> None:
        """Read all events that have arrived, some at a time; of those that arrive meanwhile, some.

        It ends although connections begin faster than it reads, and after `most_s` in any case.
        """
        # NB: the kernel doubles the size that it is asked for.
        await self._read_most(2 * self._buffer_bytes // _LEAST_EVENT_BYTES, most_s)

    async def _read_most(self, most: int, most_s: float = inf) -> None:
        until = self._clock.monotonic() + most_s
        for _ in range(0, most + 1, _EVENTS_AT_ONCE):
            if not self._read_some() or self._clock.monotonic() >= until:
                return
            await asyncio.sleep(0)

    async def _walk(self) -> bool:
        # NB: of a connection that begins during the walk, the walk adds no bytes.
        await self.drain()
        self._ledger.begin_walk()
        is_complete = False
        try:
            for part in self._inside(self._open_walk):
                # NB: events of before the part come first: a key in it may be another connection's.
                await self._read_most(_EVENTS_EACH_PART)
                self._ledger.on_walked(part, at=self._clock.monotonic())
                await asyncio.sleep(0)
            # NB: the end of the first walk divides what began before the agent from what it counts.
            await self.drain()
            is_complete = True
            self.walks += 1
            self.check_state()
        except OSError as error:
            _log.warning("the kernel's table of connections could not be read", error=str(error))
        finally:
            self._ledger.end_walk(is_complete=is_complete)
        return is_complete

    def _read_some(self) -> bool:
        """Read some events; return whether there may be more."""
        if self._events is None:
            return False
        events, has_more, lost = self._events.read(_EVENTS_AT_ONCE)
        at = self._clock.monotonic()
        ledger = self._ledger
        for is_end, connection in events:
            if is_end:
                ledger.on_end(connection, at=at)
            else:
                ledger.on_new(connection, at=at)
        self.events += len(events)
        self.lost += lost
        self._lost_of_late += lost
        # NB: until the socket is empty the kernel drops more, of which a walk would know nothing.
        if self._lost_of_late and not has_more:
            _log.warning(
                "events of connections were lost; the whole table is read", lost=self._lost_of_late
            )
            self._lost_of_late = 0
            self._repair.set()
        return has_more
