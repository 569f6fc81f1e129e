"""Which connections are open and how much of each is counted, so that nothing counts twice.

    event of a new connection --> counted once ---+
    walk of the kernel's table -> bytes since the last walk are added
    event of its end ----------> the remaining bytes are added; forgotten

Each of these may be missing. A connection that a walk or its end shows first is counted then. One
that two whole walks do not show has ended without an event, and its last bytes are not known; it is
counted as unobserved. The kernel reports a new connection before its end, but a walk may show the
table as it was a moment before: it never revives a connection that ended a moment ago, and adds
nothing to one that began during the walk. Counters that fell belong to another connection.

A connection takes a key of bytes in a dictionary and 22 bytes in columns, not an object.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

import msgspec

from keepclose.accounting.attribution import Connection
from keepclose.accounting.flow_table import FlowCounts
from keepclose.flows.checkpoint import UNCOUNTED, LedgerState, WaitingState
from keepclose.flows.flow_rows import IGNORED, WAITING, FlowRows
from keepclose.system.conntrack import SEEN_REPLY, TrackedConnection

ENDED_REMEMBERED_S: Final = 1.0
MAX_ENDED: Final = 100_000
_TCP: Final = 6
_ANSWERED_PROTOCOLS: Final = frozenset((6, 17, 132))
"""Protocols in which a connection without a packet of the endpoint failed: TCP, UDP, SCTP."""
_GENERATIONS: Final = 256


class _Waiting(msgspec.Struct, eq=False):
    """A connection whose flow is not known yet, and what it has counted."""

    connection: Connection
    counts: FlowCounts
    row: int
    """-1 once it has ended."""
    since: float


class Ledger:
    """Counts connections by flow, from events and walks in any order."""

    def __init__(self, rows: FlowRows, *, most_waiting: int = 10_000) -> None:
        """Take the flows; at most so many connections wait for names."""
        self.rows = rows
        self._most_waiting = most_waiting
        self._open: dict[bytes, int] = {}
        self._free: list[int] = []
        self._requests = array("Q")
        self._responses = array("Q")
        self._places = array("I")
        self._generations = bytearray()
        self._flags = bytearray()
        self._waiting: dict[_Waiting, None] = {}
        self._waiting_rows: dict[int, _Waiting] = {}
        self._awaited: dict[bytes, float] = {}
        """Addresses of waiting connections, and when the first of them began to wait."""
        self._generation = 0
        self._is_walking = False
        self._may_revive = True
        self.ignores_past = False
        """Set it at the first start ever: connections that are open already are not counted, only
        the bytes that they send after the first whole walk, which unsets it."""
        self._ended: set[bytes] = set()
        self._ended_before: set[bytes] = set()
        self._rotated_at = 0.0
        self._tried_changes = -1
        self.unobserved = 0
        """Connections whose end was not observed."""
        self.forced = 0
        """Connections that were attributed before their addresses had names."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def waiting(self) -> int:
        """How many connections wait for names."""
        return len(self._waiting)

    def on_new(self, tracked: TrackedConnection, *, at: float) -> None:
        """Count a connection that began; `at` is the monotonic time."""
        key = tracked.key
        row = self._open.get(key)
        if row is not None:
            if self._flags[row] & UNCOUNTED:
                # The first walk was faster than the event.
                self._flags[row] = 0
                self._add_connection(row, self._requests[row], self._responses[row])
            return
        if key in self._ended:
            self._ended.discard(key)
        if key in self._ended_before:
            self._ended_before.discard(key)
        row = self._insert(tracked, at)
        self._add_connection(row, 0, 0)

    def on_end(self, tracked: TrackedConnection, *, at: float) -> None:
        """Count the rest of a connection that ended."""
        key = tracked.key
        row = self._open.get(key)
        if row is None:
            if key in self._ended or key in self._ended_before:
                return
            if self.ignores_past:
                # It may have begun long ago, and what it sent since is not known.
                self._remember_end(key)
                return
            row = self._insert(tracked, at)
            self._add_connection(row, 0, 0)
        elif self._has_fallen(row, tracked):
            row = self._begin_again(row, tracked, at)
        counts = self._counts_of(row)
        counts.request_bytes += max(0, tracked.request_bytes - self._requests[row])
        counts.response_bytes += max(0, tracked.response_bytes - self._responses[row])
        if (
            not tracked.status & SEEN_REPLY
            and not self._flags[row]
            and tracked.protocol in _ANSWERED_PROTOCOLS
        ):
            if tracked.response_packets and tracked.protocol == _TCP:
                counts.refused += 1
            else:
                counts.unanswered += 1
        self._release(key, row)
        self._remember_end(key)

    def begin_walk(self) -> None:
        """Begin a walk of the kernel's table."""
        self._generation = (self._generation + 1) % _GENERATIONS
        self._is_walking = self._may_revive = True

    def on_walked(self, connections: Iterable[TrackedConnection], *, at: float) -> None:
        """Add the bytes of open connections since the last walk."""
        generation = self._generation
        generations, requests, responses = self._generations, self._requests, self._responses
        find = self._open.get
        for tracked in connections:
            row = find(tracked[0])
            if row is None:
                self._on_found(tracked, at)
                continue
            if generations[row] == generation:
                continue
            generations[row] = generation
            request, response = tracked[10], tracked[12]
            more_request, more_response = request - requests[row], response - responses[row]
            if not more_request and not more_response:
                continue
            if more_request < 0 or more_response < 0:
                if not tracked.has_counters:
                    continue
                row = self._begin_again(row, tracked, at)
                more_request, more_response = request, response
            counts = self._counts_of(row)
            counts.request_bytes += more_request
            counts.response_bytes += more_response
            requests[row], responses[row] = request, response

    def end_walk(self, *, is_complete: bool) -> None:
        """End a walk; connections that two whole walks did not show have ended."""
        self._is_walking = False
        if not is_complete:
            # NB: as if it had never begun; rows that it did not reach would seem missing.
            previous = (self._generation - 1) % _GENERATIONS
            self._generations = self._generations.replace(self._present(), bytes((previous,)))
            self._generation = previous
            return
        self.ignores_past = False
        present = (self._generation, (self._generation - 1) % _GENERATIONS)
        generations = self._generations
        missing = [(key, row) for key, row in self._open.items() if generations[row] not in present]
        for key, row in missing:
            self._release(key, row)
            self._remember_end(key)
        self.unobserved += len(missing)

    def tick(self, *, at: float, wait_s: float, is_synced: bool) -> None:
        """Forget old ends, and look for the names of waiting connections again.

        A connection that has waited for `wait_s` is attributed as far as its addresses have names,
        unless the caches are not synced. Until the next call, connections beyond the limit are then
        attributed to unknown zones.
        """
        if self.rows.set_has_all_names(is_synced):
            self._tried_changes = -1
        if not self._is_walking and at - self._rotated_at >= ENDED_REMEMBERED_S:
            self._rotated_at = at
            self._rotate()
        if is_synced:
            self._give_up(at - wait_s)
        has_changed = self.rows.changes != self._tried_changes
        self._tried_changes = self.rows.changes
        for waiting in list(self._waiting):
            must_settle = is_synced and at - waiting.since >= wait_s
            if must_settle or has_changed:
                self._settle(waiting, may_wait=not must_settle)
            elif not is_synced or at - waiting.since < wait_s:
                # They are in the order of their arrival.
                break

    def state(self) -> LedgerState:
        """Return a copy of all that is needed to continue in another process."""
        flows, counts = self.rows.listed()
        rows = list(self._open.values())
        numbers = {row: index for index, row in enumerate(rows)} if self._waiting else {}
        return LedgerState(
            flows,
            counts,
            list(self._open),
            array("Q", [self._requests[row] for row in rows]).tobytes(),
            array("Q", [self._responses[row] for row in rows]).tobytes(),
            array("I", [self._places[row] for row in rows]).tobytes(),
            bytes([self._flags[row] for row in rows]),
            [
                WaitingState(waiting.connection, waiting.counts, numbers.get(waiting.row, -1))
                for waiting in self._waiting
            ],
            self.unobserved,
        )

    def load(self, state: LedgerState, *, at: float) -> None:
        """Continue from a state; raises ValueError if it contradicts itself."""
        requests, responses, state_places = state.columns()
        places = [IGNORED, WAITING, *self.rows.load(state.flows, state.counts)]
        self._requests, self._responses = requests, responses
        self._places = array("I", [places[place] for place in state_places])
        self._open = {key: row for row, key in enumerate(state.keys)}
        self._flags = bytearray(state.flags)
        self._generations = bytearray(self._present() * len(state.keys))
        self.unobserved = state.unobserved
        for entry in state.waiting:
            waiting = _Waiting(entry.connection, entry.counts, entry.row, at)
            self._add_waiting(waiting)
            if entry.row >= 0:
                self._waiting_rows[entry.row] = waiting

    def _on_found(self, tracked: TrackedConnection, at: float) -> None:
        """Take in a connection that a walk shows and no event reported."""
        key = tracked.key
        if key in self._ended or key in self._ended_before or not self._may_revive:
            return
        row = self._insert(tracked, at)
        self._requests[row] = tracked.request_bytes
        self._responses[row] = tracked.response_bytes
        if self.ignores_past:
            self._flags[row] = UNCOUNTED
        else:
            self._add_connection(row, tracked.request_bytes, tracked.response_bytes)

    def _has_fallen(self, row: int, tracked: TrackedConnection) -> bool:
        return tracked.has_counters and (
            tracked.request_bytes < self._requests[row]
            or tracked.response_bytes < self._responses[row]
        )

    def _begin_again(self, row: int, tracked: TrackedConnection, at: float) -> int:
        """Count a connection whose key belonged to another one, whose end was not observed."""
        self.unobserved += 1
        self._release(tracked.key, row)
        row = self._insert(tracked, at)
        self._add_connection(row, 0, 0)
        return row

    def _insert(self, tracked: TrackedConnection, at: float) -> int:
        place = self.rows.place(tracked)
        if self._free:
            row = self._free.pop()
            self._requests[row] = self._responses[row] = 0
            self._places[row] = place
            self._generations[row] = self._generation
            self._flags[row] = 0
        else:
            row = len(self._places)
            self._requests.append(0)
            self._responses.append(0)
            self._places.append(place)
            self._generations.append(self._generation)
            self._flags.append(0)
        self._open[tracked.key] = row
        if place == WAITING:
            waiting = _Waiting(self.rows.connection_of(tracked), FlowCounts(), row, at)
            self._add_waiting(waiting)
            self._waiting_rows[row] = waiting
            if len(self._waiting) > self._most_waiting:
                self._settle(next(iter(self._waiting)), may_wait=False)
        return row

    def _release(self, key: bytes, row: int) -> None:
        del self._open[key]
        self._free.append(row)
        if self._places[row] == WAITING:
            self._waiting_rows.pop(row).row = -1

    def _remember_end(self, key: bytes) -> None:
        self._ended.add(key)
        if len(self._ended) > MAX_ENDED:
            self._rotate()
            # NB: a walk may still show connections whose end is forgotten now.
            self._may_revive = not self._is_walking

    def _rotate(self) -> None:
        self._ended_before = self._ended
        self._ended = set()

    def _present(self) -> bytes:
        return bytes((self._generation,))

    def _counts_of(self, row: int) -> FlowCounts:
        place = self._places[row]
        return self._waiting_rows[row].counts if place == WAITING else self.rows.counts[place]

    def _add_connection(self, row: int, request_bytes: int, response_bytes: int) -> None:
        counts = self._counts_of(row)
        counts.connections += 1
        counts.request_bytes += request_bytes
        counts.response_bytes += response_bytes

    def _add_waiting(self, waiting: _Waiting) -> None:
        self._waiting[waiting] = None
        if len(self._awaited) < self._most_waiting:
            self._awaited.setdefault(waiting.connection.source, waiting.since)
            self._awaited.setdefault(waiting.connection.reply_source, waiting.since)

    def _give_up(self, before: float) -> None:
        """Remember addresses for whose owner connections have waited since then.

        NB: at a high rate none of the connections itself waits that long.
        """
        for address, since in list(self._awaited.items()):
            if since > before:
                # They are in the order of their arrival.
                break
            del self._awaited[address]
            self.rows.record_unowned(address)

    def _settle(self, waiting: _Waiting, *, may_wait: bool) -> None:
        place = self.rows.settle(waiting.connection, may_wait=may_wait)
        if place == WAITING:
            return
        self.forced += not may_wait
        del self._waiting[waiting]
        if place != IGNORED:
            self.rows.counts[place].add(waiting.counts)
        if waiting.row >= 0:
            self._places[waiting.row] = place
            del self._waiting_rows[waiting.row]
