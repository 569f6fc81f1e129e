"""Opens many connections from many network namespaces, with one request each.

A socket belongs to the namespace in which it was created, so a thread inside creates a batch of
them and the event loop does the rest: connect, send, read, close. A connection holds one of few
slots, so that servers in the same event loop keep pace. A connection that waits for longer releases
its slot, so that timeouts do not delay the others. Every wait has a limit.

TCP sockets are reset, not closed: a closed one would keep its port, and the kernel's entry of its
flow, for minutes. The kernel remembers a UDP flow by its ports for half a minute and sends the next
datagram to the same endpoint, so each datagram gets the port that has been unused for longest.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import resource
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from keepclose.lab.traffic.answers import (
    ConnectionFailure,
    ConnectionResult,
    failure_of,
    read_datagram,
    read_http,
)

MAX_OPEN: Final = 2048
# Open files that the rest of the process may need.
_SPARE_FILES: Final = 320
_RESET: Final = struct.pack("ii", 1, 0)
# NB: one cycle of ports for all runs of this process.
_UDP_PORTS: Final = itertools.cycle(range(20000, 65536))
_T = TypeVar("_T")
_TIMEOUT_S: Final = 2.0
"""By then the kernel has sent the first packet twice."""
CONNECTIONS_AT_ONCE: Final = 64
BATCH: Final = 64
"""Sockets that one thread creates inside a namespace."""
_SLOT_SECONDS: Final = 0.1
_TICK: Final = 0.05
_MAX_ANSWER: Final = 65536


def open_limit(least: int) -> int:
    """Return how many sockets may be open at a time within the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(least, min(MAX_OPEN, soft - used - _SPARE_FILES))


def open_client_sockets(
    family: socket.AddressFamily, count: int, *, udp: bool
) -> list[socket.socket]:
    """Return new sockets that do not block; raises OSError, and then none is left open."""
    sockets: list[socket.socket] = []
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    try:
        for _ in range(count):
            client_socket = socket.socket(family, kind | socket.SOCK_NONBLOCK)
            sockets.append(client_socket)
            if udp:
                _bind_fresh(client_socket)
            else:
                client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except BaseException:
        for client_socket in sockets:
            client_socket.close()
        raise
    return sockets


class Inside(Protocol):
    """A network namespace."""

    def do(self, work: Callable[[], _T]) -> _T:
        """Run the function in a thread inside and return its result."""
        ...


class ConnectionSource(NamedTuple):
    """A client that connects to one address a number of times."""

    namespace: Inside
    host: str
    port: int
    times: int


class _Connection:
    """A connection under way."""

    __slots__ = (
        "fd",
        "has_slot",
        "is_connecting",
        "is_over",
        "received",
        "since",
        "socket",
        "source",
    )

    def __init__(self, source: int, client_socket: socket.socket, since: float) -> None:
        self.source, self.socket, self.since = source, client_socket, since
        self.fd = client_socket.fileno()
        self.received = b""
        self.has_slot = True
        self.is_connecting = False
        self.is_over = False


async def connect_all(
    sources: Sequence[ConnectionSource],
    *,
    udp: bool = False,
    timeout_s: float = _TIMEOUT_S,
    on_progress: Callable[[int], object] = lambda _done: None,
) -> list[Counter[ConnectionResult]]:
    """Return the counts of results for each source; raises OSError if no socket can be opened.

    `on_progress` gets the number of finished connections at intervals.
    """
    run = _Run(sources, udp=udp, timeout_s=timeout_s, on_progress=on_progress)
    try:
        await run.work()
    finally:
        run.close()
    return run.results


def _bind_fresh(client_socket: socket.socket) -> None:
    """Bind a socket to the port that has been unused for longest."""
    for _ in range(1000):
        try:
            client_socket.bind(("", next(_UDP_PORTS)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    raise OSError(errno.EADDRINUSE, "no free port for UDP")


class _Run:
    def __init__(
        self,
        sources: Sequence[ConnectionSource],
        *,
        udp: bool,
        timeout_s: float,
        on_progress: Callable[[int], object],
    ) -> None:
        self._sources, self._udp, self._timeout_s, self._on_progress = (
            sources,
            udp,
            timeout_s,
            on_progress,
        )
        self._requests = [_request(source, udp=udp) for source in sources]
        self.results: list[Counter[ConnectionResult]] = [Counter() for _ in sources]
        self._left = sum(source.times for source in sources)
        self._done = 0
        self._slots = CONNECTIONS_AT_ONCE
        self._open = 0
        self._most_open = open_limit(CONNECTIONS_AT_ONCE)
        self._done_before = 0
        self._connections: deque[_Connection] = deque()
        self._socket_batches = self._make_sockets()
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._next: asyncio.Handle | None = None

    async def work(self) -> None:
        if self._left:
            self._timer = self._loop.call_later(_TICK, self._tick)
            self._start_more()
            await self._finished
        self._on_progress(self._done)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._next is not None:
            self._next.cancel()
        for connection in self._connections:
            if not connection.is_over:
                self._close_connection(connection)
        self._socket_batches.close()

    def _make_sockets(self) -> Generator[tuple[int, socket.socket], None, None]:
        """Yield sockets with the number of their source, in batches of alternating sources."""
        left = [source.times for source in self._sources]
        while any(left):
            for number, source in enumerate(self._sources):
                count = min(BATCH, left[number])
                if not count:
                    continue
                left[number] -= count
                family = socket.AF_INET6 if ":" in source.host else socket.AF_INET
                batch = deque(
                    source.namespace.do(partial(open_client_sockets, family, count, udp=self._udp))
                )
                try:
                    while batch:
                        yield number, batch.popleft()
                finally:
                    for unused in batch:
                        unused.close()

    def _start_more(self) -> None:
        """Start connections while there are slots, a few in one turn of the event loop."""
        if self._next is not None:
            return
        begun = 0
        try:
            while self._left and self._slots > 0 and self._open < self._most_open:
                if begun == CONNECTIONS_AT_ONCE:
                    # NB: rejections release slots at once, and no other task would run meanwhile.
                    self._next = self._loop.call_soon(self._start_more_next)
                    return
                begun += 1
                self._left -= 1
                self._start(*next(self._socket_batches))
        except Exception as error:  # noqa: BLE001 - `work` raises it again
            if not self._finished.done():
                self._finished.set_exception(error)
            return
        if not self._left and not self._open and not self._finished.done():
            self._finished.set_result(None)

    def _start_more_next(self) -> None:
        self._next = None
        self._start_more()

    def _start(self, number: int, client_socket: socket.socket) -> None:
        source = self._sources[number]
        connection = _Connection(number, client_socket, self._loop.time())
        self._connections.append(connection)
        self._slots -= 1
        self._open += 1
        error = client_socket.connect_ex((source.host, source.port))
        if error not in (0, errno.EINPROGRESS):
            self._end(connection, failure_of(error))
            return
        # Between namespaces of one machine the handshake is usually complete by now.
        self._send_request(connection)

    def _send_request(self, connection: _Connection) -> None:
        try:
            connection.socket.send(self._requests[connection.source])
        except BlockingIOError:
            # NB: the kernel keeps an ICMP error that arrives during connect() as a soft error, and
            # reports it only with the next attempt, a second later.
            error = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._end(connection, failure_of(error))
                return
            connection.is_connecting = True
            self._loop.add_writer(connection.fd, self._on_writable, connection)
        except OSError as failed:
            self._end(connection, failure_of(failed.errno))
        else:
            self._loop.add_reader(connection.fd, self._on_readable, connection)

    def _on_writable(self, connection: _Connection) -> None:
        if not connection.is_over:
            self._loop.remove_writer(connection.fd)
            connection.is_connecting = False
            self._send_request(connection)
            self._start_more()

    def _on_readable(self, connection: _Connection) -> None:
        if connection.is_over:
            return
        try:
            data = connection.socket.recv(_MAX_ANSWER)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(connection, failure_of(error.errno))
        else:
            result: ConnectionResult | None
            if self._udp:
                result = read_datagram(data)
            else:
                connection.received += data
                result = read_http(connection.received)
                if result is None and (not data or len(connection.received) > _MAX_ANSWER):
                    result = ConnectionFailure.BROKEN
            if result is None:
                return
            self._end(connection, result)
        self._start_more()

    def _tick(self) -> None:
        now = self._loop.time()
        # If no server answers at all, no server needs the slots.
        hold = _TICK if self._done == self._done_before else _SLOT_SECONDS
        self._done_before = self._done
        for connection in self._connections:
            age = now - connection.since
            if age < hold:
                break
            if connection.is_over:
                continue
            if age >= self._timeout_s:
                self._end(connection, ConnectionFailure.TIMED_OUT)
            elif connection.has_slot:
                connection.has_slot = False
                self._slots += 1
        while self._connections and self._connections[0].is_over:
            self._connections.popleft()
        self._on_progress(self._done)
        self._timer = self._loop.call_later(_TICK, self._tick)
        self._start_more()

    def _end(self, connection: _Connection, result: ConnectionResult) -> None:
        self._close_connection(connection)
        self.results[connection.source][result] += 1
        self._done += 1
        self._open -= 1
        if connection.has_slot:
            self._slots += 1

    def _close_connection(self, connection: _Connection) -> None:
        connection.is_over = True
        if connection.is_connecting:
            self._loop.remove_writer(connection.fd)
        else:
            self._loop.remove_reader(connection.fd)
        connection.socket.close()


def _request(source: ConnectionSource, *, udp: bool) -> bytes:
    if udp:
        return b"?"
    host = f"[{source.host}]" if ":" in source.host else source.host
    return f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
