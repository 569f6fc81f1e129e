"""Which writer a proxy uses: libnftables where it works, else the nft program; never neither.

The choice is made once, at start, and logged with its reason. Whatever is missing is said in one
error, so that a person need not find out one thing at a time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import structlog

from keepclose.kube.clock import Clock
from keepclose.proxy.nft.libnftables import LIBRARY, LibnftablesWriter
from keepclose.proxy.nft.nft_command import PROGRAM, NftCommandWriter
from keepclose.proxy.nft.requirements import find_missing, find_obstacles, judge_nft
from keepclose.proxy.nft.writer import (
    DEFAULT_LIMIT,
    ElementsOf,
    NftError,
    NftFailure,
    NftFamily,
    NftWriter,
)

WriterName = Literal["auto", "libnftables", "nft"]
SKIP_KERNEL_VERSION: Final = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"
BOTH: Final[tuple[NftFamily, ...]] = ("ip", "ip6")

_log = structlog.get_logger(__name__)


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

    async def list_table(self, family: NftFamily, table: str, *, terse: bool = False) -> bytes:
        """Return the table as it is; raises NftError (NOT_FOUND) where nobody can read it."""
        return await self._readable().list_table(family, table, terse=terse)

    async def list_elements(
        self, kind: ElementsOf, family: NftFamily, table: str, *, name: str
    ) -> bytes:
        """Return a set or map as it is; raises NftError (NOT_FOUND) where nobody can read it."""
        return await self._readable().list_elements(kind, family, table, name=name)

    async def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            await self._reader.close()

    def _readable(self) -> NftWriter:
        if self._reader is None:
            raise NftError("nobody can read it", failure=NftFailure.NOT_FOUND)
        return self._reader


class CannotProgramError(Exception):
    """Rules cannot be written here; `problems` says each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("nftables cannot be used here: " + "; ".join(problems))
        self.problems = problems


class Chosen(NamedTuple):
    """A writer that works, and why it was taken."""

    writer: NftWriter
    name: str
    reason: str


class WriterSettings(NamedTuple):
    """What a proxy may use to write rules."""

    prefer: WriterName = "auto"
    families: tuple[NftFamily, ...] = BOTH
    namespace: Path | None = None
    library: str = LIBRARY
    program: str = PROGRAM
    limit: float = DEFAULT_LIMIT


async def choose_writer(
    settings: WriterSettings | None = None,
    *,
    clock: Clock | None = None,
    obstacles: Callable[[], list[str]] | None = None,
) -> Chosen:
    """Return the best writer that works here; raises CannotProgramError.

    `obstacles` looks at kernel and rights; the default looks at this machine.
    """
    settings = settings or WriterSettings()
    look = obstacles or _look
    problems = look()
    if problems:
        raise CannotProgramError(problems)
    reason = "asked for by the settings"
    if settings.prefer != "nft":
        found = await _try_library(settings, clock)
        if not isinstance(found, str):
            return _told(Chosen(found, "libnftables", "it works in process"))
        problems.append(found)
        reason = found
        if settings.prefer == "libnftables":
            raise CannotProgramError(problems)
    found = await _try_program(settings, clock)
    if isinstance(found, str):
        # Both often meet the same obstacle, which is said once.
        raise CannotProgramError(list(dict.fromkeys([*problems, found])))
    return _told(Chosen(found, "nft", reason))


def _look() -> list[str]:
    return find_obstacles(skip_kernel_version=SKIP_KERNEL_VERSION in os.environ)


async def _try_library(settings: WriterSettings, clock: Clock | None) -> NftWriter | str:
    writer = LibnftablesWriter(
        namespace=settings.namespace, library=settings.library, limit=settings.limit, clock=clock
    )
    return await _judge(writer, settings)


async def _try_program(settings: WriterSettings, clock: Clock | None) -> NftWriter | str:
    if shutil.which(settings.program) is None:
        return f"{settings.program} is not installed; install the package nftables"
    writer = NftCommandWriter(
        namespace=settings.namespace, program=settings.program, limit=settings.limit, clock=clock
    )
    try:
        wrong = judge_nft(await writer.read_version())
    except NftError as error:
        wrong = str(error)
    if wrong:
        await writer.close()
        return wrong
    return await _judge(writer, settings)


async def _judge(writer: NftWriter, settings: WriterSettings) -> NftWriter | str:
    """Return the writer if the kernel accepts through it all that rules need, else why not."""
    try:
        missing = await find_missing(writer, settings.families)
    except NftError as error:
        missing = [_explain(error)]
    if not missing:
        return writer
    await writer.close()
    return "; ".join(missing)


def _explain(error: NftError) -> str:
    if error.failure is NftFailure.FORBIDDEN:
        return f"the kernel refuses: {error.message}; CAP_NET_ADMIN is needed in this namespace"
    return str(error)


def _told(chosen: Chosen) -> Chosen:
    _log.info("nftables writer chosen", writer=chosen.name, reason=chosen.reason)
    return chosen
