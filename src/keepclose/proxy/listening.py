"""Listening sockets, as one seam: a test opens them in the network namespace of a node.

A socket stays in the namespace in which it was made, whoever accepts from it.
"""

from __future__ import annotations

import socket
from typing import Protocol


class Listen(Protocol):
    """Makes a listening socket."""

    def __call__(self, host: str, port: int, /) -> socket.socket:
        """Return a TCP socket that listens; port 0 takes any free one. Raises OSError."""
        ...


def listen_here(host: str, port: int) -> socket.socket:
    """Return a socket that listens in the namespace of the calling thread; raises OSError.

    The host is an address. One of IPv6 takes nothing of IPv4, so that each family has its own.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
