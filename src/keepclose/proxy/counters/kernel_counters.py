"""Named counters of a table, read from the kernel over netlink, past whoever writes rules.

Through libnftables the same answer takes ten times as long in a large table, and writes would have
to wait for it. Blocking, so it is done in a thread of its own; the socket belongs to the network
namespace of that thread.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from keepclose.kube.clock import Clock
from keepclose.proxy.nft.element_messages import encode_listing, encode_question
from keepclose.proxy.nft.writer import NftFamily
from keepclose.proxy.nft.writer_thread import StuckError, WorkThread
from keepclose.ruleset.tables import ElementKey

_LIMIT_S: Final = 10.0
_NETLINK_NETFILTER: Final = 12
_GET_OBJECTS: Final = 10 << 8 | 19
_REQUEST_DUMP: Final = 0x301
_ERROR, _DONE = 2, 3
_TABLE, _NAME, _TYPE, _DATA = 1, 2, 3, 4
_COUNTER: Final = 1
_PACKETS: Final = 2
_TYPE_MASK: Final = 0x3FFF
_HEADER: Final = struct.Struct("=IHHII")
_FAMILY: Final = struct.Struct("=BBH")
_ATTRIBUTE: Final = struct.Struct("=HH")
_RECEIVED: Final = 1 << 18
_NEW_ELEMENT: Final = 10 << 8 | 12
_ERROR, _DONE = 2, 3
_CODE: Final = struct.Struct("=i")
_FAMILY_SIZE: Final = 4
_ELEMENTS: Final = 3
_KEY, _DATA, _EXPRESSION, _EXPRESSIONS = 1, 2, 7, 11
_AT_ONCE: Final = 500


class CounterReader(Protocol):
    """Reads the counters of one network namespace."""

    async def read(self, family: NftFamily, table: str) -> dict[str, int]:
        """Return packets by the name of the counter; none without a table. Raises OSError."""
        ...

    async def read_elements(
        self,
        family: NftFamily,
        table: str,
        container: str,
        keys: Sequence[ElementKey] | None = None,
    ) -> Counts:
        """Return the counters of all elements of a set or map, or of some; raises OSError."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class KernelCounters:
    """Asks the kernel."""

    def __init__(self, *, namespace: Path | None = None, clock: Clock | None = None) -> None:
        self._thread = WorkThread("counters", namespace=namespace, clock=clock)

    async def read(self, family: NftFamily, table: str) -> dict[str, int]:
        """Return packets by the name of the counter; raises OSError."""
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
    ) -> Counts:
        """Return the counters of all elements of a set or map, or of some; raises OSError."""

        def read() -> Counts:
            if keys is None:
                return read_counts(family, table, container)
            return read_some_counts(family, table, container, keys)

        try:
            return await self._thread.run(read, limit=_LIMIT_S, what="reading counters")
        except StuckError as error:
            raise TimeoutError(str(error)) from None

    async def close(self) -> None:
        """Let go of the thread."""
        self._thread.stop()


def dump_counters(family: NftFamily, table: str) -> dict[str, int]:
    """Return packets by the name of the counter in the calling thread's namespace.

    None when there is no such table. Raises OSError.
    """
    number = socket.AF_INET if family == "ip" else socket.AF_INET6
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as one:
        one.settimeout(_LIMIT_S)
        one.bind((0, 0))
        body = _FAMILY.pack(number, 0, 0) + _attribute(_TABLE, table.encode() + b"\0")
        body += _attribute(_TYPE, struct.pack(">I", _COUNTER))
        size = _HEADER.size + len(body)
        one.send(_HEADER.pack(size, _GET_OBJECTS, _REQUEST_DUMP, 1, 0) + body)
        found: dict[str, int] = {}
        while not _take(one.recv(_RECEIVED), found):
            pass
    return found


def _take(data: bytes, found: dict[str, int]) -> bool:
    """Read one answer; return whether it was the last."""
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, position)
        if kind == _DONE or length < _HEADER.size:
            return True
        if kind == _ERROR:
            code = read_error(data, position + _HEADER.size)
            if code in (0, -errno.ENOENT):
                return True
            raise OSError(-code, "the kernel does not list counters")
        start = position + _HEADER.size + _FAMILY.size
        name, packets = "", 0
        for kind_of, value in _attributes(data, start, position + length):
            if kind_of == _NAME:
                name = value.rstrip(b"\0").decode(errors="replace")
            elif kind_of == _DATA:
                for inner, number in _attributes(value, 0, len(value)):
                    if inner == _PACKETS:
                        packets = int.from_bytes(number, "big")
        if name:
            found[name] = packets
        position += (length + 3) & ~3
    return False


def _attributes(data: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    # NB: a length says what was sent, which may be more than what was received.
    end = min(end, len(data))
    while start + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length % 4)


class ElementCount(NamedTuple):
    """How many packets were looked up with an element; its data tells it from a later one."""

    data: bytes
    packets: int


Counts = dict[bytes, ElementCount]
"""By the key as the kernel holds it."""


def read_counts(family: NftFamily, table: str, container: str) -> Counts:
    """Return the counters of all elements; none where there is no such set or map.

    Raises OSError.
    """
    with _open() as wire:
        wire.send(encode_listing(family, table, container))
        counts: Counts = {}
        while not _elementcounts_take(wire.recv(_RECEIVED), counts):
            pass
    return counts


def read_some_counts(
    family: NftFamily, table: str, container: str, keys: Sequence[ElementKey]
) -> Counts:
    """Return the counters of these elements, without those that are not there; raises OSError."""
    counts: Counts = {}
    with _open() as wire:
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            wire.send(encode_question(family, table, container, part))
            # Each question has one answer: an element, or an error.
            answers = 0
            while answers < len(part):
                data = wire.recv(_RECEIVED)
                answers += sum(1 for _ in _messages(data))
                _elementcounts_take(data, counts)
    return counts


def _open() -> socket.socket:
    wire = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    try:
        wire.settimeout(_LIMIT_S)
        wire.bind((0, 0))
    except BaseException:
        wire.close()
        raise
    return wire


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield kind, start and end of the body of each message."""
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, position)
        if length < _HEADER.size:
            return
        yield kind, position + _HEADER.size, position + length
        position += (length + 3) & ~3


def _elementcounts_take(data: bytes, counts: Counts) -> bool:
    """Read one answer; return whether it was the last of a listing."""
    places: dict[int, tuple[slice, slice, slice]] = {}
    for kind, start, end in _messages(data):
        if kind == _DONE:
            return True
        if kind == _ERROR:
            code = read_error(data, start)
            if code in (0, -errno.ENOENT):
                return True
            raise OSError(-code, "the kernel does not list elements")
        if kind != _NEW_ELEMENT:
            continue
        for listed, inner, until in _elementcounts_attributes(data, start + _FAMILY_SIZE, end):
            if listed != _ELEMENTS:
                continue
            for _, first, last in _elementcounts_attributes(data, inner, until):
                found = places.get(last - first)
                if found is None:
                    found = places[last - first] = _find(data, first, last)
                key, value, packets = found
                element = data[first:last]
                number = int.from_bytes(element[packets], "big")
                counts[element[key]] = ElementCount(element[value], number)
    return False


def read_error(data: bytes, start: int) -> int:
    """Return the code of an error message; raises OSError where the message ends before it."""
    if start + _CODE.size > len(data):
        raise OSError(errno.EBADMSG, "the kernel's answer is cut short")
    code: int = _CODE.unpack_from(data, start)[0]
    return code


def _find(data: bytes, first: int, last: int) -> tuple[slice, slice, slice]:
    """Return where key, data and packets of an element stand, from its beginning."""
    none = slice(0, 0)
    key = value = packets = none
    for kind, start, end in _elementcounts_attributes(data, first, last):
        if kind == _KEY:
            key = slice(start + 4 - first, end - first)
        elif kind == _DATA:
            value = slice(start - first, end - first)
        elif kind == _EXPRESSION:
            packets = _find_packets(data, start, end, first)
        elif kind == _EXPRESSIONS:
            for _, inner, until in _elementcounts_attributes(data, start, end):
                packets = _find_packets(data, inner, until, first)
    return key, value, packets


def _find_packets(data: bytes, start: int, end: int, first: int) -> slice:
    for kind, inner, until in _elementcounts_attributes(data, start, end):
        # An expression is a name and its data; of a counter's those are bytes and packets.
        if kind == 2:
            for number, at, to in _elementcounts_attributes(data, inner, until):
                if number == _PACKETS:
                    return slice(at - first, to - first)
    return slice(0, 0)


def _elementcounts_attributes(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each attribute, and where its value begins and ends."""
    # NB: a length says what was sent, which may be more than what was received.
    end = min(end, len(data))
    while start + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, start + _ATTRIBUTE.size, start + length
        start += (length + 3) & ~3
