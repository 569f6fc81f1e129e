"""Clients that open one connection after the other for as long as a block runs.

A connection that is refused, reset, answered by nobody in time or not at all is a failure. The
patience is long, since a busy machine is slow; what a node must not do is refuse.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from keepclose.system.namespaces import enter_network
from support.netanswers import Answer
from support.netns import Namespace

PATIENCE = 20.0
PAUSE = 0.01
"""Between two connections of one client, so that the machine has time for others."""


class Load:
    """What came of the connections so far."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._takes = 0
        self._started = time.monotonic()

    @property
    def count(self) -> int:
        """How many connections were answered."""
        with self._lock:
            return self.answers.total()

    def take(self) -> Counter[str]:
        """Return who answered to connections that began since the last call.

        NB: an older one may have been answered long ago and its client only be slow to tell.
        """
        with self._lock:
            taken, self.answers = self.answers, Counter()
            self._takes += 1
        return taken

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Return when so many more connections were answered; raises TimeoutError."""
        goal, end = self.count + count, time.monotonic() + seconds
        while self.count < goal:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.count} of {goal} answers; {self.failures[:5]}")
            time.sleep(0.005)

    def run(self, inside: Path, address: str, port: int) -> None:
        """Connect again and again from inside a namespace, until the load is over."""
        enter_network(inside)
        while not self.over.wait(PAUSE):
            began = self._takes
            try:
                answer = ask_here(address, port)
            except OSError as error:
                self._fail(repr(error))
            else:
                with self._lock:
                    if began == self._takes:
                        self.answers[answer.name] += 1

    def _fail(self, what: str) -> None:
        self.failures.append(f"{time.monotonic() - self._started:.2f} s: {what}")


@contextlib.contextmanager
def loading(clients: Iterable[Namespace], targets: Iterable[tuple[str, int]]) -> Iterator[Load]:
    """Connect from each client to each target for the block."""
    load = Load()
    threads = [
        threading.Thread(target=load.run, args=(client.path, *target))
        for client in clients
        for target in list(targets)
    ]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.over.set()
        for thread in threads:
            thread.join(2 * PATIENCE)


def count_inside(
    namespace: Namespace, address: str, port: int, *, times: int, udp: bool = False
) -> Counter[str]:
    """Return how often each name answers to new connections from a namespace; raises OSError."""
    return namespace.do(
        lambda: Counter(ask_here(address, port, udp=udp).name for _ in range(times))
    )


def ask_here(address: str, port: int, *, udp: bool = False, seconds: float = PATIENCE) -> Answer:
    """Return who answers to a new connection from the namespace of this thread; raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as one:
        one.settimeout(seconds)
        one.connect((address, port))
        one.send(b"?")
        name, _, seen = one.recv(300).decode().partition(" ")
        if not name:
            raise ConnectionResetError("closed without an answer")
        return Answer(name, seen.strip())
