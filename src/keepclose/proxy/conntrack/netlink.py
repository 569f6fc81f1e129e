"""The kernel's connection tracking table over netlink: lists flows of a protocol, deletes flows.

It needs no conntrack program. A socket belongs to the network namespace of the thread that opens
it. A flow is deleted by its reply tuple and its identity number, which the kernel computes from the
flow: a newer flow of the same client to another endpoint is never deleted.
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
# The part of the original tuple that the kernel compares (since 5.8).
_BY_PROTOCOL: Final = 1 << 3
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_CODE: Final = struct.Struct("=i")
_MAX_CODE: Final = (1 << 31) - 1
_RECEIVE_BYTES: Final = 1 << 18
_DELETED_AT_ONCE: Final = 64


class Flow(NamedTuple):
    """A connection that the kernel tracks, translated or not."""

    protocol: int
    destination: str
    """The original destination: the address of the Service."""
    destination_port: int
    reply_source: str
    """The source of replies: the endpoint."""
    reply_source_port: int
    source: str
    source_port: int
    reply: bytes = b""
    """The reply tuple, as the kernel sent it."""
    identity: bytes = b""
    zone: bytes = b""


class FlowListing(NamedTuple):
    """Flows, and whether the kernel's table stayed unchanged during the listing."""

    flows: list[Flow]
    complete: bool


class FlowTable:
    """A netlink socket for the kernel's flows; it blocks, and serves one thread at a time."""

    def __init__(
        self,
        family: socket.AddressFamily,
        *,
        seconds: float = 10.0,
        opened: socket.socket | None = None,
    ) -> None:
        """Open the socket in the namespace of the calling thread; raises OSError.

        A test passes an open socket whose peer is not the kernel.
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

        If the table changes meanwhile, it is read again a few times; the last listing counts.
        """
        listing = FlowListing([], complete=False)
        for _ in range(ATTEMPTS):
            listing = self._list_once(protocol)
            if listing.complete:
                break
        return listing

    def delete(self, flows: Sequence[Flow]) -> int:
        """Delete flows and return how many still existed; raises OSError for any error."""
        deleted = 0
        for start in range(0, len(flows), _DELETED_AT_ONCE):
            batch = flows[start : start + _DELETED_AT_ONCE]
            waiting = set()
            messages = []
            for flow in batch:
                parts = [_nest(_REPLY, flow.reply)]
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
        error_code = 0
        while waiting:
            for kind, _flags, sequence, body in _messages(self._socket.recv(_RECEIVE_BYTES)):
                if kind != _ERROR or sequence not in waiting:
                    continue
                waiting.discard(sequence)
                code = _error_code(body)
                # With ENOENT the flow has ended meanwhile.
                if code not in {0, errno.ENOENT}:
                    error_code = code
                deleted += code == 0
        if error_code:
            raise OSError(error_code, f"cannot delete flows: {os.strerror(error_code)}")
        return deleted

    def _list_once(self, protocol: int) -> FlowListing:
        original = _nest(_TUPLE_PROTO, _attribute(_NUMBER, bytes([protocol])))
        flow_filter = _attribute(1, struct.pack("=I", _BY_PROTOCOL)) + _attribute(2, bytes(4))
        body = _nest(_ORIGINAL, original) + _nest(_FILTER, flow_filter)
        self._socket.send(self._message(_GET, _REQUEST | _DUMP, body))
        flows: list[Flow] = []
        complete = True
        while True:
            for kind, flags, sequence, data in _messages(self._socket.recv(_RECEIVE_BYTES)):
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
                # A kernel without support for the filter lists all flows.
                if flow is not None and flow.protocol == protocol:
                    flows.append(flow)

    def _message(self, kind: int, flags: int, body: bytes) -> bytes:
        self._sequence = self._sequence % 0xFFFFFFF0 + 1
        head = struct.pack("=BBH", self._family, 0, 0)
        size = _HEADER.size + len(head) + len(body)
        return _HEADER.pack(size, kind, flags, self._sequence, 0) + head + body


def parse_flow(data: bytes) -> Flow | None:
    """Return the flow of a netlink message's attributes; None for a flow without ports."""
    attributes = dict(_attributes(data))
    original, reply = attributes.get(_ORIGINAL), attributes.get(_REPLY)
    if original is None or reply is None:
        return None
    original_tuple, reply_tuple = _parse_tuple(original), _parse_tuple(reply)
    if original_tuple is None or reply_tuple is None:
        return None
    protocol, source, source_port, destination, destination_port = original_tuple
    return Flow(
        protocol,
        destination,
        destination_port,
        reply_tuple[1],
        reply_tuple[2],
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
    source = next((addresses[kind] for kind in _SOURCES if kind in addresses), None)
    destination = next((addresses[kind] for kind in _DESTINATIONS if kind in addresses), None)
    if source is None or destination is None or not {len(source), len(destination)} <= {4, 16}:
        return None
    # Other protocols, such as ICMP, have no ports.
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
        raise OSError(errno.EBADMSG, "the kernel's reply is cut short")
    # NB: the negative of the least 32-bit number does not fit into 32 bits.
    return min(-int(_CODE.unpack_from(body)[0]), _MAX_CODE)


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
