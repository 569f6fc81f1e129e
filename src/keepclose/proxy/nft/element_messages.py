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

_HEADER: Final = struct.Struct("=IHHII")
_FAMILY: Final = struct.Struct(">BBH")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NESTED: Final = 0x8000
_SUBSYSTEM: Final = 10
_NEW_ELEMENT: Final = _SUBSYSTEM << 8 | 12
_DELETE_ELEMENT: Final = _SUBSYSTEM << 8 | 14
_GET_ELEMENT: Final = _SUBSYSTEM << 8 | 13
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_REQUEST, _CREATE, _DUMP = 1, 0x400, 0x300
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
    parts = [_message(_BATCH_BEGIN, 0, socket.AF_UNSPEC, b"", resource=_SUBSYSTEM)]
    table_name = _attribute(_TABLE, _string(table))
    # NB: the order matters: one element may be deleted before another is added with its key.
    for (is_added, container), group in groupby(commands, _kind):
        kind, flags = (_NEW_ELEMENT, _CREATE) if is_added else (_DELETE_ELEMENT, 0)
        head = table_name + _attribute(_SET, _string(container))
        for elements in _fill_attributes([_element(command, ip, family) for command in group]):
            body = head + _attribute(_ELEMENTS | _NESTED, elements)
            parts.append(_message(kind, flags, family, body))
    parts.append(_message(_BATCH_END, 0, socket.AF_UNSPEC, b"", resource=_SUBSYSTEM))
    return b"".join(parts)


def encode_key(key: ElementKey, ip: str) -> bytes:
    """Return the key of an element in the kernel's form; raises NoBinaryFormError.

    One or two addresses come first, then a protocol and a port, then the number of an endpoint; a
    key may lack any of them.
    """
    return _key(key, _ADDRESSES[ip])


def decode_key(key: bytes, ip: str) -> ElementKey:
    """Return the parts of a key that has a protocol; () for any other bytes.

    The inverse of `encode_key`, except for keys of two addresses.
    """
    size = 4 if ip == "ip" else 16
    address: ElementKey = ()
    if len(key) >= size + 8:
        address, key = (socket.inet_ntop(_ADDRESSES[ip], key[:size]),), key[size:]
    protocol = _NAMES.get(key[:4])
    if protocol is None or len(key) not in (8, 12):
        return ()
    port = str(int.from_bytes(key[4:6], "big"))
    number = (str(int.from_bytes(key[8:12], sys.byteorder)),) if len(key) == 12 else ()
    return (*address, protocol, port, *number)


def encode_dump(ip: str, table: str, container: str) -> bytes:
    """Return the request for all elements of a set or map."""
    body = _attribute(_TABLE, _string(table)) + _attribute(_SET, _string(container))
    return _message(_GET_ELEMENT, _DUMP, _ADDRESSES[ip], body)


def encode_get(ip: str, table: str, container: str, keys: Sequence[ElementKey]) -> bytes:
    """Return requests for single elements, one message each; raises NoBinaryFormError."""
    family = _ADDRESSES[ip]
    head = _attribute(_TABLE, _string(table)) + _attribute(_SET, _string(container))
    parts = []
    for key in keys:
        element = _attribute(_LISTED | _NESTED, _value(_KEY, _key(key, family)))
        body = head + _attribute(_ELEMENTS | _NESTED, element)
        parts.append(_message(_GET_ELEMENT, 0, family, body))
    return b"".join(parts)


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
        return _attribute(_LISTED | _NESTED, _value(_KEY, _key(command.key, family)))
    element = command.element
    body = _value(_KEY, _key(element.key, family))
    if element.verdict is not None:
        body += _data(element.verdict, ip, family)
    if element.comment:
        comment = _string(plain_comment(element.comment))
        body += _attribute(_USER_DATA, bytes((0, len(comment))) + comment)
    return _attribute(_LISTED | _NESTED, body)


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
    body = _attribute(_CODE, struct.pack(">i", code))
    if chain:
        body += _attribute(_CHAIN, _string(chain))
    return _attribute(_DATA | _NESTED, _attribute(_VERDICT | _NESTED, body))


def _key(key: ElementKey, family: int) -> bytes:
    match key:
        case (address, protocol, port, number) if protocol in _PROTOCOLS:
            return _address(address, family) + _PROTOCOLS[protocol] + _port(port) + _number(number)
        case (first, second, protocol, port) if protocol in _PROTOCOLS:
            source, destination = _address(first, family), _address(second, family)
            return source + destination + _PROTOCOLS[protocol] + _port(port)
        case (address, protocol, port) if protocol in _PROTOCOLS:
            return _address(address, family) + _PROTOCOLS[protocol] + _port(port)
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
    return _ATTRIBUTE.pack(8 + size, kind | _NESTED) + _ATTRIBUTE.pack(4 + size, _VALUE)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def _message(kind: int, flags: int, family: int, body: bytes, *, resource: int = 0) -> bytes:
    length = _HEADER.size + _FAMILY.size + len(body)
    return (
        _HEADER.pack(length, kind, _REQUEST | flags, 0, 0)
        + _FAMILY.pack(family, 0, resource)
        + body
    )
