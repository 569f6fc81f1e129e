"""Netlink: messages and attributes as bytes, and sockets that send requests and read replies.

It knows the framing that all netlink protocols share, and the head of netfilter's messages. The
meaning of kinds and attributes belongs to the modules that use them. A socket belongs to the
network namespace of the thread that opens it, and serves one thread at a time; its calls block.

Replies are not trusted: an attribute that is longer than its message ends the attributes, and a
reply without a complete header, or an error without its code, is an OSError.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

NETFILTER: Final = 12
REQUEST, ACK, DUMP, CREATE = 0x1, 0x4, 0x300, 0x400
NESTED: Final = 0x8000
NETFILTER_HEAD_BYTES: Final = 4

_ERROR, _DONE = 2, 3
_INTERRUPTED: Final = 0x10
_TYPE_MASK: Final = 0x3FFF
_HEADER: Final = struct.Struct("=IHHII")
_HEADER_BYTES: Final = _HEADER.size
_ATTRIBUTE: Final = struct.Struct("=HH")
_NETFILTER_HEAD: Final = struct.Struct(">BBH")
_CODE: Final = struct.Struct("=i")
_MAX_CODE: Final = (1 << 31) - 1
_MAX_SEQUENCE: Final = (1 << 32) - 1
_RECEIVE_BYTES: Final = 1 << 18
_SHORT_RECEIVE_BYTES: Final = 1 << 16
_NETLINK_OPTIONS, _SHORT_ERRORS = 270, 10
_SEND_BUFFER_FORCED: Final = 32
# The kernel's own metadata counts against the buffer of a socket.
_SPARE_BYTES: Final = 1 << 16
# Addresses of interfaces.
_ROUTE, _GET_ADDRESSES, _ADDRESS_HEAD_BYTES = 0, 22, 8
_ADDRESS, _LOCAL_ADDRESS = 1, 2
_ADDRESSES_WITHIN_S: Final = 10.0


def encode_message(kind: int, flags: int, body: bytes, *, sequence: int = 0) -> bytes:
    """Return a request; its body begins with the head of its protocol."""
    return _HEADER.pack(_HEADER_BYTES + len(body), kind, REQUEST | flags, sequence, 0) + body


def netfilter_head(family: int, *, resource: int = 0) -> bytes:
    """Return the head of a body for netfilter."""
    return _NETFILTER_HEAD.pack(family, 0, resource)


def encode_attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute, padded to four bytes."""
    length = 4 + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def encode_nested(kind: int, attributes: bytes) -> bytes:
    """Return an attribute whose value is attributes."""
    return encode_attribute(kind | NESTED, attributes)


def encode_string(kind: int, text: str) -> bytes:
    """Return an attribute whose value is a text, which a NUL byte ends."""
    return encode_attribute(kind, text.encode() + b"\0")


def attribute_head(kind: int, size: int) -> bytes:
    """Return the head of an attribute whose value has this size."""
    return _ATTRIBUTE.pack(4 + size, kind)


def messages_of(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, flags, sequence number and body of each message; raises OSError.

    The body of a message that is longer than the data ends where the data end.
    """
    if len(data) < _HEADER_BYTES:
        raise _cut_short()
    position = 0
    while position + _HEADER_BYTES <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, position)
        if length < _HEADER_BYTES:
            raise _cut_short()
        yield kind, flags, sequence, data[position + _HEADER_BYTES : position + length]
        position += (length + 3) & ~3


def attribute_bounds(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each attribute, and where its value starts and ends.

    `end` must not exceed the data. An attribute beyond it is not yielded, and no attribute after.
    """
    while start + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        until = start + length
        if length < 4 or until > end:
            return
        yield kind & _TYPE_MASK, start + 4, until
        start += (length + 3) & ~3


def attributes_of(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Return the values of attributes by their kind; the last of a kind counts."""
    bounds = attribute_bounds(data, start, len(data))
    return {kind: data[first:last] for kind, first, last in bounds}


def error_code(body: bytes) -> int:
    """Return the code of an error message as in `errno`, 0 for success; raises OSError."""
    if len(body) < _CODE.size:
        raise _cut_short()
    # NB: the negative of the least 32-bit number does not fit into 32 bits.
    return min(-int(_CODE.unpack_from(body)[0]), _MAX_CODE)


class NetlinkSocket:
    """A netlink socket, which numbers its requests and ignores replies to earlier ones."""

    def __init__(
        self, protocol: int, *, seconds: float | None = None, opened: socket.socket | None = None
    ) -> None:
        """Open the socket in the namespace of the calling thread; raises OSError.

        A reply that takes longer than `seconds` is a TimeoutError. A test passes an open socket
        whose peer is not the kernel.
        """
        self._socket = opened or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._sequence = 0
        self._send_buffer = 0
        try:
            self._socket.settimeout(seconds)
            if opened is None:
                self._socket.bind((0, 0))
                # An error reply need not repeat the whole request.
                self._socket.setsockopt(_NETLINK_OPTIONS, _SHORT_ERRORS, 1)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def dump(
        self, kind: int, body: bytes, read: Callable[[int, bytes], None], *, what: str
    ) -> bool:
        """Request a listing, and pass kind and body of each of its messages to `read`.

        Return whether the kernel's table stayed unchanged meanwhile. Raises OSError.
        """
        parts = self.dump_parts(kind, body, what=what)
        while True:
            try:
                part = next(parts)
            except StopIteration as end:
                return bool(end.value)
            for reply_kind, reply in part:
                read(reply_kind, reply)

    def dump_parts(
        self, kind: int, body: bytes, *, what: str
    ) -> Generator[list[tuple[int, bytes]], None, bool]:
        """Request a listing, and yield kind and body of its messages, as many as come at once.

        The kernel makes a part when it is read, so a reader may take its time. The generator's
        value is whether the kernel's table stayed unchanged meanwhile. Raises OSError.
        """
        self._socket.send(self._request(kind, DUMP, body))
        is_complete = True
        while True:
            part: list[tuple[int, bytes]] = []
            for reply_kind, flags, sequence, reply in messages_of(self._receive()):
                if sequence != self._sequence:
                    continue
                if flags & _INTERRUPTED:
                    is_complete = False
                if reply_kind == _DONE:
                    yield part
                    return is_complete
                if reply_kind == _ERROR:
                    code = error_code(reply)
                    if code == 0:
                        yield part
                        return is_complete
                    raise OSError(code, f"cannot list {what}: {os.strerror(code)}")
                part.append((reply_kind, reply))
            yield part

    def request_each(
        self, kind: int, bodies: Sequence[bytes], *, flags: int = 0
    ) -> list[tuple[int, bytes]]:
        """Send several requests at once; return the error code and body of the reply to each.

        The code is 0 if the kernel acknowledges the request or replies with data. Replies are in
        the order in which they arrive. Raises OSError.
        """
        requests = []
        pending = set()
        for body in bodies:
            requests.append(self._request(kind, flags, body))
            pending.add(self._sequence)
        self._socket.sendall(b"".join(requests))
        replies: list[tuple[int, bytes]] = []
        while pending:
            for reply_kind, _, sequence, reply in messages_of(self._receive()):
                if sequence in pending:
                    pending.discard(sequence)
                    is_error = reply_kind == _ERROR
                    replies.append((error_code(reply), b"") if is_error else (0, reply))
        return replies

    def send_batch(self, batch: bytes) -> bool:
        """Send messages that the kernel applies all or nothing; return whether it did.

        Raises OSError. NB: a socket with a time limit would wait for replies that never come.
        """
        self._grow_send_buffer(len(batch))
        self._drain()
        # NB: when this returns, the kernel has applied or rejected the batch.
        self._socket.send(batch)
        return not self._drain()

    def _request(self, kind: int, flags: int, body: bytes) -> bytes:
        self._sequence = self._sequence % _MAX_SEQUENCE + 1
        return encode_message(kind, flags, body, sequence=self._sequence)

    def _receive(self) -> bytes:
        return self._socket.recv(_RECEIVE_BYTES)

    def _drain(self) -> bool:
        """Read all replies that have arrived; return whether one of them is an error."""
        has_error = False
        while True:
            try:
                data = self._socket.recv(_SHORT_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return has_error
            for kind, _, _, body in messages_of(data):
                has_error = has_error or (kind == _ERROR and error_code(body) != 0)

    def _grow_send_buffer(self, size: int) -> None:
        if size + _SPARE_BYTES <= self._send_buffer:
            return
        self._send_buffer = size + _SPARE_BYTES
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCED, self._send_buffer)
        except PermissionError:
            # In a user namespace the system's limit applies.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)


def interface_addresses() -> frozenset[bytes]:
    """Return all addresses of the interfaces in the namespace of the calling thread.

    Raises OSError.
    """
    found = set()

    def read(_kind: int, reply: bytes) -> None:
        attributes = attributes_of(reply, _ADDRESS_HEAD_BYTES)
        address = attributes.get(_LOCAL_ADDRESS) or attributes.get(_ADDRESS, b"")
        if len(address) in (4, 16):
            found.add(address)

    netlink = NetlinkSocket(_ROUTE, seconds=_ADDRESSES_WITHIN_S)
    try:
        netlink.dump(_GET_ADDRESSES, bytes(_ADDRESS_HEAD_BYTES), read, what="addresses")
    finally:
        netlink.close()
    return frozenset(found)


def _cut_short() -> OSError:
    return OSError(errno.EBADMSG, "the kernel's reply is cut short")
