"""Netlink messages of nf_tables for elements of sets and maps, as bytes.

libnftables parses text, reads all tables of the host and evaluates before it sends, which takes
about 15 µs for each element and grows with the tables of other programs. Elements are nearly all
that a proxy writes, and their binary form is small: the parts of the key, each padded to four
bytes, and for a map the new address and port or a verdict. Only this module knows that form. It
never decides which elements there are: `ruleset` does. An element without a binary form is written
as text.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final

from keepclose.ruleset.commands import AddElement, DeleteElement, Transaction
from keepclose.ruleset.names import plain_comment
from keepclose.ruleset.statements import DnatTarget, Drop, Goto
from keepclose.ruleset.tables import ChainVerdict, ElementKey
from keepclose.system.netlink import (
    CREATE,
    NESTED,
    attribute_head,
    encode_attribute,
    encode_message,
    encode_nested,
    encode_string,
    netfilter_head,
)

# The subsystem nf_tables has the number 10, which is the upper byte of its kinds of messages.
_SUBSYSTEM: Final = 10
NEW_ELEMENT, GET_ELEMENT = 0xA0C, 0xA0D
_DELETE_ELEMENT: Final = 0xA0E
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_TABLE, _SET, _ELEMENTS = 1, 2, 3
_LISTED: Final = 1
_KEY, _DATA, _USER_DATA = 1, 2, 6
_VALUE, _VERDICT = 1, 2
_CODE, _CHAIN = 1, 2
_GOTO, _DROP = -4, 0
# The length field of an attribute has two bytes.
_MAX_BYTES: Final = 60_000
_PROTOCOLS: Final = {
    "tcp": b"\x06\0\0\0",
    "udp": b"\x11\0\0\0",
    "sctp": b"\x84\0\0\0",
}
_NAMES: Final = {number: name for name, number in _PROTOCOLS.items()}
_ADDRESSES: Final = {"ip": socket.AF_INET, "ip6": socket.AF_INET6}

ElementCommand = AddElement | DeleteElement


class NoBinaryFormError(Exception):
    """An element contains something that only nft can parse."""


def encode_batch(transaction: Transaction) -> bytes:
    """Return one batch, which the kernel applies all or nothing; b"" for no elements.

    Raises NoBinaryFormError.
    """
    commands = transaction.elements
    if not commands:
        return b""
    ip, _, table = transaction.table.partition(" ")
    if ip not in _ADDRESSES:
        raise NoBinaryFormError(transaction.table)
    family = _ADDRESSES[ip]
    batch_head = netfilter_head(socket.AF_UNSPEC, resource=_SUBSYSTEM)
    parts = [encode_message(_BATCH_BEGIN, 0, batch_head)]
    # NB: the order matters: one element may be deleted before another is added with its key.
    for (is_added, container), group in groupby(commands, _kind):
        kind, flags = (NEW_ELEMENT, CREATE) if is_added else (_DELETE_ELEMENT, 0)
        head = container_body(ip, table, container)
        elements = _fill_attributes([_element(command, ip, family) for command in group])
        bodies = [head + encode_nested(_ELEMENTS, part) for part in elements]
        parts += [encode_message(kind, flags, body) for body in bodies]
    parts.append(encode_message(_BATCH_END, 0, batch_head))
    return b"".join(parts)


def encode_key(key: ElementKey, ip: str) -> bytes:
    """Return the key of an element in the kernel's form; raises NoBinaryFormError.

    One or two addresses come first, then a protocol and a port, then the number of an endpoint or
    its address and port; a key may lack any of them.
    """
    return _key(key, _ADDRESSES[ip])


def decode_key(key: bytes, ip: str, *, has_endpoint: bool = False) -> ElementKey:
    """Return the parts of a key that has a protocol; () for any other bytes.

    The inverse of `encode_key`, except for keys of two addresses before the protocol. Keys that end
    in the address and port of an endpoint are as long as others, so the caller must know.
    """
    size = 4 if ip == "ip" else 16
    if has_endpoint:
        used, endpoint = key[: -size - 4], key[-size - 4 :]
        parts = decode_key(used, ip)
        # NB: the rest may have the length of a key with a number, which has no endpoint.
        if len(used) not in (8, size + 8) or not parts:
            return ()
        port = str(int.from_bytes(endpoint[-4:-2], "big"))
        return (*parts, socket.inet_ntop(_ADDRESSES[ip], endpoint[:size]), port)
    address: ElementKey = ()
    if len(key) >= size + 8:
        address, key = (socket.inet_ntop(_ADDRESSES[ip], key[:size]),), key[size:]
    protocol = _NAMES.get(key[:4])
    if protocol is None or len(key) not in (8, 12):
        return ()
    port = str(int.from_bytes(key[4:6], "big"))
    number = (str(int.from_bytes(key[8:12], sys.byteorder)),) if len(key) == 12 else ()
    return (*address, protocol, port, *number)


@lru_cache(maxsize=64)
def container_body(ip: str, table: str, container: str) -> bytes:
    """Return the body of a request for all elements of a set or map."""
    names = encode_string(_TABLE, table) + encode_string(_SET, container)
    return netfilter_head(_ADDRESSES[ip]) + names


def element_bodies(ip: str, table: str, container: str, keys: Sequence[ElementKey]) -> list[bytes]:
    """Return the bodies of requests for single elements; raises NoBinaryFormError."""
    family, head = _ADDRESSES[ip], container_body(ip, table, container)
    elements = [encode_nested(_LISTED, _value(_KEY, _key(key, family))) for key in keys]
    return [head + encode_nested(_ELEMENTS, element) for element in elements]


def _kind(command: ElementCommand) -> tuple[bool, str]:
    if isinstance(command, AddElement):
        return True, command.element.container
    return False, command.container


def _fill_attributes(elements: Sequence[bytes]) -> list[bytes]:
    """Return the elements joined, as many as fit into each attribute."""
    if len(elements) == 1:
        return [elements[0]]
    joined: list[bytes] = []
    start = size = 0
    for at, element in enumerate(elements):
        if size + len(element) > _MAX_BYTES:
            joined.append(b"".join(elements[start:at]))
            start, size = at, 0
        size += len(element)
    joined.append(b"".join(elements[start:]))
    return joined


def _element(command: ElementCommand, ip: str, family: int) -> bytes:
    if isinstance(command, DeleteElement):
        return encode_attribute(_LISTED | NESTED, _value(_KEY, _key(command.key, family)))
    element = command.element
    body = _value(_KEY, _key(element.key, family))
    if element.verdict is not None:
        body += _data(element.verdict, ip, family)
    if element.comment:
        comment = plain_comment(element.comment).encode() + b"\0"
        body += encode_attribute(_USER_DATA, bytes((0, len(comment))) + comment)
    return encode_attribute(_LISTED | NESTED, body)


def _data(verdict: ChainVerdict, ip: str, family: int) -> bytes:
    if isinstance(verdict, DnatTarget):
        return _value(_DATA, _address(verdict.address, family) + _port(str(verdict.port)))
    if isinstance(verdict, Goto):
        return _verdict(_GOTO, verdict.chain)
    if isinstance(verdict, Drop):
        return _verdict(_DROP, "")
    raise NoBinaryFormError(verdict.text(ip))


@lru_cache(maxsize=4096)
def _verdict(code: int, chain: str) -> bytes:
    body = encode_attribute(_CODE, struct.pack(">i", code))
    if chain:
        body += encode_string(_CHAIN, chain)
    return encode_nested(_DATA, encode_nested(_VERDICT, body))


def _key(key: ElementKey, family: int) -> bytes:
    match key:
        case (address, protocol, port, number) if protocol in _PROTOCOLS:
            return _address(address, family) + _PROTOCOLS[protocol] + _port(port) + _number(number)
        case (first, second, protocol, port) if protocol in _PROTOCOLS:
            source, destination = _address(first, family), _address(second, family)
            return source + destination + _PROTOCOLS[protocol] + _port(port)
        case (address, protocol, port) if protocol in _PROTOCOLS:
            return _address(address, family) + _PROTOCOLS[protocol] + _port(port)
        case (*used, address, port) if used:
            return _key(tuple(used), family) + _address(address, family) + _port(port)
        case (protocol, port) if protocol in _PROTOCOLS:
            return _PROTOCOLS[protocol] + _port(port)
        case (address,):
            return _address(address, family)
    raise NoBinaryFormError(" . ".join(key))


def _address(text: str, family: int) -> bytes:
    try:
        return socket.inet_pton(family, text)
    except (OSError, ValueError):
        raise NoBinaryFormError(text) from None


@lru_cache(maxsize=1 << 16)
def _port(text: str) -> bytes:
    try:
        return struct.pack(">HH", int(text), 0)
    except (struct.error, ValueError):
        raise NoBinaryFormError(text) from None


@lru_cache(maxsize=1 << 16)
def _number(text: str) -> bytes:
    try:
        # NB: numgen draws numbers in the host's byte order.
        return struct.pack("=I", int(text))
    except (struct.error, ValueError):
        raise NoBinaryFormError(text) from None


def _value(kind: int, value: bytes) -> bytes:
    # Keys and addresses are already padded.
    size = len(value)
    return _value_head(kind, size) + value


@lru_cache(maxsize=64)
def _value_head(kind: int, size: int) -> bytes:
    return attribute_head(kind | NESTED, 4 + size) + attribute_head(_VALUE, size)
