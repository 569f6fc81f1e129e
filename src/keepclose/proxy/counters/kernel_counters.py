"""Reads the counters of elements of sets and maps from the kernel over netlink.

Through libnftables the same reply takes ten times as long in a large table, and writes would have
to wait for it. The calls block, so they run in a thread of their own; a socket belongs to the
network namespace of that thread.

The kernel lists tens of thousands of elements for a large table. Elements of one length have one
shape, so the positions of key, data and packets are found once for each length.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from keepclose.kube.clock import Clock
from keepclose.proxy.nft.element_messages import (
    GET_ELEMENT,
    NEW_ELEMENT,
    container_body,
    element_bodies,
)
from keepclose.proxy.nft.work_thread import StuckError, WorkThread
from keepclose.proxy.nft.writer import NftFamily
from keepclose.ruleset.tables import ElementKey
from keepclose.system.netlink import (
    NETFILTER,
    NETFILTER_HEAD_BYTES,
    NetlinkSocket,
    attribute_bounds,
)

_LIMIT_S: Final = 10.0
_ELEMENTS: Final = 3
_KEY, _ELEMENT_DATA, _EXPRESSION, _EXPRESSIONS = 1, 2, 7, 11
_PACKETS: Final = 2
_KEYS_PER_REQUEST: Final = 500


class ElementCount(NamedTuple):
    """The packets of an element; its data distinguishes it from a later element."""

    data: bytes
    packets: int


ElementCounts = dict[bytes, ElementCount]
"""Counters by the key of the element, in the kernel's form."""
_Positions = dict[int, tuple[slice, slice, slice]]
"""Where elements of one length have their key, data and packets."""


class CounterReader(Protocol):
    """Reads the counters of one network namespace."""

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


def read_counts(
    family: NftFamily, table: str, container: str, *, opened: socket.socket | None = None
) -> ElementCounts:
    """Return the counters of all elements; none without such a set or map. Raises OSError."""
    counts: ElementCounts = {}
    positions: _Positions = {}

    def read(kind: int, reply: bytes) -> None:
        if kind == NEW_ELEMENT:
            _read_element_counters(reply, counts, positions)

    body = container_body(family, table, container)
    with closing(_open(opened)) as netlink, suppress(FileNotFoundError):
        netlink.dump(GET_ELEMENT, body, read, what="elements")
    return counts


def read_some_counts(
    family: NftFamily,
    table: str,
    container: str,
    keys: Sequence[ElementKey],
    *,
    opened: socket.socket | None = None,
) -> ElementCounts:
    """Return the counters of those of the elements that exist; raises OSError."""
    counts: ElementCounts = {}
    positions: _Positions = {}
    with closing(_open(opened)) as netlink:
        for start in range(0, len(keys), _KEYS_PER_REQUEST):
            batch = keys[start : start + _KEYS_PER_REQUEST]
            bodies = element_bodies(family, table, container, batch)
            for code, reply in netlink.request_each(GET_ELEMENT, bodies):
                if code not in (0, errno.ENOENT):
                    raise OSError(code, f"cannot list elements: {os.strerror(code)}")
                _read_element_counters(reply, counts, positions)
    return counts


def _open(opened: socket.socket | None) -> NetlinkSocket:
    return NetlinkSocket(NETFILTER, seconds=_LIMIT_S, opened=opened)


def _read_element_counters(data: bytes, counts: ElementCounts, positions: _Positions) -> None:
    """Read the elements of one reply."""
    for attribute, inner, until in attribute_bounds(data, NETFILTER_HEAD_BYTES, len(data)):
        if attribute != _ELEMENTS:
            continue
        for _, first, last in attribute_bounds(data, inner, until):
            slices = positions.get(last - first)
            if slices is None:
                slices = positions[last - first] = _find_positions(data, first, last)
            key, value, packets = slices
            element = data[first:last]
            number = int.from_bytes(element[packets], "big")
            counts[element[key]] = ElementCount(element[value], number)


def _find_positions(data: bytes, first: int, last: int) -> tuple[slice, slice, slice]:
    """Return the positions of key, data and packets in an element."""
    empty = slice(0, 0)
    key = value = packets = empty
    for kind, start, end in attribute_bounds(data, first, last):
        if kind == _KEY:
            key = slice(start + 4 - first, end - first)
        elif kind == _ELEMENT_DATA:
            value = slice(start - first, end - first)
        elif kind == _EXPRESSION:
            packets = _find_packets(data, start, end, first)
        elif kind == _EXPRESSIONS:
            for _, inner, until in attribute_bounds(data, start, end):
                packets = _find_packets(data, inner, until, first)
    return key, value, packets


def _find_packets(data: bytes, start: int, end: int, first: int) -> slice:
    for kind, inner, until in attribute_bounds(data, start, end):
        # An expression has a name and data; the data of a counter are bytes and packets.
        if kind == 2:
            for number, at, to in attribute_bounds(data, inner, until):
                if number == _PACKETS:
                    return slice(at - first, to - first)
    return slice(0, 0)
