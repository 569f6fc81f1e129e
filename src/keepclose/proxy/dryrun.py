"""A writer that shows what would be written, and writes nothing.

Listings are the kernel's own where somebody can read them, so that what is shown is what would have
to change here; where nobody can, the table is taken for absent.
"""

from __future__ import annotations

from collections.abc import Callable

from keepclose.proxy.nft.writer import ElementsOf, Failure, Family, NftError, NftWriter


class DryRunWriter:
    """Stands in for an NftWriter."""

    def __init__(self, show: Callable[[str], None], *, reader: NftWriter | None = None) -> None:
        self._show = show
        self._reader = reader

    async def apply(self, text: str) -> None:
        """Show the transaction."""
        self._show(text)

    async def check(self, text: str) -> None:
        """Find nothing wrong."""

    async def list_table(self, family: Family, table: str, *, terse: bool = False) -> bytes:
        """Return the table as it is; raises NftError (NOT_FOUND) where nobody can read it."""
        return await self._readable().list_table(family, table, terse=terse)

    async def list_elements(
        self, kind: ElementsOf, family: Family, table: str, *, name: str
    ) -> bytes:
        """Return a set or map as it is; raises NftError (NOT_FOUND) where nobody can read it."""
        return await self._readable().list_elements(kind, family, table, name=name)

    async def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            await self._reader.close()

    def _readable(self) -> NftWriter:
        if self._reader is None:
            raise NftError("nobody can read it", failure=Failure.NOT_FOUND)
        return self._reader
