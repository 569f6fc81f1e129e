"""Ports that are kept for servers that come later."""

from __future__ import annotations

import errno
import socket

import pytest

from keepclose.proxy.health import listen_here
from support.ports import reserved_port


def test_a_kept_port_is_for_those_who_name_it() -> None:
    """Callers are refused until a server listens, which may come and go, at any address."""
    with reserved_port() as port:
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.1", "0.0.0.0"):  # noqa: S104
            with socket.socket() as client, pytest.raises(ConnectionRefusedError):
                client.connect(("127.0.0.1", port))
            with listen_here(address, port), socket.socket() as client:
                client.connect(("127.0.0.1" if address == "0.0.0.0" else address, port))  # noqa: S104


def test_two_never_keep_the_same_port() -> None:
    """Where a range has one port, the second one who asks gets none."""
    with reserved_port() as port:
        with pytest.raises(OSError, match="in use") as raised, reserved_port(port, port):
            pass
        assert raised.value.errno == errno.EADDRINUSE
