"""A writer for tests: keeps every transaction, fails on request, lists what it was told to.

It understands nothing of the texts; what a table would then hold is for others to say.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from keepclose.proxy.nft.writer import (
    ContainerKind,
    NftError,
    NftFailure,
    NftFamily,
    encode_transaction,
)

_EMPTY: Final = b'{"nftables": [{"metainfo": {"json_schema_version": 1}}]}'


class RecordingWriter:
    """Stands in for an NftWriter."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        """The transactions that went through, in order."""
        self.checked: list[str] = []
        self.closed = False
        self._failures: deque[NftError | None] = deque()
        self._tables: dict[tuple[NftFamily, str], bytes] = {}
        self._elements: dict[tuple[ContainerKind, NftFamily, str, str], bytes] = {}

    def fail_next(self, *failures: NftError | None) -> None:
        """Fail the next transactions with these; None lets one through."""
        self._failures.extend(failures)

    def hold(self, family: NftFamily, table: str, listing: bytes = _EMPTY) -> None:
        """List this for a table from now on."""
        self._tables[family, table] = listing

    def hold_elements(
        self, kind: ContainerKind, family: NftFamily, table: str, *, name: str, listing: bytes
    ) -> None:
        """List this for a set or map from now on."""
        self._elements[kind, family, table, name] = listing

    async def apply(self, text: str) -> None:
        """Keep the text, or fail as told."""
        encode_transaction(text)
        if not text.strip():
            return
        failure = self._failures.popleft() if self._failures else None
        if failure is not None:
            raise failure
        self.applied.append(text)

    async def check(self, text: str) -> None:
        """Keep the text apart; as with a kernel, what is in use cannot be deleted."""
        encode_transaction(text)
        self.checked.append(text)
        if text.startswith("delete "):
            message = "Device or resource busy"
            output = f"{message}\n" * text.count("\n")
            raise NftError(message, failure=NftFailure.BUSY, output=output)

    async def list_table(self, family: NftFamily, table: str, *, terse: bool = False) -> bytes:
        """Return what is held; terse or not is the same here."""
        del terse
        listing = self._tables.get((family, table))
        if listing is None:
            raise NftError("No such file or directory", failure=NftFailure.NOT_FOUND)
        return listing

    async def list_elements(
        self, kind: ContainerKind, family: NftFamily, table: str, *, name: str
    ) -> bytes:
        """Return what is held."""
        listing = self._elements.get((kind, family, table, name))
        if listing is None:
            raise NftError("No such file or directory", failure=NftFailure.NOT_FOUND)
        return listing

    async def close(self) -> None:
        """Remember it."""
        self.closed = True
