"""All connections of one server: how many, whose they are, and which go when there are too many.

A connection is unauthenticated until a request with valid credentials came on it. Of those the
oldest goes first, because a client with credentials needs milliseconds to show them. When all
places are taken, idle connections of authenticated clients go, the longest idle first: clients
open another when they need one. Connections in use stay, and the newcomer is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import structlog

from keepclose.apiserver.serving.messages import (
    MAX_HELD_BYTES,
    MOST_HELD_BYTES,
    REST_SECONDS,
    SCAN_SECONDS,
    SLOW_BYTES_PER_SECOND,
    STALLED_BYTES,
    TRANSFER_GRACE_SECONDS,
    ConnectionLimits,
)

# A flood is logged once in this time, with the number of connections that it cost.
LOG_SECONDS: Final = 60.0
# Reasons, as the metric names them.
ADDRESS_LIMIT: Final = "address limit"
UNAUTHENTICATED_LIMIT: Final = "unauthenticated limit"
TOTAL_LIMIT: Final = "total limit"
USER_LIMIT: Final = "user limit"
NO_DESCRIPTORS: Final = "no descriptors"

_log = structlog.get_logger(__name__)


class Tracked(Protocol):
    """A connection, from the moment it is accepted."""

    address: str
    # None until a request with valid credentials came.
    user: str | None
    # None while a request is read or answered.
    idle_since: float | None

    def drop(self, reason: str) -> None:
        """Leave the table, count the reason there, and close at once."""
        ...


class ConnectionTable:
    """The connections of one server."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        """Begin with none."""
        self.limits = limits
        self._clock = clock
        # Dictionaries rather than sets, for the order in which connections came.
        self._all: dict[Tracked, None] = {}
        self._unauthenticated: dict[Tracked, None] = {}
        self._by_address: dict[str, dict[Tracked, None]] = {}
        self._by_user: dict[str, dict[Tracked, None]] = {}
        # How many were dropped, by reason.
        self.dropped: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(tuple(self._all))

    @property
    def unauthenticated(self) -> int:
        """How many connections have not shown valid credentials."""
        return len(self._unauthenticated)

    def make_room(self, address: str) -> bool:
        """Return whether one more connection may come from an address; others may be dropped."""
        limits = self.limits
        same = self._by_address.get(address, {})
        if len(same) >= limits.unauthenticated_per_address:
            next(iter(same)).drop(ADDRESS_LIMIT)
        elif len(self._unauthenticated) >= limits.unauthenticated:
            next(iter(self._unauthenticated)).drop(UNAUTHENTICATED_LIMIT)
        if len(self._all) < limits.total or self.drop_idle(TOTAL_LIMIT):
            return True
        self.count(TOTAL_LIMIT)
        return False

    def add(self, connection: Tracked) -> None:
        """Take a connection in."""
        self._all[connection] = None
        self._unauthenticated[connection] = None
        self._by_address.setdefault(connection.address, {})[connection] = None

    def authenticate(self, connection: Tracked, user: str) -> bool:
        """Take note whose a connection is; return False where the user has too many already."""
        connection.user = user
        self._forget_address(connection)
        own = self._by_user.setdefault(user, {})
        if len(own) >= self.limits.per_user:
            oldest = _longest_idle(own)
            if oldest is None:
                self.count(USER_LIMIT)
                return False
            oldest.drop(USER_LIMIT)
        self._by_user.setdefault(user, {})[connection] = None
        return True

    def remove(self, connection: Tracked) -> None:
        """Forget a connection; a second time does nothing."""
        self._all.pop(connection, None)
        self._forget_address(connection)
        user = connection.user
        if user is not None and user in self._by_user:
            own = self._by_user[user]
            own.pop(connection, None)
            if not own:
                del self._by_user[user]

    def drop_idle(self, reason: str) -> bool:
        """Drop the connection that is missed least; return False where all are in use."""
        chosen = next(iter(self._unauthenticated), None) or _longest_idle(self._all)
        if chosen is None:
            return False
        chosen.drop(reason)
        return True

    def count(self, reason: str) -> None:
        """Count a connection that was dropped or refused, and log that now and then."""
        self.dropped[reason] += 1
        now = self._clock()
        logged_at, logged = self._logged.get(reason, (now - LOG_SECONDS, 0))
        if now - logged_at >= LOG_SECONDS:
            total = self.dropped[reason]
            self._logged[reason] = (now, total)
            _log.warning(
                "connections dropped",
                reason=reason,
                dropped=total - logged,
                open=len(self._all),
                unauthenticated=len(self._unauthenticated),
                limit=self.limits.total,
            )

    def _forget_address(self, connection: Tracked) -> None:
        if connection not in self._unauthenticated:
            return
        del self._unauthenticated[connection]
        same = self._by_address[connection.address]
        del same[connection]
        if not same:
            del self._by_address[connection.address]


def _longest_idle(connections: Iterable[Tracked]) -> Tracked | None:
    idle = (connection for connection in connections if connection.idle_since is not None)
    return min(idle, key=_idle_since, default=None)


def _idle_since(connection: Tracked) -> float:
    return connection.idle_since or 0.0


class _Client(Protocol):
    """The connection of a transfer."""

    def drop(self, reason: str) -> None:
        """Close at once."""
        ...


class Transfer:
    """One body under way."""

    __slots__ = ("body", "client", "moved", "moved_at", "size", "started")

    def __init__(self, client: _Client, body: bytes, *, started: float) -> None:
        self.client = client
        # Empty for a request, whose bytes the connection keeps.
        self.body = body
        self.started = self.moved_at = started
        self.moved = 0
        self.size = 0

    def is_slow(self, now: float) -> bool:
        """Return whether the client has had its time and moved too little in it."""
        elapsed = now - self.started
        too_little = self.moved < SLOW_BYTES_PER_SECOND * elapsed
        return too_little and elapsed >= TRANSFER_GRACE_SECONDS

    def rests(self, now: float) -> bool:
        """Return whether nothing moves at present."""
        return now - self.moved_at >= REST_SECONDS


class Transfers:
    """All bodies under way of one server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Count from nothing."""
        self._clock = clock
        # In the order of their beginning.
        self._transfers: dict[Transfer, None] = {}
        # NB: a body is its own key, so that an equal one finds the one that is held.
        self._bodies: dict[bytes, bytes] = {}
        self._holders: dict[bytes, int] = {}
        self.held = 0
        self._scanned_at = -SCAN_SECONDS

    def hold(self, client: _Client, body: bytes) -> Transfer:
        """Return a transfer of an answer; its body may be one that is held already."""
        transfer = Transfer(client, self._bodies.setdefault(body, body), started=self._clock())
        holders = self._holders.get(body, 0)
        self._holders[body] = holders + 1
        self._transfers[transfer] = None
        if not holders:
            self.held += len(body)
            self._relieve(keep=transfer)
        return transfer

    def stall(self, client: _Client) -> Transfer:
        """Return a transfer that stands for the buffers of a client that does not read."""
        transfer = self.receive(client)
        transfer.size = STALLED_BYTES
        self.held += STALLED_BYTES
        self._relieve(keep=transfer)
        return transfer

    def receive(self, client: _Client) -> Transfer:
        """Return a transfer of a request that is not complete."""
        transfer = Transfer(client, b"", started=self._clock())
        self._transfers[transfer] = None
        return transfer

    def move(self, transfer: Transfer, size: int) -> None:
        """Take note that so much more of an answer was sent."""
        transfer.moved += size
        transfer.moved_at = self._clock()

    def grow(self, transfer: Transfer, size: int) -> None:
        """Take note that so much more of a request is there."""
        self.move(transfer, size)
        transfer.size += size
        self.held += size
        self._relieve(keep=transfer)

    def release(self, transfer: Transfer) -> None:
        """Forget a transfer; a second time does nothing."""
        if transfer not in self._transfers:
            return
        del self._transfers[transfer]
        self.held -= transfer.size
        body = transfer.body
        if body:
            self._holders[body] -= 1
            if not self._holders[body]:
                del self._holders[body], self._bodies[body]
                self.held -= len(body)

    def _relieve(self, *, keep: Transfer) -> None:
        """Drop clients that are slow, while too much is held."""
        if self.held <= MAX_HELD_BYTES:
            return
        now = self._clock()
        if now - self._scanned_at < SCAN_SECONDS:
            return
        self._scanned_at = now
        for transfer in tuple(self._transfers):
            if self.held <= MAX_HELD_BYTES:
                return
            is_due = transfer.is_slow(now) or (self.held > MOST_HELD_BYTES and transfer.rests(now))
            if is_due and transfer is not keep:
                self.release(transfer)
                transfer.client.drop("slow")
