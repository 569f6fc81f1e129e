"""How much one client, and all clients together, may cost the server.

Of all connections those without valid credentials get half, one address without credentials a
quarter, one user half: neither a stranger nor one node can keep the others out. kube-apiserver has
no such limit; here descriptors and memory are those of one process on a user's machine.
"""

from __future__ import annotations

import resource
from typing import Final

import msgspec

# The sum of all request bodies that come in slowly and answers that are read slowly; above it,
# transfers slower than SLOW_BYTES_PER_SECOND are dropped.
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
# Above this sum, transfers in which nothing moves for REST_SECONDS are dropped as well.
MOST_HELD_BYTES: Final = 128 * 1024 * 1024
REST_SECONDS: Final = 0.25
# What the buffers of TLS and of the event loop hold for a client that does not read.
STALLED_BYTES: Final = 256 * 1024
# How often slow transfers are looked for at most.
SCAN_SECONDS: Final = 0.05
SLOW_BYTES_PER_SECOND: Final = 1024 * 1024
# What a transfer is given before it is called slow.
TRANSFER_GRACE_SECONDS: Final = 1.0
MAX_CONNECTIONS: Final = 4096
# Descriptors that connections leave to the store, to certificates, tokens and logs.
RESERVED_DESCRIPTORS: Final = 100
MIN_CONNECTIONS: Final = 16


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many connections may be open."""

    total: int = MAX_CONNECTIONS
    # Of clients that have not sent a request with valid credentials yet.
    unauthenticated: int = MAX_CONNECTIONS // 2
    unauthenticated_per_address: int = MAX_CONNECTIONS // 4
    per_user: int = MAX_CONNECTIONS // 2

    @classmethod
    def for_total(cls, total: int) -> ConnectionLimits:
        """Return limits that share this many connections."""
        return cls(total, total // 2, total // 4, total // 2)

    @classmethod
    def for_process(cls, most: int = MAX_CONNECTIONS) -> ConnectionLimits:
        """Return limits that leave this process descriptors for its files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = min(most, soft - RESERVED_DESCRIPTORS)
        return cls.for_total(max(most, MIN_CONNECTIONS))


def raise_descriptor_limit() -> None:
    """Let this process open as many files and sockets as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
