"""Reads counters of a table from the kernel over netlink: named counters and those of elements.

Through libnftables the same reply takes ten times as long in a large table, and writes would have
to wait for it. The calls block, so they run in a thread of their own; a socket belongs to the
network namespace of that thread.

The kernel lists tens of thousands of elements for a large table. Elements of one length have one
shape, so the positions of key, data and packets are found once for each length.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from keepclose.kube.clock import Clock
from keepclose.proxy.nft.element_messages import encode_dump, encode_get
from keepclose.proxy.nft.work_thread import StuckError, WorkThread
from keepclose.proxy.nft.writer import NftFamily
from keepclose.ruleset.tables import ElementKey

_LIMIT_S: Final = 10.0
_NETLINK_NETFILTER: Final = 12
_GET_OBJECTS: Final = 10 << 8 | 19
_NEW_ELEMENT: Final = 10 << 8 | 12
_REQUEST_DUMP: Final = 0x301
_ERROR, _DONE = 2, 3
# NB: attributes of named objects and those of elements have different numbers.
_TABLE, _NAME, _TYPE, _OBJECT_DATA = 1, 2, 3, 4
_ELEMENTS: Final = 3
_KEY, _ELEMENT_DATA, _EXPRESSION, _EXPRESSIONS = 1, 2, 7, 11
_COUNTER: Final = 1
_PACKETS: Final = 2
_TYPE_MASK: Final = 0x3FFF
_HEADER: Final = struct.Struct("=IHHII")
_FAMILY: Final = struct.Struct("=BBH")
_FAMILY_SIZE: Final = 4
_ATTRIBUTE: Final = struct.Struct("=HH")
_CODE: Final = struct.Struct("=i")
_RECEIVE_BYTES: Final = 1 << 18
_KEYS_PER_REQUEST: Final = 500


class ElementCount(NamedTuple):
    """The packets of an element; its data distinguishes it from a later element."""

    data: bytes
    packets: int


ElementCounts = dict[bytes, ElementCount]
"""Counters by the key of the element, in the kernel's form."""


class CounterReader(Protocol):
    """Reads the counters of one network namespace."""

    async def read(self, family: NftFamily, table: str) -> dict[str, int]:
        """Return packets by counter name, none without a table; raises OSError."""
        ...

    async def read_elements(
        self,
        family: NftFamily,
        table: str,
        container: str,
        keys: Sequence[ElementKey] | None = None,
    ) -> ElementCounts:
        """Return the counters of all elements of a set or map, or of some; raises OSError."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


class KernelCounters:
    """Reads the counters from the kernel, in a thread of its own."""

    def __init__(self, *, namespace: Path | None = None, clock: Clock | None = None) -> None:
        self._thread = WorkThread("counters", namespace=namespace, clock=clock)

    async def read(self, family: NftFamily, table: str) -> dict[str, int]:
        """Return packets by counter name; raises OSError."""
        try:
            return await self._thread.run(
                lambda: dump_counters(family, table), limit=_LIMIT_S, what="reading counters"
            )
        except StuckError as error:
            raise TimeoutError(str(error)) from None

    async def read_elements(
        self,
        family: NftFamily,
        table: str,
        container: str,
        keys: Sequence[ElementKey] | None = None,
    ) -> ElementCounts:
        """Return the counters of all elements of a set or map, or of some; raises OSError."""

        def read() -> ElementCounts:
            if keys is None:
                return read_counts(family, table, container)
            return read_some_counts(family, table, container, keys)

        try:
            return await self._thread.run(read, limit=_LIMIT_S, what="reading counters")
        except StuckError as error:
            raise TimeoutError(str(error)) from None

    async def close(self) -> None:
        """Stop the thread."""
        self._thread.stop()


def dump_counters(family: NftFamily, table: str) -> dict[str, int]:
    """Return packets by counter name in the calling thread's namespace; raises OSError.

    Empty if the table does not exist.
    """
    number = socket.AF_INET if family == "ip" else socket.AF_INET6
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netlink:
        netlink.settimeout(_LIMIT_S)
        netlink.bind((0, 0))
        body = _FAMILY.pack(number, 0, 0) + _attribute(_TABLE, table.encode() + b"\0")
        body += _attribute(_TYPE, struct.pack(">I", _COUNTER))
        size = _HEADER.size + len(body)
        netlink.send(_HEADER.pack(size, _GET_OBJECTS, _REQUEST_DUMP, 1, 0) + body)
        packets: dict[str, int] = {}
        while not _read_named_counters(netlink.recv(_RECEIVE_BYTES), packets):
            pass
    return packets


def read_counts(family: NftFamily, table: str, container: str) -> ElementCounts:
    """Return the counters of all elements; none without such a set or map. Raises OSError."""
    with _open() as netlink:
        netlink.send(encode_dump(family, table, container))
        counts: ElementCounts = {}
        while not _read_element_counters(netlink.recv(_RECEIVE_BYTES), counts):
            pass
    return counts


def read_some_counts(
    family: NftFamily, table: str, container: str, keys: Sequence[ElementKey]
) -> ElementCounts:
    """Return the counters of those of the elements that exist; raises OSError."""
    counts: ElementCounts = {}
    with _open() as netlink:
        for start in range(0, len(keys), _KEYS_PER_REQUEST):
            batch = keys[start : start + _KEYS_PER_REQUEST]
            netlink.send(encode_get(family, table, container, batch))
            # The kernel replies to each key with one message: an element, or an error.
            replies = 0
            while replies < len(batch):
                data = netlink.recv(_RECEIVE_BYTES)
                replies += sum(1 for _ in _messages(data))
                _read_element_counters(data, counts)
    return counts


def read_error(data: bytes, start: int) -> int:
    """Return the code of an error message; raises OSError if the message is too short."""
    if start + _CODE.size > len(data):
        raise OSError(errno.EBADMSG, "the kernel's reply is cut short")
    code: int = _CODE.unpack_from(data, start)[0]
    return code


def _read_named_counters(data: bytes, by_name: dict[str, int]) -> bool:
    """Read the named counters of one reply; return whether it was the last."""
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, position)
        if kind == _DONE or length < _HEADER.size:
            return True
        if kind == _ERROR:
            code = read_error(data, position + _HEADER.size)
            if code in (0, -errno.ENOENT):
                return True
            raise OSError(-code, "the kernel refuses to list counters")
        start = position + _HEADER.size + _FAMILY.size
        name, packets = "", 0
        for attribute, value in _attributes(data, start, position + length):
            if attribute == _NAME:
                name = value.rstrip(b"\0").decode(errors="replace")
            elif attribute == _OBJECT_DATA:
                for inner_attribute, number in _attributes(value, 0, len(value)):
                    if inner_attribute == _PACKETS:
                        packets = int.from_bytes(number, "big")
        if name:
            by_name[name] = packets
        position += (length + 3) & ~3
    return False


def _read_element_counters(data: bytes, counts: ElementCounts) -> bool:
    """Read the elements of one reply; return whether it was the last of a listing."""
    positions: dict[int, tuple[slice, slice, slice]] = {}
    for kind, start, end in _messages(data):
        if kind == _DONE:
            return True
        if kind == _ERROR:
            code = read_error(data, start)
            if code in (0, -errno.ENOENT):
                return True
            raise OSError(-code, "the kernel refuses to list elements")
        if kind != _NEW_ELEMENT:
            continue
        for attribute, inner, until in _attribute_bounds(data, start + _FAMILY_SIZE, end):
            if attribute != _ELEMENTS:
                continue
            for _, first, last in _attribute_bounds(data, inner, until):
                slices = positions.get(last - first)
                if slices is None:
                    slices = positions[last - first] = _find_positions(data, first, last)
                key, value, packets = slices
                element = data[first:last]
                number = int.from_bytes(element[packets], "big")
                counts[element[key]] = ElementCount(element[value], number)
    return False


def _find_positions(data: bytes, first: int, last: int) -> tuple[slice, slice, slice]:
    """Return the positions of key, data and packets in an element."""
    empty = slice(0, 0)
    key = value = packets = empty
    for kind, start, end in _attribute_bounds(data, first, last):
        if kind == _KEY:
            key = slice(start + 4 - first, end - first)
        elif kind == _ELEMENT_DATA:
            value = slice(start - first, end - first)
        elif kind == _EXPRESSION:
            packets = _find_packets(data, start, end, first)
        elif kind == _EXPRESSIONS:
            for _, inner, until in _attribute_bounds(data, start, end):
                packets = _find_packets(data, inner, until, first)
    return key, value, packets


def _find_packets(data: bytes, start: int, end: int, first: int) -> slice:
    for kind, inner, until in _attribute_bounds(data, start, end):
        # An expression has a name and data; the data of a counter are bytes and packets.
        if kind == 2:
            for number, at, to in _attribute_bounds(data, inner, until):
                if number == _PACKETS:
                    return slice(at - first, to - first)
    return slice(0, 0)


def _open() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    try:
        netlink.settimeout(_LIMIT_S)
        netlink.bind((0, 0))
    except BaseException:
        netlink.close()
        raise
    return netlink


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each message, and where its body starts and ends."""
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, position)
        if length < _HEADER.size:
            return
        yield kind, position + _HEADER.size, position + length
        position += (length + 3) & ~3


def _attributes(data: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    # NB: the length is that of the sent message, which may exceed the received data.
    end = min(end, len(data))
    while start + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3


def _attribute_bounds(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each attribute, and where its value starts and ends."""
    # NB: the length is that of the sent message, which may exceed the received data.
    end = min(end, len(data))
    while start + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, start + _ATTRIBUTE.size, start + length
        start += (length + 3) & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length % 4)
