"""All connections of one server and the bytes they hold, and which ones are dropped at a limit.

A connection is unauthenticated until it has carried a request with valid credentials. Of the
unauthenticated ones the oldest is dropped first, because a client with credentials presents them
within milliseconds. When the table is full, idle connections of authenticated clients are dropped,
the longest idle first: clients reconnect when they need to. Connections in use are never dropped;
the new one is rejected.

A request that arrives slowly and a response that is read slowly hold their bytes until they are
complete, and the buffers of a connection stay for as long as it is open. The sum of these bytes is
limited; above the limit idle connections and slow transfers are dropped, so that clients which do
not read cannot fill the memory. Equal responses, such as a list that a hundred clients request at
once, are held once.

Reading and parsing take time of the event loop. In each of its turns that time is limited; what was
read beyond it is parsed later, one piece of each user in turn, and its connection is not read
meanwhile. So a client that sends much on many connections slows down only itself.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, Protocol

import structlog

from keepclose.apiserver.serving.http_messages import (
    HARD_HELD_BYTES,
    RECEIVE_BUFFER_BYTES,
    REST_SECONDS,
    SCAN_BYTES,
    SCAN_SECONDS,
    SLOW_BYTES_PER_SECOND,
    SOFT_HELD_BYTES,
    STALLED_BYTES,
    TRANSFER_GRACE_SECONDS,
    ConnectionLimits,
)

# How long bytes are parsed in one turn of the event loop.
PARSING_SECONDS: Final = 0.005
# The interval between two log lines of one reason; each has the number of dropped connections.
LOG_SECONDS: Final = 60.0
# Reasons, as in the label of the metric.
ADDRESS_LIMIT: Final = "address limit"
UNAUTHENTICATED_LIMIT: Final = "unauthenticated limit"
TOTAL_LIMIT: Final = "total limit"
USER_LIMIT: Final = "user limit"
NO_DESCRIPTORS: Final = "no descriptors"

_log = structlog.get_logger(__name__)


class TrackedConnection(Protocol):
    """A connection, as the table sees it."""

    address: str
    # None before the first request with valid credentials.
    user: str | None
    # None while a request is read or answered.
    idle_since: float | None

    def drop(self, reason: str) -> None:
        """Leave the table, count the reason there, and close at once."""
        ...


class ConnectionTable:
    """The connections of one server."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        """Begin without connections."""
        self.limits = limits
        self._clock = clock
        # NB: dictionaries rather than sets, to keep the order of arrival.
        self._all: dict[TrackedConnection, None] = {}
        self._unauthenticated: dict[TrackedConnection, None] = {}
        self._by_address: dict[str, dict[TrackedConnection, None]] = {}
        self._by_user: dict[str, dict[TrackedConnection, None]] = {}
        # The number of dropped connections by reason.
        self.dropped: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[TrackedConnection]:
        return iter(tuple(self._all))

    @property
    def unauthenticated(self) -> int:
        """How many connections have not presented valid credentials."""
        return len(self._unauthenticated)

    def make_room(self, address: str) -> bool:
        """Return whether the address may open one more connection; others may be dropped."""
        limits = self.limits
        from_address = self._by_address.get(address, {})
        if len(from_address) >= limits.unauthenticated_per_address:
            next(iter(from_address)).drop(ADDRESS_LIMIT)
        elif len(self._unauthenticated) >= limits.unauthenticated:
            next(iter(self._unauthenticated)).drop(UNAUTHENTICATED_LIMIT)
        if len(self._all) < limits.total or self.drop_idle(TOTAL_LIMIT):
            return True
        self.count(TOTAL_LIMIT)
        return False

    def add(self, connection: TrackedConnection) -> None:
        """Add an unauthenticated connection."""
        self._all[connection] = None
        self._unauthenticated[connection] = None
        self._by_address.setdefault(connection.address, {})[connection] = None

    def authenticate(self, connection: TrackedConnection, user: str) -> bool:
        """Record the user of a connection; return False when the user has too many already."""
        connection.user = user
        self._remove_unauthenticated(connection)
        user_connections = self._by_user.setdefault(user, {})
        if len(user_connections) >= self.limits.per_user:
            oldest = _longest_idle(user_connections)
            if oldest is None:
                self.count(USER_LIMIT)
                return False
            oldest.drop(USER_LIMIT)
        self._by_user.setdefault(user, {})[connection] = None
        return True

    def remove(self, connection: TrackedConnection) -> None:
        """Remove a connection. Idempotent."""
        self._all.pop(connection, None)
        self._remove_unauthenticated(connection)
        user = connection.user
        if user is not None and user in self._by_user:
            user_connections = self._by_user[user]
            user_connections.pop(connection, None)
            if not user_connections:
                del self._by_user[user]

    def drop_idle(self, reason: str) -> bool:
        """Drop an unauthenticated or else an idle connection; return False when all are in use."""
        chosen = next(iter(self._unauthenticated), None) or _longest_idle(self._all)
        if chosen is None:
            return False
        chosen.drop(reason)
        return True

    def count(self, reason: str) -> None:
        """Count a connection that was dropped or rejected, and log it at intervals."""
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

    def _remove_unauthenticated(self, connection: TrackedConnection) -> None:
        if connection not in self._unauthenticated:
            return
        del self._unauthenticated[connection]
        from_address = self._by_address[connection.address]
        del from_address[connection]
        if not from_address:
            del self._by_address[connection.address]


def _longest_idle(connections: Iterable[TrackedConnection]) -> TrackedConnection | None:
    idle = (connection for connection in connections if connection.idle_since is not None)
    return min(idle, key=_idle_since, default=None)


def _idle_since(connection: TrackedConnection) -> float:
    return connection.idle_since or 0.0


class TransferClient(Protocol):
    """The connection of a transfer."""

    @property
    def resting_since(self) -> float | None:
        """Since when no request is read or answered; None while one is."""
        ...

    def drop(self, reason: str) -> None:
        """Close at once."""
        ...


class Transfer:
    """One body in transit."""

    __slots__ = ("body", "client", "moved", "moved_at", "size", "started")

    def __init__(self, client: TransferClient, body: bytes, *, started: float) -> None:
        self.client = client
        # Empty for a request, whose bytes the parser holds.
        self.body = body
        self.started = self.moved_at = started
        self.moved = 0
        self.size = 0

    def is_slow(self, now: float) -> bool:
        """Return whether the client has moved too few bytes after its grace period."""
        elapsed = now - self.started
        too_little = self.moved < SLOW_BYTES_PER_SECOND * elapsed
        return too_little and elapsed >= TRANSFER_GRACE_SECONDS

    def is_idle(self, now: float) -> bool:
        """Return whether no byte has moved recently."""
        return now - self.moved_at >= REST_SECONDS


class Transfers:
    """All bodies in transit of one server, and the bytes that they hold."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without transfers."""
        self._clock = clock
        # In the order of their start.
        self._transfers: dict[Transfer, None] = {}
        # NB: a body is its own key, so that equal bodies share the one that is held.
        self._bodies: dict[bytes, bytes] = {}
        self._holders: dict[bytes, int] = {}
        # The buffers of connections that have received much at once, in the order of their growth.
        self._buffers: dict[TransferClient, int] = {}
        self.held = 0
        self._scanned_at = -SCAN_SECONDS
        self._scanned_held = 0

    def hold(self, client: TransferClient, body: bytes) -> Transfer:
        """Return a transfer of a response; its body may be an equal one that is held already."""
        transfer = Transfer(client, self._bodies.setdefault(body, body), started=self._clock())
        holders = self._holders.get(body, 0)
        self._holders[body] = holders + 1
        self._transfers[transfer] = None
        if not holders:
            self.held += len(body)
            self._drop_slow(keep=transfer)
        return transfer

    def stall(self, client: TransferClient) -> Transfer:
        """Return a transfer for the buffers of a client that does not read."""
        transfer = self.receive(client)
        transfer.size = STALLED_BYTES
        self.held += STALLED_BYTES
        self._drop_slow(keep=transfer)
        return transfer

    def receive(self, client: TransferClient) -> Transfer:
        """Return a transfer of an incomplete request."""
        transfer = Transfer(client, b"", started=self._clock())
        self._transfers[transfer] = None
        return transfer

    def move(self, transfer: Transfer, size: int) -> None:
        """Record that more bytes of a response were sent."""
        transfer.moved += size
        transfer.moved_at = self._clock()

    def resize(self, transfer: Transfer, size: int) -> None:
        """Record how many bytes of requests are held now; more of them were received."""
        growth = size - transfer.size
        transfer.size = size
        self.held += growth
        if growth > 0:
            self.move(transfer, growth)
            self._drop_slow(keep=transfer)

    def buffer(self, client: TransferClient, received: int) -> None:
        """Account for the buffers of a connection that has received so many bytes at once."""
        size = min(received * 5 // 2, RECEIVE_BUFFER_BYTES)
        growth = size - self._buffers.get(client, 0)
        if growth > 0:
            self._buffers[client] = size
            self.held += growth

    def release_buffers(self, client: TransferClient) -> None:
        """Forget the buffers of a closed connection. Idempotent."""
        self.held -= self._buffers.pop(client, 0)

    def release(self, transfer: Transfer) -> None:
        """End a transfer and release its bytes. Idempotent."""
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
        self._scanned_held = min(self._scanned_held, self.held)

    def _drop_slow(self, *, keep: Transfer) -> None:
        """Drop slow clients as long as too many bytes are held."""
        if self.held <= SOFT_HELD_BYTES:
            return
        now = self._clock()
        # NB: many clients together may send more than the machine can hold between two intervals.
        if now - self._scanned_at < SCAN_SECONDS and self.held - self._scanned_held < SCAN_BYTES:
            return
        self._scanned_at, self._scanned_held = now, self.held
        for client in tuple(self._buffers):
            if self.held <= SOFT_HELD_BYTES:
                return
            since = client.resting_since
            least = REST_SECONDS if self.held > HARD_HELD_BYTES else TRANSFER_GRACE_SECONDS
            if since is not None and now - since >= least and client is not keep.client:
                self.release_buffers(client)
                client.drop("slow")
        for transfer in tuple(self._transfers):
            if self.held <= SOFT_HELD_BYTES:
                return
            is_due = transfer.is_slow(now) or (
                self.held > HARD_HELD_BYTES and transfer.is_idle(now)
            )
            if is_due and transfer is not keep:
                self.release(transfer)
                self.release_buffers(transfer.client)
                transfer.client.drop("slow")


class _Parsing(Protocol):
    """A connection with bytes that are not parsed yet."""

    @property
    def sender(self) -> Hashable:
        """Whose turn it takes: the user, or what is known of it so far."""
        ...

    def parse_piece(self) -> bool:
        """Parse one piece; return whether another one can be parsed."""
        ...


class ParsingTurns:
    """The time for parsing in each turn of the event loop, shared among users."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Begin without bytes; `call_soon` calls in the next turn of the event loop."""
        self._call_soon = call_soon
        self._spent = 0.0
        self._is_scheduled = False
        # NB: dictionaries rather than sets, to keep the order of arrival.
        self._waiting: dict[Hashable, deque[_Parsing]] = {}

    def has_time(self) -> bool:
        """Return whether bytes may be parsed at once in this turn."""
        return self._spent < PARSING_SECONDS

    def spend(self, started: float) -> None:
        """Record work that began at this time of `time.perf_counter`.

        NB: an end of the turn is awaited only after some work, because it costs as much as a small
        request; until then the work of several turns counts as that of one.
        """
        self._spent += time.perf_counter() - started
        if self._spent >= PARSING_SECONDS / 5:
            self._schedule()

    def enqueue(self, connection: _Parsing) -> None:
        """Let the connection parse its pieces in turn."""
        self._waiting.setdefault(connection.sender, deque()).append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._spent = 0.0
        try:
            while self._waiting and self.has_time():
                self._parse_next()
        finally:
            # NB: a fault of one connection must not keep the others from being parsed.
            if self._waiting:
                self._schedule()

    def _parse_next(self) -> None:
        sender = next(iter(self._waiting))
        connections = self._waiting.pop(sender)
        connection = connections.popleft()
        started = time.perf_counter()
        try:
            if connection.parse_piece():
                connections.append(connection)
        finally:
            self.spend(started)
            # The sender goes to the end of the queue.
            if connections:
                self._waiting[sender] = connections
