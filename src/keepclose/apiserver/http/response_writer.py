"""Sends responses to one client, as fast as the client reads.

A large response is sent a portion at a time. While the client does not read, the rest is held once
for all clients that wait for equal bytes, and counts toward the limit of held bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from keepclose.apiserver.http.connection_table import Transfer, TransferClient, Transfers

# Bytes that are sent at once.
SENT_BYTES: Final = 32 * 1024
# A client that reads nothing for this long is dropped.
STALLED_SECONDS: Final = 60.0


class ResponseWriter:
    """The sending half of a connection; only the parts of one response are in transit."""

    # Set by `attach`, once the client has completed its TLS handshake.
    transport: asyncio.Transport

    def __init__(self, client: TransferClient, transfers: Transfers) -> None:
        """Account for held bytes of `client` in `transfers`."""
        self._client: TransferClient | None = client
        self._transfers = transfers
        # NB: attributes rather than properties, because every request reads them.
        self.is_writable = True
        self.unsent: memoryview | None = None
        self._frame = b""
        self._response_transfer: Transfer | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._stalled_transfer: Transfer | None = None
        self._stalled_since: float | None = None

    def attach(self, transport: asyncio.Transport) -> None:
        """Send through this transport from now on."""
        self.transport = transport
        # NB: by default TLS would buffer half a megabyte for a client that does not read.
        transport.set_write_buffer_limits(high=SENT_BYTES // 2)

    def detach(self) -> None:
        """Release everything; a stream that waits for the client continues, to be cancelled."""
        self.release()
        # NB: client and writer refer to each other, and a rare collection would free them.
        self._client = None
        self._set_writable()

    def is_stalled(self, now: float) -> bool:
        """Return whether the client has not read for too long."""
        return self._stalled_since is not None and now - self._stalled_since > STALLED_SECONDS

    def pause(self, now: float) -> None:
        """Hold responses back from a client that does not read."""
        self.is_writable = False
        self._writable.clear()
        self._stalled_since = now
        # A connection that is closing counts too, until its last bytes are sent.
        if self._stalled_transfer is None and self._client is not None:
            self._stalled_transfer = self._transfers.stall(self._client)

    def resume(self) -> bool:
        """Send the held bytes as long as the client reads; return whether they were the last."""
        self._set_writable()
        self._stalled_since = None
        self._release_stalled()
        return self.unsent is not None and self._send_rest(self.unsent)

    def _set_writable(self) -> None:
        self.is_writable = True
        self._writable.set()

    def send(self, head: bytes, body: bytes) -> bool:
        """Send a response; return False if a part of it waits until the client reads."""
        if len(body) <= SENT_BYTES:
            self.transport.write(head + body)
            return True
        self.transport.write(head)
        if self._send_rest(memoryview(body)):
            return True
        if self.unsent is not None and self._client is not None:
            sent = len(body) - len(self.unsent)
            self._response_transfer = self._transfers.hold(self._client, body)
            if self.unsent is None:
                # NB: to hold these bytes, another transfer of this client was dropped, and so was
                # the client.
                self.release_response()
            else:
                self.unsent = memoryview(self._response_transfer.body)[sent:]
        return False

    async def send_frames(self, frames: AsyncIterator[bytes], *, chunked: bool) -> None:
        """Send a stream; raise TimeoutError when the client has not read for too long.

        Raise ConnectionResetError once the client closes the connection.
        """
        async for frame in frames:
            self._check_open()
            self._frame = frame
            # NB: a frame that must wait is replaced by an equal one that clients share.
            del frame
            await self._send_frame(chunked=chunked)

    def release(self) -> None:
        """Release what is not sent."""
        self.unsent = None
        self.release_response()
        self._release_stalled()

    def release_response(self) -> None:
        """End the accounting of the response in transit."""
        if self._response_transfer is not None:
            self._transfers.release(self._response_transfer)
            self._response_transfer = None

    def _release_stalled(self) -> None:
        if self._stalled_transfer is not None:
            self._transfers.release(self._stalled_transfer)
            self._stalled_transfer = None

    def _send_rest(self, rest: memoryview) -> bool:
        self.unsent = rest
        start = 0
        while start < len(rest) and self.is_writable and not self.transport.is_closing():
            self.transport.write(rest[start : start + SENT_BYTES])
            start += SENT_BYTES
        if self._response_transfer is not None and start:
            self._transfers.move(self._response_transfer, start)
        if self.unsent is None:
            # The client was dropped meanwhile.
            return False
        if start < len(rest):
            self.unsent = rest[start:]
            return False
        self.unsent = None
        self.release_response()
        return True

    async def _send_frame(self, *, chunked: bool) -> None:
        """Send a frame of a stream, and wait for a client that does not read."""
        frame, self._frame = self._frame, b""
        if len(frame) <= SENT_BYTES:
            self.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame) if chunked else frame)
            if not self.is_writable:
                await self._wait_for_client()
            return
        if chunked:
            self.transport.write(b"%x\r\n" % len(frame))
        for start in range(0, len(frame), SENT_BYTES):
            if not self.is_writable:
                if self._response_transfer is None and self._client is not None:
                    self._response_transfer = self._transfers.hold(self._client, frame)
                    frame = self._response_transfer.body
                await self._wait_for_client()
            self._check_open()
            self.transport.write(memoryview(frame)[start : start + SENT_BYTES])
            if self._response_transfer is not None:
                self._transfers.move(self._response_transfer, SENT_BYTES)
        if chunked:
            self.transport.write(b"\r\n")
        self.release_response()

    def _check_open(self) -> None:
        # NB: the loop logs every write to a transport that is closing, which takes seconds where
        # the client does not read.
        if self.transport.is_closing():
            raise ConnectionResetError

    async def _wait_for_client(self) -> None:
        async with asyncio.timeout(STALLED_SECONDS):
            await self._writable.wait()
