"""Listening sockets whose connections are accepted one by one, so that they can be counted.

asyncio accepts every connection and does not count clients in their TLS handshake. A listener
passes every accepted socket to its owner, which may close it. When the process or the machine is
out of descriptors, the listener pauses instead of failing in a loop.
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
# A flood of connections must leave time for the requests of connected clients.
ACCEPTS_EACH_TURN: Final = 16
# The pause when descriptors are exhausted: no event reports that some are free again.
_PAUSE_SECONDS: Final = 0.1
# How long a client may take to read the rest of the answer and complete the TLS shutdown.
SHUTDOWN_SECONDS: Final = 10.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

OnAccept = Callable[[socket.socket, str], None]
OnExhausted = Callable[[OSError], None]


class Listener:
    """Accepts connections on several sockets; start and stop it once."""

    def __init__(
        self, sockets: Sequence[socket.socket], on_accept: OnAccept, on_exhausted: OnExhausted
    ) -> None:
        """Own the sockets; `on_exhausted` should free descriptors where it can."""
        self._sockets = tuple(sockets)
        self._on_accept = on_accept
        self._on_exhausted = on_exhausted
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}

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
        """Stop accepting and close the sockets."""
        loop = asyncio.get_running_loop()
        for pause in self._paused.values():
            pause.cancel()
        for listening in self._sockets:
            if listening.fileno() >= 0:
                loop.remove_reader(listening.fileno())
                listening.close()

    def _watch(self, listening: socket.socket) -> None:
        self._paused.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_EACH_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(listening, error)
                # NB: other errors concern a client that disconnected before it was accepted.
                return
            accepted.setblocking(False)
            self._on_accept(accepted, address[0] if isinstance(address, tuple) else "")

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        self._paused[listening] = loop.call_later(_PAUSE_SECONDS, self._watch, listening)
        self._on_exhausted(error)


async def open_listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host; raise OSError."""
    flags = socket.AI_PASSIVE
    try:
        infos = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        # A host name, whose lookup may take time.
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    with contextlib.ExitStack() as cleanup:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listening = cleanup.enter_context(socket.socket(family, kind, protocol))
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            sockets.append(listening)
        cleanup.pop_all()
    return sockets


def start_protocol(
    accepted: socket.socket,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext | None,
    *,
    handshake_seconds: float,
    on_end: Callable[[BaseException | None], None],
) -> asyncio.Task[None]:
    """Start a protocol on an accepted socket after the TLS handshake; return the task that does.

    `on_end` gets None when the protocol has started, otherwise the reason why it has not; the
    socket is closed then.
    """
    loop = asyncio.get_running_loop()
    has_begun = False

    async def do_handshake() -> None:
        nonlocal has_begun
        has_begun = True
        # NB: the event loop owns the socket from here, and closes it when the handshake fails.
        await loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=context,
            ssl_handshake_timeout=None if context is None else handshake_seconds,
            ssl_shutdown_timeout=None if context is None else SHUTDOWN_SECONDS,
        )

    def finish(task: asyncio.Task[None]) -> None:
        if not has_begun:
            accepted.close()
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            # NB: the frames of its traceback hold the buffers of the handshake, in a cycle that
            # only a rare collection would free.
            error.__traceback__ = error.__context__ = None
        on_end(error)

    handshake = loop.create_task(do_handshake())
    handshake.add_done_callback(finish)
    return handshake
