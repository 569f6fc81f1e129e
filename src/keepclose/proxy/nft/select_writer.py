"""Selects the writer of a proxy: libnftables if it works, otherwise the nft program.

The proxy selects it once, at start, and logs it with the reason. If neither works, one error lists
all problems, so that an operator need not find them one at a time. The dry-run writer shows
transactions and never writes them; its listings are the kernel's own, so that it shows what would
change on this host. If no writer can read the table, the dry run assumes that it does not exist.

nftables through the nft program: a process per transaction, for hosts without libnftables. It is
slower, because every process reads the chains of the table again, but a crash of nft does not
affect the proxy. A thread inside the network namespace starts the process, which inherits the
namespace. A process that exceeds its limit is killed together with its children.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

import structlog

from keepclose.kube.clock import Clock
from keepclose.proxy.nft.libnftables import LIBRARY, LibnftablesWriter
from keepclose.proxy.nft.requirements import find_host_problems, find_missing, nft_problem
from keepclose.proxy.nft.work_thread import StuckError, WorkThread
from keepclose.proxy.nft.writer import (
    DEFAULT_LIMIT,
    NftError,
    NftFailure,
    NftFamily,
    NftWriter,
    encode_transaction,
    list_table_command,
    nft_error,
)

WriterName = Literal["auto", "libnftables", "nft"]
SKIP_KERNEL_VERSION: Final = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"
BOTH: Final[tuple[NftFamily, ...]] = ("ip", "ip6")

_log = structlog.get_logger(__name__)
PROGRAM: Final = "nft"
_MARGIN_S: Final = 10.0
_T = TypeVar("_T")


class DryRunWriter:
    """An NftWriter that shows transactions instead of applying them."""

    def __init__(self, show: Callable[[str], None], *, reader: NftWriter | None = None) -> None:
        self._show = show
        self._reader = reader

    async def apply(self, text: str) -> None:
        """Show the transaction."""
        self._show(text)

    async def check(self, text: str) -> None:
        """Accept every transaction."""

    async def list_table(self, family: NftFamily, table: str) -> bytes:
        """Return the table in the kernel; raises NftError (NOT_FOUND) without a reader."""
        return await self._require_reader().list_table(family, table)

    async def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            await self._reader.close()

    def _require_reader(self) -> NftWriter:
        if self._reader is None:
            raise NftError("the table cannot be read on this host", failure=NftFailure.NOT_FOUND)
        return self._reader


class NftablesUnavailableError(Exception):
    """This host does not allow rules to be written; `problems` has all reasons."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("nftables cannot be used here: " + "; ".join(problems))
        self.problems = problems


class SelectedWriter(NamedTuple):
    """A writer that works, and why it was selected."""

    writer: NftWriter
    name: str
    reason: str


class WriterSettings(NamedTuple):
    """Which writers a proxy may use, and how."""

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
    host_problems: Callable[[], list[str]] | None = None,
) -> SelectedWriter:
    """Return the best writer that works on this host; raises NftablesUnavailableError.

    `host_problems` checks kernel and permissions; the default checks this host.
    """
    settings = settings or WriterSettings()
    find_problems = host_problems or _find_problems
    problems = find_problems()
    if problems:
        raise NftablesUnavailableError(problems)
    reason = "selected by the settings"
    if settings.prefer != "nft":
        result = await _try_library(settings, clock)
        if not isinstance(result, str):
            return _log_selected(SelectedWriter(result, "libnftables", "it works in process"))
        problems.append(result)
        reason = result
        if settings.prefer == "libnftables":
            raise NftablesUnavailableError(problems)
    result = await _try_program(settings, clock)
    if isinstance(result, str):
        # Both writers often fail for the same reason, which is listed once.
        raise NftablesUnavailableError(list(dict.fromkeys([*problems, result])))
    return _log_selected(SelectedWriter(result, "nft", reason))


def _find_problems() -> list[str]:
    return find_host_problems(skip_kernel_version=SKIP_KERNEL_VERSION in os.environ)


async def _try_library(settings: WriterSettings, clock: Clock | None) -> NftWriter | str:
    writer = LibnftablesWriter(
        namespace=settings.namespace, library=settings.library, limit=settings.limit, clock=clock
    )
    return await _test_writer(writer, settings)


async def _try_program(settings: WriterSettings, clock: Clock | None) -> NftWriter | str:
    if shutil.which(settings.program) is None:
        return f"{settings.program} is not installed; install the package nftables"
    writer = NftCommandWriter(
        namespace=settings.namespace, program=settings.program, limit=settings.limit, clock=clock
    )
    try:
        problem = nft_problem(await writer.read_version())
    except NftError as error:
        problem = str(error)
    if problem:
        await writer.close()
        return problem
    return await _test_writer(writer, settings)


async def _test_writer(writer: NftWriter, settings: WriterSettings) -> NftWriter | str:
    """Return the writer if the kernel accepts all required features through it, else why not."""
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


def _log_selected(selected: SelectedWriter) -> SelectedWriter:
    _log.info("nftables writer selected", writer=selected.name, reason=selected.reason)
    return selected


class NftCommandWriter:
    """A writer that runs nft for every call."""

    def __init__(
        self,
        *,
        program: str = PROGRAM,
        namespace: Path | None = None,
        limit: float = DEFAULT_LIMIT,
        clock: Clock | None = None,
    ) -> None:
        self._thread = WorkThread("nft", namespace=namespace, clock=clock)
        self._program = program
        self._limit = limit

    async def apply(self, text: str) -> None:
        """Apply a transaction; raises NftError."""
        await self._transact(text, "-f", "-")

    async def check(self, text: str) -> None:
        """Have the kernel check a transaction; raises NftError."""
        await self._transact(text, "--check", "-f", "-")

    async def list_table(self, family: NftFamily, table: str) -> bytes:
        """Return a table as JSON; raises NftError."""
        command = list_table_command(family, table)
        return await self._off_loop(lambda: self._run(b"", command, "--json", command), command)

    async def read_version(self) -> str:
        """Return the output of `nft --version`; raises NftError."""
        output = await self._off_loop(lambda: self._run(b"", "", "--version"), "--version")
        return output.decode(errors="replace").strip()

    async def close(self) -> None:
        """Stop the thread that starts processes."""
        self._thread.stop()

    async def _transact(self, text: str, *flags: str) -> None:
        data = encode_transaction(text)
        if data.strip():
            await self._off_loop(lambda: self._run(data, text, *flags), "a transaction")

    async def _off_loop(self, work: Callable[[], _T], what: str) -> _T:
        try:
            # The process has a limit of its own, which ends it; this limit only guards that one.
            limit = self._limit + _MARGIN_S
            return await self._thread.run(work, limit=limit, what=f"{self._program}: {what}")
        except StuckError as error:
            raise NftError(str(error), failure=NftFailure.TIMEOUT) from None
        except OSError as error:
            raise NftError(f"{self._program}: {error}", failure=NftFailure.UNUSABLE) from None

    def _run(self, data: bytes, text: str, *arguments: str) -> bytes:
        process = subprocess.Popen(  # noqa: S603 - no shell; the program is the operator's choice
            [self._program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with process:
            try:
                output, errors = process.communicate(data, timeout=self._limit)
            except subprocess.TimeoutExpired:
                # NB: children of a wrapper script would keep the pipes open after it has ended.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise NftError(
                    f"{self._program} did not end within {self._limit:g} s and was killed",
                    failure=NftFailure.TIMEOUT,
                ) from None
        if process.returncode != 0:
            fallback = f"{self._program} ended with code {process.returncode}"
            messages = errors.decode(errors="replace")
            raise nft_error(messages, text, fallback=_last_line(messages) or fallback)
        return output


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
