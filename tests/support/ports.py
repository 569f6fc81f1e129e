"""Ports for servers that come later or come back: nobody else is given them in the meantime.

    with reserved_port() as port:
        ...  # whoever calls is refused until a server that names the port listens

A port that was free a moment ago may be another process's by now. A socket that is bound and does
not listen keeps it: the kernel gives the port to nobody who asks for any free one, and still lets
a server have it that names it and sets SO_REUSEADDR, as servers do.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port(first: int = 0, last: int = 0) -> Iterator[int]:
    """Keep a TCP port of all IPv4 addresses for the block, one of the range where there is one.

    Raises OSError when none is left.
    """
    ports = random.sample(range(first, last + 1), last + 1 - first)
    with socket.socket() as holder:
        for number, port in enumerate(ports, 1):
            try:
                holder.bind(("", port))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or number == len(ports):
                    raise
        # NB: only now, so that two of us never hold the same port.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found: int = holder.getsockname()[1]
        yield found
