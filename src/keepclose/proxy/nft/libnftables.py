"""nftables in process, through libnftables: about ten times as fast as a process per change.

A context opens its netlink socket in the network namespace of the thread that creates it; later
calls may come from any thread. Two threads must never use it at once. Here each context has a
thread of its own, which enters the namespace first.

The text is passed as a file in memory, not as a buffer: for a file, libnftables reports the line
with the error; for a buffer, always the first line.

Elements bypass libnftables through a netlink socket of the same thread (`ElementSocket`), because
libnftables reads all sets of the host before it adds an element. The kernel applies a batch of
elements all or nothing; to find out which element it rejected and why, the writer passes the same
transaction to libnftables as text.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from keepclose.kube.clock import Clock
from keepclose.proxy.nft.element_messages import NoBinaryFormError, encode_batch
from keepclose.proxy.nft.work_thread import StuckError, WorkThread
from keepclose.proxy.nft.writer import (
    DEFAULT_LIMIT,
    NftError,
    NftFailure,
    NftFamily,
    encode_transaction,
    list_table_command,
    nft_error,
)
from keepclose.ruleset.commands import Transaction
from keepclose.system.netlink import NETFILTER, NetlinkSocket

LIBRARY: Final = "libnftables.so.1"
_JSON: Final = 1 << 4
# Contexts share tables that the library fills when it creates a context.
_CONTEXT_LOCK: Final = threading.Lock()
_T = TypeVar("_T")


class ElementSocket:
    """A netlink socket that writes transactions of elements."""

    def __init__(self) -> None:
        """Open the socket in the namespace of the calling thread; raises OSError."""
        self._netlink = NetlinkSocket(NETFILTER)

    def write(self, transaction: Transaction) -> bool:
        """Apply a transaction; False if it was not applied and must be written as text.

        That is the case if it contains more than elements, or if the kernel rejects it.
        """
        try:
            batch = encode_batch(transaction)
            return bool(batch) and self._netlink.send_batch(batch)
        except (NoBinaryFormError, OSError):
            return False

    def close(self) -> None:
        """Close the socket."""
        self._netlink.close()


class LibnftablesContext:
    """A context of libnftables; its calls block, and a lock serialises them."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Open the context in the namespace of the calling thread; raises NftError (UNUSABLE)."""
        try:
            self._library = _load(library)
        except (OSError, AttributeError) as error:
            raise NftError(
                f"{library} cannot be used: {error}", failure=NftFailure.UNUSABLE
            ) from None
        with _CONTEXT_LOCK:
            self._handle: int | None = self._library.nft_ctx_new(0)
        if not self._handle:
            raise NftError("libnftables returns no context", failure=NftFailure.UNUSABLE)
        self._library.nft_ctx_buffer_output(self._handle)
        self._library.nft_ctx_buffer_error(self._handle)
        self._lock = threading.Lock()

    def apply(self, text: str, *, dry: bool = False) -> None:
        """Apply a transaction, or only have the kernel check it; raises NftError."""
        data = encode_transaction(text)
        if data.strip():
            self._run(data, text, flags=0, dry=dry)

    def query(self, command: str) -> bytes:
        """Return the output of a list command as JSON; raises NftError."""
        data = encode_transaction(command)
        return self._run(data, command, flags=_JSON, dry=False)

    def close(self) -> None:
        """Free the context; later calls raise NftError."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle:
            with _CONTEXT_LOCK:
                self._library.nft_ctx_free(handle)

    def _run(self, data: bytes, text: str, *, flags: int, dry: bool) -> bytes:
        with self._lock:
            if not self._handle:
                raise NftError("the context is closed", failure=NftFailure.UNUSABLE)
            self._library.nft_ctx_output_set_flags(self._handle, flags)
            self._library.nft_ctx_set_dry_run(self._handle, dry)
            code = self._run_file(data)
            # NB: a read empties the buffers, so both must be read every time.
            output: bytes = self._library.nft_ctx_get_output_buffer(self._handle) or b""
            errors: bytes = self._library.nft_ctx_get_error_buffer(self._handle) or b""
        if code != 0:
            raise nft_error(
                errors.decode(errors="replace"), text, fallback="libnftables gives no reason"
            )
        return output

    def _run_file(self, data: bytes) -> int:
        descriptor = os.memfd_create("transaction")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            name = f"/proc/self/fd/{descriptor}".encode()
            code: int = self._library.nft_run_cmd_from_filename(self._handle, name)
        finally:
            os.close(descriptor)
        return code


class LibnftablesWriter:
    """A writer with a context of its own, in a thread beside the event loop."""

    def __init__(
        self,
        *,
        namespace: Path | None = None,
        library: str = LIBRARY,
        limit: float = DEFAULT_LIMIT,
        clock: Clock | None = None,
    ) -> None:
        self._thread = WorkThread("libnftables", namespace=namespace, clock=clock)
        self._library = library
        self._limit = limit
        self._context: LibnftablesContext | None = None
        self._socket: ElementSocket | None = None

    async def write_elements(self, transaction: Transaction) -> bool:
        """Apply a transaction of elements; False if it must be written as text."""
        return await self._run(lambda: self._open_socket().write(transaction), "elements")

    async def apply(self, text: str) -> None:
        """Apply a transaction; raises NftError."""
        await self._run(lambda: self._open().apply(text), "a transaction")

    async def check(self, text: str) -> None:
        """Have the kernel check a transaction; raises NftError."""
        await self._run(lambda: self._open().apply(text, dry=True), "a dry run")

    async def list_table(self, family: NftFamily, table: str) -> bytes:
        """Return a table as JSON; raises NftError."""
        command = list_table_command(family, table)
        return await self._run(lambda: self._open().query(command), command)

    async def close(self) -> None:
        """Free the context; if a call hangs, the context is freed when that call returns."""
        with suppress(NftError):
            await self._run(self._free, "closing")
        self._thread.stop(self._free)

    def _open(self) -> LibnftablesContext:
        # NB: runs in the thread of this writer, which is in the right namespace.
        if self._context is None:
            self._context = LibnftablesContext(self._library)
        return self._context

    def _open_socket(self) -> ElementSocket:
        if self._socket is None:
            self._socket = ElementSocket()
        return self._socket

    def _free(self) -> None:
        if self._context is not None:
            self._context.close()
        if self._socket is not None:
            self._socket.close()

    async def _run(self, work: Callable[[], _T], what: str) -> _T:
        try:
            return await self._thread.run(work, limit=self._limit, what=f"libnftables: {what}")
        except StuckError as error:
            raise NftError(str(error), failure=NftFailure.TIMEOUT) from None
        except OSError as error:
            raise NftError(f"libnftables: {error}", failure=NftFailure.UNUSABLE) from None


def _load(name: str) -> ctypes.CDLL:
    library = ctypes.CDLL(name)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint
    for function, result, arguments in (
        ("nft_ctx_new", pointer, [ctypes.c_uint32]),
        ("nft_ctx_free", None, [pointer]),
        ("nft_ctx_buffer_output", ctypes.c_int, [pointer]),
        ("nft_ctx_buffer_error", ctypes.c_int, [pointer]),
        ("nft_ctx_get_output_buffer", text, [pointer]),
        ("nft_ctx_get_error_buffer", text, [pointer]),
        ("nft_ctx_output_set_flags", None, [pointer, number]),
        ("nft_ctx_set_dry_run", None, [pointer, ctypes.c_bool]),
        ("nft_run_cmd_from_filename", ctypes.c_int, [pointer, text]),
    ):
        entry = getattr(library, function)
        entry.restype, entry.argtypes = result, arguments
    return library
