"""Connections that the kernel tracks: its events of new and ended ones, and its whole table.

Needs CAP_NET_ADMIN and no conntrack program. A message of the kernel has the original tuple (what
the client sent), the reply tuple (what the endpoint answers), an identity, and, where accounting is
on, packets and bytes of both directions. Messages about IPv4 and IPv6 with ports have one form,
which is checked and read at once; all others are read attribute by attribute. Nothing is trusted: a
message that is cut or has no tuples is no connection.

Events that no reader fetches in time are lost. The kernel reports the first with an error and then
drops all further ones until the reader has emptied the socket, which counts them all.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from keepclose.system.netlink import (
    NESTED,
    NETFILTER,
    NETFILTER_HEAD_BYTES,
    NetlinkSocket,
    attribute_bounds,
    attribute_head,
    attributes_of,
    messages_of,
    netfilter_head,
)

GET_CONNECTIONS: Final = 0x0101
SEEN_REPLY: Final = 1 << 1
"""The bit of the status that a packet of the endpoint sets."""
CONNTRACK_ACCT: Final = "net/netfilter/nf_conntrack_acct"
CONNTRACK_EVENTS: Final = "net/netfilter/nf_conntrack_events"
CONNTRACK_COUNT: Final = "net/netfilter/nf_conntrack_count"
CONNTRACK_MAX: Final = "net/netfilter/nf_conntrack_max"
EVENT_BUFFER_BYTES: Final = 16 << 20
"""More than 20,000 events, as the kernel doubles it: a second of 10,000 connections a second."""
# Attributes of a connection, and those inside a tuple and inside counters.
CTA_ORIGINAL, CTA_REPLY, CTA_STATUS, CTA_ID, CTA_ZONE = 1, 2, 3, 12, 18
CTA_COUNTERS_ORIGINAL, CTA_COUNTERS_REPLY, CTA_TIMESTAMP = 9, 10, 20
TUPLE_IP, TUPLE_PROTO = 1, 2
IP_SOURCES, IP_DESTINATIONS = (1, 3), (2, 4)
PROTO_NUMBER, PROTO_SOURCE_PORT, PROTO_DESTINATION_PORT = 1, 2, 3
_COUNTER_PACKETS, _COUNTER_BYTES = 1, 2
_TIMESTAMP_START: Final = 1
_NEW_KIND, _END_KIND = 0x0100, 0x0102
_GROUP_NEW, _GROUP_END = 1, 3
_NETLINK_OPTIONS, _ADD_MEMBERSHIP = 270, 1
_RECEIVE_BUFFER_FORCED, _MEMORY_INFO = 33, 55
_MEMORY_INFO_FORMAT: Final = struct.Struct("=9I")
_EVENT_BYTES: Final = 8192
_WORD: Final = struct.Struct(">I")
_LONG: Final = struct.Struct(">Q")
_COUNTERS: Final = struct.Struct(">4xQ4xQ")


class TrackedConnection(NamedTuple):
    """A connection as one message of the kernel tells it."""

    key: bytes
    """The original tuple and two bytes of the identity, which tells apart who has it over time.

    NB: the kernel may give both again, later. In a zone all of the identity, and the zone: the same
    tuple may exist in each of them.
    """
    protocol: int
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    reply_source: bytes
    reply_source_port: int
    status: int = 0
    request_packets: int = 0
    request_bytes: int = 0
    response_packets: int = 0
    response_bytes: int = 0
    has_counters: bool = False
    """False if accounting was off when the connection began; events of new ones have none."""
    started_ns: int = 0
    """Nanoseconds of the Unix epoch, 0 if the kernel keeps no timestamps."""
    zone: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether a packet of the endpoint was accepted."""
        return bool(self.status & SEEN_REPLY)


class ConntrackEvent(NamedTuple):
    """A connection that began or ended."""

    is_end: bool
    connection: TrackedConnection


class _Form:
    """The usual form of both tuples for addresses of one size; ports are two bytes each."""

    def __init__(self, size: int, source: int, destination: int) -> None:
        address = size - 4
        tuple_bytes = 4 + 4 + 2 * size + 28
        head = attribute_head
        one = (
            head(TUPLE_IP | NESTED, 2 * size)
            + head(source, address)
            + bytes(address)
            + head(destination, address)
            + bytes(address)
            + head(TUPLE_PROTO | NESTED, 24)
            + head(PROTO_NUMBER, 1)
            + bytes(4)
            + head(PROTO_SOURCE_PORT, 2)
            + bytes(4)
            + head(PROTO_DESTINATION_PORT, 2)
            + bytes(4)
        )
        # All bytes but those of values; padding is checked as well, because the kernel clears it.
        mask = (
            b"\xff" * 8
            + bytes(address)
            + b"\xff" * 4
            + bytes(address)
            + b"\xff" * 8
            + b"\0\xff\xff\xff"
            + (b"\xff" * 4 + b"\0\0\xff\xff") * 2
        )
        heads = (head(kind | NESTED, tuple_bytes - 4) for kind in (CTA_ORIGINAL, CTA_REPLY))
        self.expected = int.from_bytes(b"".join(part + one for part in heads), "big")
        self.mask = int.from_bytes((b"\xff" * 4 + mask) * 2, "big")
        self.start = NETFILTER_HEAD_BYTES
        self.end = self.start + 2 * tuple_bytes
        values = f"12x{address}s4x{address}s8xB3x4x2s2x4x2s2x"
        reply = f"12x{address}s4x{address}x8x4x4xH2x4x4x"
        self.unpack_from = struct.Struct(">" + values + reply).unpack_from


_FORMS: Final = {2: _Form(8, 1, 2), 10: _Form(20, 3, 4)}
_ID_HEAD: Final = attribute_head(CTA_ID, 4)
_ENDS: Final = struct.Struct(">4s4s4sI4s4s8sQ4sQ8sQ4sQ")
"""What follows the tuples in the event of an ended connection with counters."""
_TIMESTAMP_KIND: Final = attribute_head(CTA_TIMESTAMP | NESTED, 0)[2:]
_END_HEADS: Final = (
    _ID_HEAD,
    attribute_head(CTA_STATUS, 4),
    attribute_head(CTA_COUNTERS_ORIGINAL | NESTED, 24) + attribute_head(_COUNTER_PACKETS, 8),
    attribute_head(_COUNTER_BYTES, 8),
    attribute_head(CTA_COUNTERS_REPLY | NESTED, 24) + attribute_head(_COUNTER_PACKETS, 8),
    attribute_head(_COUNTER_BYTES, 8),
)


def decode_connection(body: bytes, *, is_new: bool = False) -> TrackedConnection | None:
    """Return the connection of a message's body; None if it has no whole tuples.

    Of a new connection only the tuples and the identity are read where they have the usual form.
    """
    form = _FORMS.get(body[0]) if body else None
    if form is None or len(body) < form.end:
        return _decode_any(body)
    end = form.end
    if int.from_bytes(body[form.start : end], "big") & form.mask != form.expected:
        return _decode_any(body)
    source, destination, protocol, sport, dport, reply_source, reply_port = form.unpack_from(
        body, form.start
    )
    tuple_key = source + destination + sport + dport + bytes((protocol,))
    if is_new and body[end : end + 4] == _ID_HEAD and len(body) >= end + 8:
        return TrackedConnection(
            tuple_key + body[end + 6 : end + 8],
            protocol,
            source,
            int.from_bytes(sport, "big"),
            destination,
            int.from_bytes(dport, "big"),
            reply_source,
            reply_port,
        )
    if len(body) >= end + _ENDS.size:
        values = _ENDS.unpack_from(body, end)
        # NB: the timeout, which stands fifth, has no meaning after the end.
        if (values[0], values[2], values[6], values[8], values[10], values[12]) == _END_HEADS and (
            len(body) < end + _ENDS.size + 4
            or body[end + _ENDS.size + 2 : end + _ENDS.size + 4] != _TIMESTAMP_KIND
        ):
            return TrackedConnection(
                tuple_key + values[1][2:],
                protocol,
                source,
                int.from_bytes(sport, "big"),
                destination,
                int.from_bytes(dport, "big"),
                reply_source,
                reply_port,
                values[3],
                values[7],
                values[9],
                values[11],
                values[13],
                True,
            )
    identity, rest = _decode_rest(body, end)
    return TrackedConnection(
        tuple_key + identity,
        protocol,
        source,
        int.from_bytes(sport, "big"),
        destination,
        int.from_bytes(dport, "big"),
        reply_source,
        reply_port,
        *rest,
    )


def _decode_any(body: bytes) -> TrackedConnection | None:
    attributes = attributes_of(body, NETFILTER_HEAD_BYTES)
    original = _decode_tuple(attributes.get(CTA_ORIGINAL, b""))
    reply = _decode_tuple(attributes.get(CTA_REPLY, b""))
    if original is None or reply is None:
        return None
    identity, rest = _decode_rest(body, NETFILTER_HEAD_BYTES)
    protocol, source, sport, destination, dport = original
    key = source + destination + sport + dport + bytes((protocol,)) + identity
    return TrackedConnection(
        key,
        protocol,
        source,
        int.from_bytes(sport, "big"),
        destination,
        int.from_bytes(dport, "big"),
        reply[1],
        int.from_bytes(reply[2], "big"),
        *rest,
    )


def _decode_tuple(data: bytes) -> tuple[int, bytes, bytes, bytes, bytes] | None:
    """Return protocol, source, source port, destination and its port; ports may be 0."""
    parts = attributes_of(data)
    addresses = attributes_of(parts.get(TUPLE_IP, b""))
    values = attributes_of(parts.get(TUPLE_PROTO, b""))
    source = next((addresses[kind] for kind in IP_SOURCES if kind in addresses), b"")
    destination = next((addresses[kind] for kind in IP_DESTINATIONS if kind in addresses), b"")
    number = values.get(PROTO_NUMBER, b"")
    if len(source) not in (4, 16) or len(destination) not in (4, 16) or not number:
        return None
    ports = [
        port if len(port := values.get(kind, b"")) == 2 else b"\0\0"
        for kind in (PROTO_SOURCE_PORT, PROTO_DESTINATION_PORT)
    ]
    return number[0], source, ports[0], destination, ports[1]


def _decode_rest(
    body: bytes, start: int
) -> tuple[bytes, tuple[int, int, int, int, int, bool, int, int]]:
    """Return what the identity adds to the key, and the fields from the status on."""
    identity = b""
    status = request_packets = request_bytes = response_packets = response_bytes = 0
    has_counters = False
    started = zone = 0
    for kind, first, last in attribute_bounds(body, start, len(body)):
        if kind == CTA_STATUS and last - first == 4:
            status = _WORD.unpack_from(body, first)[0]
        elif kind == CTA_ID and last - first == 4:
            identity = body[first:last]
        elif kind == CTA_COUNTERS_ORIGINAL and last - first >= _COUNTERS.size:
            request_packets, request_bytes = _COUNTERS.unpack_from(body, first)
            has_counters = True
        elif kind == CTA_COUNTERS_REPLY and last - first >= _COUNTERS.size:
            response_packets, response_bytes = _COUNTERS.unpack_from(body, first)
        elif kind == CTA_TIMESTAMP:
            value = attributes_of(body[first:last]).get(_TIMESTAMP_START, b"")
            if len(value) == _LONG.size:
                started = _LONG.unpack(value)[0]
        elif kind == CTA_ZONE and last - first == 2:
            zone = int.from_bytes(body[first:last], "big")
    identity = identity + zone.to_bytes(2, "big") if zone else identity[2:]
    return identity, (
        status,
        request_packets,
        request_bytes,
        response_packets,
        response_bytes,
        has_counters,
        started,
        zone,
    )


class ConntrackEvents:
    """A socket that receives an event for each connection that begins or ends."""

    def __init__(
        self,
        *,
        buffer_bytes: int = EVENT_BUFFER_BYTES,
        opened: socket.socket | None = None,
    ) -> None:
        """Open the socket in the namespace of the calling thread; raises OSError.

        A test passes an open socket whose peer is not the kernel.
        """
        self.socket = opened or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
        self.socket.setblocking(False)
        self._is_of_kernel = opened is None
        self._lost_before = 0
        self._is_dropping = False
        if opened is not None:
            return
        try:
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCED, buffer_bytes)
            except PermissionError:
                # In a user namespace the system's limit applies.
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            self.socket.bind((0, 0))
            for group in (_GROUP_NEW, _GROUP_END):
                self.socket.setsockopt(_NETLINK_OPTIONS, _ADD_MEMBERSHIP, group)
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def read(self, most: int) -> tuple[list[ConntrackEvent], bool, int]:
        """Return events that have arrived, whether there may be more, and how many were lost.

        Losses go on until a call returns that there are no more. Raises OSError only if the socket
        is unusable.
        """
        events: list[ConntrackEvent] = []
        lost = 0
        receive = self.socket.recv
        for _ in range(most):
            try:
                data = receive(_EVENT_BYTES)
            except BlockingIOError:
                if self._is_dropping:
                    # NB: only an empty socket ends the dropping, of which no other error tells.
                    self._is_dropping = False
                    lost += self._count_lost()
                return events, False, lost
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._is_dropping = True
                # The error may have other reasons than a full buffer, which have no counter.
                lost += max(1, self._count_lost())
                continue
            if not data:
                return events, False, lost
            _decode_events(data, events)
        return events, True, lost

    def _count_lost(self) -> int:
        """Return how many events the kernel dropped since the last call."""
        total = self._lost_before
        if self._is_of_kernel:
            with suppress(OSError, struct.error):
                info = self.socket.getsockopt(
                    socket.SOL_SOCKET, _MEMORY_INFO, _MEMORY_INFO_FORMAT.size
                )
                total = _MEMORY_INFO_FORMAT.unpack(info)[8]
        lost = (total - self._lost_before) & 0xFFFFFFFF
        self._lost_before = total
        return lost


def _decode_events(data: bytes, events: list[ConntrackEvent]) -> None:
    """Append the events of a datagram; what is no event of a connection is skipped."""
    with suppress(OSError):
        for kind, _, _, body in messages_of(data):
            if kind not in (_NEW_KIND, _END_KIND):
                continue
            connection = decode_connection(body, is_new=kind == _NEW_KIND)
            if connection is not None:
                events.append(ConntrackEvent(kind == _END_KIND, connection))


def walk_connections(
    *, opened: socket.socket | None = None, seconds: float = 10.0
) -> Iterator[list[TrackedConnection]]:
    """Yield all connections that the kernel tracks, of all families, some at a time.

    Must start in the namespace that is meant; raises OSError. Connections that begin or end
    meanwhile may be listed or not.
    """
    netlink = NetlinkSocket(NETFILTER, seconds=seconds, opened=opened)

    def walk() -> Iterator[list[TrackedConnection]]:
        try:
            parts = netlink.dump_parts(
                GET_CONNECTIONS, netfilter_head(socket.AF_UNSPEC), what="connections"
            )
            for part in parts:
                yield [
                    connection
                    for _, body in part
                    if (connection := decode_connection(body)) is not None
                ]
        finally:
            netlink.close()

    return walk()


class ConntrackState(NamedTuple):
    """Settings and gauges of connection tracking in a network namespace."""

    accounts: bool
    """Whether new connections get counters of bytes."""
    number: int
    most: int
    dropped: int
    """Connections that found no room in the table, since the start of the kernel."""
    reports_events: bool
    """Whether the kernel reports new connections that begin and end."""


def read_conntrack_state() -> ConntrackState:
    """Return the state in the namespace of the calling thread; raises OSError.

    FileNotFoundError if the kernel has no connection tracking (loaded).
    """
    return ConntrackState(
        _read_number(CONNTRACK_ACCT) != 0,
        _read_number(CONNTRACK_COUNT),
        _read_number(CONNTRACK_MAX),
        _read_drops(),
        _reports_events(),
    )


def _reports_events() -> bool:
    try:
        # NB: 2 is on for connections that begin while a program listens.
        return _read_number(CONNTRACK_EVENTS) != 0
    except FileNotFoundError:
        # A kernel without CONFIG_NF_CONNTRACK_EVENTS.
        return False


def enable_accounting() -> None:
    """Let new connections get counters, in the namespace of the calling thread; raises OSError."""
    Path("/proc/sys", CONNTRACK_ACCT).write_text("1")


def _read_number(name: str) -> int:
    text = Path("/proc/sys", name).read_text()
    try:
        return int(text)
    except ValueError:
        raise OSError(errno.EBADMSG, f"{name} is no number") from None


def _read_drops() -> int:
    """Return the sum of all processors; 0 if the kernel shows none."""
    try:
        lines = Path("/proc/thread-self/net/stat/nf_conntrack").read_text().splitlines()
    except OSError:
        return 0
    names = lines[0].split() if lines else []
    column = names.index("drop") if "drop" in names else len(names)
    total = 0
    for line in lines[1:]:
        values = line.split()
        if column < len(values):
            with suppress(ValueError):
                total += int(values[column], 16)
    return total
