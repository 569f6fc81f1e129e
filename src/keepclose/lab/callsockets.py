"""Sockets from which a client calls, made in the namespace of whoever makes them.

TCP sockets are reset, not closed: a closed one would keep its port, and the kernel's memory of its
flow, for minutes. A UDP flow is remembered by its ports for half a minute and then goes where it
went before, so each datagram gets a port that was not used for as long as possible.
"""

from __future__ import annotations

import errno
import itertools
import resource
import socket
import struct
from pathlib import Path
from typing import Final

MOST_OPEN: Final = 2048
# Open files that are left to the rest of the process.
_SPARE_FILES: Final = 320
_RESET: Final = struct.pack("ii", 1, 0)
# NB: one row of ports for all runs of this process.
_UDP_PORTS: Final = itertools.cycle(range(20000, 65536))


def find_room(least: int) -> int:
    """Return how many sockets may be open at a time, so that files are left for the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_OPEN
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(least, min(MOST_OPEN, soft - used - _SPARE_FILES))


def open_sockets(family: socket.AddressFamily, count: int, *, udp: bool) -> list[socket.socket]:
    """Return new sockets that do not block; raises OSError, and then none is left open."""
    made: list[socket.socket] = []
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    try:
        for _ in range(count):
            one = socket.socket(family, kind | socket.SOCK_NONBLOCK)
            made.append(one)
            if udp:
                _bind_fresh(one)
            else:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


def _bind_fresh(one: socket.socket) -> None:
    """Give a socket a port of its own that was not used for as long as possible."""
    for _ in range(1000):
        try:
            one.bind(("", next(_UDP_PORTS)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    raise OSError(errno.EADDRINUSE, "no free port for UDP")
