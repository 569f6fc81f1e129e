"""The kernel's table of connections over netlink: list flows of one protocol, delete single ones.

No program is needed for it. A socket belongs to the network namespace of the thread that opens it.
A flow is deleted by the tuple of its answers and its identity number, which the kernel makes of
the other tuple: a newer flow of the same client stays when it goes to another endpoint.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

UDP: Final = 17
SCTP: Final = 132
ATTEMPTS: Final = 5

_NETLINK_NETFILTER: Final = 12
_GET, _DELETE = 0x0101, 0x0102
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP, _INTERRUPTED = 0x1, 0x4, 0x300, 0x10
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF
# Attributes of a flow, and those inside a tuple.
_ORIGINAL, _REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_SOURCES, _DESTINATIONS = (1, 3), (2, 4)
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
# The kernel compares this part of the original tuple (since 5.8).
_BY_PROTOCOL: Final = 1 << 3
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_CODE: Final = struct.Struct("=i")
_MOST_CODE: Final = (1 << 31) - 1
_RECEIVED: Final = 1 << 18
_DELETED_AT_ONCE: Final = 64


class Flow(NamedTuple):
    """A connection that the kernel translates, or only knows."""

    protocol: int
    destination: str
    """Where the client sends to: the address of the Service."""
    destination_port: int
    reply_source: str
    """Who answers: the endpoint."""
    reply_source_port: int
    source: str
    source_port: int
    answers: bytes = b""
    """The tuple of the answers, as the kernel gave it."""
    identity: bytes = b""
    zone: bytes = b""


class FlowListing(NamedTuple):
    """Flows, and whether the kernel's table stood still while they were listed."""

    flows: list[Flow]
    complete: bool


class FlowTable:
    """A netlink socket; blocking, for one thread at a time."""

    def __init__(
        self,
        family: socket.AddressFamily,
        *,
        seconds: float = 10.0,
        opened: socket.socket | None = None,
    ) -> None:
        """Open it in the namespace of the calling thread; raises OSError.

        A test hands in an opened socket with something else than a kernel at its other end.
        """
        self._family = family
        if opened is None:
            opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
            opened.bind((0, 0))
        self._socket = opened
        self._socket.settimeout(seconds)
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def list_flows(self, protocol: int) -> FlowListing:
        """Return all flows of a protocol and of this family; raises OSError.

        A table that changes all the while is read again a few times; then what was read counts.
        """
        listing = FlowListing([], complete=False)
        for _ in range(ATTEMPTS):
            listing = self._list_once(protocol)
            if listing.complete:
                break
        return listing

    def delete(self, flows: Sequence[Flow]) -> int:
        """Delete flows and return how many were still there; raises OSError for any refusal."""
        deleted = 0
        for start in range(0, len(flows), _DELETED_AT_ONCE):
            part = flows[start : start + _DELETED_AT_ONCE]
            waiting = set()
            messages = []
            for flow in part:
                parts = [_nest(_REPLY, flow.answers)]
                if flow.identity:
                    parts.append(_attribute(_ID, flow.identity))
                if flow.zone:
                    parts.append(_attribute(_ZONE, flow.zone))
                messages.append(self._message(_DELETE, _REQUEST | _ACK, b"".join(parts)))
                waiting.add(self._sequence)
            self._socket.sendall(b"".join(messages))
            deleted += self._count_deleted(waiting)
        return deleted

    def _count_deleted(self, waiting: set[int]) -> int:
        deleted = 0
        refusal = 0
        while waiting:
            for kind, _flags, sequence, body in _messages(self._socket.recv(_RECEIVED)):
                if kind != _ERROR or sequence not in waiting:
                    continue
                waiting.discard(sequence)
                code = _error_code(body)
                # It ended by itself in the meantime.
                if code not in {0, errno.ENOENT}:
                    refusal = code
                deleted += code == 0
        if refusal:
            raise OSError(refusal, f"cannot delete flows: {os.strerror(refusal)}")
        return deleted

    def _list_once(self, protocol: int) -> FlowListing:
        wanted = _nest(_TUPLE_PROTO, _attribute(_NUMBER, bytes([protocol])))
        chosen = _attribute(1, struct.pack("=I", _BY_PROTOCOL)) + _attribute(2, bytes(4))
        body = _nest(_ORIGINAL, wanted) + _nest(_FILTER, chosen)
        self._socket.send(self._message(_GET, _REQUEST | _DUMP, body))
        flows: list[Flow] = []
        complete = True
        while True:
            for kind, flags, sequence, data in _messages(self._socket.recv(_RECEIVED)):
                if sequence != self._sequence:
                    continue
                if flags & _INTERRUPTED:
                    complete = False
                if kind == _DONE:
                    return FlowListing(flows, complete)
                if kind == _ERROR:
                    code = _error_code(data)
                    raise OSError(code, f"cannot list flows: {os.strerror(code)}")
                flow = parse_flow(data[4:])
                # A kernel that does not know the filter gives everything.
                if flow is not None and flow.protocol == protocol:
                    flows.append(flow)

    def _message(self, kind: int, flags: int, body: bytes) -> bytes:
        self._sequence = self._sequence % 0xFFFFFFF0 + 1
        head = struct.pack("=BBH", self._family, 0, 0)
        size = _HEADER.size + len(head) + len(body)
        return _HEADER.pack(size, kind, flags, self._sequence, 0) + head + body


def parse_flow(data: bytes) -> Flow | None:
    """Return the flow of a netlink message's attributes; None when it is none with ports."""
    attributes = dict(_attributes(data))
    original, reply = attributes.get(_ORIGINAL), attributes.get(_REPLY)
    if original is None or reply is None:
        return None
    one, other = _parse_tuple(original), _parse_tuple(reply)
    if one is None or other is None:
        return None
    protocol, source, source_port, destination, destination_port = one
    return Flow(
        protocol,
        destination,
        destination_port,
        other[1],
        other[2],
        source,
        source_port,
        reply,
        attributes.get(_ID, b""),
        attributes.get(_ZONE, b""),
    )


def _parse_tuple(data: bytes) -> tuple[int, str, int, str, int] | None:
    parts = dict(_attributes(data))
    addresses = dict(_attributes(parts.get(_TUPLE_IP, b"")))
    ports = dict(_attributes(parts.get(_TUPLE_PROTO, b"")))
    source = next((addresses[one] for one in _SOURCES if one in addresses), None)
    destination = next((addresses[one] for one in _DESTINATIONS if one in addresses), None)
    if source is None or destination is None or not {len(source), len(destination)} <= {4, 16}:
        return None
    # Others, such as ICMP, have no ports.
    if not ports.get(_NUMBER) or _SOURCE_PORT not in ports or _DESTINATION_PORT not in ports:
        return None
    return (
        ports[_NUMBER][0],
        _address(source),
        int.from_bytes(ports[_SOURCE_PORT], "big"),
        _address(destination),
        int.from_bytes(ports[_DESTINATION_PORT], "big"),
    )


def _error_code(body: bytes) -> int:
    if len(body) < _CODE.size:
        raise OSError(errno.EBADMSG, "the kernel's answer is cut short")
    # NB: the least number of 32 bits has no opposite among them.
    return min(-int(_CODE.unpack_from(body)[0]), _MOST_CODE)


def _address(raw: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, offset)
        if size < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + size]
        offset += size + 3 & ~3


def _messages(data: bytes) -> Iterable[tuple[int, int, int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        size, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if size < _HEADER.size:
            return
        yield kind, flags, sequence, data[offset + _HEADER.size : offset + size]
        offset += size + 3 & ~3


def _attribute(kind: int, payload: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(size, kind) + payload + bytes(-size % 4)


def _nest(kind: int, payload: bytes) -> bytes:
    return _attribute(kind | _NESTED, payload)
