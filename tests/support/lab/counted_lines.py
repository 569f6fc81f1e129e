"""Connections whose both ends count what they send: servers in pods, and clients.

A client says how much it sends and how much it wants back; the server says who it is, and both
count connections and payload. The kernel of a client counts segments, so that the bytes of packets
are known within the size of a header.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from support.netanswers import PATIENCE, PORT
from support.nettopology import Place

_HEAD: Final = struct.Struct("!II")
_NAME_BYTES: Final = 32
_SEGMENTS: Final = struct.Struct("=II")
_SEGMENTS_AT: Final = 136
"""Where struct tcp_info has tcpi_segs_out and tcpi_segs_in."""
_AFTERWARDS: Final = 4
"""Segments of the end of a connection, which come after the client has looked."""
_UDP_HEADERS: Final = {4: 28, 6: 48}
_LEAST_HEADERS: Final = {4: 40, 6: 60}
_MOST_HEADERS: Final = {4: 80, 6: 100}
"""IP and TCP with options."""


class Sent(msgspec.Struct):
    """What clients sent and received, by their own count."""

    connections: int = 0
    least_request: int = 0
    """Payload with the least headers that there can be."""
    most_request: int = 0
    least_response: int = 0
    most_response: int = 0


class Answers:
    """Servers in pods: one thread answers all of them, and counts."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._ours, theirs = socket.socketpair()
        self._selector.register(theirs, selectors.EVENT_READ, None)
        self._parts: defaultdict[socket.socket, bytes] = defaultdict(bytes)
        self._thread = threading.Thread(target=self._serve, name="answers")
        self.connections: Counter[str] = Counter()
        """By the place that answered."""
        self.payload: Counter[str] = Counter()
        """Received and sent, by the place."""

    @contextlib.contextmanager
    def running(self, places: Sequence[Place]) -> Iterator[None]:
        """Answer at all addresses of the places for the block."""
        try:
            for place in places:
                for one in place.namespace.do(lambda place=place: _listen(place)):  # type: ignore[misc]
                    self._selector.register(one, selectors.EVENT_READ, place.name)
            self._thread.start()
            yield
        finally:
            self._ours.close()
            if self._thread.ident is not None:
                self._thread.join(PATIENCE)
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                one = key.fileobj
                assert isinstance(one, socket.socket)
                try:
                    self._attend(one, str(key.data))
                except OSError:
                    self._drop(one)

    def _attend(self, one: socket.socket, name: str) -> None:
        if one.type == socket.SOCK_DGRAM:
            data, client = one.recvfrom(65536)
            reply = _reply(name, _HEAD.unpack_from(data)[1])
            self.connections[name] += 1
            self.payload[name] += len(data) + len(reply)
            one.sendto(reply, client)
            return
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            connection, _ = one.accept()
            connection.settimeout(PATIENCE)
            self._selector.register(connection, selectors.EVENT_READ, name)
            self.connections[name] += 1
            return
        data = one.recv(1 << 20)
        if not data:
            self._drop(one)
            return
        self.payload[name] += len(data)
        self._parts[one] += data
        while len(self._parts[one]) >= _HEAD.size:
            length, wanted = _HEAD.unpack_from(self._parts[one])
            if len(self._parts[one]) < length:
                return
            self._parts[one] = self._parts[one][length:]
            reply = _reply(name, wanted)
            self.payload[name] += len(reply)
            one.sendall(reply)

    def _drop(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        self._parts.pop(one, None)
        one.close()


def _reply(name: str, length: int) -> bytes:
    return name.encode().ljust(max(length, _NAME_BYTES))


def _listen(place: Place) -> list[socket.socket]:
    opened = []
    for address in (place.address, place.address6):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            one = socket.socket(family, kind)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address, PORT))
            if kind == socket.SOCK_STREAM:
                one.listen(512)
            opened.append(one)
    return opened


def sent_resets(place: Place) -> int:
    """Return how many connections a place has refused or reset."""
    text = place.namespace.do(lambda: Path("/proc/thread-self/net/snmp").read_text())
    names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("OutRsts")])


@contextlib.contextmanager
def silenced(place: Place) -> Iterator[None]:
    """Let a place drop all packets for the block."""
    chain = "{ type filter hook input priority 0; policy drop; }"
    place.namespace.run("nft", f"add table inet silence; add chain inet silence in {chain}")
    try:
        yield
    finally:
        place.namespace.run("nft", "delete table inet silence")


class Line:
    """A connection of a client, which may exchange data several times."""

    def __init__(self, one: socket.socket, *, udp: bool, family: int) -> None:
        self._socket, self.udp, self._family = one, udp, family
        self.answered_by = ""
        self._out = self._in = self._exchanges = 0
        self._added = False

    def exchange(self, request: int, response: int) -> str:
        """Send a request and return the place that answered; raises OSError."""
        data = _HEAD.pack(request, response).ljust(request, b"-")
        wanted = max(response, _NAME_BYTES)
        self._socket.sendall(data)
        received = b""
        while len(received) < wanted:
            part = self._socket.recv(1 << 20)
            if not part:
                raise ConnectionResetError
            received += part
        self._out += len(data)
        self._in += len(received)
        self._exchanges += 1
        self.answered_by = received[:_NAME_BYTES].decode().strip()
        return self.answered_by

    def add_to(self, sent: Sent) -> None:
        """Add what was exchanged; call it once, at the end."""
        sent.connections += 1
        if self.udp:
            headers = _UDP_HEADERS[self._family] * self._exchanges
            least_out = most_out = headers
            least_in = most_in = headers
        else:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            segments_out, segments_in = _SEGMENTS.unpack_from(info, _SEGMENTS_AT)
            # SYN, request and FIN are one packet each at least.
            least_out = least_in = 3 * _LEAST_HEADERS[self._family]
            most_out = (segments_out + _AFTERWARDS) * _MOST_HEADERS[self._family]
            most_in = (segments_in + _AFTERWARDS) * _MOST_HEADERS[self._family]
        sent.least_request += self._out + least_out
        sent.most_request += self._out + most_out
        sent.least_response += self._in + least_in
        sent.most_response += self._in + most_in


@contextlib.contextmanager
def connecting(
    client: Place, to: tuple[str, int], *, udp: bool = False, within_s: float = PATIENCE
) -> Iterator[Line]:
    """Connect from a place; raises OSError."""
    family = 6 if ":" in to[0] else 4
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    address_family = socket.AF_INET6 if family == 6 else socket.AF_INET
    with client.namespace.open_socket(address_family, kind) as one:
        one.settimeout(within_s)
        one.connect(to)
        yield Line(one, udp=udp, family=family)
