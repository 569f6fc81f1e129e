"""SCTP associations by raw sockets, for kernels that track SCTP but have no sockets of it.

Packets are whole and have a valid checksum, as connection tracking drops others (RFC 9260).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

PROTOCOL: Final = 132
DATA, INIT, INIT_ACK, ABORT, SHUTDOWN, SHUTDOWN_ACK = 0, 1, 2, 6, 7, 8
COOKIE_ECHO, COOKIE_ACK, SHUTDOWN_COMPLETE = 10, 11, 14
HEAD_BYTES: Final = 12
_HEAD: Final = struct.Struct(">HHI")
_CHUNK: Final = struct.Struct(">BBH")
_INIT: Final = struct.Struct(">IIHHI")
_CASTAGNOLI: Final = 0x82F63B78


class Packet(NamedTuple):
    """A packet as the receiver sees it."""

    address: str
    source_port: int
    destination_port: int
    tag: int
    chunk: int
    body: bytes
    ip_bytes: int
    """The size of the whole IP packet."""


class Side:
    """One end of an association: a raw socket, its port and its tag."""

    def __init__(self, opened: socket.socket, port: int, tag: int) -> None:
        """Take a raw socket for SCTP."""
        self.socket, self.port, self.tag = opened, port, tag
        self.peer_tag = 0
        self.sent_bytes = 0
        """Bytes of all IP packets that were sent."""
        opened.settimeout(60)

    def send(self, address: str, port: int, chunk: int, body: bytes = b"") -> None:
        """Send one packet with one chunk."""
        tag = 0 if chunk == INIT else self.peer_tag
        content = _CHUNK.pack(chunk, 3 if chunk == DATA else 0, _CHUNK.size + len(body)) + body
        packet = encode_packet(self.port, port, tag, content + bytes(-len(body) % 4))
        self.socket.sendto(packet, (address, 0))
        self.sent_bytes += 20 + len(packet)

    def receive(self) -> Packet:
        """Return the next packet for this port."""
        while True:
            data, sender = self.socket.recvfrom(65_535)
            head = (data[0] & 15) * 4
            source, destination, tag = _HEAD.unpack_from(data, head)
            if destination == self.port:
                chunk, _, size = _CHUNK.unpack_from(data, head + HEAD_BYTES)
                start = head + HEAD_BYTES + _CHUNK.size
                body = data[start : start + size - _CHUNK.size]
                return Packet(sender[0], source, destination, tag, chunk, body, len(data))


def init_body(tag: int) -> bytes:
    """Return the body of INIT and INIT ACK."""
    return _INIT.pack(tag, 65_536, 1, 1, tag)


def open_association(client: Side, server: Side, address: str, port: int) -> Packet:
    """Let the client open an association; return its first packet as the server received it."""
    client.send(address, port, INIT, init_body(client.tag))
    first = server.receive()
    server.peer_tag = client.tag
    reply = (first.address, first.source_port)
    server.send(*reply, INIT_ACK, init_body(server.tag) + struct.pack(">HH4s", 7, 8, b"cook"))
    client.receive()
    client.peer_tag = server.tag
    for side, other, chunk, body in (
        (client, server, COOKIE_ECHO, b"cook"),
        (server, client, COOKIE_ACK, b""),
    ):
        side.send(*((address, port) if side is client else reply), chunk, body)
        assert other.receive().chunk == chunk
    return first


def encode_packet(source: int, destination: int, tag: int, content: bytes) -> bytes:
    """Return a packet with its checksum."""
    head = _HEAD.pack(source, destination, tag)
    return head + struct.pack("<I", crc32c((head, bytes(4), content))) + content


def crc32c(parts: Sequence[bytes]) -> int:
    """Return the checksum of the parts, one after the other."""
    value = 0xFFFFFFFF
    for byte in b"".join(parts):
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
    return value ^ 0xFFFFFFFF
