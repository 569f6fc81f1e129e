"""A netlink socket through which elements reach the kernel, past libnftables.

Blocking, and bound to the network namespace of the thread that opens it. A batch that the kernel
refuses leaves no trace; which element it refused, and why in words, is found out by handing the
same transaction to nft as text.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from keepclose.proxy.nft.element_messages import NoBinaryFormError, encode_batch
from keepclose.ruleset.commands import Transaction

_NETLINK_NETFILTER: Final = 12
_NETLINK, _SHORT_ANSWERS = 270, 10
_SEND_BUFFER_FORCED: Final = 32
_ERROR: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
# The kernel counts its own bookkeeping towards what a socket may hold.
_SPARE_BYTES: Final = 1 << 16


class ElementSocket:
    """Writes transactions of elements."""

    def __init__(self) -> None:
        """Open it in the namespace of the calling thread; raises OSError."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        # A refusal need not repeat the whole message.
        self._socket.setsockopt(_NETLINK, _SHORT_ANSWERS, 1)
        self._room = 0

    def write(self, transaction: Transaction) -> bool:
        """Apply a transaction; False where it was not applied and has to be tried as text.

        That is so for one that holds more than elements, and for one that the kernel refuses.
        """
        try:
            batch = encode_batch(transaction)
        except NoBinaryFormError:
            return False
        if not batch:
            return False
        try:
            self._make_room(len(batch))
            self._drain()
            # NB: when this returns, the kernel has applied or refused the batch.
            self._socket.send(batch)
            return not self._drain()
        except OSError:
            return False

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _make_room(self, size: int) -> None:
        if size + _SPARE_BYTES > self._room:
            self._room = size + _SPARE_BYTES
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCED, self._room)
            except PermissionError:
                # In a user namespace the system's limit holds; it is enough for all but the first
                # writes of many Services.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._room)

    def _drain(self) -> bool:
        """Read all answers; return whether one of them is a refusal."""
        is_refused = False
        while True:
            try:
                data = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return is_refused
            position = 0
            while position + _HEADER.size + 4 <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, position)
                (code,) = struct.unpack_from("=i", data, position + _HEADER.size)
                is_refused = is_refused or (kind == _ERROR and code != 0)
                position += max(_HEADER.size, (length + 3) & ~3)
