"""Many connections from many network namespaces, each asking once who answers.

A socket belongs to the namespace in which it was made, so a thread inside makes a batch of them and
the event loop does the rest: connect, ask, read, close. A connection that is under way holds one of
few slots, so that whoever answers in the same loop keeps pace; one that waits for longer gives its
slot back, so that silence does not hold up the others. Every wait has an end.
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

MOST_OPEN: Final = 2048
# Open files that are left to the rest of the process.
_SPARE_FILES: Final = 320
_RESET: Final = struct.pack("ii", 1, 0)
# NB: one row of ports for all runs of this process.
_UDP_PORTS: Final = itertools.cycle(range(20000, 65536))
_T = TypeVar("_T")
_PATIENCE: Final = 2.0
"""Seconds after which nobody answers; by then the kernel has asked twice."""
CONNECTIONS_AT_ONCE: Final = 64
BATCH: Final = 64
"""Sockets made by one thread inside a namespace."""
_SLOT_SECONDS: Final = 0.1
_TICK: Final = 0.05
_LONGEST_ANSWER: Final = 65536


def find_room(least: int) -> int:
    """Return how many sockets may be open at a time, so that files are left for the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_OPEN
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(least, min(MOST_OPEN, soft - used - _SPARE_FILES))


def open_client_sockets(
    family: socket.AddressFamily, count: int, *, udp: bool
) -> list[socket.socket]:
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


class Inside(Protocol):
    """A network namespace."""

    def do(self, work: Callable[[], _T]) -> _T:
        """Return what the work returns, done by a thread inside."""
        ...


class ConnectionSource(NamedTuple):
    """Somebody who connects to one address again and again."""

    namespace: Inside
    host: str
    port: int
    times: int


class _Call:
    """A connection under way."""

    __slots__ = (
        "caller",
        "fd",
        "has_slot",
        "is_connecting",
        "is_over",
        "received",
        "since",
        "socket",
    )

    def __init__(self, caller: int, one: socket.socket, since: float) -> None:
        self.caller, self.socket, self.since = caller, one, since
        self.fd = one.fileno()
        self.received = b""
        self.has_slot = True
        self.is_connecting = False
        self.is_over = False


async def connect_all(
    callers: Sequence[ConnectionSource],
    *,
    udp: bool = False,
    patience: float = _PATIENCE,
    tell: Callable[[int], object] = lambda _done: None,
) -> list[Counter[ConnectionResult]]:
    """Return who answered how often, caller by caller; raises OSError when no socket can be made.

    `tell` hears now and then how many connections are done.
    """
    run = _Run(callers, udp=udp, patience=patience, tell=tell)
    try:
        await run.work()
    finally:
        run.close()
    return run.results


class _Run:
    def __init__(
        self,
        callers: Sequence[ConnectionSource],
        *,
        udp: bool,
        patience: float,
        tell: Callable[[int], object],
    ) -> None:
        self._callers, self._udp, self._patience, self._tell = callers, udp, patience, tell
        self._requests = [_request(one, udp=udp) for one in callers]
        self.results: list[Counter[ConnectionResult]] = [Counter() for _ in callers]
        self._left = sum(one.times for one in callers)
        self._done = 0
        self._slots = CONNECTIONS_AT_ONCE
        self._open = 0
        self._most_open = find_room(CONNECTIONS_AT_ONCE)
        self._done_before = 0
        self._calls: deque[_Call] = deque()
        self._sockets = self._make_sockets()
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._next: asyncio.Handle | None = None

    async def work(self) -> None:
        if self._left:
            self._timer = self._loop.call_later(_TICK, self._tick)
            self._go_on()
            await self._finished
        self._tell(self._done)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._next is not None:
            self._next.cancel()
        for call in self._calls:
            if not call.is_over:
                self._shut(call)
        self._sockets.close()

    def _make_sockets(self) -> Generator[tuple[int, socket.socket], None, None]:
        """Yield sockets with the number of their caller, in batches that take turns."""
        left = [one.times for one in self._callers]
        while any(left):
            for number, caller in enumerate(self._callers):
                count = min(BATCH, left[number])
                if not count:
                    continue
                left[number] -= count
                family = socket.AF_INET6 if ":" in caller.host else socket.AF_INET
                batch = deque(
                    caller.namespace.do(partial(open_client_sockets, family, count, udp=self._udp))
                )
                try:
                    while batch:
                        yield number, batch.popleft()
                finally:
                    for one in batch:
                        one.close()

    def _go_on(self) -> None:
        """Start connections while there is room for them, a few in one turn of the loop."""
        if self._next is not None:
            return
        begun = 0
        try:
            while self._left and self._slots > 0 and self._open < self._most_open:
                if begun == CONNECTIONS_AT_ONCE:
                    # NB: refusals give slots back at once; nobody else would have a turn meanwhile.
                    self._next = self._loop.call_soon(self._go_on_next)
                    return
                begun += 1
                self._left -= 1
                self._start(*next(self._sockets))
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for the run
            if not self._finished.done():
                self._finished.set_exception(error)
            return
        if not self._left and not self._open and not self._finished.done():
            self._finished.set_result(None)

    def _go_on_next(self) -> None:
        self._next = None
        self._go_on()

    def _start(self, number: int, one: socket.socket) -> None:
        caller = self._callers[number]
        call = _Call(number, one, self._loop.time())
        self._calls.append(call)
        self._slots -= 1
        self._open += 1
        error = one.connect_ex((caller.host, caller.port))
        if error not in (0, errno.EINPROGRESS):
            self._end(call, failure_of(error))
            return
        # Between namespaces of one machine the handshake is over by now, as a rule.
        self._ask(call)

    def _ask(self, call: _Call) -> None:
        try:
            call.socket.send(self._requests[call.caller])
        except BlockingIOError:
            # NB: a refusal by ICMP that comes while the kernel still is in connect() is kept as a
            # soft error, which nobody reports before the next attempt, a second later.
            error = call.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._end(call, failure_of(error))
                return
            call.is_connecting = True
            self._loop.add_writer(call.fd, self._on_writable, call)
        except OSError as failed:
            self._end(call, failure_of(failed.errno))
        else:
            self._loop.add_reader(call.fd, self._on_readable, call)

    def _on_writable(self, call: _Call) -> None:
        if not call.is_over:
            self._loop.remove_writer(call.fd)
            call.is_connecting = False
            self._ask(call)
            self._go_on()

    def _on_readable(self, call: _Call) -> None:
        if call.is_over:
            return
        try:
            data = call.socket.recv(_LONGEST_ANSWER)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(call, failure_of(error.errno))
        else:
            result: ConnectionResult | None
            if self._udp:
                result = read_datagram(data)
            else:
                call.received += data
                result = read_http(call.received)
                if result is None and (not data or len(call.received) > _LONGEST_ANSWER):
                    result = ConnectionFailure.BROKEN
            if result is None:
                return
            self._end(call, result)
        self._go_on()

    def _tick(self) -> None:
        now = self._loop.time()
        # Where nobody answers at all there is nobody to spare.
        hold = _TICK if self._done == self._done_before else _SLOT_SECONDS
        self._done_before = self._done
        for call in self._calls:
            age = now - call.since
            if age < hold:
                break
            if call.is_over:
                continue
            if age >= self._patience:
                self._end(call, ConnectionFailure.TIMED_OUT)
            elif call.has_slot:
                call.has_slot = False
                self._slots += 1
        while self._calls and self._calls[0].is_over:
            self._calls.popleft()
        self._tell(self._done)
        self._timer = self._loop.call_later(_TICK, self._tick)
        self._go_on()

    def _end(self, call: _Call, result: ConnectionResult) -> None:
        self._shut(call)
        self.results[call.caller][result] += 1
        self._done += 1
        self._open -= 1
        if call.has_slot:
            self._slots += 1

    def _shut(self, call: _Call) -> None:
        call.is_over = True
        if call.is_connecting:
            self._loop.remove_writer(call.fd)
        else:
            self._loop.remove_reader(call.fd)
        call.socket.close()


def _request(caller: ConnectionSource, *, udp: bool) -> bytes:
    if udp:
        return b"?"
    host = f"[{caller.host}]" if ":" in caller.host else caller.host
    return f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
