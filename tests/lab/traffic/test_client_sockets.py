"""Sockets from which clients call, in the namespace of the test itself."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from keepclose.lab.traffic.connections import MAX_OPEN, open_client_sockets, open_limit


def test_datagrams_get_ports_in_a_row() -> None:
    """One after the other, and past those that somebody else has."""
    first = open_client_sockets(socket.AF_INET, 2, udp=True)
    numbers = [one.getsockname()[1] for one in first]
    # 20000 follows 65535.
    follow = (numbers[1] + 1 - 20000) % (65536 - 20000) + 20000
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", follow))
        second = open_client_sockets(socket.AF_INET, 1, udp=True)
        assert second[0].getsockname()[1] not in {*numbers, follow}
    for one in (*first, *second):
        one.close()


def test_connections_end_without_a_trace() -> None:
    """A socket that is closed resets its connection, so its port is free at once."""
    (one,) = open_client_sockets(socket.AF_INET6, 1, udp=False)
    with one:
        assert not one.getblocking()
        linger = one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        assert linger == b"\x01\0\0\0\0\0\0\0"


def test_room_is_left_for_others() -> None:
    """Many where files are plenty, few where they are not, never less than the least."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(used + 420, hard), hard))
        assert 90 <= open_limit(64) <= 110
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(used + 100, hard), hard))
        assert open_limit(64) == 64
        if hard >= 10_000:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            assert open_limit(64) == MAX_OPEN
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_was_made_is_closed_when_more_cannot_be() -> None:
    """Nothing stays open of a batch that fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 5, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            open_client_sockets(socket.AF_INET, 20, udp=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
