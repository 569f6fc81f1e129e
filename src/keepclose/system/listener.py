"""Listening sockets whose connections are accepted one by one, so that they can be counted.

asyncio accepts whatever comes and keeps no count of clients that are still in their TLS handshake.
A listener hands every socket to its owner, who may close it again, and rests for a moment where
the process or the machine has no descriptors left, instead of failing over and over.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

_BACKLOG: Final = 1024
# A flood of connections must leave room for requests of the clients that are connected.
ACCEPTS_EACH_TURN: Final = 16
# How long to wait for descriptors: nothing tells when the machine has some again.
_REST_SECONDS: Final = 0.1
# What a client is given to take the rest and its leave when TLS ends.
SHUTDOWN_SECONDS: Final = 10.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

OnAccept = Callable[[socket.socket, str], None]
OnExhausted = Callable[[OSError], None]


class Listener:
    """Some listening sockets; start and stop it once."""

    def __init__(
        self, sockets: Sequence[socket.socket], on_accept: OnAccept, on_exhausted: OnExhausted
    ) -> None:
        """Own the sockets; `on_exhausted` should free descriptors where it can."""
        self._sockets = tuple(sockets)
        self._on_accept = on_accept
        self._on_exhausted = on_exhausted
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}

    @property
    def port(self) -> int:
        """The port of the first socket."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def start(self) -> None:
        """Accept connections from now on."""
        for listening in self._sockets:
            self._watch(listening)

    def stop(self) -> None:
        """Accept no more and close the sockets."""
        loop = asyncio.get_running_loop()
        for rest in self._resting.values():
            rest.cancel()
        for listening in self._sockets:
            if listening.fileno() >= 0:
                loop.remove_reader(listening.fileno())
                listening.close()

    def _watch(self, listening: socket.socket) -> None:
        self._resting.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_EACH_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._rest(listening, error)
                # NB: other errors are about a client that went away before it was accepted.
                return
            accepted.setblocking(False)
            self._on_accept(accepted, address[0] if isinstance(address, tuple) else "")

    def _rest(self, listening: socket.socket, error: OSError) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        self._resting[listening] = loop.call_later(_REST_SECONDS, self._watch, listening)
        self._on_exhausted(error)


async def open_listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host; raises OSError."""
    flags = socket.AI_PASSIVE
    try:
        infos = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        # Not an address: a name, whose lookup may take time.
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    with contextlib.ExitStack() as undoing:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listening = undoing.enter_context(socket.socket(family, kind, protocol))
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            sockets.append(listening)
        undoing.pop_all()
    return sockets


async def begin(
    accepted: socket.socket,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext | None,
    *,
    handshake_seconds: float,
) -> bool:
    """Hand an accepted socket to a protocol, after the handshake of TLS; return whether it began.

    From the first step on the socket belongs to the event loop, which closes it where the handshake
    fails, takes too long or is cancelled.
    """
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=context,
            ssl_handshake_timeout=None if context is None else handshake_seconds,
            ssl_shutdown_timeout=None if context is None else SHUTDOWN_SECONDS,
        )
    except OSError:
        return False
    return True
