"""Answers of the kernel over netlink: flows, counters and elements, cut short or twisted."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from fuzzbounds import require

from keepclose.proxy import conntrack
from keepclose.proxy.counters import kernel_counters
from keepclose.proxy.nft.element_messages import (
    NoBinaryFormError,
    decode_key,
    encode_key,
)
from keepclose.system.conntrack import ConntrackEvents, decode_connection, walk_connections
from keepclose.system.netlink import attribute_bounds, encode_attribute, messages_of


class _Kernel:
    """The other end of a socket: gives one answer, then says that nothing more comes."""

    def __init__(self, answer: bytes) -> None:
        self._answers = [answer]

    def settimeout(self, _seconds: float) -> None:
        """Never wait."""

    def setblocking(self, _blocks: bool) -> None:
        """Never wait."""

    def close(self) -> None:
        """Be closed."""

    def send(self, data: bytes) -> int:
        """Take a request."""
        return len(data)

    def sendall(self, _data: bytes) -> None:
        """Take a request."""

    def recv(self, _size: int) -> bytes:
        """Return the answer; a kernel that is silent afterwards runs into the time limit."""
        if not self._answers:
            raise TimeoutError
        return self._answers.pop()


def _attribute(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return struct.pack("=HH", size, kind) + payload + bytes(-size % 4)


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def seeds() -> Iterator[bytes]:
    """Yield flows, counters, elements, errors and an end."""
    ports = _attribute(1, b"\x11") + _attribute(2, b"\0\x35") + _attribute(3, b"\x14\xe9")
    addresses = _attribute(1, bytes([10, 0, 0, 1])) + _attribute(2, bytes([10, 0, 0, 2]))
    one = _attribute(1 | 0x8000, addresses) + _attribute(2 | 0x8000, ports)
    flow = _attribute(1 | 0x8000, one) + _attribute(2 | 0x8000, one) + _attribute(12, b"\1\2\3\4")
    yield b"f" + _message(0x100, bytes(4) + flow) + _message(3, bytes(4))
    counters = _attribute(1, bytes(8)) + _attribute(2, bytes(8))
    ended = _attribute(3, bytes(4)) + _attribute(7, bytes(4))
    ended += _attribute(9 | 0x8000, counters) + _attribute(10 | 0x8000, counters)
    yield b"f" + bytes((2, 0, 0, 0)) + flow + ended
    yield b"f" + bytes((2, 0, 0, 0)) + flow + ended + _attribute(18, b"\0\1")
    yield b"f" + _message(2, struct.pack("=i", -2) + bytes(16))
    counted = _attribute(4 | 0x8000, _attribute(2, (7).to_bytes(8, "big")))
    yield b"c" + _message(0xA12, bytes(4) + _attribute(2, b"name\0") + counted)
    key = _attribute(1 | 0x8000, _attribute(1, bytes([10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0])))
    counter = _attribute(7, _attribute(1, b"counter\0") + _attribute(2, _attribute(2, bytes(8))))
    element = _attribute(1 | 0x8000, key + _attribute(2, b"data") + counter)
    yield b"e" + _message(0xA0C, bytes(4) + _attribute(3 | 0x8000, element))
    yield b"k" + bytes([10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0])


def _check_attributes(raw: bytes) -> None:
    """Attributes are within the data, and read the same when they are written again."""
    read = []
    for kind, start, end in attribute_bounds(raw, 0, len(raw)):
        require(4 <= start <= end <= len(raw), "an attribute is outside of the data")
        read.append((kind, raw[start:end]))
    again = b"".join(encode_attribute(kind, value) for kind, value in read)
    bounds = attribute_bounds(again, 0, len(again))
    require(
        [(kind, again[start:end]) for kind, start, end in bounds] == read,
        "attributes read differently when they are written again",
    )


def _check_connections(raw: bytes) -> None:
    """Events and walks read any bytes; an event of a beginning names the same connection."""
    connection = decode_connection(raw)
    new = decode_connection(raw, is_new=True)
    require((connection is None) == (new is None), "only one reader finds a connection")
    if connection is not None and new is not None and not connection.zone:
        require(connection[:8] == new[:8], "two readers find different connections")
    events = ConntrackEvents(opened=_Kernel(raw))  # type: ignore[arg-type]
    with contextlib.suppress(TimeoutError):
        events.read(1)
    with contextlib.suppress(OSError):
        for _ in walk_connections(opened=_Kernel(raw)):  # type: ignore[arg-type]
            pass


def check(data: bytes) -> None:
    """Read the answer as each reader does; only OSError may come of it."""
    raw = data[1:]
    _check_attributes(raw)
    with contextlib.suppress(OSError):
        for _, _, _, body in messages_of(raw):
            _check_attributes(body)
    conntrack.parse_flow(raw)
    _check_connections(raw)
    for protocol in (conntrack.UDP, conntrack.SCTP):
        table = conntrack.ConntrackTable(2, opened=_Kernel(raw))  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            table.list_flows(protocol)
    flow = conntrack.Flow(17, "10.0.0.1", 53, "10.0.0.2", 53, "10.0.0.3", 9)
    table = conntrack.ConntrackTable(2, opened=_Kernel(raw))  # type: ignore[arg-type]
    with contextlib.suppress(OSError):
        table.delete([flow])
    with contextlib.suppress(OSError):
        kernel_counters.read_counts("ip", "t", "m", opened=_Kernel(raw))  # type: ignore[arg-type]
    with contextlib.suppress(OSError):
        kernel = _Kernel(raw)
        keys = [("10.0.0.1",)]
        kernel_counters.read_some_counts("ip", "t", "m", keys, opened=kernel)  # type: ignore[arg-type]
    for family in ("ip", "ip6"):
        for has_endpoint in (False, True):
            key = decode_key(raw, family, has_endpoint=has_endpoint)
            if key:
                with contextlib.suppress(NoBinaryFormError):
                    written = encode_key(key, family)
                    again = decode_key(written, family, has_endpoint=has_endpoint)
                    require(again == key, "a key reads differently when it is written again")
