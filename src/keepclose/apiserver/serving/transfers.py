"""Bodies that are under way: requests that come in slowly, answers that are read slowly.

Each holds its bytes until it is over. Their sum is limited; above the limit transfers that are too
slow are dropped, so that clients which do not read cannot fill the memory. Equal answers, such as
a list that a hundred clients want at once, are held once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from keepclose.apiserver.serving.limits import (
    MAX_HELD_BYTES,
    MOST_HELD_BYTES,
    REST_SECONDS,
    SCAN_SECONDS,
    SLOW_BYTES_PER_SECOND,
    STALLED_BYTES,
    TRANSFER_GRACE_SECONDS,
)


class Client(Protocol):
    """The connection of a transfer."""

    def drop(self, reason: str) -> None:
        """Close at once."""
        ...


class Transfer:
    """One body under way."""

    __slots__ = ("body", "client", "moved", "moved_at", "size", "started")

    def __init__(self, client: Client, body: bytes, *, started: float) -> None:
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

    def hold(self, client: Client, body: bytes) -> Transfer:
        """Return a transfer of an answer; its body may be one that is held already."""
        transfer = Transfer(client, self._bodies.setdefault(body, body), started=self._clock())
        holders = self._holders.get(body, 0)
        self._holders[body] = holders + 1
        self._transfers[transfer] = None
        if not holders:
            self.held += len(body)
            self._relieve(keep=transfer)
        return transfer

    def stall(self, client: Client) -> Transfer:
        """Return a transfer that stands for the buffers of a client that does not read."""
        transfer = self.receive(client)
        transfer.size = STALLED_BYTES
        self.held += STALLED_BYTES
        self._relieve(keep=transfer)
        return transfer

    def receive(self, client: Client) -> Transfer:
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
