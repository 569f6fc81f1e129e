"""Writes to the kernel's table of connections, by netlink: entries without traffic, and none."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from keepclose.system.conntrack import (
    CTA_ORIGINAL,
    CTA_REPLY,
    CTA_STATUS,
    IP_DESTINATIONS,
    IP_SOURCES,
    PROTO_DESTINATION_PORT,
    PROTO_NUMBER,
    PROTO_SOURCE_PORT,
    TUPLE_IP,
    TUPLE_PROTO,
)
from keepclose.system.netlink import (
    NETFILTER,
    NetlinkSocket,
    encode_attribute,
    encode_message,
    encode_nested,
    netfilter_head,
)
from support.netns import Namespace

_CREATE_CONNECTION, _DELETE_CONNECTIONS = 0x0100, 0x0102
_REQUEST, _EXCLUSIVE, _CREATE = 0x1, 0x200, 0x400
_TIMEOUT: Final = 7
# Answered, assured and confirmed: the kernel never removes such an entry to make room.
_STATUS: Final = 2 | 4 | 8
_UDP: Final = 17
_AT_ONCE: Final = 256
_PORTS: Final = 60_000


def flush_connections(namespace: Namespace) -> None:
    """End all connections, as far as the kernel's table goes."""

    def flush() -> None:
        netlink = NetlinkSocket(NETFILTER)
        try:
            netlink.send_batch(
                encode_message(
                    _DELETE_CONNECTIONS, _REQUEST, netfilter_head(socket.AF_INET), sequence=1
                )
            )
        finally:
            netlink.close()

    namespace.do(flush)


def add_connections(namespace: Namespace, number: int, *, source: str, destination: str) -> None:
    """Add answered UDP connections without traffic, until the table is full or all are there."""
    client = int(ipaddress.ip_address(source))

    def add() -> None:
        netlink = NetlinkSocket(NETFILTER)
        try:
            for start in range(0, number, _AT_ONCE):
                batch = [
                    _entry(client + index // _PORTS, 1024 + index % _PORTS, destination)
                    for index in range(start, min(number, start + _AT_ONCE))
                ]
                netlink.send_batch(b"".join(batch))
        finally:
            netlink.close()

    namespace.do(add)


def _entry(client: int, port: int, destination: str) -> bytes:
    here, there = client.to_bytes(4, "big"), ipaddress.ip_address(destination).packed
    body = (
        netfilter_head(socket.AF_INET)
        + encode_nested(CTA_ORIGINAL, _tuple(here, port, there, 9))
        + encode_nested(CTA_REPLY, _tuple(there, 9, here, port))
        + encode_attribute(CTA_STATUS, _STATUS.to_bytes(4, "big"))
        + encode_attribute(_TIMEOUT, (600).to_bytes(4, "big"))
    )
    return encode_message(_CREATE_CONNECTION, _REQUEST | _CREATE | _EXCLUSIVE, body)


def _tuple(source: bytes, source_port: int, destination: bytes, port: int) -> bytes:
    addresses = encode_attribute(IP_SOURCES[0], source) + encode_attribute(
        IP_DESTINATIONS[0], destination
    )
    protocol = (
        encode_attribute(PROTO_NUMBER, bytes((_UDP,)))
        + encode_attribute(PROTO_SOURCE_PORT, source_port.to_bytes(2, "big"))
        + encode_attribute(PROTO_DESTINATION_PORT, port.to_bytes(2, "big"))
    )
    return encode_nested(TUPLE_IP, addresses) + encode_nested(TUPLE_PROTO, protocol)
