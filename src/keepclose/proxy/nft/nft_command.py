"""nftables through the nft program: a process per transaction, for hosts without libnftables.

It is slower, because every process reads the chains of the table again, but a crash of nft does not
affect the proxy. A thread inside the network namespace starts the process, which inherits the
namespace. A process that exceeds its limit is killed together with its children.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from keepclose.kube.clock import Clock
from keepclose.proxy.nft.work_thread import StuckError, WorkThread
from keepclose.proxy.nft.writer import (
    DEFAULT_LIMIT,
    ContainerKind,
    NftError,
    NftFailure,
    NftFamily,
    encode_transaction,
    list_elements_command,
    list_table_command,
    nft_error,
)

PROGRAM: Final = "nft"
_MARGIN_S: Final = 10.0
_T = TypeVar("_T")


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

    async def list_table(self, family: NftFamily, table: str, *, terse: bool = False) -> bytes:
        """Return a table as JSON; raises NftError."""
        flags = ("--json", "--terse") if terse else ("--json",)
        return await self._list(list_table_command(family, table), *flags)

    async def list_elements(
        self, kind: ContainerKind, family: NftFamily, table: str, *, name: str
    ) -> bytes:
        """Return a set or map as JSON; raises NftError."""
        return await self._list(list_elements_command(kind, family, table, name=name), "--json")

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

    async def _list(self, command: str, *flags: str) -> bytes:
        return await self._off_loop(lambda: self._run(b"", command, *flags, command), command)

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
