"""Who answers? Servers that say their own name, and clients that ask, in network namespaces.

One thread serves all sockets. Whoever sends a byte, over TCP or UDP, is told the server's name and
the address from which the server saw it come: enough to see spreading, stickiness and masquerading.
Every wait has an end.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from support.netns import Namespace
from support.nettopology import Place

PORT: Final = 8080
PATIENCE: Final = 20.0
"""Seconds for an answer or a refusal, which both come at once unless the machine is busy."""
SILENCE: Final = 1.5
"""Seconds after which somebody who must not answer is held to be silent."""
_STREAM: Final = socket.SOCK_STREAM
_DATAGRAM: Final = socket.SOCK_DGRAM


class Answer(NamedTuple):
    """Who answered, and from where it saw the question come."""

    name: str
    seen: str


class Silence(enum.Enum):
    """Why nobody answered."""

    REFUSED = "refused"
    """An error came back: nobody is there, or a rule rejects."""
    DROPPED = "dropped"
    """Nothing came back in time."""
    UNREACHABLE = "unreachable"
    """There is no way there."""


class Caller:
    """A socket that asks again and again, always from the same port."""

    def __init__(self, one: socket.socket) -> None:
        self._socket = one

    @property
    def port(self) -> int:
        """The port that it asks from."""
        port: int = self._socket.getsockname()[1]
        return port

    def ask(self) -> Answer:
        """Return who answers; raises OSError."""
        self._socket.send(b"?")
        name, _, seen = self._socket.recv(300).decode().partition(" ")
        return Answer(name, seen.strip())


@contextlib.contextmanager
def calling(
    namespace: Namespace, address: str, port: int, *, udp: bool = False, seconds: float = PATIENCE
) -> Iterator[Caller]:
    """Connect from inside a namespace; raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with namespace.open_socket(family, _DATAGRAM if udp else _STREAM) as one:
        one.settimeout(seconds)
        one.connect((address, port))
        yield Caller(one)


def ask(
    namespace: Namespace, address: str, port: int, *, udp: bool = False, seconds: float = PATIENCE
) -> Answer | Silence:
    """Return who answers to a new connection, or why nobody does; raises other OSErrors.

    NB: over IPv6 a refusal is noticed only after a second, so give no less than SILENCE.
    """
    try:
        with calling(namespace, address, port, udp=udp, seconds=seconds) as caller:
            return caller.ask()
    except (ConnectionRefusedError, ConnectionResetError):
        return Silence.REFUSED
    except TimeoutError:
        return Silence.DROPPED
    except OSError as error:
        if error.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES}:
            return Silence.UNREACHABLE
        raise


def count_answers(
    namespace: Namespace, address: str, port: int, *, times: int, udp: bool = False
) -> Counter[str]:
    """Return how often each name answers to new connections; silence counts under its word."""
    counts: Counter[str] = Counter()
    for _ in range(times):
        answer = ask(namespace, address, port, udp=udp)
        counts[answer.name if isinstance(answer, Answer) else answer.value] += 1
    return counts


def wait_for_answer(
    namespace: Namespace, address: str, port: int, *, udp: bool = False, seconds: float = 60.0
) -> Answer:
    """Return the first answer; raises TimeoutError when none comes in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = ask(namespace, address, port, udp=udp, seconds=0.5)
        if isinstance(answer, Answer):
            return answer
        time.sleep(0.05)
    raise TimeoutError(f"nobody answers at {address}:{port}")


@contextlib.contextmanager
def answering(places: Iterable[Place], port: int = PORT) -> Iterator[None]:
    """Answer at each place's addresses, over TCP and UDP, for the block."""
    selector = selectors.DefaultSelector()
    ours, theirs = socket.socketpair()
    selector.register(theirs, selectors.EVENT_READ, None)
    thread = threading.Thread(target=_serve, args=(selector,), name="answers")
    try:
        for place in places:
            for one in place.namespace.do(lambda place=place: _open_all(place, port)):  # type: ignore[misc]
                selector.register(one, selectors.EVENT_READ, place.name)
        thread.start()
        yield
    finally:
        ours.close()
        if thread.ident is not None:
            thread.join(PATIENCE)
        for key in list(selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        selector.close()


def _open_all(place: Place, port: int) -> list[socket.socket]:
    opened = []
    for address in (place.address, place.address6):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for kind in (_STREAM, _DATAGRAM):
            one = socket.socket(family, kind)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address, port))
            if kind == _STREAM:
                one.listen(512)
            one.setblocking(False)
            opened.append(one)
    return opened


def _serve(selector: selectors.BaseSelector) -> None:
    while True:
        for key, _ in selector.select():
            if key.data is None:
                return
            one = key.fileobj
            assert isinstance(one, socket.socket)
            # A client that went away concerns nobody else.
            try:
                _attend(selector, one, str(key.data))
            except OSError:
                if one.type == _STREAM and not _listens(one):
                    selector.unregister(one)
                    one.close()


def _attend(selector: selectors.BaseSelector, one: socket.socket, name: str) -> None:
    if one.type == _DATAGRAM:
        _, client = one.recvfrom(100)
        one.sendto(f"{name} {client[0]}\n".encode(), client)
    elif _listens(one):
        connection, _ = one.accept()
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, name)
    elif one.recv(100):
        one.send(f"{name} {one.getpeername()[0]}\n".encode())
    else:
        selector.unregister(one)
        one.close()


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
