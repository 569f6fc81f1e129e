"""An NftWriter without a kernel: it records every transaction and fails or lists on request.

It does not parse transactions; a listing returns what the test has set.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from keepclose.proxy.nft.writer import (
    NftError,
    NftFailure,
    NftFamily,
    encode_transaction,
)

_EMPTY: Final = b'{"nftables": [{"metainfo": {"json_schema_version": 1}}]}'


class RecordingWriter:
    """Records transactions in place of a kernel."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        """The transactions that succeeded, in order."""
        self.checked: list[str] = []
        self.closed = False
        self._failures: deque[NftError | None] = deque()
        self._tables: dict[tuple[NftFamily, str], bytes] = {}

    def fail_next(self, *failures: NftError | None) -> None:
        """Let the next transactions fail with these errors; None lets one succeed."""
        self._failures.extend(failures)

    def hold(self, family: NftFamily, table: str, listing: bytes = _EMPTY) -> None:
        """Set the listing of a table."""
        self._tables[family, table] = listing

    async def apply(self, text: str) -> None:
        """Record the text, or raise the next error."""
        encode_transaction(text)
        if not text.strip():
            return
        failure = self._failures.popleft() if self._failures else None
        if failure is not None:
            raise failure
        self.applied.append(text)

    async def check(self, text: str) -> None:
        """Record the text as checked; as in a kernel, objects in use cannot be deleted."""
        encode_transaction(text)
        self.checked.append(text)
        if text.startswith("delete "):
            message = "Device or resource busy"
            output = f"{message}\n" * text.count("\n")
            raise NftError(message, failure=NftFailure.BUSY, output=output)

    async def list_table(self, family: NftFamily, table: str) -> bytes:
        """Return the listing that was set; raise NftError without one."""
        listing = self._tables.get((family, table))
        if listing is None:
            raise NftError("No such file or directory", failure=NftFailure.NOT_FOUND)
        return listing

    async def close(self) -> None:
        """Record the call."""
        self.closed = True
